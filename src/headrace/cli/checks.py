"""The checks of ``headrace doctor``: each returns what it found, or raises Problem with the fix."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import psutil

import headrace as hr
from headrace.channel.client import ChannelClient
from headrace.channel.server import ChannelServer
from headrace.errors import EnvironmentMissingError
from headrace.runtime.messages import Go, Loaded
from headrace.state.copies.nearest import NOTHING_LOADED
from headrace.tokens import Attempt

_MIN_PYTHON = (3, 11)
_MIN_MEMORY_GB = 2.0
"""A JVM with its default heap on a small machine, and five Python workers of about 150 MB."""
_MIN_DISK_GB = 1.0
_PROBE_RATE = 500
_PROBE_S = 4
_SLOW_MS = 250.0
"""Above this the probe shows that rows wait somewhere: real-time mode answers in tens of milliseconds."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    name: str
    ok: bool
    found: str
    fix: str | None
    seconds: float


class Problem(Exception):
    """Something is missing or does not work; ``fix`` says what to do."""

    def __init__(self, found: str, fix: str) -> None:
        super().__init__(f"{found}; {fix}")
        self.found, self.fix = found, fix


def python() -> str:
    """The running interpreter."""
    found = f"{sys.version.split()[0]} ({sys.executable})"
    if sys.version_info < _MIN_PYTHON:
        raise Problem(found, "install Python 3.11 or newer and make the environment again: rm -rf .venv && make setup")
    return found


def packages() -> str:
    """Every package that Headrace declares, in a version it allows."""
    found, wrong = [], []
    for requirement in metadata.requires("headrace") or ():
        match = re.match(r"([\w.-]+)([^;]*)$", requirement)
        if match is None:
            continue  # an extra
        name, bounds = match[1], match[2].strip()
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        found.append(f"{name} {version}")
        if not allows(bounds, version):
            wrong.append(f"{name} {version} is not {bounds}")
    if wrong:
        raise Problem("; ".join(wrong), "install what is declared: make setup, or pip install --upgrade headrace")
    return ", ".join(found)


def allows(bounds: str, version: str) -> bool:
    """Whether a version is within bounds such as ``>=2.2,<3`` or ``==4.3.*``.

    >>> allows(">=2.2,<3", "2.10.1"), allows("<3", "3.0"), allows("==4.3.*", "4.3.0")
    (True, False, True)
    """
    have = _numbers(version)
    for bound in filter(None, bounds.split(",")):
        match = re.fullmatch(r"(>=|<|==)([\d.]+?)(\.\*)?", bound.strip())
        if match is None:
            continue
        want = _numbers(match[2])
        if (match[1] == ">=" and have < want) or (match[1] == "<" and have >= want):
            return False
        if match[1] == "==" and have[: len(want)] != want:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0]))


def java() -> str:
    """The Java that Spark will use."""
    from headrace.spark.java import find_java, java_version

    try:
        path = find_java()
    except EnvironmentMissingError as error:
        what, _, fix = str(error).rpartition(": ")
        raise Problem(what, fix) from None
    return f"Java {java_version(path)} ({path})"


def memory() -> str:
    """Memory that is free now."""
    free_gb = psutil.virtual_memory().available / 1e9
    found = f"{free_gb:.1f} GB available of {psutil.virtual_memory().total / 1e9:.1f} GB"
    if free_gb < _MIN_MEMORY_GB:
        raise Problem(
            found, f"free memory until {_MIN_MEMORY_GB:g} GB are available: Spark's JVM and workers need them"
        )
    return found


def cores() -> str:
    """Cores this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = f"{usable} usable, load {os.getloadavg()[0]:.2f}"
    if usable < 2:
        raise Problem(found, "give the machine or container at least 2 cores; latencies suffer on one")
    return found


def disk() -> str:
    """Room for temporary checkpoints."""
    where = tempfile.gettempdir()
    free_gb = shutil.disk_usage(where).free / 1e9
    if free_gb < _MIN_DISK_GB:
        raise Problem(f"{free_gb:.2f} GB free in {where}", "free some space there, or set TMPDIR to another directory")
    return f"{free_gb:.1f} GB free in {where}"


def loopback() -> str:
    """A TCP connection to ourselves."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                return f"127.0.0.1:{port} answers"
    except OSError as error:
        raise Problem(
            str(error), "allow TCP connections on 127.0.0.1: driver, JVM and workers talk over them"
        ) from None


def channel() -> str:
    """A message through the encrypted control channel and back."""
    import zmq

    if not zmq.has("curve"):
        raise Problem(
            f"libzmq {zmq.zmq_version()} has no CURVE", "install pyzmq from its wheels: pip install --force pyzmq"
        )

    attempt = Attempt(0, 0)
    server = ChannelServer("127.0.0.1", lambda sender, message: [(sender, Go(attempt))])
    client = ChannelClient(server.address)
    try:
        client.tell(Loaded(0, 0, attempt, NOTHING_LOADED))
        client.wait(Go, 5.0, attempt=attempt)
    finally:
        client.close()
        server.close()
    return f"libzmq {zmq.zmq_version()} with CURVE, a message came back"


def spark() -> str:
    """A local Spark with the settings of real-time mode; it stays open for the next check."""
    from headrace.spark.session import open_session

    began_s = time.monotonic()
    try:
        session = open_session("realtime", "local[4]", "headrace doctor")
    except Exception as error:
        text = str(error).strip().splitlines()
        fix = "set JAVA_HOME to Java 17 or 21, unset SPARK_HOME and SPARK_CONF_DIR, and check the lines above"
        raise Problem(f"{type(error).__name__}: {text[0] if text else ''}", fix) from error
    return f"Spark {session.version} started in {time.monotonic() - began_s:.1f} s"


def realtime() -> str:
    """A small job in real-time mode: generate → key_by → reduce. Closes what ``spark`` has opened."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None:
        raise Problem("not tried: Spark did not start", "mend that first")
    total = _PROBE_RATE * _PROBE_S
    job = hr.Job("doctor")
    numbers = job.source("numbers", hr.generate(_numbered, rate=_PROBE_RATE, total=total))
    numbers.key_by("key").reduce(name="count", n=hr.count()).sink("out", hr.callback(_ignore))
    try:
        handle = hr.run(job, spark=session, parallelism=1)
    finally:
        session.stop()
    latency, read = handle.latency().get("count"), handle.status().counters.get("in:numbers", 0)
    if latency is None or read != total:
        raise Problem(f"{read} of {total} records arrived", "run it again on a quieter machine")
    found = f"{read} records at {_PROBE_RATE}/s, latency p50 {latency.p50_ms:.1f} ms, p99 {latency.p99_ms:.1f} ms"
    if latency.p50_ms > _SLOW_MS:
        raise Problem(found, "the machine is too busy, or settings of Spark are in the way (SPARK_CONF_DIR)")
    return found


def _numbered(numbers: Any) -> dict[str, Any]:
    return {"key": np.asarray(numbers) % 10}


def _ignore(rows: Any) -> None:
    """A sink that wants nothing."""
