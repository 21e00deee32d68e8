"""The driver's side of the protocol of cuts as a pure machine: ``events`` in, instructions out, no thread, clock or disk.

``machine`` is the whole of it, on top of ``ordering``, when there is a cut, ``querying``, a query's life, and ``attempts``,
which is what subtasks say: who takes part (``members``) and is ready (``asking``), the cut under way (``cutting``) and its
``audit``. Beside it are the version log (``appending``), results on their way (``publications``), the tables of lookups
(``tablereading``), the checkpoint's ``upkeep`` and ``retries``. Whoever carries out the instructions imports this room.
"""
