"""Chunks: changes written while the epoch runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connect.callback import callback
from headrace.state.durable.chunks import ChunkWriter
from headrace.state.durable.compaction import is_long
from headrace.state.durable.loading import read_slice
from headrace.state.durable.segments import BlockRef
from headrace.state.durable.versions import SliceVersion
from headrace.testing import LocalRun


def _job() -> hr.Job:
    job = hr.Job("chunks")
    rows = hr.generate(lambda n: {"k": n % 7, "v": n, "ts": n * 10}, rate="1500/s", total=450)
    source = job.source("rows", rows, event_time="ts")
    source.key_by("k").reduce(name="sum", total=hr.sum("v")).sink("sums", callback(print))
    source.key_by("k").window(hr.session_window("35 ms")).reduce(name="burst", n=hr.count()).sink(
        "bursts", callback(print)
    )
    source.key_by("k").process(_remember, state={"seen": hr.value()}, name="remember", returns={"n": "int64"}).sink(
        "seen", callback(print)
    )
    return job


def _remember(record: dict[str, Any], state: Any, out: Any) -> None:
    n = (state["seen"].get() or 0) + 1
    state["seen"].set(n)
    out({"n": n})


def _state(run: LocalRun, epoch: int) -> dict[tuple[str, int], list[str]]:
    picked = run.versions.picked(epoch)
    assert picked is not None
    manifest = run.versions.manifest(picked)
    rows = {
        (step, slice): sorted(map(str, read_slice(run.versions.root, step, slice, version).to_pylist()))
        for (step, slice), version in manifest.slices.items()
        if step != "rows"  # a source keeps when it started
    }
    return {key: of_slice for key, of_slice in rows.items() if of_slice}


# chronostream section 6a: every 5 s or 8 MB the dirty map is swapped and serialised
def test_an_epoch_with_chunks_ends_in_the_same_state_as_one_without(tmp_path: Path) -> None:
    states = {}
    for chunk in ("1 ms", "1 hour"):
        run = LocalRun(_job(), tmp_path / chunk, chunk=chunk, slices=4)
        try:
            run.epoch(seconds=20)
            names = sorted(path.name for path in (run.versions.root / "segments").iterdir())
            states[chunk] = _state(run, 0)
        finally:
            run.close()
        last = max(int(name.rpartition("-")[2].removesuffix(".seg")) for name in names)
        assert (last > 2) == (chunk == "1 ms"), names
    assert states["1 ms"] == states["1 hour"]


def test_a_chunk_is_due_by_time_or_by_size_and_never_while_one_is_being_written(tmp_path: Path) -> None:
    writer = ChunkWriter(tmp_path, "segments/x", 5.0, 8_000_000, 0)
    try:
        assert not writer.look(249_999) and writer.look(250_000) and not writer.look(300_000)
        assert not writer.due(4_999_999, 7_999_999)
        assert writer.due(4_999_999, 8_000_000)
        assert writer.due(5_000_000, 1)
        assert not writer.due(60_000_000, 0), "nothing to write"
        assert writer.finish() == ()
    finally:
        writer.close()


def test_a_chunk_that_cannot_be_written_fails_the_epoch(tmp_path: Path) -> None:
    run = LocalRun(_job(), tmp_path, chunk="1 ms", slices=4)
    try:
        (run.versions.root / "segments").write_text("a file where the directory should be")
        with pytest.raises(OSError):
            run.epoch(seconds=20)
        assert run.versions.last_picked() is None
    finally:
        run.close()


def _blocks(lengths: list[int], *, base: int = 0, epoch: int = 3) -> SliceVersion:
    full = (BlockRef("segments/e00000001-g0001-a000-compacted-0001.seg", 0, base, "", 1, True),) if base else ()
    changes = tuple(BlockRef(f"segments/e{epoch:08d}-g0001-a000-s01-0000-00.seg", 0, n, "", 1, False) for n in lengths)
    return SliceVersion((0, 0), (*full, *changes))


@pytest.mark.parametrize(
    ("version", "long"),
    [
        (_blocks([10] * 10), False),
        (_blocks([10] * 11), True),
        (_blocks([10] * 11, base=1000), False),
        (_blocks([100] * 11, base=1000), True),
    ],
)
def test_a_chain_is_rewritten_when_its_changes_outweigh_half_of_its_base(version: SliceVersion, long: bool) -> None:
    assert is_long(version) == long


def test_a_chain_over_many_epochs_is_rewritten_however_small() -> None:
    changes = [_blocks([1], epoch=epoch).blocks[0] for epoch in range(11)]
    base = _blocks([], base=10**6).blocks
    assert not is_long(SliceVersion((0, 0), (*base, *changes[:10])))
    assert is_long(SliceVersion((0, 0), (*base, *changes)))
