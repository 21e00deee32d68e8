"""Publication cut short at every call to the file system, in every sink that keeps files, and made again."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dying import Died, Mortal, deaths

from headrace.connect.collect import collect_sink, read_collected
from headrace.connect.jsonl import jsonl
from headrace.connect.parquet import parquet
from headrace.connect.sink import Sink, SinkContext, Staged
from headrace.connect.writing import gathering, live, notes, rolling
from headrace.connect.writing.arrows import read_arrow
from headrace.errors import FencedError, StateError
from headrace.tokens import Attempt, Token

FIRST, SECOND = Attempt(1, 0), Attempt(1, 1)
Row = dict[str, int]


@pytest.fixture(autouse=True)
def _small_files_and_a_fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are full after some 80 rows, and a second passes whenever somebody looks at the clock."""
    monkeypatch.setattr("headrace.connect.parquet.ROLL_BYTES", 3000)
    seconds = count()
    for module in (rolling, gathering, live):
        monkeypatch.setattr(module, "ROLL_BYTES", 3000)
    for module in (rolling, gathering):
        monkeypatch.setattr(module, "now_us", lambda: next(seconds) * 1_000_000)


def rows_of(cut: int, subtask: int) -> list[Row]:
    """Few rows in most cuts, none in the third, so many in the fifth that its files are results of their own."""
    many = {3: 0, 5: 150}.get(cut, 4)
    return [{"cut": cut, "subtask": subtask, "n": n} for n in range(many)]


@dataclass
class World:
    """A sink, what its workers staged, and the driver's way with it: try again until it is done."""

    sink: Sink
    home: Path
    mortal: Mortal
    staged: dict[Token, list[Staged]] = field(default_factory=dict)
    published: list[Token] = field(default_factory=list)
    seen: dict[str, bytes] = field(default_factory=dict)

    def write(self, token: Token, subtasks: int = 2) -> None:
        for subtask in range(subtasks):
            staging = self.sink.staging_root(self.home) / "out" / str(token)
            staging.mkdir(parents=True, exist_ok=True)
            writer = self.sink.open(SinkContext("out", token, subtask, staging, lambda step, rows: None))
            if rows := rows_of(token.cut, subtask):
                writer.write(pa.RecordBatch.from_pylist(rows))
            self.staged.setdefault(token, []).extend(writer.close())

    def publish(self, token: Token) -> None:
        self.published.append(token)
        self._do(lambda: self.sink.publish(token, self.staged[token]))

    def settle(self) -> None:
        self._do(self.sink.settle)

    def discard(self, logged: Sequence[Token], running: Attempt | None = None) -> None:
        self._do(lambda: self.sink.discard(lambda token: token in logged or token.by == running))

    def _do(self, act: Callable[[], None]) -> None:
        try:
            with self.mortal.awake():
                act()
        except Died:
            self._look()
            for token in self.published[-3:-1]:  # a driver that starts may have to publish again what was
                self.sink.publish(token, self.staged[token])
            act()
        self._look()
        assert not [*(self.home / "out" / "_published").glob("part-*.parquet")], "what is complete is visible"

    def _look(self) -> None:
        """What a reader of results has seen stays as it was, but for rows added at the end."""
        for name, data in self.seen.items():
            assert (self.home / "out" / name).read_bytes().startswith(data), name
        parts = (path for path in (self.home / "out").glob("part-*"))
        self.seen = {path.name: path.read_bytes() for path in parts}

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for path in sorted((self.home / "out").glob("part-*")):
            if path.suffix == ".jsonl":
                found += map(json.loads, path.read_text().splitlines())
            elif path.suffix == ".parquet":
                found += pq.read_table(path).to_pylist()
        return found or read_collected(self.home / "out")


MAKERS: dict[str, Callable[[Path], Any]] = {
    "jsonl": lambda path: jsonl(path, roll="5 s"),
    "parquet": lambda path: parquet(path, roll="5 s"),
    "collect": collect_sink,
}


@pytest.mark.parametrize("name", MAKERS)
def test_rows_of_logged_cuts_are_published_once_whenever_the_driver_dies(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = [FIRST.cut(number) for number in range(1, 8)]
    expected = [row for token in logged for subtask in (0, 1) for row in rows_of(token.cut, subtask)]

    def through(mortal: Mortal, place: str) -> None:
        world = World(MAKERS[name](tmp_path / place / "out"), tmp_path / place, mortal)
        for token in logged:
            world.write(token)
            world.publish(token)
        world.write(SECOND.cut(8))
        # The log has forgotten the older cuts; rows that still wait for their file are not staged any more.
        world.discard(logged[-2:])
        world.settle()
        assert world.rows() == expected, place
        assert not [path for path in (tmp_path / place / "out" / "_staging").rglob("*") if path.is_file()]
        assert len([*(tmp_path / place / "out").glob("part-*")]) < len(logged)

    assert deaths(through, monkeypatch) > 30


def test_a_half_written_parquet_file_is_never_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(parquet(tmp_path / "out", roll="1 h"), tmp_path, Mortal(0, "before"))
    for token in map(FIRST.cut, (1, 2)):
        world.write(token)
        world.publish(token)
    reading = count()

    def dying_read(path: Path) -> Iterator[pa.RecordBatch]:
        if next(reading) == 1:
            raise Died
        return read_arrow(path)

    with monkeypatch.context() as patches:
        patches.setattr("headrace.connect.parquet.read_arrow", dying_read)
        with pytest.raises(Died):
            world.sink.settle()
    assert world.rows() == []
    world.settle()
    assert world.rows() == [row for cut in (1, 2) for subtask in (0, 1) for row in rows_of(cut, subtask)]


def test_a_parquet_file_that_a_reader_took_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is visible from the rename on; whatever the driver dies in later, the reader may have removed it."""
    taken = 0

    def through(mortal: Mortal, place: str) -> None:
        nonlocal taken
        world = World(parquet(tmp_path / place / "out", roll="0 s"), tmp_path / place, mortal)
        token = FIRST.cut(1)
        world.write(token)
        try:
            with mortal.awake():
                world.sink.publish(token, world.staged[token])
        except Died:
            gone = [path.rename(tmp_path / place / path.name) for path in (tmp_path / place / "out").glob("part-*")]
            world.sink.publish(token, world.staged[token])
            world.sink.settle()
            assert len(world.rows()) == (0 if gone else 8)
            taken += len(gone)

    deaths(through, monkeypatch)
    assert taken > 1


def test_live_rows_of_logged_cuts_stay_and_others_disappear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut 2 is logged when the attempt fails, but not published; a later one is neither, and is made again."""
    logged = [*map(FIRST.cut, (1, 2)), *map(SECOND.cut, (3, 4, 5, 6))]
    expected = [row for token in logged for subtask in (0, 1) for row in rows_of(token.cut, subtask)]

    def through(mortal: Mortal, place: str) -> None:
        world = World(jsonl(tmp_path / place / "out", when="as_produced"), tmp_path / place, mortal)
        for token in map(FIRST.cut, (1, 2, 4)):
            world.write(token)
            if token.cut < 2:
                world.publish(token)
                world.discard(logged, running=FIRST)
        world.discard(logged)
        assert not [*(tmp_path / place / "out").glob("live-*")]
        world.publish(FIRST.cut(2))
        for token in logged[2:]:
            world.write(token)
            world.publish(token)
        world.settle()
        assert not [*(tmp_path / place / "out").glob("live-*")]
        key = ("cut", "subtask", "n")
        assert sorted(tuple(row[k] for k in key) for row in world.rows()) == sorted(
            tuple(row[k] for k in key) for row in expected
        ), place

    assert deaths(through, monkeypatch) > 20


def test_who_was_thought_dead_writes_no_more(tmp_path: Path) -> None:
    sink = jsonl(tmp_path / "out", when="as_produced")
    staging = sink.staging_root(tmp_path) / "out" / str(FIRST.cut(1))
    staging.mkdir(parents=True)
    row = pa.RecordBatch.from_pylist([{"n": 1}])

    def writer(cut: int) -> Any:
        return sink.open(SinkContext("out", FIRST.cut(cut), 0, staging, lambda step, rows: None))

    zombie, late = writer(1), None
    zombie.write(row)
    late = writer(2)
    sink.publish(FIRST.cut(1), zombie.close())
    zombie = writer(2)
    zombie.write(row)
    sink.discard(lambda token: token == FIRST.cut(1))
    for dead in (zombie, late):
        with pytest.raises(FencedError, match="is over"):
            dead.write(row)
    assert [path.read_text() for path in (tmp_path / "out").glob("*.jsonl")] == ['{"n":1}\n']


def test_two_drivers_do_not_publish_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "_LOCK_WAIT_S", 0.0)
    sink = jsonl(tmp_path / "out")
    staging = sink.staging_root(tmp_path) / "out" / str(FIRST.cut(1))
    staging.mkdir(parents=True)
    writer = sink.open(SinkContext("out", FIRST.cut(1), 0, staging, lambda step, rows: None))
    writer.write(pa.RecordBatch.from_pylist([{"n": 1}]))
    staged = writer.close()
    (tmp_path / "out" / "_published").mkdir()
    stalled = os.open(tmp_path / "out" / "_published" / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(stalled, fcntl.LOCK_EX)
    with pytest.raises(StateError, match="another driver"):
        sink.publish(FIRST.cut(1), staged)
    assert not [*(tmp_path / "out").glob("part-*")]
    os.close(stalled)
    sink.publish(FIRST.cut(1), staged)
    assert len([*(tmp_path / "out").glob("part-*")]) == 1
