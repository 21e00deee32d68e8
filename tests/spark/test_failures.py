"""What users see when something goes wrong on real Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

import headrace as hr
from headrace.errors import ConfigError, UserCodeError
from headrace.testing import CRASH, PAUSE, scripted

ROWS = [{"k": i % 3, "v": i, "ts": i * 100} for i in range(60)]


def _fails_at_40(record: dict[str, Any]) -> dict[str, Any]:
    if record["v"] == 40:
        raise ValueError("forty is too much")
    return record


def _job(rows: Any, **options: Any) -> hr.Job:
    job = hr.Job("failing", **options)
    checked = job.source("rows", rows, event_time="ts").map(
        _fails_at_40, name="check", returns={"k": "int64", "v": "int64", "ts": "int64"}
    )
    checked.key_by("k").window(hr.tumbling("1 s")).reduce(name="n", n=hr.count()).sink("out", hr.rows())
    return job


def test_an_exception_names_step_record_and_line_and_stops_the_job(spark: Any) -> None:
    with pytest.raises(UserCodeError) as caught:
        hr.run(_job(scripted(ROWS)), spark=spark)
    message = str(caught.value)
    assert "step 'check'" in message
    line = _fails_at_40.__code__.co_firstlineno + 2
    assert f"test_failures.py:{line} in _fails_at_40" in message
    assert "'v': 40" in message
    assert "forty is too much" in message


def test_skipped_records_are_counted_and_become_dead_letters(spark: Any, tmp_path: Any) -> None:
    job = _job(scripted(ROWS), dead_letter=hr.jsonl(tmp_path / "dead"))
    run = hr.start(job, spark=spark, checkpoint=tmp_path / "checkpoint")
    run.wait()
    assert sum(row["n"] for row in run.rows("out")) == len(ROWS) - 1
    assert run.status().counters["skipped:check"] == 1
    letters = "".join(path.read_text() for path in sorted((tmp_path / "dead").glob("part-*.jsonl")))
    assert letters.count("\n") == 1
    assert "forty is too much" in letters


def test_a_crashed_worker_is_restarted_and_answers_are_exact(spark: Any, tmp_path: Any) -> None:
    rows = [*ROWS[:20], PAUSE, *ROWS[20:30], CRASH, *ROWS[30:40], *ROWS[41:]]
    run = hr.start(_job(scripted(rows, flags=tmp_path / "flags")), spark=spark, checkpoint=tmp_path / "checkpoint")
    run.wait()
    assert run.status().restarts == 1
    assert "CRASH at item" in _why_restarted(run)
    expected: dict[tuple[int, int], int] = {}
    for row in ROWS:
        if row["v"] != 40:
            key = (row["k"], row["ts"] // 1000)
            expected[key] = expected.get(key, 0) + 1
    got = {(row["k"], int(row["window_start"].timestamp())): row["n"] for row in run.rows("out")}
    assert got == expected
    assert len(run.rows("out")) == len(expected)


# fault plan 3
@pytest.mark.parametrize("moment_s", [0.2, 0.8])
def test_a_worker_that_hangs_is_noticed_by_its_lease_and_answers_are_exact(
    spark: Any, tmp_path: Any, moment_s: float
) -> None:
    job = hr.Job("hanging")
    source = hr.generate(lambda n: {"k": n % 5}, rate="500/s", total=3500)
    job.source("items", source).key_by("k").reduce(name="n", n=hr.count()).sink("out", hr.rows())
    run = hr.start(job, spark=spark, checkpoint=tmp_path, lease="3 s")
    _until(lambda: run.status().cuts >= 1 and len(run.worker_pids()) == 4)
    time.sleep(moment_s)  # soon after a cut, and shortly before one
    victim = run.worker_pids()[-1]
    os.kill(victim, signal.SIGSTOP)
    _until(lambda: run.status().restarts == 1)
    run.wait()
    assert "no sign of life for 3 s" in _why_restarted(run)
    assert {row["k"]: row["n"] for row in sorted(run.rows("out"), key=lambda row: row["n"])} == dict.fromkeys(
        range(5), 700
    )
    _until(lambda: not psutil.pid_exists(victim))


def _why_restarted(run: Any) -> str:
    """What the journal says of the first restart; of a busy machine it may say other things before."""
    return next(event.detail for event in run.decisions() if event.what == "restart")


def _kill_at_work(run: Any) -> None:
    """Kill a worker; again, if it had no subtask any more, so that nobody misses it."""
    while run.status().restarts == 0:
        assert run.status().state in ("running", "restarting")
        pids = [pid for pid in run.worker_pids() if psutil.pid_exists(pid)]
        if pids:
            os.kill(pids[-1], signal.SIGKILL)
        deadline = time.monotonic() + 1.5
        while run.status().restarts == 0 and time.monotonic() < deadline:
            time.sleep(0.05)


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# fault plan 16
def test_a_second_run_is_refused_and_the_first_unharmed(spark: Any, tmp_path: Any) -> None:
    """A notebook's cell that is run twice; another job beside it; a session that is not given. A clean stop leaves only
    rows that are logged, also where they are shown as they are produced.
    """
    out = tmp_path / "out"

    def counting(name: str) -> hr.Job:
        job = hr.Job(name)
        source = hr.generate(lambda n: {"k": n % 2}, rate="100/s")
        counts = job.source("items", source).key_by("k").reduce(name="n", n=hr.count())
        counts.sink("out", hr.jsonl(out, when="as_produced"))
        return job

    with pytest.raises(ConfigError, match="this process has a Spark session that is not Headrace's"):
        hr.start(counting("live"))
    run = hr.start(counting("live"), spark=spark, checkpoint=tmp_path / "state")
    try:
        assert hr.running() == [run]
        for options in ({"spark": spark, "checkpoint": tmp_path / "state"}, {"spark": spark}, {}):
            with pytest.raises(ConfigError, match=r"job 'live' runs already: stop it first, hr.running\(\)\[0\].stop"):
                hr.start(counting("live"), **options)
            with pytest.raises(ConfigError, match="job 'other' cannot run beside job 'live'.* start both together"):
                hr.collect(counting("other"), seconds=1, mode="microbatch", **options)
        before = run.status().cuts
        while run.status().cuts == before:
            assert not run.wait(0.05), "the run ended too early"
    finally:
        run.stop()
    assert hr.running() == []
    assert run.status().state == "stopped"
    assert not [*out.glob("live-*")] and not [*out.glob("_staging/*/*")]
    shown = [json.loads(line) for part in out.glob("part-*.jsonl") for line in part.read_text().splitlines()]
    last = {row["k"]: row["n"] for row in sorted(shown, key=lambda row: row["n"])}
    assert sum(last.values()) == run.status().counters["in:items"]
    assert run.status().restarts == 0
    assert run.status().cuts >= 1


def test_a_stopped_job_goes_on_where_it_was(spark: Any, tmp_path: Any) -> None:
    def make() -> hr.Job:
        job = hr.Job("resumed")
        source = hr.generate(lambda n: {"k": n % 5, "n": n}, rate="400/s", total=2400)
        totals = job.source("items", source).key_by("k").reduce(name="n", n=hr.count(), total=hr.sum("n"))
        totals.sink("out", hr.rows())
        return job

    first = hr.start(make(), spark=spark, checkpoint=tmp_path, seconds=2)
    first.wait()
    second = hr.start(make(), spark=spark, checkpoint=tmp_path)
    second.wait()
    last: dict[int, tuple[int, int]] = {}
    for row in sorted(second.rows("out"), key=lambda r: r["n"]):
        last[row["k"]] = (row["n"], row["total"])
    assert first.status().state == "stopped"
    assert second.status().state == "finished"
    assert last == {k: (480, sum(range(k, 2400, 5))) for k in range(5)}


def test_a_users_session_is_checked_for_what_it_lacks(tmp_path: Any) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "from pyspark.sql import SparkSession\n"
        "import headrace as hr\n"
        "session = SparkSession.builder.master('local[6]').config('spark.ui.enabled', 'false')"
        ".config('spark.driver.host', '127.0.0.1').getOrCreate()\n"
        "job = hr.Job('own')\n"
        "rows = job.source('rows', hr.generate(lambda n: {'k': n % 2}, total=100))\n"
        "rows.key_by('k').reduce(name='n', n=hr.count()).sink('out', hr.rows())\n"
        "try:\n    hr.run(job, spark=session)\nexcept hr.HeadraceError as error:\n    print('REFUSED', error)\n"
        "print('BATCH', sorted((r['k'], r['n']) for r in hr.collect(job, spark=session)))\n"
        "session.stop()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=500, check=False)
    assert "spark.shuffle.streaming.networkBufferMaxWaitTimeMs = 1" in done.stdout, done.stderr[-2000:]
    assert "spark.python.unix.domain.socket.enabled = true" in done.stdout
    assert "BATCH [(0, 50), (1, 50)]" in done.stdout


# scalla fact 39, on Spark: state beyond memory, a killed worker, and the engine's choice in the journal
def test_state_beyond_memory_survives_a_killed_worker(spark: Any, tmp_path: Any) -> None:
    job = hr.Job("bounded")
    source = hr.generate(lambda n: {"k": (n * 7919) % 6000}, rate="6000/s", total=60_000)
    counted = job.source("items", source).key_by("k").window(hr.whole_input())
    counted.reduce(name="n", state=hr.keep(memory="300 KB"), n=hr.count()).sink("out", hr.rows())
    run = hr.start(job, spark=spark, checkpoint=tmp_path, chunk="500 ms")
    _until(lambda: run.status().cuts >= 1 and len(run.worker_pids()) == 4)
    _kill_at_work(run)
    run.wait()
    assert run.status().restarts >= 1
    assert {row["k"]: row["n"] for row in run.rows("out")} == dict.fromkeys(range(6000), 10)
    assert any(event.what == "engine" and "step 'n'" in event.detail for event in run.decisions())
