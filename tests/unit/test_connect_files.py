"""A growing directory: finished files once, unfinished ones never."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.connect.files import Files, FilesReader, files, partition_of
from headrace.errors import ConfigError, DataError, SchemaError

SCHEMA = {"n": "int64"}
SECOND_US = 1_000_000


def put(directory: Path, name: str, *numbers: int, at_s: int = 0) -> Path:
    path = directory / name
    path.write_text("".join(f'{{"n": {n}}}\n' for n in numbers))
    os.utime(path, (at_s, at_s))
    return path


def open_one(source: Files, offset: Any = None, partition: int = 0, of: int = 1) -> FilesReader:
    offset = json.loads(json.dumps(offset, default=sorted))
    return source.open(partition, of, offset, source.schema(), Path("/nonexistent"))


def drain(reader: FilesReader, now_us: int, max_rows: int = 100) -> list[int]:
    seen: list[int] = []
    while (poll := reader.poll(max_rows, now_us)) is not None:
        seen += poll.records.column("n").to_pylist()
    return seen


def test_files_are_read_oldest_first_as_they_arrive(tmp_path: Path) -> None:
    put(tmp_path, "b.jsonl", 1, 2, at_s=10)
    put(tmp_path, "a.jsonl", 3, at_s=20)
    for name in ("c.jsonl.tmp", "d.part", ".hidden.jsonl", "_draft.jsonl", "other.csv"):
        put(tmp_path, name, 99)
    (tmp_path / "sub.jsonl").mkdir()
    reader = open_one(files(tmp_path, pattern="*.jsonl*", schema=SCHEMA))
    assert drain(reader, SECOND_US) == [1, 2, 3]
    (tmp_path / "c.jsonl.tmp").rename(tmp_path / "c.jsonl")
    assert drain(reader, SECOND_US + 100_000) == [], "listed at most every 0.2 s"
    assert reader.next_due_us() == SECOND_US + 200_000
    assert drain(reader, 2 * SECOND_US) == [99]
    assert not reader.exhausted
    reader.close()


@pytest.mark.parametrize("max_rows", [1, 2, 5])
def test_a_restart_after_any_poll_repeats_nothing(tmp_path: Path, max_rows: int) -> None:
    for at in range(4):
        put(tmp_path, f"{at}.jsonl", *range(at * 5, at * 5 + 5), at_s=at)
    source = files(tmp_path, schema=SCHEMA)
    reader, seen, now_us = open_one(source), [], SECOND_US
    for _ in range(25):
        now_us += SECOND_US
        poll = reader.poll(max_rows, now_us)
        seen += poll.records.column("n").to_pylist() if poll else []
        offset = reader.offset()
        reader.close()
        reader = open_one(source, offset)
    reader.close()
    assert seen == list(range(20))


def test_done_names_are_forgotten_with_their_files(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", 1)
    put(tmp_path, "b.jsonl", 2)
    reader = open_one(files(tmp_path, schema=SCHEMA))
    drain(reader, SECOND_US)
    assert reader.offset() == {"done": {"a.jsonl", "b.jsonl"}, "current": None, "pos": {}}
    path.unlink()
    drain(reader, 2 * SECOND_US)
    assert reader.offset()["done"] == {"b.jsonl"}
    put(tmp_path, "a.jsonl", 3)
    assert drain(reader, 3 * SECOND_US) == [3]
    reader.close()


def test_partitions_share_the_files(tmp_path: Path) -> None:
    for at in range(20):
        put(tmp_path, f"{at}.jsonl", at)
    source = files(tmp_path, partitions=3, until_empty=True)
    assert source.partitions(8) == 3 and source.bounded
    shares: list[list[int]] = []
    for partition in range(3):
        reader = open_one(source, None, partition, 3)
        shares.append(drain(reader, SECOND_US))
        assert drain(reader, 2 * SECOND_US) == [] and reader.exhausted
        reader.close()
    assert sorted(n for share in shares for n in share) == list(range(20)) and all(shares)
    assert partition_of("tweets.jsonl", 1000) == 616, "the same in every process and version"


def test_what_cannot_be_read_is_a_bad_record(tmp_path: Path) -> None:
    put(tmp_path, "README", 1, at_s=1)
    (tmp_path / "twice.csv").write_text("n,n\n1,2\n")
    put(tmp_path, "good.jsonl", 7, at_s=3)
    reader = open_one(files(tmp_path, schema=SCHEMA))
    reasons, rows = [], []
    while poll := reader.poll(10, SECOND_US):
        reasons += [one.reason for one in poll.bad]
        rows += poll.records.column("n").to_pylist()
    reader.close()
    assert rows == [7] and len(reasons) == 2
    assert any("unknown format" in reason for reason in reasons) and any("named twice" in r for r in reasons)


def test_what_cannot_work_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="declare it"):
        files(tmp_path).schema()
    with pytest.raises(ConfigError, match="no such directory"):
        files(tmp_path / "none").schema()
    path = put(tmp_path, "a.jsonl", 1, 2)
    source = files(tmp_path)
    assert source.sample(1).to_pylist() == [{"n": 1}] and source.live and not source.bounded
    reader = open_one(source)
    reader.poll(1, SECOND_US)
    offset = reader.offset()
    reader.close()
    path.unlink()
    with pytest.raises(DataError, match="in the middle"):
        open_one(files(tmp_path, schema=SCHEMA), offset)
