"""Output buffers: how long items gather in them, and the rows that receivers get."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.laws import Gathered

_NOISE = 1e-9


@dataclass(frozen=True, slots=True)
class Buffering:
    """When a buffer is flushed: after a time, or at a size if it fills earlier."""

    deadline_s: float
    max_bytes: float = 1_000_000


@dataclass(frozen=True, slots=True)
class Flushes:
    """What one sender ships: a buffer every ``cycle_s``, for all receivers together."""

    gathered: Gathered
    cycle_s: float
    cycle_cv2: float


@dataclass(frozen=True, slots=True)
class RowFlow:
    """What one subtask receives: rows per second from all senders, and items in them.

    ``seen_items`` is the size of the row that an item finds itself in; larger rows hold more items, so
    it is more than the mean. ``sender_cv2`` is the variation of the rows of one sender.
    """

    per_s: float
    items: float
    items_var: float
    seen_items: float
    senders: int
    sender_cv2: float


def flushes_of(opened_per_s: float, opened_cv2: float, bytes_per_s: float, buffering: Buffering) -> Flushes:
    """A sender's buffers. ``opened_per_s`` are the moments at which one may open: items read, or rows finished.

    After a flush the next opening is a residual time away: exponential if they come at random (cv² of one),
    uniform within one interval if they come periodically (zero); in between we interpolate.
    """
    lifetime_s = buffering.deadline_s
    if bytes_per_s:
        lifetime_s = min(lifetime_s, buffering.max_bytes / bytes_per_s)
    every_s, cv2 = 1 / opened_per_s, min(opened_cv2, 1.0)
    cycle_s = max(every_s, lifetime_s + every_s * (1 + cv2) / 2)
    return Flushes(
        gathered=Gathered(lifetime_s, every_s / cycle_s),
        cycle_s=cycle_s,
        cycle_cv2=(1 + 11 * cv2) / 12 * (every_s / cycle_s) ** 2,
    )


def paced_flushes(every_s: float, record_bytes: float, buffering: Buffering) -> Flushes:
    """A source's buffers when a record is due every ``every_s``, as ``runtime.subtask`` reads such a source.

    It sleeps until the oldest record that is due has waited for the whole deadline, then reads and ships all that are.
    """
    lifetime_s = buffering.deadline_s
    if record_bytes:
        lifetime_s = min(lifetime_s, buffering.max_bytes / record_bytes * every_s)
    records = int(lifetime_s / every_s + _NOISE) + 1
    return Flushes(Gathered(lifetime_s, 1 / records), records * every_s, 0.0)


def rows_of(flushes: Flushes, items_per_s: float, senders: int, receivers: int) -> RowFlow:
    """Every sender's buffers, split by key over all receivers; keys are taken to be spread evenly.

    A flush of n items has a row for a receiver unless all n went elsewhere. The number of items is 1 +
    Poisson, of which an item sees (n−1)(1+1/n) others.
    """
    flush_items = items_per_s * flushes.cycle_s
    n = max(1.0, flush_items)
    filled = min(1.0, flush_items) * (1 - (1 - 1 / receivers) ** n)
    others = (n - 1) / receivers
    return RowFlow(
        per_s=senders * filled / flushes.cycle_s,
        items=flush_items / receivers / filled,
        items_var=others,
        seen_items=1 + others * (1 + 1 / n),
        senders=senders,
        sender_cv2=filled * flushes.cycle_cv2 + 1 - filled,
    )
