"""A simulated plant for controllers: buffers, queues, servers, epochs, and reports that may be lost.

Deterministic for a seed. Each interval is simulated exactly, item by item, step by step in the order
of flow; within an interval the settings do not change, so no event list is needed. Queues are
unbounded: there is no backpressure, and the service times under overload are the true ones.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from headrace.control.chaining import Chain, chain_of
from headrace.control.settings import Settings
from headrace.control.topology import Topology
from headrace.control.view import Observation
from headrace.measure.report import ChannelId, Report, SubtaskId
from headrace.testing.buffering import Floats, OpenBuffer
from headrace.testing.gauges import Gauges
from headrace.testing.lindley import BORN, COLUMNS, EDGE, FIRST, QUEUED, Server
from headrace.testing.plant_model import PlantModel


class Plant:
    """A job with simulated time; ``run`` is one interval under given settings."""

    def __init__(self, topology: Topology, model: PlantModel, *, seed: int = 0, interval_s: float = 1.0) -> None:
        self.topology, self.model, self.interval_s = topology, model, interval_s
        self.at_s = 0.0
        self.created = self.consumed = self.filtered = 0
        self._random = np.random.default_rng(seed)
        self._luck = np.random.default_rng([seed, 1])
        self._chained: frozenset[int] = frozenset()
        self._servers: dict[SubtaskId, Server] = {}
        self._buffers: dict[ChannelId, OpenBuffer] = {}
        self._turns: dict[tuple[int, int], int] = defaultdict(int)
        self._held: dict[SubtaskId, list[Floats]] = defaultdict(list)
        self._waiting_cycles: dict[str, tuple[int, int]] = {}
        self._late: list[Report] = []
        self._place()

    def run(self, settings: Settings) -> Observation:
        """Simulate one interval; what controllers see of it."""
        self._rewire(settings)
        gauges = Gauges(settings.version, self.model.sample_share, self._luck)
        until_s = self.at_s + self.interval_s
        for step in self.topology.steps:
            if step.source:
                self._generate(step.name, until_s)
            elif self._chain(step.name)[0] == step.name:
                for index in range(step.parallelism):
                    self._serve(self._chain(step.name), index, until_s, gauges)
            for edge in self.topology.out_of(step.name):
                if edge.id not in self._chained:
                    self._ship(edge.id, until_s, settings, gauges)
        self.at_s = until_s
        reports = self._delivered(gauges.reports(self.topology, until_s))
        return Observation(until_s, reports, {s.name: s.parallelism for s in self.topology.steps})

    def in_flight(self) -> int:
        """Items in buffers and queues."""
        buffered = sum(len(buffer.emitted) for buffer in self._buffers.values())
        return buffered + sum(len(items) for server in self._servers.values() for items in server.waiting)

    def _chain(self, step: str) -> Chain:
        return chain_of(step, self._chained, self.topology)

    def _generate(self, step: str, until_s: float) -> None:
        subtasks = self.topology.by_name[step].parallelism
        rate_per_s = self.model.loads[step](self.at_s) / subtasks
        for index in range(subtasks):
            wanted = rate_per_s * self.interval_s
            n = round(wanted) if self.model.regular else int(self._random.poisson(wanted))
            spread = (np.arange(n) + 0.5) / max(n, 1) if self.model.regular else np.sort(self._random.random(n))
            due_s = self.at_s + self.interval_s * spread
            self.created += n
            self._emit(step, index, self.model.emissions_s(due_s), due_s)

    def _emit(self, step: str, index: int, at_s: Floats, born_s: Floats) -> None:
        """Hand items to every edge out of the step: paired, or to the receivers in turn."""
        for edge in self.topology.out_of(step):
            receivers = self.topology.by_name[edge.target].parallelism
            if edge.paired:
                self._buffer(ChannelId(edge.id, index, index)).append(at_s, born_s)
                continue
            turn = self._turns[edge.id, index]
            for receiver in range(receivers):
                mine = slice((receiver - turn) % receivers, None, receivers)
                if len(at_s[mine]):
                    self._buffer(ChannelId(edge.id, index, receiver)).append(at_s[mine], born_s[mine])
            self._turns[edge.id, index] = (turn + len(at_s)) % receivers

    def _buffer(self, channel: ChannelId) -> OpenBuffer:
        return self._buffers.setdefault(channel, OpenBuffer())

    def _ship(self, edge: int, until_s: float, settings: Settings, gauges: Gauges) -> None:
        model, head = self.model.edge(edge), self._chain(self.topology.by_id[edge].target)[0]
        flush = self.model.epoch_s is not None and (until_s + 1e-9) % self.model.epoch_s < 1e-6
        for channel in self.topology.channels(edge):
            deadline_s = settings.deadlines_ms.get(channel, self.model.deadline_ms) / 1000
            size_bytes = settings.sizes_bytes.get(channel, self.model.buffer_bytes)
            capacity = max(1, -(-size_bytes // model.item_bytes))
            sent = self._buffer(channel).ship(self.at_s, until_s, deadline_s, capacity, flush=flush)
            if len(sent.at):
                gauges.cut(channel, sent.lifetimes_s)
                items = np.empty((len(sent.at), COLUMNS))
                columns = (sent.at + model.transfer_ms / 1000, sent.emitted, sent.at, sent.born)
                for column, values in enumerate((*columns, edge, channel.sender, sent.first)):
                    items[:, column] = values
                self._servers[SubtaskId(head, channel.receiver)].put(items)

    def _serve(self, chain: Chain, index: int, until_s: float, gauges: Gauges) -> None:
        server = self._servers[SubtaskId(chain[0], index)]
        items = server.due(until_s)
        gaps_s = server.gaps_s(items, until_s)
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
            gauges.served(SubtaskId(step, index), *times, items[mine, BORN], gaps_s if k == 0 else None, windowed)
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
        return items[:, FIRST] * np.array([cost_s[int(edge)] for edge in items[:, EDGE]])

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
        self._held[id].append(np.stack((ends_s, read_s, born_s)))
        held = np.concatenate(self._held[id], axis=1)
        over = held[0] <= until_s
        self._held[id] = [held[:, ~over]]
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

    def _place(self) -> None:
        for step in self.topology.steps:
            if not step.source and self._chain(step.name)[0] == step.name:
                for id in self.topology.subtasks(step.name):
                    self._servers.setdefault(id, Server(free_s=self.at_s, counted_s=self.at_s))

    def _rewire(self, settings: Settings) -> None:
        """Put chains and finished scalings into force; what was on its way finds its new place."""
        scaled = self._scaled(settings)
        if not scaled and settings.chained == self._chained:
            return
        loose = {channel: buffer for channel, buffer in self._buffers.items() if len(buffer.emitted)}
        queued = [(id, items) for id, server in self._servers.items() for items in server.waiting]
        held = self._held
        self.topology = self.topology.scaled(scaled)
        self._chained = settings.chained
        heads = {self._chain(step.name)[0] for step in self.topology.steps}
        alive = {id for name in heads for id in self.topology.subtasks(name)}
        self._servers = {id: server for id, server in self._servers.items() if id in alive}
        self._place()
        self._buffers, self._held = {}, defaultdict(list)
        self._reload(loose, queued, held)

    def _scaled(self, settings: Settings) -> dict[str, int]:
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

    def _reload(
        self, loose: dict[ChannelId, OpenBuffer], queued: list[tuple[SubtaskId, Floats]],
        held: dict[SubtaskId, list[Floats]],
    ) -> None:  # fmt: skip
        for server in self._servers.values():
            server.waiting = []
        for id, items in queued:
            for edge in np.unique(items[:, EDGE]):
                self._requeue(int(edge), id.index, items[items[:, EDGE] == edge])
        for channel, buffer in sorted(loose.items()):
            wire = self.topology.by_id[channel.edge]
            if wire.id in self._chained:
                items = np.zeros((len(buffer.emitted), COLUMNS))
                items[:, QUEUED : BORN + 1] = np.stack((buffer.emitted, buffer.emitted, buffer.emitted, buffer.born), 1)
                items[:, EDGE] = wire.id
                self._requeue(wire.id, channel.receiver, items)
                continue
            sender = channel.sender % self.topology.by_name[wire.source].parallelism
            receiver = channel.receiver % self.topology.by_name[wire.target].parallelism
            moved = self._buffer(ChannelId(wire.id, sender, sender if wire.paired else receiver))
            moved.append(buffer.emitted, buffer.born)
            order = np.argsort(moved.emitted, kind="stable")
            moved.emitted, moved.born = moved.emitted[order], moved.born[order]
        for id, parts in held.items():
            self._held[SubtaskId(id.step, id.index % self.topology.by_name[id.step].parallelism)] += parts

    def _requeue(self, edge: int, index: int, items: Floats) -> None:
        head = self._chain(self.topology.by_id[edge].target)[0]
        self._servers[SubtaskId(head, index % self.topology.by_name[head].parallelism)].put(items)
