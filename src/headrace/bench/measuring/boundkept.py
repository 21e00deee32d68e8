"""How well a latency bound was kept, from the records themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spans:
    """Per span of ``over_s``, one beginning each second: the mean (or a quantile) of what was due in it."""

    values_ms: npt.NDArray[np.float64]
    bound_ms: float

    @property
    def met_share(self) -> float:
        return round(float((self.values_ms <= self.bound_ms).mean()), 4) if len(self.values_ms) else float("nan")

    def figures(self) -> dict[str, float]:
        return {"bound_ms": self.bound_ms, "met_share": self.met_share, "intervals": len(self.values_ms)}


def spans_of(
    due_us: Ints, now_us: Ints, bound_ms: float, over_s: float, *, warmup_s: float = 0.0, quantile: float | None = None
) -> Spans:
    """Nephele's (S, l, t): all items that were due within any span t, sampled once per second."""
    if not len(due_us):
        return Spans(np.zeros(0), bound_ms)
    order = np.argsort(due_us, kind="stable")
    due_s = (due_us[order] - due_us.min()) / 1e6
    latency_ms = ((now_us - due_us) / 1000)[order]
    starts = np.arange(warmup_s, max(due_s[-1] - over_s, warmup_s) + 1e-9, 1.0)
    values = []
    for begin, end in zip(np.searchsorted(due_s, starts), np.searchsorted(due_s, starts + over_s)):
        if end > begin:
            part = latency_ms[begin:end]
            values.append(part.mean() if quantile is None else np.quantile(part, quantile))
    return Spans(np.array(values), bound_ms)
