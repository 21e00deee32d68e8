"""The job as frozen data: nodes, windows, reducers, validation, stages, drawing.

In comes what a user declared through ``api``; out go a validated ``Graph`` and its ``Layout`` in
stages. Pure: imports no Spark, starts nothing, reads no clock.
"""
