"""Records looked up in a table: each gets the columns of the row that its key has.

An *edition* is such a table as it was read once, prepared for its step: the keys as the stream has them, then the columns
that the step adds, by key. Which one holds changes at cuts alone (``runtime.cutmaking.turning``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import SchemaError
from headrace.graph.nodes import LookupNode
from headrace.runtime.batch import Batch
from headrace.runtime.operators.operator import Operator
from headrace.runtime.plan import JobPlan
from headrace.schemas import empty_batch
from headrace.state.grouping import check_key_type
from headrace.state.index.keyindex import KeyIndex

_ALIKE = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_timestamp,
    pa.types.is_date,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
)
"""Kinds of which one type can be made the other without changing what is meant."""


@dataclass(frozen=True, slots=True)
class Edition:
    """The rows of an edition, and where each key's row is."""

    values: tuple[pa.Array, ...]
    index: KeyIndex

    @staticmethod
    def of(rows: pa.RecordBatch, keys: int) -> Edition:
        """An edition whose first columns are keys."""
        index = KeyIndex([*rows.schema][:keys])
        index.admit(rows.columns[:keys], 0)  # the n-th key, all of which differ, gets row n
        return Edition(tuple(rows.columns[keys:]), index)

    def find(self, keys: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
        """The row of each key, -1 if it has none."""
        return self.index.find(list(keys), 0)

    def widened(self, records: pa.RecordBatch, rows: npt.NDArray[np.int64], out: pa.Schema) -> pa.RecordBatch:
        """Records with the columns of their rows, nulls where there is none."""
        at = pa.array(rows, mask=rows < 0)
        return pa.RecordBatch.from_arrays([*records.columns, *(column.take(at) for column in self.values)], schema=out)


class LookupOperator(Operator):
    """Inner and left lookups. ``edition`` is the name of the one that holds."""

    def __init__(self, node: LookupNode, into: pa.Schema, out: pa.Schema) -> None:
        super().__init__(node.name)
        self._on, self._how, self._out = node.on, node.how, out
        self.columns = edition_schema(node, into, out)
        self.edition: str | None = None
        self._held: Edition | None = None

    def prepared(self, rows: pa.RecordBatch) -> Edition:
        """An edition to turn to: may be called by another thread."""
        return Edition.of(rows, len(self._on))

    def turn_to(self, name: str, edition: Edition) -> None:
        """From now on records are looked up there."""
        self.edition, self._held = name, edition

    def on_batch(self, port: int, batch: Batch) -> None:
        assert self._held is not None, "an attempt begins with an edition"
        rows = self._held.find([batch.records.column(name) for name in self._on])
        if self._how == "inner" and (found := rows >= 0).sum() < len(rows):
            batch, rows = batch.where(found), rows[found]
        if batch.rows:
            self.emit(batch.with_records(self._held.widened(batch.records, rows, self._out)))


def lookup_schema(node: LookupNode, into: pa.Schema, found: pa.Schema) -> pa.Schema:
    """The columns of a lookup's output: the stream's, the table's without keys (clashes get ``_right``)."""
    for name, key in zip(node.on, node.table.key):
        if into.get_field_index(name) < 0:
            raise SchemaError(f"lookup {node.name!r}: column {name!r} is not among {', '.join(into.names)}")
        one, other = into.field(name).type, found.field(key).type
        check_key_type(name, one, node.name)
        if one != other and not any(kind(one) and kind(other) for kind in _ALIKE):
            raise SchemaError(
                f"lookup {node.name!r}: column {name!r} is {one}, but key {key!r} of table {node.table.name} is {other}; "
                f"give both one type: with map_batch before it, or schema= of the table"
            )
    added = [field for field in found if field.name not in node.table.key]
    renamed = [field.with_name(f"{field.name}_right") if field.name in into.names else field for field in added]
    out = pa.schema([*into, *(field.with_nullable(True) for field in renamed)])
    if len({*out.names}) < len(out.names):
        raise SchemaError(
            f"lookup {node.name!r}: its output would have two columns of one name: {', '.join(out.names)}; rename one"
        )
    return out


def edition_schema(node: LookupNode, into: pa.Schema, out: pa.Schema) -> pa.Schema:
    """The columns of an edition for a step with this input and output."""
    return pa.schema([*(into.field(name) for name in node.on), *list(out)[len(into) :]])


def edition_of(node: LookupNode, found: pa.Table, columns: pa.Schema) -> pa.RecordBatch:
    """What was read as an edition, in the order of its keys; SchemaError if it lacks columns that it had, or their types."""
    added = columns.names[len(node.on) :]
    values = {
        name if name in added else f"{name}_right": name for name in found.schema.names if name not in node.table.key
    }
    try:
        chosen = found.select([*node.table.key, *(values[name] for name in added)])
        ordered = chosen.rename_columns(columns.names).cast(columns)
    except (pa.ArrowException, KeyError, ValueError):
        raise SchemaError(
            f"lookup {node.name!r}: table {node.table.name} has columns {_typed(found.schema)} now, which do not fit those "
            f"that the job was planned with, {_typed(columns)}; put them back, or start the job again to take the new ones"
        ) from None
    rows = ordered.sort_by([(name, "ascending") for name in node.on]).combine_chunks().to_batches()
    return rows[0] if rows else empty_batch(columns)


def _typed(fields: Sequence[pa.Field]) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in fields)


def lookups_of(plan: JobPlan) -> dict[str, tuple[LookupNode, pa.Schema]]:
    """The lookups of a job, by step, each with the columns of its editions."""
    return {
        node.name: (node, edition_schema(node, plan.schema_into(node.name), plan.schemas[node.name]))
        for node in plan.graph.nodes
        if isinstance(node, LookupNode)
    }
