"""The demo's board: a live table of rates, latencies, constraints and the hottest topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.demo.topics import HOT, SENTIMENT, Tail
from headrace.cli.watching import Watch, cut_words
from headrace.graph.nodes import Constraint, SinkNode
from headrace.units import number_of

_TOPICS_SHOWN = 8
_BAR_CELLS = 24


class Board:
    """Everything the demo shows; ``look`` reads new results, ``draw`` draws."""

    def __init__(self, watch: Watch, directory: Path, seconds: float) -> None:
        self._watch, self._seconds = watch, seconds
        self._hot, self._mood = Tail(directory / HOT), Tail(directory / SENTIMENT)
        self._window = ""
        self._counts: dict[str, int] = {}
        self._moods: dict[str, float] = {}

    def look(self) -> None:
        """Take in new results of both sinks."""
        for row in self._hot.rows():
            if row["window_end"] > self._window:
                self._window, self._counts = row["window_end"], {}
            if row["window_end"] == self._window:
                self._counts[row["topic"]] = row["n"]
        for row in self._mood.rows():
            self._moods[row["topic"]] = row["mood"]

    def hottest(self, k: int = _TOPICS_SHOWN) -> list[dict[str, Any]]:
        """The most frequent topics of the newest window."""
        ranked = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:k]
        return [{"topic": topic, "n": n, "mood": self._moods.get(topic)} for topic, n in ranked]

    def draw(self) -> RenderableType:
        return Group(self._headline(), self._steps(), self._constraints(), self._topics())

    def _headline(self) -> Text:
        watch, status = self._watch, self._watch.handle.status()
        line = Text.assemble(("headrace demo", "bold"), "  bursty tweets → hot topics and sentiment\n")
        line.append(f"{status.state}", style="green" if status.state == "running" else "yellow")
        line.append(f"  {min(watch.seconds, self._seconds):.0f} of {self._seconds:g} s")
        line.append(f"  {cut_words(status)}, {number_of(status.restarts, 'restart')}")
        return line.append(f"  {watch.read:,} tweets")

    def _steps(self) -> Table:
        table = Table("step", "stage", title="steps, last 5 s", title_justify="left")
        for column in ("in/s", "out/s", "p50", "p99"):
            table.add_column(column, justify="right", min_width=8)
        plan = self._watch.handle.plan
        for node in plan.graph.nodes:
            if isinstance(node, SinkNode):
                continue
            now = self._watch.recent(node.name)
            table.add_row(
                node.name,
                str(plan.layout.stage_of[node.name]),
                f"{now.in_per_s:,.0f}",
                f"{now.out_per_s:,.0f}",
                _ms(now.p50_ms),
                _ms(now.p99_ms),
            )
        return table

    def _constraints(self) -> Text:
        return Text("\n").join(map(self._constraint, self._watch.handle.plan.graph.constraints)).append("\n")

    def _constraint(self, constraint: Constraint) -> Text:
        now = self._watch.recent(constraint.end, constraint.over_us / 1e6)
        bound_ms = (constraint.mean_us or constraint.quantile_us or 0) / 1000
        value = now.mean_ms if constraint.mean_us is not None else now.p99_ms
        style = "dim" if value is None else "green" if value <= bound_ms else "red"
        return Text.assemble(f"{constraint.describe()}: ", (f"now {_ms(value)}", style))

    def _topics(self) -> Table:
        table = Table("topic", "in 10 s", "", "mood", title="hottest topics", title_justify="left", min_width=60)
        hottest = self.hottest()
        for row in hottest:
            mood = row["mood"]
            face = "" if mood is None else f"{mood:+.2f}"
            bar = "█" * max(1, round(_BAR_CELLS * row["n"] / hottest[0]["n"]))
            table.add_row(f"#{row['topic']}", f"{row['n']:,}", Text(bar, style="cyan"), face)
        for _ in range(_TOPICS_SHOWN - len(hottest)):
            table.add_row("", "", "", "")
        return table


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ms"
