"""What the driver tells subtasks to do from now on: deadlines and sizes of buffers, active receivers, chains,
the schedule."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.config import Schedule

Sender = tuple[int, int]
"""An edge and the subtask that sends on it."""


class Orders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of it at once, so that a message that is lost or comes twice does no harm.

    ``active``: subtasks of a stage that spread edges lead to. ``chained`` None: as the job was laid
    out. A sender that is not named keeps the deadline and the size of the run's settings. ``schedule`` None:
    that of the run's settings.
    """

    version: int
    deadlines_us: Mapping[Sender, int]
    sizes_bytes: Mapping[Sender, int]
    active: Mapping[int, int]
    chained: frozenset[int] | None
    schedule: Schedule | None


NO_ORDERS = Orders(0, {}, {}, {}, None, None)
"""Everything as the job was laid out and as the run's settings say."""
