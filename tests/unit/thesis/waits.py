"""Waits in a G/G/1 queue as the theses print them, and a queue to compare them with.

``wait_bounds`` is the upper bound of SCALLA section 2.9, ``fitted_wait_s`` the product form of Nephele
Streaming section 2.9 with its fitted error; the product form itself is the runtime's (``model.queueing.kingman``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from headrace.errors import UnstableError
from headrace.model.queueing import Seconds, kingman


@dataclass(frozen=True, slots=True)
class QueueMoments:
    """The first three raw moments of a time: E(T), E(T²), E(T³)."""

    mean_s: float
    second_s2: float
    third_s3: float

    @property
    def var_s2(self) -> float:
        return max(0.0, self.second_s2 - self.mean_s**2)

    @property
    def cv2(self) -> float:
        """Squared coefficient of variation."""
        return self.var_s2 / self.mean_s**2

    def scaled_to(self, mean_s: float) -> QueueMoments:
        """The same shape with another mean: what a measured time becomes at another rate or size."""
        by = mean_s / self.mean_s
        return QueueMoments(mean_s, self.second_s2 * by**2, self.third_s3 * by**3)

    @staticmethod
    def fixed(mean_s: float = 1.0) -> QueueMoments:
        return QueueMoments(mean_s, mean_s**2, mean_s**3)

    @staticmethod
    def gamma(mean_s: float, cv2: float) -> QueueMoments:
        """Gamma times: ``cv2=1`` is exponential, ``1/k`` Erlang with k phases, 0 fixed."""
        return QueueMoments(mean_s, mean_s**2 * (1 + cv2), mean_s**3 * (1 + cv2) * (1 + 2 * cv2))

    @staticmethod
    def of_sample(values_s: Seconds) -> QueueMoments:
        return QueueMoments(*(float(np.mean(values_s**power)) for power in (1, 2, 3)))


@dataclass(frozen=True, slots=True)
class WaitBounds:
    """Upper bounds on E(W) and E(W²) of a queue."""

    mean_s: float
    second_s2: float

    @property
    def var_s2(self) -> float:
        """The variance that both bounds together stand for; not itself a bound."""
        return max(0.0, self.second_s2 - self.mean_s**2)


def wait_bounds(arrivals: QueueMoments, service: QueueMoments) -> WaitBounds:
    """Bounds on the wait (SCALLA 2.9): Kingman's for the mean, and its cubic analogue for E(W²).

    With X = T_a − T_s and the idle time Y of one step of Lindley's recursion, taking W' − Y = W − X to
    the third power gives E(W²) = [3·E(W)·E(X²) − E(X³) + E(Y³)] / 3Δ, and Y ≤ T_a bounds E(Y³).
    The thesis prints E(T_s²) where this needs E(T_s³). Raises UnstableError unless E(T_a) > E(T_s).

    >>> wait_bounds(QueueMoments.gamma(1.0, 1.0), QueueMoments.gamma(0.5, 1.0)).mean_s
    1.25
    """
    a, s = arrivals, service
    slack_s = a.mean_s - s.mean_s
    if not slack_s > 0:
        raise UnstableError(
            f"work arrives every {a.mean_s:g} s and takes {s.mean_s:g} s: the queue grows without end; "
            f"lower the rate or add subtasks"
        )
    mean_s = (a.var_s2 + s.var_s2) / (2 * slack_s)
    x2 = a.second_s2 - 2 * a.mean_s * s.mean_s + s.second_s2
    x3 = a.third_s3 - 3 * a.second_s2 * s.mean_s + 3 * a.mean_s * s.second_s2 - s.third_s3
    return WaitBounds(mean_s, x2 * mean_s / slack_s + (a.third_s3 - x3) / (3 * slack_s))


def kingman_wait_s(arrivals: QueueMoments, service: QueueMoments) -> float:
    """Kingman's product form W_K (Nephele 2.9); infinite from full utilisation on.

    >>> round(kingman_wait_s(QueueMoments.gamma(0.0125, 1.0), QueueMoments.gamma(0.010, 1.0)), 6)
    0.04
    """
    return kingman(service.mean_s, arrivals.mean_s, arrivals.cv2, service.cv2)


def fitted_error(measured_wait_s: float, arrivals: QueueMoments, service: QueueMoments) -> float | None:
    """The coefficient e = w/W_K that makes the model exact where it was measured; None if W_K says nothing."""
    predicted_s = kingman_wait_s(arrivals, service)
    return measured_wait_s / predicted_s if 0 < predicted_s < inf else None


def fitted_wait_s(
    subtasks: int, *, measured_subtasks: int, arrivals: QueueMoments, service: QueueMoments, error: float = 1.0
) -> float:
    """W(p*): the wait with another number of subtasks (Nephele 2.9), all else as measured at p.

    Infinite where the utilisation reaches one: there the thesis's formula turns negative and would
    pass for feasible.
    """
    spread = arrivals.scaled_to(arrivals.mean_s * subtasks / measured_subtasks)
    return error * kingman_wait_s(spread, service)


def lindley_waits_s(interarrivals_s: Seconds, services_s: Seconds) -> Seconds:
    """The wait of each customer of a simulated queue, which starts empty.

    ``interarrivals_s[i]`` is the time between customers i and i+1. This is Lindley's recursion
    W' = max(0, W + T_s − T_a), unrolled: a random walk less its running minimum.
    """
    walk = np.concatenate([[0.0], np.cumsum(services_s - interarrivals_s)])
    waits: Seconds = walk - np.minimum.accumulate(walk)
    return waits
