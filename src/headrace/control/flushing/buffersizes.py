"""Adaptive buffer sizing: the older, size-based way to flush (HPDC'12).

Throughput first: buffers begin large and change only while a bound is violated. Departures: one step
shrinks at most tenfold, since a sparse channel otherwise falls to the minimum size at once and takes
minutes to grow back; and a size that has been found too large is not grown into again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """The paper's r, s, ε, ω and its 5 ms.

    ``min_bytes`` is 200 in the paper; an Arrow batch needs several hundred for its framing alone.
    """

    shrink: float = 0.98
    grow: float = 1.1
    min_bytes: int = 4_096
    max_bytes: int = 32_768
    tolerated_ms: float = 5.0
    nothing_ms: float = 1.0
    max_shrink: float = 10.0


def next_size_bytes(
    size_bytes: int, lifetime_ms: float, sender_latency_ms: float | None, limits: SizeLimits, *,
    too_large_bytes: int | None = None,
) -> int:  # fmt: skip
    """The size for the next interval.

    ``lifetime_ms`` is the mean from a buffer's first item to its flush; an item waits half of it. The
    exponent's unit is milliseconds. ``sender_latency_ms`` is None for the first channel of a path,
    whose sender has no latency: it counts as zero.

    >>> next_size_bytes(32_768, 70.0, None, SizeLimits())
    16157
    """
    wait_ms = lifetime_ms / 2
    if wait_ms > limits.tolerated_ms and wait_ms > (sender_latency_ms or 0.0):
        factor = max(limits.shrink**wait_ms, 1 / limits.max_shrink)
        return max(limits.min_bytes, int(size_bytes * factor))
    if wait_ms <= limits.nothing_ms:
        grown = min(limits.max_bytes, round(limits.grow * size_bytes))
        return size_bytes if too_large_bytes is not None and grown >= too_large_bytes else grown
    return size_bytes
