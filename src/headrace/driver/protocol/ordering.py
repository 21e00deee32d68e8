"""When the driver's machine orders a cut, and how it comes from there to the log."""

from __future__ import annotations

from headrace.driver.failures import Failure
from headrace.driver.protocol.appending import Appending
from headrace.driver.protocol.asking import ASK_AHEAD_S
from headrace.driver.protocol.cutting import CutUnderWay
from headrace.driver.protocol.events import Instruction, Say
from headrace.driver.protocol.publications import Publications
from headrace.driver.protocol.querying import Querying
from headrace.driver.protocol.upkeep import Upkeep
from headrace.errors import ChannelError, HeadraceError
from headrace.runtime.messages import CutAsked, CutOrdered, Failed, Hello
from headrace.runtime.plan import JobPlan
from headrace.state.durable.manifest import Manifest
from headrace.state.durable.versionlog import CutEntry

_LONGEST_BATCH_S = 23 * 3600.0
"""Spark is told 24 h; a batch that it ends by itself would be a failure."""
_LEAD_US = 30_000
"""How long before a cut its order is sent: sources listen every 20 ms."""
_MIN_BATCH_S = 5.0
"""A keyed step that grows waits until its last batch has lasted so long: each growth is a stop."""
_SILENT_LEASES = 24
"""For so many leases nothing may come of what is waited for: a single call of a step can take minutes."""
CROWDED = "sinks do not take their results; no further cut is made before they do"


class Ordering(Querying):
    """Queries, and the cuts that are ordered in them. ``stopping`` is set once a stop was asked for."""

    def __init__(self, plan: JobPlan, wall_s: float) -> None:
        super().__init__(plan)
        self._wall_s = wall_s
        self.log, self.publications, self.upkeep = Appending(), Publications(), Upkeep()
        self.stopping = False
        self._manifest: Manifest | None = None
        self._known_batch: int | None = None
        self._worked = self._waits = self._follows = False

    def _order_cut(self, now_s: float) -> list[Instruction]:
        if self.cut is not None or self.log.busy or self.upkeep.collecting or self.moving.open:
            return []
        end = self._end_is_due(now_s)
        if not end and now_s < self.pace.due_s - ASK_AHEAD_S:
            return []
        if self.publications.crowded:
            return self._leave() if self.stopping else self._say_once(CROWDED)
        self._waits = False
        token = self._next_cut()
        if not end and self.asking.begin(token):
            return self._tell(self.members.senders(), CutAsked(token, self.editions.announce()))
        if not end and not self._may_order(now_s):
            return []
        self.cut = cut = CutUnderWay(token, end, now_s, now_s)
        if not end:
            cut.tables, cut.editions = self.moving.take_tables(token), self.editions.announced
        order = CutOrdered(token, end, self._wall_us(now_s) + _LEAD_US, cut.tables, cut.editions)
        return self._tell(self.members.senders(stage=0), order)

    def _may_order(self, now_s: float) -> bool:
        """Whether a cut that ends nothing is due, and all are ready for it or have been waited for."""
        due_s = self.pace.due_s
        return now_s >= due_s and self.asking.over(due_s, self.members.by_place, now_s)

    def _wall_us(self, now_s: float) -> int:
        return int((now_s + self._wall_s) * 1e6)

    def _end_is_due(self, now_s: float) -> bool:
        """Whether the next cut is the last of its batch."""
        assert self.attempt is not None
        lasted_s = now_s - self._batch_s
        if lasted_s >= _MIN_BATCH_S and self.members.grows(self.orders, self.moving.stages):
            self._next = self._next or "batch"
        if lasted_s >= _LONGEST_BATCH_S:
            self._next = self._next or "query"
        return self.stopping or self._next is not None or self.hearing.exhausted(self.attempt)

    def _advance_cut(self, cut: CutUnderWay, now_s: float) -> list[Instruction]:
        complete = len(cut.descriptions) == len(self.members.by_place) and (self.plan.eager or self._worked)
        if complete and not self.log.busy:
            return self._log_cut(cut, now_s)
        if self._worked and now_s - cut.ordered_s > self.plan.settings.join_timeout_s:
            return self._fail_protocol("not all subtasks described their work")
        # Stage by stage sources make their cut when they have read all there is; or now, if the run is to stop.
        if (self.plan.eager or self.stopping) and cut.repeat(now_s):
            missing = [
                m.sender for place, m in self.members.by_place.items() if place[0] == 0 and place not in cut.aligned
            ]
            return self._tell(missing, CutOrdered(cut.token, cut.end, 0, cut.tables, cut.editions))
        return []

    def _watch(self, now_s: float) -> list[Instruction]:
        """Whether anything comes of what is waited for: else somebody hangs although its channel lives."""
        still_s, waited = self.still.pass_time(now_s), self._waited_for()
        if waited is None:
            self.still.progress()
        if waited is None or still_s <= _SILENT_LEASES * self.plan.settings.lease_s:
            return []
        what, hung = waited
        places = sorted(hello.place for hello in hung)
        indices = ", ".join(str(index) for stage, index in places if stage == places[0][0])
        who = f"subtask {indices} of stage {places[0][0]} did not answer" if places else "nobody answered"
        why = f"{what}: nothing came of it for {still_s:.0f} s; {who}"
        self._failures.append(Failed(self.query, None, ChannelError.__name__, why, None))
        self.still.progress()
        return self._stop_query(tuple(hung))

    def _waited_for(self) -> tuple[str, list[Hello]] | None:
        """What subtasks are to do now, and who has not done it."""
        members, cut = self.members.by_place, self.cut
        if not self.plan.eager or self.log.busy:
            return None
        match self.phase:
            case "running" if cut is not None:
                return f"cut {cut.token.cut} was not made", [members[at].hello for at in cut.missing(members)]
            case "running" if self.moving.open:
                return "slices did not change hands", [members[at].hello for at in self.moving.unadopted]
            case "loading":
                return "state was not loaded", [member.hello for member in members.values() if not member.loaded]
            case "joining" if self._follows:
                left = [hello for sender, hello in self._hellos.items() if self.members.of(sender) is None]
                return "the next batch did not begin", left
        return None

    def _log_cut(self, cut: CutUnderWay, now_s: float) -> list[Instruction]:
        """All have described it: audit, and append."""
        before = self.base.manifest if self.base is not None else None
        try:
            self._manifest = cut.manifest(
                before,
                self.upkeep.take_rewrites(),
                None if self.plan.eager else self._known_batch,
                self._wall_us(now_s),
                self.editions.after(cut.editions, end=cut.end),
            )
        except HeadraceError as error:
            self.cut = None
            return self._fail(Failure(error, final=False))
        cut.logging = True
        return self.log.append(CutEntry(self._manifest))

    def _say_once(self, what: str) -> list[Instruction]:
        waits, self._waits = self._waits, True
        return [] if waits else [Say("waiting", what, loud=True)]
