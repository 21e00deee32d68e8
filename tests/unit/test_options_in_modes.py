"""Every option of a run in every mode: it is taken, or refused by its name, and what is taken by all modes holds in all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.config import MODES, RunSettings
from headrace.errors import ConfigError, GraphError
from headrace.launch import RunOptions, checked
from headrace.testing import run_local, scripted

EVERYWHERE = ("realtime", "microbatch", "batch")
REALTIME, MICROBATCH = ("realtime",), ("microbatch",)
HOLDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "spark": (object(), EVERYWHERE),
    "master": ("local[3]", EVERYWHERE),
    "checkpoint": ("state", EVERYWHERE),
    "seconds": ("3 s", EVERYWHERE),
    "standby": (True, EVERYWHERE),
    "observe_only": (True, REALTIME),
    "trace": ("trace.jsonl", REALTIME),
    "log_level": ("INFO", EVERYWHERE),
    "log": ("INFO", EVERYWHERE),
    "collecting": (True, EVERYWHERE),
    "mode": (None, EVERYWHERE),
    "parallelism": (3, EVERYWHERE),
    "slices": (7, EVERYWHERE),
    "commit": ("5 s", REALTIME),
    "recovery": ("5 s", REALTIME),
    "flush": ("20 ms", EVERYWHERE),
    "flush_bytes": ("20 kB", EVERYWHERE),
    "flush_by": ("size", REALTIME),
    "chaining": ("dynamic", EVERYWHERE),
    "schedule": ("odf", EVERYWHERE),
    "hybrid": ((0.4, 2.0, 1.0), EVERYWHERE),
    "budget": ("64 MB", EVERYWHERE),
    "queue": ("4 MB", EVERYWHERE),
    "poll_rows": (3, EVERYWHERE),
    "trigger": ("2 s", MICROBATCH),
    "chunk": ("1 s", EVERYWHERE),
    "chunk_bytes": ("1 MB", EVERYWHERE),
    "share": (False, EVERYWHERE),
    "executors": ((1, 4), REALTIME),
    "release": ("10 s", REALTIME),
    "backup": (2, REALTIME),
    "idle": ("2 s", EVERYWHERE),
    "report": ("500 ms", EVERYWHERE),
    "sample_share": (1.0, EVERYWHERE),
    "lease": ("10 s", EVERYWHERE),
    "join_timeout": ("10 s", EVERYWHERE),
    "give_up": ("10 s", EVERYWHERE),
    "debug_state": (True, EVERYWHERE),
}
"""Of each option a value that is not the default, and the modes in which it holds."""
NOT_WITHOUT_SPARK = ("trigger", "executors", "release", "backup")


def test_the_matrix_has_every_option_and_mode() -> None:
    assert HOLDS.keys() == RunOptions.__annotations__.keys() and EVERYWHERE == MODES


@pytest.mark.parametrize("mode", EVERYWHERE)
@pytest.mark.parametrize("option", sorted(HOLDS.keys() - {"mode"}))
def test_an_option_is_taken_or_refused_by_name(option: str, mode: Any) -> None:
    value, modes = HOLDS[option]
    options: Any = {"mode": mode, option: value} | ({"checkpoint": "state"} if option == "standby" else {})
    if mode in modes:
        checked(options)
        return
    with pytest.raises(ConfigError, match=f"^{option} has no effect in {mode} mode, where .*mode='{modes[0]}'"):
        checked(options)


@pytest.mark.parametrize("mode", EVERYWHERE)
def test_defaults_are_no_reason_to_refuse(mode: Any) -> None:
    checked({"mode": mode, "commit": "1 s", "trigger": 0, "backup": 0, "observe_only": False, "seconds": None})


@pytest.mark.parametrize("mode", EVERYWHERE)
@pytest.mark.parametrize("option", sorted(RunSettings.__annotations__.keys() - {"mode"}))
def test_without_spark_too(option: str, mode: Any) -> None:
    value, modes = HOLDS[option]
    job = hr.Job("j")
    read = job.source("read", scripted([{"k": i % 2} for i in range(10)]))
    read.key_by("k").window(hr.whole_input()).reduce(name="n", n=hr.count()).sink("out", hr.rows())
    settings: Any = {"mode": mode, option: value}
    if mode in modes and option not in NOT_WITHOUT_SPARK:
        assert sorted(row["n"] for row in run_local(job, **settings)["out"]) == [5, 5]
        return
    where = "in a run without Spark" if mode in modes else f"in {mode} mode"
    with pytest.raises(ConfigError, match=f"^{option} has no effect {where}, where "):
        run_local(job, **settings)


@pytest.mark.parametrize("option", sorted(HOLDS.keys() - RunSettings.__annotations__.keys()))
def test_a_run_without_spark_has_settings_only(option: str) -> None:
    job = hr.Job("j")
    job.source("read", scripted([{"k": 1}])).sink("out", hr.rows())
    with pytest.raises(ConfigError, match=f"unknown setting '{option}'"):
        run_local(job, **{option: HOLDS[option][0]})  # type: ignore[arg-type]


def test_spark_is_given_or_made() -> None:
    for option in ("master", "log_level"):
        with pytest.raises(ConfigError, match=f"^{option} is for a session that is made"):
            checked({"spark": object(), option: HOLDS[option][0]})  # type: ignore[typeddict-item,misc]


def test_a_trace_needs_a_controller(tmp_path: Path) -> None:
    job = hr.Job("j")
    job.source("read", scripted([{"k": 1}])).sink("out", hr.rows())
    with pytest.raises(ConfigError, match="trace has no effect without a controller"):
        hr.start(job, trace=tmp_path / "trace.jsonl")
    assert not (tmp_path / "trace.jsonl").exists()


def test_a_run_without_spark_ends() -> None:
    job = hr.Job("j")
    job.source("read", hr.generate(lambda n: {"n": n})).sink("out", hr.rows())
    with pytest.raises(GraphError, match="source 'read' never ends, so run_local would not either; bound it"):
        run_local(job)
