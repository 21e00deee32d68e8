"""The public API as an editor, a type checker and a notebook see it."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

import headrace as hr
from headrace import errors
from headrace.api.options import STEP_DEFAULTS
from headrace.api.reducing import MOVED
from headrace.config import RunSettings, Settings, default_settings
from headrace.config.settings import field_of
from headrace.launch import RUN_DEFAULTS, RunOptions
from headrace.testing import run_local, scripted

ROOT = Path(__file__).parents[2]


def test_every_public_name_is_there_and_none_is_a_package_that_would_hide_it() -> None:
    assert len({*hr.__all__}) == len(hr.__all__)
    for name in hr.__all__:
        assert getattr(hr, name) is not None
    assert not {*hr.__all__} & {module.name for module in pkgutil.iter_modules(hr.__path__)}


def test_every_error_is_exported_and_also_a_builtin() -> None:
    made = {name: one for name, one in vars(errors).items() if isinstance(one, type)}
    assert made.keys() <= {*hr.__all__}
    for name, error in made.items():
        assert issubclass(error, hr.HeadraceError)
        assert name == "HeadraceError" or any(one.__module__ == "builtins" for one in error.__mro__[1:-3]), name


@pytest.mark.parametrize(("old", "new"), [("session", "session_window"), ("distinct", "count_distinct")])
def test_old_names_say_the_new_one(old: str, new: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{old}'; it is now hr.{new}"):
        getattr(hr, old)
    with pytest.raises(AttributeError, match="no attribute 'nothing'$"):
        hr.nothing  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'forget'; it is now delete_temporary_checkpoint\(\)"):
        object.__new__(hr.Run).forget  # type: ignore[attr-defined]  # noqa: B018


def test_collect_is_one_thing() -> None:
    with pytest.raises(hr.GraphError, match=r"the reducer is hr.collect_list\('v'\)"):
        hr.collect("v")  # type: ignore[call-overload]
    with pytest.raises(hr.GraphError, match=r"the sink that keeps rows is hr.rows\(\)"):
        hr.collect()  # type: ignore[call-overload]
    job = hr.Job("two")
    rows = job.source("s", scripted([{"v": 1}]))
    rows.sink("one", hr.rows()).map(dict, name="other")
    with pytest.raises(hr.GraphError, match="2 ends, one, other: ask for all, hr.collect\\(job, by_sink=True\\)"):
        hr.collect(job)


def test_importing_does_not_import_spark() -> None:
    code = "import headrace as hr, sys; hr.Source, hr.Window, hr.RunOptions; print('pyspark' in sys.modules); hr.Run"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_settings_as_written_and_as_kept_are_the_same() -> None:
    kept = {field_of(name) for name in RunSettings.__annotations__}
    assert kept == set(Settings.__dataclass_fields__)
    assert Settings.of(**default_settings()) == Settings()
    assert RUN_DEFAULTS.keys() == RunOptions.__annotations__.keys()


def test_settings_that_may_be_nothing() -> None:
    assert Settings.of(recovery=None, budget=None, executors=None) == Settings()
    with pytest.raises(hr.UnitError, match="flush None"):
        Settings.of(flush=None)  # type: ignore[arg-type]


def test_old_and_misspelt_settings_say_what_was_meant() -> None:
    for wrong, meant in (("cut", "flush"), ("report_s", "report"), ("paralelism", "parallelism")):
        with pytest.raises(
            hr.ConfigError, match=rf"unknown setting '{wrong}' \(did you mean '{meant}'\?\); known: backup,"
        ):
            Settings.of(**{wrong: "1 s"})


@pytest.mark.parametrize("call", [hr.run, hr.start, hr.collect], ids=lambda call: call.__name__)
def test_help_shows_every_setting_of_a_run(call: object) -> None:
    shown = inspect.signature(call).parameters  # type: ignore[arg-type]
    assert RunOptions.__annotations__.keys() <= shown.keys() and shown["flush"].default == "8 ms"
    assert not [name for name, p in shown.items() if p.kind is p.VAR_KEYWORD]


STEPS = [
    *(getattr(hr.Stream, name) for name in ("map", "flat_map", "filter", "map_batch", "union", "sink")),
    *(hr.KeyedStream.process, hr.KeyedStream.join, hr.Job.source),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_help_shows_every_option_of_a_step(step: object) -> None:
    shown = inspect.signature(step).parameters  # type: ignore[arg-type]
    assert {name: shown[name].default for name in STEP_DEFAULTS} == STEP_DEFAULTS
    assert STEP_DEFAULTS.keys() == hr.StepSettings.__annotations__.keys()


def test_a_reduce_has_the_options_of_a_step_but_for_chain() -> None:
    shown = inspect.signature(hr.KeyedStream.reduce).parameters
    options = {name: p.default for name, p in shown.items() if p.kind is p.KEYWORD_ONLY}
    own = {"name": None, "state": None, "overload": None, "emit": None}
    assert options == own | {name: value for name, value in STEP_DEFAULTS.items() if name != "chain"}
    assert not options.keys() & MOVED.keys(), "what moved is free for columns"


def test_result_columns_may_be_named_like_options_old_and_new() -> None:
    job = hr.Job("names")
    keyed = job.source("s", scripted([{"k": 1, "v": 2}, {"k": 1, "v": 5}])).key_by("k").window(hr.whole_input())
    taken = {"name": hr.count(), "state": hr.last("v"), "emit": hr.max("v"), "parallelism": hr.min("v")}
    counted = keyed.reduce(
        taken,
        name="r",
        memory=hr.sum("v"),
        late=hr.count(),
        window_end=hr.count(),
        version=hr.count(),
        coverage=hr.count(),
    )
    counted.sink("out", hr.rows())
    (row,) = run_local(job)["out"]
    assert (row["name"], row["emit"], row["parallelism"], row["memory"]) == (2, 5, 2, 7)
    assert row["late"] == row["window_end"] == row["version"] == row["coverage"] == 2


def test_what_a_step_adds_is_taken_and_said() -> None:
    keyed = hr.Job("names").source("s", scripted([{"k": 1, "t": 2}]), event_time="t").key_by("k")
    versioned = keyed.window(hr.versioned(hr.tumbling("1 s")))
    with pytest.raises(
        hr.GraphError, match="'version' is taken.*: k, window_start, window_end, version, completeness$"
    ):
        versioned.reduce(name="r", version=hr.count())
    with pytest.raises(hr.GraphError, match="'coverage' is taken.*: k, coverage$"):
        keyed.window(hr.whole_input()).reduce(name="r", state=hr.keep(coverage=0.9), coverage=hr.count())


def test_groups_are_values() -> None:
    assert hr.keep(memory="1 MB") == hr.keep(memory=10**6) and hash(hr.keep()) == hash(hr.keep())
    assert hr.shed(after="1 s") == hr.shed(after=1) != hr.shed()
    for value in (hr.keep(), hr.shed(), hr.at_least(n=1)):
        for field in fields(value):
            with pytest.raises(FrozenInstanceError):
                setattr(value, field.name, 1)


def test_full_and_outer_joins_are_the_same() -> None:
    rows = {}
    for how in ("outer", "full"):
        job = hr.Job("join")
        left = job.source("l", scripted([{"k": 1, "a": 1, "t": 0}]), event_time="t").key_by("k")
        right = job.source("r", scripted([{"k": 2, "b": 2, "t": 0}]), event_time="t").key_by("k")
        left.window(hr.tumbling("1 s")).join(right, how=how, name="j").sink("out", hr.rows())
        rows[how] = sorted(run_local(job)["out"], key=lambda row: row["k"])
    assert rows["outer"] == rows["full"] and [row["b"] for row in rows["full"]] == [None, 2]


def test_windows_can_be_annotated() -> None:
    kinds = (hr.TimeWindow, hr.SessionWindow, hr.CountWindow, hr.WholeInput)
    assert get_args(hr.Window) == kinds
    made = (hr.sliding("2 s", every="1 s"), hr.session_window("1 s"), hr.count_window(2), hr.whole_input())
    assert tuple(map(type, made)) == kinds


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(hr.__file__).with_name("py.typed").exists()
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["src/headrace"]}, "every file of the package is shipped, py.typed too"
    ignored = subprocess.run(
        ["git", "check-ignore", "src/headrace/py.typed"], cwd=ROOT, capture_output=True, check=False
    )
    assert ignored.returncode != 0, "hatch leaves out what git ignores"


WRONG = """
import headrace as hr

job = hr.Job("wrong")
rows = job.source("s", hr.replay("x.jsonl"), event_tme="t")  # wrong
ok = job.source("s", hr.replay("x.jsonl", header=False), event_time="t", parallelism=(1, 2, 4), chain=False)
ok.map(lambda r: r, name="m", paralelism=2)  # wrong
ok.map(lambda r: 3, name="n")  # wrong
ok.filter(lambda r: r["n"] > 3, name="f", on_error="ignore")  # wrong
keyed = ok.key_by("k").window(hr.tumbling("1 s"))
keyed.reduce(name="r", state=hr.keep(memory="64 MB", engine="dinc"), emit=hr.at_least(n=2), memory=hr.count())
keyed.reduce(name="r", memory="64 MB", n=hr.count())  # wrong
keyed.reduce(name="r", state=hr.keep(engine="fast"), n=hr.count())  # wrong
keyed.join(keyed, how="cross")  # wrong
run: hr.Run = hr.run(job, commit="5 s", flush="5 ms", executors=(1, 4), mode="realtime")
hr.run(job, comit="5 s")  # wrong
hr.start(job, parallelism="many")  # wrong
hr.run(job, mode="fast")  # wrong
listed: list[hr.Record] = hr.collect(job, parallelism=1)
by_sink: dict[str, list[hr.Record]] = hr.collect(job, by_sink=True, give_up="1 min")
hr.collect()  # wrong
options: hr.RunOptions = {"commit": "5 s", "spark": None}
hr.run([job], **options)
"""


USERS_MYPY = {"module": '"pyarrow.*"', "ignore_missing_imports": "true"}


@pytest.mark.timeout(600)
def test_user_code_is_checked_by_mypy(tmp_path: Path) -> None:
    """Every example passes ``mypy --strict`` with the one override that the docs tell users to write, and what is
    wrong is found where it stands. Without the cache the whole package is checked first.
    """
    lines = [f"{name} = {value}" for name, value in USERS_MYPY.items()]
    told = (ROOT / "docs" / "api.md").read_text()
    assert all(f"`{line}`" in told for line in ("[[tool.mypy.overrides]]", *lines))
    (tmp_path / "pyproject.toml").write_text("\n".join(["[[tool.mypy.overrides]]", *lines]))
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml"),
            *("--cache-dir", ROOT / ".mypy_cache" / "users", *sorted(path.name for path in tmp_path.glob("*.py"))),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(hr.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert not [line for line in found if not line.startswith("wrong.py:")], done.stdout
    wrong = {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}
    assert {int(re.split(":", line)[1]) for line in found} == wrong, done.stdout + done.stderr


def test_a_notebook_shows_what_users_need_and_what_things_are() -> None:
    assert {*dir(hr)} == {*hr.__all__, "__version__"}
    job = hr.Job("shop")
    assert repr(job) == "<Job 'shop': no steps yet>"
    orders = job.source("orders", scripted([{"k": 1}]))
    keyed = orders.key_by("k")
    assert (repr(job), repr(orders)) == ("<Job 'shop': orders>", "<Stream 'orders' of job 'shop'>")
    assert repr(keyed) == "<KeyedStream 'orders' by k, of job 'shop'>"
    assert repr(keyed.window(hr.tumbling("5 s"))) == "<KeyedStream 'orders' by k over tumbling 5 s, of job 'shop'>"


def test_the_handle_says_how_the_run_is() -> None:
    handle = object.__new__(hr.Run)
    handle.plan = SimpleNamespace(graph=SimpleNamespace(job="shop"))  # type: ignore[assignment]
    handle.status = lambda: SimpleNamespace(state="running", cuts=1)  # type: ignore[method-assign,assignment,return-value]
    assert repr(handle) == "<Run of job 'shop': running, 1 cut>"
