"""What a job will be on Spark, as plain data and for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.cli.explain.paneadvice import in_words_about, pane_choices
from headrace.cli.explain.predictions import constraint_sentences
from headrace.cli.explain.reducecosts import ReduceCost, reduce_costs
from headrace.cli.explain.waits import wait_in_words, waits_of
from headrace.graph.render import describe, render
from headrace.units import in_words

if TYPE_CHECKING:
    from headrace.runtime.plan import JobPlan
    from headrace.spark.session import SparkSetting


def explanation(plan: JobPlan, settings: tuple[SparkSetting, ...]) -> dict[str, Any]:
    """The plan as plain data."""
    layout = plan.layout
    return {
        "job": plan.graph.job,
        "mode": plan.settings.mode,
        "slots": layout.slots,
        "stages": [
            {"stage": s.index, "subtasks": s.subtasks, "shuffled": s.shuffled, "steps": list(s.steps)}
            for s in layout.stages
        ],
        "steps": [
            {
                "step": node.name,
                "does": describe(node),
                "stage": layout.stage_of[node.name],
                "inputs": list(node.inputs),
                "columns": {field.name: str(field.type) for field in plan.schemas[node.name]},
            }
            for node in plan.graph.nodes
        ],
        "edges": [{"from": e.source, "to": e.target, "stage": e.border, "keys": list(e.keys)} for e in layout.edges],
        "waits": waits_of(plan.graph),
        "panes": pane_choices(plan.graph),
        "shared": [{"step": step, "runs_as": other} for step, other in plan.graph.shared],
        "constraints": [constraint.describe() for constraint in plan.graph.constraints],
        "costs": [cost.as_data() for cost in costs_of(plan)],
        "spark": [{"key": s.key, "value": s.value, "why": s.why} for s in settings],
    }


def show(plan: JobPlan, settings: tuple[SparkSetting, ...], found: dict[str, Any] | None = None) -> None:
    """The plan for people; ``found`` are the predictions of a job with constraints."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(render(plan.graph, plan.layout)))
    console.print(Text("\n".join(["", *in_sentences(plan), ""])))
    if found is not None:
        console.print(Text("\n".join([*constraint_sentences(found), ""])))
    console.print(_schemas(plan))
    if costs := costs_of(plan):
        console.print(Text("\n".join(["Cost of each reduce, at most", *(f"  {c.sentence()}" for c in costs), ""])))
    console.print(_settings(plan, settings))


def costs_of(plan: JobPlan) -> list[ReduceCost]:
    """Of batch jobs only: a stream has no size."""
    return reduce_costs(plan) if plan.settings.mode == "batch" else []


def in_sentences(plan: JobPlan) -> list[str]:
    """What the layout means for Spark and for latency."""
    layout, settings = plan.layout, plan.settings
    shuffles = sum(stage.shuffled for stage in layout.stages)
    lines = [f"stages: {len(layout.stages)}; shuffles: {shuffles}; slices of state per keyed step: {plan.slices}."]
    if plan.eager:
        parts = " + ".join(str(stage.subtasks) for stage in layout.stages)
        lines += [
            f"{layout.slots} task slots ({parts}), held as long as the query runs: all stages run at the same time.",
            f"A cut every {in_words(settings.cut_every_s)}: state, offsets and results become one version.",
            f"A record waits at most {in_words(settings.flush_s)} in an output buffer before each shuffle.",
        ]
    else:
        maximum = max(stage.subtasks for stage in layout.stages)
        lines.append(f"{maximum} task slots at most: stages run one after the other.")
    if settings.mode != "batch":
        lines += [wait_in_words(wait) for wait in waits_of(plan.graph)]
    return lines + [in_words_about(choice) for choice in pane_choices(plan.graph)]


def _schemas(plan: JobPlan) -> Table:
    table = Table("step", "stage", "columns", title="Schemas", title_justify="left")
    for node in plan.graph.nodes:
        columns = ", ".join(f"{field.name}: {field.type}" for field in plan.schemas[node.name])
        table.add_row(Text(node.name), str(plan.layout.stage_of[node.name]), Text(columns))
    return table


def _settings(plan: JobPlan, settings: tuple[SparkSetting, ...]) -> Text:
    text = Text(f"Spark settings of {plan.settings.mode} mode", "italic")
    for setting in settings:
        text.append(f"\n  {setting.key} = {setting.value}", style="not italic")
        text.append(f"\n      {setting.why}", style="not italic dim")
    return text
