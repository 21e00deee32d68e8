"""Spark's Python worker daemon with our packages loaded before it forks.

Workers then start in milliseconds instead of importing pyarrow, pandas and Headrace one by one.
Started by the JVM as ``python -m headrace.spark.daemon pyspark.worker``.
"""

from __future__ import annotations

import pyspark.daemon

import headrace.spark.worker  # noqa: F401 - loaded for the workers forked from here

if __name__ == "__main__":
    pyspark.daemon.manager()
