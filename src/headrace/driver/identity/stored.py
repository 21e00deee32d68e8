"""A job's identity in its checkpoint: read when the job is planned, settled when its driver opens the checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec

from headrace.connect.writing.staging import is_unsettled
from headrace.driver.identity.differences import differences, grown
from headrace.driver.identity.steps import Identity, identity
from headrace.errors import CorruptionError, StateError
from headrace.runtime.plan import JobPlan
from headrace.state.durable.storage import LocalStorage, Storage
from headrace.state.durable.versionlog import VersionLog

_NAME = "job"
_ALLOWED = (
    "What may change on a checkpoint: functions, bounds, parallelism, mode, lateness, ttl=, memory= within a bound, where "
    "sources read and sinks write; steps, states and sinks may be added and left out."
)
_log = logging.getLogger("headrace.driver")
Warn = Callable[[str, str], None]
"""Takes a word for what something is about, and a sentence: as a run's journal does."""


class _Stored(msgspec.Struct, frozen=True):
    """The identity as it was encoded, so that its sum can be checked before it is believed."""

    sha256: str
    identity: msgspec.Raw


def known_identity(checkpoint: Path) -> Identity | None:
    """What a checkpoint knows of its job; None if there is no checkpoint yet."""
    return _read(LocalStorage(checkpoint / "headrace"))


def settle_identity(storage: Storage, plan: JobPlan, warn: Warn | None = None) -> Identity:
    """Check that a plan fits its checkpoint, and store what the job has become. What fits, and is worth knowing, is told.

    Raises StateError with everything that does not fit, and what to do about each. It may be called before the log is
    opened, so that a job that does not fit fences nobody: a step that was left out by a driver that got no further may
    come back.
    """
    known, now = _read(storage), identity(plan)
    newest = VersionLog(storage).newest_cut()
    settled = now
    if known is not None:
        entry = newest[0] if newest is not None else 0
        _tell(known, now, entry, plan.checkpoint, warn or _warn)
        settled = grown(known, now, entry)
    if settled != known:
        storage.put(_NAME, _encoded(settled))
    return settled


def check_identity(storage: Storage, plan: JobPlan) -> None:
    """Whether a start would be refused because the job does not fit; changes and tells nothing, so it may come any time."""
    if (known := _read(storage)) is not None:
        newest = VersionLog(storage).newest_cut()
        entry = newest[0] if newest is not None else 0
        _tell(known, identity(plan), entry, plan.checkpoint, lambda what, detail: None)


def _tell(known: Identity, now: Identity, entry: int, checkpoint: Path, warn: Warn) -> None:
    found = differences(known, now, entry, lambda directory: is_unsettled(Path(directory)))
    refused = [str(difference) for difference in found if difference.refused]
    if refused:
        sentences = "\n  - ".join([f"the job does not fit checkpoint {checkpoint}:", *refused])
        raise StateError(f"{sentences}\n{_ALLOWED}")
    for difference in found:
        warn("checkpoint", f"{checkpoint}: {difference}")


def _warn(what: str, detail: str) -> None:
    _log.warning("%s %s", what, detail)


def _read(storage: Storage) -> Identity | None:
    try:
        data = storage.get(_NAME)
    except FileNotFoundError:
        return None
    try:
        stored = msgspec.json.decode(data, type=_Stored)
        if sha256(stored.identity).hexdigest() != stored.sha256:
            raise ValueError("it has changed since it was written (sha256 differs)")
        return msgspec.json.decode(stored.identity, type=Identity)
    except ValueError as error:
        raise CorruptionError(
            f"the job's identity ({_NAME!r} in the checkpoint) cannot be read: {error}; restore the file, or start with "
            f"a new checkpoint"
        ) from error


def _encoded(known: Identity) -> bytes:
    body = msgspec.json.encode(known)
    return msgspec.json.encode(_Stored(sha256(body).hexdigest(), msgspec.Raw(body)))
