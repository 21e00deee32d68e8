"""Sums from which an interval's figures are made: exact, of constant size, and cheap per event."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from datasketches import req_floats_sketch

from headrace.measure.moments import Moments
from headrace.measure.sketches import Latencies, new_sketch, packed, spread

_MAX_AGES = 64
"""Ages in a report: their ninety-ninth hundredth is still one of them."""


@dataclass(slots=True)
class Tally:
    """Count, sum and sum of squares of whole numbers (µs or ns).

    Python's whole numbers do not round, so this needs no Welford: mean and spread are exact until
    they are taken, also for weighted values and over any number of events.
    """

    n: int = 0
    total: int = 0
    squares: int = 0

    def add(self, value: int, weight: int = 1) -> None:
        self.n += weight
        self.total += weight * value
        self.squares += weight * value * value

    def take(self, per_ms: int) -> Moments | None:
        """The interval's moments in ms, then start anew; None when nothing was seen."""
        n, total, squares = self.n, self.total, self.squares
        self.n = self.total = self.squares = 0
        if not n:
            return None
        return Moments(n, total / (n * per_ms), (n * squares - total * total) / (n * per_ms * per_ms))


@dataclass(slots=True)
class Held:
    """Items that were read and for which nothing has been written yet."""

    _read: Tally = field(default_factory=Tally)

    def read(self, at: int, items: int) -> None:
        self._read.add(at, items)

    def written(self, at: int, into: Tally) -> None:
        """Add the time since its reading for each item held: Σ(at − t) and Σ(at − t)², without the single t."""
        n, total, squares = self._read.n, self._read.total, self._read.squares
        if n:
            into.n += n
            into.total += n * at - total
            into.squares += n * at * at - 2 * at * total + squares
            self._read = Tally()


@dataclass(slots=True)
class Ages:
    """How old sampled records were: a fixed share of them, so that parts of several subtasks can be merged.

    A buffer's tag stands for all of its records that are sampled. If an interval has none, one that is not
    sampled counts.
    """

    share: float = 1.0
    _credit: float = 0.0
    _spare_us: int | None = None
    _tally: Tally = field(default_factory=Tally)
    _sketch: req_floats_sketch = field(default_factory=new_sketch)

    def due(self, records: int) -> int:
        """How many of so many records are sampled."""
        self._credit += records * self.share
        whole = int(self._credit)
        self._credit -= whole
        return whole

    @property
    def unknown(self) -> bool:
        """Whether no age at all is known of this interval."""
        return self._spare_us is None and not self._tally.n

    def add(self, age_us: int, records: int) -> None:
        """Count an age for so many records; for none, keep it in case no other comes."""
        if not records:
            self._spare_us = age_us
            return
        self._tally.add(age_us, records)
        age_ms = age_us / 1000
        self._sketch.update(np.full(records, age_ms, np.float32) if records > 1 else age_ms)

    def take(self) -> tuple[Latencies | None, tuple[float, ...]]:
        """The interval's latencies, and some of them as plain values; then start anew."""
        if self._spare_us is not None and not self._tally.n:
            self.add(self._spare_us, 1)
        moments, sketch, self._spare_us = self._tally.take(1000), self._sketch, None
        if moments is None:
            return None, ()
        self._sketch = new_sketch()
        return Latencies(moments, packed(sketch)), spread(sketch, _MAX_AGES)
