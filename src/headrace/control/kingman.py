"""The wait at a step as a function of its parallelism (the thesis's latency model).

Each subtask is a GI/G/1 server: Kingman's approximation, fitted to the measured wait so that it is
exact at the present parallelism. Assumes that scaling leaves service times and variations as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.model.queueing import kingman

_STOP_MS = 200.0
"""How long a job stands still now and then: when the JVM collects, or a cut waits for a subtask that was held up."""
_MIN_CEILING, _MAX_CEILING = 0.5, 0.85
"""More idle time would not keep a bound that a stop breaks anyway; with less, any wait is a guess."""


def ceiling(queueing_ms: float, over_s: float) -> float:
    """The utilisation above which queues could not recover from a stop within half of what a bound leaves them.

    Ours: the thesis has no such limit, and with small variations its model would go close to 1. After a stop of h,
    waits fall from h to nothing within h / (1 − ρ), which adds h² / 2(1 − ρ) to the waits of all that came within
    ``over_s``; the other half is for ordinary waits. So a loose bound needs fewer subtasks also where queues are short.
    """
    idle = _STOP_MS**2 / (over_s * 1000 * queueing_ms) if queueing_ms > 0 else 1.0
    return min(max(1 - idle, _MIN_CEILING), _MAX_CEILING)


@dataclass(frozen=True, slots=True)
class Station:
    """One queue and its server in ``parallelism`` copies, as measured; ``fit`` is the thesis's e.

    ``batch_ms`` is by how much an item's service takes longer because a whole buffer is served at once (ours;
    the thesis serves items). Buffers are divided among the copies, so with more of them each part, and this
    time, gets smaller: what that gains or costs counts with the wait.
    """

    name: str
    parallelism: int
    minimum: int
    maximum: int
    service_ms: float
    interarrival_ms: float
    interarrival_variation: float
    service_variation: float
    peak_utilisation: float
    fit: float = 1.0
    batch_ms: float = 0.0

    def wait_ms(self, parallelism: int) -> float:
        """What an item would wait at another parallelism, plus the change in its wait for the rest of its buffer."""
        return self.queue_ms(parallelism) + self.batch_ms * (self.parallelism / parallelism - 1)

    def queue_ms(self, parallelism: int) -> float:
        """The predicted wait in the queue: ``a / (p - b)``, infinite for ``p ≤ b``."""
        interarrival_ms = self.interarrival_ms * parallelism / self.parallelism
        return self.fit * kingman(
            self.service_ms, interarrival_ms, self.interarrival_variation**2, self.service_variation**2
        )

    def utilisation(self, parallelism: int) -> float:
        return self.load / parallelism

    @property
    def load(self) -> float:
        """Offered load in servers: the thesis's ``S p / A``, below which no parallelism suffices."""
        return self.service_ms * self.parallelism / self.interarrival_ms

    def floor(self, ceiling: float) -> int:
        """The minimum parallelism that keeps utilisation at the ceiling, within the user's limits."""
        return min(self.maximum, max(self.minimum, math.ceil(self.load / ceiling - 1e-9)))


def fit_of(measured_ms: float, predicted_ms: float, limits: tuple[float, float] | None = None) -> float:
    """``e``: measured over predicted wait; 1 where nothing is predicted.

    ``limits`` clamp it, as the prototype does to [0.8, 1.2] against overscaling in bursts.
    """
    if not 0 < predicted_ms < math.inf:
        return 1.0
    fit = measured_ms / predicted_ms
    return fit if limits is None else min(max(fit, limits[0]), limits[1])
