"""What a new user has: a directory with some files, the API, the command line, and here no Java."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headrace.cli.main import app

VISITS = """\
user,at,page,seconds
ann,2026-03-02T09:00:00Z,home,12
bob,2026-03-02T09:01:00Z,search,30
ann,2026-03-02T09:05:00Z,search,41
bob,2026-03-02T09:45:00Z,home,5
ann,2026-03-02T10:00:00Z,cart,90
cat,2026-03-02T10:01:00Z,cart,8
ann,2026-03-02T10:10:00Z,home,3
cat,2026-03-02T10:12:00Z,cart,20
"""
ORDERS = """\
{"order": "o-1", "customer": "bob", "amount": 106, "at": "2026-03-02T09:00:00Z"}
{"order": "o-2", "customer": "ann", "amount": 98, "at": "2026-03-02T09:00:20Z"}
{"order": "o-3", "customer": "ann", "amount": 27, "at": "2026-03-02T09:01:00Z"}
{"order": "o-4", "customer": "bob", "amount": 40, "at": "2026-03-02T09:30:00Z"}
"""
PAYMENTS = """\
{"order": "o-1", "paid": 106, "at": "2026-03-02T09:01:00Z"}
{"order": "o-9", "paid": 5, "at": "2026-03-02T09:03:00Z"}
{"order": "o-3", "paid": 27, "at": "2026-03-02T09:11:00Z"}
{"order": "o-2", "paid": 98, "at": "2026-03-02T09:11:00Z"}
"""
FILES = {
    "visits.csv": VISITS,
    "orders.jsonl": ORDERS,
    "payments.jsonl": PAYMENTS,
    "headless.csv": "".join(VISITS.splitlines(keepends=True)[1:]),
    "broken.csv": VISITS.replace("home,5", "home,five"),
    "visits.dat": VISITS,
    "rates.csv": "currency,rate\nEUR,1.0\nUSD,0.9\n",
    "used/part-00000001.jsonl": "{}\n",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's directory. Whoever gets as far as Spark is told that there is no Java: a mistake must be found before."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return tmp_path


@pytest.fixture
def headrace(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """``headrace(*arguments)`` runs the command, and forgets the apps that it has loaded."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, value in {"PYTHONPATH": "", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> Result:
        known = set(sys.modules)
        try:
            return CliRunner().invoke(app, arguments)
        finally:
            for name in set(sys.modules) - known:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(here)):
                    del sys.modules[name]

    return run
