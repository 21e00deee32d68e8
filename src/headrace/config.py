"""Settings of one run. Users give them to ``hr.run`` or the command line; workers get them whole."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from headrace.errors import ConfigError
from headrace.units import Duration, duration_s, size_bytes

Mode = Literal["realtime", "microbatch", "batch"]
MODES: tuple[Mode, ...] = ("realtime", "microbatch", "batch")
Schedule = Literal["direct", "round-robin", "odf", "mem", "hybrid", "deadline"]
SCHEDULES: tuple[Schedule, ...] = ("direct", "round-robin", "odf", "mem", "hybrid", "deadline")


@dataclass(frozen=True, slots=True)
class Transition:
    """How the hybrid schedule goes over from oldest first to memory first (C-MR, section 2.4).

    From ``threshold`` on, a share of the memory, memory decides with the probability of a Beta distribution.
    """

    threshold: float = 0.5
    alpha: float = 2.5
    beta: float = 1.0

    @staticmethod
    def of(value: Any) -> Transition:
        """From what users write: ``(0.5, 2.5, 1)``."""
        if isinstance(value, Transition):
            return value
        try:
            threshold, alpha, beta = (float(number) for number in value)
        except (TypeError, ValueError):
            raise ConfigError(f"hybrid must be (threshold, alpha, beta) such as (0.5, 2.5, 1), not {value!r}") from None
        if not (0 <= threshold < 1 and 0 < alpha < float("inf") and 0 < beta < float("inf")):
            raise ConfigError(f"hybrid {value!r}: 0 ≤ threshold < 1, and alpha and beta are more than zero")
        return Transition(threshold, alpha, beta)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a job runs.

    ``epoch_s`` is the time between commits: shorter means less to redo after a failure, longer
    means fewer gaps, of a fraction of a second, in which Spark starts the next epoch; the default keeps
    them well below one percent of the time, so that they do not decide a p99. ``epoch="auto"`` lets the bound, the
    gaps and ``recovery_s`` (how much input a failure may repeat, on average) decide instead; it is the default where
    a job has latency constraints or a recovery objective. ``flush_s`` is the longest
    time a record waits in an output buffer, ``flush_bytes`` the size at which one is cut at once.
    ``chunk_s`` and ``chunk_bytes`` say how often, or after how much, changed state is written while
    an epoch runs. With ``share``, steps that are equal run once (``graph.sharing``). A worker process that
    gives no sign of life for ``lease_s`` is taken to hang. ``flush_by``: what the controller adapts, where a
    job has latency constraints.
    ``chaining="dynamic"`` gives every stateless step a process that the controller may do without;
    "static" chains all steps between two shuffles.

    ``schedule`` says which step of a subtask works next: ``direct`` passes each buffer through all of them at
    once; the others queue buffers at every step (``docs/how-it-works.md``). ``budget_bytes`` is the memory of one
    subtask for queued buffers and state: with it, reading stops when it is used up; without it, ``queue_bytes``
    bounds the queued buffers alone. ``hybrid`` shapes the schedule of that name.

    ``executors=(least, most)`` lets a job with latency constraints have as many executors of a cluster as its elastic
    steps need; those that were not needed for ``release_s`` are let go. Without it, all stay.
    """

    mode: Mode = "realtime"
    parallelism: int = 2
    slices: int = 64
    epoch_s: float = 120.0
    epoch_auto: bool | None = None
    recovery_s: float | None = None
    flush_s: float = 0.008
    flush_bytes: int = 1_000_000
    poll_rows: int = 131_072
    queue_bytes: int = 64_000_000
    chunk_s: float = 5.0
    chunk_bytes: int = 8_000_000
    report_s: float = 1.0
    lease_s: float = 5.0
    sample_share: float = 0.1
    idle_s: float = 1.0
    join_timeout_s: float = 60.0
    max_attempts: int = 3
    restart_backoff_s: float = 0.5
    trigger_s: float = 0.0
    flush_by: Literal["deadline", "size"] = "deadline"
    chaining: Literal["static", "dynamic"] = "static"
    debug_state: bool = False
    share: bool = True
    schedule: Schedule = "direct"
    budget_bytes: int | None = None
    hybrid: Transition = Transition()
    executors: tuple[int, int] | None = None
    release_s: float = 60.0

    @staticmethod
    def of(**options: Any) -> Settings:
        """Settings from what users write: ``epoch="30 s"``, ``cut="10 ms"``, ``parallelism=4``.

        >>> Settings.of(epoch="30 s", cut="10 ms").flush_s
        0.01
        """
        known = {f.name for f in fields(Settings)}
        durations = {name[:-2] for name in known if name.endswith("_s")}
        sizes = {name[:-6] for name in known if name.endswith("_bytes")}
        values: dict[str, Any] = {}
        for name, value in options.items():
            if name in ("epoch", "epoch_s"):
                values["epoch_auto"] = value == "auto"
                if value == "auto":
                    continue
            if name in durations:
                values[f"{name}_s"] = duration_s(value, name)
            elif name in sizes:
                values[f"{name}_bytes"] = size_bytes(value, name)
            elif name == "hybrid":
                values[name] = Transition.of(value)
            elif name == "executors":
                values[name] = executor_limits(value)
            elif name in known:
                values[name] = value
            else:
                raise ConfigError(f"unknown setting {name!r}; known: {', '.join(sorted(durations | sizes | known))}")
        settings = replace(Settings(), **values)
        settings._check()
        return settings

    def _check(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"mode {self.mode!r} is not one of {', '.join(MODES)}")
        check_schedule(self.schedule)
        for name, minimum in (("parallelism", 1), ("slices", 1), ("poll_rows", 1), ("max_attempts", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < minimum:
                raise ConfigError(f"{name} must be a whole number of at least {minimum}, not {value!r}")
        if self.flush_by not in ("deadline", "size"):
            raise ConfigError(f"flush_by {self.flush_by!r} is not 'deadline' or 'size'")
        if self.chaining not in ("static", "dynamic"):
            raise ConfigError(f"chaining {self.chaining!r} is not 'static' or 'dynamic'")
        if self.slices > 65_535:
            raise ConfigError(f"slices must be at most 65535, not {self.slices}")
        if self.epoch_s < 1:
            raise ConfigError("epoch must be at least 1 s: Spark needs a good part of that between two epochs")
        if self.recovery_s is not None and self.recovery_s < 1:
            raise ConfigError("recovery must be at least 1 s: half an epoch is repeated, and epochs take 1 s or more")


def executor_limits(value: Any) -> tuple[int, int] | None:
    """From what users write: ``(1, 4)``, or None."""
    if value is None:
        return None
    try:
        minimum, maximum = value
    except (TypeError, ValueError):
        minimum, maximum = None, None
    if not (isinstance(minimum, int) and isinstance(maximum, int) and 1 <= minimum <= maximum):
        raise ConfigError(f"executors must be (least, most) such as (1, 4), not {value!r}")
    return minimum, maximum


def check_schedule(name: Any) -> Schedule:
    """The name of a schedule, or ConfigError."""
    if name not in SCHEDULES:
        raise ConfigError(f"schedule {name!r} is not one of {', '.join(SCHEDULES)}")
    return name  # type: ignore[no-any-return]


__all__ = [
    "MODES",
    "SCHEDULES",
    "Duration",
    "Mode",
    "Schedule",
    "Settings",
    "Transition",
    "check_schedule",
    "executor_limits",
]
