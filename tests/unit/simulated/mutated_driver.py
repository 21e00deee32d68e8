"""Rules of the driver, taken away: attempts, descriptions, publishing, upkeep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.driver import hands
from headrace.driver.protocol.asking import Asking
from headrace.driver.protocol.cutting import CutUnderWay
from headrace.driver.protocol.events import CollectGarbage, NumberedCut, Publish, Published, PublishFailed
from headrace.driver.protocol.machine import Machine
from headrace.driver.protocol.publications import Publications
from headrace.driver.protocol.stillness import Stillness
from headrace.driver.protocol.upkeep import Upkeep
from headrace.runtime.messages import CutOrdered
from headrace.state.durable.segments import SEGMENTS, segment_token
from headrace.state.durable.versionlog import VersionLog
from headrace.tokens import Attempt, Token
from simulated.mutations import AGAIN, CALM, DEATHS, LOST, SLOW, STALLS, Patch, mutation


@mutation("tokens: a number alone names nothing", faults=DEATHS)
def files_named_by_number(patch: Patch) -> None:
    patch.setattr(Token, "__str__", lambda self: f"c{self.cut:010d}-g000001-a0001")


@mutation("messages: DESC of another attempt", faults=AGAIN, seeds=600)
def descriptions_of_any_attempt(patch: Patch) -> None:
    def described(self: Any, sender: bytes, message: Any) -> list[Any]:
        if self.cut is not None and message.token.cut == self.cut.token.cut:
            self.cut.descriptions.setdefault(message.place, message.description)
        return []

    patch.setattr(Machine, "_described", described)


@mutation("1: one cut in flight", faults=CALM)
def next_cut_ordered_early(patch: Patch) -> None:
    order = Machine._order_cut

    def early(self: Any, now_s: float) -> Any:
        if self.cut is not None and self.cut.gone_on and not self.cut.logging and not self.cut.end:
            token = self.cut.token.by.cut(self.cut.token.cut + 1)
            self.cut = CutUnderWay(token, False, now_s, now_s)
            return self._tell(self.members.senders(stage=0), CutOrdered(token, False, 0, {}, {}))
        return order(self, now_s)

    patch.setattr(Machine, "_order_cut", early)


@mutation("speed: an unanswered question does not put a cut off for ever", faults=replace(CALM, lose=0.05))
def asking_without_end(patch: Patch) -> None:
    patch.setattr(Asking, "over", lambda self, due_s, everyone, now_s: self.ready.issuperset(everyone))


@mutation(
    "25: a cut of which nothing comes ends the attempt", faults=replace(CALM, chaos=0.01, only=("hang for good",))
)
def silence_without_end(patch: Patch) -> None:
    patch.setattr(Stillness, "pass_time", lambda self, now_s: 0.0)


@mutation("19: no OPEN", faults=STALLS)
def drivers_that_do_not_open(patch: Patch) -> None:
    def log_read(self: Any, read: Any) -> list[Any]:
        self.log.number, self.generation = read.newest, read.newest + 1
        self.base = read.cuts[-1] if read.cuts else None
        self.publications = Publications(read.published)
        for cut in read.cuts:
            if cut.number > read.published:
                self.publications.add(cut)
        self.phase, self._looked = "between", True
        return [self._discard()]

    patch.setattr(Machine, "_log_read", log_read)


@mutation("19: on conflict the base is read again", faults=STALLS, seeds=400)
def base_kept_on_conflict(patch: Patch) -> None:
    log_read = Machine._log_read

    def keeping(self: Any, read: Any) -> Any:
        base, first = self.base, self.log.number == 0
        out = log_read(self, read)
        if not first:
            self.base = base
        return out

    patch.setattr(Machine, "_log_read", keeping)


@mutation("19: a driver publishes what was logged and not published", faults=STALLS)
def no_publication_at_the_start(patch: Patch) -> None:
    log_read = Machine._log_read

    def forgetting(self: Any, read: Any) -> Any:
        out = log_read(self, read)
        self.publications = Publications(read.newest)
        return out

    patch.setattr(Machine, "_log_read", forgetting)


@mutation("20: all descriptions are in", faults=CALM)
def one_description_missing(patch: Patch) -> None:
    advance = Machine._advance_cut

    def hasty(self: Any, cut: Any, now_s: float) -> Any:
        if len(cut.descriptions) == len(self.members.by_place) - 1 and not self.log.busy:
            return self._log_cut(cut, now_s)
        return advance(self, cut, now_s)

    patch.setattr(Machine, "_advance_cut", hasty)


@mutation("21: published only when logged", faults=CALM)
def published_before_it_is_logged(patch: Patch) -> None:
    log_cut, logged = Machine._log_cut, Machine._logged

    def early(self: Any, cut: Any, now_s: float) -> Any:
        out = log_cut(self, cut, now_s)
        if self._manifest is not None:
            self.publications.add(NumberedCut(self.log.number + 1, self._manifest))
        return out

    def without(self: Any, now_s: float) -> Any:
        waiting = len(self.publications.waiting)
        out = logged(self, now_s)
        while len(self.publications.waiting) > waiting:
            self.publications.waiting.pop()
        return out

    patch.setattr(Machine, "_log_cut", early)
    patch.setattr(Machine, "_logged", without)


@mutation("21: in the order of the log", faults=SLOW, seeds=200)
def newest_published_first(patch: Patch) -> None:
    def due(self: Any, now_s: float) -> list[Any]:
        if self._busy or not self.waiting or now_s < self._again_s:
            return []
        self._busy = True
        self.waiting.rotate(1)
        return [Publish(self.waiting[0])]

    patch.setattr(Publications, "due", due)


@mutation("21: tried until it has happened", faults=SLOW)
def publications_that_fail_are_dropped(patch: Patch) -> None:
    on = Publications.on

    def careless(self: Any, event: Published | PublishFailed, now_s: float) -> Any:
        return on(self, Published(event.number), now_s)

    patch.setattr(Publications, "on", careless)


@mutation("22: the outcome of an append is known before the next attempt", faults=DEATHS, seeds=400)
def pending_append_is_forgotten(patch: Patch) -> None:
    ended = Machine._query_ended

    def forgetful(self: Any, event: Any, now_s: float) -> Any:
        number, busy = self.log.number, self.log.busy and self.phase != "opening"
        out = ended(self, event, now_s)
        if busy and self.phase == "stopping":
            self.log._done()
            self.log.number, self.log.entry = number, None
        return out

    patch.setattr(Machine, "_query_ended", forgetful)


def _collecting(patch: Patch, cuts: int, *, any_generation: bool = False, under_way: bool = True) -> None:
    def wrong(
        storage: Any, log: Any, generation: int, running: Any, logged: int, spare: Any = frozenset()
    ) -> list[str]:
        needed = spare.union(*(cut.manifest.files for _, cut in log.last_cuts(cuts)))

        def is_garbage(token: Any) -> bool:
            spared = under_way and token.by >= running and token.cut > logged
            return (any_generation or token.generation <= generation) and not spared

        tokens = {name: segment_token(name) for name in storage.names(SEGMENTS) if name not in needed}
        return [name for name, token in tokens.items() if token is not None and is_garbage(token)]

    patch.setattr(hands, "garbage", wrong)


@mutation("23: garbage of this generation or earlier ones only", faults=STALLS, seeds=600)
def garbage_of_newer_generations(patch: Patch) -> None:
    def wrong(
        storage: Any, log: Any, generation: int, running: Any, logged: int, spare: Any = frozenset()
    ) -> list[str]:
        needed = spare.union(*(cut.manifest.files for _, cut in log.last_cuts(2)))

        def is_garbage(token: Any) -> bool:
            return not (token.by >= running and token.cut > logged and token.generation == generation)

        tokens = {name: segment_token(name) for name in storage.names(SEGMENTS) if name not in needed}
        return [name for name, token in tokens.items() if token is not None and is_garbage(token)]

    patch.setattr(hands, "garbage", wrong)


@mutation("23: what the last two cuts need stays", faults=CALM)
def only_the_last_cut_is_spared(patch: Patch) -> None:
    _collecting(patch, 1)


@mutation("23: what an unlogged cut of the running attempt has written stays", faults=CALM, seeds=200)
def garbage_of_the_running_attempt(patch: Patch) -> None:
    _collecting(patch, 2, under_way=False)


@mutation("23: what the next cut will name stays", faults=replace(LOST, chunk=0.3), seeds=400, steps=600)
def rewrites_are_garbage(patch: Patch) -> None:
    after = Upkeep.after

    def careless(self: Any, *arguments: Any) -> list[Any]:
        return [
            replace(one, spare=frozenset()) if isinstance(one, CollectGarbage) else one
            for one in after(self, *arguments)
        ]

    patch.setattr(Upkeep, "after", careless)


@mutation("23: garbage only after OPEN", faults=STALLS, seeds=400)
def garbage_before_opening(patch: Patch) -> None:
    log_read = Machine._log_read

    def early(self: Any, read: Any) -> Any:
        out = log_read(self, read)
        if self.base is None:
            return out
        number = read.newest + 1
        return [CollectGarbage(number, Attempt(number, 0), self.base.manifest.token.cut, frozenset(), 0), *out]

    patch.setattr(Machine, "_log_read", early)


@mutation("25: a new attempt has a new number", faults=DEATHS, seeds=200)
def attempts_with_the_same_number(patch: Patch) -> None:
    def again(self: Any) -> Attempt:
        self._attempts = 1
        self.attempt = Attempt(self.generation, 1)
        return self.attempt

    patch.setattr(Machine, "_new_attempt", again)


@mutation("25: all start from the newest cut", faults=DEATHS, seeds=600)
def attempts_from_an_older_cut(patch: Patch) -> None:
    logged = Machine._logged

    def late(self: Any, now_s: float) -> Any:
        base, over = self.base, self.phase == "stopping"
        out = logged(self, now_s)
        if over:
            self.base = base
        return out

    patch.setattr(Machine, "_logged", late)


@mutation("18: the last two cuts' entries are kept", faults=CALM)
def entries_forgotten_too_soon(patch: Patch) -> None:
    last_cuts = VersionLog.last_cuts
    patch.setattr(VersionLog, "last_cuts", lambda self, count: last_cuts(self, 1) * 2)
