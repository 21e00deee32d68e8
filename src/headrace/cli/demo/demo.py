"""``headrace demo``: hot topics and sentiment of bursty tweets, with a live board."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from headrace.bench.measuring.figures import TreeWatch
from headrace.cli import arguments
from headrace.cli.answers import FAILED, answering, messages
from headrace.cli.chatter import quiet_spark
from headrace.cli.demo.board import Board
from headrace.cli.demo.topics import check, demo_job, tweets_due
from headrace.cli.run import Lines, summary
from headrace.cli.verdicts import bound_figures, refuse_violations, verdict_table
from headrace.cli.watching import Watch, follow, run_figures
from headrace.launch import start
from headrace.signals import StopWish

_MAX_CHECKED = 2_000_000
_LINE_EVERY_S = 5.0


def demo(
    seconds: Annotated[float, typer.Option(min=1.0, help="How long tweets come.")] = 30.0,
    headless: Annotated[bool, typer.Option("--headless", help="Lines of text instead of a live board.")] = False,
    keep: Annotated[Path | None, typer.Option(help="Keep results and checkpoint in this new directory.")] = None,
    strict: arguments.Strict = False,
    json: arguments.Json = False,
    traceback: arguments.Traceback = False,
) -> None:
    """Run a small workflow on Spark in real-time mode and watch it.

    Made-up tweets come in bursts; one branch counts hashtags over sliding windows, the other takes
    the mean sentiment of each topic. At the end all answers are compared with a plain-Python reference.
    """
    with answering(as_json=json, traceback=traceback) as answer, results_in(keep) as directory:
        logging.getLogger("headrace").setLevel(logging.ERROR)  # what it warns of is shown as news
        console = messages() if json else Console(highlight=False, soft_wrap=True)
        total = tweets_due(seconds)
        answer |= {"job": "demo", "mode": "realtime"}
        console.print("starting Spark …", style="dim")
        with StopWish() as wish, TreeWatch() as resources:
            with quiet_spark(quiet=not traceback):
                handle = start(demo_job(directory, total), checkpoint=directory / "checkpoint")
            wish.listen()
            watch = Watch(handle)
            board = Board(watch, directory, seconds)
            try:
                show_run(console, board, watch, wish, plain=headless or not console.is_terminal)
            finally:
                answer["state"] = handle.status().state
        answer |= run_figures(watch, resources) | bound_figures(handle.constraints())
        board.look()
        answer["hottest"] = board.hottest()
        if answer["state"] == "finished" and total <= _MAX_CHECKED:
            answer |= check(directory, total)
        console.print(summary(answer))
        if (table := verdict_table(answer)) is not None:
            console.print(table)
        console.print(verdict(answer))
        if keep is not None:
            console.print(f"results and checkpoint are in {directory}")
        if any(answer[name] for name in ("lost", "duplicated", "wrong")):
            raise typer.Exit(FAILED)
        refuse_violations(answer, strict=strict)


@contextmanager
def results_in(keep: Path | None) -> Iterator[Path]:
    """A new directory of the user's choice, or one that is gone afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True) as directory:
            yield Path(directory)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise typer.BadParameter(f"--keep {keep} exists already; name a new directory")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.resolve()


def show_run(console: Console, board: Board, watch: Watch, wish: StopWish, *, plain: bool) -> None:
    """Follow the run, on a live board or in lines of text."""
    lines = Lines(console, watch, _LINE_EVERY_S)

    def say(news: list[str]) -> None:
        lines.news(news)
        lines.tick(time.monotonic())

    if plain:
        follow(watch, wish, say)
        return
    with Live(board.draw(), console=console, auto_refresh=False) as live:

        def draw(news: list[str]) -> None:
            lines.news(news)
            board.look()
            live.update(board.draw(), refresh=True)

        follow(watch, wish, draw)


def verdict(answer: dict[str, Any]) -> Text:
    """Whether the answers are right."""
    if answer["lost"] is None:
        return Text("answers not compared with the reference: the run was cut short or long", style="dim")
    if not (answer["lost"] or answer["duplicated"] or answer["wrong"]):
        return Text(f"all {answer['hashtags']:,} hashtags counted exactly once, all sums right", style="green")
    return Text(
        f"{answer['lost']} lost, {answer['duplicated']} duplicated, {answer['wrong']} sums wrong", style="bold red"
    )
