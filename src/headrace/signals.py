"""Ctrl-C and SIGTERM as a wish to stop: a last cut is made, then the job stops. One that only starts is broken off."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
T = TypeVar("T")


class StopWish:
    """``wanted`` turns true with the first signal after ``listen``; one before it, or a second one, interrupts at once."""

    def __init__(self) -> None:
        self.wanted = self._begun = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopWish:
        if threading.current_thread() is threading.main_thread():  # elsewhere signals are not ours to take
            self._before = {number: signal.getsignal(number) for number in _SIGNALS}
            for number in _SIGNALS:
                signal.signal(number, self._on_signal)
        return self

    def listen(self) -> None:
        """The job has begun: from now on it can be stopped."""
        self._begun = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.wanted or not self._begun:
            raise KeyboardInterrupt
        self.wanted = True


def uninterrupted(make: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Make something in a thread of its own, where no signal breaks it off half made: an interrupt undoes it when it is.

    A JVM whose start is broken off stays for ever, and what Python tells it must not end in the middle of a call.
    """
    made: list[T] = []
    failed: list[BaseException] = []
    waited_for, done = (
        threading.Event(),
        threading.Event(),
    )  # no join: one that is interrupted takes the thread for ended

    def work() -> None:
        waited_for.wait()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # what is started in here inherits it
        try:
            made.append(make())
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    # Signals wait until the thread is there and waited for, or it would be lost in between.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    threading.Thread(target=work, name="headrace-starting").start()  # no daemon: the process does not end before it
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        waited_for.set()
        done.wait()
    except BaseException:
        waited_for.set()
        done.wait()
        for one in made:
            undo(one)
        raise
    if failed:
        raise failed[0]
    return made[0]
