"""What steps and channels cost: what was measured, or what is assumed until then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.model.stages import Transfer

SHUFFLED = Transfer(0.0035, 2e-9, 0.0025**2)
WOKEN = Transfer(0.001, 0.0, 0.001**2)


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step's service: per batch that it is given, and per record in it.

    ``records_per_input`` are the records it is given for each one that the sources read.
    """

    batch_s: float
    record_s: float
    batch_var_s2: float = 0.0
    records_per_input: float = 1.0


@dataclass(frozen=True, slots=True)
class Costs:
    """All that the phases of a path are made of.

    ``transfer`` is from a buffer's cut to its receiver's queue: pipe, shuffle and pipe. ``wake`` is how much later
    than due a source reads. ``origin`` says where the figures come from.
    """

    steps: Mapping[str, StepCost] = field(default_factory=dict)
    transfer: Transfer = SHUFFLED
    wake: Transfer = WOKEN
    gap_s: float = 0.5
    origin: str = "defaults"


PER_RECORD = StepCost(batch_s=0.0003, record_s=8e-6, batch_var_s2=0.0003**2)
"""A step nobody measured, of one Python call per record."""
VECTORISED = StepCost(batch_s=0.0003, record_s=3e-7, batch_var_s2=0.0003**2)
"""A step nobody measured, of one call per batch."""
