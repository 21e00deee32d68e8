"""Where a worker hangs: if it does not turn to its channel for a minute, its stacks go to the executor's log.

Nobody else can say: the driver only sees that nothing comes of what it waits for, and ends the process in the end.
"""

from __future__ import annotations

import faulthandler
import time

_AFTER_S, _EVERY_S = 60.0, 5.0


class Watchdog:
    """One for a process: the interpreter has one such timer."""

    def __init__(self, after_s: float = _AFTER_S, every_s: float = _EVERY_S) -> None:
        self._after_s, self._every_s = after_s, every_s
        self._set_s: float | None = None

    def beat(self) -> None:
        """The worker is alive; cheap enough for every turn."""
        now_s = time.monotonic()
        if self._set_s is None or now_s - self._set_s >= self._every_s:
            self._set_s = now_s
            faulthandler.dump_traceback_later(self._after_s, file=2)

    def rest(self) -> None:
        """Nothing is to be done for now."""
        if self._set_s is not None:
            self._set_s = None
            faulthandler.cancel_dump_traceback_later()
