"""Which segments no version needs any more (rule 23 of the protocol).

What is found must be found between a logged cut and the next order; it may be removed at any time after that, for it is
garbage for good: every later version is made of files of the last two, and of newer ones.
"""

from __future__ import annotations

from headrace.state.durable.segments import SEGMENTS, segment_token
from headrace.state.durable.storage import Storage
from headrace.state.durable.versionlog import VersionLog
from headrace.tokens import Attempt, Token


def garbage(
    storage: Storage,
    log: VersionLog,
    generation: int,
    running: Attempt | None,
    logged: int,
    spare: frozenset[str] = frozenset(),
) -> list[str]:
    """The names of what the last two cuts do not need.

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

    found = [(name, segment_token(name)) for name in storage.names(SEGMENTS) if name not in needed]
    return [name for name, token in found if token is not None and is_garbage(token)]
