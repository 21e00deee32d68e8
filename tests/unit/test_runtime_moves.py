"""A subtask that gets slices at a cut: what it waits for, and what it tells."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from durable import CutWriter, MemoryStorage
from onesubtask import ATTEMPT, KEYS, Working, both, counting, planned, ticket_of, totals

import headrace as hr
from headrace.runtime.cutmaking.arrivals import Arrivals, Image
from headrace.runtime.cutmaking.copying import NearSlices
from headrace.runtime.messages import Adopted, Aligned, Final, Prepare, Prepared
from headrace.state.durable.manifest import Manifest, SliceVersion
from headrace.state.durable.segments import BlockRef
from headrace.state.hashing import slices_of
from headrace.testing import scripted
from headrace.tokens import Token

ALL_MINE = {1: (0, 0, 0, 0)}


# cuts.md rule 12: no other cut before what the last one gave is here
def test_no_cut_is_made_before_slices_are_adopted_and_adoption_is_told_whenever_it_is_asked_for(
    tmp_path: Path,
) -> None:
    plan = counting(tmp_path)
    one, other = both(plan)
    final = Final(ATTEMPT.cut(1), ())
    with Working(plan, 1) as working:
        working.take([*one.send(KEYS)[0], *one.mark(1, tables=ALL_MINE), *other.mark(1, tables=ALL_MINE)])
        first = working.description(1)
        for writer in one.writers:
            writer.route(ALL_MINE[1])
        working.take([*one.send(KEYS)[0], *one.mark(2), *other.mark(2)])
        working.a_while()
        assert [aligned.token for aligned in working.driver.heard(Aligned)] == [first.token]
        working.driver.give(Final(Token(9, 9, 1), ()))
        working.a_while()
        assert not working.driver.heard(Adopted), "that was of another attempt"
        working.driver.give(final)
        second = working.description(2)
        assert len(working.driver.heard(Adopted)) == 1
        working.driver.give(final, final)
        working.until(lambda: len(working.driver.heard(Adopted)) == 3, "the answer was lost, and is not given again")
        assert {adopted.token for adopted in working.driver.heard(Adopted)} == {final.token}
    counts = totals(plan, first, second)
    assert len(counts) == len({key["k"] for key in KEYS}) and set(counts.values()) == {1, 2}


def test_what_cannot_be_loaded_ahead_is_ready_nevertheless(tmp_path: Path) -> None:
    with Working(counting(tmp_path), 1) as working:
        working.driver.give(Prepare(ATTEMPT, 7, ATTEMPT.cut(4), (1, 3)))
        working.until(lambda: working.driver.heard(Prepared), "it was not told")
        assert [ready.version for ready in working.driver.heard(Prepared)] == [ATTEMPT.cut(4)]


# chronostream fact 25: records of slices that stay wait for nothing, not even for those of their own buffer that move
def test_records_of_other_slices_go_on_while_some_are_on_their_way(tmp_path: Path) -> None:
    seen: list[int] = []

    def note(record: dict[str, Any], state: Any, out: Any) -> None:
        state["n"].set(state["n"].get(0) + 1)
        seen.append(record["k"])

    job = hr.Job("noting")
    keyed = job.source("read", scripted(KEYS, KEYS)).key_by("k")
    keyed.process(note, name="note", state={"n": hr.value()}, returns={"k": "int64"}).sink("out", hr.callback(print))
    plan = planned(job, tmp_path)
    one, other = both(plan)
    slices = slices_of([pa.array([key["k"] for key in KEYS])], plan.slices)
    stays = [key["k"] for key, slice in zip(KEYS, slices) if slice in ticket_of(plan, 1).mine]
    with Working(plan, 1) as working:
        working.take([*one.mark(1, tables=ALL_MINE), *other.mark(1, tables=ALL_MINE)])
        working.description(1)
        for writer in one.writers:
            writer.route(ALL_MINE[1])
        working.take(one.send(KEYS)[0])
        working.until(lambda: len(seen) >= len(stays), "records of slices that stayed were not worked on")
        working.a_while()
        assert seen == stays and 0 < len(stays) < len(KEYS)
        working.driver.give(Final(ATTEMPT.cut(1), ()))
        working.until(lambda: len(seen) == len(KEYS), "those that waited did not follow")
    assert sorted(seen) == sorted(key["k"] for key in KEYS)


# chronostream fact 24: what is read when a slice changes hands is what changed since it was loaded ahead, not the slice
@pytest.mark.parametrize("rows", [100, 10_000])
def test_what_a_handover_reads_does_not_depend_on_the_slices_size(rows: int) -> None:
    storage = CountingStorage()
    writer, reader = CutWriter(storage), NearSlices(storage)
    ahead = writer.cut({0: {n: n for n in range(rows)}}).slices["step", 0]
    image = Image(ahead, reader.slice("step", 0, ahead, None))
    final = writer.cut({0: dict.fromkeys(range(50), -1)}).slices["step", 0]
    storage.read_bytes = 0
    brought_up = reader.slice("step", 0, final, image)
    assert brought_up.num_rows == rows and 0 < storage.read_bytes < 4000


class CountingStorage(MemoryStorage):
    """``read_bytes``: what was asked for."""

    read_bytes = 0

    def get(self, name: str) -> bytes:
        data = super().get(name)
        self.read_bytes += len(data)
        return data

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        self.read_bytes += length
        return self.objects[name][offset : offset + length]


# What arrives, without threads.


class Shelf:
    """A reader, a store and a loader at once; what is to be loaded is loaded when ``work`` is called."""

    def __init__(self) -> None:
        self.loaded: list[tuple[int, str]] = []
        self.read: list[tuple[int, str]] = []
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.arrivals: Arrivals[str] = Arrivals(self, {"n": self}, self)

    def manifest(self, entry: int, version: Token) -> Manifest:
        return Manifest(version, None, {("n", slice): at(version.cut) for slice in range(4)})

    def slice(self, step: str, slice: int, version: SliceVersion, known: Image[str] | None) -> str:
        rows = f"{known.rows} to {version.digest[0]}" if known is not None else f"{version.digest[0]}"
        self.read.append((slice, rows))
        return rows

    def load(self, slice: int, image: str, digest: tuple[int, int]) -> None:
        self.loaded.append((slice, image))

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, work))
        return future

    def work(self) -> None:
        for future, work in self._waiting:
            future.set_result(work())
        self._waiting.clear()

    def close(self) -> None:
        """Nothing is open."""


def at(cut: int) -> SliceVersion:
    return SliceVersion((cut, 0), (BlockRef("f", 0, 1, "", 1, full=False),))


def final(cut: int, *slices: int) -> Final:
    return Final(ATTEMPT.cut(cut), tuple(("n", slice, at(cut)) for slice in slices))


def test_what_was_loaded_ahead_is_brought_up_to_the_cut() -> None:
    shelf = Shelf()
    shelf.arrivals.prepare(Prepare(ATTEMPT, 1, ATTEMPT.cut(4), (0, 1)))
    assert shelf.arrivals.prepared() is None
    shelf.work()
    assert shelf.arrivals.prepared() is not None and shelf.arrivals.prepared() is None
    shelf.arrivals.final(final(5, 1, 2))
    assert not shelf.arrivals.adopt_one(ATTEMPT.cut(5))
    shelf.work()
    assert not shelf.arrivals.adopt_one(ATTEMPT.cut(4)) and shelf.loaded == []
    assert not shelf.arrivals.adopt_one(ATTEMPT.cut(5)) and shelf.arrivals.adopt_one(ATTEMPT.cut(5))
    assert sorted(shelf.loaded) == [(1, "4 to 5"), (2, "5")]


def test_who_is_asked_again_to_load_ahead_answers_again_and_loads_nothing_twice() -> None:
    shelf, wanted = Shelf(), Prepare(ATTEMPT, 1, ATTEMPT.cut(4), (0, 1))
    shelf.arrivals.prepare(wanted)
    shelf.arrivals.prepare(wanted)
    shelf.work()
    assert shelf.arrivals.prepared() == wanted and shelf.arrivals.prepared() is None
    shelf.arrivals.prepare(wanted)
    assert shelf.arrivals.prepared() == wanted, "at once: it is loaded"
    shelf.arrivals.final(final(5, 1))
    shelf.arrivals.prepare(wanted)
    assert shelf.arrivals.prepared() == wanted, "a repeat that comes late"
    shelf.work()
    assert shelf.arrivals.adopt_one(ATTEMPT.cut(5)) and shelf.loaded == [(1, "4 to 5")]
    assert shelf.read == [(0, "4"), (1, "4"), (1, "4 to 5")]


def test_finals_that_come_again_or_are_older_load_nothing_twice() -> None:
    shelf = Shelf()
    shelf.arrivals.final(final(5, 0, 1))
    shelf.work()
    assert not shelf.arrivals.adopt_one(ATTEMPT.cut(5))
    shelf.arrivals.final(final(4, 2))
    shelf.arrivals.final(final(5, 0, 1))
    shelf.work()
    assert shelf.arrivals.adopt_one(ATTEMPT.cut(5))
    assert sorted(shelf.loaded) == [(0, "5"), (1, "5")]
