"""What the driver has heard from its workers: the newest of each, and the last few thousand."""

from __future__ import annotations

from collections import deque

from headrace.graph.stages import Layout
from headrace.measure.recent import Recent
from headrace.measure.report import Report
from headrace.measure.summary import Summary
from headrace.runtime.messages import Reported
from headrace.tokens import Attempt

_REMEMBERED = 4096
_FRESH_REPORTS = 2.5
"""Intervals after which a subtask that says nothing is no longer shown: one report may be lost or late."""


class Hearing:
    """Collects reports. The caller holds the lock."""

    def __init__(self, layout: Layout, report_s: float) -> None:
        self._layout, self._fresh_s = layout, _FRESH_REPORTS * report_s
        self.newest: dict[tuple[int, int], Reported] = {}
        self.history: deque[Reported] = deque(maxlen=_REMEMBERED)
        self._recent = Recent(self._fresh_s)
        self._unseen: deque[Report] = deque(maxlen=_REMEMBERED)

    def take(self, reported: Reported) -> None:
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
