"""A query's life as the driver's machine sees it: who is lost, what fails, and how it is left."""

from __future__ import annotations

from typing import Literal

from headrace.driver.failures import Failure
from headrace.driver.protocol.attempts import Attempts
from headrace.driver.protocol.events import Instruction, QueryEnded, Say, StopQuery
from headrace.errors import ChannelError, ProtocolError
from headrace.runtime.messages import Failed, Fenced, Hello
from headrace.runtime.plan import JobPlan

_LAST_WORDS_S = 0.1
"""How long after a query's end what its workers said before they died may still be on its way."""


class Querying(Attempts):
    """Attempts, and the queries that they are made by."""

    def __init__(self, plan: JobPlan) -> None:
        super().__init__(plan)
        self._failure: Failure | None = None
        self._ended: QueryEnded | None = None
        self._next: Literal["batch", "query"] | None = None
        self._leaving = False
        self._quiet_s = 0.0

    def _lose(self, sender: bytes) -> list[Instruction]:
        """A worker is needed as long as its query is: the attempt is over."""
        hello, joined = self._hellos.get(sender), self.members.of(sender) is not None
        if hello is None or self.phase in ("between", "stopping"):
            return []
        if not joined and (not self.plan.eager or self.phase in ("loading", "running")):
            return []  # it has worked for an earlier batch, and nobody waits for it
        if not self.plan.eager and self.cut is not None and hello.place in self.cut.descriptions:
            return []
        lease = f"{self.plan.settings.lease_s:g} s"
        text = f"a worker gave no sign of life for {lease}: it hangs or is gone"
        self._failures.append(Failed(self.query, hello.place, ChannelError.__name__, text, None))
        return self._stop_query((hello,))

    def _change(self, what: Literal["batch", "query"], why: str) -> list[Instruction]:
        if self._next == "query" or self._next == what:
            return []
        self._next = what
        return [Say("border", why)]

    def _query_ended(self, ended: QueryEnded, now_s: float) -> list[Instruction]:
        if ended.query != self.query or self._ended is not None or self.phase == "between":
            return []
        self._ended, self._quiet_s = ended, now_s if self._leaving else now_s + _LAST_WORDS_S
        self.phase = "stopping"
        return []

    def _stop_query(self, hung: tuple[Hello, ...] = ()) -> list[Instruction]:
        if self.phase == "stopping":
            return []
        running, self.phase = self.phase not in ("opening", "between"), "stopping"
        if not running:
            self._ended = QueryEnded(self.query)
            return []
        return [StopQuery(hung)]

    def _leave(self) -> list[Instruction]:
        """Stop the query on purpose: whatever it says from now on is no failure."""
        self._leaving = True
        return self._stop_query()

    def _fail(self, failure: Failure) -> list[Instruction]:
        """Something is wrong that no worker said: tell them why, and stop the query."""
        self._failure = self._failure or failure
        told = self._tell(self.members.senders(), Fenced(self.query, failure.summary))
        return [*told, *self._stop_query()]

    def _fail_protocol(self, what: str) -> list[Instruction]:
        return self._fail(Failure(ProtocolError(what), final=False))
