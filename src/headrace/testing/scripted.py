"""A source that plays a script, with crashes and pauses where the test wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connect.source import Offset, Poll, Reader
from headrace.schemas import SchemaLike, infer_schema, to_schema


class _Mark:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return self.name


CRASH = _Mark("CRASH")
"""In a script: the worker raises here, once."""
PAUSE = _Mark("PAUSE")
"""In a script: one poll finds nothing."""

Item = Mapping[str, Any] | _Mark


class ScriptedCrash(RuntimeError):
    """What CRASH raises."""


@dataclass(frozen=True)
class Scripted:
    """See ``scripted``."""

    parts: tuple[tuple[Item, ...], ...]
    declared: pa.Schema
    flags: Path | None
    bounded: bool = True
    live: bool = False

    def partitions(self, parallelism: int) -> int:
        return len(self.parts)

    def schema(self) -> pa.Schema:
        return self.declared

    def sample(self, rows: int) -> pa.RecordBatch:
        records = [item for part in self.parts for item in part if not isinstance(item, _Mark)]
        return pa.RecordBatch.from_pylist(records[:rows], schema=self.declared)

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> Reader:
        return _Player(self, partition, (offset or {}).get("at", 0))

    def describe(self) -> str:
        return f"scripted, {sum(map(len, self.parts))} items"


class _Player:
    def __init__(self, script: Scripted, partition: int, at: int) -> None:
        self._script, self._partition, self._items, self._at = script, partition, script.parts[partition], at

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        start = self._at
        while self._at < len(self._items) and self._at - start < max_rows:
            item = self._items[self._at]
            if isinstance(item, _Mark):
                if self._at > start:
                    break
                self._at += 1
                if item is PAUSE:
                    return None
                self._crash()
                start = self._at
            else:
                self._at += 1
        if self._at == start:
            return None
        return Poll(pa.RecordBatch.from_pylist(list(self._items[start : self._at]), schema=self._script.declared))

    def _crash(self) -> None:
        """Raise, unless this crash has happened before (a flag file remembers it)."""
        flags = self._script.flags
        if flags is None:
            raise ScriptedCrash(f"CRASH at item {self._at - 1}")
        flag = flags / f"crash-{self._partition}-{self._at}"
        if not flag.exists():
            flags.mkdir(parents=True, exist_ok=True)
            flag.touch()
            raise ScriptedCrash(f"CRASH at item {self._at - 1} of partition {self._partition}")

    def offset(self) -> Offset:
        return {"at": self._at}

    @property
    def exhausted(self) -> bool:
        return self._at >= len(self._items)

    def next_due_us(self) -> int | None:
        return 0 if not self.exhausted else None

    def close(self) -> None:
        """Nothing to close."""


def scripted(*parts: Sequence[Item], schema: SchemaLike | None = None, flags: Path | None = None) -> Scripted:
    """A bounded source of one partition per script; ``flags`` is a directory that remembers crashes.

    >>> source = scripted([{"k": "a"}, PAUSE, {"k": "b"}])
    >>> source.describe()
    'scripted, 3 items'
    """
    records = [item for part in parts for item in part if not isinstance(item, _Mark)]
    declared = to_schema(schema) if schema is not None else infer_schema(records, "scripted source")
    return Scripted(tuple(tuple(part) for part in parts), declared, flags)
