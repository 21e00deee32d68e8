"""Spark's Python worker daemon with our packages loaded before it forks.

Workers then start in milliseconds instead of importing pyarrow, pandas and Headrace one by one.
Started by the JVM as ``python -m headrace.spark.daemon pyspark.worker``.
"""

from __future__ import annotations

import sys
from typing import Any

import pyspark.daemon

import headrace.spark.worker  # noqa: F401 - loaded for the workers forked from here
from headrace.state.warming import warm

_worker = pyspark.daemon.worker
_SWITCH_S = 0.0005
"""How long a thread may keep the interpreter to itself: by default 5 ms, for which records would wait whenever changes are
being written behind them.
"""


def _quiet_worker(*arguments: Any) -> int:
    """A worker whose task was stopped finds its pipe closed: that is how a query ends, not an error.

    Any code but 0 makes the daemon let the process end instead of waiting for its next task.
    """
    try:
        code: int = _worker(*arguments)
    except (BrokenPipeError, ConnectionResetError):
        return 1
    return code


if __name__ == "__main__":
    pyspark.daemon.worker = _quiet_worker
    sys.setswitchinterval(_SWITCH_S)
    warm()
    pyspark.daemon.manager()
