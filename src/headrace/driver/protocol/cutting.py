"""One cut on its way from ORDER to the log, and how often there is one."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.driver.protocol.audit import audit
from headrace.runtime.messages import Place, Reported
from headrace.runtime.ownership import Table
from headrace.runtime.plan import Description
from headrace.state.durable.manifest import Manifest, Rewrite, next_manifest
from headrace.tokens import Token

_SHARE = 0.03
"""Of the time that a cut may hold records up; where it would take more, there are fewer cuts."""
_SHARE_BEHIND = 0.05
"""Of a core's time that may go into what a cut writes behind, for the same reason."""
_RECENT = 8
_REPEAT_S = 1.0


@dataclass(slots=True)
class CutUnderWay:
    """A cut that was ordered. ``logging``: all have described it, and its entry is being appended. ``tables`` and
    ``editions`` hold after it, where they are others than before.
    """

    token: Token
    end: bool
    ordered_s: float
    told_s: float
    aligned: set[Place] = field(default_factory=set)
    descriptions: dict[Place, Description] = field(default_factory=dict)
    tables: dict[int, Table] = field(default_factory=dict)
    editions: dict[str, str] = field(default_factory=dict)
    gone_on: bool = False
    logging: bool = False

    def align(self, place: Place) -> bool:
        """A subtask has come to the cut; whether that is new."""
        new = place not in self.aligned
        self.aligned.add(place)
        return new

    def describe(self, place: Place, description: Description) -> bool:
        """A subtask's part is durable; the first description counts, and whether it is that."""
        new = place not in self.descriptions
        self.descriptions.setdefault(place, description)
        return self.align(place) or new

    def is_worked_for(self, reported: Reported) -> bool:
        """Whether a subtask that is waited for has processed something: what came before the cut, perhaps."""
        moved = any(flow.items_in or flow.items_out for flow in reported.flows)
        return moved and reported.place not in self.descriptions

    def missing(self, everyone: Collection[Place]) -> list[Place]:
        """Who is waited for: of those who have not aligned, or not described, the first stage, for others wait for it."""
        late = [place for place in everyone if place not in self.aligned]
        late = late or [place for place in everyone if place not in self.descriptions]
        return sorted(place for place in late if place[0] == min(late)[0])

    def manifest(
        self, before: Manifest | None, rewrites: Sequence[Rewrite], batch: int | None, at_us: int,
        editions: Mapping[str, str],
    ) -> Manifest:  # fmt: skip
        """The version that the descriptions of all subtasks make; ProtocolError if they do not fit together."""
        described = list(self.descriptions.values())
        audit(described)
        return next_manifest(
            before,
            self.token,
            [change for d in described for change in d.changes],
            [staged for d in described for staged in d.staged],
            rewrites,
            watermarks=furthest(d.reached for d in described),
            exhausted=self.end and all(d.exhausted for d in described if d.stage == 0),
            end=self.end,
            batch=batch,
            at_us=at_us,
            editions=editions,
        )

    def repeat(self, now_s: float) -> bool:
        """Whether the order should be given again, to those who have not shown that they have it."""
        if now_s - self.told_s < _REPEAT_S:
            return False
        self.told_s = now_s
        return True


def furthest(reached: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """How far edges have come, if subtasks have come differently far: what was closed anywhere stays closed."""
    found: dict[str, int] = {}
    for one in reached:
        for name, watermark_us in one.items():
            found[name] = max(found.get(name, watermark_us), watermark_us)
    return found


@dataclass(slots=True)
class CutPace:
    """When the next cut is due: every ``commit_s``, or less often where cuts cost much, but never further apart than
    ``longest_s``.
    """

    commit_s: float
    longest_s: float
    due_s: float = 0.0
    _held_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _worked_s: float = 0.0

    @property
    def interval_s(self) -> float:
        """Cuts that now and then hold records up for long are no reason for fewer; what the last one had to write is what
        the next one will have to, or more.
        """
        held = sorted(self._held_s)
        wanted_s = max(held[len(held) // 2] / _SHARE if held else 0.0, self._worked_s / _SHARE_BEHIND)
        return min(max(self.commit_s, wanted_s), self.longest_s)

    def keep_within(self, commit_s: float, longest_s: float) -> None:
        """Cuts are to be ``commit_s`` apart, and never further than ``longest_s``."""
        self.commit_s, self.longest_s = min(commit_s, longest_s), longest_s

    def begin(self, now_s: float) -> None:
        """Sources were let go, perhaps with other subtasks than before."""
        self._held_s.clear()
        self._worked_s = 0.0
        self.due_s = now_s + self.interval_s

    def logged(self, cut: CutUnderWay) -> None:
        """A cut took that long; the next one keeps the distance to when it was ordered."""
        described = cut.descriptions.values()
        self._held_s.append(max((d.aligned_ms for d in described), default=0.0) / 1e3)
        self._worked_s = max((d.worked_ms for d in described), default=0.0) / 1e3
        self.due_s = cut.ordered_s + self.interval_s
