"""Who manages a session's executors, and what a new one does first."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import ceil
from threading import Thread

import pyarrow as pa
from pyspark import SparkConf
from pyspark.sql import SparkSession

from headrace.control.executors import PATIENCE_S, ExecutorPolicy
from headrace.driver.journal import Journal
from headrace.driver.provisioning import Executors
from headrace.errors import EnvironmentMissingError
from headrace.graph.slots import elastic_legs, min_slots
from headrace.runtime.plan import JobPlan
from headrace.spark.jvm import SparkFleet

_log = logging.getLogger("headrace.spark")
_POLL_S = 0.05


def open_executors(session: SparkSession, plan: JobPlan, journal: Journal, *, observe_only: bool) -> Executors:
    """The executors of a session, managed if the settings say so and nothing speaks against it."""
    limits, settings, master = plan.settings.executors, plan.settings, session.sparkContext.master
    if master == "local" or master.startswith("local["):
        if limits is not None:
            journal.warn("executors", f"{master} is one process and has none to manage")
        return Executors(journal)
    fleet = SparkFleet(session)
    why_not = refusal(session.sparkContext.getConf(), plan) if limits is not None else None
    if why_not is not None:
        journal.warn("executors", f"they stay as they are: {why_not}")
    if limits is None or why_not is not None:
        return Executors(journal, fleet, None, partial(warm_slots, session), observe_only=observe_only)
    cores = _cores(fleet) // int(session.sparkContext.getConf().get("spark.task.cpus", "1"))
    floor = ceil(min_slots(plan.layout) / cores)
    if floor > limits[1]:
        raise EnvironmentMissingError(
            f"the job needs {floor} executors of {cores} task slots at least, but executors={limits} allows {limits[1]}"
        )
    policy = ExecutorPolicy(*limits, cores, calm_cycles=ceil(settings.release_s / settings.report_s))
    return Executors(journal, fleet, policy, partial(warm_slots, session), observe_only=observe_only)


def with_backup(plan: JobPlan, master: str) -> JobPlan:
    """A plan that says how many copies of state there are: one on a cluster, unless the user has said otherwise."""
    if plan.settings.backup is not None:
        return plan
    local = master == "local" or master.startswith("local[")
    return replace(plan, settings=replace(plan.settings, backup=0 if local else 1))


def refusal(conf: SparkConf, plan: JobPlan) -> str | None:
    """Why executors are not ours to manage; None if they are."""
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return "Spark's dynamic allocation is on, and would undo it; turn it off"
    if not plan.eager or not plan.graph.constraints:
        return "only latency constraints in realtime mode say how many are needed"
    if not elastic_legs(plan.layout):
        return "no step is elastic; give one parallelism=(min, start, max)"
    return None


def _cores(fleet: SparkFleet) -> int:
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        cores = fleet.cores()
        if cores is not None:
            return cores
        time.sleep(_POLL_S)
    raise EnvironmentMissingError(f"no executor registered within {PATIENCE_S:g} s; is the cluster up and not full?")


def warm_slots(session: SparkSession, slots: int) -> Thread:
    """Start Python on free task slots, which is most of the gap that a restart with a new executor would be."""

    def work() -> None:
        try:
            rows = session.range(0, slots, 1, slots)
            rows.mapInArrow(_nothing, "id long").write.format("noop").mode("append").save()
        except Exception as error:
            _log.debug("while warming up: %s", error)  # the restart then takes as long as it takes

    thread = Thread(target=work, name="headrace-warming", daemon=True)
    thread.start()
    return thread


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
