"""Who takes part in an attempt: subtasks that said HELLO for the same batch of the same query, and their tickets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.runtime.messages import Hello, Loaded, Place, Planned, Reply
from headrace.runtime.orders import Orders
from headrace.runtime.plan import JobPlan, Ticket
from headrace.state.copies.placement import CopyNode, StageSlice, Standbys
from headrace.tokens import Attempt, Token


@dataclass(slots=True)
class Member:
    """A subtask that takes part."""

    sender: bytes
    hello: Hello
    loaded: bool = False


@dataclass(slots=True)
class Members:
    """``owners`` are the subtasks that own slices in the attempt, stage by stage, ``nodes`` have copies of state."""

    plan: JobPlan
    batch: int | None = None
    by_place: dict[Place, Member] = field(default_factory=dict)
    owners: list[list[int]] = field(default_factory=list)
    _standbys: Standbys = field(default_factory=Standbys)
    nodes: tuple[CopyNode, ...] = ()
    _began: bool = False
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
        self._began = self._began or self.all_loaded
        return True

    def plan_all(self, attempt: Attempt, base: Token | None, entry: int, orders: Orders) -> list[Reply]:
        """Everybody's ticket, where all stages run at the same time; slices stay where they are in memory."""
        self.owners = [self._assign(stage.index, base, orders) for stage in self.plan.layout.stages]
        for member in self.by_place.values():
            member.loaded = False
        self._place_copies()
        return [self._ticket(place, attempt, base, entry, orders) for place in self.by_place]

    def plan_one(self, place: Place, attempt: Attempt, base: Token | None, entry: int, orders: Orders) -> Reply:
        """A ticket where stages run one after the other, and nobody knows yet who will come."""
        self.owners = [list(range(self.groups(at, orders))) for at in range(len(self.plan.layout.stages))]
        return self._ticket(place, attempt, base, entry, orders)

    def groups(self, stage: int, orders: Orders) -> int:
        """Into how many parts a stage's slices are divided in the attempts from now on: what was ordered for a layout
        with more subtasks holds as far as it can.
        """
        return min(orders.active.get(stage, self.plan.groups(stage)), self.plan.layout.stages[stage].subtasks)

    def grows(self, orders: Orders) -> bool:
        """Whether a keyed stage waits for the next attempt to get more subtasks."""
        return any(
            self.groups(stage, orders) > len(owners) and any(edge.keyed for edge in self.plan.layout.border(stage))
            for stage, owners in enumerate(self.owners)
        )

    def _assign(self, stage: int, base: Token | None, orders: Orders) -> list[int]:
        """For each group of slices the subtask that owns it: who holds it in memory, if anyone."""
        n = self.groups(stage, orders)
        owner: dict[int, int] = {}
        for (at, index), member in sorted(self.by_place.items(), key=lambda item: item[0]):
            held = member.hello.inventory
            if at != stage or held is None or held.version != base or held.groups != n:
                continue
            if held.group is not None and 0 <= held.group < n and held.group not in owner:
                owner[held.group] = index
        free = [i for i in range(self.plan.layout.stages[stage].subtasks) if i not in owner.values()]
        for group in range(n):
            if group not in owner:
                owner[group] = group if group in free else free[0]
                free.remove(owner[group])
        return [owner[group] for group in range(n)]

    def _place_copies(self) -> None:
        """Which nodes keep copies of which slices, and partitions, now that these have owners."""
        present = {member.hello.node.name: member.hello.node for member in self.by_place.values() if member.hello.node}
        roster = sorted(present)
        numbers = range(max([self.plan.settings.slices, *self.plan.partitions.values()]))
        owners = {
            (stage, number): self._node_of(stage, mine[number % len(mine)])
            for stage, mine in enumerate(self.owners)
            for number in numbers
        }
        self._holders = self._holders_now()
        holding = {name for names in self._holders.values() for name in names}
        known = {node.name: node for node in self.nodes if node.name in holding} | present
        self.nodes = tuple(known[name] for name in sorted(known))
        self._backups = self._standbys.place(owners, roster, self.plan.settings.backup or 0) if roster else {}

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
        mine = self.owners[stage]
        group = mine.index(index) if index in mine else None
        places = tuple(self.owners[stage + 1]) if stage + 1 < len(self.owners) else ()
        copies = self._copies(self._holders, stage, group), self._copies(self._backups, stage, group)
        ticket = Ticket(attempt, base, entry, group, len(mine), places, orders, self.nodes, *copies)
        return self.by_place[place].sender, Planned(ticket)

    def _copies(
        self, placed: Mapping[StageSlice, tuple[str, ...]], stage: int, group: int | None
    ) -> dict[int, tuple[int, ...]]:
        """Of each of a group's slices, at which of the nodes its copies are."""
        at, groups = {node.name: i for i, node in enumerate(self.nodes)}, len(self.owners[stage])
        return {
            number: tuple(at[name] for name in names if name in at)
            for (of, number), names in placed.items()
            if of == stage and number % groups == group and names
        }
