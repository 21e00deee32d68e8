"""What an operator's work costs and makes, measured while it is scheduled."""

from __future__ import annotations

from headrace.runtime.scheduling.disciplines import Profile

_FADING = 0.9
"""Weight that earlier measurements keep at each new one; C-MR leaves the smoothing open."""


class StepProfile:
    """Sums over recent buffers, of which new ones count more (an EWMA weighted by records)."""

    def __init__(self, fan_out: int) -> None:
        self.fan_out = fan_out
        self._rows_in = self._bytes_in = self._rows_out = self._bytes_out = self._ns = 0.0

    def add(self, rows_in: int, bytes_in: int, rows_out: int, bytes_out: int, elapsed_ns: int) -> None:
        """One buffer; ``bytes_out`` is what it put into the queues of all receivers together."""
        self._rows_in = self._rows_in * _FADING + rows_in
        self._bytes_in = self._bytes_in * _FADING + bytes_in
        self._rows_out = self._rows_out * _FADING + rows_out
        self._bytes_out = self._bytes_out * _FADING + bytes_out
        self._ns = self._ns * _FADING + elapsed_ns

    def profile(self) -> Profile | None:
        """None until the first buffer."""
        if not self._rows_in:
            return None
        sent = self._rows_out * self.fan_out
        return Profile(
            self._bytes_in / self._rows_in,
            self._rows_out / self._rows_in,
            self.fan_out,
            self._bytes_out / sent if sent else 0.0,
            self._ns / self._rows_in / 1000,
        )
