"""How many slices keyed state is cut into where a user does not say.

ChronoStream (C4) fixes one slice per core that a stage may ever use. Moves even out load only where a subtask has several
slices, so the rule here asks for four per subtask at full scale.
"""

from __future__ import annotations

from headrace.graph.stages import Layout

SLICES_PER_SUBTASK = 4
_LEAST, _MOST = 64, 32_768
"""A job on few cores may move to many later, and its slices stay; above the second, a slice's number would not fit its
two bytes."""


def default_slices(layout: Layout) -> int:
    """The smallest power of two that gives each subtask of the widest keyed stage four slices, however far it grows."""
    keyed = [stage.maximum for stage in layout.stages if any(edge.keyed for edge in layout.border(stage.index))]
    wanted = max(_LEAST, SLICES_PER_SUBTASK * max(keyed, default=1))
    return min(1 << (wanted - 1).bit_length(), _MOST)
