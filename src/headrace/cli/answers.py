"""How a command ends: text for people on standard error, one JSON line on standard output, an exit code."""

from __future__ import annotations

import json
import sys
import traceback as tracebacks
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from headrace.errors import HeadraceError

FAILED, VIOLATED = 1, 3
Answer = dict[str, Any]


def messages() -> Console:
    """Where text for people goes: standard error, so that standard output stays data."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def answering(*, as_json: bool, traceback: bool) -> Iterator[Answer]:
    """Collect a command's answer, print it as JSON if asked to, and turn errors into exit codes."""
    answer: Answer = {}
    code = 0
    try:
        yield answer
    except typer.Exit as exit:
        code = exit.exit_code
    except typer.BadParameter:
        raise
    except Exception as error:
        code = FAILED
        answer |= {"error": str(error), "kind": type(error).__name__}
        _tell(error, traceback=traceback)
    if as_json:
        print(json_line({"ok": code == 0, **answer}), flush=True)
    if code:
        raise typer.Exit(code)


def json_line(answer: Answer) -> str:
    """An answer as one line of strict JSON.

    >>> json_line({"p50_ms": 1.23456, "interarrival_ms": float("nan")})
    '{"p50_ms": 1.235, "interarrival_ms": null}'
    """
    return json.dumps(_plain(answer), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case float():
            return round(value, 3) if value == value and abs(value) != float("inf") else None
        case datetime() | date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case str() | int() | None:
            return value
        case _:
            return str(value)


def _tell(error: Exception, *, traceback: bool) -> None:
    if traceback:
        tracebacks.print_exception(error, file=sys.stderr)
        return
    text = str(error)
    if not isinstance(error, HeadraceError):
        text = f"{type(error).__name__}: {text}\n  run the command again with --traceback to see where"
    messages().print(Text.assemble(("error: ", "bold red"), text))
