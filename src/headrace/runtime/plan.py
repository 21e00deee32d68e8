"""What a worker is told about the job (once) and about an attempt (each time)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from headrace.config import Settings
from headrace.connect.sink import Staged
from headrace.graph.nodes import Graph
from headrace.graph.stages import Layout
from headrace.runtime.orders import Orders
from headrace.runtime.ownership import Table
from headrace.state.copies.placement import CopyNode
from headrace.state.durable.segments import StoredChange
from headrace.tokens import Attempt, Token

TimeColumn = tuple[str, str | None]
"""The event-time column of a stream and its unit."""


@dataclass(frozen=True)
class JobPlan:
    """The compiled job: the same in the driver, in every worker and in every attempt of a run.

    ``fixed_schemas`` are those that the checkpoint keeps; in ``schemas`` sources lack columns that
    no step reads. ``slices`` is how many shares the keys of each step have, for the life of the checkpoint.
    """

    run: str
    graph: Graph
    layout: Layout
    schemas: dict[str, pa.Schema]
    time_columns: dict[str, TimeColumn | None]
    partitions: dict[str, int]
    settings: Settings
    checkpoint: Path
    fixed_schemas: dict[str, pa.Schema]
    slices: int

    @property
    def eager(self) -> bool:
        """Stages run at the same time (real-time mode), not one after the other."""
        return self.settings.mode == "realtime"

    def schema_into(self, name: str, port: int = 0) -> pa.Schema:
        """The schema of what a step reads."""
        return self.schemas[self.graph.by_name[name].inputs[port]]

    def slices_of(self, stage: int) -> int:
        """Into how many slices a stage's state is divided; those of the first are its sources' partitions."""
        return self.slices if stage else max(self.partitions.values(), default=1)


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subtask's part in one attempt.

    ``base`` is the version to start from (None: empty state), which stands at ``entry`` of the version log. ``mine`` are
    the slices of its stage that the subtask owns at first, ``table`` says who owns those of the *next* stage.
    ``holders`` says for each of its slices which of ``nodes`` should have it, ``backups`` which are to keep copies of it
    from now on. ``editions`` are those that lookups begin with, by step.
    """

    attempt: Attempt
    base: Token | None
    entry: int
    mine: tuple[int, ...]
    table: Table
    orders: Orders
    nodes: tuple[CopyNode, ...]
    holders: dict[int, tuple[int, ...]]
    backups: dict[int, tuple[int, ...]]
    editions: dict[str, str]

    @property
    def first(self) -> Token:
        """The first cut after the base."""
        return self.attempt.cut(self.base.cut + 1 if self.base is not None else 1)


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a subtask did between two cuts: ``token`` names the second.

    ``put`` counts per edge the records that went into its buffers, whatever became of them on the wire: with ``stood``,
    which counts the same where buffers are taken out, it shows one that was not flushed at the cut. ``watermarks`` are
    those of the edges that arrive, as they stood at the alignment: the same in all subtasks of a stage. ``reached`` is how
    far those edges have ever come, by name. ``exhausted``: its sources will read no more. ``worked_ms`` is how long a core
    has worked to make its changes durable.
    """

    stage: int
    index: int
    token: Token
    changes: tuple[StoredChange, ...]
    sent: dict[int, dict[int, list[int]]]
    consumed: dict[int, dict[int, list[int]]]
    put: dict[int, dict[int, int]]
    stood: dict[int, dict[int, int]]
    watermarks: dict[int, int]
    staged: tuple[Staged, ...]
    counters: dict[str, int]
    exhausted: bool
    aligned_ms: float
    worked_ms: float
    written_bytes: int
    reached: dict[str, int]
