"""What subtasks measure while they work: on the real runtime, with real clocks where no clock is scripted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from acts import InActs
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.measured import moments_of
from workflows import out

import headrace as hr
from headrace.bench.metering_cost import metering_costs
from headrace.graph.stages import Edge
from headrace.measure.flows import Flow
from headrace.measure.moments import Moments, merge
from headrace.measure.recent import Recent
from headrace.measure.report import ChannelReport, Report, SubtaskReport
from headrace.measure.sketches import Latencies, merged
from headrace.runtime.batch import Batch, concat
from headrace.runtime.messages import Ordered, Reported
from headrace.runtime.metering.meter import StepMeter
from headrace.runtime.metering.tallies import Ages, Held, Tally
from headrace.runtime.orders import NO_ORDERS
from headrace.runtime.wire import edges
from headrace.runtime.wire.channelmeter import ChannelMeter, Stamp, tagged
from headrace.runtime.wire.edges import EdgeWriter
from headrace.runtime.wire.frames import Frame, decode
from headrace.testing import LocalRun

REPORT_S = 0.1


class Measured:
    """The reports of a local run."""

    def __init__(self, job: hr.Job, directory: Path, *, seconds: float = 10.0, **options: Any) -> None:
        run = LocalRun(job, directory, **{"report": f"{REPORT_S} s", "parallelism": 1, **options})
        try:
            run.run(seconds=seconds)
        finally:
            run.close()
        self.reports = [reported.report for reported in run.reports]
        self.flows = [flow for reported in run.reports for flow in reported.flows]

    def of(self, step: str) -> list[SubtaskReport]:
        return [s for r in self.reports for s in r.subtasks if s.id.step == step]

    def total(self, step: str, what: str) -> Moments | None:
        return merge(getattr(s, what) for s in self.of(step))

    def channels(self) -> list[ChannelReport]:
        return [c for r in self.reports for c in r.channels]

    def latency(self, step: str) -> Latencies:
        return merged(f.latency for f in self.flows if f.step == step and f.latency is not None)


def numbered(numbers: Any) -> dict[str, Any]:
    return {"k": np.asarray(numbers) % 7, "v": np.asarray(numbers)}


def path_job(rate: int = 3000, total: int = 3000) -> hr.Job:
    job = hr.Job("path")
    source = job.source("src", hr.generate(numbered, rate=rate, total=total))
    mapped = source.map_batch(lambda batch: batch, name="first")
    mapped.key_by("k").process(lambda r, state, emit: emit(r), name="work").sink("sink", out())
    return job


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return Measured(path_job(), tmp_path_factory.mktemp("full"), sample_share=1.0)


# latency-guarantees fact 5: sequence latency equals the sum of its element latencies; whole trips agree with it
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_tagged_records_take_as_long_as_the_sum_of_the_parts(tmp_path: Path, full: Measured, share: float) -> None:
    run = full if share == 1.0 else Measured(path_job(), tmp_path, sample_share=share)
    recent = Recent(1e9).add(run.reports, run.reports[-1].at_s)
    edge = recent.edge_parts_ms(run.channels()[0].id.edge, 0.0)
    assert edge is not None
    parts = [edge.total_ms]  # with the time that the source let records wait in place of the buffer
    parts += [recent.step_latency_ms(step, 0.0) or math.nan for step in ("first", "work", "sink")]
    whole = run.latency("sink")
    sampled = merge(c.lifetime_ms for c in run.channels())
    assert sampled is not None and sampled.n >= 10
    error_ms = math.sqrt((whole.moments.variance + run.latency("first").moments.variance) / sampled.n)
    if share == 1.0:  # nothing but which of a buffer's records has the tag is left to luck
        error_ms = min(error_ms, (0.1 * whole.mean_ms + 0.5) / 4)
    assert whole.mean_ms == pytest.approx(math.fsum(parts), abs=4 * error_ms)
    assert edge.wait_ms > 0 and edge.transfer_ms > 0 and edge.queue_ms > 0


# latency-guarantees fact 3, nephele-qos fact 1: no source has a latency, no sink a read-write one; read-ready is usual
def test_every_step_has_what_is_defined_for_it(full: Measured) -> None:
    for step in ("first", "work", "sink"):
        assert full.total(step, "latency_ms") and full.total(step, "service_ms") and full.total(step, "interarrival_ms")
        assert sum(s.items for s in full.of(step)) == 3000
    assert sum(s.items for s in full.of("src")) == 3000
    assert full.total("src", "latency_ms") is None and full.total("src", "service_ms") is None
    assert full.total("work", "queue_ms") and not full.total("sink", "queue_ms"), "a queue only where there is one"
    held = StepMeter("sink", read_write=True)
    held.leave(held.enter(5, None))
    assert held.take(0)[0].latency_ms is None


# latency-guarantees section 2.5: with one input, service equals read-ready latency; both count the same customers
def test_service_is_counted_per_buffer_and_latency_per_item(full: Measured) -> None:
    service, latency = full.total("work", "service_ms"), full.total("work", "latency_ms")
    buffers = sum(c.buffers for c in full.channels())
    assert service is not None and latency is not None
    assert service.n == buffers and latency.n == sum(c.items for c in full.channels()) == 3000
    gap = full.total("work", "interarrival_ms")
    assert gap is not None and gap.n == buffers - 1
    assert gap.mean * gap.n == pytest.approx(1000, rel=0.5), "gaps fill the second that the source took"


# latency-guarantees fact 4: emitting every T under uniform arrivals shows RW ≈ T/2 and RR ≈ compute time
def test_read_write_latency_is_half_the_window_and_read_ready_the_compute_time(tmp_path: Path) -> None:
    measured = {}
    for kind in ("read-write", "read-ready"):
        job = hr.Job("windows")
        source = job.source(
            "src", hr.generate(numbered, rate=2000, total=2400, due="at"), event_time="at", time_unit="us"
        )
        keyed = source.key_by("k").window(hr.tumbling("100 ms"))
        keyed.reduce(name="agg", n=hr.count(), latency=kind).sink("sink", out())
        run = Measured(job, tmp_path / kind, sample_share=1.0)  # of the same buffers, slow ones among them
        found, service = run.total("agg", "latency_ms"), run.total("agg", "service_ms")
        assert found is not None and service is not None
        measured[kind] = found.mean, service.mean
    assert measured["read-write"][0] == pytest.approx(50, abs=15)
    assert measured["read-ready"][0] == pytest.approx(measured["read-ready"][1], rel=0.5)
    assert measured["read-ready"][0] < 10


# nephele-qos fact 1: a 4→1 merger shows a larger latency for its first input
def test_of_items_merged_into_one_the_first_waits_longest() -> None:
    held, written = Held(), Tally()
    for at in (0, 10, 20, 30):
        held.read(at, 1)
    held.written(40, written)
    held.written(99, written)
    assert written.take(1) == moments_of(4, 25.0, 500.0), "40, 30, 20 and 10, and no more when nothing is held"


# latency-guarantees fact 9: sampled means at 10 % are within sampling error of full measurement, of the same buffers
def test_a_tenth_of_the_buffers_tells_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every, tenth = (ChannelMeter(1, StepMeter("twin"), share, Stamp()) for share in (1.0, 0.1))
    served = ChannelMeter.served

    def watched(self: ChannelMeter, frame: Frame, queued_us: int, now_us: int) -> None:
        for meter in (self, every, tenth):
            served(meter, frame, queued_us, now_us)

    monkeypatch.setattr(ChannelMeter, "served", watched)
    Measured(path_job(4000, 6000), tmp_path, flush="2 ms")
    (full,), (sampled,) = every.take(0), tenth.take(0)
    assert (sampled.items, sampled.buffers) == (full.items, full.buffers) and full.items == 6000
    assert full.lifetime_ms is not None and sampled.lifetime_ms is not None and full.lifetime_ms.n == full.buffers
    assert sampled.lifetime_ms.n == pytest.approx(full.buffers / 10, abs=2)
    for what in ("wait_ms", "lifetime_ms", "transfer_ms", "queue_ms"):
        all, some = getattr(full, what), getattr(sampled, what)
        assert abs(some.mean - all.mean) < 4 * math.sqrt(all.variance / sampled.lifetime_ms.n)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 2**31), st.sampled_from([0.01, 0.1, 0.5]))
def test_tags_are_a_share_of_any_stretch_of_a_sequence(edge: int, sender: int, first: int, share: float) -> None:
    tags = [tagged(edge, sender, sequence, share) for sequence in range(first, first + 1000)]
    assert sum(tags) == pytest.approx(1000 * share, abs=3)
    assert all(tagged(edge, sender, sequence, 1.0) for sequence in range(first, first + 100))


# latency-guarantees fact 9: exact sums equal two passes over the values
@given(st.lists(st.tuples(st.integers(-(10**9), 10**12), st.integers(1, 9)), min_size=1, max_size=40))
def test_tallies_equal_two_passes(values: list[tuple[int, int]]) -> None:
    tally, held, late = Tally(), Held(), Tally()
    for value, weight in values:
        tally.add(value, weight)
        held.read(-value, weight)
    held.written(0, late)
    each = [value for value, weight in values for _ in range(weight)]
    mean = math.fsum(each) / len(each)
    for found in (tally.take(1), late.take(1)):
        assert found is not None and found.n == len(each)
        assert found.mean == pytest.approx(mean, rel=1e-9, abs=1e-9)
        assert found.m2 == pytest.approx(math.fsum((v - mean) ** 2 for v in each), rel=1e-9, abs=1e-3)
    assert tally.take(1) is None


# latency-guarantees fact 10, nephele-qos fact 3: at most one report per worker and interval
def test_a_worker_reports_once_per_interval(full: Measured) -> None:
    workers = {report.worker for report in full.reports}
    assert len(workers) == 2
    for worker in workers:
        times = [r.at_s for r in full.reports if r.worker == worker]
        # The interval in which the sources end and the one in which the epoch does are cut short.
        assert all(b - a >= REPORT_S for a, b in pairwise(times[:-2])) and len(times) > 5
        mine = [r for r in full.reports if r.worker == worker]
        assert all(len({s.id for s in r.subtasks}) == len(r.subtasks) for r in mine)
    counted = sum(s.items for s in full.of("work"))
    assert counted == 3000, "what is reported twice, or never, would show here"


class Clock:
    """A scripted clock in µs."""

    def __init__(self) -> None:
        self.now_us = 1_000_000

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(edges, "now_us", made)
    yield made


def one(value: int, born_us: int = 0) -> Batch:
    return Batch(pa.record_batch({"v": [value]}), np.zeros(1, np.int64), born_us, tag_us=born_us)


def flush(writer: EdgeWriter) -> Frame:
    rows: list[list[bytes]] = [[]]
    writer.flush(rows)
    (frame,) = decode(b"".join(rows[0]))
    return frame


def writer_of(stamp: Stamp | None = None) -> EdgeWriter:
    edge = Edge(3, "a", "b", 0, 1, (), keyed=False)
    writer = EdgeWriter(edge, 1, 1, stamp or Stamp())
    writer.begin(0, (), 1)
    return writer


def channel(stamp: Stamp | None = None) -> ChannelMeter:
    return ChannelMeter(3, StepMeter("b"), 1.0, stamp or Stamp())


# nephele-qos fact 12: mean item wait equals lifetime/2 for regular arrivals
def test_an_item_waits_half_a_buffers_life(clock: Clock) -> None:
    writer, meter = writer_of(), channel()
    for buffer in range(5):
        for item in range(9):
            writer.receive(0, one(item))
            clock.now_us += 1000 if item < 8 else 0
        meter.served(flush(writer), clock.now_us + 2000, clock.now_us + 5000)
        clock.now_us += 3000 * buffer
    (report,) = meter.take(0)
    assert (report.items, report.buffers) == (45, 5)
    assert report.lifetime_ms == moments_of(5, 8.0) and report.wait_ms == moments_of(45, 4.0)
    assert report.transfer_ms == moments_of(45, 2.0) and report.queue_ms == moments_of(45, 3.0)
    assert report.latency_ms == 9.0
    (silent,) = meter.take(0)
    assert (silent.items, silent.buffers, silent.wait_ms) == (0, 0, None)


# nephele-qos fact 11: lifetime of one-item buffers ≈ 0, however long the next one takes to come
def test_a_buffer_of_one_item_has_no_life(tmp_path: Path) -> None:
    run = Measured(path_job(rate=100, total=60), tmp_path, flush="0 ms", poll_rows=1, sample_share=1.0)
    lifetime, gap = merge(c.lifetime_ms for c in run.channels()), run.total("work", "interarrival_ms")
    assert lifetime is not None and gap is not None
    assert lifetime.n == 60 and lifetime.mean < 2 and gap.mean > 8


def test_an_age_that_is_not_known_stays_so_on_the_wire(clock: Clock) -> None:
    writer = writer_of(Stamp(offset_us=40_000))
    writer.receive(0, Batch(pa.record_batch({"v": [1]}), np.zeros(1, np.int64), clock.now_us))
    frame = flush(writer)
    assert frame.tag_us(-1_000_000) is None and frame.born_us == clock.now_us + 40_000


@pytest.mark.parametrize("parallelism", [1, 2])
def test_results_of_records_from_before_a_restart_have_no_age_from_1970(parallelism: int, tmp_path: Path) -> None:
    """After the restart nothing comes but the end, so that windows close without any record of their own."""
    source = InActs(
        ((tuple({"k": k, "t": k} for k in range(50)), ({"k": 1, "t": 50},)),),
        pa.schema([("k", "int64"), ("t", "int64")]),
    )
    job = hr.Job("job")
    read = job.source("s", source, event_time="t")
    counts = read.key_by("k").window(hr.tumbling("1 s")).reduce(name="counts", n=hr.count())
    counts.map(dict, name="same").key_by("k").reduce(name="last", n=hr.last("n")).sink("out", out())
    source.curtain.acts = 1
    first = LocalRun(job, tmp_path, parallelism=parallelism)
    first.batch(seconds=0.1)
    first.close()
    source.curtain.acts = 2
    again = Measured(job, tmp_path, parallelism=parallelism)
    ages = [f.latency for f in again.flows if f.step in ("same", "last", "out") and f.latency is not None]
    assert all(latency.max_ms < 86_400_000 for latency in ages)


def test_transfer_is_measured_across_clocks_that_disagree(clock: Clock) -> None:
    # The sender's clock is 40 ms behind the driver's, the receiver's 1 s ahead of it.
    writer, meter = writer_of(Stamp(offset_us=40_000)), channel(Stamp(offset_us=-1_000_000))
    writer.receive(0, one(1, born_us=clock.now_us - 7000))
    frame = flush(writer)
    assert (frame.born_us, frame.tagged_us) == (clock.now_us + 33_000, clock.now_us + 33_000)
    arrives_us = clock.now_us + 40_000 + 1_000_000 + 2500
    meter.served(frame, arrives_us, arrives_us + 100)
    (report,) = meter.take(0)
    assert report.transfer_ms == moments_of(1, 2.5) and report.queue_ms == moments_of(1, 0.1)


# nephele-qos fact 10: no figure passes for one of newer settings than those of its buffers
def test_a_report_names_the_oldest_settings_of_its_interval(tmp_path: Path) -> None:
    run = LocalRun(path_job(total=300), tmp_path, parallelism=1)
    told: list[Report] = []

    class Driver:
        def tell(self, message: Reported) -> None:
            told.append(message.report)

    try:
        run.run()
        (subtask,) = run.caches[1, 0].subtasks.values()
        reporter = subtask._reporter
        attempt = run.cuts[-1].cut.manifest.token.by
        reporter.begin(0, attempt, Driver())
        (meter,) = subtask._intake.meters()
        for settings, buffers in ((0, []), (3, []), (3, [2]), (3, [3]), (4, [4])):
            subtask._obey(Ordered(attempt, replace(NO_ORDERS, version=settings)))
            for version in buffers:
                meter.served(Frame(edges.Kind.DATA, meter.edge, 0, 1, 1, settings=version), 0, 0)
            reporter.send(1_000_000, exhausted=False)
    finally:
        run.close()
    assert [report.version for report in told] == [0, 0, 2, 3, 3]


def test_a_merged_batch_keeps_the_tag_of_a_record_drawn_from_all() -> None:
    tags = [concat([_rows(9, tag_us=1), _rows(1, tag_us=2)]).tag_us for _ in range(2000)]
    assert {*tags} == {1, 2} and tags.count(2) == pytest.approx(200, abs=60)


def _rows(count: int, tag_us: int) -> Batch:
    return Batch(pa.record_batch({"v": list(range(count))}), np.zeros(count, np.int64), 0, tag_us=tag_us)


# nephele-qos section 2.3: one sample per element and interval at least
def test_a_buffer_that_is_not_tagged_counts_if_no_other_came(clock: Clock) -> None:
    writer, meter = writer_of(), ChannelMeter(3, StepMeter("b"), 0.1, Stamp())
    seen = []
    for _ in range(40):
        writer.receive(0, one(0))
        meter.served(flush(writer), clock.now_us + 2000, clock.now_us + 3000)
        (report,) = meter.take(0)
        seen.append(report.transfer_ms)
    assert seen == [moments_of(1, 2.0)] * 40
    slow_us = 9_000_000
    for _ in range(40):  # of many, only the tagged count, and not the first as well
        writer.receive(0, one(0))
        meter.served(flush(writer), clock.now_us + slow_us, clock.now_us + slow_us)
        slow_us = 2000
    (report,) = meter.take(0)
    assert report.transfer_ms == moments_of(4, 2.0)


def test_ages_are_a_fixed_share_of_records_and_never_none_where_some_came() -> None:
    ages = Ages(share=0.1)
    assert ages.take() == (None, ())
    for _ in range(1000):
        if sampled := ages.due(7):
            ages.add(4000, sampled)
    latency, values = ages.take()
    assert latency is not None and latency.n == pytest.approx(700, abs=2) and latency.mean_ms == 4.0
    assert values == (4.0,) * 64
    assert ages.due(1) == 0 and ages.unknown
    ages.add(1000, 0)
    assert not ages.unknown and ages.take()[1] == (1.0,)


def test_flows_count_what_came_and_went(full: Measured) -> None:
    flows: dict[str, list[Flow]] = {}
    for flow in full.flows:
        flows.setdefault(flow.step, []).append(flow)
    assert {step: (sum(f.items_in for f in of), sum(f.items_out for f in of)) for step, of in flows.items()} == {
        "src": (3000, 3000), "first": (3000, 3000), "work": (3000, 3000), "sink": (3000, 0),
    }  # fmt: skip
    ends = [full.latency(step).mean_ms for step in ("first", "work", "sink")]
    assert ends == sorted(ends)


def test_reporting_takes_less_than_a_hundredth_of_a_cpu() -> None:
    costs = metering_costs(buffers_per_s=500, rounds=3)
    assert costs["report_share"] < 0.01
    assert costs["measuring_share"] < 0.1, "at half a million records a second, through eight steps"
