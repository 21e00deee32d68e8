"""What an engine adds to the memory of its process, as the system counts it, against its bound.

Every engine has a process of its own, as has the same work without state (hashing only):
``python -m headrace.bench.spilling.resident ENGINE ITEMS KEYS MEMORY_BYTES`` prints one line of figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.bench.measuring.peakmemory import forget_peak, own_peak_mb
from headrace.bench.spilling.engineruns import states_of
from headrace.bench.spilling.workloads import I64, all_of_zipf, trigrams
from headrace.errors import RunFailedError

NO_STATE = "none"
_SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
_BATCH_ROWS, _WARM_ROWS = 8192, 1000
_SKEW = 1.0


def resident(engine: str, items: int, keys: int, memory_bytes: int) -> dict[str, Any]:
    """Count trigrams with an engine in a process of its own: seconds, groups, tuples, growth of its memory."""
    command = [sys.executable, "-m", "headrace.bench.spilling.resident", engine, *map(str, (items, keys, memory_bytes))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    if done.returncode:
        raise RunFailedError(f"engine {engine!r} failed in a process of its own:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _measured(engine: str, items: int, keys: int, memory_bytes: int) -> dict[str, Any]:
    """Growth is counted from when the input is there and everything has been used once."""
    texts, numbers = trigrams(keys), all_of_zipf(items, keys, _SKEW, seed=1)
    _run(engine, texts, numbers[:_WARM_ROWS], memory_bytes)
    before_mb, began = forget_peak(), time.perf_counter()
    groups, tuples = _run(engine, texts, numbers, memory_bytes)
    seconds, after_mb = time.perf_counter() - began, own_peak_mb()
    growth_mb = None if before_mb is None or after_mb is None else round(after_mb - before_mb, 2)
    return {"seconds": round(seconds, 3), "groups": groups, "tuples": tuples, "growth_mb": growth_mb}


def _run(engine: str, texts: pa.Array, numbers: I64, memory_bytes: int) -> tuple[int, int]:
    """Groups found, and tuples in them; results are dropped as they come, as a sink would take them away."""
    groups = tuples = 0
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as spill:
        states = states_of("inc" if engine == NO_STATE else engine, _SCHEMA, memory_bytes, Path(spill))
        for batch in _batches(texts, numbers):
            if engine == NO_STATE:
                tuples += len(states.table.index.key_hashes([batch.column(0)]))
            else:
                states.absorb(batch, [batch.column(0)], 0, np.zeros(batch.num_rows, np.int64))
        for table, rows in states.settled([0]):
            groups += len(rows)
            tuples += int(table.results(rows)[0].to_numpy().sum())
        states.close()
    return groups, tuples


def _batches(texts: pa.Array, numbers: I64) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(numbers), _BATCH_ROWS):
        part = pa.array(numbers[start : start + _BATCH_ROWS])
        yield pa.RecordBatch.from_arrays([texts.take(part), part], schema=_SCHEMA)


if __name__ == "__main__":
    print(json.dumps(_measured(sys.argv[1], *map(int, sys.argv[2:]))), flush=True)
