"""Why a query stopped, and whether trying again can help."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from headrace import errors
from headrace.errors import HeadraceError, RunFailedError, UserCodeError

_FINAL = ("UserCodeError", "DataError", "SchemaError", "ConfigError", "CorruptionError", "StateError", "GraphError")
_SECONDARY = ("ChannelError", "FencedError", "ProtocolError")
_CHARS = 2000
_HOPELESS = re.compile(
    r"CONCURRENT_STREAM_LOG_UPDATE|ModuleNotFoundError|PicklingError|NOT_SUPPORTED|AnalysisException"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a query. ``final``: running the same input again would fail again."""

    error: HeadraceError
    final: bool

    @property
    def summary(self) -> str:
        return str(self.error).strip().splitlines()[0][:300]


def understand(reports: list[dict[str, Any]], spark: Exception | None) -> Failure:
    """The cause among what workers told before they died and what Spark says."""
    ranked = sorted(reports, key=lambda r: (r["kind"] not in _FINAL, r["kind"] in _SECONDARY))
    if ranked:
        report = ranked[0]
        error = _rebuilt(report)
        if spark is not None:
            error.__cause__ = spark
        return Failure(error, report["kind"] in _FINAL)
    if isinstance(spark, HeadraceError):
        return Failure(spark, type(spark).__name__ in _FINAL)
    text = _condensed(str(spark)) if spark is not None else "the query ended without saying why"
    error = RunFailedError(text)
    error.__cause__ = spark
    return Failure(error, bool(_HOPELESS.search(text)))


def translated(error: Exception) -> HeadraceError:
    """Whatever stopped the supervisor, as one of our errors."""
    if isinstance(error, HeadraceError):
        return error
    text = f"{type(error).__name__}: {error}"
    if type(error).__module__.startswith("py4j") or isinstance(error, ConnectionError):
        text = "Spark's JVM is gone (killed, or out of memory); start the job again to go on from the last commit"
    failed = RunFailedError(text)
    failed.__cause__ = error
    return failed


def _rebuilt(report: dict[str, Any]) -> HeadraceError:
    if report["kind"] == "UserCodeError":
        return UserCodeError(*report["detail"])
    kind = getattr(errors, report["kind"], RunFailedError)
    where = f"stage {report['stage']}, subtask {report['index']}"
    text = report["detail"][0] if report["kind"] != "Exception" else report["text"]
    made: HeadraceError = kind(f"{text} ({where})")
    return made


def _condensed(text: str) -> str:
    """The telling lines of a Spark error, without its stack traces."""
    lines = [line for line in text.splitlines() if line.strip() and not re.match(r"\s+at |\s*\.\.\. \d+ more", line)]
    telling = [line for line in lines if re.search(r"(Error|Exception|exited|crashed|lost)\b", line)]
    return "\n".join((telling or lines)[-8:])[-_CHARS:]
