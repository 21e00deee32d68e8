"""The version log and the manifests in it: one line of versions, read back as written or named as damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from durable import CutWriter, MemoryStorage, cut_entry, manifest_after, opened
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.connect.sink import Staged
from headrace.errors import CorruptionError, ProtocolError, StateError
from headrace.state.durable.changes import Store
from headrace.state.durable.garbage import garbage
from headrace.state.durable.loading import load_slices, read_manifest, read_slice
from headrace.state.durable.manifest import Manifest, Rewrite, SliceVersion, next_manifest
from headrace.state.durable.published import read_published, write_published
from headrace.state.durable.segments import BlockRef, StoredChange, segment_token, write_segment
from headrace.state.durable.storage import LocalStorage
from headrace.state.durable.versionlog import CutEntry, Entry, VersionLog, decode_entry, encode_entry
from headrace.state.stores.keyvalues import KeyedStore
from headrace.tokens import Attempt, Token

A, B, C = Token(1, 0, 1), Token(1, 0, 2), Token(3, 2, 3)
BLOCK = BlockRef("segments/x.seg", 7, 100, "c" * 32, 3, full=True)
FULL = Manifest(
    B,
    A,
    {("step#part", 5): SliceVersion((2**64 - 1, 1), (BLOCK, replace(BLOCK, full=False))), ("ä", 0): SliceVersion((0, 0), ())},
    (Staged("out", "/x/y", 3),),
    {"1:4": -5, "2:0": 2**62},
    exhausted=True,
    end=True,
    batch=7,
    at_us=1_700_000_000_000_000,
)  # fmt: skip
ENTRIES = st.sampled_from([opened(7), CutEntry(FULL), cut_entry(A), cut_entry(C, B, batch=0)])


@given(st.integers(1, 999_999), st.integers(0, 9999), st.integers(0, 10**10 - 2))
def test_tokens_are_read_back_and_sort_by_cut(generation: int, attempt: int, cut: int) -> None:
    token = Token(generation, attempt, cut)
    assert Token.parse(str(token)) == token == segment_token(f"segments/{token}-s00-0000-01.seg")
    assert str(token) < str(Token(1, 0, cut + 1))


@pytest.mark.parametrize(
    "file", ["segments/x.seg", "segments/", "segments/a-b-c.seg", "", "segments/--", "segments/c1-g1"]
)
def test_what_is_no_segment_of_ours_has_no_token(file: str) -> None:
    assert segment_token(file) is None


@given(ENTRIES, st.integers(1, 10**10 - 1))
def test_entries_are_read_back(entry: Entry, number: int) -> None:
    assert decode_entry(number, encode_entry(number, entry)) == entry


def test_a_manifest_of_many_slices_is_small() -> None:
    """It is written with each cut: what repeats in it must not cost."""
    blocks = tuple(
        BlockRef(f"segments/{Token(1, 0, cut)}-s01-0003-01.seg", 100 * cut, 100, f"{cut:032x}", 1, False)
        for cut in range(12)
    )
    slices = {("count", slice): SliceVersion((slice, slice), blocks) for slice in range(128)}
    assert len(encode_entry(1, CutEntry(Manifest(B, A, slices)))) < 20_000


# chronostream fact 34: a flipped bit, truncation, deletion and swap are each detected and named
@pytest.mark.parametrize("entry", [opened(3), CutEntry(FULL)])
def test_every_flipped_bit_of_an_entry_is_found(entry: Entry) -> None:
    data = encode_entry(3, entry)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError, match="entry 3 of the version log has changed"):
            decode_entry(3, bytes(changed))


@given(ENTRIES, st.data())
def test_an_entry_that_is_cut_off_or_at_another_number_is_named(entry: Entry, data: st.DataObject) -> None:
    whole = encode_entry(3, entry)
    with pytest.raises(CorruptionError, match="entry 3 of the version log has changed"):
        decode_entry(3, whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(CorruptionError, match="entry 4 of the version log has changed"):
        decode_entry(4, whole)


def test_an_entry_that_this_version_cannot_read_is_named() -> None:
    whole = encode_entry(3, opened(3)).replace(b"HRLOG1", b"HRLOG2")
    with pytest.raises(CorruptionError, match="entry 3 of the version log"):
        decode_entry(3, whole)


def test_entries_have_numbers_and_one_writer_each() -> None:
    log = VersionLog(MemoryStorage())
    assert log.newest() == 0 and log.numbers() == log.cuts() == [] and log.newest_cut() is None
    assert log.append(1, opened(1)) and not log.append(1, opened(1, pid=2))
    assert log.append(2, cut_entry(A)) and log.append(3, opened(3)) and log.append(4, cut_entry(C, A))
    assert log.newest() == 4 and log.numbers() == [1, 2, 3, 4] and log.read(1) == opened(1)
    assert log.newest_cut() == (4, cut_entry(C, A))
    assert log.newest_cut(upto=3) == log.newest_cut(upto=2) == (2, cut_entry(A)) and log.newest_cut(upto=1) is None
    assert [number for number, _ in log.cuts()] == [2, 4] and log.last_cuts(1) == [(4, cut_entry(C, A))]
    with pytest.raises(FileNotFoundError):
        log.read(5)


def line(log: VersionLog, cuts: int) -> None:
    """OPEN, then cuts with numbers from 2 on."""
    log.append(1, opened(1))
    for n in range(1, cuts + 1):
        log.append(n + 1, cut_entry(Token(1, 0, n), Token(1, 0, n - 1) if n > 1 else None))


# rule 18: oldest first, and all from the last but one cut on stay
@pytest.mark.parametrize(
    ("cuts", "before", "left"),
    [(5, 4, [4, 5, 6]), (5, 99, [5, 6]), (5, 0, [1, 2, 3, 4, 5, 6]), (2, 99, [2, 3]), (1, 99, [1, 2]), (0, 99, [1])],
)
def test_old_entries_are_forgotten_oldest_first(cuts: int, before: int, left: list[int]) -> None:
    storage = MemoryStorage()
    log = VersionLog(storage)
    line(log, cuts)
    gone = log.forget_before(before)
    assert log.numbers() == left and gone == [f"log/{n:010d}" for n in range(1, left[0])]


def test_openings_between_cuts_do_not_count_as_cuts_when_forgetting() -> None:
    log = VersionLog(MemoryStorage())
    line(log, 2)
    for number in range(4, 9):
        log.append(number, opened(number))
    assert log.forget_before(99) == ["log/0000000001"] and log.newest_cut() == (3, cut_entry(B, A))


def test_forgetting_that_is_broken_off_leaves_the_newest_part() -> None:
    class Dying(MemoryStorage):
        def delete(self, name: str) -> None:
            if len(self.objects) == 5:
                raise OSError("gone")
            super().delete(name)

    log = VersionLog(Dying())
    line(log, 7)
    with pytest.raises(OSError, match="gone"):
        log.forget_before(99)
    assert log.numbers() == [4, 5, 6, 7, 8]


# rule 18: a driver that slept may get a number that was freed; what it put there is no version
@pytest.mark.parametrize("number", [1, 3, 4])
def test_an_entry_in_a_forgotten_number_is_not_in_the_line(number: int) -> None:
    storage = MemoryStorage()
    log = VersionLog(storage)
    line(log, 6)
    log.forget_before(5)
    assert log.append(number, cut_entry(Token(1, 9, 9), Token(1, 0, 1))), "it is not hindered"
    assert log.newest() == 7, "but it can see that it is too late"
    assert [number for number, _ in log.cuts()] == [5, 6, 7] and log.newest_cut(upto=4) is None
    assert [cut.manifest.token.cut for _, cut in log.last_cuts(9)] == [4, 5, 6]


def test_looking_at_a_log_while_its_driver_forgets_is_no_error() -> None:
    class Racing(MemoryStorage):
        def get(self, name: str) -> bytes:
            for old in ("log/0000000001", "log/0000000002", "log/0000000003"):
                self.delete(old)
            return super().get(name)

    storage = Racing()
    line(VersionLog(storage), 5)
    assert [number for number, _ in VersionLog(storage).cuts()] == [4, 5, 6]


@pytest.mark.parametrize("folder", ["manifests", "picks", "generations"])
def test_checkpoints_without_a_log_are_refused(folder: str) -> None:
    storage = MemoryStorage()
    storage.put(f"{folder}/000001", b"{}")
    for use in (VersionLog(storage).newest, VersionLog(storage).cuts):
        with pytest.raises(StateError, match="had no version log.*start with a new checkpoint"):
            use()
    storage.put("log/0000000001", encode_entry(1, opened(1)))
    assert VersionLog(storage).newest() == 1


def test_what_is_no_entry_is_not_taken_for_one() -> None:
    storage = MemoryStorage()
    line(VersionLog(storage), 1)
    storage.put("log/notes", b"")
    assert VersionLog(storage).numbers() == [1, 2]


def change(parent: int, digest: int, *, step: str = "step", slice: int = 0, full: bool = False) -> StoredChange:
    block = BlockRef(f"segments/{digest}", 0, 1, "", 1, full)
    return StoredChange(step, slice, (parent, 0), (digest, 0), block)


def files(made: Manifest, slice: int = 0) -> list[str]:
    return [block.file for block in made.slices["step", slice].blocks]


def test_a_manifest_grows_out_of_the_one_before() -> None:
    first = manifest_after(None, A, [change(0, 5), change(5, 6), change(0, 9, slice=1)])
    assert (first.base, files(first), files(first, 1)) == (None, ["segments/5", "segments/6"], ["segments/9"])
    second = next_manifest(
        first, B, [change(6, 7), change(0, 3, step="other")], [FULL.staged[0]],
        watermarks={"1:0": 8}, exhausted=True, end=True, batch=4, at_us=99,
    )  # fmt: skip
    assert second.base == A and files(second) == ["segments/5", "segments/6", "segments/7"]
    assert second.slices["step", 1] == first.slices["step", 1] and second.slices["step", 0].digest == (7, 0)
    assert (second.staged, second.watermarks) == (FULL.staged, {"1:0": 8})
    assert (second.exhausted, second.end, second.batch, second.at_us) == (True, True, 4, 99)
    assert second.files == {"segments/5", "segments/6", "segments/7", "segments/9", "segments/3"}
    assert files(manifest_after(second, C, [change(7, 8, full=True)])) == ["segments/8"], "a full block stands alone"
    assert files(first) == ["segments/5", "segments/6"], "and nothing before it was touched"


@pytest.mark.parametrize("token", [A, replace(B, cut=3), replace(C, cut=1)])
def test_cuts_follow_each_other_without_a_gap(token: Token) -> None:
    with pytest.raises(ProtocolError, match=f"{token} does not follow {A}"):
        manifest_after(manifest_after(None, A, []), token, [])
    with pytest.raises(ProtocolError, match="does not follow an empty state"):
        manifest_after(None, B, [])


# the audit's second part: a wrong rollback, base or order of changes is seen before it is logged
@pytest.mark.parametrize(
    "changes",
    [
        [change(0, 7)],
        [change(6, 7), change(6, 8)],
        [change(7, 8), change(6, 7)],
        [change(1, 3, slice=1)],
        [change(6, 7, step="other")],
        [change(5, 7, full=True)],
    ],
)
def test_a_change_of_another_state_is_refused(changes: list[StoredChange]) -> None:
    base = manifest_after(None, A, [change(0, 6)])
    with pytest.raises(ProtocolError, match=rf"{B}: the change of step '\w+', slice \d in segments/\d does not follow"):
        manifest_after(base, B, changes)


def blocks(*names: int) -> tuple[BlockRef, ...]:
    return tuple(BlockRef(f"segments/{name}", 0, 1, "", 1, False) for name in names)


@pytest.mark.parametrize(
    ("run", "after"),
    [
        ((1, 2, 3), [9, 4]),
        ((1, 2, 3, 4), [9]),
        ((2, 3), [1, 9, 4]),
        ((4,), [1, 2, 3, 9]),
        ((1, 3), [1, 2, 3, 4]),
        ((3, 4, 5), [1, 2, 3, 4]),
        ((0, 1), [1, 2, 3, 4]),
        ((7, 8), [1, 2, 3, 4]),
        ((1, 2, 3, 4, 5), [1, 2, 3, 4]),
    ],
)
def test_a_rewrite_takes_the_place_of_just_what_it_stands_for(run: tuple[int, ...], after: list[int]) -> None:
    """After an attempt was run again, what was rewritten may no longer be there."""
    base = Manifest(A, None, {("step", 0): SliceVersion((4, 0), blocks(1, 2, 3))})
    rewrite = Rewrite("step", 0, blocks(*run), BlockRef("segments/9", 0, 1, "", 1, False))
    made = manifest_after(base, B, [StoredChange("step", 0, (4, 0), (5, 0), blocks(4)[0])], (rewrite,))
    assert files(made) == [f"segments/{name}" for name in after] and made.slices["step", 0].digest == (5, 0)


def test_a_rewrite_of_a_slice_that_is_not_there_is_not_used() -> None:
    rewrite = Rewrite("step", 3, blocks(1), BLOCK)
    assert manifest_after(manifest_after(None, A, []), B, [], (rewrite,)).slices == {}


def stores_of(writer: KeyedStore, slices: range) -> dict[str, tuple[Store, range]]:
    return {"step": (writer, slices)}


def keyed() -> KeyedStore:
    return KeyedStore("step", lambda keys: [int(str(key)) % 4 for key in keys])


def test_stores_are_loaded_as_of_a_version(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    log, store, base = VersionLog(storage), keyed(), None
    log.append(1, opened(1))
    for cut in (1, 2, 3):
        for key in range(4):
            store.set("v", key, None, f"{key} at {cut}")
        store.delete("v", cut)
        token = Token(1, 0, cut)
        stored = write_segment(storage, f"segments/{token}-x.seg", [("step", one) for one in store.changes()])
        base = manifest_after(base, token, stored)
        log.append(cut + 1, CutEntry(base))
    for cut in (2, 3):
        loaded = keyed()
        load_slices(storage, cut + 1, Token(1, 0, cut), stores_of(loaded, range(0, 4, 2)))
        expected = {0: f"0 at {cut}", 1: None, 2: None if cut == 2 else f"2 at {cut}", 3: None}
        assert {key: loaded.get("v", key) for key in range(4)} == expected
        loaded.set("v", 0, None, "next")
        (after,) = loaded.changes()
        digest = read_manifest(storage, cut + 1, Token(1, 0, cut)).slices["step", 0].digest
        assert after.parent == digest, "what is loaded goes on where the version ends"
    empty = keyed()
    load_slices(storage, 0, None, stores_of(empty, range(4)))
    assert not empty.nbytes


def test_loading_checks_that_the_log_has_the_version_at_that_number() -> None:
    storage = MemoryStorage()
    line(VersionLog(storage), 2)
    assert read_manifest(storage, 3, B).token == B
    for entry, text in [(2, f"but {A}"), (1, "but the opening by generation 1"), (9, "is missing")]:
        with pytest.raises(CorruptionError, match=rf"entry {entry} of the version log, that of {B}, is missing|{text}"):
            read_manifest(storage, entry, B)


# chronostream fact 34, loading: a chain that does not have its digest is named
def test_a_lost_change_is_found_by_the_digest() -> None:
    writer = CutWriter(MemoryStorage())
    for n in range(3):
        made = writer.cut({0: {n: n}})
    version = made.slices["step", 0]
    for left_out in range(3):
        chain = version.blocks[:left_out] + version.blocks[left_out + 1 :]
        with pytest.raises(
            CorruptionError, match=r"slice 0 of step 'step' does not have its digest after merging segments"
        ):
            read_slice(writer.storage, "step", 0, SliceVersion(version.digest, chain))


def test_how_far_results_are_published_is_remembered_and_never_goes_back() -> None:
    storage = MemoryStorage()
    assert read_published(storage) == 0
    for number, known in [(5, 5), (3, 5), (5, 5), (12, 12)]:
        write_published(storage, number)
        assert read_published(storage) == known


def test_every_flipped_bit_of_the_published_mark_is_found() -> None:
    storage = MemoryStorage()
    write_published(storage, 1203)
    data = storage.get("published")
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        storage.put("published", bytes(changed))
        with pytest.raises(CorruptionError, match="the mark 'published' has changed"):
            read_published(storage)


# chronostream fact 16: a driver that dies before the log entry; fact 33: files of one that is not dead after all
def test_what_was_written_for_a_cut_that_was_not_logged_is_never_used() -> None:
    storage = MemoryStorage()
    first = CutWriter(storage)
    base = first.cut({0: {1: 1}})
    lost = first.write({0: {1: 2}})
    second = CutWriter(storage)
    assert second.base == base and second.generation == 3
    second.images = {0: {1: 1}}
    made = second.cut({0: {2: 2}})
    second.check(made)
    assert lost[0].block.file not in made.files
    again = first.write({0: {1: 3}})
    second.check(made)
    removed = garbage(storage, second.log, second.generation, Attempt(second.generation, 0), made.token.cut)
    assert removed == [lost[0].block.file] == [again[0].block.file]
    second.check(made)


# chronostream fact 17: a driver that dies between the log entry and publication: no second run, and nothing is left out
def test_who_takes_over_knows_what_is_still_to_be_published() -> None:
    storage = MemoryStorage()
    first = CutWriter(storage)
    made = [first.cut({0: {1: n}}) for n in range(4)]
    write_published(storage, 3)
    second = CutWriter(storage)
    due = [entry.manifest for number, entry in second.log.cuts() if number > read_published(storage)]
    assert due == made[2:] and second.base == made[-1]


# chronostream fact 18: two drivers never publish different versions
def test_of_two_drivers_only_one_goes_on_from_a_version() -> None:
    storage = MemoryStorage()
    first = CutWriter(storage)
    base = first.cut({0: {1: 1}})
    second = CutWriter(storage)
    late = manifest_after(base, first.next_token, [])
    assert not first.log.append(second.generation, CutEntry(late)), "its number is the other one's opening"
    made = second.cut({1: {1: 1}})
    assert (
        [entry.manifest for _, entry in first.log.cuts()] == [base, made] == [e.manifest for _, e in second.log.cuts()]
    )
