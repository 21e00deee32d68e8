"""What the driver has heard from its workers: the newest of each, and the last few thousand."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping

from headrace.graph.stages import Layout
from headrace.measure.recent import Recent
from headrace.measure.report import Report
from headrace.measure.summary import Summary
from headrace.runtime.messages import Place, Reported
from headrace.tokens import Attempt

_REMEMBERED = 4096
_FRESH_REPORTS = 2.5
"""Intervals after which a subtask that says nothing is no longer shown: one report may be lost or late."""


class RunCounts:
    """What a run has counted: by its logged cuts for good, and by its running attempt so far, as its subtasks report.

    ``logged`` is what counts if the attempt fails.
    """

    def __init__(self) -> None:
        self.logged: Counter[str] = Counter()
        self._attempt: Attempt | None = None
        self._before: Counter[str] = Counter()
        self._newest: dict[Place, Mapping[str, int]] = {}

    def log(self, attempt: Attempt, counts: Iterable[Mapping[str, int]]) -> None:
        """A cut of an attempt was logged."""
        self._see(attempt)
        self.logged = _added(self.logged, counts)

    def take(self, reported: Reported) -> None:
        """What a subtask of the running attempt has counted since that began."""
        self._see(reported.attempt)
        self._newest = {**self._newest, reported.place: reported.counts}

    def _see(self, attempt: Attempt) -> None:
        if attempt != self._attempt:
            self._attempt, self._before, self._newest = attempt, self.logged, {}

    def now(self) -> dict[str, int]:
        """Everything, as far as it is known; never less than what is logged."""
        live = _added(self._before, self._newest.values())
        return {name: max(live[name], self.logged[name]) for name in {**self.logged, **live}}


def _added(counts: Counter[str], more: Iterable[Mapping[str, int]]) -> Counter[str]:
    """A sum that keeps zeros: what was looked for and not found is known."""
    total = Counter(counts)
    for each in more:
        total.update(each)
    return total


class Hearing:
    """Collects reports. The caller holds the lock."""

    def __init__(self, layout: Layout, report_s: float) -> None:
        self._layout, self._fresh_s = layout, _FRESH_REPORTS * report_s
        self.newest: dict[tuple[int, int], Reported] = {}
        self.history: deque[Reported] = deque(maxlen=_REMEMBERED)
        self._recent = Recent(self._fresh_s)
        self._unseen: deque[Report] = deque(maxlen=_REMEMBERED)
        self.counts = RunCounts()

    def take(self, reported: Reported) -> None:
        self.counts.take(reported)
        self.newest[reported.place] = reported
        self.history.append(reported)
        self._recent = self._recent.add((reported.report,), reported.report.at_s)
        self._unseen.append(reported.report)

    def forget(self) -> None:
        """The query's workers are gone; what they said before stays in the history."""
        self.newest.clear()

    def laid_out(self, layout: Layout) -> None:
        """The job goes on with other subtasks."""
        self._layout = layout

    def exhausted(self, attempt: Attempt) -> bool:
        """Whether all sources have said, in this attempt, that no record will follow."""
        sources = [r for r in self.newest.values() if r.stage == 0 and r.attempt == attempt]
        return len(sources) == self._layout.stages[0].subtasks and all(r.exhausted for r in sources)

    def summary(self, at_s: float) -> Summary:
        """The figures of every subtask and channel that has reported lately."""
        return self._recent.summary(at_s, self._fresh_s)

    def unseen(self) -> tuple[Report, ...]:
        """What the controller has not seen yet: each report once."""
        reports = tuple(self._unseen)
        self._unseen.clear()
        return reports
