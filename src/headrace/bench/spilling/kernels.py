"""How fast one subtask's ``KeyIndex`` absorbs tuples: ``python -m headrace.bench.spilling.kernels``."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

from headrace.state.index.keyindex import KeyIndex
from headrace.state.index.policies import FREQUENT, INC, ResidencyPolicy

_KEYS, _BATCH_ROWS, _BATCHES, _SKEW = 1_000_000, 65_536, 64, 1.1


def absorb_rates(seconds: float) -> dict[str, float]:
    """Tuples per second of ``admit`` and a count per row, on Zipf 1.1 over a million keys.

    Each case runs for ``seconds`` after one pass over its 4 M records, so that it starts with a full table.
    """
    numbers = _zipf_batches()
    names = pa.array([f"user{i:06d}" for i in range(_KEYS)])
    return {
        "int64_inc_per_s": _rate(numbers, seconds, INC, None),
        "int64_frequent_per_s": _rate(numbers, seconds, FREQUENT, _KEYS // 10),
        "text_inc_per_s": _rate([names.take(batch) for batch in numbers], seconds, INC, None),
    }


def call_us(batch_rows: int, seconds: float) -> float:
    """Microseconds of one ``admit`` of a small batch of known keys."""
    batch = pa.array(np.arange(batch_rows))
    index = KeyIndex([pa.field("key", batch.type)])
    calls, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        for _ in range(100):
            index.admit([batch], 0)
        calls += 100
    return (time.perf_counter() - began) / calls * 1e6


def _zipf_batches() -> list[pa.Array]:
    rng = np.random.default_rng(1)
    weights = np.arange(1, _KEYS + 1) ** -_SKEW
    ranks = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(_BATCHES * _BATCH_ROWS))
    keys = rng.permutation(_KEYS)[np.minimum(ranks, _KEYS - 1)]
    return [pa.array(part) for part in np.split(keys, _BATCHES)]


def _rate(batches: list[pa.Array], seconds: float, policy: ResidencyPolicy, slots: int | None) -> float:
    index = KeyIndex([pa.field("key", batches[0].type)], slots=slots, policy=policy)
    counts = np.zeros(2 * _KEYS, np.int64)
    tuples, began = 0, 0.0
    while not tuples or time.perf_counter() < began + seconds:
        if began:
            tuples += len(batches) * _BATCH_ROWS
        for batch in batches:
            admission = index.admit([batch], 0)
            rows = admission.rows
            np.add.at(counts, rows[rows >= 0] if policy.evicts else rows, 1)
            counts[admission.evicted] = 0
            index.release(admission.evicted)
        began = began or time.perf_counter()
    return tuples / (time.perf_counter() - began)


if __name__ == "__main__":
    for name, rate in absorb_rates(3.0).items():
        print(f"{name:24}{rate:14,.0f}")
    for rows in (2, 50):
        print(f"{'admit_' + str(rows) + '_rows_us':24}{call_us(rows, 1.0):14.1f}")
