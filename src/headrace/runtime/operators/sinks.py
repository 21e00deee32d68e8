"""Where records leave: a sink as an operator, and the dead letters of records that failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.connect.sink import SinkContext, Staged, TellDriver, Writer
from headrace.graph.nodes import Graph, SinkNode
from headrace.runtime.batch import Batch
from headrace.runtime.operators.operator import Operator
from headrace.tokens import Token

Close = Callable[[], Sequence[Staged]]
"""A writer's last act. It waits for the disk, so another thread does it."""


class SinkOperator(Operator):
    """Hands rows to a writer, one per cut: that of the cut which they come before."""

    def __init__(self, node: SinkNode) -> None:
        super().__init__(node.name)
        self._sink = node.sink
        self._writer: Writer | None = None
        self._context: SinkContext | None = None

    def open(self, checkpoint: Path, token: Token, subtask: int, tell_driver: TellDriver) -> None:
        """Rows belong to a cut from now on; its writer is opened with the first of them."""
        staging = self._sink.staging_root(checkpoint) / self.name / str(token)
        self._writer, self._context = None, SinkContext(self.name, token, subtask, staging, tell_driver)

    def on_batch(self, port: int, batch: Batch) -> None:
        if self._writer is None:
            assert self._context is not None
            self._context.staging.mkdir(parents=True, exist_ok=True)
            self._writer = self._sink.open(self._context)
        self._writer.write(batch.records)

    def hand_over(self) -> Close | None:
        """At a cut: what makes its rows durable and says what is to be published; None if there were no rows."""
        writer, self._writer = self._writer, None
        return writer.close if writer is not None else None


class DeadLetters:
    """Records that failed, by the sink they go to at the next cut."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.sinks = tuple(SinkOperator(SinkNode(name, sink, ())) for name, sink in graph.letter_sinks.items())
        self._waiting: dict[str, list[dict[str, str]]] = {}

    def take(self, step: str, record: str, reason: str) -> None:
        name = self._graph.letters_of(step)
        if name is not None:
            self._waiting.setdefault(name, []).append({"step": step, "record": record, "reason": reason})

    def write(self, now_us: int) -> None:
        """Hand them to their sinks."""
        for sink in self.sinks:
            letters = self._waiting.pop(sink.name, [])
            if letters:
                records = pa.RecordBatch.from_pylist(letters)
                sink.on_batch(0, Batch(records, np.zeros(len(letters), np.int64), now_us))
