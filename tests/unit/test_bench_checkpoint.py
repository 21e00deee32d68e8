"""The checkpoint experiment: phases of its load, the reference that stands still, what is visible, and its checks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.bench.durability.checkpoint import check_updates, new_in_each, paced_figures, wrong_totals
from headrace.bench.durability.standstill import StandingReader, StandingStill, newest_entry
from headrace.bench.durability.stateload import (
    COLUMNS,
    ROW_BYTES,
    CountingNew,
    Signals,
    StateLoad,
    StateReader,
    StateSource,
    running_totals,
    stored_totals,
    updates,
)
from headrace.bench.durability.visible import Onlooker, seen_us
from headrace.bench.measuring.recorder import Recorder
from headrace.testing.local import LocalRun

LOAD = StateLoad(keys=500, rate=1000, paced=300, burst=200)
START_US = 1_000_000


def table_of(load: StateLoad, late_us: int = 5000) -> dict[str, Any]:
    """Results as one update each, shown so long after they were due."""
    seen, due, rows = np.ones(load.keys, int), np.zeros(load.keys, int), []
    for n in range(load.keys, load.total):
        key, due_us = int(load.key(np.array([n]))[0]), int(load.due_us(np.array([n]), START_US)[0])
        seen[key] += 1
        due[key] += due_us
        rows.append((due_us + late_us if due_us else START_US + 10_000_000, key, seen[key], due[key]))
    columns = np.array(rows).T
    return dict(zip(("now_us", *COLUMNS), columns, strict=True))


def reader_of(directory: Path) -> StateReader:
    return StateReader(
        StateSource(LOAD, Signals(directory)), 1, 2, None, StateSource(LOAD, Signals(directory)).schema()
    )


def test_the_state_is_as_large_as_was_asked_for() -> None:
    assert StateLoad.of(10_000_000, 1000, 2.0, 5).keys == 10_000_000 // ROW_BYTES
    keys = LOAD.key(np.arange(LOAD.keys))
    assert len(set(keys.tolist())) == LOAD.keys, "filling gives each key one record"


def test_phases_begin_when_they_are_let_go_and_the_clock_does_not_wait(tmp_path: Path) -> None:
    reader, signals = reader_of(tmp_path), Signals(tmp_path)
    filled = reader.poll(10_000, 0)
    assert filled is not None and filled.records.num_rows == LOAD.keys // 2
    assert reader.poll(10_000, START_US) is None and reader.next_due_us() is None
    signals.pace(START_US)
    assert reader.poll(10_000, START_US - 1) is None
    paced = reader.poll(10_000, START_US + 99_999)
    assert paced is not None and paced.records.num_rows == 50 and paced.due_us == START_US + 1000
    assert reader.next_due_us() == START_US + 101_000
    rest = reader.poll(10_000, START_US + 10_000_000)
    assert rest is not None and rest.records.num_rows == 100 and reader.poll(10_000, START_US + 20_000_000) is None
    signals.burst(START_US + 30_000_000)
    burst = reader.poll(10_000, START_US + 30_000_000)
    assert burst is not None and burst.records.num_rows == 100 and burst.due_us is None
    assert reader.exhausted


def test_a_reader_goes_on_where_its_offset_says(tmp_path: Path) -> None:
    reader = reader_of(tmp_path)
    reader.poll(100, 0)
    again = StateReader(
        StateSource(LOAD, Signals(tmp_path)), 1, 2, reader.offset(), StateSource(LOAD, Signals(tmp_path)).schema()
    )
    first, second = reader.poll(7, 0), again.poll(7, 0)
    assert first is not None and second is not None and first.records.equals(second.records)


def test_whoever_stands_still_waits_for_the_log(tmp_path: Path) -> None:
    log = tmp_path / "headrace" / "log"
    log.mkdir(parents=True)
    (log / "0000000001").touch()
    reader = StandingReader(reader_of(tmp_path), tmp_path)
    assert reader.poll(10, 0) is not None
    reader.offset()
    (log / ".0000000002.host.1.0123456789abcdef.tmp").touch()
    assert reader.poll(10, 0) is None and reader.next_due_us() is None and newest_entry(log) == 1
    (log / "0000000002").touch()
    assert reader.poll(10, 0) is not None


@pytest.mark.parametrize("still", [False, True])
def test_totals_are_right_in_results_and_in_the_last_version(tmp_path: Path, still: bool) -> None:
    signals, state = Signals(tmp_path), tmp_path / "state"
    source: Any = StateSource(LOAD, signals)
    totals = running_totals("totals", StandingStill(source, state) if still else source)
    totals.sink("out", hr.rows())
    start_us = time.time_ns() // 1000 + 200_000
    signals.pace(start_us)
    signals.burst(start_us + 400_000)
    run = LocalRun(totals.job, state, parallelism=2, commit="100 ms")
    run.run(seconds=0.5)
    rows = [row for row in run.rows("out") if row["n"] > 1]
    run.close()
    table = {name: np.array([row.get(name, 0) for row in rows]) for name in ("now_us", *COLUMNS)}
    assert check_updates(LOAD, table, start_us) == {"lost": 0, "duplicated": 0, "wrong": 0}
    stored, stored_bytes = stored_totals(state)
    assert wrong_totals(LOAD, stored, start_us) == 0 and stored_bytes > 0.9 * LOAD.keys * ROW_BYTES
    stored["n"] = stored["n"].copy()
    stored["n"][3] += 1
    assert wrong_totals(LOAD, stored, start_us) == 1


def test_checks_find_what_is_missing_and_what_came_twice() -> None:
    table = table_of(LOAD)
    assert check_updates(LOAD, table, START_US) == {"lost": 0, "duplicated": 0, "wrong": 0}
    twice = {name: np.append(column, column[:1]) for name, column in table.items()}
    assert check_updates(LOAD, twice, START_US)["duplicated"] == 1
    short = {name: column[:-3] for name, column in table.items()}
    assert check_updates(LOAD, short, START_US)["lost"] == 3
    other = {**table, "due_us": table["due_us"] + 1}
    assert check_updates(LOAD, other, START_US)["wrong"] > 0


def test_latency_is_of_what_is_new_in_each_result() -> None:
    table = table_of(LOAD)
    burst_us = START_US + 5_000_000
    figures = paced_figures(LOAD, table, START_US, burst_us, 0)
    assert figures["p50_ms"] == figures["max_ms"] == 5.0 and figures["late_items"] == 0
    new, _, _ = new_in_each(table)
    assert new.tolist() == [1] * (LOAD.paced + LOAD.burst)
    late = {name: column[10:] for name, column in table_of(StateLoad(10_000_000, 1000, 100, 10)).items()}
    few = paced_figures(StateLoad(10_000_000, 1000, 100, 10), late, START_US, burst_us, 0)
    assert few["late_items"] == 10 and few["max_ms"] == 2000.0, "what has not come is as late as is known"


def test_first_results_make_the_state_only(tmp_path: Path) -> None:
    batch = LOAD.batch(np.arange(4), 0).select(["key", "due_us"])
    with_n = batch.append_column("n", pa.array([1, 2, 1, 3]))
    assert updates(with_n).column("n").to_pylist() == [2, 3]
    signals, recorder = Signals(tmp_path), Recorder(tmp_path, COLUMNS)
    for _ in range(2):
        CountingNew(signals, recorder)(with_n)
    assert signals.new_keys == 4 and recorder.read()["n"].tolist() == [2, 3, 2, 3]


def test_lines_are_visible_when_their_newline_is(tmp_path: Path) -> None:
    assert seen_us(np.array([3, 6, 9, 12]), [(100, 6), (200, 10), (300, 12)]).tolist() == [100, 100, 200, 300]
    part = tmp_path / "part-x.jsonl"
    with Onlooker(tmp_path) as onlooker:
        part.write_text('{"key": 1, "n": 2}\n')
        until = time.monotonic() + 5
        while not onlooker.seen and time.monotonic() < until:
            time.sleep(0.01)
        between_us = time.time_ns() // 1000
        with part.open("a") as file:
            file.write('{"key": 2, "n": 3}\n{"key"')
    table = onlooker.table(("key", "n"))
    assert table["key"].tolist() == [1, 2] and table["n"].tolist() == [2, 3]
    assert table["now_us"][0] <= between_us <= table["now_us"][1]
