"""Running jobs: ``hr.run``, ``hr.start``, ``hr.collect``."""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from headrace.api.job import Jobs, graph_of, jobs_of
from headrace.config import RunSettings, Settings, check_mode, default_settings, spelled_out, unknown_setting
from headrace.connect.collect import read_collected
from headrace.errors import ConfigError, GraphError
from headrace.graph.nodes import SinkNode, SourceNode
from headrace.signals import StopWish, uninterrupted
from headrace.state.durable.storage import LocalStorage, check_checkpoint
from headrace.units import Duration, duration_s

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.runtime.plan import JobPlan
    from headrace.spark.handle import Run


class RunOptions(RunSettings, total=False):
    """What ``hr.run``, ``hr.start`` and ``hr.collect`` take: where and how long a job runs, and its settings."""

    spark: SparkSession | None
    """A session of your own, checked for the settings that the mode needs; else one is made for ``master``."""
    master: str
    """Where Spark runs: ``local[n]``, ``local-cluster[…]``, ``spark://…``, ``yarn``, ``k8s://…``."""
    checkpoint: str | Path | None
    """Where state lives: a run on the same directory goes on from the last cut there. Without it, state is
    temporary."""
    seconds: Duration | None
    """Ends the run cleanly after so long, in any mode: sources stop, and what they have read is in the results."""
    standby: bool
    """Keep a session and its workers warm, and take over the ``checkpoint`` when the driver that runs the job is gone or
    hangs. The version log sees to it that only one of them decides."""
    observe_only: bool
    """The controller decides and journals, but does not act. Realtime mode only."""
    trace: str | Path | None
    """A file for what the controller saw: ``headrace explain --trace`` predicts from it and decides by it again. Realtime
    mode only, with a latency constraint."""
    log_level: str
    """What Spark itself logs, in a session that is made."""
    log: str | None
    """From which level on Headrace's own log goes to standard error, where the program has not set up logging itself:
    ``"DEBUG"``, ``"INFO"``, ``"WARNING"``, ``"ERROR"``; None: nothing does."""
    collecting: bool
    """Keep the rows of every sink for ``handle.rows(sink)`` instead of writing them."""


RUN_DEFAULTS: dict[str, Any] = default_settings() | {
    "spark": None, "master": "local[*]", "checkpoint": None, "seconds": None, "standby": False, "observe_only": False, "trace": None,
    "log_level": "OFF", "log": "WARNING", "collecting": False,
}  # fmt: skip
_OWN = tuple(RunOptions.__annotations__.keys() - RunSettings.__annotations__.keys())
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_with_run_options = spelled_out(RunOptions, RUN_DEFAULTS)
_runs: list[Run] = []
_starting = threading.Lock()
_LEAVES_S = 60.0
"""How long a run that is over may take to leave Spark, before the next one starts."""


@_with_run_options
def start(job: Jobs, **options: Unpack[RunOptions]) -> Run:
    """Start a job, or several together, and return a handle: ``wait() stop() status() latency() decisions() rows(sink)``.

    Options and settings are described in ``docs/api.md``. Jobs that start together are one query on Spark: what is
    equal in them runs once (``share=False``: nothing is), and each step's name has its job's name and a dot in front.
    """
    own, settings = checked(options)
    with _alone("+".join(one.name for one in jobs_of(job))):
        handle = _started(job, own, settings)
        _runs[:] = [handle]
    return handle


def running() -> list[Run]:
    """The runs of this process that have not ended: one, or none."""
    return [run for run in _runs if not run.has_ended()]


@contextmanager
def _alone(job: str) -> Iterator[None]:
    """Start a run inside. A process has one Spark session, whose settings and clock of real-time batches are one run's:
    a second one is refused by name before it could touch them. One that is ending is waited for.
    """
    if not _starting.acquire(blocking=False):
        raise ConfigError(f"job {job!r} cannot start: another job is being started in this process; wait for it")
    try:
        for run in running():
            other, over = run.plan.graph.job, run.status().state in ("finished", "stopped", "failed")
            if over and run.has_ended(_LEAVES_S):
                continue
            if other == job:
                raise ConfigError(f"job {job!r} runs already: stop it first, hr.running()[0].stop()")
            raise ConfigError(
                f"job {job!r} cannot run beside job {other!r}, which has this process's Spark session: stop that first, "
                "hr.running()[0].stop(), start both together, hr.start([one, other]), or use another process"
            )
        yield
    finally:
        _starting.release()


def _started(job: Jobs, own: dict[str, Any], settings: Settings) -> Run:
    from headrace.driver.identity import check_identity
    from headrace.driver.planning import plan_job
    from headrace.driver.publishing import check_sinks
    from headrace.spark.handle import Run, temporary_checkpoint
    from headrace.spark.shipping import ship_by_value

    _show_log(own["log"])
    checkpoint = own["checkpoint"]
    directory = temporary_checkpoint() if checkpoint is None else check_checkpoint(checkpoint).expanduser().resolve()
    try:
        plan = plan_job(job, directory, settings, collect=own["collecting"])
        _check_fit(plan, own)
        ship_by_value(plan.graph)
        if not own["standby"]:  # before Spark starts, which takes a while
            storage = LocalStorage(directory / "headrace")
            check_identity(storage, plan)
            check_sinks(plan, storage)
        return uninterrupted(lambda: _on_spark(plan, own), Run.stop)
    except BaseException:
        if checkpoint is None:
            shutil.rmtree(directory, ignore_errors=True)
        raise


def _on_spark(plan: JobPlan, own: dict[str, Any]) -> Run:
    from headrace.spark.handle import Run
    from headrace.spark.session import open_session, prepare

    mode, session = plan.settings.mode, own["spark"]
    if session is None:
        master = _with_slots(own["master"], plan.layout.slots)
        session = open_session(mode, master, plan.graph.job, log_level=own["log_level"])
    else:
        prepare(session, mode)
    try:
        run = Run(
            plan, session, own_session=own["spark"] is None, temporary=own["checkpoint"] is None,
            observe_only=own["observe_only"],
            trace=Path(own["trace"]).expanduser().resolve() if own["trace"] is not None else None,
            seconds=own["seconds"], standby=own["standby"],
        )  # fmt: skip
        return run.begin()
    except BaseException:
        if own["spark"] is None:
            session.stop()
        raise


def checked(options: RunOptions) -> tuple[dict[str, Any], Settings]:
    """The options of a run that are no settings, all of them, and its settings; ConfigError for what would not hold."""
    if unknown := sorted(options.keys() - RunOptions.__annotations__.keys()):
        raise ConfigError(unknown_setting(unknown[0], RunOptions.__annotations__))
    chosen: dict[str, Any] = {**{name: RUN_DEFAULTS[name] for name in _OWN}, **options}
    own = {name: chosen.pop(name) for name in _OWN}
    settings = Settings.of(**chosen)
    asked = [name for name in _OWN if own[name] != RUN_DEFAULTS[name]]
    check_mode(settings.mode, asked)
    if own["standby"] and own["checkpoint"] is None:
        raise ConfigError("a standby needs the checkpoint of the driver that it stands by for: checkpoint=…")
    for name in ("master", "log_level"):
        if own["spark"] is not None and name in asked:
            raise ConfigError(f"{name} is for a session that is made, and spark= is one of your own: set it there")
    own["seconds"] = duration_s(own["seconds"], "seconds") if own["seconds"] is not None else None
    return own, settings


def _check_fit(plan: JobPlan, own: dict[str, Any]) -> None:
    """ConfigError for options that would not hold for this job."""
    from headrace.connect.dataframe import DataFrameSource

    if own["trace"] is not None and not plan.graph.constraints:
        raise ConfigError(
            "trace has no effect without a controller: give the job a latency constraint, job.constrain(…)"
        )
    frames = [n.name for n in plan.graph.nodes if isinstance(n, SourceNode) and isinstance(n.source, DataFrameSource)]
    if own["seconds"] is not None and plan.settings.mode == "batch" and frames:
        raise ConfigError(
            f"seconds has no effect on source {frames[0]!r}, a DataFrame that Spark reads as a whole: leave it out, "
            "or limit the DataFrame"
        )


@_with_run_options
def run(job: Jobs, **options: Unpack[RunOptions]) -> Run:
    """Run a job, or several together, until its input ends, ``seconds`` are over, or it is interrupted; see ``start``.

    Ctrl-C and SIGTERM make one more cut before the job stops. A temporary checkpoint is deleted.
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
                handle.delete_temporary_checkpoint()
    return handle


Rows = list[dict[str, Any]]


@overload
def collect(job: Jobs, *, by_sink: Literal[False] = False, **options: Unpack[RunOptions]) -> Rows: ...
@overload
def collect(job: Jobs, *, by_sink: Literal[True], **options: Unpack[RunOptions]) -> dict[str, Rows]: ...
@_with_run_options
def collect(job: Jobs | None = None, *, by_sink: bool = False, **options: Unpack[RunOptions]) -> Rows | dict[str, Rows]:
    """Run a job on input that ends, in batch mode unless ``mode`` says otherwise, and return its rows.

    Nothing is written to the job's sinks. A job that ends in several sinks needs ``by_sink=True``, and its rows come
    by the names of the sinks.
    """
    if job is None:
        raise GraphError("hr.collect runs a job; the sink that keeps rows is hr.rows()")
    if isinstance(job, str):
        raise GraphError(f"hr.collect runs a job; the reducer is hr.collect_list({job!r})")
    ends = _ends(job)
    if len(ends) > 1 and not by_sink:
        raise GraphError(f"the job has {len(ends)} ends, {', '.join(ends)}: ask for all, hr.collect(job, by_sink=True)")
    options.setdefault("mode", "batch")
    options["collecting"] = True
    handle = start(job, **options)
    try:
        handle.wait()
        sinks = {n.name: n.sink for n in handle.plan.graph.nodes if isinstance(n, SinkNode)}
        rows = {name: read_collected(sink.directory) for name, sink in sinks.items()}  # type: ignore[attr-defined]
    finally:
        handle.delete_temporary_checkpoint()
    return rows if by_sink else next(iter(rows.values()))


def _ends(job: Jobs) -> list[str]:
    """Steps that nothing follows: sinks, and others that no sink receives."""
    graph = graph_of(job, need_sink=False)
    return [node.name for node in graph.nodes if not graph.consumers(node.name)]


class _OwnHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """What ``_show_log`` has added."""


def _show_log(level: str | None) -> None:
    """Let the log go to standard error from a level on, unless the program has a handler for it."""
    if level is not None and level not in _LEVELS:
        raise ConfigError(f"log={level!r} is not one of {', '.join(_LEVELS)}, or None")
    log = logging.getLogger("headrace")
    ours = [handler for handler in log.handlers if isinstance(handler, _OwnHandler)]
    theirs = {*log.handlers, *logging.getLogger().handlers} - {*ours}
    for handler in ours:
        log.removeHandler(handler)
        if log.level == handler.level:
            log.setLevel(logging.NOTSET)
    if level is None or not all(isinstance(handler, logging.NullHandler) for handler in theirs):
        return
    own = _OwnHandler()
    own.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    own.setLevel(level)
    log.addHandler(own)
    if log.level == logging.NOTSET:  # else somebody has said what is logged at all
        log.setLevel(level)


def _with_slots(master: str, slots: int) -> str:
    """``local[*]`` with enough threads for all subtasks: they are long-lived, but mostly wait."""
    if master in ("local", "local[*]"):
        return f"local[{max(slots + 2, os.cpu_count() or 1)}]"
    if re.fullmatch(r"local\[\d+\]|local-cluster\[.*\]|spark://.*|yarn|k8s://.*", master):
        return master
    raise ConfigError(f"master {master!r} is not one of local[n], local-cluster[…], spark://…, yarn, k8s://…")
