"""A subtask's part of a cut on its way to the version log: written behind, described when durable, told until logged."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import msgspec.structs

from headrace.errors import ProtocolError
from headrace.runtime.controlend import Control
from headrace.runtime.messages import Described
from headrace.runtime.operators.sinks import Close
from headrace.runtime.plan import Description
from headrace.state.durable.chunks import ChunkWriter, Swapped
from headrace.state.durable.segments import StoredChange
from headrace.tokens import Token

_REPEAT_US = 1_000_000
"""How often a description is told that nobody has answered: the driver may have been away."""


class Handover:
    """At most one cut at a time: the next one is ordered when the driver has logged the one before."""

    def __init__(self, control: Control, chunks: ChunkWriter) -> None:
        self._control, self.chunks = control, chunks
        self._writing: Future[Description] | None = None
        self._described: Description | None = None
        self._told_us = 0

    @property
    def durable(self) -> bool:
        """Nothing is being written that a cut needs."""
        return self._writing is None

    @property
    def settled(self) -> bool:
        """Every cut that was handed over is in the version log."""
        return self._writing is None and self._described is None

    def cut(self, draft: Description, swapped: Swapped, closing: Sequence[Close], now_us: int, next_stem: str) -> None:
        """Make a cut durable, behind. ``draft`` lacks what is known only then."""
        if self._writing is not None:
            raise ProtocolError(f"{draft.token} was made while the cut before it was being written")

        def complete(changes: tuple[StoredChange, ...], worked_ms: float) -> Description:
            return msgspec.structs.replace(
                draft,
                changes=changes,
                staged=tuple(staged for close in closing for staged in close()),
                worked_ms=worked_ms,
                written_bytes=sum(change.block.length for change in changes),
            )

        self._writing = self.chunks.cut(swapped, now_us, complete, next_stem)
        self._described = None  # that this one could be ordered says that the one before is logged

    def look(self, now_us: int) -> None:
        """Describe what has become durable, again and again; raise what could not be written."""
        self.chunks.check()
        if self._writing is not None and self._writing.done():
            self._described, self._writing = self._writing.result(), None
            self._tell(now_us)
        elif self._described is not None and now_us - self._told_us >= _REPEAT_US:
            self._tell(now_us)

    def logged(self, token: Token) -> None:
        """A cut is in the version log."""
        if self._described is not None and self._described.token == token:
            self._described = None

    def _tell(self, now_us: int) -> None:
        assert self._described is not None
        self._told_us = now_us
        self._control.tell(Described(self._described))
