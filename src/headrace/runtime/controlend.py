"""The subtask's side of the control channel."""

from __future__ import annotations

from typing import Protocol

from headrace.runtime.messages import ToDriver, ToWorker


class Control(Protocol):
    """What a subtask at work needs of it. Only the thread that works on records uses it."""

    def tell(self, message: ToDriver) -> None:
        """Send a message; never blocks."""
        ...

    def poll(self) -> list[ToWorker]:
        """Messages that have come since; never blocks. ChannelError if the driver has been silent for its lease."""
        ...

    def offset_us(self) -> int:
        """How far this host's clock is behind the driver's."""
        ...
