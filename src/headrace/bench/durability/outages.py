"""How long no results of new records came after a kill, and how much input is repeated, as seen from outside.

Records are numbered in the order of the input: a result is news if no result before it was of so new a record.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.state.durable.loading import read_slice
from headrace.state.durable.storage import LocalStorage
from headrace.state.durable.versionlog import VersionLog
from headrace.state.plain import unpack

Ints = npt.NDArray[np.int64]
_PAIR_BYTES = 16
_SURVIVE_US = 6_000_000
"""How long others may go on: a lease, after which a worker that only hangs is missed, and a little."""


@dataclass(frozen=True, slots=True)
class News:
    """When results came that were of newer records than all before, in µs, and the number of the newest record in each."""

    at_us: Ints
    newest: Ints

    @staticmethod
    def of(at_us: Ints, newest: Ints) -> News:
        order = np.argsort(at_us, kind="stable")
        at_us, newest = at_us[order], newest[order]
        before = np.concatenate(([-1], np.maximum.accumulate(newest)[:-1])) if len(newest) else newest
        return News(at_us[newest > before], newest[newest > before])

    def outage_s(self, kill_us: int, until_us: int) -> float | None:
        """From a kill to the end of the longest silence after it; None if nothing new came before ``until_us``.

        Other workers go on for a moment when one dies, so the first result after the kill may still be of the time before;
        a silence that begins later has another reason.
        """
        after = self.at_us[(self.at_us > kill_us) & (self.at_us < until_us)]
        if not len(after):
            return None
        begins = np.concatenate(([kill_us], after[:-1]))
        silences = np.where(begins <= kill_us + _SURVIVE_US, after - begins, -1)
        return float(after[int(np.argmax(silences))] - kill_us) / 1e6

    def repeated_s(self, kill_us: int, position: int | None) -> float | None:
        """How long before the kill the first result came that is not in the last logged cut, given how far that has read."""
        if position is None:
            return None
        lost = self.at_us[(self.newest >= position) & (self.at_us <= kill_us)]
        return float(kill_us - lost[0]) / 1e6 if len(lost) else 0.0


@dataclass(frozen=True, slots=True)
class NewsDesk:
    """A callback for results with the number of their newest record: notes the time and the newest of each call."""

    directory: Path
    column: str

    def __call__(self, rows: pa.RecordBatch | pa.Table) -> None:
        if rows.num_rows:
            pair = np.array([time.time_ns() // 1000, pc.max(rows.column(self.column)).as_py()], np.int64)
            with (self.directory / f"{os.getpid()}.news").open("ab") as file:
                file.write(pair.tobytes())

    def read(self) -> News:
        parts = [np.fromfile(path, np.int64) for path in sorted(self.directory.glob("*.news"))]
        pairs = np.concatenate([part[: len(part) // 2 * 2] for part in parts] or [np.zeros(0, np.int64)]).reshape(-1, 2)
        return News.of(pairs[:, 0], pairs[:, 1])

    def newest(self) -> int:
        """About the newest record that has a result, from the ends of the files; -1 if there is none."""
        return max((self._last(path) for path in self.directory.glob("*.news")), default=-1)

    def _last(self, path: Path) -> int:
        whole = path.stat().st_size // _PAIR_BYTES * _PAIR_BYTES
        with path.open("rb") as file:
            file.seek(max(whole - _PAIR_BYTES, 0))
            pair = np.frombuffer(file.read(_PAIR_BYTES), np.int64)
        return int(pair[1]) if len(pair) == 2 else -1


def logged_position(checkpoint: Path, source: str) -> int | None:
    """The next number to be read after the newest cut of the log, of the partition that is least far; None if unknown."""
    storage = LocalStorage(checkpoint / "headrace")
    for _ in range(3):  # whoever still runs may be clearing away what is read here
        try:
            newest = VersionLog(storage).newest_cut()
            if newest is None:
                return 0
            slices = newest[1].manifest.slices.items()
            images = [
                read_slice(storage, step, number, version) for (step, number), version in slices if step == source
            ]
            return min((_next_number(image) for image in images), default=0)
        except (OSError, HeadraceError):
            continue
    return None


def _next_number(image: pa.RecordBatch) -> int:
    rows = [row for row in image.to_pylist() if row["name"] == "position"]
    return int(unpack(rows[0]["value"])["offset"]["next"])


def outage_figures(kind: str, seconds: Sequence[float]) -> dict[str, Any]:
    """Median and longest."""
    return {
        f"{kind}_outage_s": round(float(np.median(seconds)), 2) if seconds else None,
        f"{kind}_outage_max_s": round(max(seconds), 2) if seconds else None,
    }
