"""Settings of one run as numbers, with their defaults; workers get them whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, Unpack

from headrace.config.holding import check_mode
from headrace.config.schedules import Schedule, Transition, check_schedule
from headrace.config.written import MODES, Mode, RunSettings
from headrace.errors import ConfigError
from headrace.units import duration_s, in_words, size_bytes, size_in_words

_TRANSITION = Transition()
_RENAMED = {
    "cut": "flush",
    "cut_bytes": "flush_bytes",
    "epoch": "commit",
    "max_attempts": "give_up",
    "restart_backoff": "give_up",
}


_LONGEST = 10
"""Times as far apart as wanted cuts may get by themselves."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a job runs, as workers get it; what each setting means is said in ``RunSettings``."""

    mode: Mode = "realtime"
    parallelism: int = 2
    slices: int | None = None
    commit_s: float = 1.0
    recovery_s: float | None = None
    flush_s: float = 0.008
    flush_bytes: int = 1_000_000
    poll_rows: int = 131_072
    queue_bytes: int = 8_000_000
    chunk_s: float = 5.0
    chunk_bytes: int = 8_000_000
    report_s: float = 1.0
    lease_s: float = 5.0
    sample_share: float = 0.1
    idle_s: float = 1.0
    join_timeout_s: float = 60.0
    give_up_s: float = 600.0
    trigger_s: float = 0.0
    flush_by: Literal["deadline", "size"] = "deadline"
    chaining: Literal["static", "dynamic"] = "static"
    debug_state: bool = False
    share: bool = True
    schedule: Schedule = "direct"
    budget_bytes: int | None = None
    hybrid: Transition = _TRANSITION
    executors: tuple[int, int] | None = None
    release_s: float = 60.0
    backup: int | None = None

    @staticmethod
    def of(**settings: Unpack[RunSettings]) -> Settings:
        """Settings from what users write.

        >>> Settings.of(commit="5 s", flush="10 ms").flush_s
        0.01
        """
        values: dict[str, Any] = {}
        for name, value in settings.items():
            if name not in RunSettings.__annotations__:
                raise ConfigError(unknown_setting(name))
            field = field_of(name)
            values[field] = _number(name, field, value)
        made = replace(Settings(), **values)
        made._check()
        return made

    def _check(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"mode {self.mode!r} is not one of {', '.join(MODES)}")
        check_schedule(self.schedule)
        slices = 1 if self.slices is None else self.slices
        for name, value in (("parallelism", self.parallelism), ("slices", slices), ("poll_rows", self.poll_rows)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")
        if self.flush_by not in ("deadline", "size"):
            raise ConfigError(f"flush_by {self.flush_by!r} is not 'deadline' or 'size'")
        if self.chaining not in ("static", "dynamic"):
            raise ConfigError(f"chaining {self.chaining!r} is not 'static' or 'dynamic'")
        if self.backup is not None and (not isinstance(self.backup, int) or not 0 <= self.backup <= 16):
            raise ConfigError(f"backup must be a number of copies from 0 to 16, not {self.backup!r}")
        if slices > 65_535:
            raise ConfigError(f"slices must be at most 65535, not {self.slices}")
        if self.commit_s < 0.05:
            raise ConfigError(f"commit must be at least 50 ms, not {in_words(self.commit_s)}: a cut takes part of that")
        if self.recovery_s is not None and self.recovery_s < 0.1:
            raise ConfigError("recovery must be at least 100 ms: up to two intervals between cuts are repeated")
        check_mode(self.mode, self.asked)

    @property
    def asked(self) -> tuple[str, ...]:
        """The settings that ask for something, by the names that users know: those that are neither as usual nor none."""
        usual = Settings()
        values = {name: getattr(self, field_of(name)) for name in RunSettings.__annotations__}
        return tuple(name for name, value in values.items() if value and value != getattr(usual, field_of(name)))

    @property
    def cut_every_s(self) -> float:
        """The time between cuts: as set, or less where a failure must not repeat so much."""
        return self.commit_s if self.recovery_s is None else max(min(self.commit_s, self.recovery_s / 2), 0.05)

    @property
    def longest_cut_s(self) -> float:
        """How far apart cuts may get by themselves, where more would be too much: what a failure repeats stays within reason,
        or within half of what was promised.
        """
        return _LONGEST * self.commit_s if self.recovery_s is None else max(self.cut_every_s, self.recovery_s / 2)

    @property
    def put_off_s(self) -> float:
        """For how long a cut that is due may wait for short queues: two intervals, within what a failure may repeat."""
        spare_s = 2 * self.cut_every_s
        return spare_s if self.recovery_s is None else min(spare_s, max(self.recovery_s / 2 - self.cut_every_s, 0.0))


_FIELDS = frozenset(field.name for field in fields(Settings))


def field_of(name: str) -> str:
    """The field of ``Settings`` that a user's setting is kept in, in seconds or bytes where it is a time or a size."""
    return next(field for field in (f"{name}_s", f"{name}_bytes", name) if field in _FIELDS)


def _number(name: str, field: str, value: Any) -> Any:
    """A setting's value as ``Settings`` keeps it."""
    if value is None and getattr(Settings(), field) is None:
        return None
    if field.endswith("_s"):
        return duration_s(value, name)
    if field.endswith("_bytes"):
        return size_bytes(value, name)
    if name == "hybrid":
        return Transition.of(value)
    return executor_limits(value) if name == "executors" else value


def unknown_setting(name: str, known: Iterable[str] = tuple(RunSettings.__annotations__)) -> str:
    """What is wrong with a name that is none of those known, and which one it may be meant for."""
    known = sorted(known)
    close = _RENAMED.get(name) or next(iter(get_close_matches(name, known, n=1)), None)
    meant = f" (did you mean {close!r}?)" if close else ""
    return f"unknown setting {name!r}{meant}; known: {', '.join(known)}"


def default_settings() -> dict[str, Any]:
    """The defaults as users would write them.

    >>> default_settings()["commit"], default_settings()["queue"]
    ('1 s', '8 MB')
    """
    defaults = {}
    for name in RunSettings.__annotations__:
        value = getattr(Settings(), field := field_of(name))
        if value is not None and field.endswith("_s"):
            value = in_words(value)
        elif value is not None and field.endswith("_bytes"):
            value = size_in_words(value)
        defaults[name] = value
    return defaults


def executor_limits(value: Any) -> tuple[int, int] | None:
    """From what users write: ``(1, 4)``, or None."""
    if value is None:
        return None
    try:
        minimum, maximum = value
    except (TypeError, ValueError):
        minimum, maximum = None, None
    if not (isinstance(minimum, int) and isinstance(maximum, int) and 1 <= minimum <= maximum):
        raise ConfigError(f"executors must be (min, max) such as (1, 4), not {value!r}")
    return minimum, maximum
