"""Latency figures from the reports that workers send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """Sampled latency of a step in milliseconds; ``n`` is how many buffers were seen."""

    n: int
    mean_ms: float
    p50_ms: float
    p99_ms: float


def figures_of(reports: Sequence[dict[str, Any]]) -> dict[str, LatencyFigures]:
    """Figures per step; steps without a sample are left out, never zero."""
    values: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for report in reports:
        for step in report["steps"]:
            sample = step["latency_ms"]
            if sample is not None:
                values.setdefault(step["step"], []).extend(sample["values"])
                counts[step["step"]] = counts.get(step["step"], 0) + sample["n"]
    return {
        step: LatencyFigures(counts[step], float(np.mean(v)), float(np.percentile(v, 50)), float(np.percentile(v, 99)))
        for step, v in values.items()
    }
