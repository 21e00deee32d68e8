"""Storage: whole objects, one winner; the courtesy lock; where a checkpoint may be."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from durable import MemoryStorage

from headrace.errors import ConfigError, FencedError, StateError
from headrace.state.durable.lock import CheckpointLock, wait_for_turn
from headrace.state.durable.storage import LocalStorage, Storage, check_checkpoint


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path / "root")


def test_objects_are_put_read_listed_and_deleted(storage: Storage) -> None:
    assert storage.names("folder") == []
    storage.put("folder/b", b"one")
    storage.put("folder/b", b"two")
    storage.put("folder/a", b"")
    storage.put("top", b"0123456789")
    storage.put("folder/in/it", b"")
    assert storage.get("folder/b") == b"two" and storage.get("folder/a") == b""
    assert storage.names("folder") == ["folder/a", "folder/b"]
    assert [storage.get_range("top", *span) for span in ((0, 3), (8, 5), (20, 1))] == [b"012", b"89", b""]
    storage.delete("folder/b")
    storage.delete("folder/b")
    assert storage.names("folder") == ["folder/a"]
    for missing in (lambda: storage.get("folder/b"), lambda: storage.get_range("no/such", 0, 1)):
        with pytest.raises(FileNotFoundError):
            missing()


def test_the_first_to_create_wins(storage: Storage) -> None:
    assert storage.put_if_absent("log/1", b"first") and not storage.put_if_absent("log/1", b"second")
    assert not storage.put_if_absent("log/1", b"first"), "not even the same once more"
    assert storage.get("log/1") == b"first" and storage.names("log") == ["log/1"]


_RACER = """
import sys, time
from pathlib import Path
from headrace.state.durable.storage import LocalStorage
root, me = Path(sys.argv[1]), sys.argv[2]
storage = LocalStorage(root / "storage")
print("ready", flush=True)
while not (root / "go").exists():
    time.sleep(0.0001)
print([n for n in range(60) if storage.put_if_absent(f"log/{n}", me.encode() * 10_000)])
"""


def test_of_racing_processes_exactly_one_creates_each_object(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen([sys.executable, "-c", _RACER, str(tmp_path), who], stdout=subprocess.PIPE, text=True)
        for who in "ab"
    ]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    (tmp_path / "go").touch()
    won = [set(json.loads(racer.communicate(timeout=60)[0])) for racer in racers]  # one may win them all
    assert won[0] | won[1] == set(range(60)) and not won[0] & won[1]
    storage = LocalStorage(tmp_path / "storage")
    for winner, mine in zip("ab", won):
        assert all(storage.get(f"log/{n}") == winner.encode() * 10_000 for n in mine)


@pytest.mark.parametrize(("gently", "syncs"), [(False, 1), (True, 4)])
def test_a_gentle_writer_gives_the_disk_little_at_a_time(
    gently: bool, syncs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, rested = [], []
    storage, sync = LocalStorage(tmp_path, gently=gently), os.fsync

    def watched(descriptor: int) -> None:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            synced.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(time, "sleep", rested.append)
    parts = [bytes([n]) * 3_000_000 for n in range(10)]
    storage.put("segments/large", iter(parts))
    assert storage.get("segments/large") == b"".join(parts)
    assert len(synced) == syncs and synced[-1] == 30_000_000 and len(rested) == (syncs if gently else 0)
    storage.put("segments/none", iter(()))
    assert storage.get("segments/none") == b""


@pytest.mark.parametrize("name", ["", ".", "/etc/passwd", "../x", "a/../../x", "a/.hidden", ".", "a//../b/.."])
def test_names_lead_nowhere_else(name: str, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for use in (
        lambda: storage.get(name),
        lambda: storage.put(name, b""),
        lambda: storage.delete(name),
        lambda: storage.names(name),
    ):
        with pytest.raises(StateError, match="names nothing in"):
            use()


def test_a_checkpoint_is_its_owners_only(tmp_path: Path) -> None:
    root = tmp_path / "checkpoint" / "headrace"
    storage = LocalStorage(root)
    assert not storage.names("log") and not root.exists(), "looking makes nothing"
    storage.put("log/1", b"")
    assert root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("create", ["put", "put_if_absent"])
@pytest.mark.parametrize("call", ["fsync", "link", "replace"])
def test_a_write_that_fails_leaves_nothing_behind(
    create: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("log/0", b"")  # so that the folder is there, and synced

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    used = {"put": {"fsync", "replace"}, "put_if_absent": {"fsync", "link"}}[create]
    with monkeypatch.context() as patched:
        patched.setattr(Path if call == "replace" else os, call, fail)
        if call in used:
            with pytest.raises(OSError, match="No space left"):
                getattr(storage, create)("log/1", b"data")
        else:
            getattr(storage, create)("log/1", b"data")
    assert storage.names("log") == (["log/0"] if call in used else ["log/0", "log/1"])
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == [n[4:] for n in storage.names("log")]


def test_bytes_and_names_are_synced_before_a_put_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, synced = LocalStorage(tmp_path / "root"), []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    storage.put("log/1", b"")
    root = tmp_path / "root"
    assert synced[:2] == [tmp_path, root], "new folders, outermost first"
    assert synced[2].parent == root / "log" and synced[2].name.endswith(".tmp") and synced[3:] == [root / "log"]
    synced.clear()
    storage.put_if_absent("log/2", b"")
    assert [path.name.endswith(".tmp") for path in synced] == [True, False] and synced[1] == root / "log"


def test_what_dead_writers_left_is_cleared(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("segments/x", b"")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = os.uname().nodename.replace(".", "_")
    folder = tmp_path / "segments"
    left = {
        name: folder / f".{of}.{pid}.{'0' * 16}.tmp"
        for name, of, pid in [
            ("dead", host, dead.pid),
            ("mine", host, os.getpid()),
            ("new", "far", 1),
            ("old", "far", 2),
        ]
    }
    for path in [*left.values(), folder / ".foreign.tmp"]:
        path.write_bytes(b"torn")
    os.utime(left["old"], (0, 0))
    assert storage.names("segments") == ["segments/x"], "unfinished objects are no objects"
    assert sorted(storage.clear_unfinished()) == sorted([left["dead"], left["old"]])
    assert left["mine"].exists() and left["new"].exists() and (folder / ".foreign.tmp").exists()


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("out/checkpoint", "out/checkpoint"),
        ("/data/x", "/data/x"),
        ("file:///data/a%20b", "/data/a b"),
        ("file:/data/x", "/data/x"),
        ("file://localhost/data", "/data"),
        ("./a:b/c", "a:b/c"),
        (Path("/data/y"), "/data/y"),
    ],
)
def test_directories_are_accepted(location: str | Path, path: str) -> None:
    assert check_checkpoint(location) == Path(path)


# a checkpoint elsewhere must not silently become a local folder
@pytest.mark.parametrize(
    "location", ["s3a://bucket/x", "hdfs:///x", "dbfs:/x", "gs://b", "file://other-host/x", Path("s3a://bucket/x")]
)
def test_storage_that_is_not_supported_is_refused_by_name(location: str | Path) -> None:
    scheme = str(location).partition(":")[0]
    with pytest.raises(ConfigError, match=rf"{scheme} is not supported; give a directory"):
        check_checkpoint(location)


_SECOND = """
import sys
from pathlib import Path
from headrace.state.durable.lock import CheckpointLock
CheckpointLock.take(Path(sys.argv[1]))
"""


# fault 16: two drivers on one checkpoint: the second is refused, the first unharmed
def test_a_second_driver_is_told_who_is_there(tmp_path: Path) -> None:
    lock = CheckpointLock.take(tmp_path)
    second = subprocess.run([sys.executable, "-c", _SECOND, str(tmp_path)], capture_output=True, text=True, check=False)
    assert second.returncode != 0
    who = f"process {os.getpid()} on {os.uname().nodename}"
    assert f"FencedError: checkpoint {tmp_path} is in use by another driver ({who})" in second.stderr
    with pytest.raises(FencedError, match="start this one as its standby, or choose another checkpoint"):
        CheckpointLock.take(tmp_path)
    lock.close()
    lock.close()
    with CheckpointLock.take(tmp_path), pytest.raises(FencedError):
        CheckpointLock.take(tmp_path)
    CheckpointLock.take(tmp_path).close()


def test_a_standby_waits_until_the_lock_is_free_or_it_is_told_to_stop(tmp_path: Path) -> None:
    lock, polls = CheckpointLock.take(tmp_path), []

    def poll() -> bool:
        polls.append(None)
        if len(polls) == 3:
            lock.close()
        return True

    taken = wait_for_turn(tmp_path, 60.0, poll)
    assert taken is not None and len(polls) == 3
    assert wait_for_turn(tmp_path, 60.0, lambda: False) is None
    taken.close()


def test_a_standby_overtakes_who_holds_the_lock_without_a_sign_of_life(tmp_path: Path) -> None:
    lock, polls = CheckpointLock.take(tmp_path), []

    def poll() -> bool:
        polls.append(time.monotonic())
        if polls[-1] - polls[0] < 0.2:
            lock.beat()
        return True

    taken = wait_for_turn(tmp_path, 0.1, poll)
    assert taken is not None and polls[-1] - polls[0] >= 0.2, "beats count"
    taken.close()
    with pytest.raises(FencedError):
        CheckpointLock.take(tmp_path)
    lock.close()


def test_the_lock_of_a_dead_driver_is_free(tmp_path: Path) -> None:
    script = f"{_SECOND}\nprint('held', flush=True)\nimport time; time.sleep(60)"
    script = script.replace("CheckpointLock.take(Path", "lock = CheckpointLock.take(Path")
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(FencedError, match=f"process {holder.pid} on"):
            CheckpointLock.take(tmp_path)
        holder.kill()
    CheckpointLock.take(tmp_path).close()
