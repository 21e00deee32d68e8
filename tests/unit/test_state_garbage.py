"""Keeping a checkpoint small: garbage collection by rule 23, and merging of long chains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from durable import CutWriter, MemoryStorage, manifest_after, opened, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptionError
from headrace.state.durable.changes import PANE, Change, digest_of, id_batch, merge_chain, no_ids, pane_batch, with_ids
from headrace.state.durable.compaction import (
    compact,
    is_long,
    long_chains,
    merge_run,
    needs_compaction,
    run_of,
)
from headrace.state.durable.garbage import garbage
from headrace.state.durable.loading import read_slice, read_slice_from
from headrace.state.durable.manifest import Manifest, SliceVersion
from headrace.state.durable.segments import BlockRef, write_segment
from headrace.state.durable.storage import Storage
from headrace.state.durable.versionlog import CutEntry
from headrace.tokens import Attempt, Token


def tidy(writer: CutWriter, spare: frozenset[str] = frozenset()) -> list[str]:
    assert writer.base is not None
    running = Attempt(writer.generation, 0)
    return collect(writer.storage, writer.log, writer.generation, running, writer.base.token.cut, spare)


def collect(storage: Storage, *found_by: Any) -> list[str]:
    """As the driver's hands do it: find it, then remove it."""
    names = garbage(storage, *found_by)
    for name in names:
        storage.delete(name)
    return names


# chronostream fact 35: clean-up keeps everything the last two versions reference, nothing older
@given(st.lists(st.sets(st.integers(0, 2), min_size=1), min_size=1, max_size=8))
@settings(max_examples=20)
def test_clean_up_keeps_the_last_two_versions(cuts: list[set[int]]) -> None:
    writer, made = CutWriter(MemoryStorage()), []
    for n, slices in enumerate(cuts):
        base = manifest_after(writer.base, writer.next_token, writer.write({slice: {n % 4: n} for slice in slices}))
        # As after a rewrite of every slice: what came before is needed by older versions only.
        short = {key: SliceVersion(v.digest, v.blocks[-2:]) for key, v in base.slices.items()}
        made.append(Manifest(base.token, base.base, short))
        number = writer.log.newest() + 1
        assert writer.log.append(number, CutEntry(made[-1]))
        writer.newest = (number, CutEntry(made[-1]))
    before = set(writer.storage.names("segments"))
    removed = tidy(writer)
    left = set(writer.storage.names("segments"))
    assert left == before & frozenset().union(*(one.files for one in made[-2:]))
    assert set(removed) == before - left and tidy(writer) == []


def segment(token: Token, more: str = "s00-0000-01") -> str:
    return f"segments/{token}-{more}.seg"


def test_clean_up_spares_what_is_under_way() -> None:
    """Rule 23, file by file. Generation 5 runs its attempt 2 from cut 8 on, which generation 3 had logged."""
    storage = MemoryStorage()
    writer = CutWriter(storage)
    for number in range(2, 6):
        writer.log.append(number, opened(number))
    stays = [
        segment(Token(5, 2, 9)),  # the running attempt's next cut: a chunk in the middle of the interval
        segment(Token(5, 2, 10)),
        segment(Token(5, 3, 9)),  # an attempt that began while the collector was on its way
        segment(Token(6, 0, 8)),  # a newer driver's
        segment(Token(6, 0, 9)),
        segment(Token(5, 2, 7), "rewrite-000001-bases"),  # spared by name
        "segments/not-ours.seg",
        "log/0000000001",
    ]
    goes = [
        segment(Token(5, 2, 8)),
        segment(Token(5, 1, 9)),  # an attempt that is over
        segment(Token(4, 7, 20)),  # an earlier driver's
        segment(Token(3, 0, 8), "rewrite-000009-bases"),
    ]
    for name in [*stays[:-1], *goes]:
        storage.put(name, b"")
    removed = collect(storage, writer.log, 5, Attempt(5, 2), 8, frozenset({stays[5]}))
    assert removed == sorted(goes) and all(name in storage.objects for name in stays)


def test_before_the_first_attempt_nothing_of_this_driver_goes() -> None:
    storage = MemoryStorage()
    writer = CutWriter(storage)
    old, new = segment(Token(1, 3, 9)), segment(Token(2, 0, 9))
    writer.log.append(2, opened(2))
    for name in (old, new):
        storage.put(name, b"")
    assert collect(storage, writer.log, 2, None, 8) == [old] and storage.names("segments") == [new]


# clean-up deleted a rewrite that the next manifest names
def test_a_rewrite_that_waits_is_not_cleaned_up() -> None:
    writer = CutWriter(MemoryStorage())
    for n in range(20):
        made = writer.cut({0: {n % 5: n}})
    rewrites = compact(writer.storage, made, Attempt(writer.generation, 0), 1)
    for n in range(3):
        writer.cut({0: {0: n}})
    tidy(writer, frozenset(rewrite.block.file for rewrite in rewrites))
    made = writer.cut({0: {1: 7}}, rewrites=rewrites)
    merged = len(rewrites[0].chain)
    assert made.slices["step", 0].blocks[20 - merged] == rewrites[0].block
    assert len(made.slices["step", 0].blocks) == 20 - merged + 5
    writer.check(made)
    assert not tidy(writer), "the version before still needs the old chain"
    writer.cut({0: {1: 8}})
    assert len(tidy(writer)) == merged > 10
    assert writer.base is not None
    writer.check(writer.base)


# cuts.md rule 12: what was loaded ahead counts only where the chain was added to, and not written anew
def test_what_was_loaded_ahead_is_read_on_from_unless_its_blocks_were_merged() -> None:
    writer = CutWriter(MemoryStorage())
    for n in range(20):
        made = writer.cut({0: {n % 5: n}})
    known = made.slices["step", 0]
    image = read_slice(writer.storage, "step", 0, known)
    assert known.since(known) == () and read_slice_from(writer.storage, "step", 0, known, image, known) is image
    added = writer.cut({0: {2: 90}}, {0: {3}}).slices["step", 0]
    assert added.since(known) == added.blocks[20:] and known.since(added) is None
    read = read_slice_from(writer.storage, "step", 0, known, image, added)
    assert dict(zip(read.column("n").to_pylist(), read.column("v").to_pylist())) == writer.images[0]
    rewrites = compact(writer.storage, made, Attempt(writer.generation, 0), 1)
    merged = writer.cut({0: {1: 91}}, rewrites=rewrites).slices["step", 0]
    assert len(merged.blocks) < 20 and merged.since(known) is None
    read = read_slice_from(writer.storage, "step", 0, known, image, merged)
    assert dict(zip(read.column("n").to_pylist(), read.column("v").to_pylist())) == writer.images[0]


# chronostream fact 8: the compacted base has the owner's digest; no version is ever broken by compaction
def test_chains_stay_short_and_rewriting_little() -> None:
    writer, lengths, rewritten = CutWriter(MemoryStorage()), [], 0
    writer.cut({0: {n: n for n in range(20_000)}, 1: {0: 0}})
    state_bytes = writer.base.slices["step", 0].blocks[0].length if writer.base else 0
    rewrites = ()
    for n in range(200):
        made = writer.cut({0: {n % 50: n}, 1: {n % 3: n}}, {0: {50 + n}, 1: {(n + 1) % 3}}, rewrites)
        tidy(writer)
        rewrites = compact(writer.storage, made, Attempt(writer.generation, 0), n) if needs_compaction(made) else ()
        rewritten += sum(rewrite.block.length for rewrite in rewrites)
        lengths.append(max(len(version.blocks) for version in made.slices.values()))
        writer.check(made)
    assert max(lengths) <= 20, lengths
    assert rewritten < state_bytes, "a large base is not written again for few changes"
    assert len(writer.storage.names("segments")) < 60


def chain(lengths: list[int]) -> SliceVersion:
    return SliceVersion((0, 0), tuple(BlockRef(f"segments/{at}", 0, n, "", 1, False) for at, n in enumerate(lengths)))


@pytest.mark.parametrize(
    ("lengths", "run"),
    [
        ([10], 0),
        ([10, 10], 2),
        ([21, 10], 0),
        ([20, 10], 2),
        ([1000, 10, 10, 10], 3),
        ([1041, 500, 10, 10], 2),
        ([1040, 500, 10, 10], 4),
        ([60, 10, 10, 10], 4),
        ([61, 10, 10, 10], 3),
        ([1000, 100, 400, 100], 4),
        ([3000, 10, 400, 100], 3),
        ([41, 147, 978, 392, *[2] * 13], 10),  # enough for a chain that is half as long as it may be
        ([*[10] * 30], 23),
        ([2000, *[100] * 8, *[2] * 8], 9 + 1),  # eight are too few, and nine are heavy at their head
    ],
)
def test_the_run_that_is_merged_is_no_heavier_at_its_head_than_twice_the_rest(lengths: list[int], run: int) -> None:
    assert len(run_of(chain(lengths))) == run


@pytest.mark.parametrize(
    ("lengths", "long"),
    [
        ([10] * 16, False),
        ([10] * 17, True),
        ([10**6] + [10] * 15, False),
        ([10**6] + [10] * 16, True),
        ([4**at for at in range(17, 0, -1)], False),
    ],
)
def test_a_chain_is_long_when_it_has_many_blocks_and_merging_helps(lengths: list[int], long: bool) -> None:
    assert is_long(chain(lengths)) == long


def test_a_turn_is_bounded_and_takes_the_longest_first() -> None:
    slices = {("step", slice): chain([10] * (17 + slice % 7)) for slice in range(100)}
    chosen = long_chains(Manifest(Token(1, 0, 1), None, slices))
    lengths = [len(slices[key].blocks) for key in chosen]
    assert len(chosen) == 64 and lengths == sorted(lengths, reverse=True) and lengths[0] == 23


def test_a_damaged_block_ends_a_turn_with_its_name_and_writes_nothing() -> None:
    writer = CutWriter(MemoryStorage())
    for n in range(20):
        made = writer.cut({0: {0: n}})
    broken = made.slices["step", 0].blocks[-3].file
    writer.storage.put(broken, b"broken")
    before = writer.storage.names("segments")
    with pytest.raises(CorruptionError, match=broken):
        compact(writer.storage, made, Attempt(1, 0), 1)
    assert writer.storage.names("segments") == before


def test_two_drivers_at_one_version_write_different_files() -> None:
    writer = CutWriter(MemoryStorage())
    for n in range(20):
        made = writer.cut({0: {0: n}})
    names = {
        rewrite.block.file
        for by, serial in [(Attempt(1, 0), 1), (Attempt(1, 0), 2), (Attempt(1, 1), 1), (Attempt(2, 0), 1)]
        for rewrite in compact(writer.storage, made, by, serial)
    }
    assert len(names) == 4


def paned(image: dict[int, int]) -> pa.RecordBatch:
    """Rows whose pane is their number modulo 3."""
    batch = rows(image)
    panes = pa.array([number % 3 for number in image], pa.int64())
    ids = batch.column("__id0").to_numpy(), batch.column("__id1").to_numpy()
    return with_ids(batch.select(["n", "v"]).append_column(PANE, panes), ids)


CHANGES = st.tuples(
    st.dictionaries(st.integers(0, 8), st.integers(0, 99), max_size=4),
    st.sets(st.integers(0, 8), max_size=3),
    st.sets(st.integers(0, 2), max_size=1),
)


# fact 8 again: merging any run at a chain's end, whole panes deleted or single rows, gives the same slice
@given(st.lists(CHANGES, min_size=2, max_size=7), st.data())
@settings(max_examples=60)
def test_merging_any_run_leaves_the_slice_as_it_is(
    changes: list[tuple[dict[int, int], set[int], set[int]]], data: st.DataObject
) -> None:
    parts = []
    for puts, drops, panes in changes:
        ids = np.array(sorted(drops), np.uint64)
        deletes = pa.concat_batches([id_batch((ids, ids)), pane_batch(sorted(panes)) if panes else no_ids()])
        parts.append((paned(puts), deletes))
    before = merge_chain([p for p, _ in parts], [d for _, d in parts])
    storage, start = MemoryStorage(), data.draw(st.integers(1, len(parts) - 1))
    refs = [
        write_segment(storage, f"segments/{at}", [("step", Change(0, puts, deletes, (0, 0), (0, 0)))])[0].block
        for at, (puts, deletes) in enumerate(parts[start:])
    ]
    puts, deletes = merge_run(storage, "step", 0, refs)
    after = merge_chain([*(p for p, _ in parts[:start]), puts], [*(d for _, d in parts[:start]), deletes])
    assert digest_of(after) == digest_of(before)
    assert sorted(map(str, after.to_pylist())) == sorted(map(str, before.to_pylist()))
