"""What ``bench combine`` concludes from its runs: costs per item, where panes begin to pay, how flat they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.bench.overlapping.gammafit import Trial, fitted_gamma
from headrace.bench.overlapping.trades import SYMBOLS, Trades
from headrace.model.panecost import GAMMA, SLIDING_MERGES, WindowLoad


@dataclass(frozen=True, slots=True)
class CombineOutcome:
    """One run: a stream, a window size, and ``combine`` (panes), ``direct`` (each window by itself) or ``stock``.

    ``worker_ns_per_item`` is the CPU time of our Python workers alone, without what Spark takes to start and end a run.
    """

    stream: str
    size_s: int
    form: str
    items: int
    items_per_s: int
    ns_per_item: int
    cpu_ns_per_item: int
    worker_ns_per_item: int | None
    lost: int
    duplicated: int
    wrong: int


def figures_of(outcomes: Sequence[CombineOutcome]) -> dict[str, Any]:
    """Figures of the dense stream by form and size, and what follows from them."""
    dense = [outcome for outcome in outcomes if outcome.stream == "dense"]
    costs = {(outcome.form, outcome.size_s): outcome for outcome in dense}
    figures: dict[str, Any] = {
        "items": sum(outcome.items for outcome in outcomes if outcome.form != "stock"),
        **{name: sum(getattr(outcome, name) for outcome in outcomes) for name in ("lost", "duplicated", "wrong")},
        "crossover_s": crossover_s(dense),
        "sparse_crossover_s": crossover_s([outcome for outcome in outcomes if outcome.stream == "sparse"]),
    }
    largest = max(outcome.size_s for outcome in dense)
    at_2, at_most, peer = costs["combine", 2], costs["combine", largest], costs.get(("stock", largest))
    figures["items_per_s"] = at_most.items_per_s
    figures["flatness"] = round(at_most.ns_per_item / at_2.ns_per_item, 2)
    figures["worker_flatness"] = round((at_most.worker_ns_per_item or 0) / (at_2.worker_ns_per_item or 1), 2)
    if peer is not None:
        figures[f"ratio_at_{largest}s"] = round(peer.ns_per_item / at_most.ns_per_item, 2)
        figures[f"cpu_ratio_at_{largest}s"] = round(peer.cpu_ns_per_item / at_most.cpu_ns_per_item, 2)
    for outcome in dense:
        figures[f"{outcome.form}_ns_per_item_at_{outcome.size_s}"] = outcome.ns_per_item
        figures[f"{outcome.form}_cpu_ns_per_item_at_{outcome.size_s}"] = outcome.cpu_ns_per_item
    return figures


def crossover_s(outcomes: Sequence[CombineOutcome]) -> int | None:
    """The smallest size tried from which workers take less CPU time with panes; None if there is none.

    CPU time, because what else runs on the machine counts into the other.
    """
    cost = {(outcome.form, outcome.size_s): outcome.worker_ns_per_item or 0 for outcome in outcomes}
    found = None
    for size_s in sorted({size_s for form, size_s in cost if form == "combine"}, reverse=True):
        if cost["combine", size_s] >= cost["direct", size_s]:
            break
        found = size_s
    return found


def load_of(trades: Trades) -> WindowLoad:
    """Trades per second and symbols per second of trading, counted."""
    tape = trades.tape()
    pairs = np.unique(tape.seconds * SYMBOLS + tape.symbols)
    return WindowLoad(len(tape.seconds) / trades.seconds, len(pairs) / trades.seconds)


def rule_figures(outcomes: Sequence[CombineOutcome], loads: Mapping[str, WindowLoad]) -> dict[str, Any]:
    """The rule's γ fitted to all runs, and of how many of them it, and the default, tell the cheaper form."""
    trials = _trials(outcomes, loads)
    gamma = fitted_gamma(trials)
    return {
        "gamma": round(gamma, 2) if gamma is not None else None,
        "trials": len(trials),
        "winners_predicted": _predicted(trials, gamma) if gamma is not None else None,
        "winners_predicted_by_default": _predicted(trials, GAMMA),
    }


def _predicted(trials: Sequence[Trial], gamma: float) -> int:
    return sum((gamma < trial.indifferent_gamma) == (trial.paned_s < trial.direct_s) for trial in trials)


def _trials(outcomes: Sequence[CombineOutcome], loads: Mapping[str, WindowLoad]) -> list[Trial]:
    cost_s = {(o.stream, o.size_s, o.form): (o.worker_ns_per_item or 0) / 1e9 for o in outcomes}
    return [
        Trial(size_s * 1_000_000, 1_000_000, loads[stream], cost_s[stream, size_s, "direct"], paned_s, SLIDING_MERGES)
        for (stream, size_s, form), paned_s in cost_s.items()
        if form == "combine"
    ]
