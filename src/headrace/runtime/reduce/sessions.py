"""Sessions: a key's records with no pause of ``gap`` or more between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.graph.windowing import FOREVER_US, NEVER_US
from headrace.runtime.batch import Batch, Times
from headrace.runtime.operators.operator import timestamps
from headrace.runtime.reduce.keystates import KeyStep
from headrace.state.grouping import Rows
from headrace.state.table.rowtable import GroupTable
from headrace.state.table.sessionlists import NO_ROW, SessionLists


@dataclass(frozen=True, slots=True)
class Runs:
    """Records of one batch, by key and time, with no pause between them: those of one run belong together."""

    users: Rows
    keys: list[pa.Array]
    starts: Times
    ends: Times
    reach: Times


class SessionStates:
    """Sessions are table rows whose pane is their start; ``end`` is their last record's time.

    A batch is first divided into runs per key; only runs that join sessions, or begin one earlier, meet them one by
    one. Two records belong together if less than the gap lies between them and neither came when its source's
    watermark had passed the end of the other's session. ``reach`` is the time after which a record still belongs: the
    gap before the start, or less far back where the session has late records. So the answer depends neither on how
    far other inputs have come nor on the order in which records arrive.
    """

    extras = ("end", "reach")

    def __init__(self, step: KeyStep, table: GroupTable, gap_us: int) -> None:
        self._step, self.table, self._gap = step, table, gap_us
        self.patience_us = gap_us
        self._open = SessionLists(table)
        self._next_close = FOREVER_US

    @property
    def nbytes(self) -> int:
        return self._open.nbytes

    @property
    def row_bytes(self) -> int:
        return self._open.row_bytes

    def too_late(self, times: Times, late: Times) -> npt.NDArray[np.bool_]:
        """Which records' sessions had ended when their own partition had come so far."""
        return times + self._gap <= late

    def take(self, batch: Batch) -> Iterator[Batch]:
        if batch.late is None:
            self._absorb(batch, NEVER_US)
        else:
            for expecting in np.unique(batch.late).tolist():
                self._absorb(batch.where(batch.late == expecting), expecting)
        yield from ()

    def take_partial(self, partial: pa.RecordBatch) -> Iterator[Batch]:
        raise NotImplementedError("records are not combined before their session is known")

    def close(self, watermark_us: int) -> Iterator[Batch]:
        if self._next_close > watermark_us:
            return
        rows, table = self.table.all_rows(), self.table
        done = rows[table.extras["end"][rows] + self._gap <= watermark_us]
        done = done[np.argsort(table.extras["end"][done], kind="stable")]
        results = None
        if len(done):
            ends = table.extras["end"][done] + self._gap
            bounds = [timestamps(table.pane_of(done)), timestamps(ends)]
            results = Batch(self._step.results(done, bounds, table), ends - 1, self._step.born_us)
            self.drop(done)
        self._next_close = self.due_us(table.all_rows()) + 1
        if results is not None:
            yield results

    def end(self) -> Iterator[Batch]:
        yield from ()

    def rows_of(self, keys: list[pa.Array]) -> Rows:
        return self._open.rows_of(keys)

    def loaded(self, rows: Rows) -> None:
        self._open.add(rows)
        self._next_close = min(self._next_close, self.due_us(rows) + 1)

    def leaving(self, rows: Rows) -> None:
        self._open.remove(rows)

    def parting(self, rows: Rows) -> Iterator[Batch]:
        yield from ()

    def drop(self, rows: Rows) -> None:
        self.leaving(rows)
        self.table.drop(rows)

    def due_us(self, rows: Rows) -> int:
        return int(self.table.extras["end"][rows].min()) + self._gap - 1 if len(rows) else FOREVER_US

    def waits_us(self, times: Times) -> int:
        return int(times.min()) + self._gap - 1

    def _absorb(self, batch: Batch, watermark_us: int) -> None:
        if not batch.rows:
            return
        users = self._open.users(self._step.key_columns(batch.records))
        order = np.lexsort((batch.times, users))
        sorted_batch, users = batch.take(order), users[order]
        times = sorted_batch.times
        breaks = (users[1:] != users[:-1]) | (times[1:] - times[:-1] >= self._gap)
        heads = np.flatnonzero(np.concatenate(([True], breaks)))
        tails = np.concatenate((heads[1:], [len(users)])) - 1
        keys = [column.take(pa.array(heads)) for column in self._step.key_columns(sorted_batch.records)]
        reach = np.maximum(times[heads], watermark_us) - self._gap
        rows = self._rows(Runs(users[heads], keys, times[heads], times[tails], reach))
        self.table.add(np.repeat(rows, tails - heads + 1), sorted_batch.records, times)

    def _rows(self, runs: Runs) -> Rows:
        """Each run's session. The first run of every key is done, then the second of every key that has one, ..."""
        rows = np.full(len(runs.users), NO_ROW)
        for turn in turns(runs.users):
            row, touched = self._touching(runs, turn)
            goes_on = (touched == 1) & (runs.starts[turn] >= self.table.pane_of(row))
            rows[turn[goes_on]] = row[goes_on]
            self._open_all(runs, turn[touched == 0], rows)
            self._go_on(runs, turn[goes_on], row[goes_on])
            for at in turn[~goes_on & (touched > 0)].tolist():
                rows[at] = self._session(runs, at, rows)
        return rows

    def _touching(self, runs: Runs, turn: Rows) -> tuple[Rows, Rows]:
        """An open session that each run touches, and how many it does."""
        ends, reaches = self.table.extras["end"], self.table.extras["reach"]
        found, touched = np.full(len(turn), NO_ROW), np.zeros(len(turn), np.int64)
        for row in self._open.each(runs.users[turn]):
            touches = (row != NO_ROW) & (ends[row] > runs.reach[turn]) & (runs.ends[turn] > reaches[row])
            found[touches] = row[touches]
            touched += touches
        return found, touched

    def _open_all(self, runs: Runs, at: Rows, rows: Rows) -> None:
        """New sessions of different keys."""
        if not len(at):
            return
        rows[at] = self.table.admit([column.take(pa.array(at)) for column in runs.keys], runs.starts[at]).rows
        self._open.put_on(runs.users[at], rows[at])
        self.table.extras["end"][rows[at]] = runs.ends[at]
        self.table.extras["reach"][rows[at]] = runs.reach[at]
        self._changed(rows[at])

    def _go_on(self, runs: Runs, at: Rows, rows: Rows) -> None:
        """Sessions of different keys last longer."""
        ends, reaches = self.table.extras["end"], self.table.extras["reach"]
        ends[rows] = np.maximum(ends[rows], runs.ends[at])
        reaches[rows] = np.minimum(reaches[rows], runs.reach[at])
        self._changed(rows)

    def _changed(self, rows: Rows) -> None:
        self.table.mark(rows)
        self._next_close = min(self._next_close, self.due_us(rows) + 1)

    def _session(self, runs: Runs, at: int, rows: Rows) -> int:
        """The row of the session that a run belongs to, merged with all it touches; ``rows`` of earlier runs follow."""
        table, ends, reaches = self.table, self.table.extras["end"], self.table.extras["reach"]
        user, start, end, reach = (int(a[at]) for a in (runs.users, runs.starts, runs.ends, runs.reach))
        touching = [row for row in self._open.of(user) if int(ends[row]) > reach and end > int(reaches[row])]
        first = min([start, *table.pane_of(np.array(touching, np.int64)).tolist()])
        last = max([end, *(int(ends[row]) for row in touching)])
        reach = min([reach, *(int(reaches[row]) for row in touching)])
        row = int(table.admit([column.slice(at, 1) for column in runs.keys], first).rows[0])
        for other in touching:
            if other != row:
                self._open.take_off(user, other)
                table.fold(row, other)
                rows[rows == other] = row
        if row not in touching:
            self._open.put_on(np.array([user]), np.array([row]))
        table.extras["end"][row], table.extras["reach"][row] = last, reach
        self._changed(np.array([row]))
        return row


def turns(users: Rows) -> Iterator[Rows]:
    """Positions in a sorted array: the first of every number, then the second of those that are there twice, ..."""
    firsts = np.flatnonzero(np.concatenate(([True], users[1:] != users[:-1])))
    counts = np.diff(np.append(firsts, len(users)))
    while len(firsts):
        yield firsts
        firsts, counts = firsts[counts > 1] + 1, counts[counts > 1] - 1
