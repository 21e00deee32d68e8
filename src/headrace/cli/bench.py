"""``headrace bench``: named, reproducible experiments."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headrace.bench.figures import medians
from headrace.errors import HeadraceError

_EXPERIMENTS = {
    "latency": "each item timed through one shuffle and a keyed Python step; stock PySpark in the same run",
    "keyed-count": "running count per key at a high rate, vectorised",
    "throughput": "CSV files as fast as possible into windowed counts; stock Spark SQL on the same files",
    "hash-engines": "hash engines and sort-merge by skew, order of keys and memory; sessions; stock Spark on the same files",
    "combining": "sliding windows from panes or one by one, by size and values per key; the constant of the rule",
    "combine": "moving averages of trades by window size, with panes, without, and by stock Spark",
    "macd": "two moving averages over shared panes, unshared, by re-run batch jobs and by stock Spark",
    "model-accuracy": "predicted against measured latency over rates, deadlines, subtasks and service times",
    "scheduling": "a burst beyond the memory budget under each schedule: latency, memory, how long reading stopped",
    "recovery": "kill -9 of driver and workers at random moments; answers compared with a reference",
}


def bench(
    name: Annotated[str | None, typer.Argument(help="Which experiment; see --list.")] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    rate: Annotated[int | None, typer.Option(help="Items per second.")] = None,
    seconds: Annotated[int | None, typer.Option(help="How long to generate load.")] = None,
    warmup: Annotated[int, typer.Option(help="Seconds at the start that do not count.")] = 10,
    events: Annotated[int, typer.Option(help="Events in the throughput experiment.")] = 5_000_000,
    items: Annotated[int, typer.Option(help="Tuples per setting of hash-engines and combining.")] = 100_000,
    kills: Annotated[int, typer.Option(help="Kills in the recovery experiment.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the recovery experiment's dice.")] = 1,
    repeat: Annotated[int, typer.Option(help="Repeat and report medians with ranges.")] = 1,
    stock: Annotated[bool, typer.Option(help="Also run the peer, stock Spark.")] = True,
    quick: Annotated[bool, typer.Option(help="Fewer settings, for a first look.")] = False,
    epoch: Annotated[str | None, typer.Option(help="Epoch length, for example '30 s'.")] = None,
    cut: Annotated[str | None, typer.Option(help="Longest wait in an output buffer, for example '5 ms'.")] = None,
    parallelism: Annotated[int | None, typer.Option(help="Subtasks per stage.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Last line is one JSON object.")] = False,
) -> None:
    """Run a named experiment and print its figures."""
    console = Console()
    if list_them or name is None:
        for known, what in _EXPERIMENTS.items():
            console.print(f"[bold]{known}[/bold]  {what}")
        raise typer.Exit(0 if list_them else 2)
    if name not in _EXPERIMENTS:
        console.print(f"unknown experiment {name!r}; known: {', '.join(_EXPERIMENTS)}", style="red")
        raise typer.Exit(2)
    settings = {
        key: value for key, value in (("epoch", epoch), ("cut", cut), ("parallelism", parallelism)) if value is not None
    }
    run = _experiment(name, rate, seconds, warmup, events, items, kills, seed, stock, quick, settings)
    runs = []
    for turn in range(repeat):
        if not as_json:
            console.print(f"{name}, run {turn + 1} of {repeat} …", style="dim")
        try:
            runs.append(run())
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


def _tell(line: str) -> None:
    """Progress of an experiment with many runs."""
    print(line, file=sys.stderr, flush=True)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


def _experiment(
    name: str,
    rate: int | None,
    seconds: int | None,
    warmup: int,
    events: int,
    items: int,
    kills: int,
    seed: int,
    stock: bool,
    quick: bool,
    settings: dict[str, Any],
) -> Callable[[], dict[str, Any]]:
    if name == "latency":
        from headrace.bench.latency import latency

        return lambda: latency(rate or 2000, seconds or 140, warmup, 45 if stock else 0, **settings)
    if name == "keyed-count":
        from headrace.bench.latency import keyed_count

        return lambda: keyed_count(rate or 100_000, seconds or 60, warmup, **{"cut": "10 ms", **settings})
    if name == "throughput":
        from headrace.bench.throughput import throughput

        return lambda: throughput(events, stock=stock, **settings)
    if name == "hash-engines":
        from headrace.bench.hash_engines import hash_engines

        return lambda: hash_engines(items, _tell, stock=stock)
    if name == "combining":
        from headrace.bench.combining import combining

        return lambda: combining(items, _tell)
    if name == "combine":
        from headrace.bench.combine import combine

        return lambda: combine(_tell, stock=stock, seconds=seconds or 20, **settings)
    if name == "macd":
        from headrace.bench.macd import macd

        return lambda: macd(_tell, stock=stock, seconds=seconds or 720, **settings)
    if name == "scheduling":
        from headrace.bench.scheduling import scheduling

        return lambda: scheduling(_tell, **settings)
    if name == "model-accuracy":
        from headrace.bench.model_accuracy import model_accuracy

        return lambda: model_accuracy(_tell, quick=quick)
    from headrace.bench.recovery import recovery

    return lambda: recovery(kills, rate or 5000, seconds or 20 * kills, seed, **{"epoch": "3 s", **settings})
