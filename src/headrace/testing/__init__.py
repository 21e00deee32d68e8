"""The public testing kit: run a job in this process, without Spark, and crash it on purpose.

In comes a job; out come its results, from the same compiled plan, operators, state and protocol as on
Spark, with threads instead of tasks.
"""

from headrace.testing.local import LocalRun, run_local
from headrace.testing.scripted import CRASH, PAUSE, scripted

__all__ = ["CRASH", "PAUSE", "LocalRun", "run_local", "scripted"]
