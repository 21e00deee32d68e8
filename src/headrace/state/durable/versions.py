"""Versions of a job's state on shared storage: generations, manifests, picks, clean-up.

The rules of ``docs/how-it-works.md``: an attempt ``T = (generation, epoch, attempt)`` leaves a
*manifest* that names its blocks; Spark's commit of the epoch decides that it happened; a *pick*,
created exclusively after that, says which attempt's manifest is the epoch's state and output. Both
the next epoch's base and what sinks publish follow the pick, so two drivers can never disagree.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from headrace.connect.sink import Staged
from headrace.errors import CorruptionError, FencedError, StateError
from headrace.state.durable.changes import Digest
from headrace.state.durable.segments import BlockRef, create_exclusively, write_durably
from headrace.tokens import Token

SliceKey = tuple[str, int]
"""A step's name and a slice number."""


@dataclass(frozen=True, slots=True)
class SliceVersion:
    """One slice at one version: its digest, and the blocks it is made of, base first."""

    digest: Digest
    blocks: tuple[BlockRef, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything an attempt made: the whole state after it, and what its sinks staged."""

    token: Token
    parent: Token | None
    slices: dict[SliceKey, SliceVersion] = field(default_factory=dict)
    staged: tuple[Staged, ...] = ()
    finished: bool = False

    def to_bytes(self) -> bytes:
        body = {
            "token": str(self.token),
            "parent": str(self.parent) if self.parent else None,
            "finished": self.finished,
            "staged": [[s.step, s.path, s.rows] for s in self.staged],
            "slices": [
                [step, slice, list(v.digest), [b.to_json() for b in v.blocks]]
                for (step, slice), v in sorted(self.slices.items())
            ],
        }
        text = json.dumps(body, separators=(",", ":"))
        return json.dumps({"sha256": sha256(text.encode()).hexdigest(), "manifest": text}).encode()

    @staticmethod
    def from_bytes(data: bytes, where: str) -> Manifest:
        try:
            outer = json.loads(data)
            text = outer["manifest"]
            if sha256(text.encode()).hexdigest() != outer["sha256"]:
                raise CorruptionError(f"manifest {where} has changed since it was written (sha256 differs)")
            body = json.loads(text)
        except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise CorruptionError(f"manifest {where} cannot be read: {error}") from error
        return Manifest(
            Token.parse(body["token"]),
            Token.parse(body["parent"]) if body["parent"] else None,
            {
                (step, slice): SliceVersion((digest[0], digest[1]), tuple(BlockRef.from_json(b) for b in blocks))
                for step, slice, digest, blocks in body["slices"]
            },
            tuple(Staged(*s) for s in body["staged"]),
            body["finished"],
        )


class Versions:
    """The directory ``<checkpoint>/headrace``. Only the driver writes manifests, picks and identity."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.root = checkpoint / "headrace"
        self._lock: int | None = None
        self._generation: int | None = None

    def open(self, identity: dict[str, Any]) -> int:
        """Lock the checkpoint, check that it belongs to this job, and take a new generation.

        Raises FencedError if another driver holds it, StateError if the job does not fit it.
        """
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._take_lock()
        try:
            self._check_identity(identity)
        except BaseException:
            self.close()
            raise
        generation = max([int(p.name) for p in self._list("generations")], default=0) + 1
        while not create_exclusively(self.root / "generations" / f"{generation:06d}", b"{}"):
            generation += 1
        self._generation = generation
        return generation

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def newest_generation(self) -> int:
        return max([int(p.name) for p in self._list("generations")], default=0)

    def write_manifest(self, manifest: Manifest) -> None:
        """Make an attempt's manifest durable; refused to a driver that has been superseded."""
        if self.newest_generation() > manifest.token.generation:
            raise FencedError(f"a newer driver took over the checkpoint; {manifest.token} is void")
        write_durably(self._manifest_path(manifest.token), manifest.to_bytes())

    def manifest(self, token: Token) -> Manifest:
        path = self._manifest_path(token)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CorruptionError(f"manifest {path.name} is missing: {error}") from error
        manifest = Manifest.from_bytes(data, path.name)
        if manifest.token != token:
            raise CorruptionError(f"manifest {path.name} is that of {manifest.token}")
        return manifest

    def manifests_of(self, epoch: int) -> list[Token]:
        """Attempts of an epoch that left a manifest, oldest first."""
        tokens = [Token.parse(p.stem) for p in self._list("manifests")]
        return sorted((t for t in tokens if t.epoch == epoch), key=lambda t: (t.generation, t.attempt))

    def pick(self, epoch: int, preferred: Token | None) -> Token | None:
        """Decide which attempt an epoch's commit stands for; obey an earlier decision.

        Call only once Spark's commit of the epoch exists. None if no attempt left a manifest. Refused
        to a driver that has been superseded.
        """
        if self._generation is not None and self.newest_generation() > self._generation:
            raise FencedError(f"a newer driver took over the checkpoint; this one may not decide about epoch {epoch}")
        decided = self.picked(epoch)
        if decided is not None:
            return decided
        candidates = self.manifests_of(epoch)
        if not candidates:
            return None
        choice = preferred if preferred in candidates else candidates[-1]
        create_exclusively(self.root / "picks" / f"{epoch:08d}", _checked(choice).encode())
        return self.picked(epoch)

    def picked(self, epoch: int) -> Token | None:
        path = self.root / "picks" / f"{epoch:08d}"
        if not path.exists():
            return None
        try:
            text = path.read_text()
            token = Token.parse(text.partition(" ")[0])
        except (OSError, ValueError) as error:
            raise CorruptionError(f"pick {path.name} cannot be read: {error}") from error
        if text != _checked(token) or token.epoch != epoch:
            raise CorruptionError(f"pick {path.name} has changed since it was written: it names {token}")
        return token

    def last_picked(self) -> Token | None:
        epochs = [int(p.name) for p in self._list("picks")]
        return self.picked(max(epochs)) if epochs else None

    def picks(self) -> list[Token]:
        tokens = [self.picked(int(p.name)) for p in self._list("picks")]
        return sorted((t for t in tokens if t is not None), key=lambda t: t.epoch)

    def collect_garbage(self, running_epoch: int, also_needed: frozenset[str] = frozenset()) -> list[str]:
        """Remove what neither of the last two picked versions needs and no running attempt writes.

        ``also_needed`` are segments that a manifest to come will name. Returns the names of the files removed. Repeating it, or dying in it, does no harm.
        """
        picks = self.picks()
        if len(picks) < 2:
            return []
        kept = picks[-2:]
        needed = {block.file for token in kept for v in self.manifest(token).slices.values() for block in v.blocks}
        needed |= also_needed
        oldest = min(kept[0].epoch, running_epoch)
        removed = []
        for path in self._list("segments", unfinished=True):
            epoch = segment_epoch(path.name)
            if epoch is not None and epoch < oldest and str(path.relative_to(self.root)) not in needed:
                path.unlink(missing_ok=True)
                removed.append(path.name)
        for path in self._list("manifests"):
            token = Token.parse(path.stem)
            if token.epoch < kept[0].epoch or (token.epoch == kept[0].epoch and token != kept[0]):
                path.unlink(missing_ok=True)
                removed.append(path.name)
        for token in picks[:-2]:
            (self.root / "picks" / f"{token.epoch:08d}").unlink(missing_ok=True)
            removed.append(f"pick {token.epoch}")
        return removed

    def _take_lock(self) -> None:
        fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise FencedError(
                f"checkpoint {self.checkpoint} is in use by another driver (process {holder}); "
                f"stop that one first or choose another checkpoint"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._lock = fd

    def _check_identity(self, identity: dict[str, Any]) -> None:
        path = self.root / "job.json"
        if not path.exists():
            write_durably(path, json.dumps(identity, indent=1, sort_keys=True).encode())
            return
        try:
            known = json.loads(path.read_bytes())
        except ValueError as error:
            raise CorruptionError(f"{path} cannot be read: {error}") from error
        for name, value in identity.items():
            if name in known and known[name] != value and name != "steps":
                raise StateError(
                    f"checkpoint {self.checkpoint} was made with {name} = {known[name]!r}, the job now has {value!r}; "
                    f"set it back, or start with a new checkpoint"
                )
        for step, shape in known.get("steps", {}).items():
            now = identity.get("steps", {}).get(step)
            if now is not None and now != shape:
                raise StateError(
                    f"step {step!r} has changed since checkpoint {self.checkpoint} was made:\n  then: {shape}\n"
                    f"  now:  {now}\nrename the step to give it fresh state, or start with a new checkpoint"
                )

    def _manifest_path(self, token: Token) -> Path:
        return self.root / "manifests" / f"{token}.json"

    def _list(self, kind: str, *, unfinished: bool = False) -> list[Path]:
        """The files of a kind; those that a writer never gave their name only if asked for."""
        directory = self.root / kind
        if not directory.is_dir():
            return []
        return sorted(p for p in directory.iterdir() if unfinished or not p.name.startswith("."))


def segment_epoch(segment: str) -> int | None:
    """Segments are named ``<token>-…``, unfinished ones ``.<token>-…``; None for what is not ours."""
    try:
        return Token.parse("-".join(Path(segment).name.lstrip(".").split("-")[:3])).epoch
    except ValueError:
        return None


def _checked(token: Token) -> str:
    """A pick's content: a changed digit must not name another attempt."""
    return f"{token} {sha256(str(token).encode()).hexdigest()[:16]}"
