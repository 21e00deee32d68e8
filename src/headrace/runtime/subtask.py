"""The subtask: one actor loop over {input, control, flush timer} for one epoch at a time.

It owns the operators of its stage, the receiving ends of the edges that come in and the sending
ends of those that leave. It never blocks in the input: a reader thread fills the inbox.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
import pyarrow as pa

from headrace.connect.sink import SinkContext, Staged
from headrace.errors import FencedError, ProtocolError
from headrace.graph.nodes import SinkNode
from headrace.graph.stages import Edge
from headrace.runtime.batch import Batch, from_wire, wire_schema
from headrace.runtime.build import build_edges, build_operators
from headrace.runtime.chunks import ChunkWriter
from headrace.runtime.edges import EdgeWriter, now_us
from headrace.runtime.ends import Sink, Source
from headrace.runtime.frames import Frame, Kind, decode, read_ipc
from headrace.runtime.inbound import Inbound
from headrace.runtime.inbox import End, Inbox, Row
from headrace.runtime.meter import ChannelMeter
from headrace.runtime.operators import Operator
from headrace.runtime.plan import Description, JobPlan, Ticket
from headrace.runtime.reducing import Reduce
from headrace.state.changes import Pending, Store
from headrace.state.loading import load_slices
from headrace.tokens import Token

ROW_SCHEMA = pa.schema([("route", pa.int32()), ("payload", pa.binary())])
_BUSY_ROWS_PER_TURN = 1_000_000
_IDLE_WAIT_S = 0.05
_LISTEN_EVERY_US = 20_000


class Control(Protocol):
    """The subtask's side of the control channel. Losing it never stops the data."""

    def tell(self, kind: str, body: dict[str, Any]) -> None: ...

    def poll(self) -> list[dict[str, Any]]:
        """Messages that have come since; never blocks."""
        ...


class Subtask:
    """One subtask's operators and state.

    It stays in its worker's memory between epochs. ``version`` is the attempt and group whose state
    it holds after ``finish``; only a ticket with just that base and group may reuse it.
    """

    def __init__(self, plan: JobPlan, stage: int) -> None:
        self.plan, self.stage = plan, stage
        self.version: tuple[Token | None, int] | None = None
        self._letters: dict[str, list[dict[str, str]]] = {}
        dead_letter = self._dead_letter if plan.graph.letters else None
        self._operators, self._guards = build_operators(plan, stage, dead_letter)
        self._sources = [o for o in self._operators.values() if isinstance(o, Source)]
        self._sinks = [o for o in self._operators.values() if isinstance(o, Sink)]
        self._letter_sinks = {name: Sink(SinkNode(name, sink, ())) for name, sink in plan.graph.letter_sinks.items()}
        self._inbound = {
            edge.id: self._make_inbound(edge) for edge in plan.layout.border(stage) if edge.target in self._operators
        }
        self._process = psutil.Process()
        self._index = 0
        self._ticket: Ticket | None = None
        self._cut_us = int(plan.settings.cut_s * 1e6)
        self._news_us = 0
        self._reported_us = self._listened_us = 0
        self._told_end = self._input_over = False
        self._edges: list[EdgeWriter] = []
        self._counts: dict[str, int] = {}
        self._chunks: ChunkWriter | None = None
        self._stores: dict[str, tuple[str, Store]] = {
            f"{name}#{part}" if part else name: (name, store)
            for name, operator in self._operators.items()
            for part, store in operator.stores().items()
        }

    def begin(self, index: int, ticket: Ticket, control: Control) -> None:
        """Take part in an attempt: load the slices of its base, unless they are in memory already."""
        plan = self.plan
        self._index, self._ticket, self._control = index, ticket, control
        self._counts = {}
        self._told_end = False
        groups = plan.groups(self.stage)
        slices = [s for s in range(plan.settings.slices) if s % groups == ticket.group]
        fresh = self.version is None
        held = {
            name: [p for p in range(plan.partitions[name]) if p % groups == ticket.group]
            if isinstance(operator, Source)
            else slices
            for name, operator in self._operators.items()
        }
        if fresh:
            stores = {id: (store, held[step]) for id, (step, store) in self._stores.items()}
            load_slices(plan.checkpoint, ticket.base, stores)
        self.version = None  # not a version again before finish()
        for name, operator in self._operators.items():
            if fresh:
                operator.restored(held[name])
            operator.begin_epoch()
        for sink in (*self._sinks, *self._letter_sinks.values()):
            sink.open(self._sink_context(sink.name))
        senders = range(0)
        if self.stage and plan.eager:
            before, shuffled = plan.layout.stages[self.stage - 1].subtasks, plan.layout.stages[self.stage].shuffled
            senders = range(before) if shuffled else range(index, index + 1)
        for inbound in self._inbound.values():
            inbound.begin(senders)
        self._wire_edges(ticket)
        stem = f"segments/{ticket.token}-s{self.stage:02d}-{index:04d}"
        settings = plan.settings
        self._chunks = ChunkWriter(plan.checkpoint / "headrace", stem, settings.chunk_s, settings.chunk_bytes, now_us())

    def run(self, inbox: Inbox) -> Iterator[pa.RecordBatch]:
        """Work until the input ends; yields rows for the next stage. Then call ``finish``."""
        polling, turn_rows = bool(self._sources), 0
        self._input_over = False
        while not (self._input_over and (self.plan.eager or not polling)) and not self._all_said_end():
            busy = False
            if polling:
                busy = self._poll()
                turn_rows = turn_rows + self.plan.settings.poll_rows if busy else turn_rows
                if not self.plan.eager and self._turn_over(busy, turn_rows):
                    polling = False
            item = inbox.get(0.0 if busy else self._wait_s(polling))
            if isinstance(item, Row):
                self._take_row(item)
                inbox.done(item)
            elif isinstance(item, End):
                if item.error is not None:
                    raise ProtocolError(f"the input broke off: {item.error}") from item.error
                self._input_over = True  # stage by stage, a source may read on although Spark has no rows for it
            self._tick()
            yield from self._flush()
        self._tick()  # how far the sources' time has come, before the last buffers leave
        for operator in self._operators.values():
            for inbound in self._inbound.values():
                if inbound.operator is operator:
                    self._end_of_input(inbound)
            operator.on_epoch_end()
        yield from self._flush(last=True)
        self._write_letters()  # last: combining before the shuffle can skip records too

    def _all_said_end(self) -> bool:
        """Whether every sender's last buffer is here: no need to wait until Spark closes the pipe too."""
        return (
            self.plan.eager
            and bool(self._inbound)
            and all(len(inbound.ended) == len(inbound.last) for inbound in self._inbound.values())
        )

    def await_end(self, inbox: Inbox, timeout_s: float) -> None:
        """Wait until Spark has closed the input; nothing new may come any more."""
        deadline = time.monotonic() + timeout_s
        while not self._input_over:
            item = inbox.get(0.5)
            if isinstance(item, Row):
                inbox.done(item)
                for frame in decode(item.payload):
                    if self._inbound[frame.edge].accept(frame) and frame.kind < Kind.WATERMARK:
                        raise ProtocolError(f"stage {self.stage} received a buffer after its senders had ended")
            elif isinstance(item, End):
                if item.error is not None:
                    raise ProtocolError(f"the input broke off: {item.error}") from item.error
                self._input_over = True
            elif time.monotonic() > deadline:
                raise ProtocolError(f"stage {self.stage}: the input did not end although its senders had")

    def finish(self) -> Description:
        """Write what changed and describe it."""
        ticket, chunks = self._ticket, self._chunks
        assert ticket is not None and chunks is not None
        chunks.write(self._swapped(), now_us())
        stored = chunks.finish()
        staged: list[Staged] = [s for sink in (*self._sinks, *self._letter_sinks.values()) for s in sink.close()]
        self._report()
        self.version = (ticket.token, ticket.group)
        return Description(
            self.stage,
            self._index,
            ticket.token,
            stored,
            {edge.edge.id: edge.sent.tolist() for edge in self._edges},
            {
                inbound.edge.id: {sender: counts.tolist() for sender, counts in inbound.consumed.items()}
                for inbound in self._inbound.values()
            },
            tuple(staged),
            dict(self._counts),
            self.exhausted,
        )

    @property
    def has_sources(self) -> bool:
        return bool(self._sources)

    @property
    def exhausted(self) -> bool:
        return all(source.exhausted for source in self._sources)

    def close(self) -> None:
        for operator in self._operators.values():
            if isinstance(operator, (Source, Reduce)):
                operator.close()
        if self._chunks is not None:
            self._chunks.close()

    def _swapped(self) -> list[tuple[str, Pending]]:
        return [(id, store.swap()) for id, (_, store) in self._stores.items()]

    def _dirty_bytes(self) -> int:
        return sum(store.dirty_bytes() for _, store in self._stores.values())

    def _poll(self) -> bool:
        busy = False
        for source in self._sources:
            busy |= source.poll(self.plan.settings.poll_rows, now_us())
        return busy

    def _turn_over(self, busy: bool, rows: int) -> bool:
        """Whether a source has read enough for one micro-batch, or all of a batch."""
        if self.plan.settings.mode == "batch":
            return not busy and self.exhausted
        return not busy or rows >= _BUSY_ROWS_PER_TURN

    def _wait_s(self, polling: bool) -> float:
        now = now_us()
        wait_us = _IDLE_WAIT_S * 1e6
        if polling:
            for source in self._sources:
                due = source.next_due_us()
                if due is not None:
                    # What is due may wait for as long as it would in a buffer: one poll takes it all.
                    wait_us = min(wait_us, due + self._cut_us - now)
                elif not source.exhausted:
                    wait_us = min(wait_us, 2_000)
        if self._news_us:
            wait_us = min(wait_us, self._news_us + self._cut_us - now)
        for operator in self._operators.values():
            at = operator.next_clock_us()
            if at is not None:
                wait_us = min(wait_us, at - now)
        return max(wait_us, 0.0) / 1e6

    def _tick(self) -> None:
        now = now_us()
        for operator in self._operators.values():
            operator.on_clock(now)
        if not self._news_us and any(edge.news for edge in self._edges):
            born = [batch.born_us for edge in self._edges for batch in edge.pending] if self._sources else []
            self._news_us = min([now, *born])
        chunks = self._chunks
        if chunks is not None and chunks.look(now) and chunks.due(now, self._dirty_bytes()):
            chunks.write(self._swapped(), now)
        if now - self._listened_us > _LISTEN_EVERY_US:
            self._listened_us = now
            for message in self._control.poll():
                self._obey(message)
        ended = self.has_sources and self.exhausted and not self._told_end
        if ended or now - self._reported_us > self.plan.settings.report_s * 1e6:
            self._told_end = self._told_end or ended
            self._report()

    def _take_row(self, row: Row) -> None:
        for frame in decode(row.payload):
            inbound = self._inbound.get(frame.edge)
            if frame.kind is Kind.EXTERNAL:
                self._sources[frame.edge].take_external(read_ipc(frame.body), now_us())
                continue
            if inbound is None:
                raise ProtocolError(
                    f"stage {self.stage} received a buffer of edge {frame.edge}, which does not end here"
                )
            if not inbound.accept(frame):
                continue
            if frame.kind >= Kind.WATERMARK:
                if self.plan.eager:
                    inbound.operator.watermark(inbound.edge.port, inbound.lowest())
                continue
            now = now_us()
            inbound.meter.arrived(frame.items, frame.opened_us, frame.shipped_us, row.queued_us, now)
            self._deliver(inbound, frame)
            inbound.operator.meter.latency_ms.add((now_us() - frame.born_us) / 1000)

    def _deliver(self, inbound: Inbound, frame: Frame) -> None:
        body = pa.py_buffer(frame.body)
        if frame.kind is Kind.PARTIAL:
            assert inbound.partial_schema is not None
            partial = pa.ipc.read_record_batch(body, inbound.partial_schema)
            inbound.operator.receive_partial(inbound.edge.port, partial, frame.born_us)
        else:
            schema = wire_schema(inbound.schema, late=frame.kind is Kind.LATE)
            records = pa.ipc.read_record_batch(body, schema)
            inbound.operator.receive(inbound.edge.port, from_wire(records, inbound.schema, frame.born_us))

    def _end_of_input(self, inbound: Inbound) -> None:
        missing = set(inbound.last) - inbound.ended
        if missing:
            raise ProtocolError(
                f"edge {inbound.edge.source} → {inbound.edge.target}: the input ended before senders {sorted(missing)} did"
            )
        inbound.operator.watermark(inbound.edge.port, inbound.lowest())

    def _flush(self, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        if not self._edges:
            return
        now = now_us()
        full = any(edge.pending_bytes >= self.plan.settings.cut_bytes for edge in self._edges)
        if not (last or full or (self._news_us and now - self._news_us >= self._cut_us)):
            return
        self._news_us = 0
        rows: list[list[bytes]] = [[] for _ in range(self._edges[0].receivers)]
        for edge in self._edges:
            edge.cut(rows)
            if last:
                edge.end(rows)
        routes = [route for route, frames in enumerate(rows) if frames]
        payloads = [b"".join(rows[route]) for route in routes]
        if self.plan.eager:  # the pipe holds one row per receiver back: an empty one pushes it through
            payloads += [b""] * len(routes)
            routes += routes
        if routes:
            columns = [pa.array(routes, pa.int32()), pa.array(payloads, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)

    def _obey(self, message: dict[str, Any]) -> None:
        """Settings from the driver."""
        kind = message.get("kind")
        if kind == "settings" and "cut_us" in message:
            self._cut_us = int(message["cut_us"])
        elif kind == "fenced":
            raise FencedError(str(message.get("why", "a newer attempt owns this work")))

    def _report(self) -> None:
        self._reported_us = now_us()
        steps = [operator.meter.take() for operator in self._operators.values()]
        for name, guard in self._guards.items():
            if guard.skipped:
                self._counts[f"skipped:{name}"] = self._counts.get(f"skipped:{name}", 0) + guard.skipped
                guard.skipped = 0
        for figures in steps:
            for what in ("in", "out", "late"):
                name = f"{what}:{figures['step']}"
                self._counts[name] = self._counts.get(name, 0) + figures[what]
        cpu = self._process.cpu_times()
        self._control.tell(
            "report",
            {
                "stage": self.stage,
                "index": self._index,
                "token": str(self._ticket.token) if self._ticket else None,
                "pid": os.getpid(),
                "at_us": self._reported_us,
                "steps": steps,
                "channels": [inbound.meter.take() for inbound in self._inbound.values()],
                "cpu_s": cpu.user + cpu.system,
                "rss_bytes": self._process.memory_info().rss,
                "exhausted": bool(self._sources) and self.exhausted,
                "engines": {
                    operator.name: [operator.choice.engine, operator.choice.reason]
                    for operator in self._operators.values()
                    if isinstance(operator, Reduce) and operator.choice is not None
                },
            },
        )

    def _dead_letter(self, step: str, record: str, reason: str) -> None:
        name = self.plan.graph.letters_of(step)
        if name is not None:
            self._letters.setdefault(name, []).append({"step": step, "record": record, "reason": reason})

    def _write_letters(self) -> None:
        for name, letters in self._letters.items():
            records = pa.RecordBatch.from_pylist(letters)
            self._letter_sinks[name].on_batch(0, Batch(records, np.zeros(len(letters), np.int64), now_us()))
        self._letters = {}

    def _sink_context(self, step: str) -> Callable[[], SinkContext]:
        plan, ticket, control = self.plan, self._ticket, self._control
        assert ticket is not None
        node = plan.graph.by_name.get(step)
        sink = node.sink if isinstance(node, SinkNode) else plan.graph.letter_sinks[step]

        def make() -> SinkContext:
            staging: Path = sink.staging_root(plan.checkpoint) / step / str(ticket.token)
            staging.mkdir(parents=True, exist_ok=True)
            return SinkContext(
                step,
                ticket.token,
                self._index,
                staging,
                lambda s, rows: control.tell("rows", {"step": s, "rows": rows}),
            )

        return make

    def _wire_edges(self, ticket: Ticket) -> None:
        """Fresh sending ends: sequences and audit counts start anew with each attempt."""
        for operator in self._operators.values():
            operator.outputs = [(t, p) for t, p in operator.outputs if isinstance(t, Operator)]
        dead_letter = self._dead_letter if self._letter_sinks else None
        self._edges = build_edges(self.plan, self.stage, self._index, self._guards, dead_letter)
        places = np.array(ticket.places, np.int64)
        for edge in self._edges:
            if edge.edge.keyed:
                edge.table = places[np.arange(self.plan.settings.slices) % len(places)]
            self._operators[edge.edge.source].outputs.append((edge, 0))

    def _make_inbound(self, edge: Edge) -> Inbound:
        operator = self._operators[edge.target]
        origin = next((p.origin for p in self.plan.layout.passes if p.name == edge.target), None)
        schema = self.plan.schemas[origin] if origin else self.plan.schema_into(edge.target, edge.port)
        partial = operator.table.combined_schema if isinstance(operator, Reduce) else None
        return Inbound(edge, operator, schema, partial, self.plan.settings.slices, ChannelMeter(edge.id))
