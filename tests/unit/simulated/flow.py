"""What a toy subtask does with rows: sources read, keyed stages count, windows are closed, results are shown."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from headrace.graph.windowing import IDLE_US, NEVER_US
from headrace.runtime.cutmaking.sourceorders import AHEAD_BYTES, SourceOrders
from headrace.runtime.ownership import Holdings
from headrace.runtime.plan import Ticket
from headrace.runtime.wire.alignment import Alignment
from headrace.runtime.wire.marks import CutMark
from headrace.state.durable.segments import StoredChange
from headrace.tokens import Token
from simulated.job import END, NEVER, SLICES, WINDOW, closed, key_at, source_state
from simulated.lanes import Lane, Violation
from simulated.stores import ToyStore

if TYPE_CHECKING:
    from simulated.query import Query
    from simulated.world import World

ROW_BYTES = AHEAD_BYTES // 4
Frame = tuple[str, Any]
Row = tuple[Frame, ...]
"""What is sent at once: buffers, then how far time has come, then the mark of a cut."""


class _NoShelf:
    """Nothing is put away: a world's rows are few."""

    def put(self, item: object) -> int:
        raise NotImplementedError

    take = put  # type: ignore[assignment]

    def clear(self) -> None:
        """There is nothing."""


class Flow:
    """One attempt's rows in one subtask: buffers, counts for the audit, time, and what is checked of every row."""

    query: Query
    world: World
    stage: int
    index: int
    last: bool
    state: str
    next: Token
    store: ToyStore
    turns: Lane

    def begin(self, ticket: Ticket) -> None:
        """A new attempt: nothing was sent, and nothing has come."""
        self.ticket, self.shape = ticket, self.world.shape
        senders = len(self.query.subtasks[self.stage - 1]) if self.stage else 0
        self.receivers = len(self.query.subtasks[self.stage + 1]) if not self.last else 0
        self.orders = SourceOrders(ticket.first)
        self.alignment: Alignment[tuple[int, Row], CutMark] = Alignment(_NoShelf())  # type: ignore[arg-type]
        self.alignment.begin(range(senders))
        self.known = dict.fromkeys(range(senders), NEVER_US)
        self.watermark = NEVER
        self.queue: deque[tuple[int, Frame]] = deque()
        self.buffers: list[list[Any]] = [[] for _ in range(self.receivers)]
        self.sequence, self.seen = [0] * SLICES, self.world.truth.seen_in(ticket.attempt)
        self.sent, self.consumed = [0] * SLICES, dict[int, list[int]]()
        self.put, self.stood = 0, dict[int, int]()
        self.chunks: dict[Token, list[StoredChange]] = {}
        self.rows: list[Any] = []
        self.sent_bytes, self.serial = 0, 0
        self.ahead: deque[tuple[int, int]] = deque()
        self.holdings, self.table = Holdings(ticket.mine), ticket.table
        self.partitions = () if self.stage else ticket.mine
        self.read = {p: self._offset(p) for p in self.partitions}

    @property
    def place(self) -> str:
        return f"subtask {self.stage}.{self.index} of {getattr(self, 'ticket', None) and self.ticket.attempt}"

    def chunk(self) -> None:
        """Perhaps write what has changed since the last cut."""
        raise NotImplementedError

    def report(self) -> None:
        """Say that the sources will read no more."""
        raise NotImplementedError

    # Sources.

    def poll(self) -> None:
        """Read a row or two ahead, emit some of what was read, and sometimes say how far time has come."""
        random = self.world.random
        more = [p for p in self.partitions if self.shape.rows is None or self.read[p] < self.shape.rows]
        if more:
            partition = min(more, key=lambda p: self.read[p] + 4 * random())
            for _ in range(int(4 * random())):
                if self.read[partition] != self.shape.rows:
                    self.ahead.append((partition, self.read[partition]))
                    self.read[partition] += 1
        while self.ahead and random() < 0.8:
            self.emit(*self.ahead.popleft())
        if random() < 0.3:
            self.punctuate()
        self.chunk()
        if self.exhausted:
            self.report()

    def emit(self, partition: int, position: int) -> None:
        key = key_at(partition, position)
        self.send(key % SLICES, (key, position, 1))
        self.store.put(partition, 0, source_state(self.shape, position + 1))

    def _offset(self, partition: int) -> int:
        entry = self.store.slices.get(partition)
        return entry[0][0] if entry else 0

    @property
    def exhausted(self) -> bool:
        return self.shape.rows is not None and all(self._offset(p) == self.shape.rows for p in self.partitions)

    # What is sent.

    def send(self, slice: int, row: tuple[int, int, int]) -> None:
        """Put a row into the buffer that leads to the owner of its slice."""
        to = self.table[slice]
        self.sequence[slice] += 1
        self.put += 1
        buffer = self.buffers[to]
        buffer.append((slice, self.sequence[slice], *row))
        if len(buffer) > 2:
            self.flush(to)

    def flush(self, to: int, *more: Frame) -> None:
        """Ship a buffer, and what is to follow it."""
        rows = self.buffers[to]
        if rows:
            self.buffers[to] = []
            for row in rows:
                self.sent[row[0]] += 1
            self.sent_bytes += len(rows) * ROW_BYTES
            more = (("rows", rows), *more)
        if more:
            self.query.pipe(self, to, more)

    def output_watermark(self) -> int:
        if self.stage:
            return self.watermark
        return min((source_state(self.shape, self._offset(p))[1] for p in self.partitions), default=IDLE_US)

    def punctuate(self, *more: Frame) -> None:
        """Buffers first: what is in them is older."""
        time = ("time", self.output_watermark())
        for to in range(self.receivers):
            self.flush(to, time, *more)

    # What was received.

    def hand_on(self, sender: int, frame: Frame) -> None:
        """To be worked on now or, behind what is queued, later."""
        if self.queue or self.world.random() < 0.2:
            self.queue.append((sender, frame))
            self.turns.push(self.work)
        else:
            self.consume(sender, frame)

    def work(self) -> None:
        if self.queue and self.state == "running":
            self.consume(*self.queue.popleft())

    def consume(self, sender: int, frame: Frame) -> None:
        kind, content = frame
        if kind == "time":
            self.known[sender] = max(self.known[sender], content)
        if kind != "rows":
            self.advance()
            return
        consumed = self.consumed.setdefault(sender, [0] * SLICES)
        self.stood[sender] = self.stood.get(sender, 0) + len(content)
        for slice, sequence, key, at, n in content:
            consumed[slice] += 1
            self.accept(sender, slice, sequence, key, at, n)
        self.chunk()

    def accept(self, sender: int, slice: int, sequence: int, key: int, at: int, n: int) -> None:
        """Count a row; it must be mine, in its place, and not late."""
        if slice not in self.holdings.mine:
            raise Violation(f"I4: {self.place} got a row of slice {slice}, which is not its own")
        at_sender = (self.stage, sender, slice)
        if self.seen.get(at_sender, 0) + 1 != sequence:
            raise Violation(f"I5: {self.place} got row {sequence} of sender {sender}, slice {slice} out of order")
        self.seen[at_sender] = sequence
        window = at // WINDOW if self.stage == 1 else at
        if window <= closed(self.watermark):
            raise Violation(f"I6: {self.place} got a row of window {window} after it was closed")
        if self.stage == 1:
            entry: Any = (key, window)
        else:
            entry = key // 2
            if window <= self.seen.get((self.stage, -1, key), -1):
                raise Violation(f"I5: {self.place} got window {window} of key {key} after later ones")
            self.seen[self.stage, -1, key] = window
            self.show(key, window, n)
        self.store.put(slice, entry, self.store.slices.get(slice, {}).get(entry, 0) + n)

    def advance(self) -> None:
        """How far all senders have come: windows are closed, and what reads this stage is told."""
        lowest = min((known for known in self.known.values() if known != IDLE_US), default=IDLE_US)
        if lowest <= self.watermark:
            return
        before, self.watermark = closed(self.watermark), min(lowest, END)
        if closed(self.watermark) > before:
            self.close_windows()
            if not self.last:
                self.punctuate()

    def close_windows(self) -> None:
        """Time stands at the end of a window when its rows are handed on, not yet behind it."""
        if self.stage != 1:
            return
        upto = closed(self.watermark)
        for slice, entries in self.store.slices.items():
            for key, window in sorted(at for at in entries if at[1] <= upto):
                n = entries[key, window]
                self.store.put(slice, (key, window), None)
                if self.last:
                    self.show(key, window, n)
                else:
                    self.send(key // 2 % SLICES, (key, window, n))

    def show(self, key: int, window: int, n: int) -> None:
        """A result: staged for its cut, and told at once to who wants it as produced."""
        self.rows.append((key, window, n))
        self.world.truth.produced(self.next, (key, window, n))
