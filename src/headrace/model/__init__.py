"""From figures to predictions: what a setting would cost, before anyone pays it.

In come descriptions of a workload and of the hardware; out go bytes, requests, times and the
settings that make them small. Pure: no threads, no clock, no I/O; imports only errors.
"""
