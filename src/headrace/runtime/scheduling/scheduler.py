"""The local scheduler: which operator of a subtask works next on what waits (C-MR, sections 2.1 to 2.4).

With a schedule other than ``direct`` every operator has an input queue, fed by the edges into the subtask and by
the operators before it. The subtask reads all there is into the queues, and then works for a turn: the policy
picks an operator, which works on a few buffers, until the turn's time is over. Watermarks take effect before anything
new is fetched. A reduce that sheds has its queue under every schedule.

Departures from C-MR: one worker per subtask, so a watermark (its punctuation) needs no replicas here, and its N is
the number of senders, fixed per attempt. The growth of a reduce's state does not lower its rank under MEM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from headrace.config import Schedule, check_schedule
from headrace.graph.nodes import is_keyed
from headrace.graph.paths import bound_through
from headrace.measure.backlog import Backlog
from headrace.runtime.clock import now_us
from headrace.runtime.operators.operator import Operator
from headrace.runtime.operators.queues import Fifo, InputQueue
from headrace.runtime.orders import Orders
from headrace.runtime.plan import JobPlan
from headrace.runtime.scheduling.disciplines import Head, StepProfile, make_policy
from headrace.runtime.scheduling.pressure import Pressure
from headrace.runtime.shedding.shedqueue import shed_queues
from headrace.runtime.wire.inbox import Inbox

_TURN_NS = 4_000_000
"""How long a turn may take: what arrives, timers and due buffers wait for it, so half of ``flush``."""
_REQUEST_US = 4_000
"""How long an operator should work before another is picked: its call, with 0.1 ms or so, then costs little. C-MR
has a number of tuples for all operators (B), found by trial; here it follows from each one's measured time."""
_FIRST_ROWS = 64
"""Records of a request to an operator that was not measured yet."""
_MAX_ROWS = 65_536
_WEIGH_STATE_US = 100_000


class Scheduler:
    """The input queues of one subtask's operators, and the policy over them."""

    def __init__(self, plan: JobPlan, stage: int, operators: Mapping[str, Operator]) -> None:
        self._operators = [o for o in operators.values() if _has_queue(plan, stage, o)]
        self._settings = plan.settings
        origins = {step.name: step.origin for step in plan.layout.passes}
        self._bounds_us = [bound_through(plan.graph, origins.get(o.name, o.name)) for o in self._operators]
        self._measured = [StepProfile(_receivers(o)) for o in self._operators]
        self._fed = sum(_receivers(o) for o in operators.values() if o.polled)
        self._pressure = Pressure(plan.settings.budget_bytes, plan.settings.queue_bytes)
        self._inbox = Inbox(0)
        self._shedding = shed_queues(plan, self._operators)
        self._refusing, self._state_weighed_us = False, 0
        self._schedule: Schedule = plan.settings.schedule
        self._policy = make_policy(self._schedule, plan.settings.hybrid, seed=0)
        self._queues: list[InputQueue] = []

    def begin(self, inbox: Inbox, orders: Orders) -> None:
        """A new attempt with its inbox: operators get their queues."""
        self._inbox, self._refusing = inbox, False
        self._pressure.begin(now_us())
        inbox.limit_bytes = self._pressure.limit_bytes
        self._give(self._shedding.get)
        self._use(check_schedule(orders.schedule or self._settings.schedule))

    def drain(self) -> None:
        """Work off what waits, however long it takes."""
        while self.waiting:
            self._take_watermarks()
            for head in self._heads():
                self._serve(head.place)

    @contextmanager
    def directly(self) -> Iterator[None]:
        """While nothing waits: operators call each other, so that what one emits at a cut goes all the way."""
        assert not self.waiting, "what waits would be overtaken"
        held = {operator.name: operator.queue for operator in self._operators}
        self._give(lambda step: None)
        yield
        self._give(held.get)

    def obey(self, orders: Orders) -> None:
        """Work by another schedule from now on, if so ordered; by ``direct`` once what waits has been processed."""
        schedule = check_schedule(orders.schedule or self._settings.schedule)
        if schedule != self._schedule:
            self._use(schedule)

    def _use(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._policy = make_policy(schedule, self._settings.hybrid, seed=0)
        if schedule != "direct":
            held = {operator.name: operator.queue for operator in self._operators}
            self._give(lambda step: held[step] or Fifo())

    @property
    def queued(self) -> bool:
        """Whether operators have queues, so that all there is should be read into them."""
        return bool(self._queues)

    @property
    def waiting(self) -> bool:
        """Whether there is work in the queues."""
        return not all(queue.empty for queue in self._queues)

    def poll_rows(self, maximum: int) -> int:
        """How many rows the sources may be asked for now; 0 while memory is short."""
        queues = self._queues
        if not self._fed or not queues:
            return maximum
        sizes = [queue.put_bytes / queue.put_rows for queue in queues if queue.put_rows]
        rows = self._pressure.poll_rows(maximum, self._fed * max(sizes) if sizes else None)
        self._refusing = rows == 0
        return rows

    def turn(self) -> None:
        """Let watermarks take effect and work until nothing waits or the turn's time is over."""
        if not self._queues and not self._pressure.counts_state:
            return
        until_ns = time.perf_counter_ns() + _TURN_NS
        self._take_watermarks()
        self._weigh()
        while heads := self._heads():
            self._serve(self._policy.pick(heads, self._pressure.used_share).place)
            self._take_watermarks()
            self._weigh()
            if time.perf_counter_ns() >= until_ns:
                break
        if self._schedule == "direct" and len(self._queues) > len(self._shedding) and not self.waiting:
            self._give(self._shedding.get)

    def backlog(self) -> Backlog:
        """For the report."""
        pressure = self._pressure
        return Backlog(
            self._schedule,
            {o.name: o.queue.buffers for o in self._operators if o.queue is not None},
            pressure.queued_bytes,
            pressure.state_bytes,
            pressure.used_share,
            pressure.peak_bytes,
            pressure.stopped_us / 1000,
            {name: asdict(queue.figures) for name, queue in self._shedding.items()},
        )

    def newly_shed(self) -> dict[str, int]:
        """Records that steps have shed since this was last asked."""
        return {name: queue.newly_shed() for name, queue in self._shedding.items()}

    def _give(self, queue_of: Callable[[str], InputQueue | None]) -> None:
        for operator in self._operators:
            operator.queue = queue_of(operator.name)
        self._queues = [operator.queue for operator in self._operators if operator.queue is not None]

    def _heads(self) -> list[Head]:
        return [
            Head(place, born_us, self._measured[place].profile(), self._bounds_us[place])
            for place, operator in enumerate(self._operators)
            if operator.queue is not None and (born_us := operator.queue.born_us) is not None
        ]

    def _take_watermarks(self) -> None:
        """Inputs first, so that one pass takes a watermark through all operators where nothing waits."""
        for operator in self._operators:
            while operator.queue is not None and (taken := operator.queue.take_watermark()) is not None:
                operator.advance(taken.port, taken.watermark_us)

    def _serve(self, place: int) -> None:
        """One request: as much of an operator's input as makes switching to it worth while."""
        operator, measured = self._operators[place], self._measured[place]
        queue, profile = operator.queue, measured.profile()
        assert queue is not None, "only an operator with a queue has a head"
        rows = _FIRST_ROWS if profile is None else min(int(_REQUEST_US / max(profile.time_us, 1e-3)), _MAX_ROWS)
        waiting = queue.take(now_us(), max(rows, 1))
        if waiting is None:
            return
        made, put, began_ns = operator.meter.items_out, self._put_bytes(), time.perf_counter_ns()
        operator.work(waiting)
        elapsed_ns = time.perf_counter_ns() - began_ns
        queue.worked(waiting, elapsed_ns)
        made, put = operator.meter.items_out - made, self._put_bytes() - put
        measured.add(waiting.rows, waiting.nbytes, made, put, elapsed_ns)

    def _put_bytes(self) -> int:
        return sum(queue.put_bytes for queue in self._queues)

    def _weigh(self) -> None:
        now, pressure = now_us(), self._pressure
        if pressure.counts_state and now - self._state_weighed_us >= _WEIGH_STATE_US:
            self._state_weighed_us = now
            pressure.state_bytes = sum(store.nbytes for o in self._operators for store in o.stores().values())
        queued_bytes = sum(queue.nbytes for queue in self._queues)
        self._inbox.weigh(queued_bytes, pressure.state_bytes)
        pressure.weigh(queued_bytes + self._inbox.held_bytes, now, stopped=self._refusing or self._inbox.blocked)


def _has_queue(plan: JobPlan, stage: int, operator: Operator) -> bool:
    """Not sources, which are read; and in a leg of several processes only keyed steps.

    There the other steps may move, and a buffer that is passed on must not overtake what waits for one of them.
    """
    at, node = plan.layout.stages[stage], plan.graph.by_name.get(operator.name)
    alone = at.first == at.last
    return not operator.polled and (alone or (node is not None and is_keyed(node)))


def _receivers(operator: Operator) -> int:
    """How many steps of the same subtask an operator feeds."""
    return sum(isinstance(target, Operator) for target, _ in operator.outputs)
