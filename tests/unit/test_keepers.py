"""Keepers as real processes: who may ask, what becomes of copies when a keeper or its executor dies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from durable import CutWriter

from headrace.channel.keeping import starting
from headrace.channel.keeping.asks import PutExtents, packed
from headrace.channel.keeping.keeperclient import KeeperClient
from headrace.channel.keeping.starting import OwnNode, own_node
from headrace.channel.keeping.sweeping import sweep
from headrace.channel.keys import Address, RunKeys
from headrace.driver.farcopies import FarCopies
from headrace.errors import CorruptionError
from headrace.runtime.cutmaking.copying import load_nearest
from headrace.runtime.orders import NO_ORDERS
from headrace.runtime.plan import Ticket
from headrace.state.copies.restoring import examine, repair
from headrace.state.durable.segments import BlockRef, checksum
from headrace.state.durable.storage import LocalStorage
from headrace.tokens import Attempt

FILE = "segments/c0000000001-g000001-a0001-s01-0000-00.seg"
BODY = b"\x05body of a block"
BLOCK = BlockRef(FILE, 7, len(BODY), checksum(BODY), 1, False)
ABSENT = BlockRef(FILE, 100, 5, "", 1, False)


class Executor:
    """A process in the place of Spark's daemon, and what is needed to have keepers for it."""

    def __init__(self, root: Path) -> None:
        self.address = RunKeys.make().address("tcp://127.0.0.1:1")
        self.checkpoint = root / "checkpoint"
        self.daemon = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def node(self, address: Address | None = None) -> OwnNode:
        found = own_node(self.checkpoint, address or self.address, self.daemon.pid)
        assert found is not None
        return found

    def keepers(self) -> list[psutil.Process]:
        return [
            child for child in psutil.Process().children()
            if child.status() != psutil.STATUS_ZOMBIE and "headrace.channel.keeping.keeper" in child.cmdline()
            and child.cmdline()[-1].startswith(f"{self.daemon.pid}-")
        ]  # fmt: skip

    def close(self) -> None:
        self.daemon.kill()
        self.daemon.communicate()
        until(lambda: not self.keepers())


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    for folder in ("memory", "disk"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(starting, "_MEMORY", tmp_path / "memory")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
    made = Executor(tmp_path)
    yield made
    made.close()


def patient(own: OwnNode) -> KeeperClient:
    """Waits for a keeper that a busy machine is slow to start."""
    return KeeperClient(own.node, own.address, 60.0)


def until(happened: Callable[[], bool]) -> None:
    """pytest's timeout ends what never happens."""
    while not happened():
        time.sleep(0.02)


def test_copies_go_in_and_out_and_are_gone_with_the_executor(executor: Executor, tmp_path: Path) -> None:
    own = executor.node()
    client = patient(own)
    assert client.put(FILE, 200, [(7, BODY)])
    assert client.get([BLOCK, ABSENT]) == [BODY, None]
    assert client.hold(Attempt(1, 1), [("step", 0)])
    assert not client.hold(Attempt(1, 0), [("step", 0)]), "an attempt that is over"
    assert [*own.store.find(FILE, 7, len(BODY))] == [("memory", BODY)], "the same without a keeper"
    client.close()
    modes = [path.stat().st_mode & 0o777 for path in tmp_path.glob("*/headrace-*/**") if path.is_dir()]
    assert modes and set(modes) == {0o700}
    executor.close()
    assert not [*tmp_path.glob("*/headrace-*/*")]


def test_all_workers_of_an_executor_find_the_same_keeper(executor: Executor) -> None:
    nodes = {executor.node().node for _ in range(3)}
    assert len(nodes) == len(executor.keepers()) == 1
    other = executor.node(RunKeys.make().address("tcp://127.0.0.1:1"))
    assert other.node not in nodes, "another run has its own"


def test_only_holders_of_the_runs_key_are_answered(executor: Executor) -> None:
    own = executor.node()
    public, secret = zmq.curve_keypair()
    stranger = KeeperClient(own.node, replace(executor.address, client_public=public, client_secret=secret), 1.0)
    assert not stranger.put(FILE, 200, [(7, BODY)])
    stranger.close()
    client = patient(own)
    assert client.get([BLOCK]) == [None]
    client.close()


def test_names_that_are_no_segments_are_refused(executor: Executor) -> None:
    own = executor.node()
    client = patient(own)
    for name in ("log/0000000001", "segments/../lock", "/etc/passwd", "segments/.node.tmp", "lock", ""):
        assert not client.put(name, 200, [(7, BODY)])
        assert client.get([BlockRef(name, 0, 4, "", 1, False)]) == [None]
    assert client.put(FILE, 200, [(7, BODY)]), "and it goes on"
    assert not client.put(FILE, 10, [(7, BODY)]), "beyond the end"
    assert not client.put(FILE, 200, [(-7, BODY)])
    assert client.get([BlockRef(FILE, -1, 4, "", 1, False)]) == [None]
    assert client.get([BlockRef(FILE, 7, 10**12, "", 1, False)]) == [None]
    client.close()


def test_what_is_no_message_changes_nothing(executor: Executor) -> None:
    own = executor.node()
    client = patient(own)
    whole = packed(PutExtents(1, FILE, 200, [(7, BODY)]))
    for data in (b"", b"\x80", whole[:-1], whole + b"\x00", b"\xff" * 1000, b"\x91" * 5000):
        client._socket.send(data)
    assert client.get([BLOCK]) == [None]
    client.close()


def test_a_killed_keeper_is_missed_by_nobody_and_another_one_has_its_copies(executor: Executor) -> None:
    own = executor.node()
    client = patient(own)
    assert client.put(FILE, 200, [(7, BODY)])
    client.close()
    client = KeeperClient(own.node, executor.address, 0.5)
    (process,) = executor.keepers()
    process.kill()
    process.wait()
    assert client.get([BLOCK]) == [None]
    assert not client.put(FILE, 200, [(30, BODY)])
    client.close()
    assert [*own.store.find(FILE, 7, len(BODY))] == [("memory", BODY)]
    again = executor.node()
    assert (again.node.name, again.node != own.node) == (own.node.name, True)
    client = patient(again)
    assert client.get([BLOCK]) == [BODY]
    client.close()


def test_a_keeper_fetches_what_it_is_to_hold_and_the_log_names(executor: Executor) -> None:
    writer = CutWriter(LocalStorage(executor.checkpoint / "headrace"))
    own = executor.node()
    client = patient(own)
    assert client.complete_to([("step", 1)]) is None, "it is to hold nothing yet"
    assert client.hold(Attempt(1, 1), [("step", 1)])
    made = writer.cut({0: {1: 10}, 1: {2: 20}})
    (block,) = made.slices["step", 1].blocks
    until(lambda: client.get([block]) != [None])
    (body,) = client.get([block])
    assert body is not None and checksum(body) == block.checksum
    assert client.get([*made.slices["step", 0].blocks]) == [None], "another node's"
    until(lambda: client.complete_to([("step", 1)]) == made.token.cut)
    assert client.complete_to([("step", 0), ("step", 1)]) is None
    client.close()


# chronostream 6(d): a subtask that gets a slice loads it from whoever has it, also if the checkpoint has not
def test_a_slice_is_loaded_from_a_peer_and_mends_the_checkpoint(executor: Executor, tmp_path: Path) -> None:
    storage = LocalStorage(executor.checkpoint / "headrace")
    made = CutWriter(storage).cut({0: {1: 10}, 1: {2: 20}, 2: {3: 30}})
    other = Executor(tmp_path)
    other.address = executor.address
    try:
        own, peer = executor.node(), other.node()
        keeper = patient(peer)
        for slice in (0, 1):
            (block,) = made.slices["step", slice].blocks
            body = storage.get_range(block.file, block.offset, block.length)
            assert keeper.put(block.file, block.offset + len(body), [(block.offset, body)])
        keeper.close()
        store = Kept()
        nodes = (own.node, peer.node)
        ticket = Ticket(Attempt(1, 1), made.token, 2, (0, 1, 2), (), NO_ORDERS, nodes, {0: (1,), 1: (), 2: ()}, {}, {})
        loading = load_nearest(storage, ticket, own, {"step": (store, (0, 1, 2))})
        assert (loading.slices, loading.broken, sorted(store.loaded)) == ({"peer": 1, "checkpoint": 2}, (), [0, 1, 2])
        storage.delete(made.slices["step", 0].blocks[0].file)
        loading = load_nearest(storage, ticket, own, {"step": (store, (0, 1))})
        assert loading.slices == {"peer": 2} and loading.broken == made.slices["step", 1].blocks
        with pytest.raises(CorruptionError, match="slice 2 in segments/.* cannot be read"):
            load_nearest(storage, ticket, own, {"step": (store, (2,))})
        mended, lost = repair(storage, loading.broken, [FarCopies(executor.address, lambda: nodes)])
        assert (tuple(mended), lost) == (loading.broken, [])
        assert [one.slice for one in examine(storage).damage] == [0, 2], "only what was asked for"
    finally:
        other.close()


class Kept:
    """A store that says what it was given."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def expect(self, rows: int) -> None: ...

    def load(self, slice: int, image: Any, digest: Any) -> None:
        self.loaded.append(slice)

    def swap(self) -> Any: ...

    def dirty_bytes(self) -> int:
        return 0


def test_what_killed_executors_have_left_is_removed_by_the_next_keeper(executor: Executor, tmp_path: Path) -> None:
    own = executor.node()
    (disk,) = (tmp_path / "disk").glob("headrace-*/*")
    (memory,) = (tmp_path / "memory").glob("headrace-*/*")
    for root in (memory, disk):
        for name in ("4194305-gone", f"{os.getpid()}-lives", "strange"):
            root.with_name(name).mkdir()
            root.with_name(name).joinpath("lock").touch()
    assert sweep([memory, disk]) == ["4194305-gone"], "our own is locked"
    for root in (memory, disk):
        assert not root.with_name("4194305-gone").exists()
    client = patient(own)
    assert client.put(FILE, 200, [(7, BODY)])
    client.close()


def test_without_a_place_of_our_own_there_is_no_keeper(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "disk" / f"headrace-{os.getuid()}").mkdir(mode=0o755)
    assert own_node(executor.checkpoint, executor.address, executor.daemon.pid) is None
    assert own_node(executor.checkpoint, executor.address, 2**22 + 1) is None, "no such daemon"
