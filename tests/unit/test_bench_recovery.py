"""The recovery experiment: outages and repeated input from what was seen outside, and its own processes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest

import headrace as hr
from headrace.bench.durability.executorloss import Updates
from headrace.bench.durability.openended import OpenEnded
from headrace.bench.durability.outages import News, NewsDesk, logged_position, outage_figures
from headrace.bench.durability.victims import expect_gone, kill_victim, start_victim, wait_for
from headrace.bench.recovery import Kill, Timed, kill_figures
from headrace.testing.local import LocalRun

S = 1_000_000


def news(*pairs: tuple[float, int]) -> News:
    at_s, newest = zip(*pairs, strict=True)
    return News.of((np.array(at_s) * S).astype(np.int64), np.array(newest))


def test_news_are_results_of_newer_records_only() -> None:
    heard = news((2.0, 20), (1.0, 10), (3.0, 15), (4.0, 20), (5.0, 21))
    assert heard.at_us.tolist() == [1 * S, 2 * S, 5 * S] and heard.newest.tolist() == [10, 20, 21]
    empty = News.of(np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert empty.outage_s(0, 2**62) is None and empty.repeated_s(0, 5) == 0.0


def test_an_outage_ends_after_the_longest_silence() -> None:
    # Survivors go on until 10.4; what was read since the last cut comes again at 12.0, which is no news.
    heard = news((9.9, 99), (10.2, 102), (10.4, 104), (12.0, 100), (12.5, 105), (12.6, 110), (30.0, 111))
    assert heard.outage_s(10 * S, 20 * S) == pytest.approx(2.5)
    assert heard.outage_s(13 * S, 20 * S) is None, "the next kill came before anything new did"


def test_what_is_repeated_counts_from_the_first_result_that_is_in_no_cut() -> None:
    heard = news((9.0, 90), (9.5, 95), (9.9, 99), (12.0, 120))
    assert heard.repeated_s(10 * S, 92) == pytest.approx(0.5)
    assert heard.repeated_s(10 * S, 100) == 0.0
    assert heard.repeated_s(10 * S, None) is None


def test_the_desk_notes_the_newest_record_of_each_call(tmp_path: Path) -> None:
    desk = NewsDesk(tmp_path, "newest")
    assert desk.newest() == -1
    for numbers in ([3, 7, 5], [], [9], [8]):
        desk(pa.record_batch({"newest": pa.array(numbers, pa.int64())}))
    assert desk.newest() == 8 and desk.read().newest.tolist() == [7, 9]
    with next(tmp_path.glob("*.news")).open("ab") as file:
        file.write(b"half")
    assert desk.newest() == 8 and desk.read().newest.tolist() == [7, 9]


def test_figures_tell_kinds_of_kills_apart() -> None:
    heard = news(
        (9.9, 99),
        (12.0, 101),
        (13.0, 110),
        (14.5, 120),
        (16.1, 130),
        (19.9, 150),
        (30.0, 160),
        (39.9, 190),
        (43.0, 200),
    )
    killed = [Kill("worker", 10 * S, 90), Kill("driver", 20 * S, 151, 9.0), Kill("standby", 40 * S, None)]
    figures = kill_figures(killed, heard)
    assert figures["worker_outage_s"] == 2.0 and figures["driver_outage_max_s"] == 10.0
    assert figures["standby_outage_s"] == 3.0 and figures["outage_s"] == 3.0 and figures["outage_max_s"] == 10.0
    assert figures["repeated_input_max_s"] == 0.1 and figures["restart_s"] == 9.0
    assert [figures[f"{kind}_kills"] for kind in ("driver", "worker", "standby")] == [1, 1, 1]
    assert outage_figures("stock", []) == {"stock_outage_s": None, "stock_outage_max_s": None}


def test_the_position_of_the_last_logged_cut_is_read_from_the_log(tmp_path: Path) -> None:
    assert logged_position(tmp_path, "items") == 0, "nothing is logged"
    job = hr.Job("position")
    source = hr.generate(Timed(1000), total=501)
    job.source("items", source, event_time="ts").key_by("key").reduce(name="n", n=hr.count()).sink("out", hr.rows())
    run = LocalRun(job, tmp_path, parallelism=2)
    run.run()
    run.close()
    assert logged_position(tmp_path, "items") == 501, "partitions have read 502 and 501"
    assert logged_position(tmp_path, "others") == 0, "it has read nothing yet"


def test_victims_are_killed_and_what_outlives_them_is_told(tmp_path: Path) -> None:
    (tmp_path / "victim.py").write_text(
        "import subprocess, sys\nsubprocess.Popen(['sleep', '60'])\nimport time; time.sleep(60)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
        victim = start_victim("victim", {}, tmp_path / "log.txt")
        assert wait_for(lambda: bool(psutil.Process(victim.pid).children()), 10)
        below = kill_victim(victim)
    assert victim.poll() == -9 and len(below) == 1
    with pytest.raises(hr.RunFailedError, match="outlived"):
        expect_gone(below, 0.1)
    below[0].kill()
    expect_gone(below)


def test_records_come_until_their_number_is_told(tmp_path: Path) -> None:
    source = OpenEnded(hr.generate(lambda n: {"n": n}), tmp_path / "total")
    readers = [source.open(partition, 2, None, source.schema(), tmp_path) for partition in range(2)]
    first = [reader.poll(3, 0) for reader in readers]
    assert [poll.records.column(0).to_pylist() for poll in first if poll] == [[0, 2, 4], [1, 3, 5]]
    assert not any(reader.exhausted for reader in readers)
    source.end_at(9)
    rest = [reader.poll(100, 0) for reader in readers]
    assert [poll.records.column(0).to_pylist() for poll in rest if poll] == [[6, 8], [7]]
    assert all(reader.exhausted and reader.poll(100, 0) is None for reader in readers)


def test_totals_after_lost_executors_are_compared_with_the_reference() -> None:
    load, total = Updates(keys=50, rate=10), 200
    made = load(np.arange(total))
    n, v0 = np.bincount(made["key"], minlength=50), np.zeros(50, np.int64)
    np.add.at(v0, made["key"], made["v0"])
    right = {"key": np.arange(50), "n": n, "v0": v0}
    assert load.wrong(total, right) == {"lost": 0, "duplicated": 0, "wrong": 0}
    assert load.wrong(total, {name: column[1:] for name, column in right.items()})["lost"] == n[0]
    assert (
        load.wrong(total, {name: np.append(column, column[3]) for name, column in right.items()})["duplicated"] == n[3]
    )
    assert load.wrong(total, right | {"v0": np.where(np.arange(50) == 7, 1, v0)})["wrong"] == 1


def test_updates_come_after_every_key_has_its_first_record() -> None:
    load = Updates(keys=400_000, rate=1000)
    assert load.fill_s == 2.0 and load.due(1.0) == 200_000 and load.due(4.0) == 402_000
    assert sorted(load(np.arange(400_000))["key"]) == list(range(400_000))
