"""Latencies of many records in a few bytes: quantiles that can be merged over workers and intervals."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from datasketches import req_floats_sketch

from headrace.measure.moments import Moments

_K = 12
"""Ranks near the top within about 1 % of their distance from it, in at most about 6 kB."""
_SUM_BYTES = 4


def new_sketch() -> req_floats_sketch:
    """An empty REQ sketch (Cormode, Karnin, Liberty, Thaler, Veselý, PODS 2021), exact towards the top.

    It flips coins: two merges of the same parts may differ within the error. Whatever must replay to the
    same decision is therefore made from plain values (``SubtaskReport.ages_ms``), not from sketches.
    """
    return req_floats_sketch(_K, True)


def spread(sketch: req_floats_sketch, maximum: int) -> tuple[float, ...]:
    """Up to ``maximum`` evenly spaced quantiles: the sketch as a sample in which all values count equally."""
    n = min(maximum, sketch.n)
    return tuple(float(v) for v in sketch.get_quantiles((np.arange(n) + 0.5) / n, True)) if n else ()


def packed(sketch: req_floats_sketch) -> bytes:
    """A sketch behind its checksum, as it travels."""
    data: bytes = sketch.serialize()
    return _sum(data) + data


def _sum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_SUM_BYTES, "little")


class Latencies(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Sampled latencies in ms: count, mean and spread exactly, quantiles and extremes by a sketch.

    ``sketch`` is packed; ValueError for bytes that are none, or one of another number of values.
    """

    moments: Moments
    sketch: bytes

    def __post_init__(self) -> None:
        # Bytes that no sketch was packed into must never be opened: the library may then end the process.
        data = self.sketch[_SUM_BYTES:]
        if not data or self.sketch[:_SUM_BYTES] != _sum(data):
            raise ValueError(f"{len(self.sketch)} bytes that are no sketch")
        if (n := self._opened().n) != self.n:
            raise ValueError(f"a sketch of {n} values with the moments of {self.n}")

    @staticmethod
    def of(values_ms: Sequence[float]) -> Latencies:
        """Of at least one value.

        >>> Latencies.of([1.0, 2.0, 9.0]).quantile_ms(0.5)
        2.0
        """
        values = np.asarray(values_ms, np.float64)
        sketch = new_sketch()
        sketch.update(values.astype(np.float32))
        m2 = float(np.square(values - values.mean()).sum())
        return Latencies(Moments(len(values), float(values.mean()), m2), packed(sketch))

    def __add__(self, other: Latencies) -> Latencies:
        return merged((self, other))

    @property
    def n(self) -> int:
        return self.moments.n

    @property
    def mean_ms(self) -> float:
        return self.moments.mean

    @property
    def max_ms(self) -> float:
        return float(self._opened().get_max_value())

    def quantile_ms(self, q: float) -> float:
        return float(self._opened().get_quantile(q, True))

    def _opened(self) -> req_floats_sketch:
        return req_floats_sketch.deserialize(self.sketch[_SUM_BYTES:])


def merged(parts: Iterable[Latencies]) -> Latencies:
    """All parts (at least one) as one."""
    first, *others = parts
    moments, sketch = first.moments, first._opened()
    for part in others:
        moments = moments + part.moments
        sketch.merge(part._opened())
    return Latencies(moments, packed(sketch))
