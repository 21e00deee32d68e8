"""Reduce where a record changes its key's state, and no pane ends: running results, count windows, sessions."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.graph.combining import can_combine
from headrace.graph.memory import engine_of
from headrace.graph.nodes import ReduceNode
from headrace.graph.windowing import FOREVER_US, CountWindow, SessionWindow
from headrace.runtime.batch import Batch
from headrace.runtime.clock import now_us
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.reduce.counting import CountStates
from headrace.runtime.reduce.deferring import Deferring
from headrace.runtime.reduce.keystates import KeyStates
from headrace.runtime.reduce.overflow import OverflowParts
from headrace.runtime.reduce.reduce import Place, Reduce
from headrace.runtime.reduce.runningresults import RunningStates
from headrace.runtime.reduce.sessions import SessionStates
from headrace.runtime.reduce.waiting import AsPartials, AsRecords, Form
from headrace.state.durable.changes import Store
from headrace.state.index.choosing import Choice
from headrace.state.spill.bounds import Bound
from headrace.state.spill.diskrows import spill_home
from headrace.state.table.rowtable import GroupTable

DEFER_US = 5_000_000
"""How long results of keys on disk are deferred: a pass over the disk at every cut would be all that a step does."""


class KeyedReduce(Reduce):
    """The states of all keys in memory, or under a memory bound of those that fit (``runtime.reduce.deferring``).

    ``eager``: results follow at once; in modes that run stage by stage a running result follows once per batch.
    """

    def __init__(
        self, node: ReduceNode, schema: pa.Schema, out: pa.Schema, guard: Guard, place: Place, *, eager: bool
    ) -> None:
        super().__init__(node, schema, out, guard, place)
        self.newest_us = self.born_us = 0
        self._settled_us = now_us()
        self.deferring = self._bounded(node.memory_bytes, eager) if node.memory_bytes is not None else None
        self._states = self.deferring.states if self.deferring else self._new_states(self.new_table(), eager)
        self.table = self._states.table

    def extra_columns(self) -> tuple[str, ...]:
        match self.node.window:
            case SessionWindow():
                return SessionStates.extras
            case CountWindow():
                return CountStates.extras
            case _:
                return super().extra_columns()

    def stores(self) -> dict[str, Store]:
        return self.deferring.stores() if self.deferring else {"": self.table}

    def restored(self, slices: list[int]) -> None:
        if self.deferring:
            self.deferring.restored()
        else:
            self._states.loaded(self.table.all_rows())

    def give_away(self, slices: frozenset[int]) -> None:
        self._states.leaving(self.table.rows_of_slices(slices))
        super().give_away(slices)

    def adopted(self, slices: frozenset[int]) -> None:
        self._states.loaded(self.table.rows_of_slices(slices))

    def close(self) -> None:
        if self.deferring:
            self.deferring.close_files()

    @property
    def choice(self) -> Choice | None:
        if self.deferring is None:
            return None
        if isinstance(self.node.window, SessionWindow):
            return Choice(*engine_of(self.node))
        return self.deferring.residents.choice

    def on_disk(self, batch: Batch) -> npt.NDArray[np.bool_]:
        if self.deferring is None or not self.deferring.on_disk:
            return super().on_disk(batch)
        return ~self.deferring.residents.here(self.key_columns(batch.records))

    def held_us(self) -> int:
        return self.deferring.held_us if self.deferring else super().held_us()

    def on_batch(self, port: int, batch: Batch) -> None:
        self.newest_us, self.born_us = max(self.newest_us, int(batch.times.max())), batch.born_us
        if isinstance(self._states, SessionStates) and batch.late is not None:
            batch = self.without_late(port, batch, self._states.too_late(batch.times, batch.late))
        self._emit_all((self.deferring or self._states).take(batch))

    def on_partial(self, port: int, partial: pa.RecordBatch, born_us: int) -> None:
        self.born_us = born_us
        self._emit_all(self.deferring.take_stored(partial) if self.deferring else self._states.take_partial(partial))

    def on_watermark(self, watermark_us: int) -> None:
        if self.deferring and watermark_us < FOREVER_US:
            self.newest_us = max(self.newest_us, watermark_us)  # a running result that was deferred is of now
        self._emit_all((self.deferring or self._states).close(watermark_us))

    def on_cut(self, *, end: bool) -> None:
        if self.deferring is None:
            self._emit_all(self._states.end())
        elif end or now_us() - self._settled_us >= DEFER_US:
            self._emit_all(self.deferring.end(self.watermark_us))
            self._settled_us = now_us()
        self.pass_on_watermark()

    def _emit_all(self, results: Iterable[Batch]) -> None:
        for batch in results:
            self.emit(batch)

    def _new_states(self, table: GroupTable, eager: bool) -> KeyStates:
        match self.node.window:
            case SessionWindow(gap_us=gap_us):
                return SessionStates(self, table, gap_us)
            case CountWindow(rows=rows):
                return CountStates(self, table, rows)
            case _:
                return RunningStates(self, table, eager=eager)

    def _bounded(self, memory_bytes: int, eager: bool) -> Deferring:
        node = self.node
        engine, _ = engine_of(node)
        sessions = isinstance(node.window, SessionWindow)
        # Of sessions only what has expired leaves memory, whatever the policy: nobody is pushed out for another.
        bound = Bound(
            memory_bytes, "inc" if sessions else engine, self._place.spill or spill_home(), self._place.slices
        )
        form: Form = AsRecords(self, self._schema)
        if can_combine(node):
            form = AsPartials(self, self.new_partials(), len(node.keys))
        parts = OverflowParts(self.new_table, self._new_states, self.key_columns, form)
        return Deferring(parts, bound, eager=eager, keeps_slots=not sessions or engine == "inc")
