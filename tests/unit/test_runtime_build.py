"""A subtask is wired once; every attempt finds the same edges and links, with nothing left of the one before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from test_runtime_chains import Deaf, chain_of

from headrace.graph.windowing import NEVER_US
from headrace.runtime.batch import Batch
from headrace.runtime.orders import NO_ORDERS
from headrace.runtime.plan import JobPlan, Ticket
from headrace.runtime.subtask import Subtask
from headrace.runtime.wire.frames import Frame, Kind, decode, subtask_of
from headrace.testing import LocalRun
from headrace.tokens import Attempt, Token


def ticket(attempt: int, places: tuple[int, ...], **orders: Any) -> Ticket:
    return Ticket(Attempt(1, attempt), None, 0, (0,), (places * 64)[:64], replace(NO_ORDERS, **orders), (), {}, {}, {})


def feed(subtask: Subtask, plan: JobPlan, rows: int) -> None:
    records = pa.record_batch({"p": [0] * rows, "n": [1] * rows, "t": [0] * rows}, schema=plan.schemas["s"])
    subtask._operators["a"].receive(0, Batch(records, np.zeros(rows, np.int64), 1))


def flushed(subtask: Subtask) -> list[tuple[int, Frame]]:
    """All frames that leave, with the receivers of their rows."""
    return [
        (route, frame)
        for row in subtask._outlet.cut(Token(1, 0, 1), end=True, tables={}, editions={})
        for route, payload in zip(row.column("route").to_pylist(), row.column("payload").to_pylist())
        for frame in decode(payload)
    ]


@pytest.mark.parametrize("chaining", ["static", "dynamic"])
def test_every_attempt_finds_the_same_wires_and_nothing_on_them(tmp_path: Path, chaining: str) -> None:
    run = LocalRun(chain_of(), tmp_path, chaining=chaining, flush="1 h")
    stage = 1 if chaining == "dynamic" else 0
    subtask = Subtask(run.plan, stage)
    wires = {name: list(operator.outputs) for name, operator in subtask._operators.items()}
    assert any(wires.values())
    for attempt, (index, rows) in enumerate([(0, 3), (1, 4), (0, 5)]):
        subtask.begin(index, ticket(attempt, (0, 1)), Deaf())
        assert {name: list(operator.outputs) for name, operator in subtask._operators.items()} == wires
        assert all(edge.watermark_us == NEVER_US for edge in subtask._outlet._edges)
        feed(subtask, run.plan, rows)
        subtask._operators["a"].watermark(0, 7)
        frames = [frame for _, frame in flushed(subtask)]
        items = 1 if chaining == "static" else rows  # there, one partial stands for all records of a key
        data = [frame for frame in frames if frame.kind < Kind.WATERMARK]
        assert [(frame.sequence, frame.items) for frame in data] == [(1, items)]
        assert {subtask_of(frame.sender) for frame in frames} == {index}
        counts = subtask._outlet.take_counts()
        assert sum(sum(slices) for senders in counts.items.values() for slices in senders.values()) == items
        assert sum(sum(senders.values()) for senders in counts.records.values()) == rows
        feed(subtask, run.plan, rows)  # stays in the buffer when the attempt is given up
    subtask.close()
    run.close()


def test_slices_are_routed_by_the_ticket_of_the_attempt(tmp_path: Path) -> None:
    run = LocalRun(chain_of(), tmp_path, flush="1 h")
    subtask = Subtask(run.plan, 0)
    routes = []
    for attempt, places in enumerate([(0, 1), (1, 0)]):
        subtask.begin(0, ticket(attempt, places), Deaf())
        feed(subtask, run.plan, rows=2)
        routes += [route for route, frame in flushed(subtask) if frame.kind < Kind.WATERMARK]
    assert sorted(routes) == [0, 1], "all records have one key, and its slice is elsewhere the second time"
    subtask.close()
    run.close()


def test_a_combiner_that_rests_works_again_in_the_next_attempt(tmp_path: Path) -> None:
    run = LocalRun(chain_of(), tmp_path, flush="1 h")
    subtask = Subtask(run.plan, 0)
    (combiner,) = (edge.combiner for edge in subtask._outlet._edges)
    assert combiner is not None
    combiner.resting = 5
    subtask.begin(0, ticket(0, (0,)), Deaf())
    assert combiner.resting == 0
    subtask.close()
    run.close()
