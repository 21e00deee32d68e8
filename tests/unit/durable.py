"""Storage in memory, and a writer that makes real cuts of one step, for tests of what is durable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.durable.changes import ZERO_DIGEST, Change, digest_of, id_batch, merge_chain, no_ids, with_ids
from headrace.state.durable.loading import read_slice
from headrace.state.durable.manifest import Manifest, Rewrite, next_manifest
from headrace.state.durable.segments import StoredChange, write_segment
from headrace.state.durable.storage import Data, Storage
from headrace.state.durable.versionlog import CutEntry, Opened, VersionLog
from headrace.tokens import Token

Image = dict[int, int]
"""A slice's rows: values by row number."""


class MemoryStorage:
    """What ``Storage`` promises, and no more."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, name: str, data: Data) -> None:
        self.objects[name] = data if isinstance(data, bytes) else b"".join(data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if name in self.objects:
            return False
        self.objects[name] = data
        return True

    def get(self, name: str) -> bytes:
        try:
            return self.objects[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self.get(name)[offset : offset + length]

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.objects if name.rpartition("/")[0] == prefix)

    def delete(self, name: str) -> None:
        self.objects.pop(name, None)


def opened(number: int, pid: int = 1) -> Opened:
    return Opened(number, "host", pid, 1_000_000 * number)


def cut_entry(token: Token, base: Token | None = None, **more: Any) -> CutEntry:
    return CutEntry(Manifest(token, base, **more))


class CutWriter:
    """A driver's log, and the one subtask whose step ``step`` it is about."""

    def __init__(self, storage: Storage) -> None:
        self.storage, self.log = storage, VersionLog(storage)
        self.generation = self.log.newest() + 1
        assert self.log.append(self.generation, opened(self.generation))
        self.images: dict[int, Image] = {}
        self.newest = self.log.newest_cut()

    @property
    def base(self) -> Manifest | None:
        return self.newest[1].manifest if self.newest is not None else None

    @property
    def next_token(self) -> Token:
        return Token(self.generation, 0, self.base.token.cut + 1 if self.base is not None else 1)

    def write(self, puts: dict[int, Image], drops: dict[int, set[int]] | None = None) -> list[StoredChange]:
        """The next cut's changes: per slice, rows put and rows dropped before that."""
        drops, changes = drops or {}, []
        for slice in sorted({*puts, *drops}):
            image = self.images.setdefault(slice, {})
            parent = digest_of(rows(image)) if image else ZERO_DIGEST
            gone = [number for number in sorted(drops.get(slice, ())) if number in image]
            for number in gone:
                del image[number]
            image.update(puts.get(slice, {}))
            ids = np.array(gone, np.uint64)
            deletes = id_batch((ids, ids)) if gone else no_ids()
            changes.append(("step", Change(slice, rows(puts.get(slice, {})), deletes, parent, digest_of(rows(image)))))
        return write_segment(self.storage, f"segments/{self.next_token}-s00-0000-01.seg", changes)

    def cut(
        self, puts: dict[int, Image], drops: dict[int, set[int]] | None = None, rewrites: tuple[Rewrite, ...] = ()
    ) -> Manifest:
        """Make the next cut, and log it."""
        made = manifest_after(self.base, self.next_token, self.write(puts, drops), rewrites)
        number = self.log.newest() + 1
        assert self.log.append(number, CutEntry(made))
        self.newest = (number, CutEntry(made))
        return made

    def check(self, made: Manifest) -> None:
        """Every slice of the newest version can be read and has the rows it should have."""
        for (step, slice), version in made.slices.items():
            image = read_slice(self.storage, step, slice, version)
            assert dict(zip(image.column("n").to_pylist(), image.column("v").to_pylist())) == self.images[slice]


def manifest_after(
    base: Manifest | None, token: Token, changes: list[StoredChange], rewrites: tuple[Rewrite, ...] = ()
) -> Manifest:
    return next_manifest(
        base, token, changes, (), rewrites, watermarks={}, exhausted=False, end=False, batch=None, at_us=0
    )


def rows(image: Image) -> pa.RecordBatch:
    batch = pa.record_batch({"n": pa.array([*image], pa.int64()), "v": pa.array([*image.values()], pa.int64())})
    ids = np.array([*image], np.uint64)
    return with_ids(batch, (ids, ids))


class Chains:
    """What a driver keeps of a step: each slice's changes, in order."""

    def __init__(self) -> None:
        self.changes: dict[int, list[Change]] = {}

    def take(self, changes: list[Change]) -> None:
        for change in changes:
            chain = self.changes.setdefault(change.slice, [])
            assert change.parent == (chain[-1].digest if chain else ZERO_DIGEST), "it does not follow the one before"
            chain.append(change)

    def images(self) -> list[tuple[int, pa.RecordBatch, tuple[int, int]]]:
        found = []
        for slice, changes in self.changes.items():
            image = merge_chain([c.puts for c in changes], [c.deletes for c in changes])
            assert digest_of(image) == changes[-1].digest, "base and changes do not have the owner's digest"
            found.append((slice, image, changes[-1].digest))
        return found

    def compact(self) -> None:
        """Replace each chain by one block, as the compactor does."""
        for slice, image, digest in self.images():
            empty = merge_chain([image.slice(0, 0)], [image.select(["__id0", "__id1"]).slice(0, 0)])
            self.changes[slice] = [Change(slice, image, empty.select(["__id0", "__id1"]), digest, digest)]
