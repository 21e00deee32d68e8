"""A source that waits for its cue between acts, and a way to play a job batch by batch with restarts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from reference import Record, Row

from headrace.api.job import Job
from headrace.connect.source import Offset, Poll
from headrace.graph.nodes import SinkNode
from headrace.schemas import to_schema
from headrace.testing import LocalRun


@dataclass
class Curtain:
    """How many acts may be played; shared by all readers of a job in this process."""

    acts: int = 1


@dataclass(frozen=True)
class InActs:
    """Scripts cut into acts: ``parts[p][a]`` are the records of partition p in act a."""

    parts: tuple[tuple[tuple[Record, ...], ...], ...]
    declared: pa.Schema
    curtain: Curtain = field(default_factory=Curtain)
    bounded: bool = True
    live: bool = False

    def partitions(self, parallelism: int) -> int:
        return len(self.parts)

    def schema(self) -> pa.Schema:
        return self.declared

    def sample(self, rows: int) -> pa.RecordBatch:
        records = [record for part in self.parts for act in part for record in act]
        return pa.RecordBatch.from_pylist(records[:rows], schema=self.declared)

    def open(self, partition: int, of: int, offset: Offset | None, schema: pa.Schema, log_dir: Path) -> _Actor:
        return _Actor(self, partition, **(offset or {"act": 0, "at": 0}))

    def describe(self) -> str:
        return "acts"


class _Actor:
    def __init__(self, play: InActs, partition: int, act: int, at: int) -> None:
        self._acts, self._play, self._act, self._at = play.parts[partition], play, act, at

    def poll(self, max_rows: int, now_us: int) -> Poll | None:
        while self._act < min(len(self._acts), self._play.curtain.acts):
            rest = self._acts[self._act][self._at :]
            if rest:
                taken = rest[:max_rows]
                self._at += len(taken)
                return Poll(pa.RecordBatch.from_pylist(list(taken), schema=self._play.declared))
            self._act, self._at = self._act + 1, 0
        return None

    def offset(self) -> Offset:
        return {"act": self._act, "at": self._at}

    @property
    def exhausted(self) -> bool:
        return all(not act[self._at if a == self._act else 0 :] for a, act in enumerate(self._acts) if a >= self._act)

    def next_due_us(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing to close."""


def in_acts(parts: Sequence[Sequence[Record]], schema: dict[str, Any], acts: int, seed: int) -> InActs:
    """Each partition's records cut at random into so many acts."""
    dice = random.Random(seed)
    flush = []
    for part in parts:
        at = sorted(dice.randint(0, len(part)) for _ in range(acts - 1))
        flush.append(tuple(tuple(part[a:b]) for a, b in zip([0, *at], [*at, len(part)])))
    return InActs(tuple(flush), to_schema(schema))


def play(
    job: Job, source: InActs, checkpoint: Path, *, mode: str, acts: int, seed: int, **options: Any
) -> dict[str, list[Row]]:
    """Play all acts, a batch each, with restarts, changed parallelism and random delays in between."""
    dice = random.Random(seed)
    source.curtain.acts = 0
    run = None
    try:
        for act in range(acts + 1):
            if run is None or dice.random() < 0.6:
                if run is not None:
                    run.close()
                run = LocalRun(
                    job, checkpoint, mode=mode, parallelism=dice.randint(1, 3), report="5 ms",
                    pause=lambda stage, index: dice.random() * 0.002 if dice.random() < 0.2 else 0.0, **options,
                )  # fmt: skip
            source.curtain.acts = act + 1
            run.batch(seconds=0.02)
        run.run()
        return rows_of(run)
    finally:
        if run is not None:
            run.close()


def rows_of(run: LocalRun) -> dict[str, list[Row]]:
    return {node.name: run.rows(node.name) for node in run.plan.graph.nodes if isinstance(node, SinkNode)}


def counters(run: LocalRun) -> dict[str, int]:
    """What the subtasks counted in all cuts so far: ``late:step``, ``skipped:step``, …"""
    total: dict[str, int] = {}
    for description in (description for cut in run.cuts for description in cut.descriptions):
        for name, count in description.counters.items():
            total[name] = total.get(name, 0) + count
    return total
