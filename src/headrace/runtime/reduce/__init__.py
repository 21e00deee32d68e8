"""Reduce steps. In come records or partial aggregates; out goes a row per key and window (or per change).

``paned`` assembles windows from panes, ``direct`` keeps each window's own aggregate, ``keyedreduce`` holds a state per
key that every record changes (``runningresults``, ``counting``, ``sessions``), also beyond memory (``deferring``,
``overflow``, ``waiting``).
"""
