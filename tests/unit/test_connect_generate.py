"""The generator: numbering, schedule, restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.connect.generate import Generate, GenerateReader, generate
from headrace.connect.pace import Curve, as_pace
from headrace.errors import ConfigError, SchemaError, UnitError
from headrace.testing import run_local

START_US = 1_700_000_000_000_000
NOWHERE = Path("/nonexistent")


def count(n: Any) -> dict[str, Any]:
    return {"n": n}


def open_one(source: Generate, partition: int = 0, of: int = 1, offset: Any = None) -> GenerateReader:
    return source.open(partition, of, offset, source.schema(), NOWHERE)


def numbers(reader: GenerateReader, max_rows: int, now_us: int) -> list[int]:
    poll = reader.poll(max_rows, now_us)
    return poll.records.column("n").to_pylist() if poll else []


def test_records_are_due_on_an_open_loop_clock() -> None:
    reader = open_one(generate(count, rate="1000/s"))
    assert numbers(reader, 100, START_US) == [0]
    assert numbers(reader, 100, START_US + 999) == []
    assert reader.next_due_us() == START_US + 1000
    assert numbers(reader, 100, START_US + 3500) == [1, 2, 3]
    late = reader.poll(2, START_US + 1_000_000)
    assert late is not None and late.due_us == START_US + 4000
    assert late.records.column("n").to_pylist() == [4, 5]


def test_a_restart_keeps_the_schedule_and_hands_over_what_is_overdue() -> None:
    source = generate(count, rate="1000/s", due="due_us")
    reader = open_one(source)
    numbers(reader, 100, START_US)
    later = open_one(source, offset=reader.offset()).poll(100, START_US + 5000)
    assert later is not None
    assert later.records.to_pydict() == {"n": [1, 2, 3, 4, 5], "due_us": [START_US + 1000 * n for n in range(1, 6)]}


def test_without_rate_a_poll_is_filled_and_due_is_now() -> None:
    reader = open_one(generate(count, total=5, due="due_us"))
    poll = reader.poll(3, START_US)
    assert poll is not None and poll.due_us is None
    assert poll.records.column("due_us").to_pylist() == [START_US] * 3
    assert numbers(reader, 3, START_US) == [3, 4]
    assert reader.exhausted and reader.poll(3, START_US) is None


@settings(max_examples=60, deadline=None)
@given(
    of=st.integers(1, 4),
    total=st.integers(1, 200),
    polls=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30_000), st.booleans()), max_size=60),
    rate=st.sampled_from([None, "1000/s", 333.3, [("10 ms", "2000/s"), ("5 ms", "0/s"), ("3 ms", "100/s")]]),
)
def test_partitions_cover_all_numbers_once_whatever_the_polls(of: int, total: int, polls: Any, rate: Any) -> None:
    source = generate(count, rate=rate, total=total, due="due_us")
    seen: list[int] = []
    for partition in range(of):
        reader, now_us = open_one(source, partition, of), START_US
        for max_rows, step_us, restart in [*polls, (1, 0, False), (total, 10**12, False)]:
            now_us += step_us
            poll = reader.poll(max_rows, now_us)
            if poll:
                due_us = poll.records.column("due_us").to_pylist()
                assert poll.records.num_rows <= max_rows and max(due_us) <= now_us and due_us == sorted(due_us)
                seen += poll.records.column("n").to_pylist()
            if restart:
                reader = open_one(source, partition, of, reader.offset())
        assert reader.exhausted
    assert sorted(seen) == list(range(total))


def test_steps_repeat_and_pauses_are_pauses() -> None:
    pace = as_pace([("1 s", "4/s"), ("1 s", "0/s")])
    assert pace.due_us(np.arange(9)).tolist() == [0, 250_000, 500_000, 750_000] + [
        2_000_000 + 250_000 * n for n in range(4)
    ] + [4_000_000]
    assert [pace.count_due(us) for us in (0, 999_999, 1_500_000, 2_000_000)] == [1, 4, 4, 5]


@pytest.mark.parametrize("rate", ["1000/s", 700.7, [(0.5, "10/s"), (0.1, "3000/s")], lambda s: 100 + 50 * s])
def test_count_and_due_times_agree(rate: Any) -> None:
    pace = as_pace(rate)
    due_us = pace.due_us(np.arange(2000))
    assert np.all(np.diff(due_us) >= 0)
    for n in (0, 1, 7, 1234, 1999):
        assert pace.count_due(int(due_us[n])) >= n + 1
        assert pace.count_due(int(due_us[n]) - 1) <= n


def test_a_rate_function_may_stop_for_good() -> None:
    pace = Curve(lambda second: 10 if second < 1 else 0)
    assert pace.count_due(500_000) == 6
    assert pace.due_us(np.array([1000]))[0] > 1_000_000


def test_what_make_returns_is_checked_against_the_schema() -> None:
    schema = {"n": "int64", "name": "string"}
    fine = generate(lambda n: {"name": [str(i) for i in n], "n": n.astype(np.int32)}, total=2, schema=schema)
    assert fine.sample(10).to_pylist() == [{"n": 0, "name": "0"}, {"n": 1, "name": "1"}]
    batches = generate(lambda n: pa.record_batch({"n": n, "x": np.where(n == 0, np.nan, 1.0)}), total=2)
    assert batches.sample(1).column("x").null_count == 0
    for make, said in (
        (lambda n: {"n": n}, "no column 'name'"),
        (lambda n: {"n": n[:1], "name": ["a"] * len(n)}, "'n' has 1 values"),
        (lambda n: {"n": ["x"] * len(n), "name": ["a"] * len(n)}, "'n' is not int64"),
        (lambda n: [n], "must return columns"),
    ):
        with pytest.raises(SchemaError, match=said):
            generate(make, schema=schema).sample(2)


def test_wrong_settings_are_refused_at_once() -> None:
    for options in ({"total": 0}, {"partitions": 0}, {"rate": []}, {"rate": [(0, "5/s")]}, {"rate": [(1, "0/s")]}):
        with pytest.raises(ConfigError):
            generate(count, **options)
    with pytest.raises(UnitError):
        generate(count, rate="fast")
    with pytest.raises(ConfigError, match="another name"):
        generate(count, due="n").schema()


def test_due_times_that_no_step_reads_are_left_out() -> None:
    """A plan drops columns that nobody reads, also the one that the source adds."""
    job = hr.Job("job")
    items = job.source("items", hr.generate(lambda n: {"k": n % 3}, total=30, due="due_us"))
    items.key_by("k").reduce(name="count", n=hr.count()).sink("out", hr.rows())
    rows = run_local(job, mode="batch")["out"]
    assert sorted((row["k"], row["n"]) for row in rows) == [(0, 10), (1, 10), (2, 10)]
