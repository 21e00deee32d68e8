"""What the machine asks of the checkpoint and of sinks, carried out: each kind in a thread of its own, in order.

Every answer, a failure too, comes back as an event. What a sink or a disk takes long for delays nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from headrace.driver.failures import translated
from headrace.driver.protocol.events import (
    Append,
    Appended,
    AppendFailed,
    Collected,
    CollectGarbage,
    Compact,
    Discard,
    EntryRead,
    Event,
    Instruction,
    LogRead,
    LogUnreadable,
    LookUp,
    Mend,
    Mended,
    NewestSeen,
    NumberedCut,
    Publish,
    Published,
    PublishFailed,
    ReadEntry,
    ReadLog,
    Remove,
    Rewritten,
    Settle,
    Settled,
)
from headrace.driver.publishing import discard_unlogged, publish, settle
from headrace.errors import CorruptionError, HeadraceError, StateError
from headrace.runtime.operators.lookups import edition_of, lookups_of
from headrace.runtime.plan import JobPlan
from headrace.state.copies.restoring import Copy, broken_blocks, repair
from headrace.state.durable.editions import EditionRead, ReadEdition, left_behind, put_edition
from headrace.state.durable.garbage import garbage
from headrace.state.durable.manifest import Rewrite
from headrace.state.durable.published import read_published, write_published
from headrace.state.durable.segments import BlockRef
from headrace.state.durable.storage import Storage
from headrace.state.durable.tidying import Tidying, TidyingHere
from headrace.state.durable.versionlog import Entry, VersionLog

_log = logging.getLogger("headrace.driver")
_POOLS = {
    ReadLog: "log", LookUp: "log", ReadEntry: "log", Append: "log",
    Publish: "publish", Settle: "publish", Discard: "publish",
    Compact: "upkeep", Mend: "upkeep", CollectGarbage: "upkeep", Remove: "upkeep",
    ReadEdition: "lookups",
}  # fmt: skip


def pool_of(instruction: Instruction) -> str | None:
    """The queue that an instruction belongs into, each of which is worked off in order; None if none of ours."""
    return _POOLS.get(type(instruction))


class Deeds:
    """The work itself, without threads. ``plan`` may be replaced by one with other subtasks.

    ``copies`` are what damaged blocks of the checkpoint are taken from, ``tidying`` does what can wait.
    """

    def __init__(
        self, plan: JobPlan, storage: Storage, copies: Sequence[Copy] = (), tidying: Tidying | None = None
    ) -> None:
        self.plan, self.storage, self.log, self._copies = plan, storage, VersionLog(storage), copies
        self.tidying = tidying or TidyingHere(storage)
        self._serial = 0
        self._stamps: dict[str, object] = {}

    def perform(self, instruction: Instruction) -> Event | None:
        """Carry it out; returns the answer, if one is due."""
        match instruction:
            case ReadLog() | LookUp() | ReadEntry() | Append():
                return self._on_log(instruction)
            case Publish(cut):
                return self._publish(cut)
            case Settle():
                return self._settle()
            case Discard():
                return self._discard(instruction)
            case Compact():
                return self._compact(instruction)
            case Remove(names):
                self._remove(names)
            case CollectGarbage():
                return self._collect(instruction)
            case Mend():
                return self._mend(instruction.broken)
            case ReadEdition():
                return self._read_edition(instruction)
        return None

    def _on_log(self, asked: ReadLog | LookUp | ReadEntry | Append) -> Event:
        try:
            match asked:
                case ReadLog():
                    return self._log_read()
                case LookUp():
                    return NewestSeen(self.log.newest())
                case ReadEntry(number):
                    return EntryRead(number, self._entry(number))
                case Append(number, entry):
                    created = self.log.append(number, entry)
                    return Appended(number) if created else AppendFailed(number, "the number is taken")
        except (CorruptionError, StateError) as error:
            return LogUnreadable(str(error), error)
        except OSError as error:
            return AppendFailed(asked.number, str(error)) if isinstance(asked, Append) else LogUnreadable(str(error))

    def _log_read(self) -> LogRead:
        published = read_published(self.storage)  # before the log: what is published is in it by then
        newest = self.log.newest()  # before its cuts: whoever appends from here on makes our OPEN a conflict
        cuts = tuple(NumberedCut(number, entry.manifest) for number, entry in self.log.cuts())
        if published > (cuts[-1].number if cuts else 0):
            raise CorruptionError(
                f"entry {published} of the version log is missing, although its results are published"
            )
        return LogRead(newest, cuts, published)

    def _entry(self, number: int) -> Entry | None:
        try:
            return self.log.read(number)
        except FileNotFoundError:
            return None

    def _publish(self, cut: NumberedCut) -> Event:
        try:
            publish(self.plan, cut.manifest)
            write_published(self.storage, cut.number)
        except Exception as error:  # a sink is anybody's code; whatever it raises, it is asked again
            return PublishFailed(cut.number, translated(error), final=isinstance(error, CorruptionError))
        return Published(cut.number)

    def _settle(self) -> Event:
        try:
            settle(self.plan)
        except Exception as error:  # a sink is anybody's code; whatever it raises, it is asked again
            return Settled(str(translated(error)))
        return Settled()

    def _discard(self, wanted: Discard) -> Event | None:
        self._tidy(lambda: discard_unlogged(self.plan, lambda t: t in wanted.logged or t.by > wanted.upto))
        self._tidy(lambda: settle(self.plan))
        return None

    def _tidy(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # a sink is anybody's code; nobody waits for it
            _log.warning("a sink could not be left tidy, the next start will try again: %s", error)

    def _compact(self, wanted: Compact) -> Event:
        mended: tuple[BlockRef, ...] = ()
        try:
            try:
                return Rewritten(self._compacted(wanted))
            except CorruptionError:
                mended = tuple(repair(self.storage, broken_blocks(self.storage, wanted.manifest), self._copies)[0])
                if not mended:
                    raise
                return Rewritten(self._compacted(wanted), mended=mended)
        except (OSError, HeadraceError) as error:
            return Rewritten((), str(error), mended)

    def _compacted(self, wanted: Compact) -> tuple[Rewrite, ...]:
        self._serial += 1
        return self.tidying.compact(wanted.manifest, wanted.by, self._serial)

    def _mend(self, broken: tuple[BlockRef, ...]) -> Event:
        try:
            mended, lost = repair(self.storage, broken, self._copies)
        except (OSError, HeadraceError) as error:
            return Mended((), (), str(error))
        return Mended(tuple(mended), tuple(lost))

    def _collect(self, wanted: CollectGarbage) -> Event:
        try:
            names = garbage(self.storage, self.log, wanted.generation, wanted.running, wanted.logged, wanted.spare)
            self.log.forget_before(wanted.forget_before)
        except (OSError, HeadraceError) as error:
            return Collected((), str(error))
        return Collected(tuple(names))

    def _read_edition(self, wanted: ReadEdition) -> Event:
        """Files that have not changed since are not read again; a function is called each time."""
        node, columns = lookups_of(self.plan)[wanted.step]
        try:
            with suppress(OSError):
                for name in left_behind(self.storage, wanted.generation, wanted.needed):
                    self.storage.delete(name)
            stamp, edition = node.table.stamp(), wanted.known
            if edition is None or stamp is None or self._stamps.get(wanted.step) != stamp:
                rows = edition_of(node, node.table.read(), columns)
                edition = put_edition(self.storage, wanted.stem, rows, wanted.known)
            self._stamps[wanted.step] = stamp
        except (OSError, HeadraceError) as error:
            return EditionRead(wanted.step, error=translated(error))
        return EditionRead(wanted.step, edition)

    def _remove(self, names: tuple[str, ...]) -> None:
        """Large files take their time to be freed, for which nobody waits; what is left is found again."""
        with suppress(OSError):
            self.tidying.remove(names)


class Hands:
    """Each queue has a thread of its own. ``post`` takes the answers, from any thread."""

    def __init__(
        self, plan: JobPlan, storage: Storage, post: Callable[[Event], None], copies: Sequence[Copy] = (),
        tidying: Tidying | None = None,
    ) -> None:  # fmt: skip
        self.deeds, self._post = Deeds(plan, storage, copies, tidying), post
        self._pools = {name: ThreadPoolExecutor(1, f"headrace-{name}") for name in sorted(set(_POOLS.values()))}

    @property
    def plan(self) -> JobPlan:
        return self.deeds.plan

    @plan.setter
    def plan(self, plan: JobPlan) -> None:
        self.deeds.plan = plan

    def do(self, instruction: Instruction) -> bool:
        """Begin to carry it out; False if it is none for these hands."""
        pool = pool_of(instruction)
        if pool is None:
            return False
        self._pools[pool].submit(self._perform, instruction)
        return True

    def close(self) -> None:
        """Wait for what was asked for, but for upkeep, which can be done another time."""
        self.deeds.tidying.stop()
        for pool in self._pools.values():
            pool.shutdown(wait=True)
        self.deeds.tidying.close()

    def _perform(self, instruction: Instruction) -> None:
        event: Event | None
        try:
            event = self.deeds.perform(instruction)
        except (
            Exception
        ) as error:  # nobody looks at a thread's result: a fault that was not thought of must be heard too
            event = LogUnreadable(f"{type(instruction).__name__}: {error}", translated(error))
        if event is not None:
            self._post(event)
