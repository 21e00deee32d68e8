"""From figures to predictions: what a setting would cost and how late its results would be.

Measured statistics and descriptions of workload and hardware come in; frozen values with a reason go
out. Pure: no Spark, no threads, no clock, no I/O; imports errors, units and measure.
"""
