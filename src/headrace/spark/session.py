"""The Spark session: the settings Headrace relies on, each with its reason."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from dataclasses import dataclass

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace.config import Mode
from headrace.errors import ConfigError, EnvironmentMissingError
from headrace.spark.java import find_java

_log = logging.getLogger("headrace.spark")
_EXECUTORS_COME_S = 60.0
"""How long the executors of a new cluster session may take to register."""


@dataclass(frozen=True, slots=True)
class SparkSetting:
    """A Spark setting that a mode needs."""

    key: str
    value: str
    why: str


_REALTIME = (
    SparkSetting("spark.sql.streaming.realTimeMode.allowlistCheck", "false", "the allow-list names no Python operator"),
    SparkSetting("spark.python.udf.pipelined.enabled", "true", "results leave a worker while input still arrives"),
    SparkSetting("spark.python.unix.domain.socket.enabled", "true", "TCP delays small writes by up to 50 ms"),
    SparkSetting("spark.sql.execution.pandas.udf.buffer.size", "4", "the default holds small rows back"),
    SparkSetting("spark.sql.execution.python.udf.buffer.size", "4", "the default holds small rows back"),
    SparkSetting("spark.sql.execution.arrow.maxRecordsPerBatch", "1", "a row is a whole buffer already"),
    SparkSetting("spark.shuffle.streaming.networkBufferMaxWaitTimeMs", "1", "the default waits 50 ms"),
    SparkSetting("spark.sql.streaming.realTimeMode.minBatchDuration", "1000", "lets epochs be short"),
    SparkSetting(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "real-time mode wants it",
    ),
)
_STAGE_BY_STAGE = (
    SparkSetting("spark.sql.execution.arrow.maxRecordsPerBatch", "10000", "records come from Spark here"),
    SparkSetting("spark.sql.execution.arrow.maxBytesPerBatch", "67108864", "buffers are large rows"),
    SparkSetting("spark.sql.adaptive.enabled", "false", "partitions must stay as planned"),
    SparkSetting("spark.task.maxFailures", "1", "state and shuffle output must come from one attempt"),
    SparkSetting("spark.speculation", "false", "state and shuffle output must come from one attempt"),
)
_CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"
_OURS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.python.daemon.module": "headrace.spark.daemon",
    "spark.sql.streaming.stopTimeout": "20000",
    "spark.sql.session.timeZone": "UTC",
    # How much may be under way between stages. Writers count rows of any size as one network buffer of 32 kB: with the
    # default 1,000 of ours, of megabytes each, are sent ahead of receivers that cannot keep up. This leaves five, or two per receiver.
    "spark.shuffle.streaming.writerMaxMemory": str(256 * 1024),
    "spark.shuffle.streaming.readerMaxMemory": str(8 * 1024 * 1024),
}


def needed(mode: Mode) -> tuple[SparkSetting, ...]:
    """The settings a mode relies on."""
    return _REALTIME if mode == "realtime" else _STAGE_BY_STAGE


def open_session(mode: Mode, master: str, app: str, *, log_level: str = "OFF") -> SparkSession:
    """A session of our own with everything set. Local ones listen on loopback only."""
    if SparkContext._active_spark_context is not None:
        raise ConfigError(
            "this process has a Spark session that is not Headrace's, and can have no second one: give it to the run, "
            "spark=SparkSession.getActiveSession(), or stop it first"
        )
    find_java()
    os.environ["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {**_OURS, **{s.key: s.value for s in _REALTIME}, "spark.log.level": log_level}
    settings["spark.sql.warehouse.dir"] = os.path.join(tempfile.gettempdir(), "headrace-warehouse")  # noqa: PTH118
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Without Hadoop's native library the default manager starts a process for every file it moves.
            "spark.sql.streaming.checkpointFileManagerClass": f"{_CHECKPOINTING}.FileSystemBasedCheckpointFileManager",
        }
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = SparkSession.builder.master(master).appName(app).config(map=settings).getOrCreate()
    prepare(session, mode)
    return session


def prepare(session: SparkSession, mode: Mode) -> None:
    """Set what a mode needs in a session, ours or a user's; say what is missing and cannot be set."""
    if session.sparkContext.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        session.sparkContext.pythonExec = sys.executable  # else workers are whatever python3 is on the PATH
    missing = []
    for setting in needed(mode):
        current = session.conf.get(setting.key, None) or session.sparkContext.getConf().get(setting.key, None)
        if current == setting.value:
            continue
        if session.conf.isModifiable(setting.key):
            session.conf.set(setting.key, setting.value)
        elif not _harmless(session, setting, current):
            missing.append(setting)
    if missing:
        lines = "\n".join(f"  {s.key} = {s.value}   # {s.why}" for s in missing)
        raise EnvironmentMissingError(
            f"this Spark session lacks settings that {mode} mode needs and that must be there when it is created; "
            f"add to SparkSession.builder.config(...):\n{lines}"
        )


def _harmless(session: SparkSession, setting: SparkSetting, current: str | None) -> bool:
    """Settings that are as wanted although nobody set them."""
    if setting.key == "spark.task.maxFailures":
        return str(session.sparkContext.master).startswith("local[")  # local mode never retries a task
    return setting.key == "spark.speculation" and current is None


def check_slots(session: SparkSession, slots: int, patience_s: float = _EXECUTORS_COME_S) -> None:
    """Real-time mode holds one task slot per subtask. Executors of a cluster that are still starting are waited for."""
    context = session.sparkContext
    if context.master.startswith("local"):
        patience_s = patience_s if context.master.startswith("local-cluster") else 0.0
    until_s = time.monotonic() + patience_s
    if context.defaultParallelism < slots and patience_s:
        _log.warning(
            "waiting for task slots: the job needs %d, and %s has %d so far",
            slots,
            context.master,
            context.defaultParallelism,
        )
    while context.defaultParallelism < slots:
        if time.monotonic() >= until_s:
            raise EnvironmentMissingError(
                f"the job needs {slots} task slots at once, but {context.master} has {context.defaultParallelism}; "
                f"use master='local[{slots}]' or more executors, or lower parallelism"
            )
        time.sleep(0.1)
