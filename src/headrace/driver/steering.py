"""What is decided while a run goes on: the controller's turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.actuate.controljob import control_job, overrides_of
from headrace.actuate.controller import BoundKept, Controller, open_trace, wanted_subtasks
from headrace.actuate.ranks import Ranks
from headrace.driver.journal import Journal
from headrace.errors import ConfigError
from headrace.graph.slots import elastic_legs
from headrace.graph.stages import Layout
from headrace.measure.report import Report
from headrace.runtime.orders import Orders
from headrace.runtime.plan import JobPlan
from headrace.units import Duration


class Steering:
    """A run without constraints, or stage by stage, has no controller. The caller holds the lock.

    ``cpu_s`` is what the controller has used.
    """

    def __init__(
        self, plan: JobPlan, order: Callable[[Orders], None], journal: Journal, *, observe_only: bool,
        trace: Path | None,
    ) -> None:  # fmt: skip
        self._plan = plan
        self._controller: Controller | None = None
        if plan.eager and plan.graph.constraints:
            job = control_job(plan, observe_only=observe_only)
            self._controller = Controller(plan, job, order, journal.say, open_trace(trace))
        elif plan.graph.constraints:
            journal.warn(
                "constraints", f"latency constraints are kept in realtime mode, not in {plan.settings.mode} mode"
            )
        self._turned_s = self.cpu_s = 0.0

    def start(self) -> None:
        """Put the first settings into force."""
        if self._controller is not None:
            self._controller.start()

    def due(self, now_s: float) -> bool:
        """Whether an interval has passed since the controller's last turn."""
        return self._controller is not None and now_s - self._turned_s >= self._plan.settings.report_s

    def turn(self, now_s: float, reports: Sequence[Report], ranks: Ranks) -> None:
        """One turn of the control loop."""
        assert self._controller is not None, "a turn is due only where there is a controller"
        self._turned_s, cpu_s = now_s, time.thread_time()
        self._controller.cycle(time.time(), reports, ranks)
        self.cpu_s += time.thread_time() - cpu_s

    def override(
        self, ranks: Ranks, deadlines: Mapping[str, Duration], parallelism: Mapping[str, int],
        chained: Mapping[str, bool],
    ) -> None:  # fmt: skip
        if self._controller is None:
            raise ConfigError("only a job with latency constraints in realtime mode has settings to override")
        self._controller.override(overrides_of(self._plan, deadlines, parallelism, chained), ranks)

    def kept(self) -> dict[str, BoundKept]:
        return dict(self._controller.kept) if self._controller is not None else {}

    def subtask_s(self) -> dict[str, float]:
        return dict(self._controller.ledger.seconds) if self._controller is not None else {}

    def wanted(self, layout: Layout) -> dict[int, int]:
        """Per elastic leg: the subtasks that the controller wants, or the job starts with."""
        if self._controller is not None:
            return wanted_subtasks(self._controller.state.settings, layout)
        return {leg.index: leg.active for leg in elastic_legs(layout)}

    def laid_out(self, plan: JobPlan, ranks: Ranks) -> None:
        """The job goes on with other subtasks."""
        self._plan = plan
        if self._controller is not None:
            self._controller.laid_out(plan, ranks)

    def close(self) -> None:
        if self._controller is not None:
            self._controller.close()
