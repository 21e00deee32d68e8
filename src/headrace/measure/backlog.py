"""What waits inside a subtask, and how much of its memory that takes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Backlog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At the time of a report; peak and standstill are those since the subtask started.

    ``queues`` has the buffers that wait for each step, where steps have queues. ``used_share`` is x, queued and
    state bytes over the budget. ``stopped_ms`` is for how long reading stood still because memory was used up.
    ``shed`` has for each step that sheds how many records it received, processed, shed and has waiting.
    """

    schedule: str
    queues: Mapping[str, int]
    queued_bytes: int
    state_bytes: int
    used_share: float
    peak_bytes: int
    stopped_ms: float
    shed: Mapping[str, Mapping[str, int]]
