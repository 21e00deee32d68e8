"""Rules of subtasks and sinks, taken away: alignment, snapshots, durability, punctuations, memory, results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.errors import CorruptionError
from headrace.runtime.cutmaking.sourceorders import SourceOrders
from headrace.runtime.ownership import owners
from headrace.runtime.wire.alignment import Alignment
from simulated.job import source_state
from simulated.lanes import Lane
from simulated.mutations import AGAIN, CALM, CHANGES, DEATHS, SLOW, STALLS, Patch, mutation
from simulated.query import Query
from simulated.sinks import Moved, Upserted
from simulated.stores import ToyStore, write_blocks
from simulated.subtask import Subtask


@mutation("messages: orders of another attempt", faults=AGAIN, seeds=600)
def orders_of_any_attempt(patch: Patch) -> None:
    def order(self: Any, order: Any, now_us: int, ahead_us: int) -> None:
        if order.token.cut == self._next.cut and self.ordered is None:
            self.ordered = order

    patch.setattr(SourceOrders, "order", order)


@mutation("2: the offset of what was emitted", faults=CALM)
def offsets_of_what_was_read(patch: Patch) -> None:
    aside = Subtask.set_aside

    def early(self: Any, token: Any) -> None:
        for partition, position in self.read.items():
            if position != self._offset(partition):
                self.store.put(partition, 0, source_state(self.shape, position))
        aside(self, token)

    patch.setattr(Subtask, "set_aside", early)


@mutation("3: data behind a mark is held", faults=CALM)
def data_is_not_held(patch: Patch) -> None:
    take = Subtask.take

    def at_once(self: Any, sender: int, row: Any) -> None:
        if self.state == "running" and sender in self.alignment.held and row[-1][0] != "mark":
            self.serve(sender, row)
        else:
            take(self, sender, row)

    patch.setattr(Subtask, "take", at_once)


@mutation("3: punctuations behind a mark are held", faults=CALM)
def punctuations_are_not_held(patch: Patch) -> None:
    take = Subtask.take

    def at_once(self: Any, sender: int, row: Any) -> None:
        if self.state == "running" and sender in self.alignment.held:
            self.serve(sender, tuple(frame for frame in row if frame[0] == "time"))
            row = tuple(frame for frame in row if frame[0] != "time")
        if row:
            take(self, sender, row)

    patch.setattr(Subtask, "take", at_once)


@mutation("3: marks of senders that own nothing are waited for", faults=CALM, seeds=200)
def idle_senders_not_waited_for(patch: Patch) -> None:
    load, mark = Subtask.load, Alignment.mark

    def only_busy(self: Any, ticket: Any) -> None:
        load(self, ticket)
        if self.stage and not self.dead:
            before = self.query.subtasks[self.stage - 1]
            busy = set(owners(self.query.driver.machine.members.tables[self.stage - 1]))
            self.alignment.begin(busy & set(range(len(before))))

    def ignoring(self: Any, sender: int, marked: Any) -> None:
        if sender in self._senders:
            mark(self, sender, marked)

    patch.setattr(Subtask, "load", only_busy)
    patch.setattr(Alignment, "mark", ignoring)


@mutation("3: reading never stops", faults=CALM, seeds=60)
def reading_stops_while_a_sender_is_held(patch: Patch) -> None:
    take = Subtask.take

    def pipe(self: Any, sender: Any, to: int, row: Any) -> None:
        receiver = self.subtasks[sender.stage + 1][to]
        lane = self._pipes.get((sender.stage, -1, to))
        if lane is None:
            lane = self._pipes[sender.stage, -1, to] = Lane(self.world, receiver)
        lane.push(receiver.take, sender.index, row)

    def stopping(self: Any, sender: int, row: Any) -> None:
        if self.state == "running" and sender in self.alignment.held:
            lane = self.query._pipes[self.stage - 1, -1, self.index]
            lane.items.appendleft((self.take, sender, row))
            self.world.after(0.05, lane.again)
        else:
            take(self, sender, row)

    patch.setattr(Query, "pipe", pipe)
    patch.setattr(Subtask, "take", stopping)


@mutation("4.1: open buffers are shipped before the mark", faults=CALM)
def buffers_left_open(patch: Patch) -> None:
    def leave(self: Any, mark: Any) -> None:
        for to in range(self.receivers):
            self.query.pipe(self, to, (("time", self.output_watermark()), ("mark", mark)))

    patch.setattr(Subtask, "leave", leave)


@mutation("4.1: what is queued is processed before the cut", faults=CALM)
def queues_not_drained(patch: Patch) -> None:
    marked = Subtask.marked

    def at_once(self: Any, sender: int, mark: Any) -> None:
        marked(self, sender, mark)
        if self.alignment.aligned:
            self.aligned()

    patch.setattr(Subtask, "drain", lambda self: None)
    patch.setattr(Subtask, "marked", at_once)


@mutation("4.2: what changed is copied at the cut", faults=CALM)
def live_state_encoded_later(patch: Patch) -> None:
    def swap(self: Any) -> Any:
        dirty, self.dirty = self.dirty, {}

        def later() -> Any:
            now, self.dirty = self.dirty, dirty
            blocks = self._copied()
            self.dirty = now
            return blocks

        return later

    patch.setattr(ToyStore, "swap", swap)


@mutation("4.6: what was held goes before what comes", faults=CALM)
def held_rows_overtaken(patch: Patch) -> None:
    def take(self: Any, sender: int, row: Any) -> None:
        if self.alignment.under_way and sender in self.alignment._marks:
            self.alignment.hold(sender, (sender, row), 1)
        else:
            self.serve(sender, row)

    patch.setattr(Subtask, "take", take)


@mutation("6: described when durable", faults=DEATHS, seeds=100)
def described_before_durable(patch: Patch) -> None:
    class Later:
        def put(self, name: str, data: Any) -> None:
            self.name, self.data = name, data

    def early(self: Any, draft: Any, swapped: Any, rows: Any) -> None:
        changes, later = swapped(), Later()
        self.serial += 1
        if changes:
            name = f"segments/{draft.token}-s{self.stage:02d}-{self.index:04d}-{self.serial:02d}.seg"
            self.chunks.setdefault(draft.token, []).extend(write_blocks(later, name, changes))
            self.writer.push(lambda: self.world.disk.put(later.name, later.data))
        if rows:
            self.writer.push(self.stage_rows, draft.token, rows)
        self.describe(draft, rows)

    patch.setattr(Subtask, "make_durable", early)


@mutation("7: punctuations come behind the open buffers", faults=CALM)
def punctuations_before_buffers(patch: Patch) -> None:
    punctuate = Subtask.punctuate

    def alone(self: Any, *more: Any) -> None:
        if more:
            punctuate(self, *more)
            return
        for to in range(self.receivers):
            self.query.pipe(self, to, (("time", self.output_watermark()),))

    patch.setattr(Subtask, "punctuate", alone)


@mutation("8: sources stop at the end", faults=DEATHS, seeds=100)
def sources_read_on_after_the_end(patch: Patch) -> None:
    make = Subtask.make_cut

    def reading_on(self: Any, end: bool, tables: Any) -> None:
        make(self, end, tables)
        if end and not self.stage and not self.exhausted:
            for _ in range(3):
                self.poll()

    patch.setattr(Subtask, "make_cut", reading_on)


@mutation("21: publishing twice changes nothing: what is gone was moved", faults=STALLS, seeds=200)
def moved_files_are_missed(patch: Patch) -> None:
    publish = Moved.publish

    def strict(self: Any, token: Any, staged: Any) -> None:
        for piece in staged:
            if piece.path not in self.sinks.staged:
                raise CorruptionError(f"{piece.path} is gone")
        publish(self, token, staged)

    patch.setattr(Moved, "publish", strict)


@mutation(
    "21: who overwrites refuses what is not newer",
    faults=replace(SLOW, sink=0.15, stall=0.5, disk=0.01),
    seeds=1500,
    steps=700,
)
def older_versions_overwrite(patch: Patch) -> None:
    def write(self: Any, token: Any, key: int, value: Any) -> None:
        self.sinks.overwrite(key, token, value)

    patch.setattr(Upserted, "write", write)


@mutation("26: memory is reused for exactly the base", faults=CHANGES, seeds=400, steps=800)
def memory_of_any_version(patch: Patch) -> None:
    patch.setattr(Subtask, "reusable", lambda self, kept: kept[1] == self.ticket.mine)
