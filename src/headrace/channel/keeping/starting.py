"""Finding the own executor's keeper, or starting it: whichever worker comes first does so, and waits for nothing.

The worker opens the socket that the keeper will listen on, so its address is known before the keeper runs; who
connects earlier waits in the socket's queue. A locked file, held open by the keeper for as long as it lives, tells
whether there is one.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psutil
import zmq

from headrace.channel.keeping import keeper
from headrace.channel.keeping.keeper import KeeperTask
from headrace.channel.keeping.keeperclient import KeeperClient
from headrace.channel.keeping.sweeping import LOCK
from headrace.channel.keys import Address
from headrace.state.copies.nodestore import NodeStore, Tier
from headrace.state.copies.placement import CopyNode

_MEMORY = Path("/dev/shm")
_SHARE = 0.25
"""How much of what is free of memory, and of the disk, copies may use."""
_NODE, _SAID = "node", "said"
_WAIT_S, _LOOK_S = 2.0, 0.01
"""For another worker that is starting the keeper just now."""


@dataclass(frozen=True, slots=True)
class OwnNode:
    """The executor that a worker is on: what others know of it, and the copies it has."""

    node: CopyNode
    store: NodeStore
    address: Address

    def connect(self, node: CopyNode) -> KeeperClient:
        return KeeperClient(node, self.address)


def own_node(checkpoint: Path, address: Address, daemon: int) -> OwnNode | None:
    """The own node, with its keeper alive; None if there can be none, and the checkpoint has to do."""
    try:
        began_s = psutil.Process(daemon).create_time()
        name = f"{daemon}-{blake2b(address.client_public, digest_size=8).hexdigest()}"
        tiers = _tiers(name)
        node = _found_or_started(tiers, address, daemon, began_s, checkpoint, name)
    except (OSError, psutil.Error, msgspec.DecodeError, subprocess.SubprocessError):
        return None
    return OwnNode(node, NodeStore(tiers), address) if node is not None else None


def _tiers(name: str) -> tuple[Tier, ...]:
    """Directories in memory and on disk, both closed to other users."""
    tiers = []
    if os.access(_MEMORY, os.W_OK):
        free = min(psutil.disk_usage(str(_MEMORY)).free, psutil.virtual_memory().available)
        tiers.append(Tier("memory", _closed(_MEMORY, name), int(free * _SHARE)))
    disk = Path(tempfile.gettempdir())
    tiers.append(Tier("node", _closed(disk, name), int(psutil.disk_usage(str(disk)).free * _SHARE)))
    return tuple(tiers)


def _closed(below: Path, name: str) -> Path:
    """Our directory there; OSError if somebody else has made it, or lets others in."""
    root = below / f"headrace-{os.getuid()}"
    for folder in (root, root / name):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o77 or not folder.is_dir() or folder.is_symlink():
            raise PermissionError(f"{folder} is not ours alone")
    return root / name


def _found_or_started(
    tiers: tuple[Tier, ...], address: Address, daemon: int, began_s: float, checkpoint: Path, name: str
) -> CopyNode | None:
    root, deadline_s = tiers[-1].root, time.monotonic() + _WAIT_S
    while time.monotonic() < deadline_s:
        with (root / LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with suppress(FileNotFoundError):
                    return msgspec.msgpack.decode((root / _NODE).read_bytes(), type=CopyNode)
                time.sleep(_LOOK_S)
                continue
            (root / _NODE).unlink(missing_ok=True)  # of one that has died
            return _start(lock.fileno(), tiers, address, daemon, began_s, checkpoint, name)
    return None


def _start(
    lock: int, tiers: tuple[Tier, ...], address: Address, daemon: int, began_s: float, checkpoint: Path, name: str
) -> CopyNode:
    public, secret = zmq.curve_keypair()
    with _listening(_facing(address)) as listening:
        host, port = listening.getsockname()[:2]
        endpoint = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        task = KeeperTask(
            listening.fileno(), endpoint, public, secret, address.client_public, daemon, began_s,
            str(checkpoint / "headrace"), tuple((tier.origin, str(tier.root), tier.limit_bytes) for tier in tiers),
        )  # fmt: skip
        with (tiers[-1].root / _SAID).open("a") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", keeper.__name__, name], stdin=subprocess.PIPE, stdout=said, stderr=said,
                pass_fds=(listening.fileno(), lock), start_new_session=True,
            )  # fmt: skip
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(msgspec.msgpack.encode(task))
    process.returncode = 0  # it is to live on: nobody waits for it
    node = CopyNode(f"{socket.gethostname()}-{name}", endpoint, public.decode())
    root = tiers[-1].root
    (root / f".{_NODE}.tmp").write_bytes(msgspec.msgpack.encode(node))
    (root / f".{_NODE}.tmp").rename(root / _NODE)
    return node


def _listening(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.bind((host, 0))
    listening.listen(128)
    return listening


def _facing(address: Address) -> str:
    """The address of this host on the way to the driver: only there, not on other networks, does a keeper listen."""
    parts = urlsplit(address.endpoint)
    host, port = parts.hostname or "127.0.0.1", parts.port or 1
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        found: str = probe.getsockname()[0]
    return found
