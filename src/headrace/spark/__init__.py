"""Only what touches Spark.

In comes a compiled ``JobPlan``; out comes a running query. ``session`` and ``java`` start it, ``compile`` makes its
DataFrame, ``engines`` runs it in three modes, ``worker`` is what its tasks call, ``supervisor`` keeps it going and
``handle`` is what the user holds. All py4j is in ``jvm``.
"""
