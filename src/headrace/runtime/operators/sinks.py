"""Where records leave: a sink as an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.connect.sink import SinkContext, Staged, Writer
from headrace.graph.nodes import SinkNode
from headrace.runtime.batch import Batch
from headrace.runtime.operators.operator import Operator


class SinkOperator(Operator):
    """Hands rows to a writer, one per epoch."""

    def __init__(self, node: SinkNode) -> None:
        super().__init__(node.name)
        self._sink = node.sink
        self._writer: Writer | None = None
        self._context: Callable[[], SinkContext] | None = None

    def open(self, context: Callable[[], SinkContext]) -> None:
        """Start an epoch; the writer is opened with its first row."""
        self._writer, self._context = None, context

    def on_batch(self, port: int, batch: Batch) -> None:
        if self._writer is None:
            assert self._context is not None
            self._writer = self._sink.open(self._context())
        self._writer.write(batch.records)

    def close(self) -> Sequence[Staged]:
        """End the epoch: everything durable, and what is to be published."""
        writer, self._writer = self._writer, None
        return writer.close() if writer is not None else ()
