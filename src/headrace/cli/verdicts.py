"""How a run's latency constraints were kept, for people and for the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from headrace.actuate.controller import BoundKept
from headrace.cli.answers import VIOLATED, messages


def bound_figures(kept: Mapping[str, BoundKept]) -> dict[str, Any]:
    """Of each bound: what was measured last and at worst, and how often it was kept; ``violations`` of them all.

    ``violations`` is in how many of the controller's cycles a bound was broken; None where none was looked at.
    """
    known = [bound for bound in kept.values() if bound.cycles]
    return {
        "violations": sum(bound.cycles - bound.met for bound in known) if known else None,
        "constraints": [
            {
                "bound": name, "bound_ms": bound.bound_ms, "measured_ms": bound.latest_ms, "worst_ms": bound.worst_ms,
                "cycles": bound.cycles, "met": bound.met,
            }
            for name, bound in kept.items()
        ],
    }  # fmt: skip


def verdict_table(answer: Mapping[str, Any]) -> Table | None:
    """The verdict on each bound; None if there is none."""
    if not answer["constraints"]:
        return None
    table = Table(title="latency constraints", title_justify="left")
    table.add_column("bound", no_wrap=True)
    for column in ("measured last", "at worst", "kept"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for bound in answer["constraints"]:
        verdict, style = _verdict(bound)
        cells = (_ms(bound["measured_ms"]), _ms(bound["worst_ms"]), _kept(bound))
        table.add_row(bound["bound"], *cells, Text(verdict, style=style))
    return table


def refuse_violations(answer: Mapping[str, Any], *, strict: bool) -> None:
    """With ``--strict``, exit with 3 if a constraint was violated, and say which."""
    if not strict or not answer["violations"]:
        return
    for bound in answer["constraints"]:
        if bound["met"] < bound["cycles"]:
            messages().print(
                f"exit code {VIOLATED}, as --strict was given: {bound['bound']} was kept in {_kept(bound)} looks only, "
                f"and at worst it was {_ms(bound['worst_ms'])}"
            )
    raise typer.Exit(VIOLATED)


def _verdict(bound: Mapping[str, Any]) -> tuple[str, str]:
    if not bound["cycles"]:
        return "unknown: nothing was measured", "yellow"
    return ("kept", "green") if bound["met"] == bound["cycles"] else ("violated", "red")


def _kept(bound: Mapping[str, Any]) -> str:
    met, cycles = bound["met"], bound["cycles"]
    return f"{met} of {cycles} ({met / cycles:.1%})" if cycles else "–"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f} ms"
