"""The state of a step as an Arrow table, or as a Spark DataFrame: ``hr.read_state``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.driver.identity import Step
from headrace.driver.inspection.checkpointview import Checkpoint, open_checkpoint, slices_of_step
from headrace.driver.inspection.storedrows import StoredEntry, as_json, entries, holds_entries, offsets, readable, typed
from headrace.errors import CorruptionError, SchemaError
from headrace.runtime.operators.positions import POSITION
from headrace.schemas import to_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STAMP = pa.timestamp("us", "UTC")
_ATTEMPTS = 3
_BOOKKEEPING = "marks"
"""The part of a reduce's state that has no rows of keys: up to where each slice's windows were emitted."""


@overload
def read_state(checkpoint: str | Path, step: str) -> pa.Table: ...


@overload
def read_state(checkpoint: str | Path, step: str, *, spark: SparkSession) -> DataFrame: ...


def read_state(checkpoint: str | Path, step: str, *, spark: SparkSession | None = None) -> pa.Table | DataFrame:
    """The state of a step, as of the newest version of a checkpoint: a ``pyarrow.Table``, or a DataFrame of ``spark``.

    Of ``process`` there is a row for each key, with a column for each of its states: a value, the list of a queue, the
    list of items and values of a mapping; ``timers``, if there are any; and of values that have a ``ttl``, when they were
    set. Of a reduce there are its keys, the pane, window or session that a row belongs to, and what each result has come to;
    of a source the offset of each partition. Values of mixed types, and dictionaries, are JSON text. A job may run on
    the checkpoint meanwhile. Raises ConfigError if there is no such checkpoint or step.

    ``hr.read_state("checkpoints/visits", "remember").to_pandas()``
    """
    table = state_table(open_checkpoint(Path(checkpoint)), step)
    return table if spark is None else spark.createDataFrame(table)


def state_table(checkpoint: Checkpoint, step: str) -> pa.Table:
    """All that the newest version has of a step."""
    for attempt in range(_ATTEMPTS):
        manifest = checkpoint.newest()
        try:
            parts = list(slices_of_step(checkpoint, manifest, step))
            break
        except CorruptionError:  # if it is no longer the newest, its segments may have been rewritten meanwhile
            if attempt == _ATTEMPTS - 1 or checkpoint.newest().token == manifest.token:
                raise
    known = checkpoint.identity.known(step)
    kept = [(part, image) for part, image in parts if part != _BOOKKEEPING]
    if known is not None and all(holds_entries(image) for _, image in kept):
        found = [entry for _, image in kept for entry in entries(image)]
        return _of_source(found) if known.kind == "source" else _of_process(known, found)
    several = len({part for part, _ in kept}) > 1
    tables = [_with_part(readable(known, part, image), part if several else None) for part, image in kept]
    return _together(tables)


def _together(tables: list[pa.Table]) -> pa.Table:
    """One table of several; columns whose types differ, as of the sides of a join, become text."""
    types: dict[str, set[pa.DataType]] = {}
    for table in tables:
        for field in table.schema:
            types.setdefault(field.name, set()).add(field.type)
    clashing = [name for name, found in types.items() if len(found) > 1]
    same = []
    for table in tables:
        for name in clashing:
            if (at := table.schema.get_field_index(name)) >= 0:
                texts = [None if value is None else as_json(value) for value in table.column(at).to_pylist()]
                table = table.set_column(at, name, pa.array(texts, pa.string()))
        same.append(table)
    return pa.concat_tables(same, promote_options="default").combine_chunks() if same else pa.table({})


def _with_part(table: pa.Table, part: str | None) -> pa.Table:
    return table if part is None else table.append_column("part", pa.array([part] * table.num_rows, pa.string()))


def _of_source(found: list[StoredEntry]) -> pa.Table:
    places = offsets(found)
    positions = [entry for entry in found if entry.name == POSITION]
    newest = pa.array([entry.value["newest_us"] for entry in positions], pa.int64())
    return pa.table(
        {
            "partition": pa.array([entry.key for entry in positions], pa.int64()),
            "offset": pa.array([as_json(places[entry.key]) for entry in positions], pa.string()),
            "newest": pc.if_else(pc.greater_equal(newest, 0), newest, None).cast(_STAMP),
        }
    )


def _of_process(step: Step, found: list[StoredEntry]) -> pa.Table:
    """One row per key: entries of one key are in one slice, those of a queue or mapping in their order."""
    row_of: dict[bytes, int] = {}
    keys: list[Any] = []
    for entry in found:
        if entry.stored_key not in row_of:
            row_of[entry.stored_key] = len(keys)
            keys.append(entry.key)
    columns = _key_columns(step, keys)
    for name, kind in step.states.items():
        mine = [entry for entry in found if entry.name == name]
        column = f"{name}_state" if name in columns else name
        if kind == "value":
            columns[column] = typed(_spread(mine, row_of, [entry.value for entry in mine]))
            if any(entry.set_at_us is not None for entry in mine):
                dates = _spread(mine, row_of, [entry.set_at_us for entry in mine])
                columns[f"{column}_set_at"] = pa.array(dates, pa.int64()).cast(_STAMP)
        elif kind == "queue":
            columns[column] = _lists(mine, row_of, typed([entry.value for entry in mine]))
        else:
            parts = [typed([entry.sub[0] for entry in mine]), typed([entry.value for entry in mine])]
            columns[column] = _lists(mine, row_of, pa.StructArray.from_arrays(parts, ["item", "value"]))
    timers = [entry for entry in found if entry.timer is not None]
    if timers:
        at = pa.array([entry.value for entry in timers], pa.int64()).cast(_STAMP)
        parts = [pa.array([t.timer for t in timers]), pa.array([t.sub for t in timers]), at]
        columns["timers"] = _lists(timers, row_of, pa.StructArray.from_arrays(parts, ["clock", "tag", "at"]))
    return pa.table(columns)


def _key_columns(step: Step, keys: list[Any]) -> dict[str, pa.Array]:
    types = step.inputs.get("used", {})
    names = step.facts["key"].split(", ")
    if {*names} != {*types}:
        names = list(types)  # a name has a comma
    columns = {}
    for i, name in enumerate(names):
        values = keys if len(names) == 1 else [key[i] for key in keys]
        try:
            kind = to_schema({name: types[name].removesuffix(" not null")}).field(name).type
            columns[name] = pa.array(values, kind)
        except (SchemaError, pa.ArrowInvalid, pa.ArrowTypeError):
            columns[name] = typed(values)
    return columns


def _spread(mine: Iterable[StoredEntry], row_of: dict[bytes, int], values: Sequence[Any]) -> list[Any]:
    spread: list[Any] = [None] * len(row_of)
    for entry, value in zip(mine, values):
        spread[row_of[entry.stored_key]] = value
    return spread


def _lists(mine: list[StoredEntry], row_of: dict[bytes, int], values: pa.Array) -> pa.Array:
    """A list for each key, of those of the values that are its."""
    rows = np.array([row_of[entry.stored_key] for entry in mine], np.int64)
    order = np.argsort(rows, kind="stable")
    offsets = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(row_of))))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values.take(pa.array(order)))
