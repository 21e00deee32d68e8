"""How much the machine holds up whoever wants to run: a thread that sleeps and notes how late it wakes."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

_SLEEP_S = 0.002


@dataclass(slots=True)
class Probe:
    """As a context manager; ``late_s`` are the times of waking and how late each was."""

    late_s: list[tuple[float, float]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Probe:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            due_s = time.time() + _SLEEP_S
            time.sleep(_SLEEP_S)
            self.late_s.append((due_s, time.time() - due_s))

    def held_s(self, began_s: float, ended_s: float) -> float:
        """The time lost to hold-ups between two moments."""
        return sum(late_s for due_s, late_s in self.late_s if began_s <= due_s < ended_s)
