"""Copies of state: what a node keeps, where blocks are read from, what becomes of damage."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from durable import CutWriter, MemoryStorage

from headrace.errors import CorruptionError
from headrace.runtime.cutmaking.arrivals import Image
from headrace.runtime.cutmaking.copying import NearSlices
from headrace.state.copies.feeding import Copier, Feeder
from headrace.state.copies.nearest import NearestStorage, fits
from headrace.state.copies.nodestore import Extent, NodeStore, Tier
from headrace.state.copies.placement import CopyNode
from headrace.state.copies.restoring import Directory, examine, repair
from headrace.state.copies.tending import Tending
from headrace.state.durable.compaction import compact
from headrace.state.durable.manifest import Manifest, SliceKey
from headrace.state.durable.segments import BlockRef
from headrace.state.durable.storage import LocalStorage
from headrace.tokens import Attempt

FILE = "segments/c0000000001-g000001-a0001-s01-0000-00.seg"


def node_store(root: Path, memory_bytes: int = 10**6, disk_bytes: int = 10**6) -> NodeStore:
    tiers = Tier("memory", root / "memory", memory_bytes), Tier("node", root / "disk", disk_bytes)
    for tier in tiers:
        tier.root.mkdir(parents=True, exist_ok=True)
    return NodeStore(tiers)


class Another:
    """Another node, as a keeper's client shows it."""

    def __init__(self, store: NodeStore, *, deaf: bool = False) -> None:
        self.store, self.deaf, self.asked, self.told, self.held = store, deaf, 0, 0, list[SliceKey]()

    def get(self, blocks: Sequence[BlockRef]) -> list[bytes | None]:
        self.asked += len(blocks)
        found = (next(self.store.find(block.file, block.offset, block.length), None) for block in blocks)
        return [None if self.deaf or one is None else one[1] for one in found]

    def put(self, file: str, size: int, extents: Sequence[Extent]) -> bool:
        return not self.deaf and self.store.put(file, size, extents)

    def hold(self, attempt: Attempt, slices: Sequence[SliceKey]) -> bool:
        self.held, self.told = list(slices), self.told + 1
        return not self.deaf

    def close(self) -> None: ...


def copied(storage: MemoryStorage | LocalStorage, store: NodeStore, made: Manifest, *slices: int) -> None:
    """Put copies of some slices into a node's store."""
    for slice in slices:
        for block in made.slices["step", slice].blocks:
            body = storage.get_range(block.file, block.offset, block.length)
            assert store.put(block.file, block.offset + block.length, [(block.offset, body)])


def test_memory_first_then_disk_then_no_more(tmp_path: Path) -> None:
    store = node_store(tmp_path, memory_bytes=10_000, disk_bytes=10_000)
    names = [FILE.replace("s01", f"s{number:02d}") for number in range(9)]
    kept = [store.put(name, 4000, [(0, b"x" * 4000)]) for name in names]
    assert kept == [True] * 4 + [False] * 5
    origins = [[origin for origin, _ in store.find(name, 0, 4)] for name in names[:4]]
    assert origins == [["memory"], ["memory"], ["node"], ["node"]]
    store.drop(names[0])
    assert store.files() == frozenset(names[1:4])
    assert not node_store(tmp_path, 0, 0).put(names[8], 10, [(0, b"x" * 10)]), "also for another process"


def test_what_is_not_named_as_a_segment_is_not_kept(tmp_path: Path) -> None:
    store = node_store(tmp_path)
    for name in ("segments/x", "segments/../x.seg", FILE.replace("segments/", "log/"), FILE + "\n", "/" + FILE):
        assert not store.put(name, 10, [(0, b"x" * 10)]) and not [*store.find(name, 0, 4)]
        store.drop(name)
    assert not store.put(FILE, 0, []) and not store.put(FILE, 1 << 40, [(0, b"x")]) and not store.files()


def test_a_copy_of_some_blocks_takes_room_for_these_alone(tmp_path: Path) -> None:
    store = node_store(tmp_path)
    size = 64_000_000
    assert store.put(FILE, size, [(8192, b"a" * 4096), (size - 4096, b"b" * 4096)])
    assert store.put(FILE, size, [(size // 2, b"c" * 10)]), "a hole is filled later"
    assert [*store.find(FILE, size // 2, 10)] == [("memory", b"c" * 10)]
    assert [*store.find(FILE, 8192, 4096)] == [("memory", b"a" * 4096)]
    assert not [*store.find(FILE, 0, 4096)], "a hole is no copy"
    assert sum(path.stat().st_blocks * 512 for path in (tmp_path / "memory").iterdir()) <= 6 * 4096
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "memory").iterdir()} == {0o600}


# chronostream 6(d): nearest digest-matching copy; which one it was is told
def test_blocks_come_from_the_nearest_copy(tmp_path: Path) -> None:
    storage = MemoryStorage()
    writer = CutWriter(storage)
    made = writer.cut({slice: {slice: 1} for slice in range(4)})
    own, near, far = (node_store(tmp_path / name) for name in ("own", "near", "far"))
    copied(storage, own, made, 0)
    copied(storage, near, made, 0, 1)
    copied(storage, far, made, 0, 1, 2)
    nearest, peers = NearestStorage(storage, own), [Another(near), Another(far)]
    for slice in range(4):
        version = made.slices["step", slice]
        nearest.read("step", slice, version, peers, list)
    assert nearest.loading.slices == {"memory": 1, "peer": 2, "checkpoint": 1} == nearest.loading.blocks
    assert [peer.asked for peer in peers] == [3, 2], "farther ones only for what is missing"
    assert nearest.loading.damaged == 0


def test_a_slice_counts_where_its_farthest_block_was(tmp_path: Path) -> None:
    storage = MemoryStorage()
    writer = CutWriter(storage)
    copied(storage, store := node_store(tmp_path), writer.cut({0: {1: 1}}), 0)
    version = writer.cut({0: {2: 2}}).slices["step", 0]
    nearest = NearestStorage(storage, store)
    nearest.read("step", 0, version, [], list)
    assert (nearest.loading.slices, nearest.loading.blocks) == ({"checkpoint": 1}, {"memory": 1, "checkpoint": 1})


# chronostream fact 34: a flipped bit is detected, wherever it is; without a copy the block is named
def test_a_damaged_copy_is_passed_over_and_told(tmp_path: Path) -> None:
    storage = MemoryStorage()
    made = CutWriter(storage).cut({0: {1: 1}})
    own, peer = node_store(tmp_path / "own"), node_store(tmp_path / "peer")
    version = made.slices["step", 0]
    (block,) = version.blocks
    for store in (own, peer):
        copied(storage, store, made, 0)
        flip(next(tmp_path.glob(f"{'own' if store is own else 'peer'}/memory/*")), block.offset + 9)
    nearest = NearestStorage(storage, own)
    nearest.read("step", 0, version, [Another(peer), Another(node_store(tmp_path / "none"), deaf=True)], list)
    assert nearest.loading.damaged == 2 and nearest.loading.slices == {"checkpoint": 1}
    assert not own.files(), "the own one is dropped, to be fetched anew"
    storage.objects[block.file] = b"other bytes"
    with pytest.raises(CorruptionError, match=f"slice 0 in {block.file} at {block.offset}"):
        nearest.read("step", 0, version, [], list)


def test_what_the_checkpoint_has_lost_is_taken_from_any_copy_and_told(tmp_path: Path) -> None:
    storage = MemoryStorage()
    made = CutWriter(storage).cut({0: {1: 1}, 1: {1: 1}})
    other = Another(store := node_store(tmp_path))
    copied(storage, store, made, 0, 1)
    version = made.slices["step", 0]
    nearest = NearestStorage(storage, None)
    nearest.read("step", 1, made.slices["step", 1], [], lambda: [other])
    assert (other.asked, nearest.loading.broken) == (0, ()), "nobody else is asked while the checkpoint has it"
    storage.delete(version.blocks[0].file)
    nearest.read("step", 0, version, [], lambda: [other])
    assert nearest.loading.broken == version.blocks
    assert nearest.loading.slices == {"checkpoint": 1, "peer": 1}


class Here:
    """The own node, and the way to another one."""

    def __init__(self, own: NodeStore, other: Another) -> None:
        self.node, self.store, self._other = CopyNode("a", "", ""), own, other

    def connect(self, node: CopyNode) -> Another:
        assert node.name == "b"
        return self._other


# chronostream: a subtask that gets a slice loads it from the nearest valid copy
@pytest.mark.parametrize("at", ["own", "other"])
def test_a_slice_that_changes_hands_is_taken_from_a_copy_if_the_checkpoint_is_damaged(tmp_path: Path, at: str) -> None:
    storage = MemoryStorage()
    writer, own, other = CutWriter(storage), node_store(tmp_path / "own"), Another(node_store(tmp_path / "other"))
    first = writer.cut({0: {1: 1, 2: 2}})
    second = writer.cut({0: {2: 3}})
    whole = NearSlices(storage).slice("step", 0, second.slices["step", 0], None)
    ahead = Image(first.slices["step", 0], NearSlices(storage).slice("step", 0, first.slices["step", 0], None))
    copied(storage, own if at == "own" else other.store, second, 0)
    for name in {block.file for block in second.slices["step", 0].blocks}:
        storage.objects[name] = bytes(len(storage.objects[name]))
    reader = NearSlices(storage, Here(own, other), [CopyNode("a", "", ""), CopyNode("b", "", "")])
    for known in (None, ahead):
        assert reader.slice("step", 0, second.slices["step", 0], known).equals(whole)
    with pytest.raises(CorruptionError, match="block of step 'step', slice 0"):
        NearSlices(storage).slice("step", 0, second.slices["step", 0], ahead)


def test_what_becomes_durable_is_copied_to_the_own_node_and_to_the_standbys_of_its_slices(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "checkpoint")
    writer, own = CutWriter(storage), node_store(tmp_path / "own")
    keeper, even, odd = (Another(node_store(tmp_path / name)) for name in ("keeper", "even", "odd"))
    keys = [("step", slice) for slice in range(4)]
    standbys = [(lambda: even, frozenset({0, 2})), (lambda: odd, frozenset({1, 3}))]
    feeder = Feeder(lambda: Copier(Attempt(1, 1), storage, own, lambda: keeper, standbys, keys), keys)
    stored = writer.write({slice: {slice: 1} for slice in range(4)})
    feeder.offer(stored)
    counts = Counter[str]()
    while counts["copied"] < 8:
        counts.update(feeder.take_counts())
        time.sleep(0.001)
    feeder.close()
    blocks = [change.block for change in stored]
    assert all(kept(own, block) for block in blocks)
    assert [kept(even.store, block) for block in blocks] == [True, False, True, False]
    assert [kept(odd.store, block) for block in blocks] == [False, True, False, True]
    assert (keeper.held, even.held, odd.held) == (keys, keys[::2], keys[1::2])
    assert counts == {"copied": 8}


def test_keepers_are_told_again_what_to_hold_also_if_nothing_changes(tmp_path: Path) -> None:
    storage, keeper = LocalStorage(tmp_path / "checkpoint"), Another(node_store(tmp_path / "keeper"))
    keys = [("step", 0)]
    own = node_store(tmp_path)
    feeder = Feeder(lambda: Copier(Attempt(1, 1), storage, own, lambda: keeper, [], keys), keys, 0.0)
    while keeper.told < 3:
        feeder.offer([])
        time.sleep(0.001)
    feeder.close()
    assert keeper.held == [("step", 0)]


def test_the_own_node_holds_what_comes_later_and_standbys_what_they_held(tmp_path: Path) -> None:
    storage, own, standby = MemoryStorage(), Another(node_store(tmp_path / "a")), Another(node_store(tmp_path / "b"))
    keys = [("step", 0), ("step", 1)]
    standbys = [(lambda: standby, frozenset({0, 1}))]
    feeder = Feeder(lambda: Copier(Attempt(1, 1), storage, own.store, lambda: own, standbys, keys), keys)
    feeder.own([("step", 1), ("step", 2)])
    while own.held != [("step", 1), ("step", 2)] or standby.held != [("step", 1)]:
        time.sleep(0.001)
    feeder.close()


def test_nobody_waits_for_copies_and_those_not_made_are_counted(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "checkpoint")
    deaf = Another(node_store(tmp_path / "deaf"), deaf=True)
    standbys = [(lambda: deaf, frozenset({0}))]
    keys, own = [("step", 0)], node_store(tmp_path, 0, 0)
    feeder = Feeder(lambda: Copier(Attempt(1, 1), storage, own, lambda: deaf, standbys, keys), keys)
    stored = CutWriter(storage).write({0: {1: 1}})
    uncopied = 0
    feeder.offer(stored)
    while uncopied < 2:
        uncopied += feeder.take_counts().get("uncopied", 0)
    feeder.close()
    feeder._thread.join()
    for _ in range(100):
        feeder.offer(stored)  # nobody takes them any more: a queue that is full
    assert feeder.take_counts()["uncopied"] >= 100 - 64


# chronostream facts 14 and 35 for copies: what no version names goes, what the last two name stays
def test_a_node_keeps_what_the_last_two_versions_name_and_fetches_what_it_lacks(tmp_path: Path) -> None:
    storage = MemoryStorage()
    writer, store = CutWriter(storage), node_store(tmp_path)
    tending = Tending(store, storage, lambda: True)
    assert tending.turn([("step", 0)]).fetched == 0, "no version yet"
    unlogged = "segments/c0000000001-g000001-a0009-s00-0000-01.seg"
    assert store.put(unlogged, 10, [(0, b"\1" * 10)])
    assert store.put(unlogged.replace("c0000000001", "c0000000009"), 10, [(0, b"\1" * 10)]), "of a cut to come"
    first = writer.cut({0: {1: 1}, 1: {1: 1}})
    done = tending.turn([("step", 0)])
    assert (done.dropped, done.fetched, done.failed) == (1, 1, 0)
    assert all(kept(store, block) for block in first.slices["step", 0].blocks)
    assert not any(kept(store, block) for block in first.slices["step", 1].blocks), "it is not to hold that"
    for value in range(20):
        made = writer.cut({0: {2: value}})
    done = tending.turn([("step", 0)])
    assert (done.dropped, done.fetched) == (1, 20), "the cut to come was another one"
    rewrites = compact(storage, made, Attempt(1, 1), 1)
    made = writer.cut({1: {3: 3}}, rewrites=rewrites)
    done = tending.turn([("step", 0)])
    assert (done.dropped, done.fetched) == (0, 1), "what was rewritten; the version before is kept too"
    writer.cut({1: {4: 4}})
    assert tending.turn([("step", 0)]).dropped == len(rewrites[0].chain)
    assert all(kept(store, block) for block in made.slices["step", 0].blocks)


def test_a_node_does_not_take_damage_from_the_checkpoint(tmp_path: Path) -> None:
    storage, store = MemoryStorage(), node_store(tmp_path)
    made = CutWriter(storage).cut({0: {1: 1}})
    (block,) = made.slices["step", 0].blocks
    storage.objects[block.file] = bytes(len(storage.objects[block.file]))
    assert Tending(store, storage, lambda: True).turn([("step", 0)]).failed == 1
    assert not store.files()


@pytest.mark.parametrize("how", ["flipped", "cut off", "missing"])
def test_a_damaged_block_is_found_named_and_mended_from_a_copy(tmp_path: Path, how: str) -> None:
    storage = LocalStorage(tmp_path / "checkpoint")
    writer, store = CutWriter(storage), node_store(tmp_path / "node")
    made = writer.cut({slice: {slice: 1} for slice in range(3)})
    copied(storage, store, made, 1)
    assert examine(storage).damage == ()
    (block,) = made.slices["step", 1].blocks
    path = tmp_path / "checkpoint" / block.file
    before = path.read_bytes()
    if how == "flipped":
        flip(path, block.offset + 20)
    elif how == "cut off":
        os.truncate(path, block.offset + 20)
    else:
        path.unlink()
    found = examine(storage)
    broken = {"flipped": [1], "cut off": [1, 2], "missing": [0, 1, 2]}[how]
    assert [one.slice for one in found.damage] == broken
    assert found.whole == () and found.versions == (made.token,)
    mended, lost = repair(storage, found.broken, [Directory(tmp_path / "nowhere"), Directory(tmp_path / "node/memory")])
    assert mended == [block] and len(lost) == len(broken) - 1
    assert [one.slice for one in examine(storage).damage] == [slice for slice in broken if slice != 1]
    if how == "flipped":
        assert path.read_bytes() == before


def test_the_version_before_may_be_whole(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    writer = CutWriter(storage)
    first = writer.cut({0: {1: 1}})
    last = writer.cut({0: {1: 2}})
    (_, block) = last.slices["step", 0].blocks
    flip(tmp_path / block.file, block.offset + 20)
    found = examine(storage)
    assert found.versions == (first.token, last.token) and found.whole == (first.token,)
    assert [(one.block, one.versions) for one in found.damage] == [(block, (last.token,))]


def kept(store: NodeStore, block: BlockRef) -> bool:
    return any(fits(block, body) for _, body in store.find(block.file, block.offset, block.length))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
