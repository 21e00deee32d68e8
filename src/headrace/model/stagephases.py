"""The phases of our own runtime: SCALLA's model (section 2.9) derived anew.

A stage gathers items (a source by polling, a later stage in the output buffers of the stage before),
ships them through pipe and shuffle, queues the rows at its subtasks and works on each as a whole:
five phases per stage instead of twelve per map-reduce pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.errors import UnstableError
from headrace.model.buffers import Buffering, Flushes, RowFlow, flushes_of, paced_flushes, rows_of
from headrace.model.laws import Gamma, Law, Uniform, WaitLaw
from headrace.model.phases import Phase, PhasedPath
from headrace.model.queueing import Spread, daley_wait_s, expected_wait_s, merged_cv2

MAX_BUSY = 0.9
"""How busy a stage may be in a plan that has to hold (Nephele 2.10): nearer to one, any wait is a guess."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """From a buffer's flush to the receiving subtask's queue: measured per row, and per byte of it.

    ``held_share`` of the rows meet a machine that is busy with something else, and wait ``held_s`` more on average.
    """

    row_s: float = 0.0
    byte_s: float = 0.0
    var_s2: float = 0.0
    held_share: float = 0.0
    held_s: float = 0.0

    def laws(self, row_bytes: float) -> tuple[Law, ...]:
        """The parts of a row's transfer; none if it takes no time."""
        mean_s = self.row_s + self.byte_s * row_bytes
        sent: tuple[Law, ...] = (Gamma(mean_s, self.var_s2),) if mean_s else ()
        held = WaitLaw(self.held_share * self.held_s, self.held_share)
        return (*sent, held) if held.mean_s else sent


@dataclass(frozen=True, slots=True)
class StagePhases:
    """What was measured, or is assumed, of one stage.

    ``items_per_input`` are its items per item that the sources read, ``item_bytes`` their size on the way
    to it (none for a source, which has no buffer to fill before it polls). A row costs ``row_s`` besides
    ``item_s`` per item. Results leave a row ``together`` when all of it is done, as our operators do,
    or each ``in_turn``, as the thesis's. ``wait_error`` is the fitted e of Nephele 2.9; ``arrivals_cv2``
    and ``rows_together`` (buffers of several senders that come at once) replace the assumption of
    independent senders once they are measured. ``poll_s`` is for sources asked at fixed times, ``paced`` for those
    whose records are due at a fixed rate.
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
    paced: bool = False
    window_every_s: float | None = None
    window_lateness_s: float = 0.0


def path_of(
    rate_per_s: float, stages: Sequence[StagePhases], subtasks: Sequence[int], buffering: Buffering, *,
    bounded: bool = False, first: int | None = None,
) -> PhasedPath:  # fmt: skip
    """The latency of items that the sources read at ``rate_per_s``, through all stages to the last's end.

    ``bounded``: waits are bounds rather than estimates, for plans that have to hold. Raises UnstableError
    if a stage cannot keep up, or with little to spare if ``bounded``. A path that begins with the service of stage
    ``first`` has no phase before it.
    """
    reading_per_s = rate_per_s * stages[0].items_per_input / subtasks[0]
    flushes = _source_flushes(stages[0], reading_per_s, buffering)
    rows = rows_of(flushes, reading_per_s, 1, 1)
    phases = [_buffer(stages[0], flushes), *_phases(stages[0], rows, bounded)]
    for at in range(1, len(stages)):
        before, stage, senders = stages[at - 1], stages[at], subtasks[at - 1]
        sending_per_s = rate_per_s * stage.items_per_input / senders
        if at > 1:  # what a source ships has waited for its deadline before it was polled
            opened_per_s = min(rows.per_s, sending_per_s)
            flushes = flushes_of(opened_per_s, _arrivals_cv2(before, rows), sending_per_s * stage.item_bytes, buffering)
            phases.append(_buffer(stage, flushes))
        rows = rows_of(flushes, sending_per_s, senders, subtasks[at])
        phases += _phases(stage, rows, bounded)
    names = [phase.name for phase in phases]
    begins = 0 if first is None else names.index(f"{stages[first].name}: service")
    return PhasedPath(tuple(phases[begins:]))


def _source_flushes(source: StagePhases, reading_per_s: float, buffering: Buffering) -> Flushes:
    if source.paced:
        return paced_flushes(1 / reading_per_s, source.item_bytes, buffering)
    return flushes_of(reading_per_s, 1.0, reading_per_s * source.item_bytes, buffering)


def _buffer(stage: StagePhases, flushes: Flushes) -> Phase:
    return Phase(f"{stage.name}: buffer", (flushes.gathered,))


def _phases(stage: StagePhases, rows: RowFlow, bounded: bool) -> list[Phase]:
    phases = [_queue(stage, rows, bounded), _service(stage, rows)]
    transfer = stage.transfer.laws(rows.seen_items * stage.item_bytes)
    if transfer:
        phases.insert(0, Phase(f"{stage.name}: transfer", transfer))
    if stage.poll_s:
        phases.insert(0, Phase(f"{stage.name}: poll", (Uniform(0.0, stage.poll_s),)))
    if stage.window_every_s is not None:
        close = Uniform(stage.window_lateness_s, stage.window_lateness_s + stage.window_every_s)
        phases.append(Phase(f"{stage.name}: window", (close,)))
    return phases


def _row_s(stage: StagePhases, rows: RowFlow) -> float:
    return stage.row_s + rows.items * stage.item_s


def _arrivals_cv2(stage: StagePhases, rows: RowFlow) -> float:
    if stage.arrivals_cv2 is not None:
        return stage.arrivals_cv2
    return merged_cv2(rows.sender_cv2, rows.senders, rows.per_s * _row_s(stage, rows))


def _queue(stage: StagePhases, rows: RowFlow, bounded: bool) -> Phase:
    """Rows wait as in a G/G/1 queue of groups, and within a group for those before them."""
    mean_s = _row_s(stage, rows)
    var_s2 = stage.row_var_s2 + rows.items * stage.item_var_s2 + rows.items_var * stage.item_s**2
    busy = rows.per_s * mean_s
    if busy >= (MAX_BUSY if bounded else 1.0):
        raise UnstableError(
            f"stage {stage.name!r} would be busy {busy:.0%} of the time; "
            f"lower the rate, lengthen the buffer deadline or add subtasks"
        )
    group = stage.rows_together
    service = Spread(group * mean_s, group * var_s2)
    wait = _wait(stage, rows, service, busy, bounded)
    return Phase(f"{stage.name}: queue", (wait, Uniform(0.0, (group - 1) * mean_s)))


def _wait(stage: StagePhases, rows: RowFlow, service: Spread, busy: float, bounded: bool) -> WaitLaw:
    """A queue's wait, with what no theory of independent arrivals covers.

    Merging makes periodic senders look the more regular the busier the queue is. But two that are in
    step stay in step: a row finds another sender's before it with a chance of ρ, and waits for half of it.
    """
    in_step_s = (1 - rows.sender_cv2) * (1 - 1 / rows.senders) * busy * service.mean_s / 2
    if not bounded:
        merged_s = expected_wait_s(_arrivals_cv2(stage, rows), service, busy)
        mean_s = max(merged_s, expected_wait_s(rows.sender_cv2, service, busy) + in_step_s)
        return WaitLaw(stage.wait_error * mean_s, busy)
    arrivals_cv2 = _arrivals_cv2(stage, rows) + 2 * stage.transfer.var_s2 * (busy / service.mean_s) ** 2
    mean_s = daley_wait_s(arrivals_cv2, service, busy)
    # Who waits at all waits as long as by Kingman's form; the bound says that more do.
    longest_s = service.mean_s * (arrivals_cv2 + service.cv2) / (2 * (1 - busy))
    share = min(1.0, max(busy, mean_s / longest_s)) if longest_s else busy
    return WaitLaw(stage.wait_error * (mean_s + in_step_s), share)


def _service(stage: StagePhases, rows: RowFlow) -> Phase:
    items = rows.seen_items
    mean_s = stage.row_s + items * stage.item_s
    var_s2 = stage.row_var_s2 + items * stage.item_var_s2 + rows.items_var * stage.item_s**2
    in_turn = Uniform.matching(mean_s / 2, (var_s2 + mean_s**2) / 3 - mean_s**2 / 4)
    return Phase(f"{stage.name}: service", (in_turn if stage.finish == "in_turn" else Gamma(mean_s, var_s2),))
