"""The documentation agrees with the code: its examples run, its links lead somewhere, nothing public is missing."""

from __future__ import annotations

import inspect
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.api.options import STEP_DEFAULTS
from headrace.cli.main import app
from headrace.config import Transition
from headrace.launch import RUN_DEFAULTS
from headrace.testing import run_local

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_job_in_the_readme_runs(monkeypatch, tmp_path):
    jobs: list[hr.Job] = []
    monkeypatch.setattr(hr, "run", jobs.append)
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "data" / "tweets.jsonl", tmp_path)
    exec(python_blocks(ROOT / "README.md")[0], {})
    assert run_local(jobs[0])["out"]


def test_the_test_in_the_readme_passes():
    scope = {"hr": hr}
    exec(python_blocks(ROOT / "README.md")[1], scope)
    scope["test_counts"]()  # type: ignore[operator]


def test_the_job_with_late_records_does_what_the_page_says(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (job,) = [block for block in python_blocks(ROOT / "docs" / "how-it-works.md") if ".late()" in block]
    exec(job, {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def sections(text: str) -> dict[str, str]:
    """What stands under each heading of the second level."""
    return {part.partition("\n")[0]: part for part in text.split("\n## ")[1:]}


def signatures(text: str) -> dict[str, str]:
    """Calls ``hr.name(parameters)`` that have a place of their own: a cell of a table, or a heading."""
    return dict(re.findall(r"^(?:\|(?: `\w+` \|)?|###) `hr\.(\w+)\(([^`]*)\)`", text, re.MULTILINE))


def parameters_of(call: Any) -> str:
    """A signature as the docs write it, without defaults and types."""
    parts, starred = [], False
    for name, parameter in inspect.signature(call).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts, starred = [*parts, "*"], True
        parts.append(f"**{name}" if parameter.kind is parameter.VAR_KEYWORD else name)
    return ", ".join(parts)


def defaults(text: str) -> dict[str, str]:
    """Option and default of each row of a table of options."""
    return dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, re.MULTILINE))


def test_every_public_name_is_in_the_api_and_every_name_in_it_exists():
    written = {*re.findall(r"\bhr\.(\w+)", API)}
    assert written == {*hr.__all__}
    for page in PAGES:
        if page.name != "CHANGELOG.md":  # which tells of old names
            assert {*re.findall(r"\bhr\.(\w+)\(", page.read_text())} <= {*hr.__all__}, page.name


def test_signatures_in_the_api_are_those_of_the_code():
    written = signatures(API)
    functions = {name for name in hr.__all__ if inspect.isfunction(getattr(hr, name))}
    assert written.keys() == functions
    for name in functions - {"run", "start", "collect"}:
        assert written[name] == parameters_of(getattr(hr, name)), name
    assert {name: written[name] for name in ("run", "start", "collect")} == {
        "run": "job, **options", "start": "job, **options", "collect": "job, *, by_sink, **options"
    }  # fmt: skip


def test_methods_in_the_api_are_those_of_the_code():
    part = sections(API)["Jobs and streams"]
    blocks = re.split(r"^\| `hr\.(\w+)` ", part, flags=re.MULTILINE)[1:]
    for owner, text in zip(blocks[::2], blocks[1::2]):
        kind = getattr(hr, owner)
        methods = {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
        used_by_streams = {"add", "auto_name", "node"}
        assert {*re.findall(r"^\|? ?\| `(\w+)\(", text, re.MULTILINE)} - {owner} == methods - used_by_streams, owner
    handle = {name for name in dir(hr.Run) if not name.startswith("_")} - {"begin", "order"}
    assert {*re.findall(r"^\| `(\w+)(?:\([^`]*\))?` \|", API.partition("`hr.Run` is")[2], re.MULTILINE)} == handle


def test_options_and_settings_in_the_api_have_their_defaults():
    assert defaults(sections(API)["Jobs and streams"]) == {name: repr(value) for name, value in STEP_DEFAULTS.items()}
    written = defaults(sections(API)["Running"].partition("`hr.Run` is")[0])
    assert written == {name: repr(value) for name, value in (RUN_DEFAULTS | {"hybrid": (0.5, 2.5, 1.0)}).items()}
    assert Transition(0.5, 2.5, 1.0) == RUN_DEFAULTS["hybrid"]


def test_errors_in_the_api_are_what_they_are_said_to_be():
    written = dict(re.findall(r"^\| `hr\.(\w+Error)` \| `(\w+)` \|", API, re.MULTILINE))
    assert written.keys() == {name for name in hr.__all__ if name.endswith("Error")}
    for name, builtin in written.items():
        assert issubclass(getattr(hr, name), __builtins__[builtin]), name


def test_every_connector_is_described():
    text = (ROOT / "docs" / "connectors.md").read_text()
    connectors = signatures(sections(API)["Sources and sinks"])
    assert len(connectors) == 11 and signatures(text) == connectors


def test_every_command_is_in_the_readme():
    text = (ROOT / "README.md").read_text()
    commands = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    for name in [*commands, *(group.name for group in app.registered_groups)]:
        assert f"`headrace {name}" in text


def test_the_glossary_is_in_order():
    words = re.findall(r"^\| \*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert words == sorted(words)
    assert len(words) == len(set(words))
