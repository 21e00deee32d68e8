"""What users write: jobs, streams, windows, reducers, state, constraints.

In come plain Python functions and strings like ``"5 s"``; out goes a frozen ``graph.Graph``. Nothing
runs before ``hr.run``. Imports ``graph``, ``connect`` and ``config`` only.
"""
