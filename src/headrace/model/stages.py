"""The phases of our own runtime: the thesis's model (SCALLA 2.9) derived anew.

A stage gathers items (a source by polling, a later stage in the output buffers of the stage before),
ships them through pipe and shuffle, queues the rows at its subtasks and works on each as a whole:
five phases per stage instead of twelve per map-reduce pair, and one epoch gap for the path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.errors import UnstableError
from headrace.model.laws import Gamma, Gathered, Uniform, Waiting
from headrace.model.phases import EpochGap, Path, Phase
from headrace.model.queueing import Moments, daley_wait_s, expected_wait_s, merged_cv2

MOST_BUSY = 0.9
"""How busy a stage may be in a plan that has to hold (Nephele 2.10): nearer to one, any wait is a guess."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """From a buffer's cut to the receiving subtask's queue: measured per row, and per byte of it."""

    row_s: float = 0.0
    byte_s: float = 0.0
    var_s2: float = 0.0


@dataclass(frozen=True, slots=True)
class Stage:
    """What was measured, or is assumed, of one stage.

    ``items_per_input`` are its items per item that the sources read. A row costs ``row_s`` besides
    ``item_s`` per item. Results leave a row ``together`` when all of it is done, as our operators do,
    or each ``in_turn``, as the thesis's. ``wait_error`` is the fitted e of Nephele 2.9; ``arrivals_cv2``
    and ``rows_together`` (buffers of several senders that come at once) replace the assumption of
    independent senders once they are measured. ``poll_s`` is for sources asked at fixed times.
    """

    name: str
    item_s: float
    item_var_s2: float = 0.0
    row_s: float = 0.0
    row_var_s2: float = 0.0
    items_per_input: float = 1.0
    item_bytes: float = 0.0
    transfer: Transfer = Transfer()
    finish: Literal["together", "in_turn"] = "together"
    wait_error: float = 1.0
    arrivals_cv2: float | None = None
    rows_together: float = 1.0
    poll_s: float = 0.0
    window_every_s: float | None = None
    window_lateness_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Buffering:
    """When a buffer is cut: after a time, or at a size if it fills before."""

    deadline_s: float
    most_bytes: float = 1_000_000


@dataclass(frozen=True, slots=True)
class Cuts:
    """What one sender ships: a buffer every ``cycle_s``, for all receivers together."""

    gathered: Gathered
    cycle_s: float
    cycle_cv2: float


@dataclass(frozen=True, slots=True)
class Rows:
    """What one subtask receives: rows per second from all senders, and items in them.

    ``seen_items`` is the size of the row that an item finds itself in; larger rows hold more items, so
    it is more than the mean.
    """

    per_s: float
    items: float
    items_var: float
    seen_items: float
    senders: int
    sender_cv2: float
    cv2: float


def path_of(
    rate_per_s: float, stages: Sequence[Stage], subtasks: Sequence[int], buffering: Buffering,
    gap_s: float = 0.0, epoch_s: float = 60.0, *, bounded: bool = False,
) -> Path:  # fmt: skip
    """The latency of items that the sources read at ``rate_per_s``, through all stages to the last's end.

    ``bounded``: waits are bounds rather than estimates, for plans that have to hold. Raises UnstableError
    if a stage cannot keep up, or with little to spare if ``bounded``.
    """
    reading_per_s = rate_per_s * stages[0].items_per_input / subtasks[0]
    cuts = _cuts(reading_per_s, 1.0, reading_per_s, stages[0], buffering)
    rows = _rows(cuts, reading_per_s, stages[0], 1, 1)
    phases = [_buffer(stages[0], cuts), *_phases(stages[0], rows, bounded)]
    for stage, senders, receivers in zip(stages[1:], subtasks, subtasks[1:]):
        sending_per_s = rate_per_s * stage.items_per_input / senders
        if stage is not stages[1]:  # what a source ships has waited for its deadline before it was polled
            cuts = _cuts(rows.per_s, rows.cv2, sending_per_s, stage, buffering)
            phases.append(_buffer(stage, cuts))
        rows = _rows(cuts, sending_per_s, stage, senders, receivers)
        phases += _phases(stage, rows, bounded)
    busy = busy_shares(rate_per_s, stages, subtasks)
    return Path(tuple(phases), EpochGap(gap_s, epoch_s, max(busy), sum(busy)) if gap_s else None)


def busy_shares(rate_per_s: float, stages: Sequence[Stage], subtasks: Sequence[int]) -> list[float]:
    """Each stage's utilisation by items alone: in a backlog rows are large and their own cost is small."""
    return [rate_per_s * s.items_per_input * s.item_s / n for s, n in zip(stages, subtasks, strict=True)]


def _cuts(opened_per_s: float, opened_cv2: float, items_per_s: float, stage: Stage, buffering: Buffering) -> Cuts:
    """A sender's buffers. ``opened_per_s`` are the moments at which one may open: items read, or rows finished.

    After a cut the next opening is a residual time away: exponential if they come at random, uniform
    within one interval if they come periodically.
    """
    bytes_per_s = items_per_s * stage.item_bytes
    lifetime_s = min(buffering.deadline_s, buffering.most_bytes / bytes_per_s) if bytes_per_s else buffering.deadline_s
    every_s = 1 / opened_per_s
    cycle_s = max(every_s, lifetime_s + every_s * (1 + opened_cv2) / 2)
    return Cuts(
        gathered=Gathered(lifetime_s, every_s / cycle_s),
        cycle_s=cycle_s,
        cycle_cv2=(1 + 11 * opened_cv2) / 12 * (every_s / cycle_s) ** 2,
    )


def _rows(cuts: Cuts, items_per_s: float, stage: Stage, senders: int, receivers: int) -> Rows:
    """Every sender's buffers, split by key over all receivers; keys are taken to be spread evenly."""
    cut_items = max(1.0, items_per_s * cuts.cycle_s)
    filled = 1 - (1 - 1 / receivers) ** cut_items
    others = (cut_items - 1) / receivers
    items = items_per_s * cuts.cycle_s / receivers / filled
    per_s = senders * filled / cuts.cycle_s
    busy = per_s * (stage.row_s + items * stage.item_s)
    sender_cv2 = filled * cuts.cycle_cv2 + 1 - filled
    return Rows(
        per_s=per_s,
        items=items,
        items_var=others,
        seen_items=1 + others * (1 + 1 / cut_items),
        senders=senders,
        sender_cv2=sender_cv2,
        cv2=merged_cv2(sender_cv2, senders, busy) if stage.arrivals_cv2 is None else stage.arrivals_cv2,
    )


def _buffer(stage: Stage, cuts: Cuts) -> Phase:
    return Phase(f"{stage.name}: buffer", (cuts.gathered,))


def _phases(stage: Stage, rows: Rows, bounded: bool) -> list[Phase]:
    phases = [_queue(stage, rows, bounded), _service(stage, rows)]
    transfer_s = stage.transfer.row_s + stage.transfer.byte_s * rows.seen_items * stage.item_bytes
    if transfer_s:
        transfer = Gamma(transfer_s, stage.transfer.var_s2)
        phases.insert(0, Phase(f"{stage.name}: transfer", (transfer,)))
    if stage.poll_s:
        phases.insert(0, Phase(f"{stage.name}: poll", (Uniform(0.0, stage.poll_s),)))
    if stage.window_every_s is not None:
        close = Uniform(stage.window_lateness_s, stage.window_lateness_s + stage.window_every_s)
        phases.append(Phase(f"{stage.name}: window", (close,)))
    return phases


def _queue(stage: Stage, rows: Rows, bounded: bool) -> Phase:
    """Rows wait as in a G/G/1 queue of groups, and within a group for those before them."""
    mean_s = stage.row_s + rows.items * stage.item_s
    var_s2 = stage.row_var_s2 + rows.items * stage.item_var_s2 + rows.items_var * stage.item_s**2
    busy = rows.per_s * mean_s
    if busy >= (MOST_BUSY if bounded else 1.0):
        raise UnstableError(
            f"stage {stage.name!r} would be busy {busy:.0%} of the time; "
            f"lower the rate, lengthen the buffer deadline or add subtasks"
        )
    group = stage.rows_together
    service = Moments(group * mean_s, group * var_s2 + (group * mean_s) ** 2, 0.0)
    wait = _wait(stage, rows, service, busy, bounded)
    return Phase(f"{stage.name}: queue", (wait, Uniform(0.0, (group - 1) * mean_s)))


def _wait(stage: Stage, rows: Rows, service: Moments, busy: float, bounded: bool) -> Waiting:
    """A queue's wait, with what no theory of independent arrivals covers.

    Merging makes periodic senders look the more regular the busier the queue is. But two that are in
    step stay in step: a row finds another sender's before it with a chance of ρ, and waits for half of it.
    """
    in_step_s = (1 - rows.sender_cv2) * (1 - 1 / rows.senders) * busy * service.mean_s / 2
    if not bounded:
        merged_s = expected_wait_s(rows.cv2, service, busy)
        mean_s = max(merged_s, expected_wait_s(rows.sender_cv2, service, busy) + in_step_s)
        return Waiting(stage.wait_error * mean_s, busy)
    arrivals_cv2 = rows.cv2 + 2 * stage.transfer.var_s2 * (busy / service.mean_s) ** 2
    mean_s = daley_wait_s(arrivals_cv2, service, busy)
    # Who waits at all waits as long as by Kingman's form; the bound says that more do.
    longest_s = service.mean_s * (arrivals_cv2 + service.cv2) / (2 * (1 - busy))
    share = min(1.0, max(busy, mean_s / longest_s)) if longest_s else busy
    return Waiting(stage.wait_error * (mean_s + in_step_s), share)


def _service(stage: Stage, rows: Rows) -> Phase:
    items = rows.seen_items
    mean_s = stage.row_s + items * stage.item_s
    var_s2 = stage.row_var_s2 + items * stage.item_var_s2 + rows.items_var * stage.item_s**2
    in_turn = Uniform.matching(mean_s / 2, (var_s2 + mean_s**2) / 3 - mean_s**2 / 4)
    return Phase(f"{stage.name}: service", (in_turn if stage.finish == "in_turn" else Gamma(mean_s, var_s2),))
