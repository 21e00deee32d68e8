"""Everything that touches Spark: session, compilation, epochs, supervision.

In comes a compiled ``JobPlan``; out comes a running query whose stages call ``worker.run_stage``.
All py4j is in ``jvm``. ``epochs`` decides and is pure; ``runner`` and ``supervisor`` act.
"""
