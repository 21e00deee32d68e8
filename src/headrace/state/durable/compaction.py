"""Keeping chains short and storage clean, in the background.

A slice whose changes have become many or large (ChronoStream, section 6a) is rewritten as one full block by a
thread of the driver. The new block replaces the chain in the next manifest, if the chain it was made from is still
the slice's prefix. Nothing that the last two picked versions need is ever removed.
"""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import replace

from headrace.errors import HeadraceError
from headrace.state.durable.changes import Change, no_ids
from headrace.state.durable.loading import read_slice
from headrace.state.durable.segments import BlockRef, write_segment
from headrace.state.durable.versions import Manifest, SliceKey, SliceVersion, Versions, segment_epoch

_log = logging.getLogger("headrace.state")
_MAX_EPOCHS = 10
_MAX_BLOCKS = 10
_SLICES_PER_TURN = 64


def is_long(version: SliceVersion) -> bool:
    """Whether a slice's chain spans many epochs, or has many blocks that outweigh half of its base."""
    changes = [block for block in version.blocks if not block.full]
    base_bytes = sum(block.length for block in version.blocks if block.full)
    heavy = len(changes) > _MAX_BLOCKS and 2 * sum(block.length for block in changes) > base_bytes
    return heavy or len({segment_epoch(block.file) for block in changes}) > _MAX_EPOCHS


class Compactor:
    """Rewrites long chains and collects garbage; ``replace`` and ``tidy`` are called by the driver."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._done: dict[SliceKey, tuple[tuple[BlockRef, ...], BlockRef]] = {}
        self._work: queue.SimpleQueue[Manifest | int | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._serial = 0
        self._thread = threading.Thread(target=self._run, name="headrace-compactor", daemon=True)
        self._thread.start()

    def replace(self, manifest: Manifest) -> Manifest:
        """The manifest with finished rewrites put in place of the chains they stand for."""
        with self._lock:
            done, self._done = self._done, {}
        slices = dict(manifest.slices)
        for key, (chain, full) in done.items():
            version = slices.get(key)
            if version is not None and version.blocks[: len(chain)] == chain:
                slices[key] = SliceVersion(version.digest, (full, *version.blocks[len(chain) :]))
        if slices == manifest.slices:
            if any(is_long(version) for version in slices.values()):
                self._work.put(manifest)
            return manifest
        shorter = replace(manifest, slices=slices)
        self._versions.write_manifest(shorter)
        return shorter

    def tidy(self, running_epoch: int) -> None:
        """Collect garbage soon."""
        self._work.put(running_epoch)

    def close(self) -> None:
        self._work.put(None)
        self._thread.join(10)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                if isinstance(work, int):
                    with self._lock:
                        waiting = frozenset(full.file for _, full in self._done.values())
                    self._versions.collect_garbage(work, waiting)
                else:
                    self._compact(work)
            except (HeadraceError, OSError) as error:
                _log.warning("background work on the checkpoint failed and will be tried again: %s", error)

    def _compact(self, manifest: Manifest) -> None:
        long = sorted(
            (key for key, version in manifest.slices.items() if is_long(version)),
            key=lambda key: -len(manifest.slices[key].blocks),
        )[:_SLICES_PER_TURN]
        changes = []
        for step, slice in long:
            version = manifest.slices[step, slice]
            image = read_slice(self._versions.root, step, slice, version)
            changes.append((step, Change(slice, image, no_ids(), version.digest)))
        if not changes:
            return
        self._serial += 1
        name = f"segments/{manifest.token}-compacted-{self._serial:04d}.seg"
        stored = write_segment(self._versions.root, name, changes, full=True)
        with self._lock:
            for change in stored:
                chain = manifest.slices[change.step, change.slice].blocks
                self._done[change.step, change.slice] = (chain, change.block)
