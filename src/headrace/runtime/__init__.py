"""Inside a Spark worker: one subtask of one stage, from rows that come in to rows that leave.

A record's way: ``wire`` (a row arrives and is taken apart) → ``operators`` and ``reduce`` (steps call each other, or
wait their turn in ``scheduling`` and ``shedding``) → ``wire`` (buffers are filled, flushed and routed). ``metering``
watches all of it. On top: ``plan`` (what a worker is told), ``messages`` (all that it and the driver tell each other),
``build`` (operators from a plan), ``subtask`` (the loop), ``epoch`` (a subtask's way through one attempt). Imports
neither Spark nor the control plane.
"""
