"""What flowed through the steps of one worker, for people who watch a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from headrace.measure.sketches import Latencies, merged


class Flow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One step in one subtask and interval.

    ``latency`` is of the sampled records that it had: from when each was due at its source, or read
    where there is no schedule, until the step was done with it. None where nothing came.
    """

    step: str
    items_in: int
    items_out: int
    late: int
    latency: Latencies | None


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """Latency of a step in milliseconds, from when records were due; ``n`` of them were sampled."""

    n: int
    mean_ms: float
    p50_ms: float
    p99_ms: float


def figures_of(flows: Iterable[Flow]) -> dict[str, LatencyFigures]:
    """Figures per step; steps without a sample are left out, never zero."""
    parts: dict[str, list[Latencies]] = {}
    for flow in flows:
        if flow.latency is not None:
            parts.setdefault(flow.step, []).append(flow.latency)
    whole = {step: merged(known) for step, known in parts.items()}
    return {
        step: LatencyFigures(all.n, all.mean_ms, all.quantile_ms(0.5), all.quantile_ms(0.99))
        for step, all in whole.items()
    }
