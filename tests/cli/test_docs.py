"""The documentation agrees with the code: its examples run, its links lead somewhere, nothing public is missing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli.main import app
from headrace.testing import run_local

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_connector_is_described():
    text = (ROOT / "docs" / "connectors.md").read_text()
    for name in (
        "generate",
        "replay",
        "files",
        "socket",
        "dataframe",
        "jsonl",
        "parquet",
        "console",
        "callback",
        "collect",
    ):
        assert name in hr.__all__
        assert f"### `hr.{name}(" in text


def test_every_command_is_in_the_readme():
    text = (ROOT / "README.md").read_text()
    commands = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    for name in [*commands, *(group.name for group in app.registered_groups)]:
        assert f"`headrace {name}" in text


def test_the_glossary_is_in_order():
    words = re.findall(r"^\| \*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert words == sorted(words)
    assert len(words) == len(set(words))
