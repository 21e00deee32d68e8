"""Running results, count windows and sessions in bounded memory: those of the same step without a bound."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import reference as ref
from acts import InActs, in_acts, play
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.connect.callback import callback
from headrace.errors import GraphError
from headrace.graph.nodes import ReduceNode
from headrace.graph.render import render
from headrace.graph.stages import lay_out
from headrace.graph.validate import validate
from headrace.graph.windows import FOREVER_US, NEVER_US, CountWindow, SessionWindow
from headrace.runtime.batch import Batch
from headrace.runtime.build import build_reduce
from headrace.runtime.keyed import KeyedReduce
from headrace.runtime.reducing import Place
from headrace.runtime.usercode import Guard
from headrace.state.changes import digest_of, merge_chain
from headrace.testing import run_local

MORE = int(os.environ.get("HEADRACE_EXAMPLES", "1"))
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
REDUCERS = {"n": hr.count(), "total": hr.sum("v")}
LISTS = {"vs": hr.collect("v")}
NO_COMBINE = {"u": hr.reducer(init=list, update=lambda s, r: [*s, r["v"]], finalize=lambda s: str(s))}
WINDOWS: dict[str, Any] = {"running": None, "count": CountWindow(3), "session": SessionWindow(100)}
ENGINES = ["auto", "inc", "dinc", "dinc-space-saving", "dinc-marker"]


class Out:
    """Takes a step's results; looks at the step's memory whenever one comes."""

    def __init__(self, operator: KeyedReduce) -> None:
        self._operator = operator
        self.rows: list[dict[str, Any]] = []
        self.times: list[int] = []
        self.watermark_us = NEVER_US
        self.peak_bytes = 0
        operator.outputs.append((self, 0))

    def receive(self, port: int, batch: Batch) -> None:
        assert batch.times.min() >= self.watermark_us, "a result that is older than what was promised"
        self.rows += batch.records.to_pylist()
        self.times += batch.times.tolist()
        if self._operator.deferring is not None:
            self.peak_bytes = max(self.peak_bytes, self._operator.deferring.nbytes)

    def watermark(self, port: int, watermark_us: int) -> None:
        self.watermark_us = max(self.watermark_us, watermark_us)


def step(window: str, spill: Path, reducers: dict[str, Any] = REDUCERS, **options: Any) -> tuple[KeyedReduce, Out]:
    """A reduce step by itself, and what it emits."""
    node = ReduceNode("r", ("k",), WINDOWS[window], tuple(reducers.items()), ("rows",), **options)
    bounds = [("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))] if window == "session" else []
    kinds = {"n": pa.int64(), "total": pa.int64(), "vs": pa.list_(pa.int64()), "u": pa.string()}
    out = pa.schema([("k", pa.int64()), *bounds, *((name, kinds[name]) for name in reducers)])
    made = build_reduce(node, SCHEMA, out, Guard("r", "fail"), Place(4, spill), eager=True)
    assert isinstance(made, KeyedReduce)
    return made, Out(made)


def feed(operator: KeyedReduce, keys: Any, times: Any = None) -> None:
    keys = np.asarray(keys, np.int64)
    times = np.zeros(len(keys), np.int64) if times is None else np.asarray(times, np.int64)
    records = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(np.arange(len(keys)))], schema=SCHEMA)
    operator.process(0, Batch(records, times, 0))


def finish(operator: KeyedReduce) -> None:
    operator.watermark(0, FOREVER_US)
    operator.on_epoch_end()
    operator.close()


def answers(out: Out, window: str) -> Any:
    """What must be equal: the last running result of each key; of the others all, and a key's in order."""
    if window == "running":
        return sorted(map(str, ref.last_per(out.rows, "k")))
    return sorted(map(str, out.rows))


def chunks_of(operator: KeyedReduce, chains: dict[tuple[str, int], list[Any]]) -> None:
    for name, store in operator.stores().items():
        for change in store.changes():
            chains.setdefault((name, change.slice), []).append(change)


def load(operator: KeyedReduce, chains: dict[tuple[str, int], list[Any]]) -> None:
    for name, store in operator.stores().items():
        for slice, chain in [(slice, chain) for (of, slice), chain in chains.items() if of == name]:
            image = merge_chain([c.puts for c in chain], [c.deletes for c in chain])
            assert digest_of(image) == chain[-1].digest
            store.load(slice, image, chain[-1].digest)
    operator.restored([0, 1, 2, 3])


@st.composite
def epochs(draw: st.DrawFn) -> list[list[tuple[list[int], list[int], int]]]:
    """Epochs of batches: keys, times, and the watermark after them. Times go on; nothing is older than promised."""
    made, now = [], 0
    for _ in range(draw(st.integers(1, 4))):
        batches = []
        for _ in range(draw(st.integers(0, 4))):
            keys = draw(st.lists(st.integers(0, draw(st.sampled_from([3, 40]))), min_size=1, max_size=60))
            times = [now + draw(st.sampled_from([0, 0, 20, 90, 250])) for _ in keys]
            now += draw(st.sampled_from([0, 40, 150, 400]))
            batches.append((keys, times, now))
        made.append(batches)
    return made


# scalla facts 1, 2, 3 and 39: any input, memory, cuts, borders of epochs, chunks and restores into other memory
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("engine", ["auto", "inc", "dinc", "dinc-marker"])
@pytest.mark.parametrize("reducers", [REDUCERS, LISTS, NO_COMBINE], ids=["sums", "lists", "no combine"])
@given(epochs(), st.data())
@settings(max_examples=12 * MORE, phases=[Phase.generate], deadline=None)
def test_equal_to_the_step_without_a_bound(
    tmp_path_factory: Any, window: str, engine: str, reducers: Any, script: Any, data: st.DataObject
) -> None:
    if window == "session" and reducers is NO_COMBINE:
        return  # refused by the graph: sessions are merged
    spill = tmp_path_factory.mktemp("spill")
    free, expected = step(window, spill, reducers)
    memory = st.sampled_from([100, 4_000, 12_000, 100_000])
    bounded, got = step(window, spill, reducers, memory_bytes=data.draw(memory), engine=engine)
    chains: dict[tuple[str, int], list[Any]] = {}
    for batches in script:
        for operator in (free, bounded):
            operator.begin_epoch()
        for keys, times, watermark_us in batches:
            for operator in (free, bounded):
                feed(operator, keys, times)
                operator.watermark(0, watermark_us)
            if data.draw(st.booleans()):
                chunks_of(bounded, chains)
        for operator in (free, bounded):
            operator.on_epoch_end()
        if window != "session":
            assert answers(got, window) == answers(expected, window), "all is told when an epoch ends"
        chunks_of(bounded, chains)
        if data.draw(st.booleans()):
            bounded.close()
            rows = got.rows
            bounded, got = step(window, spill, reducers, memory_bytes=data.draw(memory), engine=engine)
            got.rows = rows
            load(bounded, chains)
    for operator in (free, bounded):
        finish(operator)
    assert answers(got, window) == answers(expected, window)
    assert not [path for path in spill.rglob("*") if path.is_file()]
