"""Durable state: segments, manifests, picks, clean-up, and what damage to them does."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import CorruptionError, FencedError, ProtocolError, StateError
from headrace.graph.stages import Edge
from headrace.runtime.frames import Frame, Kind
from headrace.runtime.meter import ChannelMeter
from headrace.runtime.operators import Forward
from headrace.runtime.plan import Description
from headrace.runtime.subtask import Inbound
from headrace.spark.compaction import Compactor
from headrace.spark.epochs import audit
from headrace.state.changes import digest_of
from headrace.state.keyed import KeyedStore
from headrace.state.loading import read_slice
from headrace.state.segments import create_exclusively, write_segment
from headrace.state.versions import Manifest, SliceVersion, Versions
from headrace.testing import LocalRun, scripted
from headrace.tokens import Token

SCHEMA = pa.schema([("x", pa.int64())])


def _store(slices: int = 4, **options: Any) -> KeyedStore:
    return KeyedStore("step", lambda keys: [int(str(key)) % slices for key in keys], **options)


def _written(root: Path, store: KeyedStore, epoch: int) -> dict[int, SliceVersion]:
    name = f"segments/{Token(1, epoch, 0)}-s00-0000-00.seg"
    stored = write_segment(root, name, [("step", change) for change in store.changes()])
    return {change.slice: SliceVersion(change.digest, (change.block,)) for change in stored}


# chronostream fact 2
def test_slices_are_the_same_in_every_process() -> None:
    code = (
        "import pyarrow as pa\nfrom headrace.state.hashing import slices_of\n"
        "columns = [pa.array(['a', 'bc', None, 'déf']), pa.array([1, -2, 3, None])]\n"
        "print(slices_of(columns, 64).tolist(), slices_of(columns[:1], 64).tolist(), "
        "slices_of([pa.array([0.0, -0.0, float('nan'), 1.5])], 64).tolist())"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
        ).stdout
        for seed in ("0", "1", "12345")
    }  # fmt: skip
    assert len(answers) == 1
    floats = next(iter(answers)).split("] [")[2]
    assert floats.split(", ")[0] == floats.split(", ")[1], "0.0 and -0.0 are one key"


# chronostream fact 3
def test_changing_the_slice_count_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    versions.open({"job": "j", "slices": 64})
    versions.close()
    with pytest.raises(StateError, match="slices = 64"):
        Versions(tmp_path).open({"job": "j", "slices": 32})


# chronostream fact 4
def test_get_after_delete_misses_at_once_and_after_restore(tmp_path: Path) -> None:
    store = _store()
    store.set("v", 1, None, "kept")
    store.set("v", 5, None, "gone")
    first = _written(tmp_path, store, 0)
    assert store.delete("v", 5)
    assert store.get("v", 5) is None
    second = _written(tmp_path, store, 1)
    version = SliceVersion(second[1].digest, (*first[1].blocks, *second[1].blocks))
    loaded = _store()
    loaded.load(1, read_slice(tmp_path, "step", 1, version), version.digest)
    assert loaded.get("v", 5) is None
    assert loaded.get("v", 1) == "kept"
    assert not loaded.delete("v", 5)


# chronostream fact 5
def test_updates_after_the_change_was_taken_are_readable_and_not_in_it() -> None:
    store = _store()
    store.set("v", 1, None, "before")
    (change,) = store.changes()
    store.set("v", 1, None, "after")
    assert store.get("v", 1) == "after"
    assert b"before" in change.puts.column("value")[0].as_py()
    assert change.puts.num_rows == 1


# chronostream fact 6
def test_a_value_changed_in_place_without_set_is_noticed_in_debug_mode() -> None:
    store = _store(debug=True)
    store.set("v", 1, None, [1])
    store.changes()
    store.get("v", 1).append(2)
    with pytest.raises(StateError, match="without set"):
        store.changes()
    assert store.get("v", 1) == [1], "the change in place never reached the state"


# chronostream fact 7
def test_bytes_of_a_change_depend_on_dirty_keys_not_on_state(tmp_path: Path) -> None:
    sizes = []
    for entries in (100, 10_000):
        store = _store()
        for key in range(entries):
            store.set("v", key, None, key)
        store.changes()
        for key in range(50):
            store.set("v", key, None, key + 1)
        stored = write_segment(tmp_path, f"segments/{entries}.seg", [("step", c) for c in store.changes()])
        sizes.append(sum(change.block.length for change in stored))
    assert sizes[1] <= sizes[0] * 1.1


# chronostream fact 8
def test_base_plus_changes_and_the_compacted_base_have_the_owners_digest(tmp_path: Path) -> None:
    versions, store, rng = Versions(tmp_path), _store(), np.random.default_rng(3)
    chains: dict[int, SliceVersion] = {}
    for epoch in range(15):
        for key in rng.integers(0, 60, 40).tolist():
            if rng.random() < 0.3:
                store.delete("v", key)
            else:
                store.set("v", key, None, [epoch, key])
        for slice, version in _written(versions.root, store, epoch).items():
            old = chains.get(slice, SliceVersion((0, 0), ()))
            chains[slice] = SliceVersion(version.digest, (*old.blocks, *version.blocks))
    manifest = Manifest(Token(1, 14, 0), None, {("step", slice): v for slice, v in chains.items()})
    compactor = Compactor(versions)
    assert compactor.replace(manifest) is manifest, "the chains are long, but nothing has been rewritten yet"
    compactor.close()
    shorter = compactor.replace(manifest)
    for key, version in shorter.slices.items():
        assert len(version.blocks) == 1
        assert version.digest == manifest.slices[key].digest
        assert digest_of(read_slice(versions.root, *key, version)) == version.digest
        before = read_slice(versions.root, *key, manifest.slices[key])
        after = read_slice(versions.root, *key, version)
        assert sorted(map(str, before.to_pylist())) == sorted(map(str, after.to_pylist()))


# chronostream fact 9
def test_one_append_to_a_long_queue_ships_less_than_a_kilobyte(tmp_path: Path) -> None:
    store = _store(1)
    for i in range(200_000):
        store.set("recent", 0, i, i)
    store.changes()
    store.set("recent", 0, store.last_sub("recent", 0) + 1, 7)
    (stored,) = write_segment(tmp_path, "segments/one.seg", [("step", c) for c in store.changes()])
    assert stored.block.rows == 1
    assert int(pa.compute.sum(pa.compute.binary_length(store_put(tmp_path, stored))).as_py()) < 100


def store_put(root: Path, stored: Any) -> pa.Array:
    from headrace.state.segments import read_block

    return read_block(root, stored.block, "step", stored.slice)[0].column("value")


# chronostream fact 16
def test_a_manifest_without_commit_is_not_used_after_a_restart(tmp_path: Path) -> None:
    rows = [{"k": i % 3, "v": i} for i in range(90)]

    def make() -> hr.Job:
        job = hr.Job("counted")
        job.source("rows", scripted(rows)).key_by("k").window(hr.whole_input()).reduce(name="n", n=hr.count())
        return job

    first = LocalRun(make(), tmp_path, mode="microbatch")
    first.epoch(commit=False)
    first.close()
    assert first.versions.manifests_of(0)
    second = LocalRun(make(), tmp_path, mode="microbatch")
    assert second.next_epoch == 0
    second.run()
    assert sorted((r["k"], r["n"]) for r in second.rows("n.collected")) == [(0, 30), (1, 30), (2, 30)]
    second.close()


# chronostream fact 17
def test_a_commit_without_pick_is_picked_not_run_again(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    generation = versions.open({"job": "j"})
    for attempt in range(2):
        versions.write_manifest(Manifest(Token(generation, 0, attempt), None))
    assert versions.picked(0) is None
    assert versions.pick(0, None) == Token(generation, 0, 1), "the newest complete attempt is what Spark committed"
    assert versions.pick(0, Token(generation, 0, 0)) == Token(generation, 0, 1), "a pick never changes"
    versions.close()


# chronostream fact 18
def test_racing_drivers_never_pick_different_attempts(tmp_path: Path) -> None:
    for epoch in range(30):
        tokens = [Token(g, epoch, 0) for g in range(1, 5)]
        versions = Versions(tmp_path)
        for token in tokens:
            (versions.root / "manifests").mkdir(parents=True, exist_ok=True)
            (versions.root / "manifests" / f"{token}.json").write_bytes(Manifest(token, None).to_bytes())
        with ThreadPoolExecutor(4) as pool:
            picks = set(pool.map(lambda token, e=epoch: Versions(tmp_path).pick(e, token), tokens))
        assert len(picks) == 1


def test_a_superseded_driver_cannot_write_a_manifest(tmp_path: Path) -> None:
    old = Versions(tmp_path)
    generation = old.open({"job": "j"})
    create_exclusively(old.root / "generations" / f"{generation + 1:06d}", b"{}")
    with pytest.raises(FencedError, match="newer driver"):
        old.write_manifest(Manifest(Token(generation, 0, 0), None))
    old.close()


def _inbound() -> Inbound:
    edge = Edge(0, "a", "b", 0, 1, ("k",), True)
    inbound = Inbound(edge, Forward("b", 1, SCHEMA), SCHEMA, None, 4, ChannelMeter(0))
    inbound.begin(range(2))
    return inbound


def _frame(sequence: int, kind: Kind = Kind.DATA, sender: int = 0) -> Frame:
    return Frame(kind, 0, sender, sequence, 1, slices=np.array([1], np.uint16), counts=np.array([1], np.uint32))


# chronostream fact 19
def test_a_gap_aborts_and_a_repeat_is_dropped() -> None:
    inbound = _inbound()
    assert inbound.accept(_frame(1))
    assert not inbound.accept(_frame(1))
    assert inbound.consumed[0].tolist() == [0, 1, 0, 0]
    with pytest.raises(ProtocolError, match="buffers are missing"):
        inbound.accept(_frame(3))
    assert inbound.accept(_frame(1, sender=1)), "senders are counted apart"
    with pytest.raises(ProtocolError, match="buffers are missing"):
        inbound.accept(_frame(2, Kind.END, sender=1))


def _description(stage: int, index: int, sent: Any = None, consumed: Any = None) -> Description:
    return Description(stage, index, Token(1, 0, 0), (), sent or {}, consumed or {}, (), {}, True)


# chronostream fact 20
def test_what_was_sent_must_have_been_consumed_per_sender_edge_and_slice() -> None:
    sent = _description(0, 0, {0: [3, 0, 2]})
    audit([sent, _description(1, 0, consumed={0: {0: [3, 0, 0]}}), _description(1, 1, consumed={0: {0: [0, 0, 2]}})])
    with pytest.raises(ProtocolError, match="2 not consumed"):
        audit([sent, _description(1, 0, consumed={0: {0: [3, 0, 0]}})])
    with pytest.raises(ProtocolError):
        audit([sent, _description(1, 0, consumed={0: {0: [2, 1, 2]}})])
    with pytest.raises(ProtocolError, match="did not send"):
        audit([sent, _description(1, 0, consumed={0: {0: [3, 0, 2], 1: [1, 0, 0]}})])


# chronostream fact 34
@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "swap"])
@pytest.mark.parametrize("kind", ["segments", "manifests"])
def test_damage_is_found_and_named(tmp_path: Path, kind: str, damage: str) -> None:
    versions, store = Versions(tmp_path), _store()
    versions.root.mkdir()
    tokens = []
    for epoch in range(2):
        for key in range(40):
            store.set("v", key, None, [epoch, key])
        slices = {("step", s): v for s, v in _written(versions.root, store, epoch).items()}
        tokens.append(Token(1, epoch, 0))
        versions.write_manifest(Manifest(tokens[-1], None, slices))
    files = sorted((versions.root / kind).iterdir())
    assert len(files) == 2
    data = bytearray(files[1].read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 4
        files[1].write_bytes(data)
    elif damage == "cut":
        files[1].write_bytes(data[: len(data) // 2])
    elif damage == "delete":
        files[1].unlink()
    else:
        files[1].write_bytes(files[0].read_bytes())

    def read_all() -> None:
        for (step, slice), version in versions.manifest(tokens[1]).slices.items():
            read_slice(versions.root, step, slice, version)

    with pytest.raises(CorruptionError) as caught:
        read_all()
    assert str(tokens[1]) in str(caught.value)


# chronostream fact 35
def test_clean_up_keeps_what_the_last_two_picked_versions_need_and_nothing_older(tmp_path: Path) -> None:
    versions, store = Versions(tmp_path), _store(1)
    generation = versions.open({"job": "j"})
    chain: tuple[Any, ...] = ()
    for epoch in range(6):
        store.set("v", epoch, None, epoch)
        version = _written(versions.root, store, epoch)[0]
        chain = version.blocks if epoch == 3 else (*chain, *version.blocks)  # epoch 3 stands for a compaction
        token = Token(generation, epoch, 0)
        versions.write_manifest(Manifest(token, None, {("step", 0): SliceVersion(version.digest, chain)}))
        versions.write_manifest(Manifest(Token(generation, epoch, 1), None))
        versions.pick(epoch, token)
    versions.collect_garbage(running_epoch=6)
    left = {
        kind: sorted(p.name for p in (versions.root / kind).iterdir()) for kind in ("segments", "manifests", "picks")
    }
    assert [name[:9] for name in left["segments"]] == ["e00000003", "e00000004", "e00000005"]
    assert left["picks"] == ["00000004", "00000005"]
    assert f"{Token(generation, 4, 0)}.json" in left["manifests"]
    assert f"{Token(generation, 5, 0)}.json" in left["manifests"]
    assert not any(name.startswith(("e00000000", "e00000001", "e00000002", "e00000003")) for name in left["manifests"])
    assert versions.collect_garbage(running_epoch=6) == []
    versions.close()


# chronostream fact 33
def test_zombies_of_an_older_query_or_attempt_change_nothing(tmp_path: Path) -> None:
    job = hr.Job("zombies")
    job.source("rows", scripted([{"k": 1}])).key_by("k").reduce(name="n", n=hr.count())
    run = LocalRun(job, tmp_path, parallelism=1)
    coordinator = run.coordinator
    query = coordinator.new_query()
    hello = {"query": query, "epoch": 0, "stage": 0, "index": 0, "inventory": None}
    assert coordinator.hello(b"a", hello) == []
    assert coordinator.hello(b"z", {**hello, "query": query - 1, "stage": 1})[0][1] == "fenced"
    plans = coordinator.hello(b"b", {**hello, "stage": 1})
    assert [kind for _, kind, _ in plans] == ["plan", "plan"]
    token = plans[0][2]["token"]
    late = {**_description(1, 0).to_wire(), "token": str(Token(9, 0, 0))}
    assert coordinator.described(b"b", late)[0][1] == "fenced"
    assert coordinator.described(b"z", {**_description(1, 0).to_wire(), "token": token})[0][1] == "fenced"
    assert coordinator.sealed is None
    run.close()
