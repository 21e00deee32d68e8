"""State that expires: seen by nobody after its time, deleted some at a time, the same in all modes and after restarts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from durable import Chains
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from reference import Record, Row
from workflows import out

import headrace as hr
from headrace.config import Settings
from headrace.driver.planning import plan_job
from headrace.errors import UnitError
from headrace.graph.render import describe
from headrace.runtime.build import build_operator
from headrace.runtime.operators.process import Process
from headrace.runtime.operators.usercode import Guard
from headrace.state.stores.expiry import date_of
from headrace.state.stores.keyvalues import KeyedStore
from headrace.testing import PAUSE, LocalRun, run_local, scripted

MS = 1000
TTL_US = 64 * MS
AT_ONCE = 500
Emit = Callable[[Row], None]


def slices_of(keys: list[Any]) -> list[int]:
    return [len(repr(key)) % 3 for key in keys]


def store(ttl_us: int | None = TTL_US) -> KeyedStore:
    return KeyedStore("step", slices_of, ttl_us={} if ttl_us is None else {"v": ttl_us, "m": ttl_us})


def moved(old: KeyedStore, *slices: int, to: KeyedStore) -> KeyedStore:
    """What a cut has of some slices, loaded by another store."""
    for change in old.changes():
        if change.slice in slices:
            to.load(change.slice, change.puts, change.digest)
    return to


def restored(old: KeyedStore, to: KeyedStore) -> KeyedStore:
    return moved(old, 0, 1, 2, to=to)


class Mortal(RuleBasedStateMachine):
    """A store against dictionaries that note when each item was set: whatever is deleted behind users' backs, and whenever
    it is restored, nobody can tell.
    """

    def __init__(self) -> None:
        super().__init__()
        self.store, self.chains, self.now = store(), Chains(), 0
        self.model: dict[tuple[str, str], dict[Any, tuple[int, int]]] = {}

    def live(self, name: str, key: str) -> dict[Any, tuple[int, int]]:
        items = self.model.setdefault((name, key), {})
        for sub in [sub for sub, (at, _) in items.items() if self.now >= at + TTL_US]:
            del items[sub]
        return items

    @rule(by=st.integers(-20, 60))
    def a_record(self, by: int) -> None:
        """Of another time, perhaps out of order."""
        self.now = max(self.now + by * MS, 0)
        self.store.expiry.at(self.now)
        self.now = self.store.expiry.now_us

    @rule(name=st.sampled_from("vm"), key=st.sampled_from(["a", "bb"]), item=st.integers(0, 3), value=st.integers(0, 9))
    def set(self, name: str, key: str, item: int, value: int) -> None:
        sub = None if name == "v" else (item,)
        self.store.expiry.at(self.now)
        self.store.set(name, key, sub, value)
        items = self.live(name, key)
        items.pop(sub, None)
        last = max((at for at, _ in items.values()), default=self.now) if name == "m" else self.now
        items[sub] = (max(last, self.now), value)

    @rule(name=st.sampled_from("vm"), key=st.sampled_from(["a", "bb"]), item=st.integers(0, 3), gone=st.booleans())
    def look(self, name: str, key: str, item: int, gone: bool) -> None:
        self.store.expiry.at(self.now)
        if name == "m":
            assert self.store.count(name, key) == len(self.live(name, key))
            assert self.store.subs(name, key) == list(self.live(name, key))
        sub = None if name == "v" else (item,)
        wanted = self.live(name, key).get(sub)
        assert self.store.get(name, key, sub) == (wanted[1] if wanted is not None else None)
        if gone:
            assert self.store.delete(name, key, sub) == (self.live(name, key).pop(sub, None) is not None)

    @rule(behind=st.integers(0, 20))
    def watermark(self, behind: int) -> None:
        """No record that is older comes any more."""
        reached = self.now - behind * MS
        self.store.expiry.reach(reached)
        self.now = max(self.now, reached)
        self.store.expire()

    @rule()
    @precondition(lambda self: not self.store.dirty_bytes())
    def restore(self) -> None:
        fresh = store()
        for slice, image, digest in self.chains.images():
            fresh.load(slice, image, digest)
        fresh.expiry.reach(self.store.expiry._reached_us)
        fresh.expiry.at(self.now)
        self.store = fresh

    @rule()
    def cut(self) -> None:
        self.chains.take(self.store.changes())


Mortal.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
test_nobody_can_tell_when_expired_state_is_deleted = Mortal.TestCase


def filled(keys: int, ttl_us: int | None = TTL_US) -> KeyedStore:
    made = store(ttl_us)
    for i in range(keys):
        made.expiry.at(i)
        made.set("v", i, None, i)
    return made


def test_what_has_expired_is_deleted_some_at_a_time_and_then_there_is_none() -> None:
    full = filled(5 * AT_ONCE)
    full.changes()
    full.expire()  # twice as much as was set may go at once, if it had expired
    assert full.nbytes == filled(5 * AT_ONCE).nbytes
    full.expiry.reach(2 * TTL_US)
    gone, more = list[int](), True
    while more:
        more = full.expire()
        gone.append(sum(change.deletes.num_rows for change in full.changes()))
    assert gone == 5 * [AT_ONCE], "from the checkpoint too"
    assert full.nbytes == 0 and not full.expiry._buckets and not full.expiry._due, "nothing is left of it"


def test_deleting_keeps_up_with_what_is_set() -> None:
    full = filled(10 * AT_ONCE)
    full.expire()
    for turn in range(20):
        for i in range(2 * AT_ONCE):
            full.expiry.at(2 * TTL_US + turn)
            full.set("v", ("new", turn, i), None, 0)
        full.expiry.reach(2 * TTL_US + turn)
        full.expire()
    assert not full.expiry.behind


def test_setting_again_and_deleting_leave_nothing_behind() -> None:
    one = store()
    for i in range(10_000):
        one.expiry.at(i * TTL_US // 64)
        one.set("v", "hot", None, i)
        one.set("m", "queue", i, i)
        one.delete("m", "queue", i)
        one.expiry.reach(i * TTL_US // 64)
        one.expire()
    assert sum(map(len, one.expiry._buckets.values())) == 1
    assert len(one.expiry._due) == len(one.expiry._buckets) <= 2 * 66


def test_another_ttl_holds_for_what_is_there() -> None:
    old = store(TTL_US)
    old.expiry.at(0)
    old.set("v", "a", None, "kept")
    shorter = restored(old, store(TTL_US // 2))
    shorter.expiry.at(TTL_US // 2 - 1)
    assert shorter.get("v", "a") == "kept"
    shorter.expiry.at(TTL_US // 2)
    assert shorter.get("v", "a") is None


def test_a_ttl_can_be_taken_away_and_given_later() -> None:
    old = store(TTL_US)
    old.expiry.at(0)
    old.set("v", "a", None, "kept")
    for_ever = restored(old, store(None))
    assert for_ever.get("v", "a") == "kept"
    for_ever.set("v", "bb", None, "since")
    for_ever.set("v", "a", None, "again")
    later = restored(for_ever, store(TTL_US))
    assert (later.get("v", "a"), later.get("v", "bb")) == ("again", "since")
    later.expiry.reach(100 * TTL_US)
    assert not later.expire()
    stored = [stored for part in later._parts.values() for stored, _ in part.entries.values()]
    assert list(map(date_of, stored)) == 2 * [100 * TTL_US]
    later.expiry.at(101 * TTL_US - 1)
    assert (later.get("v", "a"), later.get("v", "bb")) == ("again", "since"), "it counts as set when it was found"
    later = restored(later, store(TTL_US))
    later.expiry.reach(102 * TTL_US + TTL_US // 64)
    assert not later.expire() and later.nbytes == 0


def test_slices_that_move_take_their_dates_along() -> None:
    giver, taker = store(), store()
    for key in ("a", "bb"):
        giver.expiry.at(10 * MS)
        giver.set("v", key, None, key)
    whole = giver.nbytes
    moved(giver, slices_of(["a"])[0], to=taker)
    giver.give_away(frozenset(slices_of(["a"])))
    assert giver.nbytes + taker.nbytes == whole
    for one, key in ((giver, "bb"), (taker, "a")):
        one.expiry.at(10 * MS + TTL_US - 1)
        assert one.get("v", key) == key
        one.expiry.reach(2 * TTL_US)
        assert not one.expire() and one.nbytes == 0


@pytest.mark.parametrize("noted", [True, False])
def test_what_is_given_away_is_forgotten_by_expiry_slice_by_slice(noted: bool) -> None:
    """``noted``: whether entries have dates, or come from when there was no time to live."""
    giver = filled(2 * AT_ONCE)
    if not noted:
        giver = restored(filled(2 * AT_ONCE, None), store())
        giver.expiry.reach(TTL_US)
    given, kept = slices_of([7])[0], slices_of([77, 777])
    giver.changes()
    giver.give_away(frozenset({given}))
    some = giver.expiry._buckets.values() if noted else [giver.expiry._undated]
    assert {slice for by_slice in some for slice in by_slice} == set(kept)
    giver.expiry.reach(4 * TTL_US)
    while giver.expire():
        pass
    assert giver.nbytes == 0 and not giver.expiry._buckets and not giver.expiry._undated
    assert {change.slice for change in giver.changes()} == set(kept), "what another has is not deleted here"


def test_slices_that_come_back_expire_by_what_they_bring() -> None:
    here, there = store(), store()
    here.expiry.at(0)
    here.set("v", "a", None, "old")
    (slice,) = slices_of(["a"])
    moved(here, slice, to=there)
    here.give_away(frozenset({slice}))
    there.expiry.at(TTL_US // 2)
    there.set("v", "a", None, "new")
    moved(there, slice, to=here)
    here.expiry.reach(TTL_US + TTL_US // 64)
    assert not here.expire() and here.get("v", "a") == "new"
    here.expiry.reach(2 * TTL_US)
    assert not here.expire() and here.nbytes == 0 and not here.expiry._due


def test_a_changed_in_place_value_is_found_with_a_ttl_too() -> None:
    one = KeyedStore("step", slices_of, ttl_us={"v": TTL_US}, debug=True)
    one.expiry.at(0)
    one.set("v", "a", None, [1])
    one.get("v", "a")
    one.changes()
    one.get("v", "a").append(2)
    with pytest.raises(hr.StateError, match="was changed in place without set"):
        one.changes()


# in jobs

MODES = ("realtime", "microbatch", "batch")
STATE = {"v": hr.value(ttl="10 ms"), "q": hr.queue(ttl="10 ms"), "m": hr.mapping(ttl="10 ms")}


def act(record: Record, state: Any, out: Emit) -> None:
    said = (state["v"].get("-"), list(state["q"]), len(state["q"]), dict(state["m"].items()), "x" in state["m"])
    if record["set"]:
        state["v"].set(record["t"])
        state["q"].append(record["t"])
        state["m"].set("xy"[record["t"] % 2], record["t"])
    out({"k": record["k"], "t": record["t"], "said": repr(said)})


def job(script: list[Any], state: Any = STATE, fn: Any = act, lateness: str = "6 ms", **options: Any) -> hr.Job:
    made = hr.Job("job")
    returns = {"k": "str", "t": "int", "said": "str"}
    s = made.source("s", scripted(script), event_time="t", lateness=lateness)
    s.key_by("k").process(fn, name="p", state=state, returns=returns, **options).sink("out", out())
    return made


def record(t: int, k: str = "a", set: bool = True) -> Record:
    return {"k": k, "t": t, "set": set}


SCRIPT = [
    record(0), record(9, set=False), record(9, "b"), PAUSE, record(10, set=False), record(11), record(14),
    record(12), record(21, set=False), PAUSE, record(22, set=False), record(23, set=False), record(24, set=False),
    record(18, "b", set=False), record(19, "b", set=False), record(18, "b", set=False), PAUSE, record(100, "c"),
    record(101, "c", set=False), record(20, set=False), record(96, "b"), record(104, "b", set=False),
    record(106, "b", set=False), record(109, "b", set=False),
]  # fmt: skip
SAID = [
    ("a", 0, ("-", [], 0, {}, False)),
    ("a", 9, (0, [0], 1, {"x": 0}, True)),
    ("b", 9, ("-", [], 0, {}, False)),
    ("a", 10, ("-", [], 0, {}, False)),
    ("a", 11, ("-", [], 0, {}, False)),
    ("a", 14, (11, [11], 1, {"y": 11}, False)),
    ("a", 12, (14, [11, 14], 2, {"y": 11, "x": 14}, True)),
    ("a", 21, (12, [14, 12], 2, {"x": 12}, True)),  # the queue's 12 lives as long as the 14 before it
    ("a", 22, ("-", [14, 12], 2, {}, False)),
    ("a", 23, ("-", [14, 12], 2, {}, False)),
    ("a", 24, ("-", [], 0, {}, False)),
    ("b", 18, (9, [9], 1, {"y": 9}, False)),
    ("b", 19, ("-", [], 0, {}, False)),
    ("b", 18, ("-", [], 0, {}, False)),  # what has expired once is gone
    ("c", 100, ("-", [], 0, {}, False)),
    ("c", 101, (100, [100], 1, {"x": 100}, True)),
    ("a", 20, ("-", [], 0, {}, False)),
    ("b", 96, ("-", [], 0, {}, False)),
    ("b", 104, (96, [96], 1, {"x": 96}, True)),
    ("b", 106, ("-", [], 0, {}, False)),
    ("b", 109, ("-", [], 0, {}, False)),
]


def said(rows: list[Row]) -> list[tuple[str, int, Any]]:
    return [(row["k"], row["t"], eval(row["said"])) for row in rows]


@pytest.mark.parametrize("poll_rows", [1, 1000])
@pytest.mark.parametrize("mode", MODES)
def test_state_expires_by_the_time_of_records_in_every_mode(mode: Any, poll_rows: int) -> None:
    rows = run_local(job(SCRIPT), mode=mode, poll_rows=poll_rows, parallelism=1)["out"]
    assert sorted(said(rows), key=repr) == sorted(SAID, key=repr)


def test_it_expires_after_restarts_as_before(tmp_path: Path) -> None:
    """Each batch is another driver's, so all of it comes from the checkpoint."""
    rows: list[Row] = []
    for _ in range(10):
        run = LocalRun(job(SCRIPT), tmp_path, mode="microbatch", parallelism=1)
        try:
            run.batch()
            rows = run.rows("out")
            if run.finished:
                break
        finally:
            run.close()
    assert sorted(said(rows), key=repr) == sorted(SAID, key=repr)


@pytest.mark.parametrize("mode", MODES)
def test_timers_find_what_their_time_allows(mode: Any) -> None:
    """A value that is set by a record at 0 for 10 ms, and looked for by timers at 9 and 10."""

    def begin(record: Record, state: Any, out: Emit) -> None:
        if record["set"]:
            state["v"].set("kept")
            for after in ("9 ms", "10 ms"):
                state.timer(after=after, tag=after)
            state.timer(after="1 h", tag="late", clock="processing")

    def ring(timer: Any, state: Any, out: Emit) -> None:
        out({"k": timer.tag, "t": 0, "said": state["v"].get("-")})

    made = job([record(0), record(1000, set=False)], {"v": hr.value(ttl="10 ms")}, begin, on_timer=ring)
    rows = run_local(made, mode=mode, poll_rows=1)["out"]
    answers = {row["k"]: row["said"] for row in rows}
    assert len(rows) == 3 and (answers["9 ms"], answers["10 ms"]) == ("kept", "-")


def operator(tmp_path: Path, state: dict[str, Any], *, event_time: str | None = "t") -> Process:
    made = hr.Job("job")
    s = made.source("s", scripted([record(0)]), event_time=event_time)
    s.key_by("k").process(act, name="p", state=state, returns={"said": "str"}).sink("out", out())
    plan = plan_job(made, tmp_path, Settings.of())
    built = build_operator(plan, plan.graph.by_name["p"], Guard("p", "fail"))
    assert isinstance(built, Process)
    return built


def test_without_event_time_the_clock_goes_on(tmp_path: Path) -> None:
    """No watermark comes from such sources; what nobody asks for is deleted all the same."""
    for event_time, left in ((None, 0), ("t", 1)):
        one = operator(tmp_path, {"v": hr.value(ttl="64 s")}, event_time=event_time)
        one.store.expiry.at(10**15)
        one.store.set("v", "a", None, "kept")
        one.on_clock(10**15 + 74 * 10**6)
        assert one.store.nbytes > 0, "a record may still be under way"
        one.on_clock(10**15 + 76 * 10**6)
        assert bool(one.store.nbytes) == bool(left)


def test_a_step_asks_for_its_turn_while_there_is_more_to_delete(tmp_path: Path) -> None:
    one = operator(tmp_path, {"v": hr.value(ttl="64 ms")})
    for i in range(3 * AT_ONCE):
        one.store.expiry.at(i)
        one.store.set("v", str(i), None, 0)
    one.on_clock(5)
    assert one.next_clock_us() is None
    one.watermark(0, TTL_US * 2)
    turns = 0
    while one.next_clock_us() is not None:
        one.on_clock(6 + turns)
        turns += 1
    assert turns == 2 and one.store.nbytes == 0


def test_the_end_of_the_input_is_no_time(tmp_path: Path) -> None:
    """A job may be given more input: what it keeps is as old as the last record then, not infinitely old."""
    rows = run_local(job([record(0), record(1, set=False)]), mode="batch", parallelism=1)["out"]
    assert len(rows) == 2
    one = operator(tmp_path, {"v": hr.value(ttl="64 ms")})
    one.store.expiry.at(0)
    one.store.set("v", "a", None, 0)
    one.watermark(0, 2**62)
    one.on_clock(7)
    assert one.store.nbytes > 0


def test_what_a_ttl_may_be() -> None:
    with pytest.raises(hr.GraphError, match=r"hr.value: ttl='0 s' must be more than zero; leave it out to keep state"):
        hr.value(ttl="0 s")
    with pytest.raises(UnitError, match="ttl 'a day' is not a duration"):
        hr.mapping(ttl="a day")
    with pytest.raises(hr.GraphError, match=r"state 'v' must be hr.value\(\), hr.queue\(\) or hr.mapping\(\)"):
        job(SCRIPT, {"v": "value"})
    made = job(SCRIPT, {"v": hr.value(ttl="90 s"), "m": hr.mapping()})
    assert describe(made.graph().by_name["p"]) == "process by k, state v for 1.5 min, m"
