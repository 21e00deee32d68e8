"""Small parts of the command line, in this process."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import numpy as np
import pytest
import typer
from rich.console import Console

from headrace.actuate.controller import BoundKept
from headrace.cli.answers import answering, json_line
from headrace.cli.chatter import quiet_spark
from headrace.cli.demo.topics import HOT, SENTIMENT, Tail, check, demo_job, tweets_due
from headrace.cli.demo.tweets import tweets
from headrace.cli.verdicts import bound_figures, refuse_violations, verdict_table
from headrace.control.constraints import PathConstraint
from headrace.control.standing import Standing
from headrace.signals import StopWish, uninterrupted
from headrace.testing import LocalRun


def test_answers_are_one_line_of_strict_json(capsys):
    with pytest.raises(typer.Exit) as ended, answering(as_json=True, traceback=False) as answer:
        answer |= {"p99_ms": float("inf"), "when": b"\x01", "n": 3}
        raise typer.Exit(3)
    assert ended.value.exit_code == 3
    assert json.loads(capsys.readouterr().out) == {"ok": False, "p99_ms": None, "when": "01", "n": 3}
    assert "\n" not in json_line({"text": "a\nb"})


def test_a_violated_constraint_is_exit_code_3_if_strict(capsys):
    late, fine = BoundKept(50.0, 10, 8, 40.0, 1234.5), BoundKept(9.0, 10, 10, 3.0, 8.0)
    broken = bound_figures({"a → b: p99 ≤ 50 ms": late, "a → c: mean ≤ 9 ms": fine})
    assert broken["violations"] == 2
    with pytest.raises(typer.Exit) as ended:
        refuse_violations(broken, strict=True)
    assert capsys.readouterr().err.splitlines() == [
        "exit code 3, as --strict was given: a → b: p99 ≤ 50 ms was kept in 8 of 10 (80.0%) looks only, "
        "and at worst it was 1,234.5 ms"
    ]
    assert ended.value.exit_code == 3
    refuse_violations(broken, strict=False)
    refuse_violations(bound_figures({"fine": fine}), strict=True)
    refuse_violations(bound_figures({"unknown": BoundKept(9.0)}), strict=True)


def test_the_verdict_on_each_bound_is_a_table(capsys):
    bounds = {"near": BoundKept(50.0, 10, 8, 40.0, 60.0), "far": BoundKept(9.0, 3, 3, 3.0, 8.0), "dark": BoundKept(1.0)}
    Console(width=120).print(verdict_table(bound_figures(bounds)))
    told = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [cells for cells in told if cells] == [
        ["near", "40.0 ms", "60.0 ms", "8 of 10 (80.0%)", "violated"],
        ["far", "3.0 ms", "8.0 ms", "3 of 3 (100.0%)", "kept"],
        ["dark", "–", "–", "–", "unknown: nothing was measured"],
    ]
    assert verdict_table(bound_figures({})) is None


def test_what_was_measured_last_and_at_worst_is_kept_with_a_bound():
    constraint, kept = PathConstraint("a → b", (), 50.0), BoundKept(50.0)
    for observed_ms in (20.0, 70.0, None, 30.0, None):
        kept.add(Standing(constraint, observed_ms, 50.0))
    assert (kept.latest_ms, kept.worst_ms, kept.cycles, kept.met) == (30.0, 70.0, 3, 2)


def test_an_unexpected_error_is_told_with_a_hint(capsys):
    with pytest.raises(typer.Exit), answering(as_json=False, traceback=False):
        raise KeyError("lost")
    said = capsys.readouterr().err
    assert "KeyError: 'lost'" in said
    assert "--traceback" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_wish_the_second_an_order(number):
    before = signal.getsignal(number)
    with StopWish() as wish:
        with pytest.raises(KeyboardInterrupt):  # nothing has begun that could make a last cut
            os.kill(os.getpid(), number)
        wish.listen()
        assert not wish.wanted
        os.kill(os.getpid(), number)
        assert wish.wanted
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_an_interrupt_waits_for_what_is_being_made_and_undoes_it():
    going, made, undone = threading.Event(), [], []

    def make():
        os.kill(os.getpid(), signal.SIGINT)
        going.wait(20)
        made.append("it")
        return "it"

    before = signal.signal(signal.SIGINT, lambda *_: (going.set(), signal.default_int_handler(signal.SIGINT, None)))
    try:
        with pytest.raises(KeyboardInterrupt):
            uninterrupted(make, undone.append)
    finally:
        signal.signal(signal.SIGINT, before)
    assert made == undone == ["it"]
    assert uninterrupted(lambda: 3, undone.append) == 3 and undone == ["it"]
    with pytest.raises(KeyError, match="lost"):
        uninterrupted(lambda: {}["lost"], undone.append)


def test_spark_notices_are_dropped_and_prints_are_kept(capfd):
    with quiet_spark():
        os.write(2, b'Setting default log level to "WARN".\nhello from a worker\n')
    os.write(2, b"after\n")
    said, deadline_s = "", time.monotonic() + 10
    while "hello" not in said and time.monotonic() < deadline_s:
        time.sleep(0.01)
        said += capfd.readouterr().err
    assert "hello from a worker" in said
    assert "log level" not in said


def test_tweets_are_a_function_of_their_numbers():
    some, others = tweets(np.arange(100)), tweets(np.arange(50, 150))
    assert some["text"][50:] == others["text"][:50]
    assert (some["likes"][50:] == others["likes"][:50]).all()
    assert all("#" in text for text in some["text"])


def test_the_demo_checks_its_answers(tmp_path):
    total = 1000
    results, checkpoint = tmp_path / "results", tmp_path / "checkpoint"
    job = demo_job(results, total)
    run = LocalRun(job, checkpoint, report="10 ms")
    try:
        run.run()
        for step, sink in ((HOT, "hot"), (SENTIMENT, "mood")):
            (results / step).mkdir(parents=True)
            lines = [json.dumps(row, default=str) for row in run.rows(sink)]
            (results / step / "part-00000000-00000.jsonl").write_text("\n".join(lines) + "\n")
    finally:
        run.close()
    verdict = check(results, total)
    assert verdict.pop("hashtags") > total
    assert verdict == {"lost": 0, "duplicated": 0, "wrong": 0}
    part = results / SENTIMENT / "part-00000000-00000.jsonl"
    part.write_text("".join(part.read_text().splitlines(keepends=True)[1:]))
    damaged = check(results, total)
    assert damaged["lost"] > 0
    assert damaged["duplicated"] == 0


def test_rates_are_bursty():
    assert tweets_due(6) < tweets_due(9) - tweets_due(6)


def test_a_tail_reads_each_line_once_across_a_rename(tmp_path):
    tail, live = Tail(tmp_path), tmp_path / "live-e0-00000.jsonl"
    live.write_text('{"n": 1}\n{"n"')
    assert tail.rows() == [{"n": 1}]
    with live.open("a") as file:
        file.write(": 2}\n")
    live.rename(tmp_path / "part-0-00000.jsonl")
    assert tail.rows() == [{"n": 2}]
    assert tail.rows() == []
