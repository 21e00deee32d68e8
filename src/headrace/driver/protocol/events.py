"""What the driver's machine is told, and what it asks for: events in, instructions out.

Whoever carries out an instruction answers with the event that its docstring names, sooner or later or, if it dies, never.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config import Schedule
from headrace.driver.status import State
from headrace.errors import HeadraceError
from headrace.runtime.messages import Hello, ToDriver, ToWorker
from headrace.runtime.orders import Orders
from headrace.runtime.ownership import Table
from headrace.runtime.plan import Description, JobPlan
from headrace.state.durable.editions import EditionRead, ReadEdition
from headrace.state.durable.manifest import Manifest, Rewrite
from headrace.state.durable.segments import BlockRef
from headrace.state.durable.versionlog import Entry
from headrace.tokens import Attempt, Token


@dataclass(frozen=True, slots=True)
class NumberedCut:
    """A cut in the version log, with the number of its entry."""

    number: int
    manifest: Manifest


# What is told.


@dataclass(frozen=True, slots=True)
class LogRead:
    """The log as it is: its highest number (0: empty), its cuts, oldest first, and up to where they are published."""

    newest: int
    cuts: tuple[NumberedCut, ...]
    published: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The entry was created."""

    number: int


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """Somebody's entry has the number, or nobody knows: the entry must be read."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class EntryRead:
    """What stands at a number of the log, if anything."""

    number: int
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class NewestSeen:
    """The highest number in the log."""

    number: int


@dataclass(frozen=True, slots=True)
class LogUnreadable:
    """The log could not be looked at for now, or, with an error, never will."""

    why: str
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """A cut's results are visible, and that is known durably."""

    number: int


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """They are not, or not all; to be tried again, unless ``final``: the data or the sink's use is wrong."""

    number: int
    error: HeadraceError
    final: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """All that was published is visible, or not: it is tried again."""

    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Long chains of blocks have been written anew; nothing if that failed. ``mended`` were damaged before."""

    rewrites: tuple[Rewrite, ...]
    trouble: str | None = None
    mended: tuple[BlockRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Mended:
    """Blocks of the checkpoint that were taken from copies and are right again; ``lost`` are those that no copy has."""

    mended: tuple[BlockRef, ...]
    lost: tuple[BlockRef, ...]
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Collected:
    """Which segments nobody needs any more; what could not be found out is tried again later."""

    names: tuple[str, ...] = ()
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """A worker's message."""

    sender: bytes
    message: ToDriver


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker gives no sign of life any more."""

    sender: bytes


@dataclass(frozen=True, slots=True)
class QueryEnded:
    """The query is over: stopped as asked for (None), or failed."""

    query: int
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class LaidOut:
    """The job goes on with other subtasks from the next query on."""

    plan: JobPlan


@dataclass(frozen=True, slots=True)
class OrdersGiven:
    """The controller wants subtasks to work in another way."""

    orders: Orders


@dataclass(frozen=True, slots=True)
class ScheduleGiven:
    """Subtasks are to choose by another policy which of their steps works next; all other orders stay."""

    schedule: Schedule


@dataclass(frozen=True, slots=True)
class BatchBegins:
    """Stage by stage: Spark is about to run a batch; ``known`` if its number means the same input after a restart."""

    batch: int
    known: bool


@dataclass(frozen=True, slots=True)
class BatchWorked:
    """Stage by stage: Spark's job for the batch is done."""

    batch: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The user wants the run to end, after one more cut."""


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """The query shall be replaced at a cut."""

    why: str


@dataclass(frozen=True, slots=True)
class RescaleAsked:
    """A keyed stage shall have so many active subtasks from now on, whatever is ordered otherwise."""

    stage: int
    subtasks: int


@dataclass(frozen=True, slots=True)
class MovesAsked:
    """Slices of a stage shall be where a table says, and ``why``."""

    stage: int
    table: Table
    why: str


@dataclass(frozen=True, slots=True)
class LeavingGiven:
    """These executors are to be let go: as far as others can have it, their subtasks shall own nothing."""

    executors: frozenset[str]


@dataclass(frozen=True, slots=True)
class BatchEndAsked:
    """Spark's batch shall end at a cut and the next one follow."""

    why: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    LogRead | Appended | AppendFailed | EntryRead | NewestSeen | LogUnreadable | Published | PublishFailed | Settled
    | Rewritten | Collected | Mended | EditionRead | Heard | Lost | QueryEnded | LaidOut | OrdersGiven | ScheduleGiven | BatchBegins | BatchWorked
    | StopAsked | RestartAsked | MovesAsked | RescaleAsked | LeavingGiven | BatchEndAsked | Tick
)  # fmt: skip


# What is asked for.


@dataclass(frozen=True, slots=True)
class ReadLog:
    """→ LogRead or LogUnreadable."""


@dataclass(frozen=True, slots=True)
class Append:
    """→ Appended or AppendFailed."""

    number: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """→ EntryRead or LogUnreadable."""

    number: int


@dataclass(frozen=True, slots=True)
class LookUp:
    """→ NewestSeen or LogUnreadable."""


@dataclass(frozen=True, slots=True)
class Publish:
    """→ Published or PublishFailed."""

    cut: NumberedCut


@dataclass(frozen=True, slots=True)
class Settle:
    """The run is about to end: let sinks show what they still collect → Settled."""


@dataclass(frozen=True, slots=True)
class Compact:
    """→ Rewritten, as by an attempt."""

    manifest: Manifest
    by: Attempt


@dataclass(frozen=True, slots=True)
class Mend:
    """Take blocks that the checkpoint has not as they were written from copies → Mended."""

    broken: tuple[BlockRef, ...]


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete segments that nobody needs any more, whenever there is time for it."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CollectGarbage:
    """Find what the last two cuts do not need → Collected. ``spare`` are files that a cut to come will name;
    entries of the log before ``forget_before`` may go too.
    """

    generation: int
    running: Attempt | None
    logged: int
    spare: frozenset[str]
    forget_before: int


@dataclass(frozen=True, slots=True)
class Discard:
    """No attempt runs: remove what attempts up to one staged, but for cuts that are ``logged`` and not published yet, and
    let sinks show what they still collect.
    """

    upto: Attempt
    logged: frozenset[Token]


@dataclass(frozen=True, slots=True)
class Send:
    """Tell a worker; no answer is certain."""

    to: bytes
    message: ToWorker


@dataclass(frozen=True, slots=True)
class StartQuery:
    """→ QueryEnded, when it has."""

    query: int


@dataclass(frozen=True, slots=True)
class EndBatch:
    """Let Spark's batch end, so that the next one begins with HELLOs."""


@dataclass(frozen=True, slots=True)
class StopQuery:
    """→ QueryEnded. ``hung`` are workers that would not notice."""

    hung: tuple[Hello, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """Stage by stage: the batch is to be run or skipped (BatchBegins), or may be committed (BatchWorked)."""

    batch: int
    run: bool


@dataclass(frozen=True, slots=True)
class Say:
    """For the journal; ``loud``: also for the log that users see."""

    what: str
    detail: str
    loud: bool = False


@dataclass(frozen=True, slots=True)
class Began:
    """Sources were let go: for whoever measures gaps."""


@dataclass(frozen=True, slots=True)
class CutHappened:
    """A version is in the log: for figures and status. ``took_ms`` counts from its order."""

    cut: NumberedCut
    descriptions: tuple[Description, ...]
    took_ms: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over."""

    state: State
    error: HeadraceError | None = None


Instruction = (
    ReadLog | Append | ReadEntry | LookUp | Publish | Settle | Compact | Mend | CollectGarbage | Remove | ReadEdition | Discard | Send | StartQuery | EndBatch
    | StopQuery | BatchAnswer | Say | Began | CutHappened | Finish
)  # fmt: skip
