"""How input waits on disk for its keys' states: as it came, or as partials where those can be merged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import pyarrow as pa

from headrace.graph.windowing import NEVER_US
from headrace.runtime.batch import LATE, TIME, Batch
from headrace.runtime.reduce.keystates import KeyStates, KeyStep
from headrace.state.durable.changes import PANE
from headrace.state.table.rowtable import Partials


class Form(Protocol):
    """What rows of ``schema`` on disk stand for; they keep the order in which they came."""

    schema: pa.Schema

    def keys(self, rows: pa.RecordBatch) -> list[pa.Array]: ...

    def stored(self, batch: Batch) -> pa.RecordBatch:
        """Records as they wait."""
        ...

    def feed(self, states: KeyStates, rows: pa.RecordBatch) -> Iterable[Batch]:
        """Give what has waited to its states."""
        ...


class AsRecords:
    """Records with their times; those on time have the lowest watermark there is."""

    def __init__(self, step: KeyStep, schema: pa.Schema) -> None:
        self._step, self._records = step, schema
        self.schema = pa.schema([(PANE, pa.int64()), (TIME, pa.int64()), (LATE, pa.int64()), *schema])

    def keys(self, rows: pa.RecordBatch) -> list[pa.Array]:
        return self._step.key_columns(rows)

    def stored(self, batch: Batch) -> pa.RecordBatch:
        late = np.full(batch.rows, NEVER_US) if batch.late is None else batch.late
        numbers = [pa.array(np.zeros(batch.rows, np.int64)), pa.array(batch.times), pa.array(late)]
        return pa.RecordBatch.from_arrays([*numbers, *batch.records.columns], schema=self.schema)

    def feed(self, states: KeyStates, rows: pa.RecordBatch) -> Iterable[Batch]:
        late = rows.column(LATE).to_numpy()
        return states.take(
            Batch(
                rows.select(self._records.names),
                rows.column(TIME).to_numpy(),
                self._step.born_us,
                late if late.max() > NEVER_US else None,
            )
        )


class AsPartials:
    """Partials; where records come, one per key and turn."""

    def __init__(self, step: KeyStep, partials: Partials, keys: int) -> None:
        self._step, self._partials, self._keys = step, partials, keys
        self.schema = partials.schema

    def keys(self, rows: pa.RecordBatch) -> list[pa.Array]:
        keys: list[pa.Array] = rows.columns[1 : 1 + self._keys]
        return keys

    def stored(self, batch: Batch) -> pa.RecordBatch:
        return self._partials.of(batch.records, self._step.key_columns(batch.records), 0, batch.times)

    def feed(self, states: KeyStates, rows: pa.RecordBatch) -> Iterable[Batch]:
        return states.take_partial(rows)
