"""``bench hash-engines``: time, spill and memory of every engine by skew, order of keys and memory (SCALLA 4).

What one subtask does, without Spark: external sort-merge in the same memory, with a combiner and without, is the
baseline for the cost, numpy the reference for the answers; of three rounds the middle one counts. Then whole jobs on
Spark with ten times as many states as memory (``bench.spilling.larger_state``), and whether all is in the order in which the
thesis has it (``bench.spilling.orderings``).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bench.measuring.figures import TreeWatch
from headrace.bench.spilling.engineruns import EVERY_ENGINE, grouped, memory_of, table_of
from headrace.bench.spilling.expiring import expiring_sessions
from headrace.bench.spilling.larger_state import against_stock, resident_memory
from headrace.bench.spilling.orderings import failed_orders, user_count
from headrace.bench.spilling.workloads import I64, trigrams, vocabulary_keys, zipf_keys
from headrace.graph.memory import MIN_MR_BYTES
from headrace.state.index.policies import INC
from headrace.state.warming import warm

SKEWS = (0.0, 0.8, 1.1, 1.5)
SHARES = (0.02, 0.13, 1.1)
"""Of the states, what memory holds: the thesis's 100 MB and 600 MB for trigrams, and enough for all."""
_TEXT_SKEW = 1.0
_ITEMS_PER_KEY = 5
_BATCH_ROWS = 65_536
_MAX_ABSORB_KEYS, _RECORDS_PER_KEY, _ABSORB_SKEW = 1_000_000, 4, 1.1
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Workload:
    """Tuples by number of their key, or by its text; each has its place as value."""

    name: str
    numbers: I64
    texts: pa.Array | None = None

    def batches(self) -> list[pa.RecordBatch]:
        keys = pa.array(self.numbers)
        column = keys if self.texts is None else self.texts.take(keys)
        whole = pa.record_batch([column, pa.array(np.arange(len(keys)))], ["k", "v"])
        return [whole.slice(start, _BATCH_ROWS) for start in range(0, len(keys), _BATCH_ROWS)]


@dataclass(frozen=True, slots=True)
class EngineOutcome:
    """What one engine did with one workload; ``memory_share`` of the states fit, were keys first come."""

    workload: str
    memory_share: float
    engine: str
    seconds: float
    tuples_per_s: int
    disk_tuples: int | None
    spill_bytes: int
    peak_bytes: int
    lost: int
    duplicated: int
    wrong: int


def hash_engines(
    items: int,
    progress: Callable[[str], None],
    shares: tuple[float, ...] = SHARES,
    absorb_s: float = 2.0,
    *,
    stock: bool = True,
) -> dict[str, Any]:
    """Every engine on ``items`` tuples of every workload; sessions, rates, memory; jobs on Spark if ``stock``."""
    outcomes = []
    with TreeWatch() as watch:
        warm()
        for workload, share in product(workloads(items), shares):
            # In rounds: otherwise other work on the machine could hit one engine and spare the next.
            rounds = [[measure(workload, engine, share) for engine in EVERY_ENGINE] for _ in range(_ROUNDS)]
            for same in zip(*rounds):
                outcomes.append(sorted(same, key=lambda outcome: outcome.seconds)[_ROUNDS // 2])
                progress(_line(outcomes[-1]))
        parts = expiring_sessions(2 * items, progress)
        parts |= user_count(20 * items, progress, lambda numbers: Workload("users", numbers).batches())
        parts |= absorb_rates(progress, min(10 * items, _MAX_ABSORB_KEYS), absorb_s)
        if stock:
            parts |= resident_memory(30 * items, 10 * items, progress)
            parts |= against_stock(5 * items, items // 2, progress)
    tuples, seconds = items * len(outcomes), sum(outcome.seconds for outcome in outcomes)
    totals = {name: sum(getattr(o, name) for o in outcomes) for name in ("lost", "duplicated", "wrong")}
    for name in totals:
        totals[name] += sum(parts.get(f"{part}_{name}", 0) for part in ("session", "rss", "job"))
    figures = {
        "items": tuples,
        "items_per_s": round(tuples / seconds),
        **totals,
        **watch.figures(),
        **parts,
        "settings": [asdict(outcome) for outcome in outcomes],
    }
    failed = failed_orders(figures)
    for sentence in failed:
        progress(f"not as it should be: {sentence}")
    return {"orders_failed": len(failed), **figures}


def workloads(items: int) -> Iterator[Workload]:
    """Zipf keys of each skew, and texts in both orders."""
    keys = max(items // _ITEMS_PER_KEY, 100)
    for skew in SKEWS:
        yield Workload(f"zipf {skew}", zipf_keys(items, keys, skew, seed=1))
    texts = trigrams(keys)
    for order in ("mixed", "separate"):
        yield Workload(f"trigrams {order}", vocabulary_keys(items, keys, _TEXT_SKEW, order, seed=2), texts)


def measure(workload: Workload, engine: str, share: float) -> EngineOutcome:
    """Run one engine with memory for a share of the workload's states."""
    batches = workload.batches()
    states = max(int(len(np.unique(workload.numbers)) * share), 1)
    memory_bytes = max(memory_of(batches[0].schema, states), MIN_MR_BYTES)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        began = time.perf_counter()
        made = grouped(engine, batches, memory_bytes, Path(directory))
        seconds = time.perf_counter() - began
    return EngineOutcome(
        workload.name,
        share,
        engine,
        round(seconds, 3),
        round(len(workload.numbers) / seconds),
        made.disk_tuples,
        made.spill_bytes,
        made.peak_bytes,
        *differences(workload, made.groups),
    )


def differences(workload: Workload, groups: list[tuple[pa.Array, I64, I64]]) -> tuple[int, int, int]:
    """Tuples lost, tuples too many, and keys that are missing, repeated, or have another count or sum."""
    numbers = workload.numbers
    expected, keys = np.bincount(numbers), int(numbers.max()) + 1
    totals, counts, sums, times = (np.zeros(keys, np.int64) for _ in range(4))
    np.add.at(totals, numbers, np.arange(len(numbers)))
    for column, count, total in groups:
        found = column if workload.texts is None else pc.index_in(column, workload.texts)
        at = found.to_numpy(zero_copy_only=False)
        for into, what in ((counts, count), (sums, total), (times, 1)):
            np.add.at(into, at, what)
    wrong = (counts != expected) | (sums != totals) | (times != (expected > 0))
    lost, duplicated = np.maximum(expected - counts, 0), np.maximum(counts - expected, 0)
    return int(lost.sum()), int(duplicated.sum()), int(wrong.sum())


def _line(outcome: EngineOutcome) -> str:
    return (
        f"{outcome.workload:18}memory {outcome.memory_share:4.0%}  {outcome.engine:19}{outcome.seconds:7.2f} s"
        f"{outcome.spill_bytes / 1e6:10.1f} MB spilled, {outcome.wrong} wrong"
    )


def absorb_rates(progress: Callable[[str], None], keys: int, seconds: float) -> dict[str, int]:
    """Records per second that one subtask absorbs into a table of count and sum that has room for all keys.

    Keys are Zipf 1.1, by number and by text of three words.
    """
    numbers = zipf_keys(_RECORDS_PER_KEY * keys, keys, _ABSORB_SKEW, seed=4)
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
