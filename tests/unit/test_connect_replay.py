"""Replay: exact offsets, pacing, files over partitions, schemas."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.connect import replay as replay_module
from headrace.connect.reading import lineblocks as blocks
from headrace.connect.reading import rowgroups
from headrace.connect.replay import Replay, replay
from headrace.errors import ConfigError, CorruptionError, SchemaError, StateError

START_US = 1_700_000_000_000_000
SCHEMA = {"n": "int64", "s": "string"}

JSON_LINES = [b'{"n": %d, "s": "a"}', b'{"n": %d}', b' {"n": %d}', b'{"n": %d, "s": 5}', b"null %d", b"", b'{"n": %d']
CSV_LINES = [b"%d,a", b'%d,"b"', b"%d", b'%d,"c', b"x%d,d", b"", b"%d,\xff"]


def drain(source: Replay, polls: list[tuple[int, bool]], files: int) -> tuple[list[Any], list[str]]:
    """Poll with the given sizes, restarting from the offset (through JSON) where told; then to the end."""
    rows: list[Any] = []
    bad: list[str] = []
    for partition in range(files):
        reader = source.open(partition, files, None, source.schema(), Path("/nonexistent"))
        script = iter(polls)
        while not reader.exhausted:
            max_rows, restart = next(script, (1000, False))
            poll = reader.poll(max_rows, START_US)
            if poll:
                assert poll.records.num_rows <= max_rows
                rows += poll.records.column("n").to_pylist()
                bad += [one.text for one in poll.bad]
            if restart:
                offset = json.loads(json.dumps(reader.offset()))
                reader.close()
                reader = source.open(partition, files, offset, source.schema(), Path("/nonexistent"))
        reader.close()
    return rows, bad


@settings(max_examples=80, deadline=None)
@given(
    format=st.sampled_from(["jsonl", "csv", "csv without header"]),
    kinds=st.lists(st.integers(0, 6), max_size=60),
    block_bytes=st.integers(1, 300),
    polls=st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=40),
    cut_last=st.booleans(),
)
@example(format="jsonl", kinds=[0, 4, 0, 0], block_bytes=300, polls=[(1, True)], cut_last=False)
@example(format="csv", kinds=[0, 2, 0, 0], block_bytes=300, polls=[(1, True)], cut_last=False)
def test_every_record_once_whatever_blocks_polls_and_restarts(
    format: str, kinds: list[int], block_bytes: int, polls: Any, cut_last: bool
) -> None:
    pool = JSON_LINES if format == "jsonl" else CSV_LINES
    lines = [pool[kind].replace(b"%d", b"%d" % n) for n, kind in enumerate(kinds)]
    sound = [n for n, kind in enumerate(kinds) if kind < (3 if format == "jsonl" else 2)]
    expected_bad = [line for n, line in enumerate(lines) if line and n not in sound]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, f"in.{format.partition(' ')[0]}")
        path.write_bytes((b"n,s\n" if format == "csv" else b"") + b"\n".join(lines) + (b"" if cut_last else b"\n"))
        with mock.patch.object(replay_module, "BLOCK_BYTES", block_bytes):
            rows, bad = drain(replay(path, schema=SCHEMA, header=not format.endswith("header")), polls, 1)
    assert rows == sound
    assert bad == [line.strip().decode("utf-8", "replace") for line in expected_bad]


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    group=st.integers(1, 12),
    polls=st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=30),
    batch=st.integers(1, 9),
)
def test_parquet_rows_once(sizes: list[int], group: int, polls: Any, batch: int) -> None:
    with tempfile.TemporaryDirectory() as directory, mock.patch.object(rowgroups, "_READ_ROWS", batch):
        n = 0
        for at, size in enumerate(sizes):
            table = pa.table({"n": pa.array(range(n, n + size), pa.int64())})
            pq.write_table(table, Path(directory, f"{at}.parquet"), row_group_size=group)
            n += size
        rows, bad = drain(replay(directory), polls, 1)
    assert rows == list(range(n)) and not bad


@settings(max_examples=40, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["sound", "bad"]), max_size=30),
    group=st.integers(1, 12),
    polls=st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=30),
    batch=st.integers(1, 9),
)
@example(kinds=["sound", "bad", "sound", "sound"], group=4, polls=[(1, True)], batch=4)
@example(kinds=["sound", "bad", "sound"], group=3, polls=[(1, False), (1, True)], batch=1)
@example(kinds=["bad", "bad", "sound"], group=3, polls=[(1, True), (1, True)], batch=1)
def test_bad_parquet_values_are_told_once(kinds: list[str], group: int, polls: Any, batch: int) -> None:
    values = [str(n) if kind == "sound" else f"no{n}" for n, kind in enumerate(kinds)]
    with tempfile.TemporaryDirectory() as directory, mock.patch.object(rowgroups, "_READ_ROWS", batch):
        pq.write_table(
            pa.table({"n": pa.array(values, pa.string())}), Path(directory, "a.parquet"), row_group_size=group
        )
        rows, bad = drain(replay(directory, schema={"n": "int64"}), polls, 1)
    assert rows == [n for n, kind in enumerate(kinds) if kind == "sound"]
    assert bad == [str({"n": f"no{n}"}) for n, kind in enumerate(kinds) if kind == "bad"]


def test_a_file_that_is_no_parquet_is_told_once_also_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 broken")
    pq.write_table(pa.table({"n": [7]}), tmp_path / "b.parquet")
    for restarts in ([(1, False)], [(1, True)] * 3):
        rows, bad = drain(replay(tmp_path, schema={"n": "int64"}), restarts, 1)
        assert rows == [7] and [text.rsplit("/", 1)[-1] for text in bad] == ["a.parquet"]


def write_lines(path: Path, numbers: Any) -> Path:
    path.write_text("".join(f'{{"n": {n}, "s": "x"}}\n' for n in numbers))
    return path


def test_files_are_dealt_to_partitions_in_sorted_order(tmp_path: Path) -> None:
    for at in range(5):
        write_lines(tmp_path / f"{at}.jsonl", range(at * 10, at * 10 + 3))
    (tmp_path / "_ignored.jsonl").write_text("junk")
    source = replay(tmp_path)
    assert (source.partitions(2), source.partitions(8)) == (2, 5)
    assert replay(tmp_path, partitions=3).partitions(8) == 3
    rows, _ = drain(source, [], 2)
    assert rows == [0, 1, 2, 20, 21, 22, 40, 41, 42, 10, 11, 12, 30, 31, 32]
    rows, _ = drain(replay(f"{tmp_path}/[12].jsonl"), [], 1)
    assert rows == [10, 11, 12, 20, 21, 22]


def test_rate_is_an_open_loop_clock_over_all_partitions(tmp_path: Path) -> None:
    for at in range(2):
        write_lines(tmp_path / f"{at}.jsonl", range(100))
    source = replay(tmp_path, rate="1000/s")
    reader = source.open(1, 2, None, source.schema(), tmp_path)
    assert reader.poll(100, START_US) is None
    assert reader.next_due_us() == START_US + 1000
    poll = reader.poll(100, START_US + 5500)
    assert poll is not None and poll.records.num_rows == 3 and poll.due_us == START_US + 1000
    resumed = source.open(1, 2, reader.offset(), source.schema(), tmp_path)
    poll = resumed.poll(100, START_US + 9000)
    assert poll is not None and poll.records.column("n").to_pylist() == [3, 4] and poll.due_us == START_US + 7000
    reader.close()
    resumed.close()


@pytest.mark.parametrize("form", ["micros", "seconds", "text", "timestamp"])
def test_recorded_time_sets_the_pace(tmp_path: Path, form: str) -> None:
    seconds = [100, 101, 100.5, None, 103]
    table = pa.table({"n": range(5), "at": pa.array([s and int(s * 1e6) for s in seconds], pa.timestamp("us", "UTC"))})
    column = {
        "micros": pa.array([s and int(s * 1e6) for s in seconds], pa.int64()),
        "seconds": pa.array(seconds, pa.float64()),
        "text": pa.array([s and f"1970-01-01T00:01:{s - 60:04.1f}Z" for s in seconds]),
        "timestamp": table["at"],
    }[form]
    pq.write_table(table.set_column(1, "at", column), tmp_path / "in.parquet")
    source = replay(tmp_path / "in.parquet", speed=2.0, time="at")
    reader = source.open(0, 1, None, source.schema(), tmp_path)
    seen = []
    for at_ms in (0, 400, 500, 501, 1400, 1500):
        poll = reader.poll(100, START_US + 1000 * at_ms)
        if poll:
            seen.append((at_ms, poll.records.column("n").to_pylist(), (poll.due_us or 0) - START_US))
        offset = reader.offset()
        reader.close()
        reader = source.open(0, 1, offset, source.schema(), tmp_path)
    reader.close()
    assert seen == [(0, [0], 0), (500, [1, 2, 3], 500_000), (1500, [4], 1_500_000)]


def test_schema_is_inferred_from_the_first_records(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    rows: list[dict[str, Any]] = [{"i": n, "f": n, "s": "x", "b": True, "l": [], "d": {"q": None}} for n in range(99)]
    path.write_text("\n".join(json.dumps(row) for row in [*rows, {"f": 0.5, "nothing": None, "i": "odd"}]) + "\nbad\n")
    types = dict(zip(replay(path).schema().names, map(str, replay(path).schema().types)))
    assert types == {
        "i": "int64", "f": "double", "s": "string", "b": "bool", "l": "list<item: string>",
        "d": "struct<q: string>", "nothing": "string",
    }  # fmt: skip
    assert replay(path).sample(3).column("i").to_pylist() == [0, 1, 2]
    path = tmp_path / "in.csv"
    path.write_text("i,f,s,b,none,zip\n1,1,a,true,,007\n2,2.5,b,False,,1_0\n,NaN,3,,,+5\n")
    types = dict(zip(replay(path).schema().names, map(str, replay(path).schema().types)))
    assert types == {"i": "int64", "f": "double", "s": "string", "b": "bool", "none": "string", "zip": "string"}


def test_what_cannot_work_is_said_clearly(tmp_path: Path) -> None:
    missing = tmp_path / "missing.jsonl"
    with pytest.raises(ConfigError, match=r"no such file: .*missing\.jsonl"):
        replay(missing).schema()
    with pytest.raises(ConfigError, match="no files in directory"):
        replay(tmp_path).partitions(2)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(SchemaError, match="declare it"):
        replay(empty).schema()
    assert drain(replay(empty, schema=SCHEMA), [], 1) == ([], [])
    odd = write_lines(tmp_path / "odd.data", [1])
    with pytest.raises(ConfigError, match="cannot tell the format"):
        replay(odd).schema()
    headless = tmp_path / "headless.csv"
    headless.write_text("1,a\n2,b\n")
    with pytest.raises(SchemaError, match="first line must name columns.*header=False"):
        drain(replay(headless, schema=SCHEMA), [], 1)
    for options in ({"speed": 1.0}, {"time": "n"}, {"speed": 0, "time": "n"}, {"format": "xml"}, {"partitions": 0}):
        with pytest.raises(ConfigError):
            replay(odd, **options)
    with pytest.raises(SchemaError, match="is not an Arrow type such as"):
        replay(odd, schema={"n": "number"})
    with pytest.raises(SchemaError, match="jsonl"):
        drain(replay(odd, format="jsonl", schema={"n": pa.duration("s")}), [], 1)
    with pytest.raises(SchemaError, match="timestamp"):
        drain(replay(odd, format="jsonl", schema={"n": "date32"}), [], 1)


def test_changed_files_are_noticed(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "b.jsonl", range(3))
    source = replay(tmp_path)
    reader = source.open(0, 1, None, source.schema(), tmp_path)
    reader.poll(10, 1)
    offset = reader.offset()
    reader.close()
    write_lines(tmp_path / "a.jsonl", range(3))
    with pytest.raises(StateError, match=r"stopped in b\.jsonl"):
        source.open(0, 1, offset, source.schema(), tmp_path)
    (tmp_path / "a.jsonl").unlink()
    os.truncate(path, 5)
    with pytest.raises(CorruptionError, match="it was changed"):
        source.open(0, 1, offset, pa.schema(list(SCHEMA.items())), tmp_path)


def test_descriptions_travel_to_workers(tmp_path: Path) -> None:
    source = replay(write_lines(tmp_path / "in.jsonl", [1]), rate="5/s", schema=SCHEMA)
    assert pickle.loads(pickle.dumps(source)) == source
    assert source.bounded and not source.live and "5/s" in source.describe()


def test_blocks_end_at_lines(tmp_path: Path) -> None:
    text = b"one\ntwo\nthree"
    cutter = blocks.BlockCutter(lambda pos, size: text[pos : pos + size], 0, block_bytes=6)
    assert [block.data for block in iter(cutter.next, None)] == [b"one\n", b"two\n", b"three"]
    growing = blocks.BlockCutter(lambda pos, size: text[pos : pos + size], 0, block_bytes=6, complete=False)
    assert [block.data for block in iter(growing.next, None)] == [b"one\n", b"two\n"]
