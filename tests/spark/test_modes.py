"""Real-time, micro-batch and batch mode on real Spark give the answers of plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing import PAUSE, LocalRun, run_local, scripted
from tests.spark.jobs import JOBS, canonical, near, sliding_stats, tumbling_count, word_count


# chronostream fact 37, cmr fact 26
@pytest.mark.parametrize("make", JOBS, ids=lambda make: make.__name__)
def test_three_modes_give_the_reference_answer(make: Any, spark: Any) -> None:
    answers = {}
    for mode in ("realtime", "microbatch", "batch"):
        job, expected = make()
        rows = hr.collect(job, by_sink=True, mode=mode, spark=spark)
        answers[mode] = {name: canonical(part) for name, part in rows.items()}
        assert next(iter(answers[mode].values())) == canonical(expected), mode
    assert answers["realtime"] == answers["microbatch"] == answers["batch"]


# in realtime mode: test_failures
@pytest.mark.parametrize("mode", ["microbatch", "batch"])
def test_seconds_end_a_run_cleanly_and_the_next_goes_on(mode: Any, spark: Any, tmp_path: Any) -> None:
    """The input is large enough for hours: all that was read until the end is in the results, also of a batch."""
    job = hr.Job("long")
    numbers = job.source("numbers", hr.generate(lambda n: {"k": n % 3}, rate="2000/s", total=10**9, partitions=1))
    numbers.key_by("k").reduce(name="counts", n=hr.count()).sink("out", hr.rows())
    read = 0
    for _ in range(2):
        run = hr.run(job, mode=mode, seconds=1, spark=spark, checkpoint=tmp_path, parallelism=1)
        assert run.status().state == "stopped"
        counted = run.status().counters["in:numbers"]
        assert counted > 0
        read += counted
        last = {row["k"]: row["n"] for row in sorted(run.rows("out"), key=lambda row: row["n"])}
        assert sum(last.values()) == read


def test_an_interval_join_is_the_same_as_without_spark(spark: Any) -> None:
    made, expected = near()
    (local,) = run_local(made).values()
    assert canonical(local) == canonical(expected)
    assert canonical(hr.collect(near()[0], mode="realtime", spark=spark, commit="500 ms")) == canonical(expected)


@pytest.mark.parametrize("mode", ["realtime", "batch"])
def test_jobs_that_run_together(mode: str, spark: Any) -> None:
    """One query, in which the clicks are read once: each job has its own answers."""
    made = [tumbling_count(), sliding_stats(), word_count()]
    run = hr.start([job for job, _ in made], mode=mode, spark=spark, collecting=True)
    try:
        run.wait()
        assert ("sliding-stats.clicks", "tumbling-count.clicks") in run.plan.graph.shared
        for job, expected in made:
            (sink,) = [name for name in run.plan.graph.by_name if name.startswith(job.name) and "collected" in name]
            assert canonical(run.rows(sink)) == canonical(expected), job.name
    finally:
        run.delete_temporary_checkpoint()


def test_dataframe_source_in_batch_mode(spark: Any) -> None:
    frame = spark.range(0, 1000, 1, 3).selectExpr("id % 7 as k", "id as v", "timestamp_millis(id * 10) as at")
    job = hr.Job("frame")
    rows = job.source("rows", hr.dataframe(frame), event_time="at")
    rows.key_by("k").window(hr.tumbling("5 s")).reduce(name="n", n=hr.count(), total=hr.sum("v"))
    got = {(r["k"], r["window_start"].timestamp()): (r["n"], r["total"]) for r in hr.collect(job, spark=spark)}
    expected: dict[Any, tuple[int, int]] = {}
    for i in range(1000):
        key = (i % 7, i * 10 // 5000 * 5.0)
        n, total = expected.get(key, (0, 0))
        expected[key] = (n + 1, total + i)
    assert got == expected


def test_streaming_dataframe_in_microbatch_mode(spark: Any, tmp_path: Any) -> None:
    for i in range(3):
        spark.range(i * 100, i * 100 + 100).selectExpr("id % 5 as k", "id as v").coalesce(1).write.mode("append").json(
            str(tmp_path / "in")
        )
    stream = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", "1").json(str(tmp_path / "in"))
    job = hr.Job("stream-frame")
    totals = job.source("rows", hr.dataframe(stream)).key_by("k").reduce(name="total", n=hr.count(), s=hr.sum("v"))
    totals.sink("out", hr.rows())
    run = hr.start(job, mode="microbatch", spark=spark)
    try:
        wanted = {k: (60, sum(range(k, 300, 5))) for k in range(5)}
        for _ in range(600):
            last = {row["k"]: (row["n"], row["s"]) for row in sorted(run.rows("out"), key=lambda r: r["n"])}
            if last == wanted or run.wait(0.1):
                break
        assert last == wanted
    finally:
        run.stop()
        run.delete_temporary_checkpoint()


def test_state_is_a_dataframe_of_a_session(spark: Any, tmp_path: Path) -> None:
    """Values, lists, structs, times and JSON text as Spark's types; the checkpoint itself needs no Spark."""

    def remember(record: dict[str, Any], state: Any, out: Any) -> None:
        state["n"].set(record["n"])
        state["all"].append(record["n"])
        state["by"].set(record["n"], {"any": 1})
        state.timer(after="1 h")

    def ring(timer: Any, state: Any, out: Any) -> None:
        """Not before the input has ended."""

    job = hr.Job("state")
    records = [{"k": "ab"[n % 2], "n": n, "t": n} for n in range(6)]
    source = job.source("s", scripted([*records, PAUSE, {"k": "c", "n": 6, "t": 6}]), event_time="t")
    states = {"n": hr.value(ttl="1 day"), "all": hr.queue(), "by": hr.mapping()}
    source.key_by("k").process(remember, name="p", state=states, on_timer=ring, returns={"n": "int"})
    run = LocalRun(job, tmp_path, mode="microbatch")
    try:
        run.batch()
    finally:
        run.close()
    frame = hr.read_state(tmp_path, "p", spark=spark)
    wanted = (
        "k",
        "n",
        "all",
        "by[2].item as item",
        "by[2].value as v",
        "unix_millis(n_set_at) as at",
        "timers[0].clock as c",
    )
    a, _ = sorted(frame.selectExpr(*wanted).collect())
    assert a.asDict() == {"k": "a", "n": 4, "all": [0, 2, 4], "item": 4, "v": '{"any": 1}', "at": 4, "c": "event"}
