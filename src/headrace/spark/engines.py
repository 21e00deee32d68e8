"""The three ways to run a plan's chain of stages: one long real-time query, micro-batches, one batch.

What happened is in the version log. Spark's own checkpoint is temporary, made anew for each query, unless a user's
streaming DataFrame is among the sources: then Spark alone knows how far that was read, and its batches have numbers that
mean the same after a restart.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.channel.keys import Address
from headrace.connect.dataframe import DataFrameSource
from headrace.errors import ConfigError
from headrace.graph.nodes import SourceNode
from headrace.runtime.plan import JobPlan
from headrace.spark.compile import chain
from headrace.spark.external import encode
from headrace.spark.jvm import BatchClock, release_clock

_LONGEST_BATCH = "24 hours"

AskBatch = Callable[[int, bool], bool]
"""A batch's number, and whether it means the same after a restart → whether the batch is to be run."""
EndBatch = Callable[[int], None]
"""Waits until what the batch did is in the version log."""


class Engine(Protocol):
    """A started query."""

    def alive(self) -> bool: ...

    def failure(self) -> Exception | None: ...

    def end_batch(self) -> bool:
        """Let the running batch end now; False if this engine's batches end by themselves, or only with the query."""
        ...

    def stop(self) -> None:
        """Stop at once; what is not in the version log will be done again."""
        ...


class RealtimeEngine:
    """All stages at once as long-lived tasks; Spark's noop sink ends the chain."""

    def __init__(self, session: SparkSession, plan: JobPlan, query: int, address: Address) -> None:
        self._session = session
        self._clock = BatchClock(session, plan.layout.stages[0].subtasks)
        self._checkpoint = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
        try:
            self._query = (
                chain(self._clock.frame, plan, query, address)
                .writeStream.format("noop")
                .outputMode("update")
                .option("checkpointLocation", str(self._checkpoint))
                .trigger(realTime=_LONGEST_BATCH)
                .start()
            )
        except BaseException:
            shutil.rmtree(self._checkpoint, ignore_errors=True)
            raise

    def alive(self) -> bool:
        return bool(self._query.isActive)

    def failure(self) -> Exception | None:
        error: Exception | None = self._query.exception()
        return error

    def end_batch(self) -> bool:
        if not self._clock.turnable:
            return False
        self._clock.end_batch()
        return True

    def stop(self) -> None:
        try:
            self._query.stop()
            release_clock(self._session)
        finally:
            shutil.rmtree(self._checkpoint, ignore_errors=True)


class MicrobatchEngine:
    """Stage by stage, batch by batch; the driver logs the cut inside ``foreachBatch``, before Spark commits."""

    def __init__(
        self, session: SparkSession, plan: JobPlan, query: int, address: Address, begin: AskBatch, end: EndBatch
    ) -> None:
        subtasks = plan.layout.stages[0].subtasks
        frames = external_frames(plan)

        def run(batch: DataFrame, number: int) -> None:
            if begin(number, bool(frames)):
                rows = batch.repartitionById(subtasks, F.col("route")) if frames else batch
                chain(rows, plan, query, address, number).write.format("noop").mode("append").save()
                end(number)

        self._temporary = None if frames else Path(tempfile.mkdtemp(prefix="headrace-spark-"))
        source = encode(frames, subtasks) if frames else _ticks(session, subtasks)
        self._query = (
            source.writeStream.foreachBatch(run)
            .option("checkpointLocation", str(self._temporary or plan.checkpoint / "spark"))
            .trigger(processingTime=f"{plan.settings.trigger_s:g} seconds")
            .start()
        )

    def alive(self) -> bool:
        return bool(self._query.isActive)

    def failure(self) -> Exception | None:
        error: Exception | None = self._query.exception()
        return error

    def end_batch(self) -> bool:
        return False

    def stop(self) -> None:
        try:
            self._query.stop()
        finally:
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)


class BatchEngine:
    """One Spark job over all input."""

    def __init__(
        self, session: SparkSession, plan: JobPlan, query: int, address: Address, begin: AskBatch, end: EndBatch
    ) -> None:
        self._session = session
        self._failure: Exception | None = None
        rows = _input(session, plan)

        def run() -> None:
            try:
                if begin(0, False):
                    chain(rows, plan, query, address, 0).write.format("noop").mode("append").save()
                    end(0)
            except Exception as error:
                self._failure = error

        self._thread = threading.Thread(target=run, name="headrace-batch", daemon=True)
        self._thread.start()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def failure(self) -> Exception | None:
        return self._failure

    def end_batch(self) -> bool:
        return False

    def stop(self) -> None:
        if self._thread.is_alive():
            self._session.sparkContext.cancelAllJobs()
            self._thread.join(20)


def _ticks(session: SparkSession, subtasks: int) -> DataFrame:
    """A micro-batch source of one row for each subtask: sources are read in Python, this only starts the batches."""
    return (
        session.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", subtasks)
        .option("numPartitions", subtasks)
        .load()
        .select(F.lit(0).alias("tick"))
    )


def _input(session: SparkSession, plan: JobPlan) -> DataFrame:
    """What stage 0 of a batch job stands on: the users' DataFrames, or one row for each subtask."""
    subtasks, frames = plan.layout.stages[0].subtasks, external_frames(plan)
    if frames:
        return encode(frames, subtasks).repartitionById(subtasks, F.col("route"))
    return session.range(0, subtasks, 1, subtasks).select(F.lit(0).alias("tick"))


def external_frames(plan: JobPlan) -> list[tuple[int, DataFrame]]:
    """The users' DataFrames among the sources, with their number among the sources of stage 0."""
    sources = [node for node in plan.graph.nodes if isinstance(node, SourceNode)]
    frames: list[tuple[int, Any]] = []
    for number, node in enumerate(sources):
        if isinstance(node.source, DataFrameSource):
            if plan.settings.mode == "realtime":
                raise ConfigError(f"source {node.name!r} is a DataFrame: run the job with mode='microbatch' or 'batch'")
            if node.source.streaming != (plan.settings.mode == "microbatch"):
                kind = "streaming" if node.source.streaming else "batch"
                raise ConfigError(
                    f"source {node.name!r} is a {kind} DataFrame, which {plan.settings.mode} mode cannot read"
                )
            frames.append((number, node.source.frame))
    return frames
