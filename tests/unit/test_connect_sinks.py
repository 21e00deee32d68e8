"""Sinks: what is visible when, publication that can be repeated, attempts that are not picked."""

from __future__ import annotations

import datetime
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connect.callback import callback
from headrace.connect.collect import collect_sink, read_collected
from headrace.connect.console import console
from headrace.connect.jsonl import jsonl
from headrace.connect.parquet import parquet
from headrace.connect.sink import Sink, SinkContext, Staged
from headrace.connect.writing.jsonrows import json_lines, json_rows
from headrace.connect.writing.staging import discard_staging
from headrace.errors import ConfigError, CorruptionError, StateError
from headrace.tokens import Token

FIRST = Token(generation=1, epoch=7, attempt=1)
SECOND = Token(generation=1, epoch=7, attempt=2)
ROWS = pa.record_batch({"tag": ["a", "b"], "n": [1, 2]})


def context(sink: Sink, checkpoint: Path, token: Token = FIRST, subtask: int = 0) -> SinkContext:
    staging = sink.staging_root(checkpoint) / str(token) / "out"
    staging.mkdir(parents=True, exist_ok=True)
    return SinkContext("out", token, subtask, staging, lambda step, rows: None)


def write(sink: Sink, checkpoint: Path, token: Token = FIRST, subtask: int = 0, rows: Any = ROWS) -> list[Staged]:
    writer = sink.open(context(sink, checkpoint, token, subtask))
    writer.write(rows)
    writer.write(rows.slice(0, 0))
    writer.write(rows.slice(1))
    return list(writer.close())


def published(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_file())


FILE_SINKS = {"jsonl": (jsonl, ".jsonl"), "parquet": (parquet, ".parquet"), "collect": (collect_sink, ".arrow")}


def read_part(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return rows
    return pa.ipc.open_file(path.read_bytes()).read_all().to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", FILE_SINKS)
def test_rows_are_visible_once_after_commit(tmp_path: Path, name: str) -> None:
    make, suffix = FILE_SINKS[name]
    sink = make(tmp_path / "out")
    staged = [*write(sink, tmp_path, FIRST, 0), *write(sink, tmp_path, FIRST, 3)]
    unpicked = write(sink, tmp_path, SECOND, 0)
    assert published(tmp_path / "out") == [] and [piece.rows for piece in staged] == [3, 3]
    for _ in range(2):
        sink.publish(FIRST, staged)
        assert published(tmp_path / "out") == [f"part-00000007-00000{suffix}", f"part-00000007-00003{suffix}"]
    assert read_part(tmp_path / "out" / f"part-00000007-00003{suffix}") == [*ROWS.to_pylist(), ROWS.to_pylist()[1]]
    sink.discard(lambda token: token == FIRST)
    assert not Path(unpicked[0].path).exists()
    assert pickle.loads(pickle.dumps(sink)) == sink


@pytest.mark.parametrize("name", FILE_SINKS)
def test_a_half_done_publication_is_completed(tmp_path: Path, name: str) -> None:
    sink = FILE_SINKS[name][0](tmp_path / "out")
    staged = [write(sink, tmp_path, FIRST, subtask)[0] for subtask in range(3)]
    sink.publish(FIRST, staged[:1])
    sink.discard(lambda token: token == FIRST)
    sink.publish(FIRST, staged)
    assert len(published(tmp_path / "out")) == 3


@pytest.mark.parametrize("name", FILE_SINKS)
def test_no_rows_no_file(tmp_path: Path, name: str) -> None:
    sink = FILE_SINKS[name][0](tmp_path / "out")
    assert write(sink, tmp_path, rows=ROWS.slice(0, 0)) == []
    sink.publish(FIRST, [])


def test_as_produced_rows_are_readable_at_once(tmp_path: Path) -> None:
    sink = jsonl(tmp_path / "out", when="as_produced")
    writer = sink.open(context(sink, tmp_path))
    failed = sink.open(context(sink, tmp_path, SECOND))
    for rows_written in (1, 2):
        writer.write(ROWS.slice(0, 1))
        live = tmp_path / "out" / f"live-{FIRST}-00000.jsonl"
        assert len(live.read_text().splitlines()) == rows_written
    failed.write(ROWS)
    failed.close()
    staged = writer.close()
    sink.discard(lambda token: token == FIRST)
    assert published(tmp_path / "out") == [live.name]
    for _ in range(2):
        sink.publish(FIRST, staged)
        assert published(tmp_path / "out") == ["part-00000007-00000.jsonl"]


def test_parquet_is_never_as_produced_and_gathers_small_batches(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="before it is complete"):
        parquet(tmp_path, when="as_produced")
    sink = parquet(tmp_path / "out")
    writer = sink.open(context(sink, tmp_path))
    for _ in range(500):
        writer.write(ROWS)
    file = pq.ParquetFile(writer.close()[0].path)
    assert (file.num_row_groups, file.metadata.num_rows) == (1, 1000)
    file.close()


def test_results_of_another_run_are_not_replaced(tmp_path: Path) -> None:
    sink = jsonl(tmp_path / "out")
    late = sink.open(context(sink, tmp_path, SECOND))
    late.write(ROWS)
    sink.publish(FIRST, write(sink, tmp_path))
    with pytest.raises(ConfigError, match="another run"):
        write(sink, tmp_path, SECOND)
    with pytest.raises(StateError, match="another run"):
        sink.publish(SECOND, late.close())


def test_staged_files_must_lie_where_they_were_staged(tmp_path: Path) -> None:
    sink = jsonl(tmp_path / "out")
    staged = write(sink, tmp_path)[0]
    secret = tmp_path / "part-00000.jsonl"
    secret.write_text("secret")
    link = Path(staged.path).parent / "part-00001.jsonl"
    link.symlink_to(secret)
    linked_directory = tmp_path / "out" / "_staging" / "link"
    linked_directory.symlink_to(tmp_path)
    up = Path(staged.path).parent / ".." / ".." / ".." / ".." / "part-00000.jsonl"
    strange = Path(staged.path).parent / "passwd.jsonl"
    strange.touch()
    for path in (secret, link, linked_directory / "part-00000.jsonl", up, Path("part-00000.jsonl"), strange):
        with pytest.raises(StateError, match="not published"):
            sink.publish(FIRST, [Staged("out", str(path), 1)])
    with pytest.raises(StateError, match="attempt"):
        sink.publish(FIRST, [Staged("out", str(tmp_path / "out" / f"live-{SECOND}-00000.jsonl"), 1)])
    with pytest.raises(CorruptionError, match="gone"):
        sink.publish(FIRST, [Staged("out", str(Path(staged.path).with_name("part-00009.jsonl")), 1)])
    for sink_2 in (callback(print, when="on_commit"), console(when="on_commit")):
        with pytest.raises(StateError, match="not published"):
            sink_2.publish(FIRST, [Staged("out", str(link), 1)])
    assert secret.read_text() == "secret" and published(tmp_path / "out") == []


def test_discard_leaves_other_directories_alone(tmp_path: Path) -> None:
    for name in (f"{FIRST}/out", f"{SECOND}/out", f"step/{FIRST}", "notes"):
        (tmp_path / name).mkdir(parents=True)
    discard_staging(tmp_path, lambda token: token == SECOND)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([str(SECOND), "notes", "step"])
    assert not list((tmp_path / "step").iterdir())
    discard_staging(tmp_path / "missing", lambda token: False)


def test_json_of_awkward_values() -> None:
    utc = datetime.timezone(datetime.timedelta(hours=2))
    when = datetime.datetime(2024, 1, 1, 2, 0, 0, 5, tzinfo=utc)
    batch = pa.record_batch(
        {
            "t": pa.array([when, datetime.datetime(9999, 12, 31, 23, 59, 59)], pa.timestamp("us", "Europe/Berlin")),
            "naive": pa.array([0, None], pa.timestamp("ns")),
            "x": pa.array([float("nan"), 1.5]),
            "b": pa.array([b"\xff", None]),
            "d": pa.array([Decimal("1.10"), None]),
            "day": pa.array([datetime.date(2024, 2, 29), None]),
            "wait": pa.array([1500, None], pa.duration("ms")),
            "nested": pa.array([{"xs": [1.0, float("inf")], "t": when}, None]),
            "s": pa.array(["käse\n\u2028", None]),
            'ok "100 %"': pa.array([True, None]),
        }
    )
    lines = json_lines(batch).decode().split("\n")
    assert len(lines) == 3 and lines[-1] == ""
    first, second = json.loads(lines[0]), json.loads(lines[1])
    assert first == {
        "t": "2024-01-01T00:00:00.000005Z", "naive": "1970-01-01T00:00:00.000000000Z", "x": None, "b": "/w==",
        "d": "1.10", "day": "2024-02-29", "wait": 1.5, "s": "käse\n\u2028", 'ok "100 %"': True,
        "nested": {"xs": [1.0, None], "t": "2024-01-01T00:00:00.000005Z"},
    }  # fmt: skip
    assert second["t"].startswith("9999-12-31T") and second["x"] == 1.5
    assert json_rows(batch) == [first, second]


def test_console_sends_rows_to_the_driver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink = console(limit=1)
    told: list[Any] = []
    writer = sink.open(SinkContext("out", FIRST, 0, tmp_path, lambda step, rows: told.append((step, rows))))
    writer.write(ROWS)
    assert told == [("out", [{"tag": "a", "n": 1}])] and writer.close() == ()
    sink.show("out", [{"tag": "[red]x", "n": 1, "long": "y" * 300}])
    assert capsys.readouterr().out == f"out  tag=[red]x  n=1  long={'y' * 300}\n"
    with pytest.raises(ConfigError):
        console(limit=0)


def test_console_on_commit_prints_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink = console(limit=2, when="on_commit")
    staged = write(sink, tmp_path)
    assert capsys.readouterr().out == ""
    sink.publish(FIRST, staged)
    assert capsys.readouterr().out.splitlines() == ["out  tag=a  n=1", "out  tag=b  n=2", "out  … and 1 more"]
    sink.publish(FIRST, staged)
    assert capsys.readouterr().out == ""


def test_callback_in_the_worker_and_on_commit(tmp_path: Path) -> None:
    seen: list[Any] = []
    writer = callback(lambda rows: seen.append(rows.to_pylist())).open(context(callback(print), tmp_path))
    writer.write(ROWS)
    assert seen == [ROWS.to_pylist()] and writer.close() == ()

    calls: list[int] = []

    def flaky(rows: pa.RecordBatch) -> None:
        calls.append(rows.num_rows)
        if len(calls) == 1:
            raise RuntimeError("target is down")

    sink = callback(flaky, when="on_commit")
    staged = [*write(sink, tmp_path, FIRST, 0), *write(sink, tmp_path, FIRST, 1)]
    with pytest.raises(RuntimeError):
        sink.publish(FIRST, staged)
    for _ in range(2):
        sink.publish(FIRST, staged)
    assert calls == [3, 3, 3], "the failed call is repeated, the others are not"
    for options in ({"fn": 5}, {"fn": print, "when": "later"}):
        with pytest.raises(ConfigError):
            callback(**options)


def test_collected_rows_come_back_in_order(tmp_path: Path) -> None:
    assert read_collected(tmp_path).num_rows == 0
    sink = collect_sink(tmp_path / "out")
    for epoch, subtask in ((2, 0), (1, 1), (1, 0)):
        token = Token(1, epoch, 1)
        sink.publish(token, write(sink, tmp_path, token, subtask, pa.record_batch({"at": [10 * epoch + subtask] * 2})))
    assert read_collected(tmp_path / "out").column("at").to_pylist() == [10] * 3 + [11] * 3 + [20] * 3
