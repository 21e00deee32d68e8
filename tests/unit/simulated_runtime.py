"""Our runtime's data path, item by item, as ``runtime.subtask`` works: it shares no formula with the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.model.buffers import Buffering
from headrace.model.stagephases import StagePhases

Numbers = npt.NDArray[np.float64]
Items = npt.NDArray[np.int64]
Flush = tuple[float, Items]
"""When a buffer was flushed, or a row arrived, and the items in it."""


@dataclass(frozen=True, slots=True)
class Run:
    """Latency of every item that came after the warm-up, in order of due time."""

    latency_s: Numbers
    due_s: Numbers


def _gamma(rng: np.random.Generator, mean: float, var: float, size: int) -> Numbers:
    if not mean or not var:
        return np.full(size, mean)
    return rng.gamma(mean**2 / var, var / mean, size)


class Subtask:
    """One actor: takes a row when it is free, and between rows flushes what has waited long enough."""

    def __init__(self, stage: StagePhases, buffering: Buffering, rng: np.random.Generator) -> None:
        self.stage, self.buffering, self.rng = stage, buffering, rng
        self.free_s, self.opened_s = 0.0, -1.0
        self.pending: list[Items] = []
        self.flushes: list[Flush] = []

    def work(self, start_s: float, items: Items) -> Numbers:
        """Work on a row; when each of its items is finished."""
        own = _gamma(self.rng, self.stage.item_s, self.stage.item_var_s2, len(items))
        row_s = float(_gamma(self.rng, self.stage.row_s, self.stage.row_var_s2, 1)[0])
        self.free_s = start_s + row_s + float(own.sum())
        if self.stage.finish == "together":
            return np.full(len(items), self.free_s)
        return start_s + row_s + np.cumsum(own)

    def take(self, arrived_s: float, items: Items, next_bytes: float) -> Numbers:
        start_s = max(self.free_s, arrived_s)
        if self.pending and self.opened_s + self.buffering.deadline_s <= start_s:
            self._flush(max(self.free_s, self.opened_s + self.buffering.deadline_s))
        finished_s = self.work(start_s, items)
        if not self.pending:
            self.opened_s = self.free_s
        self.pending.append(items)
        full = sum(map(len, self.pending)) * next_bytes >= self.buffering.max_bytes
        if full or self.free_s >= self.opened_s + self.buffering.deadline_s:
            self._flush(self.free_s)
        return finished_s

    def end(self) -> None:
        if self.pending:
            self._flush(max(self.free_s, self.opened_s + self.buffering.deadline_s))

    def _flush(self, at_s: float) -> None:
        self.flushes.append((at_s, np.concatenate(self.pending)))
        self.pending = []


def run(
    rate_per_s: float, stages: Sequence[StagePhases], subtasks: Sequence[int], buffering: Buffering, *, seconds: float,
    seed: int, gap_s: float = 0.0, epoch_s: float = 60.0,
) -> Run:  # fmt: skip
    """Send Poisson arrivals through all stages; every item is accounted for."""
    rng = np.random.default_rng(seed)
    due_s = np.cumsum(rng.exponential(1 / rate_per_s, int(rate_per_s * seconds)))
    done_s = np.zeros(len(due_s))
    home = rng.integers(subtasks[0], size=len(due_s))
    flushes: list[list[Flush]] = []
    for index in range(subtasks[0]):
        source = Subtask(stages[0], buffering, rng)
        _read(source, np.flatnonzero(home == index), due_s, done_s, gap_s, epoch_s)
        flushes.append(source.flushes)
    for at in range(1, len(stages)):
        rows = _shuffle(flushes, stages[at], subtasks[at], rng)
        after_bytes = stages[at + 1].item_bytes if at + 1 < len(stages) else 0.0
        flushes = []
        for received in rows:
            subtask = Subtask(stages[at], buffering, rng)
            for arrived_s, items in received:
                done_s[items] = subtask.take(arrived_s, items, after_bytes)
            subtask.end()
            flushes.append(subtask.flushes)
    kept = due_s > due_s[-1] * 0.1
    return Run((done_s - due_s)[kept], due_s[kept])


def _read(source: Subtask, mine: Items, due_s: Numbers, done_s: Numbers, gap_s: float, epoch_s: float) -> None:
    """Poll when the oldest due item has waited for the deadline, but never within a gap; flush at once."""
    at, times_s = 0, due_s[mine]
    while at < len(mine):
        poll_s = max(times_s[at] + source.buffering.deadline_s, source.free_s)
        if gap_s and poll_s >= epoch_s and poll_s % epoch_s < gap_s:
            poll_s += gap_s - poll_s % epoch_s
        until = int(np.searchsorted(times_s, poll_s, side="right"))
        items = mine[at:until]
        done_s[items] = source.work(poll_s, items)
        source.flushes.append((source.free_s, items))
        at = until


def _shuffle(
    flushes: list[list[Flush]], stage: StagePhases, receivers: int, rng: np.random.Generator
) -> list[list[Flush]]:
    """Each sender's buffers, split by key and in order per channel; then merged by arrival."""
    rows: list[list[Flush]] = [[] for _ in range(receivers)]
    for sent in flushes:
        last_s = np.zeros(receivers)
        for at_s, items in sent:
            route = rng.integers(receivers, size=len(items))
            for receiver in np.unique(route).tolist():
                mine = items[route == receiver]
                fixed_s = float(_gamma(rng, stage.transfer.row_s, stage.transfer.var_s2, 1)[0])
                arrived_s = at_s + fixed_s + stage.transfer.byte_s * stage.item_bytes * len(mine)
                last_s[receiver] = max(last_s[receiver], arrived_s)
                rows[receiver].append((float(last_s[receiver]), mine))
    return [sorted(received, key=lambda row: row[0]) for received in rows]
