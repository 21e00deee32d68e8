"""A simulated subtask: one input queue and one server, first come first served."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

QUEUED, EMITTED, SHIPPED, BORN, EDGE, SENDER, FIRST = range(7)
COLUMNS = 7
_NONE: Floats = np.zeros((0, COLUMNS))


@dataclass(slots=True)
class Server:
    """Items in the queue, a row each, in any order; ``free_s`` is when the server is next free."""

    waiting: list[Floats] = field(default_factory=list)
    free_s: float = 0.0
    last_arrival_s: float | None = None
    counted_s: float = 0.0

    def put(self, items: Floats) -> None:
        if len(items):
            self.waiting.append(items)

    def due(self, until_s: float) -> Floats:
        """Take out what has arrived until then, by arrival; what is still on its way stays."""
        if not self.waiting:
            return _NONE
        items = self.waiting[0] if len(self.waiting) == 1 else np.concatenate(self.waiting)
        items = items[np.argsort(items[:, QUEUED], kind="stable")]
        n = int(np.searchsorted(items[:, QUEUED], until_s, side="right"))
        self.waiting = [items[n:]] if n < len(items) else []
        arrived: Floats = items[:n]
        return arrived

    def interarrivals_s(self, items: Floats, until_s: float) -> Floats:
        """Times between arrivals that have not been counted before."""
        fresh: Floats = items[items[:, QUEUED] > self.counted_s, QUEUED]
        self.counted_s = until_s
        if not len(fresh):
            return fresh
        before = fresh[0] if self.last_arrival_s is None else self.last_arrival_s
        apart = np.diff(fresh, prepend=before)
        first_ever = self.last_arrival_s is None
        self.last_arrival_s = float(fresh[-1])
        return apart[1:] if first_ever else apart

    def serve(self, items: Floats, service_s: Floats, until_s: float) -> tuple[int, Floats]:
        """How many items begin service until then, and when each of those begins.

        Lindley's recursion ``end_i = max(arrival_i, end_{i-1}) + service_i``, in its closed form. What
        does not begin goes back to the queue.
        """
        if not len(items):
            return 0, items[:, QUEUED]
        work = np.cumsum(service_s)
        idle_until = np.maximum.accumulate(items[:, QUEUED] - work + service_s)
        begins = np.maximum(work - service_s + np.maximum(idle_until, self.free_s), items[:, QUEUED])
        n = int(np.searchsorted(begins, until_s, side="left"))
        if n:
            self.free_s = float(begins[n - 1] + service_s[n - 1])
        self.put(items[n:])
        return n, begins[:n]
