"""A small table that records of a stream are looked up in: a file, or what a function returns, read again as it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect.reading.formats import list_files
from headrace.connect.reading.inference import as_schema, schema_of_records
from headrace.connect.replay import Replay, replay
from headrace.errors import ConfigError, DataError, HeadraceError, SchemaError
from headrace.schemas import SchemaLike, to_batch
from headrace.units import Duration, duration_us, in_words

TableLike: TypeAlias = pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]
"""What a function that makes a table returns: Arrow, or a list of records."""
_POLL_ROWS = 131_072


def table(
    source: str | Path | Callable[[], TableLike],
    *,
    key: str | Sequence[str],
    refresh: Duration | None = None,
    format: str | None = None,
    schema: SchemaLike | None = None,
) -> LookupTable:
    """A table for ``stream.lookup``: a file, a directory or glob of files, or a function that returns one.

    ``key`` names the column, or columns, by which rows are found; each key has one row, and rows without a key are left
    out. ``refresh``: how often it is read again while the job runs; without it, once per run. ``format`` and ``schema``
    are as for `replay`. A function is called in the driver and returns a ``pyarrow.Table`` or a list of records; a file
    is replaced by renaming a complete one.

    >>> table(list, key="currency", refresh="10 s").describe()
    'list() by currency, read every 10 s'
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys or not all(isinstance(name, str) and name for name in keys) or len({*keys}) < len(keys):
        raise ConfigError(f"table: key={key!r} must name one or more different columns, such as key='currency'")
    refresh_us = duration_us(refresh, "refresh") if refresh is not None else None
    if refresh_us is not None and refresh_us <= 0:
        raise ConfigError("table: refresh= must be more than zero; leave it out to read the table once")
    declared = as_schema(schema)
    if callable(source):
        if format is not None:
            raise ConfigError(
                f"table: format={format!r} is about files, but {_name(source)} is a function; leave it out"
            )
        return LookupTable(source, keys, refresh_us, declared)
    if not isinstance(source, (str, Path)):
        raise ConfigError(f"table: {source!r:.80} is no path and no function; for rows at hand use lambda: rows")
    return LookupTable(replay(source, format=format, schema=schema), keys, refresh_us, declared)


@dataclass(frozen=True, slots=True)
class LookupTable:
    """Description of a table to look records up in; made by `table`.

    Only the driver reads it, so its source stays there: a function may use what cannot be shipped to workers.
    """

    source: Replay | Callable[[], TableLike] | None
    key: tuple[str, ...]
    refresh_us: int | None = None
    declared: pa.Schema | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return LookupTable, (None, self.key, self.refresh_us, self.declared)

    def read(self) -> pa.Table:
        """The table as it is now, one row per key; SchemaError or DataError if it is none."""
        try:
            found = _stored(self.source) if isinstance(self.source, Replay) else self._called()
        except (HeadraceError, OSError):
            raise
        except Exception as error:  # a user's function
            raise DataError(f"table {self.name}: {type(error).__name__}: {error}") from error
        for name in self.key:
            if name not in found.schema.names:
                raise SchemaError(
                    f"table {self.name}: key column {name!r} is not among {', '.join(found.schema.names)}"
                )
            found = found.filter(found.column(name).is_valid())
        self._check_unique(found)
        return found

    def _called(self) -> pa.Table:
        assert callable(self.source), "a table is read where the job was written"
        made = self.source()
        if isinstance(made, pa.RecordBatch):
            made = pa.Table.from_batches([made])
        if not isinstance(made, pa.Table):
            if not isinstance(made, Sequence) or not all(isinstance(row, Mapping) for row in made):
                raise SchemaError(
                    f"table {self.name} must return a pyarrow.Table or a list of records, not {type(made).__name__}"
                )
            schema = self.declared if self.declared is not None else schema_of_records(made, f"table {self.name}")
            made = pa.Table.from_batches([to_batch(made, schema)])
        return made if self.declared is None else made.select(self.declared.names).cast(self.declared)

    def _check_unique(self, found: pa.Table) -> None:
        counts = found.group_by(list(self.key)).aggregate([([], "count_all")])
        twice = counts.filter(pc.greater(counts.column("count_all"), 1))
        if twice.num_rows:
            key = ", ".join(f"{name}={twice.column(name)[0].as_py()!r}" for name in self.key)
            raise DataError(f"table {self.name} has more than one row for {key}; a record is given one row: keep one")

    def stamp(self) -> tuple[tuple[str, int, int, int], ...] | None:
        """What changes when the files do, cheap to ask; None if only reading tells."""
        if not isinstance(self.source, Replay):
            return None
        found = [(str(path), path.stat()) for path in list_files(self.source.path, "table")]
        return tuple((path, stat.st_mtime_ns, stat.st_size, stat.st_ino) for path, stat in found)

    @property
    def name(self) -> str:
        """The path, or the function's name."""
        return self.source.path if isinstance(self.source, Replay) else _name(self.source)

    def describe(self) -> str:
        often = f"every {in_words(self.refresh_us / 1e6)}" if self.refresh_us is not None else "once"
        return f"{self.name} by {', '.join(self.key)}, read {often}"


def _stored(source: Replay) -> pa.Table:
    list_files(source.path, "table")
    schema = source.schema()
    reader = source.open(0, 1, None, schema, Path())
    batches = []
    try:
        while not reader.exhausted:
            poll = reader.poll(_POLL_ROWS, 0)
            if poll is None:
                continue
            if poll.bad:
                bad = poll.bad[0]
                raise DataError(f"table: {bad.where} is no record ({bad.reason}): {bad.text[:200]}; repair it")
            batches.append(poll.records)
    finally:
        reader.close()
    return pa.Table.from_batches(batches, schema)


def _name(source: Any) -> str:
    return f"{getattr(source, '__qualname__', repr(source))}()"
