"""From reports to figures. In comes what workers measured in an interval; out come summaries of steps,
edges and records, in which what nobody measured is None. Pure: no Spark, no threads, no clock.
"""
