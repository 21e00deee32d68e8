"""What the driver has heard from its workers: the newest of each, and the last few thousand."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from headrace.graph.stages import Layout
from headrace.measure.backlog import Backlog
from headrace.measure.flows import Flow
from headrace.measure.recent import Recent
from headrace.measure.report import Report
from headrace.measure.summary import Summary
from headrace.measure.wire import unpack, unpack_flow

_REMEMBERED = 4096
_FRESH_REPORTS = 2.5
"""Intervals after which a subtask that says nothing is no longer shown: one report may be lost or late."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One report of one subtask, with what is not measurement: its process, memory and engines."""

    stage: int
    index: int
    token: str
    pid: int
    at_us: int
    cpu_s: float
    rss_bytes: int
    exhausted: bool
    engines: dict[str, tuple[str, str]]
    flows: tuple[Flow, ...]
    report: Report
    backlog: Backlog

    @staticmethod
    def of(body: dict[str, Any]) -> Heard:
        """From the message on the control channel; DataError if its measurements are not what they should be."""
        return Heard(
            body["stage"],
            body["index"],
            body["token"],
            body["pid"],
            body["at_us"],
            body["cpu_s"],
            body["rss_bytes"],
            body["exhausted"],
            {step: (engine, reason) for step, (engine, reason) in body["engines"].items()},
            tuple(map(unpack_flow, body["flows"])),
            unpack(body["report"]),
            Backlog(**body["backlog"]),
        )


class Hearing:
    """Collects reports. The caller holds the lock."""

    def __init__(self, layout: Layout, report_s: float) -> None:
        self._layout, self._fresh_s = layout, _FRESH_REPORTS * report_s
        self.newest: dict[tuple[int, int], Heard] = {}
        self.history: deque[Heard] = deque(maxlen=_REMEMBERED)
        self._recent = Recent(self._fresh_s)
        self._unseen: deque[Report] = deque(maxlen=_REMEMBERED)

    def take(self, heard: Heard) -> None:
        self.newest[heard.stage, heard.index] = heard
        self.history.append(heard)
        self._recent = self._recent.add((heard.report,), heard.report.at_s)
        self._unseen.append(heard.report)

    def forget(self) -> None:
        """The query's workers are gone; what they said before stays in the history."""
        self.newest.clear()

    def exhausted(self, token: str) -> bool:
        """Whether all sources have said, in this attempt, that no record will follow."""
        sources = [h for (stage, _), h in self.newest.items() if stage == 0 and h.token == token]
        return len(sources) == self._layout.stages[0].subtasks and all(h.exhausted for h in sources)

    def summary(self, at_s: float) -> Summary:
        """The figures of every subtask and channel that has reported lately."""
        return self._recent.summary(at_s, self._fresh_s)

    def unseen(self) -> tuple[Report, ...]:
        """What the controller has not seen yet: each report once."""
        reports = tuple(self._unseen)
        self._unseen.clear()
        return reports
