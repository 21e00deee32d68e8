"""CSV files without a header line: the schema names the columns, and the first line is a record.

Restarts at any position are in ``test_connect_replay``, which reads such files too.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connect.files import files
from headrace.connect.replay import replay
from headrace.connect.source import BadRecord, Reader
from headrace.testing import run_local

SCHEMA = {"n": "int64", "s": "string", "at": "timestamp[us, UTC]", "x": "float64"}


def drain(reader: Reader, max_rows: int = 1000, now_us: int = 1) -> tuple[list[dict[str, Any]], list[BadRecord]]:
    rows: list[dict[str, Any]] = []
    bad: list[BadRecord] = []
    while (poll := reader.poll(max_rows, now_us)) is not None:
        rows += poll.records.to_pylist()
        bad += poll.bad
    return rows, bad


@pytest.mark.parametrize("make", [hr.replay, hr.files])
def test_without_a_schema_nothing_names_the_columns(make: Any, tmp_path: Path) -> None:
    with pytest.raises(
        hr.ConfigError, match="without a header line nothing names the columns; declare all, in the order"
    ):
        make(tmp_path, header=False)
    with pytest.raises(hr.ConfigError, match="header=False is about CSV files, but format is 'jsonl'"):
        make(tmp_path, header=False, format="jsonl", schema={"n": "int64"})


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_the_first_line_is_a_record_and_values_have_their_types(start: bytes, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(start + b'7,"a, b",2024-01-01T00:00:00Z,1\n8,,,2.5\n')
    source = replay(path, header=False, schema=SCHEMA)
    wanted = [
        {"n": 7, "s": "a, b", "at": datetime(2024, 1, 1, tzinfo=UTC), "x": 1.0},
        {"n": 8, "s": None, "at": None, "x": 2.5},
    ]
    assert source.sample(10).to_pylist() == wanted
    assert drain(source.open(0, 1, None, source.schema(), tmp_path)) == (wanted, [])


def test_bad_lines_are_told_the_first_among_them(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"n,s,at,x\n1,a,,\n2,b\n3,c,yesterday,\n4,d,,,extra\n5,e,,0\n")
    source = replay(path, header=False, schema=SCHEMA)
    rows, bad = drain(source.open(0, 1, None, source.schema(), tmp_path))
    assert [row["n"] for row in rows] == [1, 5]
    assert [(one.text, one.reason) for one in bad] == [
        ("n,s,at,x", "column 'n': 'n' is not int64"),
        ("2,b", "2 fields, expected 4"),
        ("3,c,yesterday,", "column 'at': 'yesterday' is not timestamp[us, tz=UTC]"),
        ("4,d,,,extra", "5 fields, expected 4"),
    ]


def test_a_job_that_needs_some_columns_reads_the_right_ones(tmp_path: Path) -> None:
    """Readers are asked for fewer columns than the file has; places come from the declared schema."""
    (tmp_path / "in.csv").write_text("".join(f"{n},k{n % 3},,{n / 2}\n" for n in range(30)))
    job = hr.Job("headless")
    rows = job.source("in", hr.replay(tmp_path, header=False, schema=SCHEMA))
    rows.key_by("s").window(hr.whole_input()).reduce(name="r", x=hr.sum("x")).sink("out", hr.rows())
    found = {row["s"]: row["x"] for row in run_local(job)["out"]}
    assert found == {f"k{k}": sum(n / 2 for n in range(k, 30, 3)) for k in range(3)}


@pytest.mark.parametrize("max_rows", [1, 3])
def test_files_that_arrive_have_no_header_either(max_rows: int, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("".join(f"{n},{name},,\n" for n in range(5)))
    source = files(tmp_path, header=False, schema=SCHEMA, until_empty=True)
    assert source.sample(1).to_pylist()[0]["n"] == 0
    seen: list[tuple[int, str]] = []
    offset = None
    for turn in range(20):
        reader = source.open(0, 1, json.loads(json.dumps(offset, default=sorted)), source.schema(), tmp_path)
        poll = reader.poll(max_rows, turn * 1_000_000 + 1)
        seen += [(row["n"], row["s"]) for row in poll.records.to_pylist()] if poll else []
        offset = reader.offset()
        reader.close()
    assert sorted(seen) == sorted((n, name) for n in range(5) for name in ("a", "b"))


@pytest.mark.parametrize("first", ["1001,2026-03-02T09:00:00Z,ordered", "a,3.5,b", "a,b,2026-03-02"])
def test_a_first_line_that_looks_like_a_record_is_warned_of(tmp_path: Path, first: str) -> None:
    path = tmp_path / "shop.csv"
    path.write_text(f"{first}\n1002,2026-03-02T09:01:00Z,paid\n")
    with pytest.warns(
        UserWarning, match=r"shop.csv: its first line names the columns, and '.*' looks like.*header=False"
    ):
        replay(path).schema()


def test_a_first_line_of_names_is_not_warned_of(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_text(",order,at,2nd,what is it\n0,1,2,3,4\n")
    assert replay(tmp_path / "shop.csv").schema().names == ["", "order", "at", "2nd", "what is it"]


def test_a_first_line_with_equal_values_says_that_it_may_be_a_record(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_text("7,7\n8,9\n")
    with pytest.raises(
        hr.SchemaError, match="named twice in the first line.*if that is a record already, give header=False"
    ):
        replay(tmp_path / "shop.csv").schema()
