"""From summaries to decisions. In come a topology, constraints and reports; out come settings, and a
sentence for each change made or withheld. Pure: no Spark, no threads, no clock, no I/O.
"""
