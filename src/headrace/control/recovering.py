"""How long it takes until a failure is over, held against what was promised, and what follows for the next one.

A failure is noticed, a query is started anew, subtasks load, sources are let go; what came after the last cut is worked on
once more, and with the next cut there are new results. ChronoStream's time to recover has the same parts: detection, restart,
loading, and a replay that grows with the interval. For how long all stands still is measured; what is left of the promise is
for the interval. Where loading had to go to the checkpoint, because executors with copies were gone, there are too few copies.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.units import in_words

_UNKNOWN = 0.5
"""Of what was promised is for the interval, before a failure has shown how long all stands still."""
_ROOM = 0.8
"""Of what is left after a restart; the rest is for the cut itself."""
_LEAST = 0.1
"""Of it, at least: where a restart alone takes longer than promised, no interval helps, and cuts cost."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """A failure that is over: ``took_s`` from when it began until the next cut was logged, for ``stood_s`` of which sources
    stood still. ``repeated_s`` is how old the last cut was. ``wanted_s`` is what ``recovery`` says.
    """

    cut: int
    took_s: float
    stood_s: float
    repeated_s: float
    wanted_s: float | None

    @property
    def in_time(self) -> bool | None:
        """Whether the promise was kept; None if there is none."""
        return None if self.wanted_s is None else self.took_s <= self.wanted_s

    def sentence(self) -> str:
        wanted = "" if self.wanted_s is None else f", of {in_words(self.wanted_s)} wanted"
        return (
            f"new results {self.took_s:.1f} s after a failure{wanted}: sources stood still for {self.stood_s:.1f} s, and what "
            f"had come in {self.repeated_s:.1f} s was repeated"
        )


class Recovering:
    """Takes the moments of failures. ``last`` is the newest one that is over, ``longest_s`` what the longest took."""

    def __init__(self, wanted_s: float | None) -> None:
        self._wanted_s = wanted_s
        self._failed_s: float | None = None
        self._began_s: float | None = None
        self._logged_s: float | None = None
        self.last: Recovered | None = None
        self.longest_s: float | None = None

    @property
    def interval_s(self) -> float | None:
        """How far apart cuts may be for the promise to be kept; None where nothing was promised."""
        if self._wanted_s is None:
            return None
        if self.last is None:
            return _UNKNOWN * self._wanted_s
        return max(_ROOM * (self._wanted_s - self.last.stood_s), _LEAST * self._wanted_s)

    def failed(self, at_s: float) -> None:
        """Something has gone wrong; what fails again before it is over is the same failure."""
        self._began_s = None
        if self._failed_s is None and self._logged_s is not None:
            self._failed_s = max(at_s, self._logged_s)

    def began(self, now_s: float) -> None:
        """Sources are let go."""
        self._began_s = now_s

    def logged(self, cut: int, now_s: float) -> Recovered | None:
        """A cut is in the log; the failure that is over with it, if one is."""
        failed_s, before_s, self._logged_s = self._failed_s, self._logged_s, now_s
        if failed_s is None or before_s is None or self._began_s is None:
            return None
        took_s = now_s - failed_s
        recovered = Recovered(cut, took_s, self._began_s - failed_s, failed_s - before_s, self._wanted_s)
        self._failed_s, self.last, self.longest_s = None, recovered, max(took_s, self.longest_s or 0.0)
        return recovered
