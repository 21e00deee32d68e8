"""Sources and sinks.

In comes a frozen description that a user wrote; out go readers (polled by the subtask loop, with
replayable offsets) and writers (as produced, or published on commit). May import pyspark only in
``dataframe``; imports nothing of the runtime.
"""
