"""A keyed job with state of a given size: every key once, then updates spread over all keys, paced and as they come.

Record ``n`` is a fixed function of its number, so what must come out can be said of every key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.connect.source import Offset, Poll, Reader
from headrace.state.durable.loading import read_slice
from headrace.state.durable.storage import LocalStorage
from headrace.state.durable.versionlog import VersionLog

Ints = npt.NDArray[np.int64]
VALUES = 4
"""Numbers that a key has sums of: a gigabyte is millions of keys then, and a buffer is still added to all of them quickly."""
ROW_BYTES = 8 * (3 + 2 * (VALUES + 1)) + 16
"""The state of a key: it, its pane and count, for each sum its value and how many it is of, and its identity."""
SCHEMA = pa.schema([(name, pa.int64()) for name in ("key", "due_us", *(f"v{i}" for i in range(VALUES)))])
COLUMNS = ("key", "n", "due_us")
STEP = "totals"
_PACED, _BURST = "paced-from-us", "burst-from-us"


@dataclass(frozen=True, slots=True)
class StateLoad:
    """``keys`` records that make the state, ``paced`` ones at ``rate`` per second, ``burst`` ones as fast as they are taken."""

    keys: int
    rate: int
    paced: int
    burst: int

    @staticmethod
    def of(state_bytes: int, rate: int, seconds: float, burst: int) -> StateLoad:
        return StateLoad(max(state_bytes // ROW_BYTES, 1), rate, int(rate * seconds), burst)

    @property
    def total(self) -> int:
        return self.keys + self.paced + self.burst

    def key(self, n: Ints) -> Ints:
        return np.where(n < self.keys, n, (n * 2_654_435_761 + 12_345) % 4_294_967_291 % self.keys)

    def due_us(self, n: Ints, start_us: int) -> Ints:
        """When records are due; 0 of those that are not paced, so that they do not count in sums of due times."""
        paced = (n >= self.keys) & (n < self.keys + self.paced)
        return np.where(paced, start_us + (n - self.keys) * 1_000_000 // self.rate, 0)

    def batch(self, n: Ints, start_us: int) -> pa.RecordBatch:
        values = [(n * (2 * i + 3) * 40_503) & 0xFFFF_FFFF for i in range(VALUES)]
        return pa.RecordBatch.from_arrays(
            [pa.array(c) for c in (self.key(n), self.due_us(n, start_us), *values)], schema=SCHEMA
        )

    def counts(self) -> Ints:
        """How many records each key has in all."""
        return np.bincount(self.key(np.arange(self.total)), minlength=self.keys)

    def due_sums(self, start_us: int) -> Ints:
        """The sum of due times of each key."""
        n = np.arange(self.keys, self.keys + self.paced)
        sums = np.zeros(self.keys, np.int64)
        np.add.at(sums, self.key(n), self.due_us(n, start_us))
        return sums


@dataclass(frozen=True, slots=True)
class Signals:
    """Files by which the experiment and its workers tell each other how far they are."""

    directory: Path

    def let_go(self, phase: str, at_us: int) -> None:
        made = self.directory / f"{phase}.new"
        made.write_text(str(at_us))
        made.replace(self.directory / phase)

    def pace(self, at_us: int) -> None:
        self.let_go(_PACED, at_us)

    def burst(self, at_us: int) -> None:
        self.let_go(_BURST, at_us)

    def begun_us(self, phase: str) -> int | None:
        try:
            return int((self.directory / phase).read_text())
        except FileNotFoundError:
            return None

    def count_new(self, rows: int) -> None:
        with (self.directory / f"{os.getpid()}.new-keys").open("ab") as file:
            file.write(np.int64(rows).tobytes())

    @property
    def new_keys(self) -> int:
        """How many keys have their first record."""
        return sum(int(np.fromfile(path, np.int64).sum()) for path in self.directory.glob("*.new-keys"))


def updates(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Without the first result of each key, which only makes the state."""
    return rows.select(list(COLUMNS)).filter(pc.greater(rows.column("n"), 1))


@dataclass(frozen=True, slots=True)
class CountingNew:
    """A callback that counts keys with their first record, and hands the rest on."""

    signals: Signals
    then: Callable[[pa.RecordBatch], object] | None = None

    def __call__(self, rows: pa.RecordBatch) -> None:
        more = updates(rows)
        if new := rows.num_rows - more.num_rows:
            self.signals.count_new(new)
        if self.then is not None and more.num_rows:
            self.then(more)


def running_totals(name: str, source: Any, **options: Any) -> hr.Stream:
    """A job's totals per key, with a result at each update; ``options`` are the step's."""
    sums: dict[str, Any] = {f"v{i}": hr.sum(f"v{i}") for i in range(VALUES)}
    items = hr.Job(name).source("items", source)
    return items.key_by("key").reduce(name=STEP, n=hr.count(), due_us=hr.sum("due_us"), **sums, **options)


@dataclass(frozen=True, slots=True)
class StateSource:
    """The load as a source: phases begin when the experiment says so. Its clock does not wait either."""

    load: StateLoad
    signals: Signals

    @property
    def bounded(self) -> bool:
        return True

    @property
    def live(self) -> bool:
        return False

    def partitions(self, parallelism: int) -> int:
        return parallelism

    def schema(self) -> pa.Schema:
        return SCHEMA

    def sample(self, rows: int) -> pa.RecordBatch:
        return self.load.batch(np.arange(rows), 0)

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> Reader:
        return StateReader(self, partition, of, offset, schema)

    def describe(self) -> str:
        return f"{self.load.keys} keys, {self.load.paced} paced updates, {self.load.burst} at once"


class StateReader:
    """One partition; its offset is the next number."""

    def __init__(self, source: StateSource, partition: int, of: int, offset: Offset | None, schema: pa.Schema) -> None:
        self._load, self._signals, self._of, self._schema = source.load, source.signals, of, schema
        self._next: int = offset["next"] if offset else partition
        self._begun: dict[str, int | None] = {_PACED: None, _BURST: None}

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        upto = self._due(now_us)
        rows = min(max_rows, -((self._next - upto) // self._of))
        if rows <= 0:
            return None
        numbers = np.arange(self._next, self._next + rows * self._of, self._of, dtype=np.int64)
        self._next += rows * self._of
        start_us = self._begun[_PACED] or 0
        batch = self._load.batch(numbers, start_us).select(self._schema.names)
        first_us, last_us = self._load.due_us(numbers[[0, -1]], start_us).tolist()
        return Poll(batch, first_us, last_due_us=last_us) if first_us else Poll(batch)

    def _due(self, now_us: int) -> int:
        """All numbers below are due."""
        load = self._load
        paced_from, burst_from = load.keys, load.keys + load.paced
        if self._next < paced_from:
            return paced_from
        if self._next < burst_from:
            start_us = self._wait_for(_PACED)
            return paced_from if start_us is None else min(self._paced_due(now_us - start_us), burst_from)
        burst_us = self._wait_for(_BURST)
        return burst_from if burst_us is None or now_us < burst_us else load.total

    def _paced_due(self, elapsed_us: int) -> int:
        load = self._load
        return load.keys + (elapsed_us * load.rate // 1_000_000 + 1 if elapsed_us >= 0 else 0)

    def _wait_for(self, phase: str) -> int | None:
        if self._begun[phase] is None:
            self._begun[phase] = self._signals.begun_us(phase)
        return self._begun[phase]

    def offset(self) -> Offset:
        return {"next": self._next}

    @property
    def exhausted(self) -> bool:
        return self._next >= self._load.total

    def next_due_us(self) -> int | None:
        load, start_us = self._load, self._begun[_PACED]
        if start_us is None or not load.keys <= self._next < load.keys + load.paced:
            return None
        return int(load.due_us(np.array([self._next]), start_us)[0])

    def close(self) -> None:
        """Nothing is held open."""


def stored_totals(checkpoint: Path) -> tuple[dict[str, Ints], int]:
    """The newest version's keys, counts and due times, and how many bytes of blocks it has."""
    return stored_columns(checkpoint, COLUMNS)


def stored_columns(checkpoint: Path, wanted: Sequence[str]) -> tuple[dict[str, Ints], int]:
    """Some columns of the newest version's totals, and how many bytes of blocks it has."""
    storage = LocalStorage(checkpoint / "headrace")
    newest = VersionLog(storage).newest_cut()
    assert newest is not None, "a run that has ended has made a cut"
    manifest = newest[1].manifest
    images = [
        read_slice(storage, step, number, version)
        for (step, number), version in manifest.slices.items()
        if step.partition("#")[0] == STEP
    ]
    names = {name: next(c for c in images[0].schema.names if c == name or c.startswith(f"{name}.")) for name in wanted}
    columns = {name: np.concatenate([i.column(names[name]).to_numpy() for i in images]) for name in wanted}
    return columns, sum(block.length for version in manifest.slices.values() for block in version.blocks)
