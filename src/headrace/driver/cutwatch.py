"""What the journal says about cuts: a line a minute, and one when they take long or get further apart by themselves."""

from __future__ import annotations

from statistics import median

from headrace.driver.status import CutFigures
from headrace.units import in_words

_EVERY_S = 60.0
_APART = 1.5
"""Times as far apart as wanted: worth a line."""


class CutWatch:
    """Listens to cuts that were logged; wanted is one every ``commit_s``."""

    def __init__(self, commit_s: float) -> None:
        self._commit_s = commit_s
        self._seen: list[CutFigures] = []
        self._told_s: float | None = None
        self._long = self._apart = False

    def took(self, cut: CutFigures, interval_s: float) -> list[str]:
        """Sentences about the cut that was just logged, seldom any; the next one is due ``interval_s`` after its order."""
        self._seen.append(cut)
        self._told_s = self._told_s if self._told_s is not None else cut.logged_s
        return [*self._length(cut), *self._distance(cut, interval_s), *self._summary(cut.logged_s)]

    def _length(self, cut: CutFigures) -> list[str]:
        was, self._long = self._long, cut.took_ms > 1e3 * self._commit_s
        if self._long == was:
            return []
        took = f"cut {cut.number} took {cut.took_ms:.0f} ms"
        return [f"{took}, longer than the interval of {in_words(self._commit_s)}" if self._long else f"{took} again"]

    def _distance(self, cut: CutFigures, interval_s: float) -> list[str]:
        was, self._apart = self._apart, interval_s > _APART * self._commit_s
        if self._apart == was:
            return []
        if not self._apart:
            return [f"cuts are {in_words(self._commit_s)} apart again"]
        return [
            f"cuts are {interval_s:.1f} s apart from now on, for the last one held records up for {cut.aligned_ms:.0f} ms "
            f"and kept a core busy for {cut.worked_ms:.0f} ms"
        ]

    def _summary(self, now_s: float) -> list[str]:
        assert self._told_s is not None
        if now_s - self._told_s < _EVERY_S:
            return []
        seen, self._seen, since_s, self._told_s = self._seen, [], now_s - self._told_s, now_s
        took, held = [cut.took_ms for cut in seen], [cut.aligned_ms for cut in seen]
        return [
            f"{len(seen)} cuts in {since_s:.0f} s took {median(took):.0f} ms each, {max(took):.0f} at most; they held records "
            f"up for {median(held):.0f} ms, {max(held):.0f} at most, and wrote {sum(cut.bytes for cut in seen):,} bytes"
        ]
