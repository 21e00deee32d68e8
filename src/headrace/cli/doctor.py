"""``headrace doctor``: is everything here that Headrace needs, and does it work?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from headrace.cli import arguments, checks
from headrace.cli.answers import FAILED, answering
from headrace.cli.chatter import quiet_spark
from headrace.cli.checks import Finding, Problem

Check = tuple[str, Callable[[], str]]
_QUICK: tuple[Check, ...] = (
    ("Python", checks.python),
    ("packages", checks.packages),
    ("Java", checks.java),
    ("memory", checks.memory),
    ("cores", checks.cores),
    ("disk", checks.disk),
    ("loopback ports", checks.loopback),
    ("control channel", checks.channel),
)
_SPARK: tuple[Check, ...] = (("Spark", checks.spark), ("real-time mode", checks.realtime))
_SPARK_NEEDS = ("packages", "Java", "Spark")


def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the checks that start Spark.")] = False,
    json: arguments.Json = False,
    traceback: arguments.Traceback = False,
) -> None:
    """Check Java, Python, packages, memory, cores, ports, the control channel, Spark, and real-time mode.

    Each failure comes with its fix; exits with 1 if there is any.
    """
    with answering(as_json=json, traceback=traceback) as answer:
        console = Console(highlight=False, soft_wrap=True, stderr=json)
        findings: list[Finding] = []
        for name, check in _QUICK if quick else (*_QUICK, *_SPARK):
            if (name, check) in _SPARK and any(f.name in _SPARK_NEEDS and not f.ok for f in findings):
                continue  # it would fail for a reason that is known already
            with quiet_spark(quiet=check is checks.spark and not traceback):
                findings.append(examine(name, check))
            console.print(_line(findings[-1]))
        failed = [finding for finding in findings if not finding.ok]
        answer |= {"checks": [asdict(finding) for finding in findings], "failed": len(failed)}
        console.print("all is well" if not failed else f"{len(failed)} of {len(findings)} checks failed", style="bold")
        if failed:
            raise typer.Exit(FAILED)


def examine(name: str, check: Callable[[], str]) -> Finding:
    """Make one check; whatever it raises is a finding, not a crash."""
    began_s = time.monotonic()
    try:
        found, ok, fix = check(), True, None
    except Problem as problem:
        found, ok, fix = problem.found, False, problem.fix
    except Exception as error:
        found, ok, fix = f"{type(error).__name__}: {error}", False, "see the message; --traceback of 'run' shows more"
    return Finding(name, ok, found, fix, round(time.monotonic() - began_s, 3))


def _line(finding: Finding) -> Text:
    mark = ("✓ ", "green") if finding.ok else ("✗ ", "bold red")
    line = Text.assemble(mark, (f"{finding.name}: ", "bold"), finding.found)
    if finding.fix:
        line.append(f"\n  fix: {finding.fix}", style="yellow")
    return line
