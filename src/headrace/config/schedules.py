"""Schedules by which a subtask picks the step that works next, as settings name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import ConfigError

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


def check_schedule(name: Any) -> Schedule:
    """The name of a schedule, or ConfigError."""
    if name not in SCHEDULES:
        raise ConfigError(f"schedule {name!r} is not one of {', '.join(SCHEDULES)}")
    return name  # type: ignore[no-any-return]
