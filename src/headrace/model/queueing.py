"""Waits in a G/G/1 queue, from the mean and variation of inter-arrival and service times.

``kingman`` is the product form of Nephele Streaming section 2.9, which control fits to what it measures;
``expected_wait_s`` and ``daley_wait_s`` are our estimate and our bound where arrivals are nearly periodic
or load is low.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]
_NOISE = 1e-12
"""A utilisation this close to one is one: rounding has moved it."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and variance of a time."""

    mean_s: float
    var_s2: float

    def __add__(self, other: Spread) -> Spread:
        """The sum of two independent times."""
        return Spread(self.mean_s + other.mean_s, self.var_s2 + other.var_s2)

    @property
    def cv2(self) -> float:
        """Squared coefficient of variation."""
        return self.var_s2 / self.mean_s**2


def kingman(service: float, interarrival: float, interarrival_cv2: float, service_cv2: float) -> float:
    """Kingman's product form in the unit of its times; infinite from full utilisation on, where it turns negative.

    >>> round(kingman(10.0, 12.5, 1.0, 1.0), 9)
    40.0
    """
    busy = service / interarrival
    if busy >= 1 - _NOISE:
        return inf
    return service * busy / (1 - busy) * (interarrival_cv2 + service_cv2) / 2


def expected_wait_s(arrivals_cv2: float, service: Spread, busy: float) -> float:
    """Kingman's product form with the correction of Krämer and Langenbach-Belz (1976) for regular arrivals.

    Both theses leave it out. It matters here because buffers flushed by deadline come nearly periodically,
    where the plain form gives about twice the wait.
    """
    if busy >= 1:
        return inf
    both = arrivals_cv2 + service.cv2
    if both <= 0 or busy <= 0:
        return 0.0
    regular = exp(-2 * (1 - busy) * (1 - arrivals_cv2) ** 2 / (3 * busy * both)) if arrivals_cv2 < 1 else 1.0
    return service.mean_s * busy / (1 - busy) * both / 2 * regular


def daley_wait_s(arrivals_cv2: float, service: Spread, busy: float) -> float:
    """Daley's (1977) upper bound on the mean wait: Kingman's with ρ(2−ρ)·Var(T_a).

    At low load Kingman's is half an inter-arrival time, however short the service; this one vanishes.
    """
    if busy >= 1:
        return inf
    return service.mean_s * ((2 - busy) * arrivals_cv2 + busy * service.cv2) / (2 * (1 - busy))


def merged_cv2(sender_cv2: float, senders: int, busy: float) -> float:
    """Variation of arrivals merged from equal, independent senders (Whitt 1983, QNA, equations 29 and 33)."""
    weight = 1 / (1 + 4 * (1 - min(busy, 1.0)) ** 2 * (senders - 1))
    return weight * sender_cv2 + 1 - weight
