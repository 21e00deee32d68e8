"""Slices on their way to a subtask: loaded ahead as of some version, brought up to the cut that gives them to it.

What is read and merged is a thread's work; only putting a slice into the step's own tables is the subtask's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from headrace.runtime.messages import Final, Prepare
from headrace.state.durable.changes import Digest, Store
from headrace.state.durable.loading import read_manifest, read_slice, read_slice_from
from headrace.state.durable.manifest import SliceKey, SliceVersion
from headrace.state.durable.storage import Storage
from headrace.tokens import Token


@dataclass(frozen=True, slots=True)
class Image:
    """A slice of a store as of some version."""

    version: SliceVersion
    rows: pa.RecordBatch

    @property
    def digest(self) -> Digest:
        return self.version.digest


Images = dict[SliceKey, Image]


class Arrivals:
    """The slices that cuts give to one subtask in one attempt. ``stores`` are all its state, by the names in manifests;
    ``wake`` is called, by another thread, when there is something to look at.
    """

    def __init__(self, storage: Storage, stores: Mapping[str, Store], wake: Callable[[], None]) -> None:
        self._storage, self._stores, self._wake = storage, stores, wake
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-arrivals")
        self._ahead: Images = {}
        self._preparing: tuple[Prepare, Future[Images]] | None = None
        self._final: tuple[Token, Future[Images]] | None = None
        self._left: list[tuple[SliceKey, Image]] | None = None

    def prepare(self, wanted: Prepare) -> None:
        """Load slices ahead; what was loaded before is forgotten."""
        if self._preparing is None or self._preparing[0] != wanted:
            self._preparing = wanted, self._submit(lambda: self._load_ahead(wanted))

    def prepared(self) -> Prepare | None:
        """What was asked for, once it is loaded; each is told once. What cannot be loaded ahead is loaded later."""
        if self._preparing is None or not self._preparing[1].done():
            return None
        (wanted, loaded), self._preparing = self._preparing, None
        self._ahead = loaded.result() if loaded.exception() is None else {}
        return wanted

    def final(self, final: Final) -> None:
        """What the slices are as of the cut that gave them; repeating it changes nothing."""
        if self._final is None or self._final[0] != final.token:
            ahead, self._ahead, self._left = self._ahead, {}, None
            self._final = final.token, self._submit(lambda: self._bring_up(final, ahead))

    def adopt_one(self, token: Token) -> bool:
        """Put one more slice into its store, if it is here; whether all that a cut gave are in."""
        if self._final is None or self._final[0] != token or not self._final[1].done():
            return False
        if self._left is None:
            self._left = list(self._final[1].result().items())
        if self._left:
            (step, slice), image = self._left.pop()
            self._stores[step].load(slice, image.rows, image.digest)
        return not self._left

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, work: Callable[[], Images]) -> Future[Images]:
        future = self._pool.submit(work)
        future.add_done_callback(lambda _: self._wake())
        return future

    def _load_ahead(self, wanted: Prepare) -> Images:
        manifest = read_manifest(self._storage, wanted.entry, wanted.version)
        return {
            (step, slice): Image(version, read_slice(self._storage, step, slice, version))
            for step in self._stores
            for slice in wanted.slices
            if (version := manifest.slices.get((step, slice))) is not None
        }

    def _bring_up(self, final: Final, ahead: Images) -> Images:
        images = {}
        for step, slice, version in final.slices:
            known = ahead.get((step, slice))
            rows = (
                read_slice_from(self._storage, step, slice, known.version, known.rows, version)
                if known is not None
                else read_slice(self._storage, step, slice, version)
            )
            images[step, slice] = Image(version, rows)
        return images
