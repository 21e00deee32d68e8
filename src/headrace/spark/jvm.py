"""All py4j is here: the batch clock, and a cluster's executors.

The clock is a real-time source without data (``LowLatencyMemoryStream``): its tasks run until the
batch's time is up. Where the executor is the driver's own JVM (``local[n]``) the clock is ours to
turn: it stands still, so a batch lasts until ``end_batch`` moves it past any deadline and wakes
the readers with one record each. On a cluster a batch lasts as long as the trigger says, or until the query is stopped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

_FAR_MS = 10**12
_STEP_MS = 10**9


class BatchClock:
    """The source of stage 0 in real-time mode: ``partitions`` tasks, no rows."""

    def __init__(self, session: SparkSession, partitions: int) -> None:
        jvm: Any = session.sparkContext._jvm
        sql = jvm.org.apache.spark.sql
        self._jvm, self._partitions = jvm, partitions
        self.turnable = session.sparkContext.master.startswith("local[") or session.sparkContext.master == "local"
        low_latency = sql.execution.datasources.v2.LowLatencyClock
        system = jvm.org.apache.spark.util.SystemClock()
        if self.turnable:
            self._manual = jvm.org.apache.spark.util.ManualClock(int(time.time() * 1000) + _FAR_MS)
            low_latency.setClock(self._manual)
        else:
            low_latency.setClock(system)
        self._stream = sql.execution.streaming.sources.LowLatencyMemoryStream(
            0, session._jsparkSession, partitions, system, sql.Encoders.STRING()
        )
        self.frame = DataFrame(self._stream.toDF(), session)

    def end_batch(self) -> None:
        """Let the running batch end now (``turnable`` clocks only)."""
        self._manual.advance(_STEP_MS)
        records = self._jvm.java.util.ArrayList()
        for _ in range(self._partitions):
            records.append("")
        self._stream.addData(self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(records))


def release_clock(session: SparkSession) -> None:
    """Give Spark its own clock back."""
    jvm: Any = session.sparkContext._jvm
    jvm.org.apache.spark.sql.execution.datasources.v2.LowLatencyClock.setClock(jvm.org.apache.spark.util.SystemClock())


class SparkFleet:
    """The executors of a cluster, through the developer API that PySpark lacks.

    ``request`` sets the total, which never ends an executor; ``kill`` lowers that total as well, so that a request
    belongs after it. Both return at once; a standalone cluster takes 5 to 7 s.
    """

    def __init__(self, session: SparkSession) -> None:
        context: Any = session.sparkContext
        self._jvm, self._context = context._jvm, context._jsc.sc()

    def ids(self) -> tuple[str, ...]:
        """Those that are registered, oldest first."""
        ids: list[str] = list(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(self._context.getExecutorIds()))
        return tuple(sorted(ids, key=lambda name: (len(name), name)))

    def cores(self) -> int | None:
        """Cores of the smallest executor; None while none is registered."""
        listed = self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(self._context.statusStore().executorList(True))
        return min((int(e.totalCores()) for e in listed if e.id() != "driver"), default=None)

    def request(self, total: int) -> bool:
        nowhere = self._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(self._jvm.java.util.HashMap())
        return bool(self._context.requestTotalExecutors(total, 0, nowhere))

    def kill(self, ids: Sequence[str]) -> bool:
        names = self._jvm.java.util.ArrayList()
        for name in ids:
            names.append(name)
        return bool(
            self._context.killExecutors(self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(names).toSeq())
        )
