"""Removing segments that no version needs any more (rule 23 of the protocol)."""

from __future__ import annotations

from headrace.state.durable.segments import SEGMENTS, segment_token
from headrace.state.durable.storage import Storage
from headrace.state.durable.versionlog import VersionLog
from headrace.tokens import Attempt, Token


def collect(
    storage: Storage,
    log: VersionLog,
    generation: int,
    running: Attempt | None,
    logged: int,
    spare: frozenset[str] = frozenset(),
) -> list[str]:
    """Remove what the last two cuts do not need, and return its names. Repeating it, or dying in it, does no harm.

    To be called by a driver whose ``generation`` has opened the log. Only what that generation or an earlier one made
    goes: a newer driver may have gone on with files that no entry names yet, while this one slept. Of cuts after number
    ``logged``, what the ``running`` attempt has made, or one after it, stays. ``spare`` are files that a cut to come will
    name.
    """
    needed = spare.union(*(cut.manifest.files for _, cut in log.last_cuts(2)))
    first = running if running is not None else Attempt(generation, 0)

    def is_garbage(token: Token) -> bool:
        under_way = token.by >= first and token.cut > logged
        return token.generation <= generation and not under_way

    removed = []
    for name in storage.names(SEGMENTS):
        token = segment_token(name)
        if name not in needed and token is not None and is_garbage(token):
            storage.delete(name)
            removed.append(name)
    return removed
