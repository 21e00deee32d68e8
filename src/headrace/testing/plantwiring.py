"""Where the items of a simulated plant are: in open buffers, in queues, in windows.

When parallelism or chains change, every item finds its new place; none is lost or doubled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from headrace.control.chaining import Chain, chain_of
from headrace.control.topology import Topology
from headrace.measure.report import ChannelId, SubtaskId
from headrace.testing.buffering import Floats, OpenBuffer
from headrace.testing.lindley import BORN, COLUMNS, EDGE, QUEUED, Server


class PlantWiring:
    """The buffers, servers and held windows of a topology; one server per subtask of a chain."""

    def __init__(self, topology: Topology) -> None:
        self.topology, self.chained = topology, frozenset[int]()
        self.buffers: dict[ChannelId, OpenBuffer] = {}
        self.held: dict[SubtaskId, list[Floats]] = defaultdict(list)
        self._servers: dict[SubtaskId, Server] = {}
        self._place(0.0)

    def chain(self, step: str) -> Chain:
        return chain_of(step, self.chained, self.topology)

    def buffer(self, channel: ChannelId) -> OpenBuffer:
        return self.buffers.setdefault(channel, OpenBuffer())

    def server(self, step: str, index: int) -> Server:
        """Who serves a step's subtask: the first of its chain."""
        return self._servers[SubtaskId(self.chain(step)[0], index % self.topology.by_name[step].parallelism)]

    def in_flight(self) -> int:
        """Items in buffers, queues and windows."""
        buffered: int = sum(len(buffer.emitted) for buffer in self.buffers.values())
        held: int = sum(int(part.shape[1]) for parts in self.held.values() for part in parts)
        return buffered + held + sum(len(items) for server in self._servers.values() for items in server.waiting)

    def rewire(self, parallelism: Mapping[str, int], chained: frozenset[int], at_s: float) -> None:
        """Change numbers of subtasks and chains, and move what was on its way."""
        buffers, held, servers = self.buffers, self.held, self._servers
        queued = [(id, items) for id, server in servers.items() for items in server.waiting]
        for server in servers.values():
            server.waiting = []
        self.topology, self.chained = self.topology.scaled(parallelism), chained
        self.buffers, self.held, self._servers = {}, defaultdict(list), {}
        self._place(at_s, servers)
        for id, items in queued:
            for edge in np.unique(items[:, EDGE]).tolist():
                self.server(self.topology.by_id[int(edge)].target, id.index).put(items[items[:, EDGE] == edge])
        for channel, buffer in sorted(buffers.items(), key=lambda pair: pair[0]):
            self._refill(channel, buffer)
        for id, parts in held.items():
            self.held[SubtaskId(id.step, id.index % self.topology.by_name[id.step].parallelism)] += parts

    def _place(self, at_s: float, before: Mapping[SubtaskId, Server] | None = None) -> None:
        """A server for each subtask of each chain: the one it had, or a new and idle one."""
        for step in self.topology.steps:
            if not step.source and self.chain(step.name)[0] == step.name:
                for id in self.topology.subtasks(step.name):
                    known = (before or {}).get(id)
                    self._servers[id] = known or Server(free_s=at_s, counted_s=at_s)

    def _refill(self, channel: ChannelId, buffer: OpenBuffer) -> None:
        edge = self.topology.by_id[channel.edge]
        if edge.id in self.chained:  # a chained edge has no buffer: its items go straight to the queue
            items = np.zeros((len(buffer.emitted), COLUMNS))
            items[:, QUEUED : BORN + 1] = np.stack((buffer.emitted, buffer.emitted, buffer.emitted, buffer.born), 1)
            items[:, EDGE] = edge.id
            self.server(edge.target, channel.receiver).put(items)
            return
        sender = channel.sender % self.topology.by_name[edge.source].parallelism
        receiver = channel.receiver % self.topology.by_name[edge.target].parallelism
        moved = self.buffer(ChannelId(edge.id, sender, sender if edge.paired else receiver))
        moved.append(buffer.emitted, buffer.born)
        order = np.argsort(moved.emitted, kind="stable")
        moved.emitted, moved.born = moved.emitted[order], moved.born[order]
