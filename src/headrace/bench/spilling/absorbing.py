"""How fast one subtask absorbs records into a table of count and sum that has room for all keys."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from headrace.bench.spilling.engineruns import table_of
from headrace.bench.spilling.workloads import trigrams, zipf_keys
from headrace.state.index.policies import INC

_BATCH_ROWS, _RECORDS_PER_KEY, _SKEW = 65_536, 4, 1.1


def absorb_rates(progress: Callable[[str], None], keys: int, seconds: float) -> dict[str, int]:
    """Records per second of ``GroupTable.absorb`` on Zipf 1.1, keys by number and by text of three words."""
    numbers = zipf_keys(_RECORDS_PER_KEY * keys, keys, _SKEW, seed=4)
    rates = {}
    for name, column in (("int64", pa.array(numbers)), ("text", trigrams(keys).take(pa.array(numbers)))):
        rates[f"absorb_{name}_per_s"] = round(absorb_rate(column, seconds))
        progress(f"absorb, {name} keys: {rates[f'absorb_{name}_per_s']:,} records/s")
    return rates


def absorb_rate(keys: pa.Array, seconds: float) -> float:
    """Timed after one pass over all batches, so that most keys are known, as in a job that has run for a while."""
    records = pa.record_batch([keys, pa.array(np.arange(len(keys)))], ["k", "v"])
    batches = [records.slice(start, _BATCH_ROWS) for start in range(0, len(keys), _BATCH_ROWS)]
    table, times = table_of(records.schema)(None, INC), np.zeros(_BATCH_ROWS, np.int64)
    passes, began = 0, 0.0
    while passes < 2 or time.perf_counter() < began + seconds:
        for batch in batches:
            table.absorb(batch, [batch.column(0)], 0, times[: batch.num_rows])
        began = began or time.perf_counter()
        passes += 1
    return (passes - 1) * len(keys) / (time.perf_counter() - began)
