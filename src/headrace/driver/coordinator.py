"""The driver's side of the epoch protocol as a state machine: messages in, replies out.

START  every subtask says HELLO; when all have, each gets its PLAN: the attempt's token, the version
       to start from, which slices it owns (those it holds in memory, if it does) and where the next
       stage's slices are. They load, say LOADED; when all have, sources GO.
END    each subtask makes its changes durable and sends DESC. When all have: all that was sent was
       consumed, digests chain, the manifest is written, and the last stage is told SEALED, returns,
       and lets Spark commit the epoch.
NEXT   when Spark's commit exists, the epoch's attempt is picked (``Versions.pick``).

Stage-by-stage modes have no barrier: a PLAN is given at once and the driver seals after Spark's job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.errors import ProtocolError, StateError
from headrace.runtime.messages import (
    Described,
    Fenced,
    Go,
    Hello,
    Inventory,
    Loaded,
    Place,
    Planned,
    Reply,
    Sealed,
)
from headrace.runtime.orders import NO_ORDERS, Orders
from headrace.runtime.plan import Description, JobPlan, Ticket
from headrace.state.durable.changes import ZERO_DIGEST
from headrace.state.durable.versions import Manifest, SliceVersion, Versions
from headrace.tokens import Token

_SUPERSEDED = Fenced("a newer attempt has begun")


@dataclass(slots=True)
class Member:
    """A subtask that said HELLO in the current attempt."""

    sender: bytes
    inventory: Inventory | None
    loaded: bool = False
    description: Description | None = None


@dataclass(slots=True)
class Coordinator:
    """One run of one query. ``query`` numbers the query within the driver: older workers are fenced.

    ``owners`` are the subtasks that own slices in the running attempt, stage by stage; ``orders`` may want
    more or fewer from the next one on. While ``holding``, no epoch begins after the running one, since the query
    will be replaced; ``held``: subtasks wait for one in vain.
    """

    plan: JobPlan
    versions: Versions
    generation: int
    query: int = 0
    token: Token | None = None
    base: Token | None = None
    members: dict[Place, Member] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    sealed: Manifest | None = None
    planned: bool = False
    orders: Orders = NO_ORDERS
    owners: list[list[int]] = field(default_factory=list)
    on_sealed: Callable[[Manifest, list[Description]], None] | None = None
    holding: bool = False
    held: bool = False

    def new_query(self) -> int:
        """Workers of the query before are zombies from now on, and what it sealed without commit is void."""
        self.query += 1
        self.sealed = None
        self.token, self.members, self.planned = None, {}, False
        self.holding = self.held = False
        return self.query

    @property
    def at_border(self) -> bool:
        """Whether the epoch that was begun last is sealed."""
        return self.sealed is not None and self.sealed.token == self.token

    def start(self, epoch: int) -> Token:
        """Begin a new attempt at an epoch."""
        self.base = self._base_of(epoch)
        attempt = self.attempts.get(epoch, 0)
        self.attempts[epoch] = attempt + 1
        self.token = Token(self.generation, epoch, attempt)
        self.members, self.planned = {}, False
        return self.token

    def take(self, sender: bytes, message: Hello | Loaded | Described) -> list[Reply]:
        """What a subtask says of its way through the epoch, and what to tell whom then."""
        match message:
            case Hello():
                return self.hello(sender, message)
            case Loaded():
                return self.loaded(sender, message)
            case Described():
                return self.described(sender, message)

    def hello(self, sender: bytes, hello: Hello) -> list[Reply]:
        """A subtask has started."""
        if hello.query != self.query:
            return [(sender, Fenced("this worker belongs to a query that was replaced"))]
        if not self.has(hello.place):
            return [(sender, Fenced(f"the job has no subtask {hello.index} of stage {hello.stage}"))]
        if self.holding and self.at_border:
            self.held = True
            return []
        epoch, place = hello.epoch, hello.place
        if self.plan.eager:
            if self.token is None or self.token.epoch != epoch or place in self.members:
                self.start(epoch)
        elif self.token is None or self.token.epoch != epoch:
            return [(sender, Fenced(f"epoch {epoch} is not running"))]
        self.members[place] = Member(sender, hello.inventory)
        if not self.plan.eager:
            owners = [list(range(self.groups(at))) for at in range(len(self.plan.layout.stages))]
            return [self._ticket(place, owners)]
        if len(self.members) < self.plan.layout.slots:
            return []
        self.planned = True
        owners = [self._assign(stage.index) for stage in self.plan.layout.stages]
        self.owners = owners
        return [self._ticket(place, owners) for place in self.members]

    def loaded(self, sender: bytes, loaded: Loaded) -> list[Reply]:
        """A subtask has its state; when all have, sources may read."""
        member = self._member(sender, loaded)
        if member is None:
            return [(sender, _SUPERSEDED)]
        member.loaded = True
        go = Go(loaded.token)
        if not self.plan.eager:
            return [(sender, go)]
        if all(m.loaded for m in self.members.values()) and self.planned:
            return [(m.sender, go) for m in self.members.values()]
        return []

    def described(self, sender: bytes, described: Described) -> list[Reply]:
        """A subtask has ended its epoch."""
        member = self._member(sender, described)
        if member is None:
            return [(sender, _SUPERSEDED)]
        sealed = Sealed(described.token)
        if self.at_border:
            return [(sender, sealed)]  # a repeat: what is sealed stays as it is
        member.description = described.description
        if not self.plan.eager or any(m.description is None for m in self.members.values()):
            return []
        if self.sealed is None or self.sealed.token != self.token:  # a repeated message seals nothing
            self.seal()
        last = len(self.plan.layout.stages) - 1
        return [(m.sender, sealed) for (stage, _), m in self.members.items() if stage == last]

    def seal(self) -> Manifest:
        """All subtasks have ended: audit, then make the attempt's manifest durable."""
        assert self.token is not None
        descriptions = [m.description for m in self.members.values() if m.description is not None]
        if len(descriptions) < len(self.members):
            raise ProtocolError(
                f"{self.token}: {len(self.members) - len(descriptions)} subtasks did not describe their work"
            )
        audit(descriptions)
        before = self._manifest(self.base) if self.base is not None else None
        slices = dict(before.slices) if before else {}
        for description in descriptions:
            for change in description.changes:
                key = (change.step, change.slice)
                old = slices.get(key, SliceVersion(ZERO_DIGEST, ()))
                blocks = (change.block,) if change.block.full else (*old.blocks, change.block)
                slices[key] = SliceVersion(change.digest, blocks)
        manifest = Manifest(
            self.token,
            self.base,
            slices,
            tuple(s for d in descriptions for s in d.staged),
            all(d.exhausted for d in descriptions if d.stage == 0),
        )
        self.versions.write_manifest(manifest)
        self.sealed = manifest
        if self.on_sealed is not None:
            self.on_sealed(manifest, descriptions)
        return manifest

    def _base_of(self, epoch: int) -> Token | None:
        if epoch == 0:
            return None
        picked = self.versions.picked(epoch - 1)
        if picked is not None:
            return picked
        # Spark may start an epoch while the commit of the one before is still being written; what
        # this driver sealed is then the base. If the commit never lands, both epochs are run again.
        if self.sealed is not None and self.sealed.token.epoch == epoch - 1:
            return self.sealed.token
        raise StateError(
            f"Spark starts epoch {epoch}, but checkpoint {self.plan.checkpoint} has no state of epoch {epoch - 1}; "
            f"it is incomplete: restore it, or start with a new checkpoint"
        )

    def _manifest(self, token: Token) -> Manifest:
        if self.sealed is not None and self.sealed.token == token:
            return self.sealed
        return self.versions.manifest(token)

    def groups(self, stage: int) -> int:
        """Into how many parts a stage's slices are divided in the attempts from now on."""
        return self.orders.active.get(stage, self.plan.groups(stage))

    def grows(self) -> bool:
        """Whether a keyed stage waits for the next attempt to get more subtasks."""
        return any(
            self.groups(stage) > len(owners) and any(edge.keyed for edge in self.plan.layout.border(stage))
            for stage, owners in enumerate(self.owners)
        )

    def _assign(self, stage: int) -> list[int]:
        """For each group of slices the subtask that owns it: who holds it in memory, if anyone."""
        n = self.groups(stage)
        owner: dict[int, int] = {}
        for (at, index), member in sorted(self.members.items(), key=lambda item: item[0]):
            held = member.inventory
            if at != stage or held is None or held.version != self.base or held.groups != n:
                continue
            group = held.group
            if group is not None and 0 <= group < n and group not in owner:
                owner[group] = index
        free = [i for i in range(self.plan.layout.stages[stage].subtasks) if i not in owner.values()]
        for group in range(n):
            if group not in owner:
                owner[group] = group if group in free else free[0]
                free.remove(owner[group])
        return [owner[group] for group in range(n)]

    def _ticket(self, place: Place, owners: list[list[int]]) -> Reply:
        stage, index = place
        mine = owners[stage]
        assert self.token is not None
        group = mine.index(index) if index in mine else None
        places = tuple(owners[stage + 1]) if stage + 1 < len(owners) else ()
        ticket = Ticket(self.token, self.base, group, len(mine), places, self.orders)
        return self.members[place].sender, Planned(ticket)

    def _member(self, sender: bytes, message: Loaded | Described) -> Member | None:
        member = self.members.get(message.place)
        if member is None or member.sender != sender or message.token != self.token:
            return None
        return member

    def has(self, place: Place) -> bool:
        """Whether the job, as it is laid out now, has such a subtask."""
        stage, index = place
        stages = self.plan.layout.stages
        return 0 <= stage < len(stages) and 0 <= index < stages[stage].subtasks


def audit(descriptions: list[Description]) -> None:
    """Everything sent on an edge, per sender and slice, was consumed; else ProtocolError."""
    sent: dict[tuple[int, int], list[int]] = {}
    got: dict[tuple[int, int], list[int]] = {}
    for description in descriptions:
        for edge, by_sender in description.sent.items():
            for sender, counts in by_sender.items():
                sent[int(edge), int(sender)] = counts
        for edge, by_sender in description.consumed.items():
            for sender, counts in by_sender.items():
                so_far = got.get((int(edge), int(sender)), [0] * len(counts))
                got[int(edge), int(sender)] = [a + b for a, b in zip(so_far, counts)]
    for key, counts in sent.items():
        if counts != got.get(key, [0] * len(counts)):
            lost = sum(counts) - sum(got.get(key, [0]))
            what = f"{lost} not consumed" if lost else "consumed in other slices than those they were sent to"
            raise ProtocolError(f"edge {key[0]}, sender {key[1]}: {sum(counts)} items sent, {what}")
    for key in got.keys() - sent.keys():
        if any(got[key]):
            raise ProtocolError(f"edge {key[0]}: items of sender {key[1]} were consumed that it did not send")
