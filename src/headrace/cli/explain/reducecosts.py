"""What each reduce of a batch job is expected to read and write besides its input (SCALLA 2.1, 2.4, 2.5).

An upper bound: every record may be a key of its own, and its state as large as the record. Hashing then spills what the
formulas of ``model.hashcost`` say, sort-merge in the same memory what ``model.mergecost`` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connect.files import Files
from headrace.connect.replay import Replay
from headrace.graph.memory import engine_of
from headrace.graph.nodes import ReduceNode, SourceNode
from headrace.model.hashcost import inc_buckets, inc_io_pages
from headrace.model.mergecost import MergeHardware, MergeSettings, MergeWorkload, merge_cost
from headrace.runtime.plan import JobPlan

_PAGE_BYTES = 4096
_TEXT_BYTES = 20
"""A short text with its length, where only a schema is known."""


@dataclass(frozen=True, slots=True)
class ReduceCost:
    """Of one reduce over all its subtasks; None is unknown. ``passes`` over the input: 0 if all states fit."""

    step: str
    engine: str
    why: str
    input_bytes: int | None
    memory_bytes: int | None
    fits: bool | None
    passes: int | None
    moved_bytes: int | None
    sort_merge_bytes: int | None

    def sentence(self) -> str:
        said = f"{self.step}: engine {self.engine}, {self.why}"
        if self.input_bytes is None:
            return f"{said}; the size of its input is not known, so no cost is predicted."
        said += f". Input of {self.input_bytes:,} bytes"
        if self.memory_bytes is None:
            return f"{said}, nothing is written."
        if self.fits:
            return f"{said}: all states fit in {self.memory_bytes:,} bytes per subtask, nothing is written."
        return (
            f"{said}, {self.memory_bytes:,} bytes of memory per subtask: at most {self.moved_bytes:,} bytes are "
            f"written and read again, in {self.passes} pass(es); sort-merge would move {self.sort_merge_bytes:,}."
        )

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def reduce_costs(plan: JobPlan, input_bytes: Callable[[SourceNode], int | None] | None = None) -> list[ReduceCost]:
    """One for each reduce, in the order of the job; ``input_bytes`` of a source is that of its files unless given."""
    size = input_bytes or stored_bytes
    reduces = [node for node in plan.graph.nodes if isinstance(node, ReduceNode)]
    return [_cost(plan, node, _input_bytes(plan, node, size)) for node in reduces]


def stored_bytes(node: SourceNode) -> int | None:
    """The size of a source's files as they are stored; None for sources that are no files, or not there yet."""
    source = node.source
    if not isinstance(source, (Replay, Files)):
        return None
    path = Path(source.path if isinstance(source, Replay) else source.directory)
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file()) if path.is_dir() else None


def _input_bytes(plan: JobPlan, node: ReduceNode, size: Callable[[SourceNode], int | None]) -> int | None:
    """``max_records`` records, or what all sources above it have: steps between are taken to keep the size."""
    if node.max_records is not None:
        schema = plan.schema_into(node.name)
        return node.max_records * sum(8 if pa.types.is_primitive(field.type) else _TEXT_BYTES for field in schema)
    above, sizes = [node.name], []
    while above:
        step = plan.graph.by_name[above.pop()]
        if isinstance(step, SourceNode):
            sizes.append(size(step))
        else:
            above += step.inputs
    known = [found for found in sizes if found is not None]
    return sum(known) if len(known) == len(sizes) else None


def _cost(plan: JobPlan, node: ReduceNode, input_bytes: int | None) -> ReduceCost:
    engine, why = engine_of(node)
    memory = node.memory_bytes
    if input_bytes is None or memory is None or not input_bytes:
        fits = True if memory is None or input_bytes == 0 else None
        nothing = 0 if fits and input_bytes is not None else None
        return ReduceCost(node.name, engine, why, input_bytes, memory, fits, nothing, nothing, nothing)
    subtasks = plan.layout.stages[plan.layout.stage_of[node.name]].subtasks
    share = math.ceil(input_bytes / subtasks)
    pages, have = math.ceil(share / _PAGE_BYTES), max(memory // _PAGE_BYTES, 3)
    passes, moved = _hashed(have, pages)
    sort = merge_cost(
        MergeWorkload(input_bytes, reduce_ratio=0.0),
        MergeHardware(1, memory, memory),
        MergeSettings(memory, 10, subtasks),
    )
    fits = moved == 0 and engine != "mr"
    spilled = 2 * input_bytes if engine == "mr" else int(moved * _PAGE_BYTES * subtasks)
    beside = max(0, int(sort.moved_bytes) - 2 * input_bytes)  # every engine reads the input and shuffles it
    return ReduceCost(node.name, engine, why, input_bytes, memory, fits, passes, spilled, beside)


def _hashed(memory_pages: int, pages: int) -> tuple[int, float]:
    """Passes over what does not fit, and pages moved; a level of buckets more while they do not fit either."""
    if memory_pages >= pages + 1:
        return 0, 0.0
    minimum = math.ceil(math.sqrt(pages)) + 1
    if memory_pages >= minimum:
        return 1, inc_io_pages(memory_pages, pages, pages, inc_buckets(memory_pages, pages).fewest)
    deeper, moved = _hashed(memory_pages, math.ceil(pages / (memory_pages - 1)))
    return deeper + 1, 2.0 * pages + moved * (memory_pages - 1)
