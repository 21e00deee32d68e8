"""A checkpoint as data, for people: nothing is locked, nothing is changed, and a job may go on with it meanwhile.

In comes a directory; out go its newest version (``checkpointview``), what is stored of a step, row by row with times as
times (``storedrows``), and the whole state of a step as a table (``statetables``).
"""
