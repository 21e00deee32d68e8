"""A checkpoint that is only looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.driver.identity import Identity, known_identity
from headrace.errors import ConfigError, CorruptionError
from headrace.state.durable.loading import read_slice
from headrace.state.durable.manifest import Manifest
from headrace.state.durable.storage import LocalStorage, Storage
from headrace.state.durable.versionlog import VersionLog


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where its files are, and what it knows of its job."""

    path: Path
    storage: Storage
    identity: Identity

    @property
    def log(self) -> VersionLog:
        return VersionLog(self.storage)

    def newest(self) -> Manifest:
        """What the newest version consists of. Raises ConfigError if there is none."""
        newest = self.log.newest_cut()
        if newest is None:
            raise ConfigError(f"{self.path}: there is no version yet")
        return newest[1].manifest


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a directory. Raises ConfigError if there is none, StateError if it is too old to be read."""
    storage = LocalStorage(path / "headrace")
    entries = VersionLog(storage).numbers()
    identity = known_identity(path)
    if identity is None:
        if entries:
            raise CorruptionError(f"{path} has versions, but does not say of which job: its file 'job' is missing")
        raise ConfigError(f"{path} is not the checkpoint of a Headrace job")
    return Checkpoint(path, storage, identity)


def steps_with_state(manifest: Manifest) -> list[str]:
    return sorted({id.partition("#")[0] for id, _ in manifest.slices})


def slices_of_step(checkpoint: Checkpoint, manifest: Manifest, step: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The slices of a step, one by one and checked, each with the name of the part of its state that it is of."""
    if step not in (found := steps_with_state(manifest)):
        known = step in checkpoint.identity.steps
        why = f"step {step!r} keeps nothing in this version" if known else f"the job has no step {step!r}"
        raise ConfigError(f"{why}; steps with state: {', '.join(found) or 'none'}")
    for (id, number), version in sorted(manifest.slices.items()):
        if id.partition("#")[0] == step:
            yield id.partition("#")[2], read_slice(checkpoint.storage, id, number, version)
