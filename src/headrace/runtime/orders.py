"""What the driver tells subtasks to do from now on: deadlines and sizes of buffers, active receivers, chains,
the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.config import Schedule

Sender = tuple[int, int]
"""An edge and the subtask that sends on it."""


@dataclass(frozen=True, slots=True)
class Orders:
    """All of it at once, so that a message that is lost or comes twice does no harm.

    ``active``: subtasks of a stage that spread edges lead to. ``chained`` None: as the job was laid
    out. A sender that is not named keeps the deadline and the size of the run's settings. ``schedule`` None:
    that of the run's settings.
    """

    version: int = 0
    deadlines_us: Mapping[Sender, int] = field(default_factory=dict)
    sizes_bytes: Mapping[Sender, int] = field(default_factory=dict)
    active: Mapping[int, int] = field(default_factory=dict)
    chained: frozenset[int] | None = None
    schedule: Schedule | None = None
