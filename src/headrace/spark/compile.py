"""From a plan to a Spark DataFrame: the same chain of stages in every mode."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.channel.keys import Address
from headrace.runtime.plan import JobPlan
from headrace.spark.worker import StageTask

_ROW = "route int, payload binary"


def chain(frame: DataFrame, plan: JobPlan, query: int, address: Address, batch: int | None = None) -> DataFrame:
    """Stage after stage on top of ``frame``; a shuffle by route wherever a border has keyed edges."""
    for stage in plan.layout.stages:
        if stage.index and stage.shuffled:
            frame = frame.repartitionById(stage.subtasks, F.col("route"))
        frame = frame.mapInArrow(StageTask(plan, stage.index, query, address, batch), _ROW)
    return frame
