"""Whether and when a failed query is started again."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.driver.failures import Failure
from headrace.errors import HeadraceError, RunFailedError

_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.5, 30.0


@dataclass(slots=True)
class Retries:
    """At once after a first failure, then after longer and longer waits, until nothing was logged for ``give_up_s``.

    What a restart cannot mend is told as final and not tried again. A full disk, a missing slot or executor, a source
    that is away for a while: all that passes without anybody's help, if it is waited for.
    """

    give_up_s: float
    progress_s: float = 0.0
    restarts: int = 0
    at_s: float = 0.0
    _backoff_s: float = 0.0

    def progress(self, now_s: float) -> None:
        """A cut was logged."""
        self.progress_s, self._backoff_s = now_s, 0.0

    def hopeless(self, failure: Failure, now_s: float) -> HeadraceError | None:
        """The error to stop with, if there is to be no restart."""
        if failure.final:
            return failure.error
        lost_s = now_s - self.progress_s
        if lost_s <= self.give_up_s:
            return None
        error = RunFailedError(f"no cut was made for {lost_s:.0f} s, so the job was stopped: {failure.error}")
        error.__cause__ = failure.error
        return error

    def again(self, now_s: float) -> float:
        """Plan a restart; returns how long until then."""
        wait_s, self.at_s = self._backoff_s, now_s + self._backoff_s
        self.restarts += 1
        self._backoff_s = min(max(2 * wait_s, _FIRST_BACKOFF_S), _LONGEST_BACKOFF_S)
        return wait_s
