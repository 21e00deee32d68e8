"""Headrace: continuous MapReduce on Apache Spark with latency guarantees.

Write a workflow, say how late a result may be, run it::

    import headrace as hr

    job = hr.Job("clicks")
    clicks = job.source("clicks", hr.replay("clicks.jsonl"), event_time="at")
    per_page = clicks.key_by("page").window(hr.tumbling("10 s")).reduce(name="per-page", n=hr.count())
    per_page.sink("out", hr.jsonl("out/"))
    hr.run(job)
"""

from typing import TYPE_CHECKING, Any

from headrace.api.job import Job
from headrace.api.keyedstate import mapping, queue, value
from headrace.api.reducers import count, distinct, first, last, max, mean, min, quantile, reducer, sum, top_k
from headrace.api.stream import KeyedStream, Stream
from headrace.api.windows import count_window, session, sliding, tumbling, versioned, whole_input
from headrace.connect.callback import callback
from headrace.connect.console import console
from headrace.connect.files import files
from headrace.connect.generate import generate
from headrace.connect.jsonl import jsonl
from headrace.connect.parquet import parquet
from headrace.connect.replay import replay
from headrace.connect.sockets import socket
from headrace.errors import HeadraceError
from headrace.launch import collect, run, start

if TYPE_CHECKING:
    from headrace.connect.dataframe import dataframe

__version__ = "0.1.0"

__all__ = [
    "HeadraceError", "Job", "KeyedStream", "Stream",
    "callback", "collect", "console", "count", "count_window", "dataframe", "distinct", "files", "first", "generate",
    "jsonl", "last", "mapping", "max", "mean", "min", "parquet", "quantile", "queue", "reducer", "replay", "run",
    "session", "sliding", "socket", "start", "sum", "top_k", "tumbling", "value", "versioned", "whole_input",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """``dataframe`` needs pyspark, which takes a while to import: only when asked for."""
    if name == "dataframe":
        from headrace.connect.dataframe import dataframe

        return dataframe
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
