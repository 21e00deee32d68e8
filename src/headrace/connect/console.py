"""Results printed where the job was started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from headrace.connect.jsonl import SUFFIX, JsonWriter
from headrace.connect.sink import Keep, SinkContext, Staged, When
from headrace.connect.writing.jsonrows import json_rows
from headrace.connect.writing.staging import check_inside, check_when, staged_path
from headrace.errors import ConfigError
from headrace.tokens import Token


def console(*, limit: int = 20, when: When = "as_produced") -> ConsoleSink:
    """A sink that prints rows on the driver's standard output, for looking on.

    ``as_produced`` shows at most ``limit`` rows of each batch as it is made, and rows since the last logged
    cut again when an attempt failed; ``on_commit`` shows at most ``limit`` rows of each subtask when their
    cut is logged.

    >>> console(limit=5).describe()
    'console, at most 5 rows at a time, as_produced'
    """
    if not isinstance(limit, int) or limit < 1:
        raise ConfigError(f"console: limit must be a whole number of at least 1, not {limit!r}")
    return ConsoleSink(limit, check_when(when, "console"))


@dataclass(frozen=True, slots=True)
class ConsoleSink:
    """Description of a console sink; made by `console`."""

    limit: int = 20
    when: When = "as_produced"

    def claim(self, owner: str) -> None:
        """A screen is nobody's."""

    def open(self, context: SinkContext) -> ConsoleWriter | JsonWriter:
        if self.when == "on_commit":
            return JsonWriter(context.step, staged_path(context, SUFFIX))
        return ConsoleWriter(context, self.limit)

    def staging_root(self, checkpoint: Path) -> Path:
        return checkpoint / "staging"

    def publish(self, token: Token, staged: Sequence[Staged]) -> None:
        """Print the rows of a logged cut, and remove them, so that repeating it prints nothing."""
        for piece in staged:
            path = check_inside(Path(piece.path), None)
            if not path.exists():
                continue
            with path.open("rb") as lines:
                rows = [json.loads(line) for line, _ in zip(lines, range(self.limit))]
            self.show(piece.step, rows, more=piece.rows - len(rows))
            path.unlink()

    def settle(self) -> None:
        """Nothing waits."""

    def discard(self, keep: Keep) -> None:
        """Nothing to do: staged rows are in the checkpoint, whose owner removes them."""

    def show(self, step: str, rows: Sequence[dict[str, Any]], *, more: int = 0) -> None:
        """Print rows of a step, one a line."""
        out = Console(soft_wrap=True, highlight=False)
        for row in rows:
            out.print(_line(step, row))
        if more > 0:
            out.print(Text(f"{step}  … and {more} more", style="dim"))

    def describe(self) -> str:
        return f"console, at most {self.limit} rows at a time, {self.when}"


def _line(step: str, row: dict[str, Any]) -> Text:
    line = Text(step, style="bold cyan")
    for name, value in row.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        line.append(f"  {name}=", style="not bold dim").append(shown, style="not bold default")
    return line


class ConsoleWriter:
    """Sends the first rows of each batch to the driver, which prints them."""

    def __init__(self, context: SinkContext, limit: int) -> None:
        self._context, self._limit = context, limit

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._context.tell_driver(self._context.step, json_rows(rows.slice(0, self._limit)))

    def close(self) -> Sequence[Staged]:
        return ()
