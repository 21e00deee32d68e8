"""Windows that users give to ``.window(...)``."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import GraphError
from headrace.graph.windowing import CountWindow, SessionWindow, TimeWindow, WholeInput, Window
from headrace.units import Duration, duration_us


def tumbling(size: Duration) -> TimeWindow:
    """Back-to-back windows of event time.

    >>> tumbling("10 s").size_us
    10000000
    """
    return sliding(size, every=size)


def sliding(size: Duration, *, every: Duration) -> TimeWindow:
    """Windows of ``size`` that end ``every`` so often; they overlap if ``every`` is shorter."""
    size_us, every_us = duration_us(size, "window size"), duration_us(every, "window slide")
    if size_us < 1000 or every_us < 1000:
        raise GraphError(f"a window needs a size and a slide of at least 1 ms, not {size!r} every {every!r}")
    if every_us > size_us:
        raise GraphError(f"window slide {every!r} is longer than its size {size!r}: records in between would be lost")
    return TimeWindow(size_us, every_us)


def session_window(gap: Duration) -> SessionWindow:
    """A key's records with no pause of ``gap`` or more between them."""
    gap_us = duration_us(gap, "session gap")
    if gap_us < 1000:
        raise GraphError(f"a session needs a gap of at least 1 ms, not {gap!r}")
    return SessionWindow(gap_us)


def count_window(rows: int) -> CountWindow:
    """Every ``rows`` records of a key, in order of arrival."""
    if rows < 1:
        raise GraphError(f"count_window({rows}): needs at least 1 record")
    return CountWindow(rows)


def whole_input() -> WholeInput:
    """One window over everything; its results come when the input ends."""
    return WholeInput()


def versioned(window: Window, *, keep: Duration = "1 h") -> TimeWindow:
    """Late records make new versions of their window's results instead of being dropped (Flink: allowed lateness).

    Results carry ``version`` (0, 1, 2…) and ``completeness`` (share of the records known now that
    were in version 0; 1.0 for version 0 itself). A window can be revised for ``keep`` after its end.
    """
    if not isinstance(window, TimeWindow):
        raise GraphError(f"hr.versioned takes a tumbling or sliding window, not {window.describe()}")
    return replace(window, versioned=True, keep_us=duration_us(keep, "keep"))
