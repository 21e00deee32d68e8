"""What ``headrace explain`` predicts of a job's constraints, without Spark."""

from __future__ import annotations

from tests.unit.measured import moments_of, of_subtask, of_worker

from headrace.measure.report import SubtaskId
from headrace.measure.trace import Observation, write

APP = """
    import headrace as hr

    def double(record):
        return {"key": record["n"] % 3, "n": 2 * record["n"]}

    job = hr.Job("bounded")
    numbers = job.source("numbers", hr.generate(lambda n: {"n": n}, rate=RATE))
    sums = numbers.map(double, name="double").key_by("key").reduce(name="sums", total=hr.sum("n"))
    sums.sink("out", hr.jsonl("out"))
    job.constrain(numbers >> sums, p99=P99)
"""


def source(rate: str | None = "2000/s", p99: str = "80 ms") -> str:
    return APP.replace("RATE", repr(rate)).replace("P99", repr(p99))


def test_explain_predicts_and_plans_each_with_its_reason(headrace, app):
    done = headrace("explain", app(source()))
    assert done.code == 0
    for telling in (
        "Constraints, by defaults",
        "can be met: 2 + 1 subtasks are the fewest that keep it, where the layout has 2 + 2",
        "predicted at 2000/s as it starts: p50 ",
        "where the time goes, in ms: numbers + double: buffer",
        "longest buffer deadlines: double → sums ",
        "budget, in proportion to what each is expected to take: double ",
    ):
        assert telling in done.out


def test_predictions_as_json(headrace, app):
    found = headrace("explain", app(source()), "--json", "--calibrate").answer["predictions"]
    assert found["costs_from"].startswith("steps measured on sample records")
    (one,) = found["constraints"]
    assert one["predicted"]["p50_ms"] < one["predicted"]["p99_ms"] < 80
    assert one["plan"]["subtasks"] == [2, 1] and one["plan"]["latency_ms"] <= 80
    assert list(one["plan"]["deadlines_ms"]) == ["double → sums"]
    assert abs(sum(part["ms"] for part in one["budget"]) - 80) < 0.01


JOINED = """
    import headrace as hr

    job = hr.Job("joined")
    left, right = (
        job.source(name, hr.generate(lambda n: {"k": n % 3, "t": n}, rate="1000/s"), event_time="t", lateness="1 s")
        for name in ("left", "right")
    )
    both = left.key_by("k")WINDOW.join(right.key_by("k"), name="both"OPTIONS)
    both.sink("out", hr.jsonl("out"))
    job.constrain(left >> both, p99="80 ms")
"""


def joined(window: str = "", options: str = "") -> str:
    return JOINED.replace("WINDOW", window).replace("OPTIONS", options)


def test_the_wait_of_windows_is_counted(headrace, app):
    """Rows of a join over windows of ten seconds do not come after 20 ms, whatever the bound is about."""
    windowed = app(joined(".window(hr.tumbling('10 s'))"))
    done = headrace("explain", windowed)
    assert (
        "both: its rows come when their window ends, up to 10 s after a record, and 1 s more, as far out of" in done.out
    )
    assert "rows of 'both' come when their windows end: p50 6" in done.out
    assert "which the bound does not count (latency='read-write' makes it count)" in done.out
    answer = headrace("explain", windowed, "--json").answer
    (one,) = answer["predictions"]["constraints"]
    assert one["predicted"]["p99_ms"] < 80
    assert one["until_rows"]["windows"] == ["both"]
    assert 6000 < one["until_rows"]["p50_ms"] < 6100 and 10_900 < one["until_rows"]["p99_ms"] < 11_000
    assert answer["waits"] == [{"step": "both", "rows": "all", "at_most_s": 10.0, "lateness_s": 1.0}]
    counted = headrace("explain", app(joined(".window(hr.tumbling('10 s'))", ", latency='read-write'")), "--json")
    (one,) = counted.answer["predictions"]["constraints"]
    assert one["predicted"]["p50_ms"] > 6000 and one["until_rows"] is None
    assert one["verdict"].startswith("cannot be met")


def test_pairs_of_an_interval_join_wait_for_nothing(headrace, app):
    answer = headrace("explain", app(joined(options=", within='1 min'")), "--json").answer
    assert answer["predictions"]["constraints"][0]["until_rows"] is None and answer["waits"] == []
    done = headrace("explain", app(joined(options=", before='0 s', after='1 min', how='left'")))
    assert "left join by k from 0 s before to 60 s after" in done.out
    assert "both: pairs come at once; a record that meets none comes 1 min after its time, and 1 s more" in done.out


def test_a_bound_that_cannot_be_met_is_refused_with_one_that_can(headrace, app):
    (one,) = headrace("explain", app(source(p99="2 ms")), "--json").answer["predictions"]["constraints"]
    assert one["verdict"].startswith("cannot be met; the smallest p99 that could is ") and one["plan"] is None
    could = one["verdict"].removeprefix("cannot be met; the smallest p99 that could is ")
    larger = f"{float(could.removesuffix(' ms')) * 1.01:.3f} ms"
    (other,) = headrace("explain", app(source(p99=larger)), "--json").answer["predictions"]["constraints"]
    assert other["verdict"].startswith("can be met")


def test_a_rate_that_no_source_says_can_be_given(headrace, app):
    path = app(source(rate=None))
    (unknown,) = headrace("explain", path, "--json").answer["predictions"]["constraints"]
    assert unknown["predicted"] is None and unknown["verdict"].startswith("unknown, because not every source says")
    (given,) = headrace("explain", path, "--json", "--rate", "500/s").answer["predictions"]["constraints"]
    assert given["rate_per_s"] == 500 and given["predicted"] is not None


def test_an_earlier_runs_trace_replaces_defaults(headrace, app, tmp_path):
    trace = tmp_path / "trace.jsonl"
    parts = [("numbers", None), ("double", moments_of(10, 4.0)), ("sums", moments_of(10, 30.0))]
    subtasks = tuple(of_subtask(SubtaskId(step, 0), 100, service_ms=service) for step, service in parts)
    with trace.open("w") as file:
        write(file, Observation(1.0, (of_worker("w", 1.0, 0, subtasks),), {}))
    found = headrace("explain", app(source(rate="200/s")), "--json", "--trace", trace).answer["predictions"]
    assert found["costs_from"] == "an earlier run"
    assert any("hold" in sentence for sentence in found["decisions"]), "one report is too little to act on"
    phases = {p["phase"]: p["mean_ms"] for p in found["constraints"][0]["predicted"]["phases"]}
    assert phases["sums + out: service"] > 3
    missing = headrace("explain", app(source()), "--json", "--trace", tmp_path / "none")
    assert missing.code != 0 and "a run writes one with trace=" in missing.out


def test_constraints_that_exclude_each_other_are_refused(headrace, app):
    twice = source() + "    job.constrain(numbers >> sums, p99='90 ms')\n"
    done = headrace("explain", app(twice), "--json")
    assert done.code == 1 and "share the edge numbers → double" in done.out


def test_without_constraints_nothing_is_predicted(headrace, app):
    done = headrace("explain", app(), "--json")
    assert "predictions" not in done.answer
