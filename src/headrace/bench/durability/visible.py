"""When each line of a JSON lines sink became visible to somebody who looks at its files."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json

_LOOK_S = 0.005
"""How often one looks: what is found is seen so much later at most."""
Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Onlooker:
    """As a context manager: notes in a thread how long the part files of a directory are, and since when."""

    directory: Path
    seen: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Onlooker:
        self._thread = threading.Thread(target=self._watch, name="headrace-onlooker", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.look()

    def look(self) -> None:
        """Note what has grown."""
        for path in self.directory.glob("part-*.jsonl"):
            size, now_us = path.stat().st_size, time.time_ns() // 1000
            lengths = self.seen.setdefault(path.name, [])
            if size > (lengths[-1][1] if lengths else 0):
                lengths.append((now_us, size))

    def table(self, columns: tuple[str, ...]) -> dict[str, Ints]:
        """All lines: whole-number columns, and ``now_us``, when each was first seen whole."""
        parts = [self._lines(name, columns) for name in sorted(self.seen)]
        return {c: np.concatenate([p[c] for p in parts] or [np.zeros(0, np.int64)]) for c in ("now_us", *columns)}

    def _lines(self, name: str, columns: tuple[str, ...]) -> dict[str, Ints]:
        data = (self.directory / name).read_bytes()
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
        rows = pyarrow.json.read_json(pa.BufferReader(data[: ends[-1]] if len(ends) else b""))
        return {"now_us": seen_us(ends, self.seen[name]), **{c: rows[c].to_numpy() for c in columns}}

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self.look()


def seen_us(ends: Ints, lengths: list[tuple[int, int]]) -> Ints:
    """When each line, given where it ends, was whole: at the first look at a file of that length."""
    times, sizes = (np.array(column, np.int64) for column in zip(*lengths, strict=True))
    return times[np.searchsorted(sizes, ends)]
