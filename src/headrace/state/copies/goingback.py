"""Going back to the version before, where the newest one cannot be read and no copy mends it.

The log is never shortened: what another driver might have read must not change. The state of the version before is
logged once more, as a version of its own after the newest one, by a driver's generation of its own. Source offsets go
back with it, so what was read since is read, and its results are made, again.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace

from headrace.errors import FencedError, StateError
from headrace.state.durable.storage import Storage
from headrace.state.durable.versionlog import CutEntry, Opened, VersionLog
from headrace.tokens import Token


def go_back(storage: Storage, to: Token) -> Token:
    """Make an earlier version, one that the log still has, the newest one; returns its new name.

    To be called by the holder of the checkpoint's lock. StateError if Spark alone knows how far its input was read.
    """
    log = VersionLog(storage)
    cuts = log.cuts()
    wanted = next((entry.manifest for _, entry in cuts if entry.manifest.token == to), None)
    if wanted is None:
        raise StateError(f"the log does not have {to} any more")
    if wanted.batch is not None:
        raise StateError("a job that reads a streaming DataFrame cannot go back: Spark would not read its rows again")
    newest, generation = cuts[-1][1].manifest, log.newest() + 1
    at_us = time.time_ns() // 1000
    _append(log, generation, Opened(generation, socket.gethostname(), os.getpid(), at_us))
    token = Token(generation, 0, newest.token.cut + 1)
    again = replace(wanted, token=token, base=newest.token, staged=(), exhausted=False, at_us=at_us)
    _append(log, generation + 1, CutEntry(again))
    return token


def _append(log: VersionLog, number: int, entry: Opened | CutEntry) -> None:
    if not log.append(number, entry) or log.newest() != number:
        raise FencedError("a driver has begun to work on this checkpoint meanwhile")
