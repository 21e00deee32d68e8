"""Running jobs: ``hr.run``, ``hr.start``, ``hr.collect``."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from headrace.api.job import Jobs
from headrace.api.reducers import collect as collect_values
from headrace.config import Mode, Settings
from headrace.connect.collect import CollectHere, read_collected
from headrace.errors import ConfigError
from headrace.graph.nodes import SinkNode
from headrace.graph.reduction import Aggregate
from headrace.signals import StopWish
from headrace.units import Duration, duration_s

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.handle import Run


def start(
    job: Jobs,
    *,
    mode: Mode = "realtime",
    spark: SparkSession | None = None,
    master: str = "local[*]",
    checkpoint: str | Path | None = None,
    observe_only: bool = False,
    trace: str | Path | None = None,
    seconds: Duration | None = None,
    log_level: str = "OFF",
    collecting: bool = False,
    **settings: Any,
) -> Run:
    """Start a job, or several together, and return a handle: ``wait() stop() status() latency() decisions() rows(sink)``.

    ``spark``: a session of your own, checked for the settings the mode needs; else one is made for
    ``master``. ``checkpoint``: where state lives; a run on the same directory goes on where the last
    one committed. Without it the state is temporary. ``seconds`` ends the run cleanly after a while.
    ``observe_only``: the controller decides and journals, but does not act. ``trace``: a file for what it
    saw, from which ``headrace.control.loop.replay`` gives the same decisions.

    Jobs that start together are one query on Spark: what is equal in them runs once (``share=False``: nothing
    is), and each step's name has its job's name and a dot in front.

    Other settings are those of ``headrace.config.Settings``: ``epoch="30 s"``, ``cut="5 ms"``, …
    """
    from headrace.driver.planning import plan_job
    from headrace.spark.handle import Run, temporary_checkpoint
    from headrace.spark.session import open_session, prepare

    chosen = Settings.of(mode=mode, **settings)
    directory = temporary_checkpoint() if checkpoint is None else Path(checkpoint).expanduser().resolve()
    session = spark
    try:
        plan = plan_job(job, directory, chosen, collect=collecting)
        if session is None:
            session = open_session(mode, _with_slots(master, plan.layout.slots), plan.graph.job, log_level=log_level)
        else:
            prepare(session, mode)
        run = Run(
            plan, session, own_session=spark is None, temporary=checkpoint is None, observe_only=observe_only,
            trace=Path(trace).expanduser().resolve() if trace is not None else None,
        )  # fmt: skip
    except BaseException:
        if session is not None and spark is None:
            session.stop()
        if checkpoint is None:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    return run.start(duration_s(seconds, "seconds") if seconds is not None else None)


def run(job: Jobs, **options: Any) -> Run:
    """Run a job, or several together, until its input ends, ``seconds`` are over, or it is interrupted; see ``start``.

    Ctrl-C and SIGTERM end and commit the running epoch before the job stops.
    """
    with StopWish() as wish:
        handle = start(job, **options)
        wish.listen()
        try:
            while not handle.wait(0.2):
                if wish.wanted:
                    handle.stop()
        finally:
            if handle.status().state in ("finished", "stopped", "failed"):
                handle.forget()
    return handle


@overload
def collect(what: str) -> Aggregate: ...
@overload
def collect(what: None = None) -> CollectHere: ...
@overload
def collect(what: Jobs, **options: Any) -> Any: ...
def collect(what: str | Jobs | None = None, **options: Any) -> Any:
    """Three things by one name, told apart by what they are given.

    ``hr.collect(job)`` runs a bounded job in batch mode and returns its rows (a list, or a list per
    sink if there are several). ``hr.collect()`` is a sink whose rows ``handle.rows(name)`` returns.
    ``hr.collect("column")`` is the reducer that gathers a column's values in a list.
    """
    if isinstance(what, str):
        return collect_values(what)
    if what is None:
        return CollectHere()
    handle = start(what, **{"mode": "batch", "collecting": True, **options})
    try:
        handle.wait()
        sinks = {n.name: n.sink for n in handle.plan.graph.nodes if isinstance(n, SinkNode)}
        rows = {name: read_collected(sink.directory).to_pylist() for name, sink in sinks.items()}  # type: ignore[attr-defined]
    finally:
        handle.forget()
    return next(iter(rows.values())) if len(rows) == 1 else rows


def _with_slots(master: str, slots: int) -> str:
    """``local[*]`` with enough threads for all subtasks: they are long-lived, but mostly wait."""
    if master in ("local", "local[*]"):
        return f"local[{max(slots + 2, os.cpu_count() or 1)}]"
    if re.fullmatch(r"local\[\d+\]|local-cluster\[.*\]|spark://.*|yarn|k8s://.*", master):
        return master
    raise ConfigError(f"master {master!r} is not one of local[n], local-cluster[…], spark://…, yarn, k8s://…")
