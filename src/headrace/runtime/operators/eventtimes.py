"""Event times of records: read from their column, out of order or not, and the windows they lie in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.graph.windowing import TimeWindow
from headrace.runtime.batch import Batch, Times
from headrace.runtime.operators.operator import Operator

_PER_UNIT_US = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
_FUTURE_US = 86_400_000_000
"""An event more than a day ahead of the clock is a wrong time: it would close everyone's windows."""


def check_time_type(kind: pa.DataType, column: str, source: str) -> None:
    if not (
        pa.types.is_timestamp(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind)
        or pa.types.is_date(kind)
    ):  # fmt: skip
        raise SchemaError(
            f"source {source!r}: event time {column!r} is {kind}; it must be a timestamp, ISO text or a number"
        )


def event_times(column: pa.Array, unit: str | None, now_us: int) -> tuple[Times, npt.NDArray[np.bool_]]:
    """Times in µs, and which of them are usable (not null, readable, 1970 or later, not far ahead)."""
    kind = column.type
    if pa.types.is_string(kind):
        column = _parse_iso(column)
        kind = column.type
    usable = pc.is_valid(column).to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        column = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(pa.int64())
        times = column.fill_null(0).to_numpy(zero_copy_only=False)
    elif pa.types.is_floating(kind):
        seconds = column.fill_null(0.0).to_numpy(zero_copy_only=False)
        usable = usable & np.isfinite(seconds)
        times = np.where(usable, seconds, 0.0) * _PER_UNIT_US[unit or "s"]
        usable = usable & (np.abs(times) < 2**62)
        times = np.where(usable, times, 0.0).round().astype(np.int64)
    else:
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        per_unit = _PER_UNIT_US[unit or "ms"]
        usable = usable & (numbers >= 0) & (numbers < 2**62 / max(per_unit, 1.0))
        numbers = np.where(usable, numbers, 0)
        times = numbers // 1000 if per_unit < 1 else numbers * int(per_unit)
    usable = usable & (times >= 0) & (times <= now_us + _FUTURE_US)
    return times, usable


def own_watermarks(times: Times, newest_us: int, lateness_us: int) -> tuple[Times | None, int]:
    """For each record the watermark that its partition had reached before it, if any record lies behind that.

    Returns ``None`` when every record is on time, and the newest event time afterwards.
    """
    running = np.maximum.accumulate(times)
    newest = max(newest_us, int(running[-1]))
    if newest == newest_us or int(times[0]) < newest_us or np.any(times[1:] < running[:-1]):
        before = np.maximum(np.concatenate(([newest_us], running[:-1])), newest_us) - lateness_us
        if np.any(times < before):
            return before, newest
    return None, newest


def first_end(times: Times, window: TimeWindow) -> Times:
    """End of the first window that contains each time."""
    return (times // window.every_us + 1) * window.every_us


def last_end(times: Times, window: TimeWindow) -> Times:
    """End of the last window that contains each time."""
    return (times + window.size_us) // window.every_us * window.every_us


def closed_until(operator: Operator, batch: Batch) -> Times:
    """For each record the end of windows that are closed for it: by what its own partition had reached before it, and by
    what others have while that was silent.
    """
    if batch.late is None:
        return np.full(batch.rows, operator.watermark_us)
    return np.maximum(batch.late, operator.watermark_us)


def without_closed(operator: Operator, port: int, batch: Batch, window: TimeWindow) -> Batch:
    """The records that are in time for one of their windows at least.

    Of those on time by their own partition only such can be missing that come from one that was silent.
    """
    if not batch.rows or (batch.late is None and last_end(batch.times.min(), window) > operator.watermark_us):
        return batch
    return operator.without_late(port, batch, last_end(batch.times, window) <= closed_until(operator, batch))


def partials_without_closed(operator: Operator, partial: pa.RecordBatch, window: TimeWindow) -> pa.RecordBatch:
    """The same for partials by pane, their first column; each is counted as one, however many records it stands for."""
    starts = partial.column(0).to_numpy() * window.pane_us
    if not len(starts) or last_end(starts.min(), window) > operator.watermark_us:
        return partial
    closed = last_end(starts, window) <= operator.watermark_us
    operator.meter.late += int(closed.sum())
    return partial.filter(pa.array(~closed)) if closed.any() else partial


def _parse_iso(column: pa.Array) -> pa.Array:
    try:
        return pc.cast(column, pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        try:
            return pc.cast(column, pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))  # no zone means UTC
        except pa.ArrowInvalid:
            return _parse_each(column)


def _parse_each(column: pa.Array) -> pa.Array:
    """The same for a column with mixed or broken texts; broken ones become null."""
    parsed = []
    for text in column.to_pylist():
        at = None
        for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
            try:
                at = pc.cast(pa.array([text], pa.string()), kind)[0].value if at is None else at
            except pa.ArrowInvalid:
                continue
        parsed.append(at)
    return pa.array(parsed, pa.int64()).cast(pa.timestamp("us", "UTC"))
