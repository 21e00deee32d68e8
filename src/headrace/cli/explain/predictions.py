"""What ``headrace explain`` says of a job's constraints: budgets, predictions, the plan, each with its reason."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from headrace.actuate.controljob import control_job
from headrace.control.loop import decide_again
from headrace.errors import ConfigError
from headrace.forecast.calibrate import calibrated
from headrace.forecast.prediction import Forecast, forecast
from headrace.graph.nodes import SourceNode
from headrace.measure.trace import read
from headrace.model.costs import Costs
from headrace.model.fitting import fitted_costs
from headrace.model.sizing import Sizing
from headrace.runtime.plan import JobPlan
from headrace.units import in_words, rate_per_s


def known_costs(plan: JobPlan, *, calibrate: bool, trace: Path | None) -> Costs:
    """Where the figures come from: an earlier run's trace, sample records, or defaults."""
    costs = calibrated(plan) if calibrate else Costs()
    if trace is None:
        return costs
    if not trace.exists():
        raise ConfigError(f"there is no trace {trace}; a run writes one with trace=")
    reports = [report for seen in read(trace) for report in seen.reports]
    return fitted_costs(reports, [node.name for node in plan.graph.nodes if isinstance(node, SourceNode)], costs)


def replayed(plan: JobPlan, trace: Path) -> list[str]:
    """What the controller decides when it sees an earlier run again, by the bounds and settings of now."""
    decided = [one for cycle in decide_again(control_job(plan), read(trace)) for one in cycle.decisions]
    return [f"{datetime.fromtimestamp(one.at_s):%Y-%m-%d %H:%M:%S} {one.sentence()}" for one in decided]


def predictions(plan: JobPlan, costs: Costs, rate: str | None) -> dict[str, Any]:
    """The forecasts as plain data."""
    made = forecast(plan, costs, rate_per_s(rate) if rate is not None else None)
    return {"costs_from": costs.origin, "constraints": [_as_data(plan, one) for one in made]}


def constraint_sentences(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [f"Constraints, by {found['costs_from']}"]
    for one in found["constraints"]:
        lines += [f"  {one['constraint']}", f"    {one['verdict']}"]
        if one["predicted"] is not None:
            p50, p99, rate = one["predicted"]["p50_ms"], one["predicted"]["p99_ms"], one["rate_per_s"]
            lines.append(f"    predicted at {rate:g}/s as it starts: p50 {p50:g} ms, p99 {p99:g} ms")
            parts = ", ".join(f"{part['phase']} {part['mean_ms']:g}" for part in one["predicted"]["phases"])
            lines.append(f"    where the time goes, in ms: {parts}")
        if one["until_rows"] is not None:
            p50, p99 = (in_words(one["until_rows"][q] / 1000) for q in ("p50_ms", "p99_ms"))
            steps = " and ".join(map(repr, one["until_rows"]["windows"]))
            lines.append(
                f"    rows of {steps} come when their windows end: p50 {p50}, p99 {p99} with that wait, which the bound "
                f"does not count (latency='read-write' makes it count)"
            )
        if one["plan"] is not None:
            edges = ", ".join(f"{edge} {ms:g} ms" for edge, ms in one["plan"]["deadlines_ms"].items())
            lines.append(f"    longest buffer deadlines: {edges}; {one['plan']['why']}")
        budget = ", ".join(f"{part['of']} {part['ms']:g} ms" for part in one["budget"])
        lines.append(f"    budget, in proportion to what each is expected to take: {budget}")
    if "decisions" in found:
        lines += [
            "",
            "What the controller decides when it sees the trace again",
            *(f"  {d}" for d in found["decisions"]),
        ]
    return lines


def _as_data(plan: JobPlan, one: Forecast) -> dict[str, Any]:
    at_start = one.at_start
    return {
        "constraint": one.constraint.describe(),
        "rate_per_s": one.rate_per_s,
        "verdict": one.verdict,
        "budget": [{"of": share.name, "ms": _ms(share.bound_s)} for share in one.budgets],
        "predicted": None
        if at_start is None
        else {
            "mean_ms": _ms(at_start.mean_s),
            "p50_ms": _ms(at_start.p50_s),
            "p99_ms": _ms(at_start.p99_s),
            "phases": [{"phase": name, "mean_ms": _ms(mean_s)} for name, mean_s in at_start.phases],
        },
        "until_rows": None
        if one.until_rows is None
        else {
            "windows": sorted(one.windows),
            "p50_ms": _ms(one.until_rows.p50_s),
            "p99_ms": _ms(one.until_rows.p99_s),
        },
        "plan": _plan(plan, one),
    }


def _plan(plan: JobPlan, one: Forecast) -> dict[str, Any] | None:
    sizing = one.sizing
    if not isinstance(sizing, Sizing):
        return None
    edges = [plan.layout.edges[id] for id in sorted(one.constraint.edges)]
    apart = [e for e in edges if plan.layout.stage_of[e.source] != plan.layout.stage_of[e.target]]
    return {
        "subtasks": list(sizing.subtasks),
        "deadlines_ms": {f"{e.source} → {e.target}": _ms(sizing.deadline_s) for e in apart},
        "latency_ms": _ms(sizing.latency_s),
        "why": f"any longer and the bound, now at {in_words(sizing.latency_s)} by the upper bounds of the model, is missed",
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
