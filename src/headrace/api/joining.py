"""What a join may be told: which records meet, and how much memory those have that wait."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.reducing import ReduceState
from headrace.errors import GraphError
from headrace.graph.windowing import Interval, Window
from headrace.units import Duration, duration_us

MIN_JOIN_BYTES = 1_000_000
"""Room for the tables and buffers of both sides, and for some records."""


def join_bounds(step: str, window: Window | None, given: Mapping[str, Duration | None]) -> Window | Interval:
    """The window of a join, or the interval that ``within``, ``before`` and ``after`` say."""
    said = {name: value for name, value in given.items() if value is not None}
    if window is not None:
        if said:
            raise GraphError(
                f"join {step!r} has both {window.describe()} and {', '.join(said)}=; leave out one of the two"
            )
        return window
    if not said:
        raise GraphError(
            f"join {step!r} needs to know which records meet: those whose times are near, "
            f"left.key_by(...).join(right, within='1 min'), or those of a window, "
            f"left.key_by(...).window(hr.tumbling('10 s')).join(right)"
        )
    if "within" in said and len(said) > 1:
        raise GraphError(f"join {step!r}: within= is before= and after= in one; give it alone, or the other two")
    bounds = {name: duration_us(value, name) for name, value in said.items()}
    both = bounds.get("within", 0)
    return Interval(bounds.get("before", both), bounds.get("after", both))


def join_memory(step: str, over: Window | Interval, state: ReduceState | None) -> int | None:
    """The memory bound of an interval join; everything else that ``hr.keep`` says is for reduce steps."""
    if state is None:
        return None
    if not isinstance(state, ReduceState):
        raise GraphError(f"join {step!r}: state={state!r:.80} is not a value such as hr.keep(memory='64 MB')")
    if state != ReduceState(memory_bytes=state.memory_bytes):
        raise GraphError(f"join {step!r}: of hr.keep(…) a join takes memory= only; the others are about reducers")
    if state.memory_bytes is None:
        return None
    if not isinstance(over, Interval):
        raise GraphError(
            f"join {step!r}: memory= is for joins by interval; records of {over.describe()} are all in memory when it "
            f"ends: say within= instead of a window, or leave out memory="
        )
    if state.memory_bytes < MIN_JOIN_BYTES:
        raise GraphError(
            f"join {step!r}: it needs {MIN_JOIN_BYTES} bytes at least; give more than memory={state.memory_bytes}"
        )
    return state.memory_bytes
