"""The product's waiting times and thresholds, so small that short lives meet them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from headrace.driver.protocol import appending, machine, moving, ordering, publications, retries, upkeep
from headrace.state.durable import compaction

_SMALL: tuple[tuple[ModuleType, str, float], ...] = (
    (upkeep, "_COLLECT_EVERY_S", 2.0),
    (upkeep, "_COMPACT_AGAIN_S", 0.5),
    (compaction, "_MAX_BLOCKS", 3),
    (compaction, "_WORTHWHILE", 2),
    (publications, "_MAX_WAITING", 4),
    (publications, "_LONGEST_WAIT_S", 1.0),
    (appending, "_LONGEST_WAIT_S", 1.0),
    (retries, "_LONGEST_BACKOFF_S", 1.0),
    (ordering, "_MIN_BATCH_S", 0.5),
    (ordering, "_SILENT_LEASES", 2),
    (moving, "AT_ONCE_BYTES", 200),
    (moving, "PATIENCE_S", 8.0),
    (machine, "_UNFINISHED_S", 3.0),
)


@contextmanager
def quick() -> Iterator[None]:
    """They are as before afterwards."""
    before = [(module, name, getattr(module, name)) for module, name, _ in _SMALL]
    for module, name, value in _SMALL:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
