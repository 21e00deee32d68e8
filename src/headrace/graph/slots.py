"""How many subtasks each leg is allocated with a given number of task slots.

Stages run at the same time, so each subtask of each stage holds a slot. On executors that come and go a job
holds what its slots allow, and the maximum of its steps only if there are slots for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.graph.stages import Layout, Stage

Subtasks = Mapping[int, int]
"""Per elastic leg, named by its first stage: a number of subtasks."""


def elastic_legs(layout: Layout) -> tuple[Stage, ...]:
    """The first stages of the legs whose number of subtasks may change."""
    return tuple(stage for stage in layout.stages if stage.elastic and stage.index == stage.first)


def slots_of(layout: Layout, subtasks: Subtasks) -> int:
    """The task slots that the job holds with so many subtasks in its elastic legs; others stay as they are."""
    return sum(subtasks[s.first] if s.elastic else s.subtasks for s in layout.stages)


def min_slots(layout: Layout) -> int:
    """The fewest slots that the job can run with."""
    return slots_of(layout, {leg.index: leg.minimum for leg in elastic_legs(layout)})


def roomy(layout: Layout, wanted: Subtasks) -> dict[int, int]:
    """What is wanted and one more, up to the maximum; a leg at its minimum gets no more: it might want even fewer."""
    more = {leg.index: wanted[leg.index] + (wanted[leg.index] > leg.minimum) for leg in elastic_legs(layout)}
    return {leg.index: min(more[leg.index], leg.maximum) for leg in elastic_legs(layout)}


def fitted_layout(layout: Layout, wanted: Subtasks, slots: int) -> Layout:
    """The layout with at most so many slots, shared out by what is wanted; never below the minimum of each leg.

    Slots that nobody asked for are given away, too: they are there, and more subtasks then need no restart.
    """
    legs = elastic_legs(layout)
    held = {leg.index: leg.minimum for leg in legs}
    free = slots - slots_of(layout, held)
    while True:
        open_legs = [leg for leg in legs if held[leg.index] < leg.maximum and _hops(leg) <= free]
        if not open_legs:
            break
        neediest = min(open_legs, key=lambda leg: held[leg.index] / max(wanted[leg.index], 1))
        held[neediest.index] += 1
        free -= _hops(neediest)
    stages = [
        replace(s, subtasks=held[s.first], active=min(max(wanted[s.first], s.minimum), held[s.first]))
        if s.elastic
        else s
        for s in layout.stages
    ]
    return replace(layout, stages=tuple(stages))


def widened_layout(layout: Layout, leg: int, subtasks: int) -> Layout:
    """The layout with at least so many subtasks in the leg that begins with a stage, all of them active."""
    stages = tuple(
        replace(s, subtasks=max(s.subtasks, subtasks), active=subtasks, maximum=max(s.maximum, subtasks))
        if s.first == leg
        else s
        for s in layout.stages
    )
    return replace(layout, stages=stages)


def _hops(leg: Stage) -> int:
    return leg.last - leg.first + 1
