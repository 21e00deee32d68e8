"""A subtask's report: at most one per interval, with all that it measured since the last one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

import psutil

from headrace.measure.report import ChannelReport, Report, SubtaskReport
from headrace.runtime.messages import Reported
from headrace.runtime.operators.operator import Operator
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.plan import JobPlan
from headrace.runtime.scheduling.scheduler import Scheduler
from headrace.runtime.wire.channelmeter import Stamp
from headrace.runtime.wire.intake import Intake
from headrace.runtime.wire.outlet import Outlet
from headrace.tokens import Attempt


class Told(Protocol):
    """Whoever reports are sent to."""

    def tell(self, message: Reported) -> None: ...


class Reporter:
    """Takes the meters' figures and sends them, and counts the same for each cut.

    An interval ends early, and is reported so, when the sources end and when the batch does.
    """

    def __init__(
        self, plan: JobPlan, stage: int, operators: Mapping[str, Operator], guards: Mapping[str, Guard],
        intake: Intake, outlet: Outlet, scheduler: Scheduler, stamp: Stamp,
    ) -> None:  # fmt: skip
        self._stage, self._operators, self._guards = stage, operators, guards
        self._intake, self._outlet, self._scheduler, self._stamp = intake, outlet, scheduler, stamp
        self._every_us = plan.settings.report_s * 1e6
        self._process = psutil.Process()
        self._sent_us, self._version = 0, stamp.version
        self._counts: dict[str, int] = {}
        self._in_attempt: dict[str, int] = {}
        self._counted: dict[str, tuple[int, int, int]] = {}

    def begin(self, index: int, attempt: Attempt, control: Told) -> None:
        """A new attempt: counts start anew."""
        self._index, self._attempt, self._control = index, attempt, control
        self._counts, self._in_attempt, self._counted = {}, {}, {}

    def take_counts(self) -> dict[str, int]:
        """What was counted since this was last asked, for a cut; the interval that will be reported goes on."""
        for operator in self._operators.values():
            meter = operator.meter
            self._count(meter.step, meter.items_in, meter.items_out, meter.late)
        self._count_lost()
        counts, self._counts = self._counts, {}
        return counts

    def due(self, now_us: int) -> bool:
        return now_us - self._sent_us > self._every_us

    def send(self, now_us: int, *, exhausted: bool) -> None:
        """Report the interval that ends now."""
        self._sent_us = now_us
        measured = [operator.meter.take(self._index) for operator in self._operators.values()]
        here = tuple(report for report, _ in measured if self._outlet.is_here(report.id.step))
        flows = [flow for _, flow in measured]
        for flow in flows:
            self._count(flow.step, flow.items_in, flow.items_out, flow.late)
        self._counted.clear()
        self._count_lost()
        cpu = self._process.cpu_times()
        engines = {
            operator.name: (operator.choice.engine, operator.choice.reason)
            for operator in self._operators.values()
            if operator.choice is not None
        }
        reported = Reported(
            self._stage,
            self._index,
            self._attempt,
            pid=os.getpid(),
            at_us=now_us,
            cpu_s=cpu.user + cpu.system,
            rss_bytes=self._process.memory_info().rss,
            exhausted=exhausted,
            engines=engines,
            flows=tuple(flows),
            report=self._report(now_us, here),
            backlog=self._scheduler.backlog(),
            counts=dict(self._in_attempt),
        )
        self._control.tell(reported)

    def _report(self, now_us: int, subtasks: tuple[SubtaskReport, ...]) -> Report:
        """Named by the oldest settings that were in force at any time: here, or where its buffers were flushed."""
        meters = self._intake.meters()
        version = min([self._version, *(meter.oldest for meter in meters if meter.oldest is not None)])
        self._version = self._stamp.version
        channels: list[ChannelReport] = [c for meter in meters for c in meter.take(self._index)]
        at_s = (now_us + self._stamp.offset_us) / 1e6
        return Report(f"{self._stage}/{self._index}", at_s, version, subtasks, tuple(channels))

    def _count(self, step: str, items_in: int, items_out: int, late: int) -> None:
        """Add what is new of the interval's figures so far."""
        before = self._counted.get(step, (0, 0, 0))
        now = self._counted[step] = (items_in, items_out, late)
        for name, count, counted in zip(("in", "out", "late"), now, before):
            self._add(f"{name}:{step}", count - counted)

    def _count_lost(self) -> None:
        for name, guard in self._guards.items():
            if guard.skipped:
                self._add(f"skipped:{name}", guard.skipped)
                guard.skipped = 0
        for step, shed in self._scheduler.newly_shed().items():
            self._add(f"shed:{step}", shed)

    def _add(self, name: str, count: int) -> None:
        self._counts[name] = self._counts.get(name, 0) + count
        self._in_attempt[name] = self._in_attempt.get(name, 0) + count
