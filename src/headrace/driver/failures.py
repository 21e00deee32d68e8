"""Why a query stopped, and whether trying again can help."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace import errors
from headrace.errors import HeadraceError, RunFailedError, UserCodeError
from headrace.runtime.messages import Failed

_FINAL = ("UserCodeError", "DataError", "SchemaError", "ConfigError", "CorruptionError", "StateError", "GraphError")
_SECONDARY = ("ChannelError", "FencedError", "ProtocolError")
_KINDS = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, HeadraceError)
}
del _KINDS[UserCodeError.__name__]  # made of four parts, not of a text
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


def understand(failures: list[Failed], spark: Exception | None) -> Failure:
    """The cause among what workers told before they died and what Spark says."""
    ranked = sorted(failures, key=lambda f: (f.error not in _FINAL, f.error in _SECONDARY))
    if ranked:
        first = ranked[0]
        error = _rebuilt(first)
        if spark is not None:
            error.__cause__ = spark
        return Failure(error, first.error in _FINAL)
    if isinstance(spark, HeadraceError):
        return Failure(spark, type(spark).__name__ in _FINAL)
    if spark is not None and _is_jvm_gone(spark):
        return Failure(translated(spark), final=True)
    text = _condensed(str(spark)) if spark is not None else "the query ended without saying why"
    error = RunFailedError(text)
    error.__cause__ = spark
    return Failure(error, bool(_HOPELESS.search(text)))


def translated(error: Exception) -> HeadraceError:
    """Whatever stopped the driver, as one of our errors."""
    if isinstance(error, HeadraceError):
        return error
    text = f"{type(error).__name__}: {error}"
    if type(error).__module__.startswith("py4j") or isinstance(error, ConnectionError):
        text = "Spark's JVM is gone (killed, or out of memory); start the job again to go on from the last cut"
    failed = RunFailedError(text)
    failed.__cause__ = error
    return failed


def _is_jvm_gone(error: Exception) -> bool:
    """Whether there is nobody to start a query any more; errors of Java's come through py4j too."""
    return isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"


def _rebuilt(failed: Failed) -> HeadraceError:
    if failed.user_code is not None:
        return UserCodeError(*failed.user_code)
    kind, text = _KINDS.get(failed.error, RunFailedError), failed.text
    if failed.place is not None:
        stage, index = failed.place
        text = f"{text} (stage {stage}, subtask {index})"
    return kind(text)


def _condensed(text: str) -> str:
    """The telling lines of a Spark error, without its stack traces."""
    lines = [line for line in text.splitlines() if line.strip() and not re.match(r"\s+at |\s*\.\.\. \d+ more", line)]
    telling = [
        line for line in lines if re.search(r"(Error|Exception|exited|crashed|lost)\b|\[[A-Z]+(_[A-Z]+)+[.\]]", line)
    ]
    return "\n".join((telling or lines)[-8:])[-_CHARS:]
