"""Sessions of users that come and go, 2 KB of state each, with memory for those of a moment (SCALLA 4).

INC keeps the users that came first for ever, so all later ones go to disk. DINC lets users whose session has
expired make way (thesis: 203 GB of spill against 0.1 GB).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.bench.spilling.recordbuffers import RECORD_BYTES
from headrace.bench.spilling.sessionize import SessionBound, SessionBuffers
from headrace.bench.spilling.workloads import Clicks, clicks, sessions_of
from headrace.state.index.policies import INC, ResidencyPolicy, Rule

_BUFFER_BYTES = 2048
_USERS_PER_SLOT, _ACTIVE_SHARE, _BURST = 40, 0.75, 4.0
"""Users over time are forty times as many as fit; at a time three quarters of the slots are in use, in a
burst more than there are."""
_POLICIES = {"inc": INC, "dinc": ResidencyPolicy(Rule.FREQUENT, complete_only=True)}


@dataclass(frozen=True, slots=True)
class Sessionized:
    """What a run cost, and how many clicks were not in a session once and whole as in the reference."""

    seconds: float
    spill_bytes: int
    peak_bytes: int
    wrong: int


def expiring_sessions(items: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Spill of INC and of DINC on the same clicks, and the ratio (of DINC's at least one byte)."""
    sessions = items // 8
    slots = max(sessions // _USERS_PER_SLOT, 16)
    made = clicks(items, active=int(slots * _ACTIVE_SHARE), burst=_BURST, seed=3)
    figures: dict[str, Any] = {"session_items": len(made.users), "session_wrong": 0}
    for name, policy in _POLICIES.items():
        done = sessionize(made, slots, policy)
        progress(f"sessions, 2 KB each    {name:18}{done.seconds:7.2f} s {done.spill_bytes / 1e6:9.1f} MB spilled")
        figures |= {
            f"session_{name}_s": done.seconds,
            f"session_{name}_spill_bytes": done.spill_bytes,
            f"session_{name}_peak_bytes": done.peak_bytes,
        }
        figures["session_wrong"] += done.wrong
    inc_bytes, dinc_bytes = (figures[f"session_{name}_spill_bytes"] for name in _POLICIES)
    figures["session_spill_ratio"] = round(inc_bytes / max(dinc_bytes, 1), 1)
    return figures


def sessionize(made: Clicks, slots: int, policy: ResidencyPolicy) -> Sessionized:
    """Run the clicks through buffers for ``slots`` users and compare with the reference."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        bound = SessionBound(slots, _BUFFER_BYTES // RECORD_BYTES, made.gap_s, Path(directory))
        buffers = SessionBuffers(pa.field("user", pa.int64()), bound, policy)
        began, peak_bytes, out = time.perf_counter(), 0, []
        batch_rows = max(slots // 8, 16)  # the watermark, a batch behind, must be close compared with a session
        for start in range(0, len(made.users), batch_rows):
            at = slice(start, start + batch_rows)
            times = made.times_s[at]
            out += buffers.absorb(pa.array(made.users[at]), times, made.pages[at], int(times[0]))
            peak_bytes = max(peak_bytes, buffers.nbytes)
        out += buffers.finish()
        seconds = time.perf_counter() - began
        buffers.close()
    return Sessionized(round(seconds, 3), buffers.spill_bytes, peak_bytes, differences(made, out))


def differences(made: Clicks, out: list[pa.RecordBatch]) -> int:
    """Clicks missing, too many, or not where the reference has them; a session torn apart counts as well."""
    users, starts, times, pages = (
        np.concatenate([np.zeros(0, np.int64), *(batch.column(i).to_numpy() for batch in out)]) for i in range(4)
    )
    heads = np.ones(len(users), bool)
    heads[1:] = (users[1:] != users[:-1]) | (starts[1:] != starts[:-1])
    torn = int(heads.sum()) - len(np.unique(np.column_stack((users[heads], starts[heads])), axis=0))
    order, expected = sessions_of(made)
    if len(users) != len(order):
        return abs(len(users) - len(order)) + torn
    mine = np.lexsort((pages, times, users))
    theirs = order[np.lexsort((made.pages[order], made.times_s[order], made.users[order]))]
    same = (users[mine] == made.users[theirs]) & (times[mine] == made.times_s[theirs])
    same &= (pages[mine] == made.pages[theirs]) & (starts[mine] == expected[np.argsort(order)[theirs]])
    return int((~same).sum()) + torn
