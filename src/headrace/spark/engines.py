"""The three ways to run a plan's chain of stages: one long real-time query, micro-batches, one batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.channel.keys import Address
from headrace.connect.dataframe import DataFrameSource
from headrace.driver.sparkcommits import clock_offset
from headrace.errors import ConfigError
from headrace.graph.nodes import SourceNode
from headrace.runtime.plan import JobPlan
from headrace.spark.compile import chain
from headrace.spark.external import encode
from headrace.spark.jvm import EpochClock, release_clock

_LONGEST_EPOCH = "24 hours"


class Engine(Protocol):
    """A started query."""

    def alive(self) -> bool: ...

    def failure(self) -> Exception | None: ...

    def end_epoch(self) -> bool:
        """Let the running epoch end now; False if this engine's epochs end by themselves."""
        ...

    def stop(self) -> None:
        """Stop at once; an epoch that is not committed will be run again."""
        ...


class RealtimeEngine:
    """All stages at once as long-lived tasks; Spark's noop sink ends the chain.

    ``epoch_s`` is how long epochs last where they end by themselves: its value at the start holds for the whole query.
    """

    def __init__(
        self, session: SparkSession, plan: JobPlan, query: int, address: Address, checkpoint: Path, epoch_s: float
    ) -> None:
        self._session = session
        self._clock = EpochClock(session, plan.layout.stages[0].subtasks, clock_offset(checkpoint))
        epoch = _LONGEST_EPOCH if self._clock.turnable else f"{epoch_s:g} seconds"
        frame = chain(self._clock.frame, plan, query, address)
        self._query = (
            frame.writeStream.format("noop")
            .outputMode("update")
            .option("checkpointLocation", str(checkpoint))
            .trigger(realTime=epoch)
            .start()
        )

    def alive(self) -> bool:
        return bool(self._query.isActive)

    def failure(self) -> Exception | None:
        error: Exception | None = self._query.exception()
        return error

    def end_epoch(self) -> bool:
        if not self._clock.turnable:
            return False
        self._clock.end_epoch()
        return True

    def stop(self) -> None:
        self._query.stop()
        release_clock(self._session)


class MicrobatchEngine:
    """Stage by stage, batch by batch; the driver seals inside ``foreachBatch``, before Spark commits."""

    def __init__(
        self,
        session: SparkSession,
        plan: JobPlan,
        query: int,
        address: Address,
        checkpoint: Path,
        begin: Callable[[int], None],
        seal: Callable[[int], None],
    ) -> None:
        subtasks = plan.layout.stages[0].subtasks
        frames = external_frames(plan)

        def run(batch: DataFrame, epoch: int) -> None:
            begin(epoch)
            rows = batch.repartitionById(subtasks, F.col("route")) if frames else batch
            chain(rows, plan, query, address, epoch).write.format("noop").mode("append").save()
            seal(epoch)

        if frames:
            source = encode(frames, subtasks)
        else:
            source = (
                session.readStream.format("rate-micro-batch")
                .option("rowsPerBatch", subtasks)
                .option("numPartitions", subtasks)
                .load()
                .select(F.lit(0).alias("tick"))
            )
        self._query = (
            source.writeStream.foreachBatch(run)
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime=f"{plan.settings.trigger_s:g} seconds")
            .start()
        )

    def alive(self) -> bool:
        return bool(self._query.isActive)

    def failure(self) -> Exception | None:
        error: Exception | None = self._query.exception()
        return error

    def end_epoch(self) -> bool:
        return False

    def stop(self) -> None:
        self._query.stop()


class BatchEngine:
    """One epoch over stored data."""

    def __init__(
        self,
        session: SparkSession,
        plan: JobPlan,
        query: int,
        address: Address,
        begin: Callable[[int], None],
        seal: Callable[[int], None],
    ) -> None:
        subtasks = plan.layout.stages[0].subtasks
        frames = external_frames(plan)
        if frames:
            start = encode(frames, subtasks).repartitionById(subtasks, F.col("route"))
        else:
            start = session.range(0, subtasks, 1, subtasks).select(F.lit(0).alias("tick"))
        self._failure: Exception | None = None
        self._session = session

        def run() -> None:
            try:
                begin(0)
                chain(start, plan, query, address, 0).write.format("noop").mode("append").save()
                seal(0)
            except Exception as error:
                self._failure = error

        self._thread = threading.Thread(target=run, name="headrace-batch", daemon=True)
        self._thread.start()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def failure(self) -> Exception | None:
        return self._failure

    def end_epoch(self) -> bool:
        return False

    def stop(self) -> None:
        if self._thread.is_alive():
            self._session.sparkContext.cancelAllJobs()
            self._thread.join(20)


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
