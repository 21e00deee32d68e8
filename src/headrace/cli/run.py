"""``headrace run``: run the job of a file."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from headrace.api.job import Job
from headrace.bench.measuring.figures import TreeWatch
from headrace.cli import arguments
from headrace.cli.answers import answering, messages
from headrace.cli.apps import load_job
from headrace.cli.chatter import quiet_spark
from headrace.cli.verdicts import bound_figures, refuse_violations, verdict_table
from headrace.cli.watching import Watch, cut_words, follow, not_in_results, run_figures
from headrace.config import executor_limits
from headrace.errors import ConfigError, UnitError
from headrace.graph.nodes import SinkNode
from headrace.launch import RunOptions, checked, start
from headrace.signals import StopWish
from headrace.units import duration_s, in_words, number_of

if TYPE_CHECKING:
    from headrace.runtime.plan import JobPlan


def run(
    app: arguments.App,
    mode: arguments.Mode = "realtime",
    master: Annotated[
        str, typer.Option(help="Where Spark runs: local\\[n], local-cluster\\[…], spark://…")
    ] = "local[*]",
    checkpoint: Annotated[
        Path | None, typer.Option(help="Where state lives; the same directory again goes on. Temporary without it.")
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait, warm, and go on with the job when the driver that runs it is gone.")
    ] = False,
    observe_only: Annotated[bool, typer.Option("--observe-only", help="Decide, but do not act.")] = False,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="Stop cleanly after so many seconds.")] = None,
    commit: Annotated[str | None, typer.Option(help="Time between cuts, for example '200 ms'.")] = None,
    recovery: Annotated[
        str | None, typer.Option(help="How soon after a failure there are to be new results, for example '5 s'.")
    ] = None,
    parallelism: arguments.Parallelism = None,
    executors: Annotated[
        str | None, typer.Option(help="Executors of a cluster, minimum to maximum, as constraints need them: '1:4'.")
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="A file for all that is decided and happens, with times; some of it is shown here."),
    ] = None,
    strict: arguments.Strict = False,
    json: arguments.Json = False,
    traceback: arguments.Traceback = False,
) -> None:
    """Run a job until its input ends, --seconds are over, or Ctrl-C or SIGTERM asks it to stop.

    A stop makes a last cut. A job that is run again on its --checkpoint goes on where it stopped.
    """
    asked: RunOptions = {"mode": mode, "master": master, "observe_only": observe_only, "seconds": seconds}
    asked["checkpoint"], asked["standby"] = checkpoint, standby
    if commit:
        asked["commit"] = checked_duration("--commit", commit)
    if recovery:
        asked["recovery"] = checked_duration("--recovery", recovery)
    if parallelism:
        asked["parallelism"] = parallelism
    if executors:
        asked["executors"] = checked_limits(executors)
    check_options(asked, strict=strict)
    with answering(as_json=json, traceback=traceback) as answer:
        job = load_job(app)
        answer |= {"job": "+".join(one.name for one in ([job] if isinstance(job, Job) else job)), "mode": mode}
        keep_journal(journal)
        console = messages()
        console.print("planning the job and starting Spark …", style="dim")
        with StopWish() as wish, TreeWatch() as resources:
            try:
                with quiet_spark(quiet=not traceback):
                    handle = start(job, **asked)
                wish.listen()
            except KeyboardInterrupt:
                answer["state"] = "stopped"
                console.print(f"{answer['job']} stopped before it began: Spark was still starting")
                return
            watch = Watch(handle)
            console.print("\n".join(places(handle.plan, temporary=checkpoint is None, journal=journal)), style="dim")
            try:
                with Live(
                    console=console, auto_refresh=False, transient=True, redirect_stdout=sys.stdout.isatty()
                ) as live:
                    lines = Lines(console, watch)

                    def show(news: list[str]) -> None:
                        lines.news(news)
                        if console.is_terminal:
                            live.update(progress(watch, stopping=wish.wanted), refresh=True)
                        else:
                            lines.tick(time.monotonic())

                    follow(watch, wish, show)
            finally:
                answer["state"] = handle.status().state
                handle.delete_temporary_checkpoint()
        answer |= run_figures(watch, resources) | bound_figures(handle.constraints())
        console.print(summary(answer))
        if (table := verdict_table(answer)) is not None:
            console.print(table)
        refuse_violations(answer, strict=strict)


def check_options(asked: RunOptions, *, strict: bool) -> None:
    """A usage error for options that do not hold in their mode."""
    if strict and asked["mode"] != "realtime":
        raise typer.BadParameter(f"--strict: constraints are kept in realtime mode only, not in {asked['mode']} mode")
    try:
        checked(asked)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


def checked_duration(option: str, text: str) -> str:
    """What the user wrote, or a usage error if it is no duration."""
    try:
        duration_s(text, option)
    except UnitError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def checked_limits(text: str) -> tuple[int, int] | None:
    """``1:4`` as limits, or a usage error."""
    try:
        return executor_limits([int(part) for part in text.split(":")])
    except (ValueError, ConfigError):
        raise typer.BadParameter(f"--executors {text}: give the minimum and the maximum, such as 1:4") from None


class Lines:
    """What is told of a run where no line can change: news as they come, and every few seconds how it goes."""

    def __init__(self, console: Console, watch: Watch, every_s: float = 10.0) -> None:
        self._console, self._watch, self._every_s = console, watch, every_s
        self._told_s: float | None = None

    def news(self, lines: list[str]) -> None:
        for line in lines:
            self._console.print(Text(line, style="yellow"))

    def tick(self, now_s: float) -> None:
        self._told_s = now_s if self._told_s is None else self._told_s
        if now_s - self._told_s >= self._every_s:
            self._told_s = now_s
            self._console.print(progress(self._watch))


def keep_journal(path: Path | None) -> None:
    """All that is logged goes into a file, if one is given; what matters of it is shown as news."""
    log = logging.getLogger("headrace")
    log.setLevel(logging.ERROR if path is None else logging.INFO)
    if path is not None:
        handler = logging.FileHandler(path.expanduser().resolve(), encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.propagate = False


def places(plan: JobPlan, *, temporary: bool, journal: Path | None) -> list[str]:
    """Where to find what a run leaves."""
    sinks = {node.name: node.sink for node in plan.graph.nodes if isinstance(node, SinkNode)} | plan.graph.letter_sinks
    lines = [f"results of {name}: {sink.describe()}" for name, sink in sinks.items()]
    kept = " (temporary: deleted at the end, as no --checkpoint was given)" if temporary else ""
    told = (
        journal.expanduser().resolve() if journal is not None else "what matters is told here; --journal FILE keeps all"
    )
    return [*lines, f"checkpoint: {plan.checkpoint}{kept}", f"journal: {told}"]


def progress(watch: Watch, *, stopping: bool = False) -> Text:
    """One line about a running job."""
    status = watch.handle.status()
    rate = sum(watch.recent(name).out_per_s for name in watch.sources)
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{watch.handle.plan.graph.job} ", style="bold").append("stopping" if stopping else status.state)
    line.append(f" · {cut_words(status)}")
    line.append(f" · {watch.read:,} read, {rate:,.0f}/s")
    written = sum(status.counters.get(f"in:{name}", 0) for name in watch.sinks)
    line.append(f" · {written:,} written")
    if (left := watch.left(status)) is not None:
        line.append(f" · {left[0]:.0%} done, about {in_words(max(round(left[1]), 1))} left")
    for step in watch.sinks:
        now = watch.recent(step)
        if now.p50_ms is not None and now.p99_ms is not None:
            line.append(f" · {step} p50 {now.p50_ms:.1f} ms, p99 {now.p99_ms:.1f} ms")
    for what, count in not_in_results(status.counters).items():
        if count:
            line.append(f" · {count:,} {what}", style="yellow")
    if status.restarts:
        line.append(f" · {number_of(status.restarts, 'restart')}", style="yellow")
    return line


def summary(answer: dict[str, Any]) -> Text:
    """One line about a finished job."""
    text = Text.assemble(
        (f"{answer['job']} {answer['state']}", "bold"),
        f": {number_of(answer['items'], 'record')} in {answer['seconds']:.1f} s, {number_of(answer['cuts'], 'cut')}",
    )
    if answer["cut_ms"] is not None:
        text.append(f" of {answer['cut_ms']:.0f} ms")
    if answer["p50_ms"] is not None:
        text.append(f", latency p50 {answer['p50_ms']:.1f} ms, p99 {answer['p99_ms']:.1f} ms")
    for what in ("late", "shed", "skipped"):
        if answer[what]:
            text.append(f", {answer[what]:,} {what}", style="yellow")
    if answer["restarts"]:
        text.append(f", {number_of(answer['restarts'], 'restart')}", style="yellow")
    if answer["recovery_s"] is not None:
        wanted_s = answer["recovery_wanted_s"]
        against = f" at most, of {in_words(wanted_s)} wanted" if wanted_s is not None else " at most"
        text.append(f", recovered in {answer['recovery_s']:.1f} s{against}", style="yellow")
    return text
