"""Windowed operators under any interleaving of partitions, watermarks, batches, chunks, epochs and restores.

No threads here: Hypothesis chooses what an operator sees next, and its results must be those of the
reference, which knows no order between partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import reference as ref
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import NEVER_US, Seen

import headrace as hr
from headrace.driver.schemafinding import _of, _step
from headrace.graph.nodes import JoinNode, ReduceNode
from headrace.graph.windowing import FOREVER_US, Interval, SessionWindow, TimeWindow
from headrace.runtime.batch import Batch
from headrace.runtime.build import build_reduce
from headrace.runtime.operators.boundedjoin import BoundedIntervalJoin
from headrace.runtime.operators.intervaljoin import IntervalJoin
from headrace.runtime.operators.joins import Join, join_schema
from headrace.runtime.operators.operator import Operator
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.reduce.forms import Forms
from headrace.runtime.reduce.paned import PanedReduce
from headrace.runtime.reduce.reduce import Place
from headrace.runtime.wire.edges import Combiner
from headrace.state.durable.changes import Change, digest_of, merge_chain
from headrace.state.hashing import slices_of
from headrace.state.table.rowtable import Partials

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
SLICES = 3
GUARD = Guard("step", "fail")


class Catcher:
    """The end of the line: keeps rows, and checks that nothing comes behind a watermark that it was given."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.watermark_us = NEVER_US

    def receive(self, port: int, batch: Batch) -> None:
        assert batch.times.min() >= self.watermark_us, "a result behind the watermark would be late downstream"
        self.rows += batch.records.to_pylist()

    def watermark(self, port: int, watermark_us: int) -> None:
        assert watermark_us > self.watermark_us
        self.watermark_us = watermark_us


class Rig:
    """One operator with its checkpoint."""

    def __init__(self, make: Callable[[], Operator]) -> None:
        self.make, self.catcher = make, Catcher()
        self.chains: dict[tuple[str, int], list[Change]] = {}
        self.operator = self._fresh()

    def _fresh(self) -> Operator:
        operator = self.make()
        operator.feed(self.catcher)
        for part, store in operator.stores().items():
            for (owner, slice), chain in self.chains.items():
                if owner == part:
                    image = merge_chain([c.puts for c in chain], [c.deletes for c in chain])
                    assert digest_of(image) == chain[-1].digest
                    store.load(slice, image, chain[-1].digest)
        operator.restored(list(range(SLICES)))
        operator.begin()
        return operator

    def stored(self, part: str) -> int:
        """How many rows the checkpoint holds."""
        chains = [chain for (owner, _), chain in self.chains.items() if owner == part]
        return sum(merge_chain([c.puts for c in chain], [c.deletes for c in chain]).num_rows for chain in chains)

    def chunk(self) -> None:
        for part, store in self.operator.stores().items():
            dirty = store.dirty_bytes()
            changes = store.changes()
            assert bool(dirty) >= bool(changes)
            for change in changes:
                self.chains.setdefault((part, change.slice), []).append(change)

    def cut(self, *, end: bool) -> None:
        self.operator.on_cut(end=end)
        self.chunk()

    def begin(self, *, restore: bool) -> None:
        """Another attempt, from the last cut: with what is in memory, or with what was stored."""
        self.catcher.watermark_us = NEVER_US
        if restore:
            self.operator = self._fresh()
        else:
            self.operator.begin()


def batch_of(members: list[Seen]) -> Batch:
    records = pa.RecordBatch.from_pylist([one.record for one in members], schema=SCHEMA)
    late = np.array([one.late_us for one in members]) if members[0].late_us > NEVER_US else None
    return Batch(records, np.array([one.time_us for one in members]), 0, late)


@st.composite
def partitions(draw: st.DrawFn, keys: tuple[str | None, ...] = ("a", "b")) -> tuple[list[list[tuple[Any, int]]], int]:
    time = st.integers(0, 40)
    part = st.lists(st.tuples(st.sampled_from(keys), time), max_size=12)
    return draw(st.lists(part, min_size=1, max_size=3)), draw(st.sampled_from([0, 3, 10]))


def play(rig: Rig, parts: list[list[Seen]], lateness: int, data: st.DataObject, ports: int = 1) -> None:
    """Hand over records in their partition's order, watermarks as they become true, cuts and restarts at any time."""
    at = [0] * len(parts)
    newest = [NEVER_US] * len(parts)

    def expecting(port: int) -> int:
        mine = [p for p in range(len(parts)) if p % ports == port or ports == 1]
        reached = [FOREVER_US if at[p] >= len(parts[p]) else newest[p] - lateness for p in mine]
        return min(reached, default=FOREVER_US)

    while any(at[p] < len(part) for p, part in enumerate(parts)):
        action = data.draw(
            st.sampled_from(["records", "records", "records", "watermark", "chunk", "cut", "batch", "restore"])
        )
        if action == "records":
            p = data.draw(st.sampled_from([p for p in range(len(parts)) if at[p] < len(parts[p])]))
            n = data.draw(st.integers(1, 3))
            taken = parts[p][at[p] : at[p] + n]
            at[p] += len(taken)
            for late in (False, True):  # sources hand over late records by themselves
                some = [one for one in taken if (one.late_us > NEVER_US) == late]
                if some:
                    rig.operator.receive(p % ports, batch_of(some))
            newest[p] = max(newest[p], *(one.time_us for one in taken))
        elif action == "watermark":
            for port in range(ports):
                rig.operator.watermark(port, expecting(port))
        elif action == "chunk":
            rig.chunk()
        else:
            rig.cut(end=action == "batch")
            if action != "cut":
                rig.begin(restore=action == "restore")
    for port in range(ports):
        rig.operator.watermark(port, FOREVER_US)
    rig.cut(end=True)
    rig.begin(restore=True)


def entering(parts: list[list[tuple[str, int]]], lateness: int) -> list[list[Seen]]:
    return [
        ref.enter([[{"k": k, "v": 100 * p + i, "t": t} for i, (k, t) in enumerate(part)]], lateness, unit_us=1)
        for p, part in enumerate(parts)
    ]


def reduce_rig(window: Any, **reducers: Any) -> Rig:
    node = ReduceNode("step", ("k",), window, tuple(reducers.items()), ("before",))
    sample = pa.RecordBatch.from_pylist([{"k": "a", "v": 1}], schema=SCHEMA)
    schema = _step(node, [_of(sample.schema, sample)], None, None).schema
    return Rig(lambda: build_reduce(node, SCHEMA, schema, GUARD, Place(SLICES), eager=True))


PLAIN = hr.reducer(init=int, update=lambda n, r: n + 1)
WINDOWS = {
    f"{kind} {size}/{every}": (size, every, reducer)
    for size, every in ((10, 10), (10, 3), (12, 4), (7, 5))
    for kind, reducer in (("paned", hr.count()), ("direct", PLAIN))
}


# chronostream facts 1 and 23, cmr facts 1, 2, 3, 5 and 7: any order of partitions, watermarks, epochs and restores
@pytest.mark.parametrize("shape", WINDOWS)
@given(partitions(), st.data())
@settings(max_examples=15)
def test_time_windows(shape: str, made: tuple[list[list[tuple[str, int]]], int], data: st.DataObject) -> None:
    size, every, reducer = WINDOWS[shape]
    parts = entering(*made)
    window = TimeWindow(size, every)
    rig = (
        reduce_rig(window, n=reducer, vs=hr.collect_list("v"))
        if reducer is not PLAIN
        else reduce_rig(window, n=reducer)
    )
    play(rig, parts, made[1], data)
    reducers: ref.Reducers = {"n": ref.count()}
    if reducer is not PLAIN:
        reducers["vs"] = ref.collected("v")
    seen = [one for part in parts for one in part]
    assert ref.bag(rig.catcher.rows) == ref.bag(ref.time_windows(seen, ["k"], size, every, reducers))
    ends = [row["window_end"] for row in rig.catcher.rows]
    assert ends == sorted(ends)
    assert not any(rig.stored(part) for part in ("", "rest")), "state of windows that have ended"


class Flipping(Forms):
    """Panes or windows by a flip of a coin, value by value."""

    def __init__(self, window: TimeWindow, flips: st.DataObject) -> None:
        super().__init__(window)
        self._flips = flips

    def in_panes(self, panes: Any) -> Any:
        return np.array([self._flips.draw(st.booleans()) for _ in panes])


# cmr fact 18: with and without Combine, equal answers; the form may change at any value, epoch or restore
@pytest.mark.parametrize("partial", [False, True], ids=["records", "partials"])
@given(partitions(), st.sampled_from([(10, 3), (12, 4), (7, 5), (9, 1)]), st.data())
@settings(max_examples=25)
def test_panes_or_windows_is_the_same(
    partial: bool, made: tuple[list[list[tuple[str, int]]], int], shape: tuple[int, int], data: st.DataObject
) -> None:
    parts, window = entering(*made), TimeWindow(*shape)
    reducers = {"n": hr.count(), "mean": hr.mean("v"), "vs": hr.collect_list("v"), "last": hr.last("v")}
    rig = reduce_rig(window, **reducers)
    make = rig.make

    def flipping() -> Operator:
        operator = make()
        assert isinstance(operator, PanedReduce)
        operator.forms = Flipping(window, data)
        if partial:
            operator.receive = partly(operator, window)  # type: ignore[method-assign]
        return operator

    rig.make = flipping
    rig.cut(end=True)
    rig.begin(restore=True)
    play(rig, parts, made[1], data)
    seen = [one for part in parts for one in part]
    wanted: ref.Reducers = {"n": ref.count(), "mean": ref.mean("v"), "vs": ref.collected("v"), "last": ref.last("v")}
    assert ref.bag(rig.catcher.rows) == ref.bag(ref.time_windows(seen, ["k"], *shape, wanted))
    ends = [row["window_end"] for row in rig.catcher.rows]
    assert ends == sorted(ends)
    assert not any(rig.stored(part) for part in ("", "rest")), "state of windows that have ended"


def partly(operator: PanedReduce, window: TimeWindow) -> Callable[[int, Batch], None]:
    """On-time records reach the operator as partials, as if combined before the shuffle."""
    table = operator.new_table()
    combiner, as_records = Combiner(Partials(table.key_fields, table.accumulators), ("k",), window), operator.receive

    def receive(port: int, batch: Batch) -> None:
        made = combiner.combine(batch) if batch.late is None else None
        if made is None:
            as_records(port, batch)
        else:
            combiner.resting = 0
            operator.receive_partial(port, made, batch.born_us)

    return receive


@given(partitions(), st.data())
@settings(max_examples=80)
def test_sessions(made: tuple[list[list[tuple[str, int]]], int], data: st.DataObject) -> None:
    parts = entering(*made)
    rig = reduce_rig(SessionWindow(5), n=hr.count(), vs=hr.collect_list("v"))
    play(rig, parts, made[1], data)
    seen = [one for part in parts for one in part]
    expected = ref.sessions(seen, ["k"], 5, {"n": ref.count(), "vs": ref.collected("v")})
    assert ref.bag(rig.catcher.rows) == ref.bag(expected)


@pytest.mark.parametrize("first", [0, 1])
def test_a_late_record_joins_the_same_session_in_any_order(first: int) -> None:
    """12 came when its partition's watermark was 16: the session of 10 and 11 had ended for it by then."""
    members = [Seen({"k": "a", "v": 1}, 10), Seen({"k": "a", "v": 2}, 12, late_us=16), Seen({"k": "a", "v": 3}, 11)]
    rig = reduce_rig(SessionWindow(5), n=hr.count())
    for one in members if first else reversed(members):
        rig.operator.receive(0, batch_of([one]))
    rig.operator.watermark(0, FOREVER_US)
    expected = ref.sessions(members, ["k"], 5, {"n": ref.count()})
    assert ref.bag(rig.catcher.rows) == ref.bag(expected) and sorted(row["n"] for row in expected) == [1, 2]


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
@given(partitions(), st.data())
@settings(max_examples=25)
def test_joins(how: Any, made: tuple[list[list[tuple[str, int]]], int], data: st.DataObject) -> None:
    parts = entering(*made)
    node = JoinNode("step", ("k",), TimeWindow(10, 6), how, ("l", "r"))
    rig = Rig(lambda: Join(node, (SCHEMA, SCHEMA), join_schema(node, SCHEMA, SCHEMA), SLICES))
    play(rig, parts, made[1], data, ports=2)
    left, right = ([one for p, part in enumerate(parts) if p % 2 == side for one in part] for side in (0, 1))
    expected = ref.join(left, right, ["k"], how, 10, 6, (SCHEMA.names, SCHEMA.names))
    assert ref.bag(rig.catcher.rows) == ref.bag(expected)
    assert not rig.stored("left") and not rig.stored("right")


class Shifting(Rig):
    """Two operators as one, each with slices of its own; at cuts slices go from one to the other."""

    def __init__(self, make: Callable[[], Operator], data: st.DataObject) -> None:
        self.data, self.owner = data, np.zeros(SLICES, np.int64)
        super().__init__(make)

    def _fresh(self) -> Any:
        self.halves = [self.make() for _ in range(2)]
        catchers = [Catcher() for _ in self.halves]
        for half, catcher in zip(self.halves, catchers):
            catcher.rows = self.catcher.rows
            half.feed(catcher)
            half.begin()
        for slice in range(SLICES):
            self._load(self.halves[self.owner[slice]], slice)
        for index, half in enumerate(self.halves):
            half.restored(np.flatnonzero(self.owner == index).tolist())
        return self

    def _load(self, half: Operator, slice: int) -> None:
        for part, store in half.stores().items():
            if chain := self.chains.get((part, slice)):
                image = merge_chain([c.puts for c in chain], [c.deletes for c in chain])
                assert digest_of(image) == chain[-1].digest
                store.load(slice, image, chain[-1].digest)

    def receive(self, port: int, batch: Batch) -> None:
        owners = self.owner[slices_of([batch.records.column("k")], SLICES)]
        for index, half in enumerate(self.halves):
            half.receive(port, batch.where(owners == index))

    def watermark(self, port: int, watermark_us: int) -> None:
        for half in self.halves:
            half.watermark(port, watermark_us)

    def chunk(self) -> None:
        for half in self.halves:
            for part, store in half.stores().items():
                for change in store.changes():
                    assert change.parent == (
                        chain[-1].digest if (chain := self.chains.get((part, change.slice))) else (0, 0)
                    )
                    self.chains.setdefault((part, change.slice), []).append(change)

    def cut(self, *, end: bool) -> None:
        for half in self.halves:
            half.on_cut(end=end)
        self.chunk()
        moved = self.data.draw(st.sets(st.integers(0, SLICES - 1)))
        for index, half in enumerate(self.halves):
            half.give_away(frozenset(slice for slice in moved if self.owner[slice] == index))
        for slice in moved:
            self.owner[slice] = 1 - self.owner[slice]
            self._load(self.halves[self.owner[slice]], slice)
            self.halves[self.owner[slice]].adopted(frozenset({slice}))

    def begin(self, *, restore: bool) -> None:
        for half in self.halves:
            for catcher, _ in half.outputs:
                catcher.watermark_us = NEVER_US
        if restore:
            self._fresh()
        else:
            for half in self.halves:
                half.begin()


INTERVALS = st.sampled_from([(0, 0), (3, 3), (0, 8), (8, 0), (2, 7), (100, 100)])


class Squeezed(BoundedIntervalJoin):
    """Its memory is full at any time, or endless."""

    def __init__(self, data: st.DataObject, *args: Any) -> None:
        super().__init__(*args)
        self.data = data

    def _keep(self, *args: Any) -> None:
        self._near_bytes = self.data.draw(st.sampled_from([0, 2**60]))
        super()._keep(*args)


@pytest.mark.parametrize("place", ["one subtask", "slices that move", "beyond memory"])
@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
@given(partitions(("a", "b", None)), INTERVALS, st.data())
@settings(max_examples=40)
def test_interval_joins(
    how: Any, place: str, made: tuple[list[list[tuple[Any, int]]], int], bounds: tuple[int, int], data: st.DataObject
) -> None:
    parts = entering(*made)
    node = JoinNode("step", ("k",), Interval(*bounds), how, ("l", "r"), memory_bytes=100_000)

    made_here: list[Operator] = []

    def make() -> Operator:
        kind: Any = partial(Squeezed, data) if place == "beyond memory" else IntervalJoin
        made_here.append(kind(node, (SCHEMA, SCHEMA), join_schema(node, SCHEMA, SCHEMA), SLICES))
        return made_here[-1]

    rig = Shifting(make, data) if place == "slices that move" else Rig(make)
    play(rig, parts, made[1], data, ports=2)
    left, right = ([one for p, part in enumerate(parts) if p % 2 == side for one in part] for side in (0, 1))
    expected = ref.interval_join(left, right, ["k"], how, *bounds, (SCHEMA.names, SCHEMA.names))
    assert ref.bag(rig.catcher.rows) == ref.bag(expected)
    assert not any(rig.stored(part) for part in rig.make().stores()), "records whose time has passed"
    for operator in made_here:
        operator.close()


@given(partitions(), st.data())
@settings(max_examples=60)
def test_versions(made: tuple[list[list[tuple[str, int]]], int], data: st.DataObject) -> None:
    """The last version of a window has every record that came within keep; versions count from zero."""
    parts = entering(*made)
    window = TimeWindow(10, 10, versioned=True, keep_us=12)
    rig = reduce_rig(window, n=hr.count())
    rig.catcher.receive = lambda port, batch: rig.catcher.rows.extend(batch.records.to_pylist())  # type: ignore[method-assign]
    play(rig, parts, made[1], data)
    kept = [Seen(one.record, one.time_us, one.late_us - 12) for part in parts for one in part]
    expected = ref.time_windows(kept, ["k"], 10, 10, {"n": ref.count()})
    latest = ref.last_per(rig.catcher.rows, "k", "window_end")
    extra = ("version", "completeness")
    assert ref.bag([{k: v for k, v in row.items() if k not in extra} for row in latest]) == ref.bag(expected)
    for row in latest:
        same = [r for r in rig.catcher.rows if (r["k"], r["window_end"]) == (row["k"], row["window_end"])]
        assert [r["version"] for r in same] == list(range(len(same)))
        assert [r["completeness"] for r in same] == pytest.approx([same[0]["n"] / r["n"] for r in same])


def test_a_session_that_reaches_back_before_zero_is_restored_as_it_was() -> None:
    """Extras of a session may be negative; a restored row has them as they were, not the larger of them and zero."""
    rig = reduce_rig(SessionWindow(5), n=hr.count())
    rig.operator.receive(0, batch_of([Seen({"k": "a", "v": 1}, 3)]))
    rig.cut(end=True)
    rig.begin(restore=True)
    rig.operator.receive(0, batch_of([Seen({"k": "a", "v": 2}, -1)]))
    rig.operator.watermark(0, FOREVER_US)
    assert [row["n"] for row in rig.catcher.rows] == [2]
