"""Every mode, any number of subtasks, epochs and restarts: the results of the plain-Python reference."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import reference as ref
import workflows
from acts import InActs, in_acts, play
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from reference import Record, Row
from soaking import MORE

import headrace as hr
from headrace.testing import run_local

MODES = ("realtime", "microbatch", "batch")
Workflow = Callable[[Any, Sequence[Sequence[Record]], int], tuple[hr.Job, workflows.Expected]]
WORKFLOWS = [workflows.all_reducers, workflows.all_windows, workflows.all_steps]
_START = datetime(2024, 5, 1, tzinfo=UTC).replace(tzinfo=None)


@st.composite
def scripts(draw: st.DrawFn) -> list[list[Record]]:
    """One to three partitions of records, roughly in order of time, some far behind."""
    numbers = st.one_of(st.none(), st.integers(-9, 9))
    record = st.fixed_dictionaries(
        {
            "k": st.sampled_from(["a", "b", "c", None]),
            "v": numbers,
            "x": st.one_of(st.none(), st.sampled_from([float("nan"), -0.0]), st.integers(-8, 8).map(lambda i: i / 4)),
            "w": st.one_of(st.none(), st.text("abé", max_size=3)),
            "at": st.one_of(st.none(), st.integers(0, 5).map(lambda i: _START + timedelta(milliseconds=i))),
        }
    )
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        records, now = [], draw(st.integers(0, 500))
        for made in draw(st.lists(record, max_size=25)):
            now += draw(st.sampled_from([0, 1, 10, 40, 120, 400]))
            records.append(made | {"t": max(now - draw(st.sampled_from([0, 0, 0, 30, 100, 300, 900])), 0)})
        parts.append(records)
    return parts


def assert_equal(got: dict[str, list[Row]], expected: workflows.Expected) -> None:
    """Rows as bags; running results by their last row per key; quantiles within 1 %."""
    assert set(got) == set(expected)
    for sink, rows in got.items():
        if sink in ("running-out", "process-out"):
            rows = ref.last_per(rows, *(c for c in ("k", "v") if sink == "running-out" or c == "k"))
        wanted = expected[sink]
        quantiles = [name for name in workflows.QUANTILES if rows and name in rows[0]]
        assert ref.bag(_without(rows, quantiles)) == ref.bag(_without(wanted, quantiles)), sink
        for name in quantiles:
            near = {_place(row): row[name] for row in wanted}
            for row in rows:
                exact = near[_place(row)]
                assert row[name] == (None if exact is None else pytest.approx(exact, rel=0.01 + 1e-9)), (sink, name)


def _without(rows: list[Row], names: list[str]) -> list[Row]:
    return [{k: v for k, v in row.items() if k not in names} for row in rows]


def _place(row: Row) -> tuple[Any, Any]:
    return row["k"], row.get("window_end")


# chronostream fact 37, cmr fact 26: equal results in all modes
# cmr fact 1: any number of workers with random delays; cmr fact 6: slides that do not divide sizes
# cmr fact 7: reduce behind reduce; cmr fact 8: forks with their own windows; cmr fact 18: with and without combine
@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda w: w.__name__)
@given(parts=scripts(), lateness=st.sampled_from([0, 50, 400]), seed=st.integers(0, 99), data=st.data())
@settings(max_examples=3 * MORE, phases=[Phase.generate])
def test_any_mode_gives_the_reference(
    workflow: Workflow, parts: list[list[Record]], lateness: int, seed: int, data: st.DataObject
) -> None:
    source = in_acts(parts, workflows.SCHEMA, 1, 0)
    job, expected = workflow(source, parts, lateness)
    for mode in MODES:
        subtasks, slices = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 3, 16]))
        rows, share = data.draw(st.sampled_from([1, 4, 1000])), data.draw(st.booleans())
        options: dict[str, Any] = {"parallelism": subtasks, "slices": slices, "poll_rows": rows, "share": share}
        assert_equal(run_local(job, mode=mode, seed=seed, flush="1 ms", **options), expected)


# chronostream fact 1: any slice count, subtask count and schedule of restarts gives the reference
# chronostream fact 30: another number of subtasks needs no rewriting of state
@pytest.mark.parametrize("mode", ["realtime", "microbatch"])
@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda w: w.__name__)
@given(parts=scripts(), lateness=st.sampled_from([0, 50, 400]), seed=st.integers(0, 10**6), acts=st.integers(2, 4))
@settings(max_examples=2 * MORE, phases=[Phase.generate])
def test_epochs_and_restarts_change_nothing(
    workflow: Workflow, mode: str, parts: list[list[Record]], lateness: int, seed: int, acts: int
) -> None:
    source: InActs = in_acts(parts, workflows.SCHEMA, acts, seed)
    job, expected = workflow(source, parts, lateness)
    with tempfile.TemporaryDirectory() as checkpoint:
        options: dict[str, Any] = {"slices": 7, "poll_rows": 5, "flush": "1 ms", "share": seed % 3 > 0}
        got = play(job, source, Path(checkpoint), mode=mode, acts=acts, seed=seed, **options)
    assert_equal(got, expected)
