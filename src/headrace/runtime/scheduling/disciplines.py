"""Which operator of a subtask works next: round-robin, ODF, MEM, hybrid, earliest deadline (C-MR, sections 2.3, 2.4).

In come the heads of the operators' input queues and how much of the memory is used, out goes one of them. A
policy knows no clock and no queue; the randomised one is given a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.config import Transition

_NO_BOUND_US = 60_000_000
"""Deadline of work that no constraint bounds: it gives way, but not for ever."""
_FADING = 0.9
"""Weight that earlier measurements keep at each new one; C-MR leaves the smoothing open."""


@dataclass(frozen=True, slots=True)
class Profile:
    """An operator as measured lately, per record: sizes, records out for one in, receivers, time.

    ``fan_out`` counts receivers in the same subtask only: what leaves it no longer takes its memory.
    """

    in_bytes: float
    selectivity: float
    fan_out: int
    out_bytes: float
    time_us: float

    @property
    def freed_per_us(self) -> float:
        """Bytes that the operator's work frees in a microsecond; negative if it makes more than it takes.

        The paper leaves out the fan-out, and its ranks are whole numbers, among which small ones would tie.
        """
        return (self.in_bytes - self.selectivity * self.fan_out * self.out_bytes) / max(self.time_us, 1e-3)


class StepProfile:
    """Sums over recent buffers, of which new ones count more (an EWMA weighted by records)."""

    def __init__(self, fan_out: int) -> None:
        self.fan_out = fan_out
        self._rows_in = self._bytes_in = self._rows_out = self._bytes_out = self._ns = 0.0

    def add(self, rows_in: int, bytes_in: int, rows_out: int, bytes_out: int, elapsed_ns: int) -> None:
        """One buffer; ``bytes_out`` is what it put into the queues of all receivers together."""
        self._rows_in = self._rows_in * _FADING + rows_in
        self._bytes_in = self._bytes_in * _FADING + bytes_in
        self._rows_out = self._rows_out * _FADING + rows_out
        self._bytes_out = self._bytes_out * _FADING + bytes_out
        self._ns = self._ns * _FADING + elapsed_ns

    def profile(self) -> Profile | None:
        """None until the first buffer."""
        if not self._rows_in:
            return None
        sent = self._rows_out * self.fan_out
        return Profile(
            self._bytes_in / self._rows_in,
            self._rows_out / self._rows_in,
            self.fan_out,
            self._bytes_out / sent if sent else 0.0,
            self._ns / self._rows_in / 1000,
        )


@dataclass(frozen=True, slots=True)
class Head:
    """An operator with waiting input, as a policy sees it.

    ``place`` is its position in the subtask, inputs first. ``born_us`` is the oldest time in the buffer that
    is its turn. ``profile`` is None until it has worked, ``bound_us`` where no constraint leads through it.
    """

    place: int
    born_us: int
    profile: Profile | None = None
    bound_us: int | None = None


class Discipline(Protocol):
    """Picks one of the heads; there is at least one, and something always runs, whatever its rank."""

    def pick(self, heads: Sequence[Head], used_share: float) -> Head: ...


class RoundRobin:
    """Each operator with input in turn."""

    def __init__(self) -> None:
        self._last = -1

    def pick(self, heads: Sequence[Head], used_share: float) -> Head:
        chosen = min(heads, key=lambda head: (head.place <= self._last, head.place))
        self._last = chosen.place
        return chosen


class OldestFirst:
    """ODF: the oldest data first; of equals what is nearest to the output."""

    def pick(self, heads: Sequence[Head], used_share: float) -> Head:
        return min(heads, key=lambda head: (head.born_us, -head.place))


class MemoryFirst:
    """MEM: what frees most memory per time, whoever has not been measured first of all; of equals the oldest."""

    def pick(self, heads: Sequence[Head], used_share: float) -> Head:
        return min(heads, key=lambda head: (-_freed(head), head.born_us, -head.place))


class DeadlineFirst:
    """Earliest deadline: born + the tightest bound on a path through the operator."""

    def pick(self, heads: Sequence[Head], used_share: float) -> Head:
        return min(heads, key=lambda head: (head.born_us + (head.bound_us or _NO_BOUND_US), -head.place))


class Hybrid:
    """ODF with much room in memory, MEM with none, and in between the more MEM the less room (section 2.4)."""

    def __init__(self, transition: Transition, seed: int = 0) -> None:
        self._transition, self._dice = transition, random.Random(seed)
        self._oldest, self._memory = OldestFirst(), MemoryFirst()

    def pick(self, heads: Sequence[Head], used_share: float) -> Head:
        policy = self._memory if self._dice.random() < memory_weight(used_share, self._transition) else self._oldest
        return policy.pick(heads, used_share)


def memory_weight(used_share: float, transition: Transition) -> float:
    """F(x): how probably memory decides. 0 below the threshold T, then the Beta distribution of (x − T)/(1 − T).

    >>> round(memory_weight(0.9, Transition()), 3)
    0.572
    """
    if used_share < transition.threshold:
        return 0.0
    if used_share >= 1.0:
        return 1.0
    scaled = (used_share - transition.threshold) / (1.0 - transition.threshold)
    if transition.beta == 1.0:
        return float(scaled**transition.alpha)
    from scipy.special import betainc  # workers start faster without it, and β is 1 unless set

    return float(betainc(transition.alpha, transition.beta, scaled))


def make_policy(name: str, transition: Transition, seed: int) -> Discipline:
    """The policy of a schedule's name; whatever waits although the schedule is ``direct`` goes oldest first."""
    if name == "hybrid":
        return Hybrid(transition, seed)
    makers: dict[str, Callable[[], Discipline]] = {
        "round-robin": RoundRobin, "odf": OldestFirst, "direct": OldestFirst, "mem": MemoryFirst,
        "deadline": DeadlineFirst,
    }  # fmt: skip
    return makers[name]()


def _freed(head: Head) -> float:
    return head.profile.freed_per_us if head.profile is not None else float("inf")
