"""Inside a Spark worker: one subtask of one stage, from rows that come in to rows that leave.

A record's way: ``wire`` (a row arrives and is taken apart) → ``operators`` and ``reduce`` (steps call each other, or
wait their turn in ``scheduling`` and ``shedding``) → ``wire`` (buffers are filled, flushed and routed). ``metering``
counts at every step. ``plan`` is what a worker is told, ``orders`` what may change while it works, ``messages`` all that
it and the driver tell each other.

From top to bottom, each sees only what is below it: ``attempt`` (a subtask's way through one batch), ``subtask`` (the
loop), ``cuts`` and ``handover`` (from a mark to a description), ``reporting``, ``build`` and ``wiring`` (from a plan to
operators and edges), ``scheduling``, ``shedding``, ``wire``, ``reduce``, ``operators``, ``metering``, then ``control``,
``sourceorders``, ``messages``, ``plan``, ``orders``, ``batch`` and ``clock``. Imports neither Spark nor the control plane.
"""
