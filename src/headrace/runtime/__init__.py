"""Inside a Spark worker: the subtask loop, buffers, operators and windows.

In come rows of buffers from the stage before (or polls of source readers) and control messages; out
go rows of buffers for the next stage, sink writes, and at the epoch's end a description of what
changed. Imports neither Spark nor the control plane.
"""
