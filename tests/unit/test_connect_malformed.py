"""Malformed input: the valid part is exact, each bad line is named once with its reason."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connect.reading.parse import CsvParser, JsonParser, Parse
from headrace.connect.replay import replay
from headrace.connect.source import BadRecord

SCHEMA = {"ts": "int64", "x": "float64", "s": "string", "ok": "bool", "t": pa.timestamp("us", "UTC")}


def read(path: Path, schema: Any = SCHEMA) -> tuple[list[dict[str, Any]], list[BadRecord]]:
    source = replay(path, schema=schema)
    reader = source.open(0, 1, None, source.schema(), path.parent)
    rows: list[dict[str, Any]] = []
    bad: list[BadRecord] = []
    while not reader.exhausted:
        poll = reader.poll(1000, 1)
        if poll:
            rows += poll.records.to_pylist()
            bad += poll.bad
    reader.close()
    return rows, bad


BAD_JSON = [
    (b'{"ts": 1', "not JSON"),
    (b"hello", "not JSON"),
    (b'{"ts": 1}{"ts": 2}', "more than one value"),
    (b'{"ts": 1} null', "more than one value"),
    (b"null", "not a JSON object but NoneType"),
    (b"[1, 2]", "not a JSON object but list"),
    (b"7", "not a JSON object but int"),
    (b'{"ts": "1"}', "column 'ts': \"1\" is not int64"),
    (b'{"ts": 1.5}', "column 'ts': 1.5 is not int64"),
    (b'{"ts": true}', "column 'ts': true is not int64"),
    (b'{"ts": 9223372036854775808}', "int64"),
    (b'{"x": "1.5"}', "column 'x'"),
    (b'{"x": 1e999}', "Number too big"),
    (b'{"s": 5}', "column 's': 5 is not string"),
    (b'{"s": {"deep": 1}}', "column 's'"),
    (b'{"ok": 1}', "column 'ok': 1 is not bool"),
    (b'{"t": 5}', "column 't': 5 is not timestamp"),
    (b'{"t": "yesterday"}', "column 't'"),
    (b'{"t": "2024-13-45T99:00:00Z"}', "timestamp"),
    (b'{"s": "\xff\xfe"}', "invalid UTF-8"),
    (b'{"s": "\\ud800"}', "surrogate"),
    (b'{"s": "a\x01b"}', "not JSON"),
    (b'{"ts": 1, "ts": 2}', "twice"),
    (b'{"s": ' + b"[" * 100_000 + b"}", "not JSON"),
]
GOOD_JSON: list[tuple[bytes, dict[str, Any]]] = [
    (
        b'{"ts": 1, "x": 2, "s": "k\xc3\xa4se", "ok": true, "t": "9999-12-31T23:59:59Z"}',
        {"ts": 1, "x": 2.0, "ok": True},
    ),
    (b'{"ts": null, "x": null, "s": null}', {"ts": None, "x": None, "s": None}),
    (b"{}", {"ts": None}),
    (b'{"ts": 253402300799000000, "other": [{"a": null}]}', {"ts": 253402300799000000}),
    (b'  {"ts": 5}  ', {"ts": 5}),
    (b'{"ts": 6}\r', {"ts": 6}),
    (b'{"s": "\\u0000\\n"}', {"s": "\x00\n"}),
    (b'{"s": ""}', {"s": ""}),
]


@pytest.mark.parametrize(("line", "reason"), BAD_JSON, ids=lambda value: str(value)[:30])
def test_bad_json_line_between_good_ones(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join([line, b'{"ts": 1}', line, b'{"ts": 2}', b"", line]))
    rows, bad = read(path)
    assert [row["ts"] for row in rows] == [1, 2]
    assert len(bad) == 3 and all(reason in one.reason for one in bad), bad[0]
    assert all(len(one.text) <= 200 and len(one.reason) <= 200 for one in bad)


@pytest.mark.parametrize("neighbour", [b"", b"oops\n"], ids=["alone", "beside a bad line"])
def test_good_json_lines(tmp_path: Path, neighbour: bytes) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + neighbour + b"\n".join(line for line, _ in GOOD_JSON) + b"\n")
    rows, bad = read(path)
    assert len(bad) == bool(neighbour) and len(rows) == len(GOOD_JSON)
    for row, (_, expected) in zip(rows, GOOD_JSON):
        assert {name: row[name] for name in expected} == expected
    assert rows[0]["s"] == "käse" and rows[0]["t"].year == 9999


@pytest.mark.parametrize("neighbour", [b"", b"oops\n"], ids=["alone", "beside a bad line"])
def test_nan_stays_nan_and_null_stays_null(tmp_path: Path, neighbour: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"x": NaN}\n{"x": null}\n{"x": -Infinity}\n' + neighbour)
    (tmp_path / "in.csv").write_bytes(b"x,s\nNaN,NaN\n,\n-inf,null\n" + neighbour)
    for name in ("in.jsonl", "in.csv"):
        rows, bad = read(tmp_path / name)
        xs = [row["x"] for row in rows]
        assert math.isnan(xs[0]) and xs[1:] == [None, -math.inf] and len(bad) == bool(neighbour)
    assert [row["s"] for row in rows] == ["NaN", None, "null"]


BAD_CSV = [
    (b"1,2.5", "2 fields, expected 5"),
    (b"1,2.5,a,true,,", "6 fields, expected 5"),
    (b"one,2.5,a,true,", "column 'ts': 'one' is not int64"),
    (b"1.5,2.5,a,true,", "column 'ts': '1.5' is not int64"),
    (b"99999999999999999999,2.5,a,true,", "int64"),
    (b"1,2.5.6,a,true,", "column 'x': '2.5.6' is not double"),
    (b"1,2.5,a,yes,", "column 'ok': 'yes' is not bool"),
    (b"1,2.5,a,true,2024-01-01T00:00:00", "column 't'"),
    (b"1,2.5,a,true,2024-13-01T00:00:00Z", "timestamp"),
    (b"1,2.5,\xff,true,", "invalid UTF-8"),
    (b'1,2.5,"open,true,', "not closed"),
    (b'"1,2.5,a,true,', "not closed"),
    (b"1,2.5,a\rb,true,", "carriage return"),
]
GOOD_CSV = [
    b"1,2.5,a,true,2024-01-01T00:00:00Z",
    b" 2 , 1e3 ,b,0,9999-12-31T23:59:59+00:00",
    b'3,.5,"quoted, ""twice""",FALSE,',
    b'4,,5" pipe,,',
    b',,"",,\r',
]


@pytest.mark.parametrize(("line", "reason"), BAD_CSV, ids=lambda value: str(value)[:30])
def test_bad_csv_line_between_good_ones(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"\n".join([b"ts,x,s,ok,t", line, *GOOD_CSV, b"", line]))
    rows, bad = read(path)
    assert len(bad) == 2 and all(reason in one.reason for one in bad), bad
    assert [row["ts"] for row in rows] == [1, 2, 3, 4, None]
    assert [row["s"] for row in rows] == ["a", "b", 'quoted, "twice"', '5" pipe', ""]
    assert [row["ok"] for row in rows] == [True, False, False, None, None]
    assert rows[1]["t"].year == 9999 and rows[2]["t"] is None


def test_a_line_of_wrong_width_leaves_the_lines_after_it_in_their_places() -> None:
    """What is found wrong with later lines is said of those, and sound ones are kept."""
    parse = CsvParser(pa.schema({"a": pa.int64(), "b": pa.int64()}), ["a", "b"])
    for first, fields in ((b"1", 1), (b"1,2,3", 3)):
        made = parse(b"\n".join([first, b"4,5", b"six,7", first, b"8,9", b"10,x", b"11,12"]) + b"\n")
        assert made.rows.to_pylist() == [{"a": 4, "b": 5}, {"a": 8, "b": 9}, {"a": 11, "b": 12}]
        assert [(one.text, one.reason) for one in made.bad] == [
            (first.decode(), f"{fields} fields, expected 2"),
            ("six,7", "column 'a': 'six' is not int64"),
            (first.decode(), f"{fields} fields, expected 2"),
            ("10,x", "column 'b': 'x' is not int64"),
        ]


def test_csv_columns_go_by_name(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b'\xef\xbb\xbf"s",unknown,ts\r\na,zz,7\r\nb,zz,x\r\n')
    rows, bad = read(path)
    assert [(row["ts"], row["s"], row["x"]) for row in rows] == [(7, "a", None)]
    assert [one.text for one in bad] == ["b,zz,x"]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), format=st.sampled_from(["jsonl", "csv"]))
def test_a_line_is_read_the_same_whatever_its_neighbours(data: st.DataObject, format: str) -> None:
    good = [line for line, _ in GOOD_JSON] if format == "jsonl" else GOOD_CSV
    damage = st.tuples(st.sampled_from(good), st.integers(0, 60), st.binary(max_size=2), st.integers(0, 5))
    lines = []
    for line, at, inserted, removed in data.draw(st.lists(damage, min_size=1, max_size=8)):
        lines.append((line[:at] + inserted + line[at + removed :]).replace(b"\n", b""))
    schema = pa.schema(list(SCHEMA.items()))
    parse: Parse = JsonParser(schema) if format == "jsonl" else CsvParser(schema, list(SCHEMA))
    together = parse(b"\n".join(lines) + b"\n")
    alone = [parse(line + b"\n") for line in lines]
    together.rows.validate(full=True)
    assert repr(together.rows.to_pylist()) == repr([row for one in alone for row in one.rows.to_pylist()])
    assert [bad.text for bad in together.bad] == [bad.text for one in alone for bad in one.bad]


def test_wrong_types_do_not_take_minutes(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"ts,t\n" + b"x,2024-01-01 00:00:00\n" * 20_000 + b"1,\n")
    rows, bad = read(path, {"ts": "int64", "t": pa.timestamp("us", "UTC")})
    assert len(rows) == 1 and len(bad) == 20_000


def test_a_line_above_16_mb_is_one_bad_record(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    long = b'{"ts": 2, "s": "' + b"x" * (17 * 2**20) + b'"}'
    path.write_bytes(b'{"ts": 1}\n' + long + b'\n{"ts": 3}\n' + long)
    rows, bad = read(path, {"ts": "int64"})
    assert [row["ts"] for row in rows] == [1, 3]
    assert len(bad) == 2 and "more than the 16777216 allowed" in bad[0].reason and len(bad[0].text) == 200


def test_a_line_of_10_mb_is_a_record(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(json.dumps({"ts": 1, "s": "y" * (10 * 2**20)}).encode())
    rows, bad = read(path)
    assert len(rows[0]["s"]) == 10 * 2**20 and not bad


def test_year_9999_does_not_fit_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"t": "9999-12-31"}\n{"t": "2024-01-01"}\n')
    rows, bad = read(path, {"t": pa.timestamp("ns")})
    assert len(rows) == 1 and len(bad) == 1


def test_parquet_that_is_none_and_values_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no, it is not")
    pq.write_table(pa.table({"ts": ["1", "x", None], "z": [1, 2, 3]}), tmp_path / "b.parquet")
    rows, bad = read(tmp_path, {"ts": "int64", "s": "string"})
    assert rows == [{"ts": 1, "s": None}, {"ts": None, "s": None}]
    assert "not a Parquet file" in bad[0].reason and "'x'" in bad[1].reason


def test_lines_format(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes("grüße\n\nzwei\r\n".encode() + b"\xff\nlast")
    rows, bad = read(path, None)
    assert [row["line"] for row in rows] == ["grüße", "", "zwei", "last"] and len(bad) == 1


@pytest.mark.parametrize("header", [b"", b"\xef\xbb\xbf"], ids=["plain", "bom"])
@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_each_bad_line_is_named_by_file_and_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: bytes, block_bytes: int
) -> None:
    monkeypatch.setattr("headrace.connect.replay.BLOCK_BYTES", block_bytes)
    lines = [b"" if n % 7 == 0 else b"x" if n % 5 == 0 else b'{"ts": %d}' % n for n in range(1, 101)]
    (tmp_path / "a.jsonl").write_bytes(header + b"\n".join(lines))
    (tmp_path / "b.csv").write_bytes(
        header + b"ts\r\n" + b"".join(b"1\r\n" if n % 9 else b"1,2\r\n" for n in range(2, 50))
    )
    (tmp_path / "c.txt").write_bytes(header + b"one\ntw\xff\nthree")
    expected = {
        "a.jsonl": [n for n in range(1, 101) if n % 5 == 0 and n % 7],
        "b.csv": [n for n in range(2, 50) if n % 9 == 0],
        "c.txt": [2],
    }
    for name, numbers in expected.items():
        _, bad = read(tmp_path / name, {"line": "string"} if name == "c.txt" else {"ts": "int64"})
        assert [one.where for one in bad] == [f"{tmp_path / name}, line {number}" for number in numbers]


def test_the_number_of_a_bad_line_is_right_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connect.replay.BLOCK_BYTES", 64)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b'{"ts": %d}\n' % n for n in range(1, 60)) + b"x\n")
    source = replay(path, schema={"ts": "int64"})
    first = source.open(0, 1, None, source.schema(), tmp_path)
    for _ in range(5):
        first.poll(3, 1)
    second = source.open(0, 1, first.offset(), source.schema(), tmp_path)
    bad: list[BadRecord] = []
    while not second.exhausted:
        poll = second.poll(1000, 1)
        bad += poll.bad if poll else ()
    first.close()
    second.close()
    assert [one.where for one in bad] == [f"{path}, line 60"]


def test_what_parquet_files_have_wrong_is_named_by_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"ts": ["1", "x", "3"]}), path)
    rows, bad = read(path, {"ts": "int64"})
    assert [row["ts"] for row in rows] == [1, 3] and [one.where for one in bad] == [f"{path}, row group 0"]
    path.write_bytes(b"nothing")
    assert [one.where for one in read(path, {"ts": "int64"})[1]] == [str(path)]
