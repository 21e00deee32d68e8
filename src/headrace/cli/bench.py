"""``headrace bench``: named, reproducible experiments."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headrace.bench.measuring.figures import medians
from headrace.cli.experiments import EXPERIMENTS, Options
from headrace.errors import HeadraceError


def bench(
    name: Annotated[str | None, typer.Argument(help="Which experiment; see --list.")] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    rate: Annotated[int | None, typer.Option(help="Items per second.")] = None,
    seconds: Annotated[int | None, typer.Option(help="How long to generate load.")] = None,
    warmup: Annotated[int, typer.Option(help="Seconds at the start that do not count.")] = 10,
    events: Annotated[int | None, typer.Option(help="Events as fast as possible: throughput, checkpoint.")] = None,
    items: Annotated[int, typer.Option(help="Tuples per setting of hash-engines and combining.")] = 100_000,
    kills: Annotated[int, typer.Option(help="Kills in the recovery experiment.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the recovery experiment's dice.")] = 1,
    repeat: Annotated[int, typer.Option(help="Repeat and report medians with ranges.")] = 1,
    bound: Annotated[
        float | None, typer.Option(min=0, help="Bound on mean latency in ms; 0 makes primetest try 20, 50 and 100.")
    ] = None,
    stock: Annotated[bool, typer.Option(help="Also run the peers: stock Spark, or fixed configurations.")] = True,
    quick: Annotated[bool, typer.Option(help="Fewer settings, for a first look.")] = False,
    state: Annotated[
        str | None, typer.Option(help="Size of the state in checkpoint; the largest of several in topk and similarity.")
    ] = None,
    standby: Annotated[bool, typer.Option(help="Some kills of the recovery experiment find a standby ready.")] = False,
    executor: Annotated[
        bool, typer.Option(help="The recovery experiment kills executors of a cluster of two, with state of --state.")
    ] = False,
    commit: Annotated[str | None, typer.Option(help="Time between cuts, for example '200 ms'.")] = None,
    flush: Annotated[str | None, typer.Option(help="Longest wait in an output buffer, for example '5 ms'.")] = None,
    parallelism: Annotated[int | None, typer.Option(help="Subtasks per stage.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Last line is one JSON object.")] = False,
) -> None:
    """Run a named experiment and print its figures."""
    console = Console()
    if list_them or name is None:
        for known, experiment in EXPERIMENTS.items():
            console.print(f"[bold]{known}[/bold]  {experiment.__doc__}")
        raise typer.Exit(0 if list_them else 2)
    if name not in EXPERIMENTS:
        console.print(f"unknown experiment {name!r}; known: {', '.join(EXPERIMENTS)}", style="red")
        raise typer.Exit(2)
    settings = {
        key: value
        for key, value in (("commit", commit), ("flush", flush), ("parallelism", parallelism))
        if value is not None
    }
    options = Options(
        rate, seconds, warmup, events, items, kills, seed, bound, stock, quick, state, standby, executor, settings
    )
    runs = []
    for turn in range(repeat):
        if not as_json:
            console.print(f"{name}, run {turn + 1} of {repeat} …", style="dim")
        try:
            runs.append(EXPERIMENTS[name](options))
        except HeadraceError as error:
            console.print(str(error), style="red", markup=False)
            raise typer.Exit(1) from error
    figures = {"bench": name, **medians(runs)}
    if as_json:
        print(json.dumps(figures))
    else:
        _print(console, figures)
    if any(figures.get(key) for key in ("lost", "duplicated", "wrong", "orders_failed", "disagreements")):
        raise typer.Exit(1)


def _print(console: Console, figures: dict[str, Any]) -> None:
    """One row per figure; where an experiment has several settings, one row per setting before."""
    for name in ("settings", "jobs"):
        settings: list[dict[str, Any]] = figures.pop(name, [])
        if not settings:
            continue
        table = Table(*settings[0])
        for setting in settings:
            table.add_row(*(_shown(value) for value in setting.values()))
        console.print(table)
    table = Table("figure", "value")
    for key, value in figures.items():
        table.add_row(key, _shown(value))
    console.print(table)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)
