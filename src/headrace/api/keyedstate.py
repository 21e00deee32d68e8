"""State that a keyed ``process`` step declares: ``state={"seen": hr.value()}``."""

from __future__ import annotations

from headrace.graph.nodes import StateKind


def value() -> StateKind:
    """One value per key: ``get() set(v) delete()``."""
    return "value"


def queue() -> StateKind:
    """A first-in first-out queue per key: ``append(v) popleft() peek() len() iter()``."""
    return "queue"


def mapping() -> StateKind:
    """A dictionary per key: ``get(k) set(k, v) delete(k) items() len()``."""
    return "mapping"
