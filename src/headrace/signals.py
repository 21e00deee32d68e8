"""Ctrl-C and SIGTERM as a wish to stop: a last cut is made, then the job stops."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopWish:
    """``wanted`` turns true with the first signal; a second one interrupts at once."""

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopWish:
        if threading.current_thread() is threading.main_thread():  # elsewhere signals are not ours to take
            self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.listen()
        return self

    def listen(self) -> None:
        """Take the signals; to be called again after Spark has started, which takes Ctrl-C for itself."""
        for number in self._before:
            signal.signal(number, self._on_signal)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
