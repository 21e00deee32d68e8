"""Options that any step has: as users write them, and as the graph keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, get_args

from headrace.errors import GraphError, SchemaError
from headrace.graph.nodes import OnError, Parallelism, StepOptions
from headrace.schemas import SchemaLike, to_schema

Latency = Literal["read-ready", "read-write"]
ParallelismLike = int | tuple[int, int, int]


class StepSettings(TypedDict, total=False):
    """What ``map``, ``flat_map``, ``filter``, ``map_batch``, ``union``, ``process``, ``join``, ``sink`` and
    ``job.source`` take beside their own arguments; ``reduce`` takes all but ``chain``.
    """

    parallelism: ParallelismLike | None
    """Subtasks: a number, or ``(min, start, max)`` for a step that the controller may scale."""
    chain: bool
    """False: never in one process with the step before it."""
    latency: Latency
    """How the step's latency is measured: until it is ready for the next record, or until it writes one."""
    on_error: OnError | None
    """``"fail"`` or ``"skip"``, if not as the job says."""
    returns: SchemaLike | None
    """The columns that the step makes, where the first records do not show them."""
    deterministic: bool
    """False: it may answer differently each time, or does more than answer; it never runs in place of an equal one."""


STEP_DEFAULTS: dict[str, Any] = {name: getattr(StepOptions(), name) for name in StepSettings.__annotations__}


def step_options(step: str, options: Mapping[str, Any], own: tuple[str, ...] = ()) -> StepOptions:
    """Read the options of a step; raises GraphError or SchemaError for what they cannot be. ``own`` names its others."""
    unknown = sorted(options.keys() - STEP_DEFAULTS.keys())
    if unknown:
        raise GraphError(f"step {step!r}: unknown option {unknown[0]!r}; known: {', '.join((*own, *STEP_DEFAULTS))}")
    chosen = {**STEP_DEFAULTS, **options}
    if chosen["latency"] not in get_args(Latency):
        raise GraphError(f"step {step!r}: latency={chosen['latency']!r} is not 'read-ready' or 'read-write'")
    if chosen["on_error"] not in (None, *get_args(OnError)):
        raise GraphError(f"step {step!r}: on_error={chosen['on_error']!r} is not 'fail' or 'skip'")
    try:
        returns = to_schema(chosen["returns"]) if chosen["returns"] is not None else None
    except SchemaError as error:
        raise SchemaError(f"step {step!r}: returns={chosen['returns']!r:.80}: {error}") from None
    chosen["parallelism"] = _parallelism(step, chosen["parallelism"])
    return StepOptions(**{**chosen, "returns": returns})


def _parallelism(step: str, value: ParallelismLike | None) -> Parallelism | None:
    if value is None:
        return None
    bounds = (value, value, value) if isinstance(value, int) else value
    whole = isinstance(bounds, tuple) and len(bounds) == 3 and all(type(n) is int for n in bounds)
    if not whole or not 1 <= bounds[0] <= bounds[1] <= bounds[2]:
        raise GraphError(f"step {step!r}: parallelism={value!r} must be (min, start, max) with 1 ≤ min ≤ start ≤ max")
    return Parallelism(*bounds)
