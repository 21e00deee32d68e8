"""Deaths at every call to the file system, for code that must finish what an earlier process began.

Death comes before the call, after it, or in the middle of a write; ``fsync`` is counted, not done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CALLS = ("fsync", "ftruncate", "pwrite", "rename", "replace", "rmdir", "unlink")
HOW = ("before", "after", "half")


class Died(BaseException):
    """The process died here; not an Exception, so that nothing tidies up after it."""


class Mortal:
    """Dies at its ``at``-th call; ``calls`` counts those made while it is awake."""

    def __init__(self, at: int, how: str) -> None:
        self._at, self._how = at, how
        self.calls = 0
        self.died_in = ""
        self._awake = False

    @contextmanager
    def awake(self) -> Iterator[None]:
        self._awake = True
        try:
            yield
        finally:
            self._awake = False

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in CALLS:
            call = (lambda descriptor: None) if name == "fsync" else getattr(os, name)
            monkeypatch.setattr(os, name, self._watched(name, call))

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            self.calls += self._awake
            if not self._awake or self.calls != self._at:
                return call(*args, **options)
            self.died_in = name
            if self._how == "half" and name == "pwrite":
                call(args[0], args[1][: len(args[1]) // 2], args[2])
            elif self._how == "after":
                call(*args, **options)
            raise Died

        return watched


def deaths(live: Callable[[Mortal, str], None], monkeypatch: pytest.MonkeyPatch) -> int:
    """Live once for each call and each way to die in it, and once through; how many calls there are."""
    at, died_in = 0, "?"
    while died_in:
        at += 1
        for how in HOW:
            if how == "half" and died_in != "pwrite":
                continue
            mortal = Mortal(at, how)
            with monkeypatch.context() as patches:
                mortal.watch(patches)
                live(mortal, f"{at}-{how}")
            died_in = mortal.died_in
    return at - 1
