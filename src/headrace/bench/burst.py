"""The burst of C-MR's Figure 1, simulated: four interchangeable nodes, one workflow, one policy, memory that runs out.

Deterministic, over the policies that subtasks use. The paper does not give the numbers behind Figure 1; the workflow is ours
(In → A → B → {C → out, D → E → out}), with operators of different selectivity, value size and cost.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.runtime.scheduling.disciplines import Discipline, Head, Profile

STEPS = ("A", "B", "C", "D", "E")
RECEIVERS = {"A": ("B",), "B": ("C", "D"), "C": (), "D": ("E",), "E": ()}
PROFILES = {
    "A": Profile(1000, 1, 1, 200, 10),
    "B": Profile(200, 0.5, 2, 200, 8),
    "C": Profile(200, 1, 0, 50, 12),
    "D": Profile(200, 2, 1, 200, 4),
    "E": Profile(200, 0.1, 0, 100, 6),
}
"""Bytes in and out, selectivity, receivers, microseconds; per record."""
WORK_US = 32.0
"""What a record that enters costs in all: 10 + 8 + 12/2 + 4/2 + 6."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Load as a share of the nodes' capacity, and what happens beyond the memory budget.

    ``throttled``: input waits outside while memory is used up, as at a subtask, and its time goes on. Otherwise it
    comes in, and beyond the budget all work is ``swap`` times as slow.
    """

    load: float = 0.6
    peak: float = 2.5
    begins_s: float = 4.0
    ends_s: float = 20.0
    seconds: float = 120.0
    nodes: int = 4
    budget_bytes: float = 2e9
    swap: float = 10.0
    throttled: bool = False
    buffer_rows: int = 1000

    def arrivals_us(self) -> Iterator[float]:
        """When buffers come in."""
        at_us = 0.0
        while at_us < self.seconds * 1e6:
            yield at_us
            load = self.peak if self.begins_s * 1e6 <= at_us < self.ends_s * 1e6 else self.load
            at_us += self.buffer_rows * WORK_US / (self.nodes * load)


@dataclass(frozen=True, slots=True)
class Played:
    """What came out: second of leaving and latency (ms) of each buffer, in order.

    The first ``calm`` of them left before ``calm_share`` of the memory was used for the first time. ``left_bytes``
    are still there at the end, ``stopped_s`` is for how long input had to wait outside.
    """

    results: tuple[tuple[float, float], ...]
    calm: int
    peak_bytes: float
    left_bytes: float
    stopped_s: float

    @property
    def mean_ms(self) -> float:
        return sum(latency for _, latency in self.results) / max(len(self.results), 1)


@dataclass(slots=True)
class _Buffer:
    born_us: float
    rows: float


class _Play:
    """The state of one simulation."""

    def __init__(self, burst: Burst, policy: Discipline, calm_share: float) -> None:
        self.burst, self.policy, self.calm_share = burst, policy, calm_share
        self.queues: dict[str, deque[_Buffer]] = {step: deque() for step in STEPS}
        self.outside: deque[_Buffer] = deque()
        self.busy: list[tuple[float, int, str, _Buffer]] = []
        self.turn = 0
        self.used = self.peak = self.stopped_us = 0.0
        self.calm: int | None = None
        self.results: list[tuple[float, float]] = []

    def run(self) -> Played:
        arrivals, now_us = self.burst.arrivals_us(), 0.0
        arrival: float | None = next(arrivals)
        horizon_us = self.burst.seconds * 1e6
        while now_us < horizon_us and (arrival is not None or self.busy):
            before_us, stopped = now_us, bool(self.outside)
            if arrival is not None and (not self.busy or arrival <= self.busy[0][0]):
                now_us = arrival
                self.outside.append(_Buffer(now_us, self.burst.buffer_rows))
                arrival = next(arrivals, None)
            else:
                now_us, _, step, buffer = heapq.heappop(self.busy)
                self._leave(step, buffer, now_us)
            self.stopped_us += (now_us - before_us) * stopped
            self._admit()
            while len(self.busy) < self.burst.nodes and self._start(now_us):
                pass
        calm = len(self.results) if self.calm is None else self.calm
        return Played(tuple(self.results), calm, self.peak, self.used, self.stopped_us / 1e6)

    def _admit(self) -> None:
        while self.outside and not (self.burst.throttled and self.used >= self.burst.budget_bytes):
            buffer = self.outside.popleft()
            self.queues["A"].append(buffer)
            self._hold(buffer.rows * PROFILES["A"].in_bytes)

    def _start(self, now_us: float) -> bool:
        """Give an idle node work; False if there is none."""
        heads = [
            Head(place, int(queue[0].born_us), PROFILES[step])
            for place, (step, queue) in enumerate(self.queues.items())
            if queue
        ]
        if not heads:
            return False
        share = self.used / self.burst.budget_bytes
        step = STEPS[self.policy.pick(heads, share).place]
        buffer = self.queues[step].popleft()
        swapping = self.burst.swap if share > 1 and not self.burst.throttled else 1.0
        self.turn += 1
        heapq.heappush(self.busy, (now_us + buffer.rows * PROFILES[step].time_us * swapping, self.turn, step, buffer))
        return True

    def _leave(self, step: str, buffer: _Buffer, now_us: float) -> None:
        profile = PROFILES[step]
        made = _Buffer(buffer.born_us, buffer.rows * profile.selectivity)
        for receiver in RECEIVERS[step]:
            self.queues[receiver].append(_Buffer(made.born_us, made.rows))
            self._hold(made.rows * profile.out_bytes)
        self._hold(-buffer.rows * profile.in_bytes)
        if not RECEIVERS[step]:
            self.results.append((now_us / 1e6, (now_us - buffer.born_us) / 1e3))

    def _hold(self, more_bytes: float) -> None:
        self.used += more_bytes
        self.peak = max(self.peak, self.used)
        if self.calm is None and self.used >= self.calm_share * self.burst.budget_bytes:
            self.calm = len(self.results)


def play(burst: Burst, policy: Discipline, calm_share: float = 0.5) -> Played:
    """Simulate the burst under a policy; ``calm_share`` is the hybrid's threshold T."""
    return _Play(burst, policy, calm_share).run()
