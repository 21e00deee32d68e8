"""Reports as plain data, sketches, and traces that replay."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.measured import moments_of, of_subtask, of_worker
from tests.unit.plants import drive, job_of, line

from headrace.control.loop import decide_again
from headrace.control.topology import ControlledStep
from headrace.errors import DataError
from headrace.measure.flows import Flow, figures_of
from headrace.measure.moments import Moments
from headrace.measure.report import ChannelId, ChannelReport, Report, SubtaskId, SubtaskReport
from headrace.measure.sketches import Latencies, merged
from headrace.measure.trace import Observation, read, read_lines, write
from headrace.testing.plant import Plant
from headrace.testing.plant_model import PlantModel, StepModel, steady

MS = st.floats(-1e6, 1e9, allow_nan=False)
COUNT = st.integers(0, 2**40)
MOMENTS = st.none() | st.builds(Moments, st.integers(1, 2**40), MS, st.floats(0, 1e18))
SUBTASKS = st.builds(
    SubtaskReport, st.builds(SubtaskId, st.text(max_size=8), COUNT), COUNT, MOMENTS, MOMENTS, MOMENTS, MOMENTS,
    st.lists(MS, max_size=4).map(tuple),
)  # fmt: skip
CHANNELS = st.builds(
    ChannelReport, st.builds(ChannelId, COUNT, COUNT, COUNT), COUNT, COUNT, MOMENTS, MOMENTS, MOMENTS, MOMENTS
)
REPORTS = st.builds(
    Report, st.text(max_size=8), MS, COUNT, st.lists(SUBTASKS, max_size=3).map(tuple),
    st.lists(CHANNELS, max_size=3).map(tuple),
)  # fmt: skip


@given(REPORTS)
def test_a_report_survives_json_and_msgpack(report: Report) -> None:
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=Report) == report


@given(st.none() | st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_a_flow_survives_msgpack(values_ms: list[float] | None) -> None:
    flow = Flow("s", 3, 2, 1, None if values_ms is None else Latencies.of(values_ms))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(flow), type=Flow) == flow


@pytest.mark.parametrize("data", [{}, {"worker": "w", "at_s": 1.0, "version": 0, "subtasks": [[1]], "channels": []}])
def test_what_is_no_report_is_refused(data: dict[str, object]) -> None:
    line = json.dumps({"at_s": 1.0, "reports": [data], "parallelism": {}}) + "\n"
    with pytest.raises(DataError, match="line 1 of the trace is not an observation: .*reports"):
        list(read_lines([line]))


def test_figures_that_numpy_computed_are_written_as_numbers() -> None:
    mean = np.float64(2.5)
    report = of_worker("w", 1.0, 0, (of_subtask(SubtaskId("s", 0), 3, moments_of(3, mean)),))
    file = io.StringIO()
    write(file, Observation(1.0, (report,), {"s": 1}))
    (seen,) = read_lines([file.getvalue()])
    assert seen.reports == (report,) and type(seen.reports[0].subtasks[0].latency_ms.mean) is float  # type: ignore[union-attr]
    with pytest.raises(TypeError, match="a object is no part of a report"):
        write(file, Observation(1.0, (), {"s": object()}))  # type: ignore[dict-item]


def test_merged_sketches_have_the_quantiles_of_all_their_values() -> None:
    values = np.random.default_rng(5).lognormal(2, 1.5, 60_000)
    parts = [Latencies.of(part) for part in np.array_split(values, 40)]  # workers and intervals
    whole = merged(parts)
    assert whole.n == (parts[0] + merged(parts[1:])).n == len(values)
    assert whole.mean_ms == pytest.approx(values.mean()) and whole.moments.variance == pytest.approx(values.var())
    assert whole.max_ms == pytest.approx(values.max())
    for q, rank in ((0.5, 0.03), (0.9, 0.01), (0.99, 0.002), (0.999, 0.0005)):
        share = float((values <= whole.quantile_ms(q)).mean())
        assert share == pytest.approx(q, abs=rank)
    assert len(whole.sketch) < 8_000


def test_latencies_count_by_how_many_records_were_sampled() -> None:
    flows = [
        Flow("a", 99, 0, 0, Latencies.of([1.0] * 99)),
        Flow("a", 1, 0, 0, Latencies.of([100.0])),
        Flow("b", 5, 0, 0, None),
    ]
    figures = figures_of(flows)
    assert figures.keys() == {"a"}, "a step without a sample is left out, never zero"
    assert (figures["a"].n, figures["a"].p50_ms, figures["a"].p99_ms) == (100, 1.0, 1.0)
    assert figures["a"].mean_ms == pytest.approx(1.99)


@given(
    st.lists(st.builds(Observation, MS, st.lists(REPORTS, max_size=2).map(tuple), st.dictionaries(st.text(), COUNT)))
)
@settings(max_examples=30)
def test_a_trace_reads_as_it_was_written(cycles: list[Observation]) -> None:
    file = io.StringIO()
    for seen in cycles:
        write(file, seen)
    assert list(read_lines(io.StringIO(file.getvalue()))) == cycles


# latency-guarantees fact 37: a recorded statistics trace gives identical decisions, also from a file
def test_decisions_replay_from_a_trace_on_disk(tmp_path: Path) -> None:
    topology = line(ControlledStep("work", 2, 1, 6))
    job = job_of(topology, 40.0)
    run = drive(job, Plant(topology, PlantModel({"src": steady(300)}, {"work": StepModel(4.0)}), seed=7), 12)
    path = tmp_path / "trace.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for seen in run.seen:
            write(file, seen)
    assert any(run.decisions)
    assert [cycle.decisions for cycle in decide_again(job, read(path))] == run.decisions


def test_a_trace_that_a_crash_cut_off_ends_before_and_a_broken_line_is_named() -> None:
    file = io.StringIO()
    for at_s in (1.0, 2.0):
        write(file, Observation(at_s, (), {"a": 1}))
    whole = file.getvalue()
    assert [seen.at_s for seen in read_lines(io.StringIO(whole[:-3]))] == [1.0]
    with pytest.raises(DataError, match="line 2 of the trace"):
        list(read_lines(io.StringIO(whole.replace('"at_s":2.0', '"at":2.0'))))
