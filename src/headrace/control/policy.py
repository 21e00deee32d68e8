"""What the controller may set, what the user may pin, and the policy between the two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from headrace.control.constraints import PathConstraint, check
from headrace.control.flushing.buffersizes import SizeLimits
from headrace.control.topology import Topology
from headrace.measure.report import ChannelId


@dataclass(frozen=True, slots=True)
class ControlPolicy:
    """How the controller works. ``batching_share`` is the thesis's w_ob.

    ``flush_by``: deadlines (thesis, the default) or sizes (HPDC'12). ``rest_cycles`` is how long
    scaling rests after a finished scale-up: backlogs drain and connections open. Subtasks that did not
    come after ``patience_cycles`` are no longer asked for (ours: a cluster may be full). A rebalancing of
    less than ``min_change`` of a step's subtasks is not worth its cost. Ours: what is taken away
    must also fit ``down_share`` of the queues' budget, or noise would send a step to and fro; and it is taken from what
    was measured for ``quiet_cycles`` with the same parallelism, not while buffers of another still came. The thesis
    ships at once until it has measured; ``first_deadline_ms`` spares a fast stream that start.
    """

    interval_s: float = 1.0
    batching_share: float = 0.8
    flush_by: Literal["deadline", "size"] = "deadline"
    sizes: SizeLimits = field(default_factory=SizeLimits)
    chaining: bool = True
    scaling: bool = True
    rest_cycles: int = 3
    patience_cycles: int = 30
    min_change: float = 0.04
    down_share: float = 0.8
    quiet_cycles: int = 0
    fit_limits: tuple[float, float] | None = None
    first_deadline_ms: float = 0.0
    observe_only: bool = False


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the user decided by hand: the controller keeps it and says what it would have done."""

    deadlines_ms: Mapping[int, float] = field(default_factory=dict)
    parallelism: Mapping[str, int] = field(default_factory=dict)
    chained: Mapping[int, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """What to replace in the settings; ``joined`` edges become chained, ``parted`` ones get buffers."""

    deadlines_ms: Mapping[ChannelId, float] = field(default_factory=dict)
    sizes_bytes: Mapping[ChannelId, int] = field(default_factory=dict)
    parallelism: Mapping[str, int] = field(default_factory=dict)
    joined: frozenset[int] = frozenset()
    parted: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """What workers and actuators are told. A channel that is not named ships at once."""

    version: int = 0
    deadlines_ms: Mapping[ChannelId, float] = field(default_factory=dict)
    sizes_bytes: Mapping[ChannelId, int] = field(default_factory=dict)
    parallelism: Mapping[str, int] = field(default_factory=dict)
    chained: frozenset[int] = frozenset()

    def deadline_ms(self, channel: ChannelId) -> float:
        return self.deadlines_ms.get(channel, 0.0)

    def changed(self, changes: Iterable[SettingsChange]) -> ControlSettings:
        """The next version, with all the changes; the same object if they change nothing."""
        after = self
        for change in changes:
            after = replace(
                after,
                deadlines_ms={**after.deadlines_ms, **change.deadlines_ms},
                sizes_bytes={**after.sizes_bytes, **change.sizes_bytes},
                parallelism={**after.parallelism, **change.parallelism},
                chained=(after.chained | change.joined) - change.parted,
            )
        return self if after == self else replace(after, version=self.version + 1)


@dataclass(frozen=True, slots=True)
class ControlledJob:
    """All that stays while a job runs: its graph, its constraints, the policy, the user's pins.

    ``chained`` are the edges that are chained at the start.
    """

    topology: Topology
    constraints: tuple[PathConstraint, ...]
    policy: ControlPolicy = ControlPolicy()
    overrides: Overrides = field(default_factory=Overrides)
    chained: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        check(self.topology, self.constraints)
