"""A simulated plant for controllers: buffers, queues, servers, cuts, and reports that may be lost.

Deterministic for a seed. Each interval is simulated exactly, item by item, step by step in the order
of flow; within an interval the settings do not change, so no event list is needed. Queues are
unbounded: there is no backpressure, and the service times under overload are the true ones.
"""

from __future__ import annotations

import numpy as np

from headrace.control.chaining import Chain
from headrace.control.policy import ControlSettings
from headrace.control.topology import Topology
from headrace.measure.report import ChannelId, Report, SubtaskId
from headrace.measure.trace import Observation
from headrace.testing.buffering import Floats
from headrace.testing.gauges import Gauges
from headrace.testing.lindley import BORN, COLUMNS, EDGE, FIRST, SENDER
from headrace.testing.plant_model import PlantModel
from headrace.testing.plantwiring import PlantWiring


class Plant:
    """A job with simulated time; ``run`` is one interval under given settings."""

    def __init__(self, topology: Topology, model: PlantModel, *, seed: int = 0, interval_s: float = 1.0) -> None:
        self.model, self.interval_s = model, interval_s
        self.at_s = 0.0
        self.created = self.consumed = 0
        self._random = np.random.default_rng(seed)
        self._luck = np.random.default_rng([seed, 1])
        self._wiring = PlantWiring(topology)
        self._waiting_cycles: dict[str, tuple[int, int]] = {}
        self._late: list[Report] = []

    def run(self, settings: ControlSettings) -> Observation:
        """Simulate one interval; what controllers see of it."""
        self._rewire(settings)
        gauges = Gauges(settings.version, self.model.sample_share, self._luck)
        until_s = self.at_s + self.interval_s
        for step in self.topology.steps:
            if step.source:
                self._generate(step.name, until_s)
            elif self._wiring.chain(step.name)[0] == step.name:
                for index in range(step.parallelism):
                    self._serve(self._wiring.chain(step.name), index, until_s, gauges)
            for edge in self.topology.out_of(step.name):
                if edge.id not in self._wiring.chained:
                    self._ship(edge.id, until_s, settings, gauges)
        self.at_s = until_s
        reports = self._delivered(gauges.reports(self.topology, until_s))
        return Observation(until_s, reports, {s.name: s.parallelism for s in self.topology.steps})

    @property
    def topology(self) -> Topology:
        """The job with the parallelism that is in force."""
        return self._wiring.topology

    @property
    def in_flight(self) -> int:
        """Items in buffers, queues and windows."""
        return self._wiring.in_flight()

    def _generate(self, step: str, until_s: float) -> None:
        subtasks = self.topology.by_name[step].parallelism
        rate_per_s = self.model.loads[step](self.at_s) / subtasks
        for index in range(subtasks):
            wanted = rate_per_s * self.interval_s
            n = round(wanted) if self.model.regular else int(self._random.poisson(wanted))
            spread = (np.arange(n) + 0.5) / max(n, 1) if self.model.regular else np.sort(self._random.random(n))
            due_s = self.at_s + self.interval_s * spread
            self.created += n
            self._emit(step, index, due_s, due_s)

    def _emit(self, step: str, index: int, at_s: Floats, born_s: Floats) -> None:
        """Hand items to every edge out of the step: paired, or to receivers by the hash of their key.

        Not in turn: senders that take turns fall into lockstep, and receivers then get their items in bursts.
        """
        for edge in self.topology.out_of(step):
            receivers = self.topology.by_name[edge.target].parallelism
            if edge.paired or receivers == 1:
                self._wiring.buffer(ChannelId(edge.id, index, index if edge.paired else 0)).append(at_s, born_s)
                continue
            routes = self._random.integers(receivers, size=len(at_s))
            order = np.argsort(routes, kind="stable")
            borders = np.searchsorted(routes[order], np.arange(1, receivers))
            for receiver, mine in enumerate(np.split(order, borders)):
                if len(mine):
                    self._wiring.buffer(ChannelId(edge.id, index, receiver)).append(at_s[mine], born_s[mine])

    def _ship(self, edge: int, until_s: float, settings: ControlSettings, gauges: Gauges) -> None:
        model, target = self.model.edge(edge), self.topology.by_id[edge].target
        flush = self.model.cut_s is not None and (until_s + 1e-9) % self.model.cut_s < 1e-6
        for channel in self.topology.channels(edge):
            deadline_s = settings.deadlines_ms.get(channel, self.model.deadline_ms) / 1000
            size_bytes = settings.sizes_bytes.get(channel, self.model.buffer_bytes)
            capacity = max(1, -(-size_bytes // model.item_bytes))
            sent = self._wiring.buffer(channel).ship(self.at_s, until_s, deadline_s, capacity, flush=flush)
            if len(sent.at):
                gauges.flush(channel, sent.lifetimes_s)
                items = np.empty((len(sent.at), COLUMNS))
                items[:, :EDGE] = np.stack((sent.at + model.transfer_ms / 1000, sent.emitted, sent.at, sent.born), 1)
                items[:, EDGE], items[:, SENDER], items[:, FIRST] = edge, channel.sender, sent.first
                self._wiring.server(target, channel.receiver).put(items)

    def _serve(self, chain: Chain, index: int, until_s: float, gauges: Gauges) -> None:
        server = self._wiring.server(chain[0], index)
        items = server.due(until_s)
        interarrivals_s = server.interarrivals_s(items, until_s)
        reached = self._reached(chain, items)
        draws = [self.model.step(step).draw_s(len(items), self.at_s, self._random) for step in chain]
        costs = np.where(reached[:-1], draws, 0.0)
        costs[0] += self._receiving_s(items)
        n, begins = server.serve(items, costs.sum(axis=0), until_s)
        items, reached, costs = items[:n], reached[:, :n], costs[:, :n]
        ends = begins + np.cumsum(costs, axis=0)
        gauges.arrived(SubtaskId(chain[0], index), items, begins)
        for k, step in enumerate(chain):
            mine = reached[k]
            times = (ends[k] - costs[k])[mine], ends[k][mine]
            windowed = self.model.step(step).window_ms is not None
            gauges.served(
                SubtaskId(step, index), *times, items[mine, BORN], interarrivals_s if k == 0 else None, windowed
            )
        if self.model.step(chain[-1]).window_ms is not None:
            self._hold(SubtaskId(chain[-1], index), begins, ends[-1], items[:, BORN], until_s, gauges)
        else:
            self._leave(chain[-1], index, ends[-1][reached[-1]], items[reached[-1], BORN])

    def _reached(self, chain: Chain, items: Floats) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """For each step of a chain, and for what follows it, which items get there."""
        entry = np.zeros(len(items), np.int64)
        if len(chain) > 1:
            places = {e.id: chain.index(e.target) for step in chain for e in self.topology.into(step)}
            entry = np.array([places[int(edge)] for edge in items[:, EDGE]], np.int64)
        reached = np.empty((len(chain) + 1, len(items)), np.bool_)
        alive = np.ones(len(items), np.bool_)
        for k, step in enumerate(chain):
            reached[k] = alive & (entry <= k)
            passed = self._random.random(len(items)) < self.model.step(step).selectivity
            alive &= passed | (entry > k)
        reached[-1] = alive
        return reached

    def _receiving_s(self, items: Floats) -> Floats:
        cost_s = {edge.id: self.model.edge(edge.id).buffer_ms / 1000 for edge in self.topology.edges}
        if not any(cost_s.values()):
            return np.zeros(len(items))
        receiving_s: Floats = items[:, FIRST] * np.array([cost_s[int(edge)] for edge in items[:, EDGE]])
        return receiving_s

    def _leave(self, step: str, index: int, at_s: Floats, born_s: Floats) -> None:
        if not self.topology.out_of(step):
            self.consumed += len(at_s)
        self._emit(step, index, at_s, born_s)

    def _hold(
        self, id: SubtaskId, read_s: Floats, done_s: Floats, born_s: Floats, until_s: float, gauges: Gauges
    ) -> None:
        """Keep items until their window ends; then one item stands for them, as old as the oldest."""
        window_s = (self.model.step(id.step).window_ms or 0.0) / 1000
        ends_s = np.ceil(done_s / window_s) * window_s
        self._wiring.held[id].append(np.stack((ends_s, read_s, born_s)))
        held = np.concatenate(self._wiring.held[id], axis=1)
        over = held[0] <= until_s
        self._wiring.held[id] = [held[:, ~over]]
        closed = held[:, over]
        gauges.written(id, closed[0] - closed[1])
        windows = np.unique(closed[0])
        born = np.array([closed[2, closed[0] == end].min() for end in windows])
        self._leave(id.step, id.index, windows, born)

    def _delivered(self, reports: list[Report]) -> tuple[Report, ...]:
        faults = self.model.faults
        delivered, self._late = self._late, []
        for report in reports:
            luck = self._luck.random() if faults.lost_share or faults.late_share else 1.0
            if luck >= faults.lost_share + faults.late_share:
                delivered.append(report)
            elif luck >= faults.lost_share:
                self._late.append(report)
        return tuple(delivered)

    def _rewire(self, settings: ControlSettings) -> None:
        """Put chains and finished scalings into force."""
        scaled = self._scaled(settings)
        if scaled or settings.chained != self._wiring.chained:
            self._wiring.rewire(scaled, settings.chained, self.at_s)

    def _scaled(self, settings: ControlSettings) -> dict[str, int]:
        done: dict[str, int] = {}
        for step in self.topology.steps:
            wanted = settings.parallelism.get(step.name, step.parallelism)
            if wanted == step.parallelism:
                self._waiting_cycles.pop(step.name, None)
                continue
            target, left = self._waiting_cycles.get(step.name, (wanted, self.model.scale_cycles))
            left = left if target == wanted else self.model.scale_cycles
            if left <= 0:
                done[step.name] = wanted
            self._waiting_cycles[step.name] = (wanted, left - 1)
        return done
