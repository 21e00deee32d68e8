"""Rules of the version log, taken away: exclusive and whole entries, certain outcomes, the look for a higher number."""

from __future__ import annotations

from typing import Any

from headrace.driver.protocol.appending import Appending
from headrace.driver.protocol.events import Append, Appended, AppendFailed, LookUp
from headrace.errors import CorruptionError
from headrace.state.durable.versionlog import VersionLog
from simulated.disk import Disk
from simulated.mutations import CALM, LOST, STALLS, Patch, mutation


@mutation("16: entries are created exclusively", faults=STALLS, seeds=100)
def entries_overwritten(patch: Patch) -> None:
    def anyway(self: Any, name: str, data: Any) -> bool:
        self.folders["log"][name] = data
        self.world.truth.created(name, data)
        return True

    patch.setattr(Disk, "put_if_absent", anyway)


@mutation("16: entries appear whole", faults=STALLS, seeds=100)
def entries_written_after_creation(patch: Patch) -> None:
    put, get = Disk.put_if_absent, Disk.get

    def torn(self: Any, name: str, data: Any) -> bool:
        created = put(self, name, data)
        if created and self.world.random() < 0.3:
            self.folders["log"][name] = None
            self.world.after(1.0, finish, self, self.world.acting, name, data)
        return created

    def finish(self: Any, driver: Any, name: str, data: Any) -> None:
        if driver is not None and not driver.dead and name in self.folders["log"]:
            self.folders["log"][name] = data

    def read(self: Any, name: str) -> Any:
        data = get(self, name)
        if data is None:
            raise CorruptionError(f"{name} is torn")
        return data

    patch.setattr(Disk, "put_if_absent", torn)
    patch.setattr(Disk, "get", read)


@mutation("17: an entry of mine that I find is a success", faults=LOST, seeds=100)
def own_entries_not_known_again(patch: Patch) -> None:
    read = Appending._read

    def strange(self: Any, entry: Any, now_s: float) -> Any:
        if entry is not None:
            self._done()
            return [], "taken"
        return read(self, entry, now_s)

    patch.setattr(Appending, "_read", strange)


@mutation("17: what was not answered is read", faults=LOST, seeds=100)
def failed_appends_taken_for_done(patch: Patch) -> None:
    on = Appending.on

    def trusting(self: Any, event: Any, now_s: float) -> Any:
        if isinstance(event, AppendFailed) and isinstance(self._asked, Append):
            event = Appended(event.number)
        return on(self, event, now_s)

    patch.setattr(Appending, "on", trusting)


@mutation("17: absent: the same entry is created again", faults=LOST, seeds=200)
def absent_entries_given_up(patch: Patch) -> None:
    read = Appending._read

    def giving_up(self: Any, entry: Any, now_s: float) -> Any:
        if entry is None:
            self._done()
            return [], "taken"
        return read(self, entry, now_s)

    patch.setattr(Appending, "_read", giving_up)


@mutation("17: another's entry: I am fenced", faults=STALLS, seeds=100)
def appending_behind_another(patch: Patch) -> None:
    read = Appending._read

    def pushing(self: Any, entry: Any, now_s: float) -> Any:
        if entry is not None and entry != self.entry and not hasattr(self.entry, "pid"):
            self.number += 1
            return self._ask(Append(self.number + 1, self.entry)), None
        return read(self, entry, now_s)

    patch.setattr(Appending, "_read", pushing)


@mutation("18: after a creation, look for a higher number", faults=STALLS, seeds=1500, steps=600)
def no_look_after_an_append(patch: Patch) -> None:
    on = Appending.on

    def blind(self: Any, event: Any, now_s: float) -> Any:
        out, outcome = on(self, event, now_s)
        if outcome is None and out and isinstance(out[0], LookUp) and self.entry is not None:
            return [], self._seen(self.number + 1)
        return out, outcome

    patch.setattr(Appending, "on", blind)


@mutation("18: entries are forgotten oldest first", faults=CALM)
def newest_forgotten_first(patch: Patch) -> None:
    def backwards(self: Any, number: int) -> list[str]:
        kept = self.last_cuts(2)
        if len(kept) < 2:
            return []
        for old in reversed([old for old in self.numbers() if old < min(number, kept[0][0])]):
            self._storage.delete(f"log/{old:010d}")
        return []

    patch.setattr(VersionLog, "forget_before", backwards)
