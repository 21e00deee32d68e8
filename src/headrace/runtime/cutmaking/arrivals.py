"""Slices on their way to a subtask: loaded ahead as of some version, brought up to the cut that gives them to it.

What is read and merged is a thread's work; only putting a slice into the step's own tables is the subtask's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headrace.runtime.messages import Final, Prepare
from headrace.state.durable.changes import Digest
from headrace.state.durable.manifest import Manifest, SliceKey, SliceVersion
from headrace.tokens import Token

Rows = TypeVar("Rows")
Taken = TypeVar("Taken", contravariant=True)
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Image(Generic[Rows]):
    """A slice of a store as of some version."""

    version: SliceVersion
    rows: Rows


Images = dict[SliceKey, Image[Rows]]


class SliceReader(Protocol[Rows]):
    """Where versions of slices are read."""

    def manifest(self, entry: int, version: Token) -> Manifest:
        """A version, at a number of the log."""
        ...

    def slice(self, step: str, slice: int, version: SliceVersion, known: Image[Rows] | None) -> Rows:
        """A slice, checked; ``known`` is what is at hand of an earlier version."""
        ...


class Submits(Protocol):
    """What does work in order, one after the other, beside its subtask."""

    def submit(self, work: Callable[[], Done]) -> Future[Done]: ...

    def close(self) -> None: ...


class Loader:
    """A thread that loads. ``wake`` is called by it when there is something to look at."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._pool, self._wake = ThreadPoolExecutor(1, thread_name_prefix="headrace-arrivals"), wake

    def submit(self, work: Callable[[], Done]) -> Future[Done]:
        future = self._pool.submit(work)
        future.add_done_callback(lambda _: self._wake())
        return future

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Takes(Protocol[Taken]):
    """A store, as far as arrivals know it."""

    def load(self, slice: int, image: Taken, digest: Digest) -> None: ...


class Arrivals(Generic[Rows]):
    """The slices that cuts give to one subtask in one attempt. ``stores`` are all its state, by the names in manifests.

    Pure but for its arguments: the protocol's simulator runs this very class.
    """

    def __init__(self, reader: SliceReader[Rows], stores: Mapping[str, Takes[Rows]], loader: Submits) -> None:
        self._reader, self._stores, self._loader = reader, stores, loader
        self._ahead: Images[Rows] = {}
        self._preparing: tuple[Prepare, Future[Images[Rows]]] | None = None
        self._ready: Prepare | None = None
        self._told = True
        self._final: tuple[Token, Future[Images[Rows]]] | None = None
        self._left: list[tuple[SliceKey, Image[Rows]]] | None = None

    def prepare(self, wanted: Prepare) -> None:
        """Load slices ahead; what was loaded before is forgotten. What is asked for again is answered again."""
        if wanted == self._ready:
            self._told = False
        elif self._preparing is None or self._preparing[0] != wanted:
            self._preparing = wanted, self._loader.submit(lambda: self._load_ahead(wanted))

    def prepared(self) -> Prepare | None:
        """What was asked for, once it is loaded; told once for each time. What cannot be loaded ahead is loaded later."""
        if self._preparing is not None and self._preparing[1].done():
            (self._ready, loaded), self._preparing, self._told = self._preparing, None, False
            self._ahead = loaded.result() if loaded.exception() is None else {}
        told, self._told = self._told, True
        return self._ready if not told else None

    def final(self, final: Final) -> None:
        """What the slices are as of the cut that gave them; repeating it changes nothing, nor does that of an earlier cut."""
        if self._final is None or self._final[0] < final.token:
            ahead, self._ahead, self._left = self._ahead, {}, None
            self._final = final.token, self._loader.submit(lambda: self._bring_up(final, ahead))

    def here(self, token: Token) -> bool:
        """Whether what a cut gave is at hand."""
        return self._final is not None and self._final[0] == token and self._final[1].done()

    def adopt_one(self, token: Token) -> bool:
        """Put one more slice into its store, if it is here; whether all that a cut gave are in."""
        if not self.here(token):
            return False
        if self._left is None:
            assert self._final is not None
            self._left = list(self._final[1].result().items())
        if self._left:
            (step, slice), image = self._left.pop()
            self._stores[step].load(slice, image.rows, image.version.digest)
        return not self._left

    def close(self) -> None:
        self._loader.close()

    def _load_ahead(self, wanted: Prepare) -> Images[Rows]:
        manifest = self._reader.manifest(wanted.entry, wanted.version)
        return {
            (step, slice): Image(version, self._reader.slice(step, slice, version, None))
            for step in self._stores
            for slice in wanted.slices
            if (version := manifest.slices.get((step, slice))) is not None
        }

    def _bring_up(self, final: Final, ahead: Images[Rows]) -> Images[Rows]:
        return {
            (step, slice): Image(version, self._reader.slice(step, slice, version, ahead.get((step, slice))))
            for step, slice, version in final.slices
        }
