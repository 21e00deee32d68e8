"""The commands that start Spark: each mode once, and what happens when something goes wrong or is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

FIGURES = {
    "items", "items_per_s", "p50_ms", "p99_ms", "p999_ms", "max_ms", "lost", "duplicated", "wrong", "seconds", "cpu_s",
    "peak_rss_mb", "load_1m", "epochs", "cuts", "longest_gap_ms",
}  # fmt: skip

ENDLESS = """
    import headrace as hr

    def key(record):
        return {"key": record["n"] % 3, "n": record["n"]}

    job = hr.Job("endless")
    numbers = job.source("numbers", hr.generate(lambda n: {"n": n}, rate="500/s"))
    numbers.map(key, name="key").key_by("key").reduce(name="count", n=hr.count()).sink("out", hr.jsonl("out"))
"""


def expected_sums() -> set[tuple[int, int, int]]:
    return {(k, 1000, sum(2 * n for n in range(k, 3000, 3))) for k in range(3)}


def test_a_bounded_job_runs_to_its_end(command, app, published, tmp_path):
    app("def twice(n):\n    return 2 * n\n", name="arithmetic.py")
    app(
        """
        import arithmetic
        import headrace as hr

        def double(record):
            if record["n"] == 7:
                print("seven was here")
            return {"key": record["n"] % 3, "n": arithmetic.twice(record["n"])}

        job = hr.Job("small")
        numbers = job.source("numbers", hr.generate(lambda n: {"n": n}, total=3000))
        keyed = numbers.map(double, name="double").key_by("key").window(hr.whole_input())
        keyed.reduce(name="sums", n=hr.count(), total=hr.sum("n")).sink("out", hr.jsonl("out"))
        if __name__ == "__main__":
            hr.run(job)
        """
    )
    done = command("run", "app.py", "--mode", "batch", "--json")
    assert done.code == 0, done.err
    assert {(r["key"], r["n"], r["total"]) for r in published(tmp_path / "out")} == expected_sums()
    answer = done.answer
    assert set(answer) >= FIGURES
    assert (answer["ok"], answer["state"], answer["items"]) == (True, "finished", 3000)
    assert answer["epochs"] == answer["cuts"] >= 1
    assert "seven was here" in done.err
    assert done.err.startswith("planning the job and starting Spark …\n")
    assert f"\nresults of out: JSON lines in {tmp_path / 'out'}, on_commit" in done.err
    assert "\ncheckpoint: " in done.err and "(temporary: deleted at the end" in done.err
    assert "small finished: 3,000 records" in done.err
    assert "log4j" not in done.err


def test_microbatches_end_with_their_seconds_and_without_noise(command, app, published, tmp_path):
    app(ENDLESS)
    done = command("run", "app.py", "--mode", "microbatch", "--seconds", "3", "--json")
    assert done.code == 0, done.err
    assert done.answer["state"] == "stopped" and done.answer["cuts"] >= 1
    assert sum(latest_counts(published(tmp_path / "out")).values()) == done.answer["items"] > 0
    assert "Error" not in done.err and "gap:" not in done.err and "loaded:" not in done.err


def test_a_stopped_job_commits_and_goes_on(command, started, app, published, tmp_path):
    """SIGTERM in the middle of a real-time run; then the same checkpoint again."""
    app(ENDLESS)
    running = started("run", "app.py", "--checkpoint", "state", "--parallelism", "1", "--json")
    running.wait_for(lambda: any((tmp_path / "out" / "_staging").glob("*/*/*.jsonl")))
    first = running.end(signal.SIGTERM)
    assert first.code == 0, first.err
    assert first.answer["state"] == "stopped"
    assert first.answer["cuts"] >= 1
    assert first.answer["p50_ms"] > 0
    assert first.answer["cut_max_ms"] >= first.answer["cut_ms"] > 0 and first.answer["cut_age_s"] >= 0
    assert "Traceback" not in first.err
    before = latest_counts(published(tmp_path / "out"))
    assert sum(before.values()) == first.answer["items"]

    second = command("run", "app.py", "--checkpoint", "state", "--parallelism", "1", "--seconds", "2", "--json")
    assert second.code == 0, second.err
    assert second.answer["items"] >= 1000
    after = latest_counts(published(tmp_path / "out"))
    assert sum(after.values()) == first.answer["items"] + second.answer["items"]

    versions = command("state", "ls", "state", "--json").answer["versions"]
    assert versions[-1]["offsets"]["numbers"]["0"]["next"] == sum(after.values())
    assert command("state", "show", "state", "--json").answer["broken"] == 0


def test_an_interrupt_while_spark_starts_leaves_nothing_behind(started, app, tmp_path):
    """Ctrl-C as soon as there is a JVM, which would not notice that nobody waits for it any more."""
    app(ENDLESS)
    running = started("run", "app.py", "--json")
    command = psutil.Process(running.process.pid)

    def jvms():
        return [child for child in command.children(recursive=True) if "java" in child.name()]

    running.wait_for(jvms)
    below = command.children(recursive=True)
    ended = running.end(signal.SIGINT)
    assert (ended.code, ended.answer["state"]) == (0, "stopped")
    assert "endless stopped before it began" in ended.err and "Traceback" not in ended.err
    assert psutil.wait_procs(below, timeout=60)[1] == []


def test_a_failing_function_is_named_with_record_and_line(command, app):
    app(
        """
        import headrace as hr

        def fragile(record):
            return {"n": 1 // (record["n"] - 1500)}

        job = hr.Job("fragile")
        job.source("numbers", hr.generate(lambda n: {"n": n}, total=3000)).map(fragile, name="invert").sink(
            "out", hr.console()
        )
        """
    )
    done = command("run", "app.py", "--mode", "batch", "--json")
    assert done.code == 1
    assert done.answer["kind"] == "UserCodeError"
    assert done.answer["state"] == "failed"
    assert "error: step 'invert' failed at app.py:5 in fragile" in done.err
    assert "ZeroDivisionError" in done.err
    assert "{'n': 1500}" in done.err
    assert "Traceback" not in done.err


def test_demo(command, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = command("demo", "--headless", "--seconds", "8", "--json", TMPDIR=str(scratch))
    assert done.code == 0, done.err
    answer = done.answer
    assert set(answer) >= FIGURES
    assert (answer["lost"], answer["duplicated"], answer["wrong"]) == (0, 0, 0)
    assert answer["state"] == "finished"
    assert answer["items"] > 2000
    assert answer["p50_ms"] is not None
    assert answer["hottest"]
    assert "counted exactly once" in done.err
    assert list(scratch.glob("headrace-*")) == []


def test_doctor_tries_real_time_mode(command):
    done = command("doctor", "--json")
    assert done.code == 0, done.err
    checks = {check["name"]: check["found"] for check in done.answer["checks"]}
    assert "Spark 4.3" in checks["Spark"]
    assert "2000 records" in checks["real-time mode"]


def latest_counts(rows: list[dict[str, int]]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for row in rows:
        counts[row["key"]] = max(counts.get(row["key"], 0), row["n"])
    return counts


@pytest.mark.parametrize(("bound", "code"), [("1 ms", 3), ("20 s", 0)])
def test_a_violated_constraint_is_told_by_the_exit_code(command, app, tmp_path, bound, code):
    app(
        f"""
        import headrace as hr

        job = hr.Job("bounded")
        numbers = job.source("numbers", hr.generate(lambda n: {{"n": n, "k": n % 3}}, rate="500/s", total=4000))
        counts = numbers.key_by("k").reduce(name="count", n=hr.count())
        counts.sink("out", hr.jsonl("out"))
        job.constrain(numbers >> counts, mean="{bound}", over="2 s")
        """
    )
    done = command("run", "app.py", "--strict", "--journal", "journal.log", "--json")
    assert done.code == code, done.err
    assert (done.answer["violations"] > 0) is (code == 3)
    (verdict,) = done.answer["constraints"]
    assert verdict["cycles"] >= verdict["met"] and (verdict["worst_ms"] > verdict["bound_ms"]) is (code == 3)
    assert f"numbers → count: mean ≤ {verdict['bound_ms']:g} ms" in done.err
    assert ("exit code 3, as --strict was given: " in done.err) is (code == 3)
    assert (tmp_path / "journal.log").exists() and f"journal: {tmp_path / 'journal.log'}" in done.err


def test_an_example_as_a_script(examples, tmp_path):
    """``python examples/word_count.py`` on Spark."""
    done = subprocess.run(
        [sys.executable, examples / "word_count.py"],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["24 the", "6 river"]
    assert list(tmp_path.glob("headrace-*")) == []
