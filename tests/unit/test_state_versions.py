"""Manifests, picks, generations, clean-up and compaction on a checkpoint directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.connect.sink import Staged
from headrace.driver.sparkcommits import clock_offset, committed, last_committed
from headrace.errors import CorruptionError, FencedError, StateError
from headrace.state.durable.changes import Change, digest_of, id_batch, no_ids, plus, total, with_ids
from headrace.state.durable.compaction import Compactor
from headrace.state.durable.loading import read_slice
from headrace.state.durable.segments import BlockRef, create_exclusively, write_segment
from headrace.state.durable.versions import Manifest, SliceVersion, Versions
from headrace.state.hashing import row_stamps
from headrace.tokens import Token

IDENTITY = {"job": "job", "slices": 8}


def opened(checkpoint: Path, **identity: Any) -> tuple[Versions, int]:
    versions = Versions(checkpoint)
    return versions, versions.open(IDENTITY | identity)


def manifest(token: Token, **more: Any) -> Manifest:
    return Manifest(token, more.pop("parent", None), **more)


@given(st.integers(1, 9999), st.integers(0, 10**8 - 2), st.integers(0, 999))
def test_tokens_are_read_back_and_sort_by_epoch(generation: int, epoch: int, attempt: int) -> None:
    token = Token(generation, epoch, attempt)
    assert Token.parse(str(token)) == token
    assert str(token) < str(Token(1, epoch + 1, 0))


def test_manifests_are_read_back(tmp_path: Path) -> None:
    versions, generation = opened(tmp_path)
    token, parent = Token(generation, 3, 1), Token(generation, 2, 0)
    block = BlockRef("segments/x.seg", 7, 100, "c" * 32, 3, full=True)
    slices = {("step#part", 5): SliceVersion((2**64 - 1, 1), (block, block))}
    made = manifest(token, parent=parent, slices=slices, staged=(Staged("out", "/x/y", 3),), finished=True)
    versions.write_manifest(made)
    assert versions.manifest(token) == made
    versions.close()


# chronostream fact 3: changing the slice count on a checkpoint is refused
@pytest.mark.parametrize(
    ("name", "value"), [("slices", 16), ("job", "other"), ("hash", "md5"), ("partitions", {"s": 3}), ("format", 2)]
)
def test_a_checkpoint_refuses_what_it_was_not_made_for(name: str, value: Any, tmp_path: Path) -> None:
    full = IDENTITY | {"hash": "siphash", "partitions": {"s": 2}, "format": 1}
    versions, _ = opened(tmp_path, **full)
    versions.close()
    with pytest.raises(StateError, match=rf"was made with {name} = .*, the job now has .*start with a new checkpoint"):
        opened(tmp_path, **(full | {name: value}))
    versions, generation = opened(tmp_path, **full)
    assert generation == 2, "the refused driver took no generation and let the lock go"
    versions.close()


def test_a_changed_step_is_refused_and_a_renamed_one_accepted(tmp_path: Path) -> None:
    opened(tmp_path, steps={"r": "tumbling 5 s", "gone": "x"})[0].close()
    with pytest.raises(
        StateError, match=r"step 'r' has changed .*(?s:.)*then: tumbling 5 s\n  now:  tumbling 6 s\nrename"
    ):
        opened(tmp_path, steps={"r": "tumbling 6 s"})
    opened(tmp_path, steps={"r": "tumbling 5 s", "new": "y"})[0].close()


# fault 16: two drivers on one checkpoint: the second is refused, the first unharmed
def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    versions, generation = opened(tmp_path)
    script = (
        "import sys; from pathlib import Path; from headrace.state.durable.versions import Versions\n"
        "Versions(Path(sys.argv[1])).open({'job': 'job', 'slices': 8})"
    )
    second = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert second.returncode != 0
    assert f"FencedError: checkpoint {tmp_path} is in use by another driver (process {os.getpid()})" in second.stderr
    with pytest.raises(FencedError, match="stop that one first or choose another checkpoint"):
        opened(tmp_path)
    versions.write_manifest(manifest(Token(generation, 0, 0)))
    versions.close()
    versions, newer = opened(tmp_path)
    assert newer == generation + 1
    versions.close()


def test_a_superseded_driver_writes_and_decides_nothing(tmp_path: Path) -> None:
    """As on storage without locks: the newer generation counts."""
    old, generation = opened(tmp_path)
    old.close()
    old._generation = generation
    new, newer = opened(tmp_path)
    with pytest.raises(FencedError, match=f"e00000000-g{generation:04d}-a000 is void"):
        old.write_manifest(manifest(Token(generation, 0, 0)))
    new.write_manifest(manifest(Token(newer, 0, 0)))
    with pytest.raises(FencedError, match="may not decide about epoch 0"):
        old.pick(0, None)
    assert new.picked(0) is None and new.pick(0, None) == Token(newer, 0, 0)
    new.close()


_RACER = """
import sys, time
from pathlib import Path
from headrace.state.durable.versions import Versions
from headrace.tokens import Token
root, attempt = Path(sys.argv[1]), int(sys.argv[2])
versions = Versions(root)
print("ready", flush=True)
while not (root / "go").exists():
    time.sleep(0.0001)
print([str(versions.pick(epoch, Token(1, epoch, attempt))) for epoch in range(40)])
"""


# chronostream fact 18: two drivers never publish different attempts of one epoch
def test_racing_drivers_pick_the_same_attempts(tmp_path: Path) -> None:
    versions, _ = opened(tmp_path)
    for epoch in range(40):
        for attempt in range(3):
            versions.write_manifest(manifest(Token(1, epoch, attempt)))
    racers = [
        subprocess.Popen([sys.executable, "-c", _RACER, str(tmp_path), str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    (tmp_path / "go").touch()
    said = [racer.communicate(timeout=60)[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert said[0] == said[1]
    assert [str(versions.picked(epoch)) for epoch in range(40)] == json.loads(said[0].replace("'", '"'))
    versions.close()


def test_the_first_to_create_wins(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    assert create_exclusively(path, b"first") and not create_exclusively(path, b"second")
    assert path.read_bytes() == b"first" and [p.name for p in path.parent.iterdir()] == ["file"]


def test_picks_obey_earlier_picks_and_prefer_what_was_committed(tmp_path: Path) -> None:
    versions, _ = opened(tmp_path)
    assert versions.pick(0, None) is None and versions.last_picked() is None, "no attempt left a manifest"
    for attempt in range(3):
        versions.write_manifest(manifest(Token(1, 0, attempt)))
    assert versions.manifests_of(0) == [Token(1, 0, a) for a in range(3)] and versions.manifests_of(1) == []
    assert versions.pick(0, Token(1, 0, 1)) == Token(1, 0, 1)
    assert versions.pick(0, Token(1, 0, 2)) == versions.pick(0, None) == Token(1, 0, 1)
    versions.write_manifest(manifest(Token(1, 1, 0)))
    versions.write_manifest(manifest(Token(1, 1, 4)))
    assert versions.pick(1, Token(9, 1, 0)) == Token(1, 1, 4), "an unknown preference: the highest attempt"
    assert versions.last_picked() == Token(1, 1, 4) and [t.epoch for t in versions.picks()] == [0, 1]
    versions.close()


def damaged_files(checkpoint: Path) -> Versions:
    versions, _ = opened(checkpoint)
    for epoch in range(2):
        for attempt in range(2):
            versions.write_manifest(manifest(Token(1, epoch, attempt)))
        versions.pick(epoch, Token(1, epoch, 0))
    versions.close()
    return versions


# chronostream fact 34: a flipped bit, truncation, deletion and swap are each detected and named
def test_every_flipped_bit_of_a_pick_is_found(tmp_path: Path) -> None:
    versions = damaged_files(tmp_path)
    path = versions.root / "picks" / "00000001"
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(CorruptionError, match="pick 00000001 "):
            versions.picked(1)


def test_every_flipped_bit_of_a_manifest_is_found(tmp_path: Path) -> None:
    versions = damaged_files(tmp_path)
    token = Token(1, 1, 0)
    path = versions.root / "manifests" / f"{token}.json"
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            same = versions.manifest(token) == Manifest(token, None)
        except CorruptionError as error:
            assert str(token) in str(error)
        else:
            assert same and changed != data, "a flipped bit that changes nothing, such as the case of a hex escape"


@pytest.mark.parametrize("kind", ["picks", "manifests"])
@pytest.mark.parametrize("damage", ["truncate", "empty", "delete", "swap"])
def test_damaged_picks_and_manifests_are_named(kind: str, damage: str, tmp_path: Path) -> None:
    versions = damaged_files(tmp_path)
    name = "00000001" if kind == "picks" else f"{Token(1, 1, 0)}.json"
    other = "00000000" if kind == "picks" else f"{Token(1, 1, 1)}.json"
    path = versions.root / kind / name
    match damage:
        case "truncate":
            path.write_bytes(path.read_bytes()[:-2])
        case "empty":
            path.write_bytes(b"")
        case "delete":
            path.unlink()
        case "swap":
            data = path.read_bytes()
            path.write_bytes((versions.root / kind / other).read_bytes())
            (versions.root / kind / other).write_bytes(data)
    if kind == "picks" and damage == "delete":
        assert versions.picked(1) is None, "the caller knows that the epoch was committed"
        return
    with pytest.raises(CorruptionError) as caught:
        versions.manifest(versions.picked(1) or Token(1, 1, 0))
    assert name.removesuffix(".json") in str(caught.value)


def test_a_damaged_identity_is_named(tmp_path: Path) -> None:
    versions = damaged_files(tmp_path)
    (versions.root / "job.json").write_bytes(b'{"job": "jo')
    with pytest.raises(CorruptionError, match=r"job.json cannot be read"):
        opened(tmp_path)


class Writer:
    """Makes epochs of one step with real blocks: each puts some rows and deletes others."""

    def __init__(self, checkpoint: Path) -> None:
        self.versions, self.generation = opened(checkpoint)
        self.images: dict[int, dict[int, int]] = {}
        self.last: Manifest | None = None

    def epoch(self, puts: dict[int, dict[int, int]], drops: dict[int, set[int]] | None = None) -> Manifest:
        """``puts[slice]`` maps row numbers to values."""
        epoch = self.last.token.epoch + 1 if self.last else 0
        token = Token(self.generation, epoch, 0)
        changes = []
        for slice in sorted({*puts, *(drops or {})}):
            image = self.images.setdefault(slice, {})
            digest = digest_of(rows(image))
            gone = {n: image.pop(n) for n in (drops or {}).get(slice, set()) if n in image}
            before = {n: image[n] for n in puts.get(slice, {}) if n in image}
            for part in (gone, before):
                digest = plus(digest, total(row_stamps(rows(part))) if part else (0, 0), -1)
            new = rows(puts.get(slice, {}))
            image.update(puts.get(slice, {}))
            digest = plus(digest, digest_of(new))
            assert digest == digest_of(rows(image))
            deletes = id_batch((np.array([*gone], np.uint64), np.array([*gone], np.uint64))) if gone else no_ids()
            changes.append(("step", Change(slice, new, deletes, digest)))
        slices = dict(self.last.slices) if self.last else {}
        for stored in write_segment(self.versions.root, f"segments/{token}-s00-0000-00.seg", changes):
            old = slices.get(("step", stored.slice), SliceVersion((0, 0), ()))
            slices["step", stored.slice] = SliceVersion(stored.digest, (*old.blocks, stored.block))
        made = Manifest(token, self.last.token if self.last else None, slices)
        self.versions.write_manifest(made)
        return made

    def commit(self, made: Manifest) -> None:
        assert self.versions.pick(made.token.epoch, made.token) == made.token
        self.last = made

    def check(self, made: Manifest) -> None:
        """Every slice of the version can be read and has the rows it should have."""
        for (step, slice), version in made.slices.items():
            image = read_slice(self.versions.root, step, slice, version)
            assert dict(zip(image.column("n").to_pylist(), image.column("v").to_pylist())) == self.images[slice]


def rows(image: dict[int, int]) -> pa.RecordBatch:
    batch = pa.record_batch({"n": pa.array([*image], pa.int64()), "v": pa.array([*image.values()], pa.int64())})
    ids = np.array([*image], np.uint64)
    return with_ids(batch, (ids, ids))


# chronostream fact 35: clean-up keeps everything the last two picked manifests reference, nothing older
@given(st.lists(st.sets(st.integers(0, 2), min_size=1), min_size=1, max_size=7))
@settings(max_examples=20)
def test_clean_up_keeps_the_last_two_versions(epochs: list[set[int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        writer = Writer(Path(directory))
        made: list[Manifest] = []
        for n, slices in enumerate(epochs):
            made.append(writer.epoch({slice: {n % 4: n} for slice in slices}))
            writer.commit(made[-1])
        root = writer.versions.root
        torn, foreign = (
            root / "segments" / ".e00000000-g0001-a000-s00-0000-00.seg.1.abc.tmp",
            root / "segments" / ".foreign",
        )
        torn.write_bytes(b"torn")
        foreign.write_bytes(b"")
        writer.versions.collect_garbage(running_epoch=len(made))
        needed = {block.file for m in made[-2:] for v in m.slices.values() for block in v.blocks}
        left = {str(p.relative_to(root)) for p in (root / "segments").glob("*.seg")}
        assert left == needed | {f"segments/{m.token}-s00-0000-00.seg" for m in made[-2:]}
        assert foreign.exists() and torn.exists() == (len(made) <= 2)
        assert {p.name for p in (root / "manifests").iterdir()} == {f"{m.token}.json" for m in made[-2:]}
        assert [t.epoch for t in writer.versions.picks()] == [m.token.epoch for m in made[-2:]]
        writer.check(made[-1])
        assert writer.versions.collect_garbage(running_epoch=len(made)) == []
        writer.versions.close()


def test_clean_up_leaves_running_attempts_and_unpicked_newer_manifests_alone(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for n in range(4):
        writer.commit(writer.epoch({0: {0: n}}))
    running = writer.epoch({0: {0: 99}})
    writer.versions.collect_garbage(running_epoch=4)
    writer.check(running)
    assert writer.versions.manifest(running.token) == running
    writer.versions.close()


# chronostream fact 8: the compacted base has the owner's digest; no version is ever broken by compaction
def test_compaction_replaces_long_chains(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    compactor = by_hand(writer)
    lengths = []
    for n in range(40):
        made = compactor.replace(writer.epoch({0: {n % 5: n}, 1: {0: n}}, {0: {(n + 2) % 5}}))
        writer.commit(made)
        compactor.tidy(running_epoch=n + 1)
        work(compactor)
        lengths.append(len(made.slices["step", 0].blocks))
        writer.check(made)
    assert lengths[:12] == [*list(range(1, 12)), 2] and max(lengths) == 12, lengths
    assert len(list((writer.versions.root / "segments").iterdir())) <= 16
    writer.versions.close()


def by_hand(writer: Writer) -> Compactor:
    """A compactor whose thread has ended: ``work`` does what the thread would do."""
    compactor = Compactor(writer.versions)
    compactor.close()
    return compactor


def work(compactor: Compactor) -> None:
    compactor._work.put(None)
    compactor._run()


def test_a_rewrite_that_waits_is_not_cleaned_up(tmp_path: Path) -> None:
    """Compaction may take longer than two epochs: what it wrote is still needed when it is done."""
    writer = Writer(tmp_path)
    compactor = by_hand(writer)
    for n in range(11):
        writer.commit(writer.epoch({0: {n % 5: n}}))
    assert writer.last is not None
    compactor._compact(writer.last)
    for n in range(3):
        writer.commit(writer.epoch({0: {0: n}}))
    compactor.tidy(writer.last.token.epoch + 1)
    work(compactor)
    made = compactor.replace(writer.epoch({0: {1: 7}}))
    assert made.slices["step", 0].blocks[0].full and len(made.slices["step", 0].blocks) == 5
    writer.commit(made)
    writer.check(made)
    writer.versions.close()


@pytest.mark.parametrize("chain", ["shorter", "as long", "longer"])
def test_a_rewrite_of_another_chain_is_not_used(chain: str, tmp_path: Path) -> None:
    """After an attempt was run again, the chain that was rewritten may no longer be the slice's beginning."""
    writer = Writer(tmp_path)
    compactor = by_hand(writer)
    for n in range(11):
        writer.commit(writer.epoch({0: {0: n}}))
    assert writer.last is not None
    compactor._compact(writer.last)
    version = writer.last.slices["step", 0]
    blocks = {
        "shorter": version.blocks[1:],
        "as long": (*version.blocks[:-1], replace(version.blocks[-1], file=f"segments/{Token(1, 10, 1)}-s00.seg")),
        "longer": (
            replace(version.blocks[0], offset=version.blocks[0].offset + 8),
            *version.blocks[1:],
            version.blocks[0],
        ),
    }[chain]
    other = Manifest(Token(1, 11, 0), writer.last.token, {("step", 0): SliceVersion(version.digest, blocks)})
    assert compactor.replace(other) is other
    writer.versions.close()


def test_background_work_that_fails_is_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(tmp_path)
    compactor = Compactor(writer.versions)
    for n in range(12):
        writer.commit(writer.epoch({0: {0: n}}))
    assert writer.last is not None
    (writer.versions.root / writer.last.slices["step", 0].blocks[3].file).write_bytes(b"broken")
    compactor._work.put(writer.last)
    compactor.close()
    assert "background work on the checkpoint failed" in caplog.text and "e00000003" in caplog.text
    writer.versions.close()


# chronostream fact 34, loading: a chain that does not have its digest is named
def test_a_lost_change_is_found_by_the_digest(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for n in range(3):
        writer.commit(writer.epoch({0: {n: n}}))
    assert writer.last is not None
    version = writer.last.slices["step", 0]
    for left_out in range(3):
        blocks = version.blocks[:left_out] + version.blocks[left_out + 1 :]
        with pytest.raises(
            CorruptionError, match=r"slice 0 of step 'step' does not have its digest after merging segments"
        ):
            read_slice(writer.versions.root, "step", 0, SliceVersion(version.digest, blocks))
    writer.versions.close()


def test_spark_logs_are_read(tmp_path: Path) -> None:
    assert last_committed(tmp_path) is None and clock_offset(tmp_path) == 0 and not committed(tmp_path, 0)
    (tmp_path / "commits").mkdir()
    (tmp_path / "offsets").mkdir()
    for name in ("0", "1", "10", ".11.crc", "tmp"):
        (tmp_path / "commits" / name).write_text("v1\n{}")
    assert last_committed(tmp_path) == 10 and committed(tmp_path, 1) and not committed(tmp_path, 2)
    (tmp_path / "offsets" / "9").write_text('v1\n{"batchWatermarkMs":0}\n{"0":3}')
    assert clock_offset(tmp_path) == 3
    (tmp_path / "offsets" / "10").write_text('v1\n{"batchWatermarkMs":0}\n{"0":7,"1":8}')
    assert clock_offset(tmp_path) == 8
    (tmp_path / "offsets" / "11").write_text("v1\n{}\n-")
    assert clock_offset(tmp_path) == 0
