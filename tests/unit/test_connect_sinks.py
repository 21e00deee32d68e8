"""Sinks: what is visible when, how files roll, whose a directory is; crashes are in test_connect_crashes."""

from __future__ import annotations

import datetime
import json
import pickle
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.config import Settings
from headrace.connect.callback import Callback, callback
from headrace.connect.collect import collect_sink, read_collected
from headrace.connect.console import console
from headrace.connect.jsonl import jsonl
from headrace.connect.parquet import parquet
from headrace.connect.sink import Sink, SinkContext, Staged
from headrace.connect.writing import gathering, rolling
from headrace.connect.writing.jsonrows import json_lines, json_rows
from headrace.connect.writing.staging import discard_staging
from headrace.driver.planning import plan_job
from headrace.errors import ConfigError, CorruptionError, HeadraceError, StateError
from headrace.spark.handle import Run
from headrace.tokens import Token

FIRST = Token(generation=1, attempt=1, cut=7)
SECOND = Token(generation=1, attempt=2, cut=7)
ROWS = pa.record_batch({"tag": ["a", "b"], "n": [1, 2]})
WRITTEN = [*ROWS.to_pylist(), ROWS.to_pylist()[1]]
"""What `write` writes."""


def context(sink: Sink, checkpoint: Path, token: Token = FIRST, subtask: int = 0) -> SinkContext:
    staging = sink.staging_root(checkpoint) / "out" / str(token)
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


FILE_SINKS: dict[str, tuple[Callable[..., Any], str]] = {
    "jsonl": (jsonl, ".jsonl"),
    "parquet": (parquet, ".parquet"),
    "collect": (collect_sink, ".arrow"),
}


def rows_in(directory: Path) -> list[dict[str, Any]]:
    rows = read_collected(directory)
    for path in sorted(directory.glob("part-*")):
        if path.suffix == ".jsonl":
            rows += [json.loads(line) for line in path.read_text().splitlines()]
        elif path.suffix == ".parquet":
            rows += pq.read_table(path).to_pylist()
    return rows


class Clock:
    """The time by which files roll, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0
        for module in (rolling, gathering):
            monkeypatch.setattr(module, "now_us", lambda: self.now_s * 1_000_000)


@pytest.mark.parametrize("name", FILE_SINKS)
def test_rows_are_visible_once_after_their_cut_is_logged(tmp_path: Path, name: str) -> None:
    make, suffix = FILE_SINKS[name]
    sink = make(tmp_path / "out")
    staged = [*write(sink, tmp_path, FIRST, 3), *write(sink, tmp_path, FIRST, 0)]
    unlogged = write(sink, tmp_path, SECOND, 0)
    assert published(tmp_path / "out") == [] and [piece.rows for piece in staged] == [3, 3]
    for _ in range(2):
        sink.publish(FIRST, staged)
        sink.settle()
        assert published(tmp_path / "out") == [f"part-c0000000007-g000001-a0001{suffix}"]
        assert rows_in(tmp_path / "out") == WRITTEN * 2
    sink.discard(lambda token: token == FIRST)
    assert not Path(unlogged[0].path).exists()
    assert pickle.loads(pickle.dumps(sink)) == sink


@pytest.mark.parametrize("name", FILE_SINKS)
def test_a_day_of_cuts_makes_few_files(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sink = Clock(monkeypatch), FILE_SINKS[name][0](tmp_path / "out")
    for cut in range(1, 201):
        clock.now_s = cut
        token = Token(1, 1, cut)
        sink.publish(token, write(sink, tmp_path, token, rows=pa.record_batch({"at": [cut] * 2})))
        if name != "parquet":
            assert len(rows_in(tmp_path / "out")) == 3 * cut, "visible with its cut"
    sink.settle()
    assert [row["at"] for row in rows_in(tmp_path / "out")] == [cut for cut in range(1, 201) for _ in range(3)]
    assert len(published(tmp_path / "out")) == {"jsonl": 1, "collect": 1, "parquet": 4}[name]


def test_json_lines_go_to_a_new_file_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sink = Clock(monkeypatch), jsonl(tmp_path / "out", roll="1 min")
    for cut, clock.now_s in ((1, 0), (2, 59), (3, 60), (4, 61), (5, 62)):
        sink.publish(Token(1, 1, cut), write(sink, tmp_path, Token(1, 1, cut)))
    first, second = published(tmp_path / "out")
    assert (first[:16], second[:16]) == ("part-c0000000001", "part-c0000000004")
    (tmp_path / "out" / second).rename(tmp_path / "taken")
    sink.publish(Token(1, 1, 6), write(sink, tmp_path, Token(1, 1, 6)))
    assert published(tmp_path / "out")[1][:16] == "part-c0000000006", "a file that a reader took away is not made again"
    (tmp_path / "out" / published(tmp_path / "out")[1]).write_text("")
    with pytest.raises(CorruptionError, match="0 of .* bytes"):
        sink.publish(Token(1, 1, 7), write(sink, tmp_path, Token(1, 1, 7)))


def test_parquet_rows_wait_for_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sink = Clock(monkeypatch), parquet(tmp_path / "out", roll="10 s")
    for cut, clock.now_s in ((1, 0), (2, 9)):
        sink.publish(Token(1, 1, cut), write(sink, tmp_path, Token(1, 1, cut)))
    assert published(tmp_path / "out") == []
    clock.now_s = 10
    sink.discard(lambda token: False)
    for _ in range(2):
        sink.publish(Token(1, 1, 3), [])
        assert rows_in(tmp_path / "out") == WRITTEN * 2, "a cut without rows publishes what has waited"
    assert "every 10 s" in sink.describe()


def test_parquet_of_other_columns_is_another_file(tmp_path: Path) -> None:
    sink = parquet(tmp_path / "out")
    for cut, rows in enumerate([ROWS, ROWS, pa.record_batch({"tag": [1, 2]}), ROWS], 1):
        sink.publish(Token(1, 1, cut), write(sink, tmp_path, Token(1, 1, cut), rows=rows))
    sink.settle()
    assert [pq.read_table(tmp_path / "out" / name).num_rows for name in published(tmp_path / "out")] == [6, 3, 3]


@pytest.mark.parametrize("name", FILE_SINKS)
def test_large_pieces_are_moved_not_copied(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rolling, gathering):
        monkeypatch.setattr(module, "ROLL_BYTES", 1000)
    monkeypatch.setattr("headrace.connect.parquet.ROLL_BYTES", 1000)
    make, suffix = FILE_SINKS[name]
    sink = make(tmp_path / "out")
    large = pa.record_batch({"tag": ["x"] * 500, "n": range(500)})
    for cut, rows in ((1, ROWS), (2, large), (3, ROWS)):
        token = Token(1, 1, cut)
        staged = [*write(sink, tmp_path, token, 0, rows), *write(sink, tmp_path, token, 1, rows)]
        inodes = {Path(piece.path).stat().st_ino for piece in staged}
        sink.publish(token, staged)
        if cut == 2:
            moved = {path.stat().st_ino for path in (tmp_path / "out").glob(f"part-{token}-*{suffix}")}
            assert moved == inodes
    sink.settle()
    assert len(rows_in(tmp_path / "out")) == 2 * (3 + 999 + 3)
    assert [row["n"] for row in rows_in(tmp_path / "out")[:6]] == [1, 2, 2] * 2


@pytest.mark.parametrize("name", FILE_SINKS)
def test_no_rows_no_file(tmp_path: Path, name: str) -> None:
    sink = FILE_SINKS[name][0](tmp_path / "out")
    assert write(sink, tmp_path, rows=ROWS.slice(0, 0)) == []
    sink.publish(FIRST, [])
    sink.settle()
    assert published(tmp_path / "out") == []


def test_as_produced_rows_are_readable_at_once_and_keep_their_file(tmp_path: Path) -> None:
    sink = jsonl(tmp_path / "out", when="as_produced")
    live = tmp_path / "out" / f"live-{FIRST}-00000.jsonl"
    for cut in (7, 8):
        token = Token(1, 1, cut)
        writer = sink.open(context(sink, tmp_path, token))
        for _ in range(2):
            before = live.read_text() if live.exists() else ""
            writer.write(ROWS.slice(0, 1))
            assert live.read_text() == before + '{"tag":"a","n":1}\n'
        sink.publish(token, writer.close())
    inode = live.stat().st_ino
    unlogged = sink.open(context(sink, tmp_path, Token(1, 1, 9)))
    unlogged.write(ROWS)
    sink.settle()
    assert published(tmp_path / "out") == [live.name], "not all of it is logged"
    sink.discard(lambda token: token.by == FIRST.by)
    assert len(live.read_text().splitlines()) == 6, "the attempt runs"
    sink.discard(lambda token: token.by == FIRST.by and token.cut < 9)
    part = tmp_path / "out" / live.name.replace("live", "part")
    assert published(tmp_path / "out") == [part.name]
    assert part.stat().st_ino == inode and len(part.read_text().splitlines()) == 4


def test_parquet_is_never_as_produced_and_gathers_small_batches(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="before it is complete"):
        parquet(tmp_path, when="as_produced")
    sink = parquet(tmp_path / "out")
    writer = sink.open(context(sink, tmp_path))
    for _ in range(500):
        writer.write(ROWS)
    sink.publish(FIRST, writer.close())
    sink.settle()
    file = pq.ParquetFile(tmp_path / "out" / published(tmp_path / "out")[0])
    assert (file.num_row_groups, file.metadata.num_rows) == (1, 1000)
    file.close()


@pytest.mark.parametrize("name", FILE_SINKS)
def test_a_directory_belongs_to_one_sink_of_one_checkpoint(tmp_path: Path, name: str) -> None:
    make, suffix = FILE_SINKS[name]
    sink = make(tmp_path / "out")
    for _ in range(2):
        sink.claim("out of 1")
    with pytest.raises(ConfigError, match="another checkpoint or another sink"):
        sink.claim("out of 2")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / f"part-00000007-00000{suffix}").touch()
    with pytest.raises(ConfigError, match="a directory of its own"):
        make(tmp_path / "old").claim("out of 1")


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
    with pytest.raises(StateError, match="cut"):
        sink.publish(SECOND, [staged])
    for name in ("part-00009.jsonl", "part-00009.mark"):
        with pytest.raises(CorruptionError, match="part-00009"):
            sink.publish(FIRST, [Staged("out", str(Path(staged.path).with_name(name)), 1)])
    for sink_2 in (callback(print, when="on_commit"), console(when="on_commit")):
        with pytest.raises(StateError, match="not published"):
            sink_2.publish(FIRST, [Staged("out", str(link), 1)])
    assert secret.read_text() == "secret" and published(tmp_path / "out") == []


def test_a_note_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    sink = jsonl(tmp_path / "out")
    sink.publish(FIRST, write(sink, tmp_path))
    (tmp_path / "out" / "_published" / "rolled.json").write_text("{")
    with pytest.raises(CorruptionError, match=r"rolled\.json cannot be read"):
        sink.publish(FIRST, write(sink, tmp_path))


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

    for options in ({"fn": 5}, {"fn": print, "when": "later"}):
        with pytest.raises(ConfigError):
            callback(**options)
    with pytest.raises(ConfigError, match="takes rows and their version, .*: say when='on_commit'"):
        callback(lambda rows, version: None)  # type: ignore[call-overload]


def test_a_callback_on_commit_is_called_once_per_version_with_all_its_rows(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []

    def flaky(rows: pa.Table, version: int) -> None:
        calls.append((rows.num_rows, version))
        if len(calls) == 1:
            raise RuntimeError("target is down")

    sink = callback(flaky, when="on_commit")
    staged = [*write(sink, tmp_path, FIRST, 0), *write(sink, tmp_path, FIRST, 1)]
    with pytest.raises(RuntimeError):
        sink.publish(FIRST, staged)
    for _ in range(2):
        sink.publish(FIRST, staged)
    assert calls == [(6, FIRST.cut)] * 2, "the failed call is repeated, with the same rows and number; the other is not"
    sink.publish(FIRST, [])
    assert len(calls) == 2 and not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_driver_that_dies_after_the_note_of_a_call_does_not_call_again(tmp_path: Path, removed: int) -> None:
    calls: list[int] = []
    sink = callback(lambda rows: calls.append(rows.num_rows), when="on_commit")
    staged = [*write(sink, tmp_path, FIRST, 0), *write(sink, tmp_path, FIRST, 1)]
    paths = [Path(piece.path) for piece in staged]
    (paths[0].parent / "called").touch()
    for path in paths[:removed]:
        path.unlink()
    sink.publish(FIRST, staged)
    assert calls == []


def test_a_callback_is_never_given_a_part_of_a_version(tmp_path: Path) -> None:
    sink = callback(print, when="on_commit")
    staged = [*write(sink, tmp_path, FIRST, 0), *write(sink, tmp_path, FIRST, 1)]
    Path(staged[0].path).unlink()
    with pytest.raises(CorruptionError, match="staged rows of cut .* are gone"):
        sink.publish(FIRST, staged)


def test_what_is_called_on_commit_stays_in_the_driver(tmp_path: Path) -> None:
    lock = threading.Lock()

    def save(rows: pa.Table, version: int, mode: str = "append") -> None:
        with lock:
            pass

    shipped = pickle.loads(pickle.dumps(callback(save, when="on_commit")))
    assert shipped == Callback(None, "on_commit") and pickle.loads(pickle.dumps(callback(print))).fn is print


def test_collected_rows_come_back_in_order_and_only_published_ones(tmp_path: Path) -> None:
    assert read_collected(tmp_path) == []
    sink = collect_sink(tmp_path / "out")
    for cut in (1, 2):
        token = Token(1, 1, cut)
        batches = {subtask: pa.record_batch({"at": [10 * cut + subtask] * 2}) for subtask in (1, 0)}
        sink.publish(token, [piece for n, rows in batches.items() for piece in write(sink, tmp_path, token, n, rows)])
    with (tmp_path / "out" / published(tmp_path / "out")[0]).open("ab") as file:
        file.write(b"an append under way")
    assert [row["at"] for row in read_collected(tmp_path / "out")] == [10] * 3 + [11] * 3 + [20] * 3 + [21] * 3


def test_rows_of_a_run_whose_checkpoint_was_temporary_are_not_silently_none(tmp_path: Path) -> None:
    job = hr.Job("gone")
    job.source("s", hr.generate(lambda n: {"n": n}, total=1)).sink("out", hr.rows())
    run = Run.__new__(Run)
    run.plan, run._temporary = plan_job(job, tmp_path / "checkpoint", Settings.of()), True
    (tmp_path / "checkpoint").mkdir()
    assert run.rows("out") == []
    run.delete_temporary_checkpoint()
    with pytest.raises(
        HeadraceError, match=r"rows of 'out' are gone with the temporary checkpoint .* hr\.collect\(job\)"
    ):
        run.rows("out")
