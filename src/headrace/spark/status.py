"""What a run tells about itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

State = Literal["starting", "running", "restarting", "finished", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the run, in words."""

    at_s: float
    what: str
    detail: str


@dataclass(slots=True)
class Status:
    """What a run is doing."""

    state: State
    epoch: int
    committed_epochs: int
    restarts: int
    counters: dict[str, int] = field(default_factory=dict)
    workers: int = 0
