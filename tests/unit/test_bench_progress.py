"""How reduce progresses while maps run, on the engines themselves (SCALLA 2.2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from thesis.progress import Part, Progress, largest_gap, map_progress, reduce_progress

from headrace.bench.spilling.engineruns import states_of
from headrace.bench.spilling.sortmerge import SortMerge
from headrace.bench.spilling.workloads import zipf_keys

PAIRS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
MAPS, ROWS, USERS, FREQUENT = 40, 1000, 800, 50
MAPPED = zipf_keys(MAPS * ROWS, USERS, 1.1, seed=3).reshape(MAPS, ROWS)
COUNTS = np.bincount(MAPPED.ravel(), minlength=USERS)
SLOTS = USERS // 4


def while_maps_run(engine: str, directory: Path, *, frequent: bool) -> Iterator[Progress]:
    """After each map task: what an engine with slots for a quarter of the users has applied, and could put out.

    With ``frequent`` a user is put out when the resident count reaches 50; else no result is due before the end.
    """
    states = states_of(engine, PAIRS, 2_000_000, directory, **({} if engine == "mr" else {"slots": SLOTS}))
    shown: set[int] = set()
    results = int((COUNTS >= FREQUENT).sum()) if frequent else int((COUNTS > 0).sum())
    applied = 0
    for task, users in enumerate(MAPPED, 1):
        column = pa.array(users)
        batch = pa.record_batch([column, column], schema=PAIRS)
        rows = states.absorb(batch, [column], 0, np.zeros(ROWS, np.int64))
        # Tuples on disk have waited for their function to be applied since they came.
        applied += int((rows >= 0).sum())
        touched = np.unique(rows[rows >= 0])
        if frequent and len(touched):
            reached = touched[states.table.results(touched)[0].to_numpy() >= FREQUENT]
            shown.update(states.table.key_columns(reached)[0].to_pylist())
        yield moment(task, applied, len(shown), results)
    states.close()


def moment(task: int, applied: int, shown: int, results: int) -> Progress:
    mapped, total = map_progress(Part(task, MAPS)), MAPS * ROWS
    reduced = reduce_progress(Part(task * ROWS, total), Part(applied, total), Part(shown, results))
    assert mapped is not None and reduced is not None
    return Progress(mapped, reduced)


# scalla fact 21: frequent users appear before the end, and INC and DINC stay within 20 points of map progress
@pytest.mark.parametrize("engine", ["inc", "dinc"])
def test_incremental_engines_keep_up_with_maps(tmp_path: Path, engine: str) -> None:
    moments = list(while_maps_run(engine, tmp_path, frequent=True))
    gap = largest_gap(moments)
    assert gap is not None and gap <= 0.2
    half = moments[MAPS // 2 - 1]
    assert half.reduce > 1 / 3, "more than shuffled: applied, and put out"
    assert any(m.reduce > 2 / 3 and m.map < 1 for m in moments), "early output came before the maps ended"


# scalla fact 21: MR-hash applies nothing before the maps have ended
def test_mr_hash_stays_at_a_third(tmp_path: Path) -> None:
    moments = list(while_maps_run("mr", tmp_path, frequent=True))
    assert all(m.reduce <= 1 / 3 + 1e-12 for m in moments)
    assert moments[-1].reduce == pytest.approx(1 / 3)


# scalla fact 21: nor does sort-merge: the only way to its groups is groups(), which ends its input, so nothing is
# applied or put out before; sorting, combining and merging buffers earns nothing
def test_sort_merge_stays_at_a_third(tmp_path: Path) -> None:
    sorter = SortMerge(tmp_path, memory_bytes=200_000, merge_factor=4)
    moments = []
    for task, users in enumerate(MAPPED, 1):
        sorter.add(users, users)
        moments.append(moment(task, 0, 0, int((COUNTS >= FREQUENT).sum())))
    assert max(m.reduce for m in moments) == pytest.approx(1 / 3)
    assert sorter.io.written_bytes > 0, "it has merged and written all the while"
    assert sum(len(part) for part in sorter.groups()) == int((COUNTS > 0).sum())


# scalla fact 22: user count without early output never exceeds two thirds before maps end
@pytest.mark.parametrize("engine", ["inc", "dinc", "dinc-space-saving", "dinc-marker"])
def test_user_count_stays_below_two_thirds(tmp_path: Path, engine: str) -> None:
    moments = list(while_maps_run(engine, tmp_path, frequent=False))
    assert all(m.reduce <= 2 / 3 + 1e-12 for m in moments)
    assert moments[-1].reduce > 1 / 2, "most tuples were applied on arrival"
