"""Predictions of latency and cost, and the choices that follow from them.

Measured statistics come in, frozen values with a reason go out. Pure: no Spark, no threads, no clock.
"""
