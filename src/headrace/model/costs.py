"""What steps and channels cost: what was measured, or what is assumed until then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.model.stagephases import Transfer

SHUFFLED = Transfer(row_s=0.0027, var_s2=0.0008**2)
"""Pipe, shuffle and pipe: ``transfer_ms`` of ``headrace bench model-accuracy --quick`` in ``bench/results/2026-11-16.jsonl``."""
WOKEN = Transfer(row_s=0.0002, var_s2=0.0002**2, held_share=0.05, held_s=0.004)
"""Of the same run: ``wake_ms`` and ``held_ms``."""


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

    ``transfer`` is from a buffer's flush to its receiver's queue: pipe, shuffle and pipe. ``wake`` is how much later
    than due a source reads. ``origin`` says where the figures come from.
    """

    steps: Mapping[str, StepCost] = field(default_factory=dict)
    transfer: Transfer = SHUFFLED
    wake: Transfer = WOKEN
    origin: str = "defaults"


PER_RECORD = StepCost(batch_s=0.0003, record_s=17e-6, batch_var_s2=0.0003**2)
"""A step nobody measured, of one Python call per record: ``count_batch_us`` and ``count_record_us`` of that run."""
VECTORISED = StepCost(batch_s=0.0001, record_s=5e-7, batch_var_s2=0.0001**2)
"""A step nobody measured, of one call per batch: ``out_batch_us`` and ``out_record_us``."""
