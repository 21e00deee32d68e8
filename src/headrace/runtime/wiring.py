"""How the operators of one stage's subtask are wired: to each other, to the edges that leave and to those that arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.graph.combining import can_combine
from headrace.graph.nodes import LateNode, PaneNode, ReduceNode, SourceNode
from headrace.graph.stages import Edge, Stage
from headrace.graph.windowing import TimeWindow
from headrace.runtime.metering.meter import StepMeter
from headrace.runtime.operators.operator import Operator, Receiver
from headrace.runtime.operators.usercode import DeadLetter, Guard
from headrace.runtime.plan import JobPlan
from headrace.runtime.reduce.reduce import make_table
from headrace.runtime.wire.channelmeter import ChannelMeter, Stamp
from headrace.runtime.wire.edges import Combiner, EdgeWriter
from headrace.runtime.wire.inbound import Inbound
from headrace.runtime.wire.links import Link, Links
from headrace.state.table.rowtable import Partials


@dataclass(frozen=True, slots=True)
class Wiring:
    """The operators of a subtask to be wired; ``guards`` gets those of reducers that combine before the shuffle."""

    plan: JobPlan
    stage: Stage
    operators: Mapping[str, Operator]
    guards: dict[str, Guard]
    dead_letter: DeadLetter | None
    stamp: Stamp

    def border(self) -> list[EdgeWriter]:
        """The edges to the next leg; only the last stage of a leg has any."""
        plan, stage = self.plan, self.stage
        if stage.index < stage.last or stage.index + 1 == len(plan.layout.stages):
            return []
        after = plan.layout.stages[stage.index + 1]
        return [
            EdgeWriter(
                edge, after.subtasks, plan.slices, self.stamp, after.shuffled, self._combiner(edge)
            )
            for edge in plan.layout.border(after.index)
        ]  # fmt: skip

    def connect(self, border: Sequence[EdgeWriter]) -> Links | None:
        """Give all operators their outputs; where the leg has several stages, steps that may move get links."""
        layout, stage = self.plan.layout, self.stage
        ways_out, links = {writer.edge.id: writer for writer in border}, {}
        for edge in layout.inside(stage):
            if self._stays(edge):
                self._feed(edge, self.operators[edge.target])
            elif stage.first < stage.last:
                links[edge.id] = self._link(edge, ways_out.get(edge.id))
                self._feed(edge, links[edge.id])
        if stage.first < stage.last:
            return Links(layout, stage, links, self.stamp)
        for writer in border:
            self._feed(writer.edge, writer)
        return None

    def inbound(self, edge: Edge) -> Inbound:
        """The receiving end of an edge from the leg before."""
        settings, operator = self.plan.settings, self.operators[edge.target]
        meter = ChannelMeter(edge.id, operator.meter, settings.sample_share, self.stamp)
        return Inbound(edge, operator, self._schema_of(edge), operator.combined_schema, self.plan.slices, meter)

    def _stays(self, edge: Edge) -> bool:
        """Whether both ends are here whatever is ordered, so that one operator calls the other."""
        ends = {edge.source, edge.target}
        return ends <= self.operators.keys() and not ends & self.plan.layout.movable

    def _feed(self, edge: Edge, target: Receiver) -> None:
        if edge.source not in self.operators:
            return
        node = self.plan.graph.by_name.get(edge.target)
        if isinstance(node, LateNode):
            self.operators[edge.source].feed_late(target, node.port)
        else:
            self.operators[edge.source].feed(target, edge.port)

    def _link(self, edge: Edge, way_out: EdgeWriter | None) -> Link:
        """An edge of a leg with several stages, at this one of them."""
        stage, settings, here = self.stage, self.plan.settings, self.operators.get(edge.target)
        writer = None
        if stage.index < stage.last:
            inner = replace(edge, keys=(), keyed=False, spread=False)
            hop = stage.index - stage.first
            writer = EdgeWriter(inner, stage.subtasks, self.plan.slices, self.stamp, shuffled=False, hop=hop)
        step = here.meter if here is not None else StepMeter(edge.target)
        meter = ChannelMeter(edge.id, step, settings.sample_share, self.stamp)
        return Link(edge, self._schema_of(edge), way_out or here, writer, meter)

    @property
    def _may_come_back(self) -> bool:
        """Whether a source can be silent while others close windows."""
        sources = [node.source for node in self.plan.graph.nodes if isinstance(node, SourceNode)]
        return any(source.live or not source.bounded for source in sources)

    def _schema_of(self, edge: Edge) -> pa.Schema:
        """What is on an edge; a step that it passes through changes nothing."""
        origins = {step.name: step.origin for step in self.plan.layout.passes}
        return self.plan.schemas[origins.get(edge.source, edge.source)]

    def _combiner(self, edge: Edge) -> Combiner | None:
        plan, node = self.plan, self.plan.graph.by_name.get(edge.target)
        if isinstance(node, PaneNode):
            node = node.table
        if not isinstance(node, ReduceNode) or not can_combine(node):
            return None
        if node.overload is not None and plan.eager:
            return None  # what is shed is counted in records
        if plan.graph.late_wanted(edge.target) and self._may_come_back:
            return None  # what comes from a source that was silent is late or not record by record
        on_error = node.options.on_error or plan.graph.on_error
        guard = self.guards.setdefault(f"{node.name} (combine)", Guard(node.name, on_error, self.dead_letter))
        table = make_table(node, plan.schema_into(node.name), plan.schemas[node.name], guard, 1)
        window = node.window if isinstance(node.window, TimeWindow) else None
        return Combiner(Partials(table.key_fields, table.accumulators), node.keys, window)
