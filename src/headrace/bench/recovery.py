"""``bench recovery``: kill -9 of drivers and of Python workers at random moments; exact answers, and how soon."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

import headrace as hr
from headrace.bench.durability.openended import OpenEnded
from headrace.bench.durability.outages import News, NewsDesk, logged_position, outage_figures
from headrace.bench.durability.stockrestart import stock_outages
from headrace.bench.durability.victims import Victim, expect_gone, kill_victim, last_words, start_victim, wait_for
from headrace.bench.latency import Numbered
from headrace.bench.measuring.figures import TreeWatch
from headrace.bench.measuring.recorder import recording
from headrace.errors import RunFailedError

_KEYS = 500
_WINDOW_S = 1
_START_S, _AGAIN_S = 300.0, 300.0
_SOURCE, _NEWEST = "items", "newest"
Kind = Literal["driver", "worker", "standby"]


@dataclass(frozen=True, slots=True)
class Timed:
    """Numbered records with an event time that follows the number."""

    rate: int

    def __call__(self, n: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
        return {**Numbered(_KEYS)(n), "ts": n * 1000 // self.rate}


@dataclass(frozen=True, slots=True)
class Kill:
    """What was killed when, how far the last logged cut had read then, and when a driver said that it runs again."""

    kind: Kind
    at_us: int
    position: int | None
    running_s: float | None = None


@dataclass(slots=True)
class Scene:
    """The job's processes, and what they tell of themselves in files."""

    root: Path
    desk: NewsDesk
    options: dict[str, Any]
    dice: random.Random
    driver: Victim | None = None
    standby: Victim | None = None
    began_s: float = field(default_factory=time.time)

    @property
    def log(self) -> Path:
        return self.root / "log.txt"

    @property
    def restarts(self) -> int:
        """How often drivers restarted their query so far."""
        return len((self.root / "restarts").read_text().splitlines())

    @property
    def over(self) -> bool:
        return self.driver is None or self.driver.poll() is not None

    def start(self, *, standby: bool = False) -> Victim:
        return start_victim(__name__, self.options | {"standby": standby}, self.log)

    def await_running(self) -> None:
        if not wait_for(lambda: (self.root / "running").exists() or self.over, _START_S):
            raise RunFailedError(f"the job did not start within {_START_S:g} s{last_words(self.log)}")

    def await_news(self, newest: int) -> None:
        if not wait_for(lambda: self.desk.newest() > newest or self.over, _AGAIN_S):
            raise RunFailedError(f"no new results for {_AGAIN_S:g} s after a kill{last_words(self.log)}")

    def kill(self, kind: Kind) -> Kill | None:
        """Kill, see to it that the job goes on, and wait until it does; None if there was nobody to kill."""
        if kind == "worker":
            return self._kill_worker()
        if kind == "standby":
            self._stand_by()
        if self.over:
            return None
        assert self.driver is not None
        (self.root / "running").unlink(missing_ok=True)
        at_us, newest = time.time_ns() // 1000, self.desk.newest()
        below = kill_victim(self.driver)
        self.driver, self.standby = self.standby or self.start(), None
        position = logged_position(self.root / "checkpoint", _SOURCE)
        self.await_running()
        running_s = time.time() - at_us / 1e6
        self.await_news(newest)
        expect_gone(below)
        return Kill(kind, at_us, position, running_s)

    def _stand_by(self) -> None:
        """A second driver that is ready to take over."""
        self.standby = standby = self.start(standby=True)
        ready = self.root / f"standby-{standby.pid}"
        if not wait_for(lambda: ready.exists() or standby.poll() is not None or self.over, _START_S):
            raise RunFailedError(f"the standby was not ready within {_START_S:g} s{last_words(self.log)}")
        time.sleep(self.dice.uniform(0.2, 3.0))

    def _kill_worker(self) -> Kill | None:
        """kill -9 of one Python worker that runs a subtask."""
        wait_for(lambda: bool(self._workers()) or self.over, _START_S)  # they are known from their reports
        seen, newest, workers = self.restarts, self.desk.newest(), self._workers()
        if not workers:
            return None
        try:
            psutil.Process(self.dice.choice(workers)).kill()
        except psutil.NoSuchProcess:
            return None
        kill = Kill("worker", time.time_ns() // 1000, logged_position(self.root / "checkpoint", _SOURCE))
        wait_for(lambda: self.restarts > seen or self.over, 60)
        self.await_news(max(newest, self.desk.newest()))
        return kill

    def _workers(self) -> list[int]:
        """Processes of subtasks, as the driver last told, that are there."""
        try:
            told: list[int] = json.loads((self.root / "pids").read_text())
        except (OSError, ValueError):
            return []
        return [pid for pid in told if psutil.pid_exists(pid)]

    def finish(self) -> int:
        """Let the records end with all that can be due by now, and wait for the job; how many there were."""
        rate = self.options["rate"]
        total = int(rate * (time.time() - self.began_s + 1))
        source_of(self.root, rate).end_at(total)
        assert self.driver is not None
        if code := self.driver.wait(timeout=600):
            raise RunFailedError(f"the job failed after the kills (exit {code}){last_words(self.log)}")
        return total

    def close(self) -> None:
        for process in (self.driver, self.standby):
            if process is not None and process.poll() is None:
                kill_victim(process)


def recovery(
    kills: int, rate: int, seed: int, *, standby: bool = False, stock_kills: int = 0, **settings: Any
) -> dict[str, Any]:
    """Drivers and workers in turn, every other driver with a standby if that is wanted; records come until all are killed."""
    dice = random.Random(seed)
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        desk = NewsDesk(stack.enter_context(recording(())).directory, _NEWEST)
        options = {"root": str(root), "desk": str(desk.directory), "rate": rate, "settings": settings}
        scene = Scene(root, desk, options, dice)
        stack.callback(scene.close)
        (root / "restarts").touch()
        with TreeWatch() as watch:
            killed = list(_killing(scene, kills, standby))
            total = scene.finish()
        figures = _check(root, rate, total) | kill_figures(killed, desk.read())
        figures["worker_restarts"] = scene.restarts
        peer = stock_outages(root / "stock", rate, _KEYS, stock_kills, dice) if stock_kills else []
    return {
        **figures,
        "items": total,
        "items_per_s": round(total / watch.seconds, 1),
        **(outage_figures("stock", peer) if stock_kills else {}),
        **watch.figures(),
    }


def _killing(scene: Scene, kills: int, standby: bool) -> Iterator[Kill]:
    kinds: tuple[Kind, ...] = ("driver", "worker", "standby", "worker") if standby else ("driver", "worker")
    scene.driver = scene.start()
    scene.await_running()
    for kind in islice(cycle(kinds), kills):
        time.sleep(scene.dice.uniform(0.2, 6.0))
        if scene.over:
            return
        kill = scene.kill(kind)
        if kill is not None:
            yield kill


def kill_figures(killed: list[Kill], news: News) -> dict[str, Any]:
    """Outages by what was killed, and the input that was repeated."""
    ends_us = [kill.at_us for kill in killed[1:]] + [2**62]
    outages = [(kill.kind, news.outage_s(kill.at_us, end_us)) for kill, end_us in zip(killed, ends_us, strict=True)]
    repeated = [s for kill in killed if (s := news.repeated_s(kill.at_us, kill.position)) is not None]
    restarts = [kill.running_s for kill in killed if kill.running_s is not None and kill.kind == "driver"]
    figures: dict[str, Any] = {"kills": len(killed)}
    for kind in ("driver", "worker", "standby"):
        of_kind = [outage for its, outage in outages if its == kind]
        figures[f"{kind}_kills"] = len(of_kind)
        figures |= outage_figures(kind, [outage for outage in of_kind if outage is not None])
    known = [outage for _, outage in outages if outage is not None]
    return figures | {
        "outage_s": round(float(np.median(known)), 2) if known else None,
        "outage_max_s": round(max(known), 2) if known else None,
        "repeated_input_s": round(float(np.median(repeated)), 2) if repeated else None,
        "repeated_input_max_s": round(max(repeated), 2) if repeated else None,
        "restart_s": round(float(np.median(restarts)), 2) if restarts else None,
        "restart_s_max": round(max(restarts), 2) if restarts else None,
    }


def _check(root: Path, rate: int, total: int) -> dict[str, Any]:
    """Windows and running totals against what the numbers must give."""
    n = np.arange(total)
    window = n * 1000 // rate // (_WINDOW_S * 1000) * (_WINDOW_S * 1000)
    code, counts = np.unique(window * _KEYS + Numbered(_KEYS).key(n), return_counts=True)
    sums = np.bincount(np.searchsorted(code, window * _KEYS + Numbered(_KEYS).key(n)), weights=n)
    expected = {int(c): (int(k), int(s)) for c, k, s in zip(code, counts, sums)}
    lost = duplicated = wrong = rows = 0
    seen: dict[int, tuple[int, int]] = {}
    for part in sorted((root / "out").glob("part-*.jsonl")):
        for line in part.read_text().splitlines():
            row = json.loads(line)
            start = np.datetime64(row["window_start"].replace("Z", "").replace("+00:00", "")).astype("datetime64[ms]")
            key = int(start.astype(np.int64)) * _KEYS + row["key"]
            rows += 1
            if key in seen:
                duplicated += row["n"]
            seen[key] = (row["n"], row["total"])
    for key, (count, total_of) in expected.items():
        got = seen.get(key)
        lost += count if got is None else max(count - got[0], 0)
        duplicated += 0 if got is None else max(got[0] - count, 0)
        wrong += got is not None and got != (count, total_of)
    wrong += len(seen.keys() - expected.keys())
    return {"rows": rows, "lost": lost, "duplicated": duplicated, "wrong": wrong}


def source_of(root: Path, rate: int) -> OpenEnded:
    return OpenEnded(hr.generate(Timed(rate), rate=f"{rate}/s"), root / "total")


def job_of(root: Path, desk: NewsDesk, rate: int) -> hr.Job:
    """Windowed counts and sums per key, written exactly once; and the newest record of each key, at once."""
    job = hr.Job("bench-recovery")
    keyed = job.source(_SOURCE, source_of(root, rate), event_time="ts").key_by("key")
    counted = keyed.window(hr.tumbling(f"{_WINDOW_S} s"))
    counted.reduce(name="per-key", n=hr.count(), total=hr.sum("seq")).sink("out", hr.jsonl(root / "out"))
    keyed.reduce(name="seen", newest=hr.max("seq")).sink("news", hr.callback(desk))
    return job


def _main(options: dict[str, Any]) -> None:
    root = Path(options["root"])
    job = job_of(root, NewsDesk(Path(options["desk"]), _NEWEST), options["rate"])
    run = hr.start(job, checkpoint=root / "checkpoint", standby=options["standby"], **options["settings"])
    noted = 0
    while not run.wait(0.05):
        while noted < run.status().restarts:
            noted += 1
            with (root / "restarts").open("a") as file:
                file.write("restart\n")
        if options["standby"] and any(event.what == "standby" for event in run.decisions()):
            (root / f"standby-{psutil.Process().pid}").touch()
        if run.status().state == "running":
            (root / "pids.new").write_text(json.dumps(run.worker_pids()))
            (root / "pids.new").replace(root / "pids")
            (root / "running").touch()
    (root / "running").touch()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
