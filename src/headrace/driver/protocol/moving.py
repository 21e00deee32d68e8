"""Slices that change hands while the job runs: some at a time, loaded ahead, given at a cut, taken when they are there.

WANT     A table says who shall own what. Of the slices that must move for it, the busiest go first, no more at a time than
         a subtask can take in without its records noticing.
PREPARE  Those who will get them load them as of the last version, told until they say READY. Who does not in time is left
         alone: the move is cancelled, and nothing has happened.
ORDER    The next cut carries the tables. Whoever gave a slice away describes it once more; from that description, and the
         version before, follows what the slice is: FINAL, told until who got it has adopted it.

No further cut is ordered before all have: so a slice is described by just one subtask in each interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.driver.protocol.events import NumberedCut
from headrace.graph.nodes import JoinNode, ReduceNode
from headrace.runtime.messages import Final, FinalSlice, Place, Prepare
from headrace.runtime.ownership import Table, changed
from headrace.runtime.plan import Description, JobPlan
from headrace.state.durable.manifest import SliceKey, SliceVersion, changed_slices
from headrace.tokens import Attempt, Token

AT_ONCE_BYTES = 32_000_000
"""Stored bytes that one subtask is given at a cut: about 0.1 s of its time. One slice always may."""
PATIENCE_S = 30.0
"""How long slices may take to be loaded ahead."""
_REPEAT_S = 0.5
_FORGET = 0.5
"""What remains of a slice's load at each cut: those of the last few seconds count."""


@dataclass(frozen=True, slots=True)
class Move:
    """One slice of a stage, from one subtask to another."""

    stage: int
    slice: int
    giver: int
    taker: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Slices of a stage that changed hands at a cut: for how long at most their records waited, and when that was over."""

    cut: int
    stage: int
    slices: int
    held_ms: float
    at_s: float


@dataclass(slots=True)
class Moving:
    """``wanted`` are tables by stage; ``moves`` are under way, for ``tables``. ``loads`` are records per slice, lately.

    ``stage_of`` has the stage of each step, ``edges`` that of each keyed edge's receiver, ``stages`` those whose slices can
    move: what a step keeps on disk cannot.
    """

    stage_of: Mapping[str, int]
    edges: Mapping[int, int]
    stages: frozenset[int]
    wanted: dict[int, Table] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    tables: dict[int, Table] = field(default_factory=dict)
    loads: dict[int, Counter[int]] = field(default_factory=dict)
    token: Token | None = None
    _unready: dict[Place, Prepare] = field(default_factory=dict)
    _unadopted: set[Place] = field(default_factory=set)
    _until_s: float = 0.0
    _told_s: dict[Place, float] = field(default_factory=dict)
    _described: dict[int, Description] = field(default_factory=dict)
    _held_ms: float = 0.0

    @staticmethod
    def of(plan: JobPlan) -> Moving:
        keyed = {edge.id: edge.border for edge in plan.layout.edges if edge.keyed and edge.border is not None}
        bounded = {
            plan.layout.stage_of[node.name]
            for node in plan.graph.nodes
            if isinstance(node, (ReduceNode, JoinNode)) and node.memory_bytes is not None
        }
        return Moving(plan.layout.stage_of, keyed, frozenset(keyed.values()) - bounded)

    def forget(self) -> None:
        """The attempt is over: whatever was under way is void, and so is what was wanted."""
        self.wanted.clear()
        self._done()
        self.token = None

    def want(self, stage: int, table: Table) -> None:
        self.wanted[stage] = table

    def see(self, descriptions: Sequence[Description]) -> None:
        """Another cut was described: how many records each slice got."""
        for stage, loads in self.loads.items():
            self.loads[stage] = Counter({slice: _FORGET * n for slice, n in loads.items() if n >= 1})
        for description in descriptions:
            for edge, by_sender in description.consumed.items():
                if edge in self.edges:
                    stage = self.edges[edge]
                    for items in by_sender.values():
                        self.loads.setdefault(stage, Counter()).update(dict(enumerate(items)))

    # Before the cut.

    def begin(self, tables: Sequence[Table], base: NumberedCut | None, attempt: Attempt, now_s: float) -> None:
        """Choose what moves next, if anything should."""
        if self.moves or self.token is not None or not self.wanted:
            return
        self.wanted = {stage: table for stage, table in self.wanted.items() if table != tables[stage]}
        self.moves = self._chosen(tables, base)
        self.tables = {}
        for move in self.moves:
            table = self.tables.get(move.stage, tables[move.stage])
            self.tables[move.stage] = (*table[: move.slice], move.taker, *table[move.slice + 1 :])
        self._until_s = now_s + PATIENCE_S
        if base is None:
            return
        by_taker: dict[Place, list[int]] = {}
        for move in self.moves:
            by_taker.setdefault((move.stage, move.taker), []).append(move.slice)
        self._unready = {
            place: Prepare(attempt, base.number, base.manifest.token, tuple(sorted(slices)))
            for place, slices in by_taker.items()
        }

    def prepares(self, now_s: float) -> list[tuple[Place, Prepare]]:
        """What to tell those who have not loaded what they will get; again and again, since messages may be lost."""
        told = [(place, prepare) for place, prepare in self._unready.items() if self._may_tell(place, now_s)]
        self._told_s.update((place, now_s) for place, _ in told)
        return told

    def ready(self, place: Place, version: Token) -> None:
        """Somebody has loaded what it was asked to."""
        asked = self._unready.get(place)
        if asked is not None and asked.version == version:
            del self._unready[place]

    def given_up(self, now_s: float) -> tuple[Move, ...]:
        """The moves that are cancelled now, because nobody could load them in time."""
        if not self.moves or self.token is not None or not self._unready or now_s < self._until_s:
            return ()
        moves = self.moves
        self._done()
        self.wanted.clear()
        return moves

    def take_tables(self, token: Token) -> dict[int, Table]:
        """The tables that a cut is to carry; none if no move is ready."""
        if not self.moves or self._unready:
            return {}
        self.token, self._told_s = token, {}
        self._unadopted = {(move.stage, move.taker) for move in self.moves}
        return dict(self.tables)

    # After it.

    @property
    def unadopted(self) -> list[Place]:
        """Who has not adopted yet what a cut gave to it."""
        return sorted(self._unadopted)

    @property
    def open(self) -> bool:
        """Whether somebody has not adopted yet what a cut gave to it: no other one may be ordered."""
        return self.token is not None

    def describe(self, description: Description) -> None:
        """Somebody's part of the cut that carries the tables."""
        if description.token == self.token:
            for move in self.moves:
                if (move.stage, move.giver) == (description.stage, description.index):
                    self._described[_number(move)] = description

    def finals(self, base: NumberedCut | None, now_s: float) -> list[tuple[Place, Final]]:
        """What to tell those who have not adopted; again and again, since messages may be lost. ProtocolError if what was
        described does not follow the version before.
        """
        if self.token is None:
            return []
        told, logged = [], base is not None and base.manifest.token == self.token
        for place in sorted(self._unadopted):
            if not self._may_tell(place, now_s):
                continue
            mine = [move for move in self.moves if (move.stage, move.taker) == place]
            if logged or all(_number(move) in self._described for move in mine):
                told.append((place, Final(self.token, tuple(self._final_slices(mine, base, logged=logged)))))
                self._told_s[place] = now_s
        return told

    def adopt(self, place: Place, token: Token, held_ms: float, now_s: float) -> HandedOver | None:
        """Somebody works on what it got, after so long; what has changed hands, once all do."""
        if token != self.token:
            return None
        self._unadopted.discard(place)
        self._held_ms = max(self._held_ms, held_ms)
        if self._unadopted:
            return None
        handed = HandedOver(token.cut, self.moves[0].stage, len(self.moves), self._held_ms, now_s)
        self.token = None
        self._done()
        return handed

    def _may_tell(self, place: Place, now_s: float) -> bool:
        return place not in self._told_s or now_s - self._told_s[place] >= _REPEAT_S

    def _done(self) -> None:
        self.moves, self.tables, self._described, self._held_ms = (), {}, {}, 0.0
        self._unready, self._unadopted, self._told_s = {}, set(), {}

    def _chosen(self, tables: Sequence[Table], base: NumberedCut | None) -> tuple[Move, ...]:
        moves = [
            Move(stage, slice, giver, taker)
            for stage, table in self.wanted.items()
            for slice, giver, taker in changed(tables[stage], table)
        ]
        moves.sort(key=lambda move: (-self.loads.get(move.stage, Counter())[move.slice], move.stage, move.slice))
        chosen, weights = [], Counter[Place]()
        for move in moves:
            ends = ((move.stage, move.giver), (move.stage, move.taker))
            weight = self._bytes(move, base)
            if all(not weights[end] or weights[end] + weight <= AT_ONCE_BYTES for end in ends):
                chosen.append(move)
                weights.update(dict.fromkeys(ends, max(weight, 1)))
        return tuple(chosen)

    def _bytes(self, move: Move, base: NumberedCut | None) -> int:
        if base is None:
            return 0
        versions = self._of_slice(move, base.manifest.slices).values()
        return sum(block.length for version in versions for block in version.blocks)

    def _of_slice(self, move: Move, slices: Mapping[SliceKey, SliceVersion]) -> dict[SliceKey, SliceVersion]:
        """What a version has of a slice, by store."""
        keys = {(store, move.slice) for store, _ in slices if self._is_of(store, move.stage)}
        return {key: slices[key] for key in keys & slices.keys()}

    def _is_of(self, store: str, stage: int) -> bool:
        return self.stage_of.get(store.partition("#")[0]) == stage

    def _final_slices(self, moves: Sequence[Move], base: NumberedCut | None, *, logged: bool) -> list[FinalSlice]:
        before: Mapping[SliceKey, SliceVersion] = base.manifest.slices if base is not None else {}
        assert self.token is not None
        found: list[FinalSlice] = []
        for move in moves:
            mine = self._of_slice(move, before)
            if not logged:
                changes = self._described[_number(move)].changes
                of_slice = [c for c in changes if c.slice == move.slice and self._is_of(c.step, move.stage)]
                mine = changed_slices(mine, of_slice, self.token)
            found += [(store, slice, version) for (store, slice), version in mine.items()]
        return found


def _number(move: Move) -> int:
    return move.stage * 65_536 + move.slice
