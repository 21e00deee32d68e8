"""What the simulated plant consists of: costs of steps and edges, loads, cuts, faults."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Load = Callable[[float], float]
"""Items per second as a function of the seconds since the start."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """Service time per item with its coefficient of variation (0 fixed, 1 exponential).

    ``selectivity`` is the share of items passed on. A step with ``window_ms`` emits one item at the
    end of each window in which it got any. ``drift_per_s`` makes items more expensive as time goes by.
    """

    service_ms: float = 1.0
    variation: float = 1.0
    selectivity: float = 1.0
    window_ms: float | None = None
    drift_per_s: float = 0.0

    def draw_s(self, n: int, at_s: float, random: np.random.Generator) -> Floats:
        mean_s = self.service_ms / 1000 * (1 + self.drift_per_s * at_s)
        if not self.variation:
            return np.full(n, mean_s)
        shape = 1 / self.variation**2
        return random.gamma(shape, mean_s / shape, n)


@dataclass(frozen=True, slots=True)
class EdgeModel:
    """``buffer_ms`` is what a receiver pays per buffer, whatever is in it: the cost that batching saves."""

    transfer_ms: float = 0.2
    item_bytes: int = 128
    buffer_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares of reports that never come, or come one interval late."""

    lost_share: float = 0.0
    late_share: float = 0.0


@dataclass(frozen=True, slots=True)
class PlantModel:
    """The whole plant; what is not named has its default.

    ``regular`` arrivals are evenly spaced, otherwise Poisson. ``deadline_ms`` holds for channels
    without a setting: 0 ships at once, infinity leaves flushing to the size. A change of parallelism
    takes ``scale_cycles`` intervals. Every ``cut_s`` all open buffers are shipped, as at a cut.
    """

    loads: Mapping[str, Load]
    steps: Mapping[str, StepModel] = field(default_factory=dict)
    edges: Mapping[int, EdgeModel] = field(default_factory=dict)
    regular: bool = False
    deadline_ms: float = 0.0
    buffer_bytes: int = 32_768
    scale_cycles: int = 0
    sample_share: float = 1.0
    cut_s: float | None = None
    faults: Faults = field(default_factory=Faults)

    def step(self, name: str) -> StepModel:
        return self.steps.get(name, StepModel())

    def edge(self, id: int) -> EdgeModel:
        return self.edges.get(id, EdgeModel())


def steady(rate_per_s: float) -> Load:
    return lambda at_s: rate_per_s


def stairs(rates_per_s: Sequence[float], step_s: float) -> Load:
    """One rate after the other, ``step_s`` each; the last one stays (the thesis's PrimeTest).

    >>> [stairs([10, 20], 60)(s) for s in (0, 59, 60, 500)]
    [10, 10, 20, 20]
    """
    return lambda at_s: rates_per_s[min(int(at_s // step_s), len(rates_per_s) - 1)]


def bursts(rate_per_s: float, factor: float, every_s: float, for_s: float) -> Load:
    """A base rate, multiplied for a while at the end of every period."""
    return lambda at_s: rate_per_s * (factor if at_s % every_s >= every_s - for_s else 1.0)


def waves(rate_per_s: float, swing: float, period_s: float) -> Load:
    """Slow drift up and down, as over a day."""
    return lambda at_s: rate_per_s * (1 + swing * math.sin(2 * math.pi * at_s / period_s))
