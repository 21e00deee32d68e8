"""A running job, as its user holds it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.actuate.controller import BoundKept
from headrace.config import Schedule, check_schedule
from headrace.connect.collect import Collect, read_collected
from headrace.control.balancing import balanced
from headrace.driver.protocol.events import MovesAsked, RescaleAsked, RestartAsked, ScheduleGiven
from headrace.driver.protocol.moving import HandedOver
from headrace.driver.slicefigures import SliceFigures, slice_figures
from headrace.driver.status import CutFigures, Event, Status
from headrace.errors import ConfigError, HeadraceError
from headrace.graph.nodes import SinkNode
from headrace.measure.flows import LatencyFigures, figures_of
from headrace.runtime.messages import Reported
from headrace.spark.session import check_slots
from headrace.spark.supervisor import Supervisor
from headrace.units import Duration, number_of


class Run(Supervisor):
    """A handle on a running job: ``wait() stop() status() latency() decisions() rescale() rebalance() rows(sink)``."""

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            now = "; it is now delete_temporary_checkpoint()" if name == "forget" else ""
            raise AttributeError(f"'Run' object has no attribute {name!r}{now}")

    def __repr__(self) -> str:
        status = self.status()
        return f"<Run of job {self.plan.graph.job!r}: {status.state}, {number_of(status.cuts, 'cut')}>"

    def begin(self) -> Run:
        """Begin; ``hr.start`` has done that."""
        self._steering.start()
        self._thread.start()
        return self

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Whether the run is over and has left Spark, now or within so long."""
        return self._done.wait(within_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; raises what the job failed with. False if it still runs after the timeout."""
        if not self._done.wait(timeout_s):
            return False
        self._thread.join(30)
        if self._failure is not None:
            raise self._failure
        return True

    def stop(self, timeout_s: float = 120.0) -> None:
        """Make one more cut, and stop: all that was read by then is in the results."""
        self._ask_to_stop()
        self._done.wait(timeout_s)
        self._thread.join(30)

    def status(self) -> Status:
        machine, cut = self._machine, self._cuts[-1] if self._cuts else None
        counts = machine.hearing.counts
        counters = counts.now() if self._state is None else dict(counts.logged)  # at the end, what is in the results
        status = Status(
            self._state or machine.state, machine.logged_cuts, machine.retries.restarts, counters,
            len(machine.hearing.newest), self._journal.dropped, cut,
            time.monotonic() - cut.logged_s if cut is not None else None, len(machine.publications.waiting),
            self._origins.slices, machine.recovering.last, self._copy_watch.cut,
        )  # fmt: skip
        return status.measured(machine.hearing.summary(time.time()))

    def cuts(self) -> list[CutFigures]:
        """The last thousand cuts of this run that were logged, oldest first."""
        return list(self._cuts)

    def reports(self) -> list[Reported]:
        """What workers reported lately, oldest first."""
        return list(self._machine.hearing.history)

    def constraints(self) -> dict[str, BoundKept]:
        """Per constraint of the job: how it stands, and in which share of the cycles so far it was met."""
        return self._steering.kept()

    def subtask_s(self) -> dict[str, float]:
        """Per step: seconds of active subtasks so far."""
        return self._steering.subtask_s()

    def executor_s(self) -> float | None:
        """Seconds of executors since sources were let go; None in local mode, which has none."""
        return self._executors.executor_s()

    @property
    def control_cpu_s(self) -> float:
        """CPU time that the controller has used."""
        return self._steering.cpu_s

    def override(
        self, *, deadlines: Mapping[str, Duration] | None = None, parallelism: Mapping[str, int] | None = None,
        chained: Mapping[str, bool] | None = None,
    ) -> None:  # fmt: skip
        """Decide by hand, in place of the controller: what is given stays until the next call.

        Edges are named ``"from → to"`` (or ``"from>to"``); a keyed step's subtasks change at a cut that ends the batch.
        """
        self._steering.override(self._ranks(), deadlines or {}, parallelism or {}, chained or {})

    def rescale(self, step: str, subtasks: int) -> None:
        """Give a keyed step so many active subtasks, at the next cuts and while everything runs.

        Slices are moved to them, or from those that are no longer needed. Only if Spark runs fewer tasks for the step is
        the query restarted, at a cut, with more.
        """
        stage = self._keyed_stage(step)
        if subtasks < 1:
            raise ConfigError(f"step {step!r} needs at least one subtask, not {subtasks}")
        there = self.plan.layout.stages[stage]
        if subtasks > there.subtasks:
            more = (subtasks - there.subtasks) * (there.last - there.first + 1)
            check_slots(self._session, self.plan.layout.slots + more, patience_s=0.0)
            self._wider[stage] = subtasks
        self._loop.post(RescaleAsked(stage, subtasks))
        if subtasks > there.subtasks:
            self._loop.post(RestartAsked(f"step {step!r} gets {subtasks} subtasks, and Spark runs {there.subtasks}"))

    def provision(self, executors: int) -> None:
        """Have so many executors, of those that ``executors=(min, max)`` allows.

        New ones get subtasks at a cut once they are there, and slices while everything runs; those that are to go are
        emptied first. From then on they follow the load again.
        """
        self._executors.ask(executors)

    def rebalance(self) -> None:
        """Move slices of keyed steps now, so that their subtasks have loads as even as can be."""
        moving, tables = self._machine.moving, list(self._machine.members.tables)
        for stage in sorted(moving.stages):
            loads = moving.loads.get(stage)
            if loads and (table := balanced(tables[stage], loads)) != tables[stage]:
                self._loop.post(MovesAsked(stage, table, "loads are to be evened out: it was asked for"))

    def moves(self) -> list[HandedOver]:
        """The last thousand times that slices changed hands, oldest first."""
        return list(self._machine.handed_over)

    def slices(self) -> list[SliceFigures]:
        """The slices of all keyed steps: who owns each, its size and load, and where copies of it are."""
        machine, layout = self._machine, self.plan.layout
        if not machine.members.tables:
            return []
        manifest = machine.base.manifest if machine.base is not None else None
        found = []
        for step, stage in layout.stage_of.items():
            if any(edge.keyed and edge.target == step for edge in layout.border(stage)):
                loads, backups = machine.moving.loads.get(stage, Counter()), machine.members.backups(stage)
                found += slice_figures(step, machine.members.tables[stage], manifest, loads, backups)
        return found

    def _keyed_stage(self, step: str) -> int:
        stage = self.plan.layout.stage_of.get(step)
        first = self.plan.layout.stages[stage].first if stage is not None else None
        if first is None or first not in self._machine.moving.edges.values():
            keyed = sorted({e.target for e in self.plan.layout.edges if e.keyed and e.border is not None})
            raise ConfigError(f"{step!r} is no keyed step; those are: {', '.join(keyed) or 'none'}")
        if first not in self._machine.moving.stages:
            raise ConfigError(f"step {step!r} has a memory bound: its subtasks change with a restart only")
        if not self.plan.eager:
            raise ConfigError("only a job in realtime mode changes while it runs")
        return first

    def reschedule(self, schedule: Schedule) -> None:
        """Let subtasks choose by another policy which of their steps works next, from now on."""
        self._loop.post(ScheduleGiven(check_schedule(schedule)))

    def worker_pids(self) -> list[int]:
        """Processes that run subtasks now."""
        return sorted({heard.pid for heard in list(self._machine.hearing.newest.values())})

    @property
    def recovery_s(self) -> float | None:
        """What the longest recovery from a failure took, until there were new results; None if there was none."""
        return self._machine.recovering.longest_s

    @property
    def busy_s(self) -> float:
        """From when sources were let go to the last cut: the run without Spark's start-up."""
        return max(self._ended_s - self._began_s, 0.0)

    def latency(self) -> dict[str, LatencyFigures]:
        """Per step: latency of what it received lately, from when records were due or read."""
        return figures_of(flow for heard in self.reports() for flow in heard.flows)

    def decisions(self) -> list[Event]:
        """What was decided and what happened, oldest first: the last 10,000 events, each with its number."""
        return self._journal.events

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """The committed rows of a ``hr.rows()`` sink."""
        node = self.plan.graph.by_name.get(sink)
        if not isinstance(node, SinkNode) or not isinstance(node.sink, Collect):
            raise HeadraceError(f"{sink!r} is not an hr.rows() sink of job {self.plan.graph.job!r}")
        if self._temporary and not self.plan.checkpoint.exists():
            raise HeadraceError(
                f"the rows of {sink!r} are gone with the temporary checkpoint of this run: give it one, checkpoint=…, or use "
                "hr.collect(job), or hr.start(job) and read them before delete_temporary_checkpoint()"
            )
        return read_collected(node.sink.directory)

    def delete_temporary_checkpoint(self) -> None:
        """Delete state, source offsets and rows of ``hr.rows()`` sinks, if the run was given no ``checkpoint``.

        A checkpoint that you named stays, and so does what sinks have published. ``hr.run`` and ``hr.collect`` call
        this at the end; after ``hr.start``, call it when the run has ended and its rows were read.
        """
        if self._temporary:
            shutil.rmtree(self.plan.checkpoint, ignore_errors=True)


def temporary_checkpoint() -> Path:
    return Path(tempfile.mkdtemp(prefix="headrace-"))
