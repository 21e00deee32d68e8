"""What the audit compares: the items and records of one interval, where they are sent and where they are consumed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """By edge and sender. ``items`` has a number for each slice, in buffers as they are shipped; ``records`` counts what
    was put into them before it was combined, or what they stood for when they were taken out.
    """

    items: dict[int, dict[int, list[int]]]
    records: dict[int, dict[int, int]]
