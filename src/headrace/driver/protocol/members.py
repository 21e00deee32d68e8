"""Who takes part in an attempt: subtasks that said HELLO for the same batch of the same query, and their tickets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.runtime.messages import Hello, Loaded, Place, Planned, Reply
from headrace.runtime.orders import Orders
from headrace.runtime.ownership import Table, dealt, levelled, owned, owners
from headrace.runtime.plan import JobPlan, Ticket
from headrace.state.copies.placement import CopyNode, StageSlice, Standbys
from headrace.state.durable.manifest import SliceKey
from headrace.tokens import Attempt, Token


@dataclass(slots=True)
class Member:
    """A subtask that takes part."""

    sender: bytes
    hello: Hello
    loaded: bool = False


@dataclass(slots=True)
class Members:
    """``tables`` say who owns which slices in the attempt, stage by stage, ``nodes`` have copies of state. Executors that are
    ``leaving`` shall own nothing, as far as others can. There are ``copies`` of each slice on other nodes; the driver may find
    out that it needs more, if ``more_copies``. ``editions`` are what lookups begin the attempt with.
    """

    plan: JobPlan
    copies: int = 0
    more_copies: bool = False
    batch: int | None = None
    by_place: dict[Place, Member] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    _standbys: Standbys = field(default_factory=Standbys)
    nodes: tuple[CopyNode, ...] = ()
    editions: dict[str, str] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    _began: bool = False
    _far: int = 0
    _holders: dict[StageSlice, tuple[str, ...]] = field(default_factory=dict)
    _backups: dict[StageSlice, tuple[str, ...]] = field(default_factory=dict)

    def gather(self, batch: int) -> None:
        """Another batch: all have to say HELLO anew."""
        self.batch = batch
        self.by_place.clear()

    def join(self, sender: bytes, hello: Hello) -> None:
        self.by_place[hello.place] = Member(sender, hello)

    def has_place(self, place: Place) -> bool:
        """Whether the job, as it is laid out now, has such a subtask."""
        stage, index = place
        stages = self.plan.layout.stages
        return 0 <= stage < len(stages) and 0 <= index < stages[stage].subtasks

    @property
    def executors(self) -> int:
        """How many executors have subtasks."""
        return len({(member.hello.host, member.hello.daemon) for member in self.by_place.values()})

    @property
    def complete(self) -> bool:
        return len(self.by_place) == self.plan.layout.slots

    @property
    def all_loaded(self) -> bool:
        return all(member.loaded for member in self.by_place.values())

    def senders(self, stage: int | None = None) -> list[bytes]:
        """Of all, or of one stage."""
        return [m.sender for (at, _), m in self.by_place.items() if stage is None or at == stage]

    def of(self, sender: bytes) -> Member | None:
        return next((member for member in self.by_place.values() if member.sender == sender), None)

    def take_loaded(self, sender: bytes, loaded: Loaded) -> bool:
        """False if it is not from who should say so."""
        member = self.by_place.get(loaded.place)
        if member is None or member.sender != sender:
            return False
        member.loaded = True
        self._far += loaded.loading.slices.get("checkpoint", 0)
        self._began = self._began or self.all_loaded
        return True

    def plan_all(
        self, attempt: Attempt, base: Token | None, entry: int, orders: Orders, movable: Collection[int] = ()
    ) -> list[Reply]:
        """Everybody's ticket, where all stages run at the same time; slices stay where they are in memory, or on a node.

        Executors that are new get theirs by moves, in stages where slices are ``movable``.
        """
        self._holders, self._far = self._holders_now(), 0
        self.tables = [self._assign(s.index, base, orders, s.index in movable) for s in self.plan.layout.stages]
        for member in self.by_place.values():
            member.loaded = False
        self._place_copies()
        return [self._ticket(place, attempt, base, entry, orders) for place in self.by_place]

    def plan_one(self, place: Place, attempt: Attempt, base: Token | None, entry: int, orders: Orders) -> Reply:
        """A ticket where stages run one after the other, and nobody knows yet who will come."""
        stages = range(len(self.plan.layout.stages))
        self.tables = [dealt(self.plan.slices_of(at), range(self.active(at, orders))) for at in stages]
        return self._ticket(place, attempt, base, entry, orders)

    def active(self, stage: int, orders: Orders) -> int:
        """How many subtasks shall own slices of a stage: what was ordered for a layout with more subtasks holds as far as
        it can.
        """
        at = self.plan.layout.stages[stage]
        return min(orders.active.get(stage, at.active), at.subtasks)

    def keyed(self, stage: int) -> bool:
        """Whether a stage's slices are those of keys."""
        return any(edge.keyed for edge in self.plan.layout.border(stage))

    def fits(self, stage: int, table: Table) -> bool:
        """Whether a stage, as it is laid out now, has just these slices, and such subtasks."""
        return len(table) == self.plan.slices_of(stage) and all(self.has_place((stage, owner)) for owner in table)

    def grows(self, orders: Orders, moving: frozenset[int]) -> bool:
        """Whether a keyed stage, whose slices cannot move, waits for the next attempt to get more subtasks."""
        return any(
            self.keyed(stage) and stage not in moving and self.active(stage, orders) > len(owners(table))
            for stage, table in enumerate(self.tables)
        )

    def resized(self, stage: int, orders: Orders) -> Table:
        """A stage's table for as many subtasks as are ordered, none of them on an executor that is leaving; those that own
        slices stay as far as they can.
        """
        table, staying = self.tables[stage], self._staying(stage)
        n = min(self.active(stage, orders), len(staying))
        busy = [index for index in owners(table) if index in staying]
        if len(busy) == n == len(owners(table)):
            return table
        idle = [index for index in staying if index not in busy]
        return levelled(table, sorted([*busy, *idle][:n]))

    def change(self, tables: Mapping[int, Table]) -> None:
        """Slices have other owners since a cut; who stands by for them follows from that."""
        for stage, table in tables.items():
            self.tables[stage] = table
        if tables:
            self._stand_by()

    def keep_more(self) -> list[str]:
        """A failure took too long: if there were not copies of all that was loaded, each slice gets one more at the next start.

        Says so, if it is so.
        """
        if not self.more_copies or not self._far or self.copies + 1 >= len(self._present()):
            return []
        self.copies += 1
        return [f"{self._far} slices came from the checkpoint: copies are kept on {self.copies} executors from now on"]

    def left(self, movable: Collection[int]) -> int:
        """How many slices executors that are leaving have still to give away."""
        return sum(owner not in self._staying(stage) for stage in movable for owner in self.tables[stage])

    def _staying(self, stage: int) -> list[int]:
        """The subtasks of a stage on executors that are not leaving; all, if there are no others."""
        every = range(self.plan.layout.stages[stage].subtasks)
        return [i for i in every if self.by_place[stage, i].hello.executor not in self.leaving] or [*every]

    def _assign(self, stage: int, base: Token | None, orders: Orders, movable: bool) -> Table:
        """Who owns what: who holds it in memory, or has it on its node, as far as loads stay level."""
        staying, slices = self._staying(stage), self.plan.slices_of(stage)
        n = min(self.active(stage, orders), len(staying))
        held = {
            index: hello.inventory.slices
            for (at, index), hello in sorted((place, member.hello) for place, member in self.by_place.items())
            if at == stage and hello.inventory is not None and hello.inventory.version == base and index in staying
        }
        holders = [index for index in held if held[index]]
        having = {node for (at, _), nodes in self._holders.items() if at == stage for node in nodes}
        others = [index for index in staying if index not in holders]
        others.sort(key=lambda index: self._node_of(stage, index) not in having)
        subtasks = sorted((holders + others)[:n])
        known: list[int | None] = [None] * slices
        for index in subtasks:
            for slice in held.get(index, ()):
                if slice < slices and known[slice] is None:
                    known[slice] = index
        self._stay_near(stage, known, subtasks)
        if all(owner is None for owner in known):
            return dealt(slices, subtasks)
        homes = {self._node_of(stage, owner) for owner in known if owner is not None}
        there = [index for index in subtasks if self._node_of(stage, index) in homes]
        return levelled(known, there if movable else subtasks)

    def _stay_near(self, stage: int, known: list[int | None], subtasks: Sequence[int]) -> None:
        """Give slices that nobody has in memory to subtasks on the first node that has them, its owner's before others."""
        loads = Counter(owner for owner in known if owner is not None)
        at: dict[str | None, list[int]] = {}
        for index in subtasks:
            at.setdefault(self._node_of(stage, index), []).append(index)
        for slice in (slice for slice, owner in enumerate(known) if owner is None):
            node = next((node for node in self._holders.get((stage, slice), ()) if node in at), None)
            if node is not None:
                known[slice] = least = min(at[node], key=lambda index: (loads[index], index))
                loads[least] += 1

    def _place_copies(self) -> None:
        """Which nodes keep copies of which slices, and partitions, now that these have owners."""
        present = self._present()
        holding = {name for names in self._holders.values() for name in names}
        known = {node.name: node for node in self.nodes if node.name in holding} | present
        self.nodes = tuple(known[name] for name in sorted(known))
        self._stand_by()

    def _stand_by(self) -> None:
        homes = {
            (stage, slice): self._node_of(stage, owner)
            for stage, table in enumerate(self.tables)
            for slice, owner in enumerate(table)
        }
        roster = sorted(self._present())
        self._backups = self._standbys.place(homes, roster, self.copies) if roster else {}

    def _present(self) -> dict[str, CopyNode]:
        return {member.hello.node.name: member.hello.node for member in self.by_place.values() if member.hello.node}

    def keepers(self, keys: Iterable[SliceKey]) -> dict[CopyNode, list[SliceKey]]:
        """Which of some slices' copies each node is to have: its own, and those that it stands by for."""
        found: dict[CopyNode, list[SliceKey]] = {}
        present = self._present()
        for store, slice in keys:
            stage = self.plan.layout.stage_of[store.partition("#")[0]]
            home = self._node_of(stage, self.tables[stage][slice])
            for name in (home, *self._backups.get((stage, slice), ())):
                if name in present:
                    found.setdefault(present[name], []).append((store, slice))
        return found

    def backups(self, stage: int) -> list[tuple[str, ...]]:
        """For each slice of a stage, the nodes that keep copies of it."""
        return [self._backups.get((stage, slice), ()) for slice in range(len(self.tables[stage]))]

    def _holders_now(self) -> dict[StageSlice, tuple[str, ...]]:
        """Who has which slice; if the attempt before never began, those before it still have what they had."""
        before, self._began = {} if self._began else self._holders, False
        now = self._standbys.holders()
        return {slice: tuple(dict.fromkeys((*before.get(slice, ()), *names))) for slice, names in now.items()}

    def _node_of(self, stage: int, index: int) -> str | None:
        node = self.by_place[stage, index].hello.node
        return node.name if node is not None else None

    def _ticket(self, place: Place, attempt: Attempt, base: Token | None, entry: int, orders: Orders) -> Reply:
        stage, index = place
        table = self.tables[stage + 1] if stage + 1 < len(self.tables) else ()
        mine = owned(self.tables[stage], index)
        copies = self._copies(self._holders, stage, mine), self._copies(self._backups, stage, mine)
        ticket = Ticket(attempt, base, entry, mine, table, orders, self.nodes, *copies, self.editions)
        member = self.by_place[place]
        return member.sender, Planned(member.hello.query, ticket)

    def _copies(
        self, placed: Mapping[StageSlice, tuple[str, ...]], stage: int, slices: Sequence[int]
    ) -> dict[int, tuple[int, ...]]:
        """Of some slices of a stage, at which of the nodes their copies are."""
        at = {node.name: i for i, node in enumerate(self.nodes)}
        found = {slice: [at[name] for name in placed.get((stage, slice), ()) if name in at] for slice in slices}
        return {slice: tuple(nodes) for slice, nodes in found.items() if nodes}
