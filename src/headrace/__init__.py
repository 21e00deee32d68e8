"""Headrace: continuous MapReduce on Apache Spark with latency guarantees.

Write a workflow, say how late a result may be, run it::

    import headrace as hr

    job = hr.Job("clicks")
    clicks = job.source("clicks", hr.replay("clicks.jsonl"), event_time="at")
    per_page = clicks.key_by("page").window(hr.tumbling("10 s")).reduce(name="per-page", n=hr.count())
    per_page.sink("out", hr.jsonl("out/"))
    hr.run(job)
"""

import logging
from typing import TYPE_CHECKING, Any

from headrace.api.job import Job
from headrace.api.keyed import KeyedStream, mapping, queue, value
from headrace.api.options import StepSettings
from headrace.api.reducers import (
    collect_list,
    count,
    count_distinct,
    first,
    last,
    max,
    mean,
    min,
    quantile,
    reducer,
    sum,
    top_k,
)
from headrace.api.reducing import at_least, keep, shed
from headrace.api.spellings import FUNCTIONS, missing
from headrace.api.stream import Record, Stream
from headrace.api.windows import count_window, session_window, sliding, tumbling, versioned, whole_input
from headrace.connect.callback import callback
from headrace.connect.collect import rows
from headrace.connect.console import console
from headrace.connect.files import files
from headrace.connect.generate import generate
from headrace.connect.jsonl import jsonl
from headrace.connect.lookuptable import table
from headrace.connect.parquet import parquet
from headrace.connect.replay import replay
from headrace.connect.sink import Sink
from headrace.connect.sockets import socket
from headrace.connect.source import Source
from headrace.driver.inspection.statetables import read_state
from headrace.errors import (
    ChannelError,
    ConfigError,
    CorruptionError,
    DataError,
    EnvironmentMissingError,
    FencedError,
    GraphError,
    HeadraceError,
    MessageError,
    ProtocolError,
    RunFailedError,
    SchemaError,
    StateError,
    UnitError,
    UnstableError,
    UserCodeError,
)
from headrace.graph.reduction import Reducer
from headrace.graph.windowing import CountWindow, SessionWindow, TimeWindow, WholeInput, Window
from headrace.launch import RunOptions, collect, run, running, start

if TYPE_CHECKING:
    from headrace.connect.dataframe import dataframe
    from headrace.spark.handle import Run

__version__ = "0.1.0"
logging.getLogger("headrace").addHandler(logging.NullHandler())  # what is shown is for users, or hr.run, to say

__all__ = [
    "ChannelError", "ConfigError", "CorruptionError", "CountWindow", "DataError", "EnvironmentMissingError", "FencedError",
    "GraphError", "HeadraceError", "Job", "KeyedStream", "MessageError", "ProtocolError", "Record", "Reducer", "Run",
    "RunFailedError", "RunOptions", "SchemaError", "SessionWindow", "Sink", "Source", "StateError", "StepSettings",
    "Stream", "TimeWindow", "UnitError", "UnstableError", "UserCodeError", "WholeInput", "Window",
    "at_least", "callback", "collect", "collect_list", "console", "count", "count_distinct", "count_window", "dataframe",
    "files", "first", "generate", "jsonl", "keep", "last", "mapping", "max", "mean", "min", "parquet", "quantile", "queue",
    "read_state", "reducer", "replay", "rows", "run", "running", "session_window", "shed", "sliding", "socket", "start", "sum",
    "table", "top_k", "tumbling", "value", "versioned", "whole_input",
]  # fmt: skip

_RENAMED = {"session": "session_window", "distinct": "count_distinct"}


def __dir__() -> list[str]:
    """What users need: not the rooms that it is made of."""
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """What needs pyspark, which takes a while to import, is imported when it is asked for."""
    if name == "dataframe":
        from headrace.connect.dataframe import dataframe

        return dataframe
    if name == "Run":
        from headrace.spark.handle import Run

        return Run
    now = f"; it is now hr.{_RENAMED[name]}" if name in _RENAMED else ""
    raise AttributeError(missing("module 'headrace'", name, FUNCTIONS) + now)
