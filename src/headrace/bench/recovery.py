"""``bench recovery``: kill -9 of the driver and of Python workers at random moments; exact answers afterwards."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import headrace as hr
from headrace.bench.latency import Numbered
from headrace.bench.measuring.figures import TreeWatch
from headrace.errors import RunFailedError

_KEYS = 500
_WINDOW_S = 1


@dataclass(frozen=True, slots=True)
class Timed:
    """Numbered records with an event time that follows the number."""

    rate: int

    def __call__(self, n: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
        return {**Numbered(_KEYS)(n), "ts": n * 1000 // self.rate}


def recovery(kills: int, rate: int, seconds: int, seed: int, **settings: Any) -> dict[str, Any]:
    """Odd kills hit the driver, even ones a Python worker; the last run goes to the end."""
    dice = random.Random(seed)
    restarts, killed = [], {"driver": 0, "worker": 0}
    total = rate * seconds
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as work, TreeWatch() as watch:
        root = Path(work)
        options = {"root": str(root), "rate": rate, "total": total, "settings": settings}
        child = _start(options)
        for kill in range(kills):
            _wait_running(root, child, 120)
            time.sleep(dice.uniform(0.2, 6.0))
            if child.poll() is not None:
                break
            before = time.monotonic()
            if kill % 2 == 0:
                killed["driver"] += 1
                _kill_tree(child)
                (root / "running").unlink(missing_ok=True)
                child = _start(options)
                _wait_running(root, child, 120)
                restarts.append(time.monotonic() - before)
            else:
                seen = _restarts(root)
                if _kill_worker(root, dice):
                    killed["worker"] += 1
                    _wait_for(partial(_restarted, root, child, seen), 60)
        code = child.wait(timeout=600)
        if code:
            raise RunFailedError(f"the job failed after the kills (exit {code}){_last_words(root)}")
        figures = _check(root, rate, total)
        figures["worker_restarts"] = _restarts(root)
    return {
        **figures,
        "items": total,
        "items_per_s": round(total / watch.seconds, 1),
        "kills": sum(killed.values()),
        "driver_kills": killed["driver"],
        "worker_kills": killed["worker"],
        "restart_s": round(float(np.median(restarts)), 2) if restarts else None,
        "restart_s_max": round(max(restarts), 2) if restarts else None,
        **watch.figures(),
    }


def _start(options: dict[str, Any]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace.bench.recovery", json.dumps(options)]
    with (Path(options["root"]) / "log.txt").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _wait_running(root: Path, child: subprocess.Popen[bytes], timeout_s: float) -> None:
    if not _wait_for(lambda: (root / "running").exists() or child.poll() is not None, timeout_s):
        raise RunFailedError(f"the job did not start within {timeout_s:g} s{_last_words(root)}")


def _wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _restarted(root: Path, child: subprocess.Popen[bytes], seen: int) -> bool:
    return _restarts(root) > seen or child.poll() is not None


def _restarts(root: Path) -> int:
    """How often drivers restarted their query so far."""
    return len((root / "restarts").read_text().splitlines())


def _last_words(root: Path) -> str:
    return ":\n" + (root / "log.txt").read_text(errors="replace")[-3000:]


def _kill_tree(child: subprocess.Popen[bytes]) -> None:
    """kill -9 of the driver; the JVM and its workers notice by themselves and go."""
    below = psutil.Process(child.pid).children(recursive=True)
    child.send_signal(signal.SIGKILL)
    child.wait()
    _, left = psutil.wait_procs(below, timeout=30)
    if left:
        raise RunFailedError(f"processes {[p.pid for p in left]} outlived their driver by 30 s")


def _kill_worker(root: Path, dice: random.Random) -> int:
    """kill -9 of one Python worker that runs a subtask."""
    try:
        pids = json.loads((root / "pids").read_text())
        psutil.Process(dice.choice(pids)).kill()
    except (OSError, ValueError, IndexError, psutil.NoSuchProcess):
        return 0
    return 1


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


def job_of(root: Path, rate: int, total: int) -> hr.Job:
    """Windowed counts and sums per key, written exactly once."""
    job = hr.Job("bench-recovery")
    source = hr.generate(Timed(rate), rate=f"{rate}/s", total=total)
    items = job.source("items", source, event_time="ts")
    counted = items.key_by("key").window(hr.tumbling(f"{_WINDOW_S} s"))
    counted.reduce(name="per-key", n=hr.count(), total=hr.sum("seq")).sink("out", hr.jsonl(root / "out"))
    return job


def _main(options: dict[str, Any]) -> None:
    root = Path(options["root"])
    (root / "restarts").touch()
    run = hr.start(
        job_of(root, options["rate"], options["total"]), checkpoint=root / "checkpoint", **options["settings"]
    )
    noted = 0
    while not run.wait(0.05):
        while noted < run.status().restarts:
            noted += 1
            with (root / "restarts").open("a") as file:
                file.write("restart\n")
        if run.status().state == "running":
            (root / "pids.new").write_text(json.dumps(run.worker_pids()))
            (root / "pids.new").replace(root / "pids")
            (root / "running").touch()
    (root / "running").touch()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
