"""Upkeep of a checkpoint in a process of its own, which runs only where nobody else wants a core.

Merging a gigabyte takes seconds of a core, and in the driver's process it would hold the interpreter that cuts need.
The process is started when there is first something to do, leaves when there has been nothing for a
minute or the driver is gone, and is started again. It is told everything; nothing is lost with it but unnamed files.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Protocol

import msgspec

from headrace.errors import CorruptionError, HeadraceError
from headrace.state.durable.compaction import compact, long_chains
from headrace.state.durable.manifest import Manifest, Rewrite
from headrace.state.durable.storage import LocalStorage, Storage
from headrace.tokens import Attempt

_SIZE_BYTES = 8
_PATIENCE_S = 60.0
"""For how long the process waits for work."""
_IDLE_S = 30.0
_TRIES = 3
_COMPETING_NICE = 10
_PDEATHSIG = 1
"""Of prctl(2): the signal for when whoever started this process is gone."""


class Tidying(Protocol):
    """Who does the work that can wait."""

    def compact(self, manifest: Manifest, by: Attempt, serial: int) -> tuple[Rewrite, ...]:
        """As ``compaction.compact``: OSError if it could not be done, CorruptionError if blocks are damaged."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Delete objects; OSError if some are left."""
        ...

    def stop(self) -> None:
        """Give up what is being done, soon: whoever waits for it gets an OSError. May be called by any thread."""
        ...

    def close(self) -> None:
        """Nothing will be asked any more."""
        ...


class TidyingHere:
    """In the caller's thread, on any storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def compact(self, manifest: Manifest, by: Attempt, serial: int) -> tuple[Rewrite, ...]:
        return compact(self._storage, manifest, by, serial)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._storage.delete(name)

    def stop(self) -> None:
        """What was begun is finished."""

    def close(self) -> None:
        """Nothing is held."""


class Merge(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    manifest: Manifest
    by: Attempt
    serial: int


class Delete(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    names: tuple[str, ...]


class Tidied(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    rewrites: tuple[Rewrite, ...]


class NotTidied(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    why: str
    damaged: bool


_WORK: msgspec.msgpack.Decoder[Merge | Delete] = msgspec.msgpack.Decoder(Merge | Delete)
_ANSWER: msgspec.msgpack.Decoder[Tidied | NotTidied] = msgspec.msgpack.Decoder(Tidied | NotTidied)


class TidyingAside:
    """In a process beside, for a checkpoint in a directory. One thread uses it; ``stop`` may be called by another.

    Where all cores are busy all the time the idlest gets none of them. If work is not done in ``_IDLE_S`` it is begun anew
    by a process that competes, and so is what follows.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None
        self._idly, self._stopped = True, False

    def compact(self, manifest: Manifest, by: Attempt, serial: int) -> tuple[Rewrite, ...]:
        long = {key: manifest.slices[key] for key in long_chains(manifest)}
        return self._ask(Merge(replace(manifest, slices=long, staged=()), by, serial)).rewrites

    def remove(self, names: Iterable[str]) -> None:
        self._ask(Delete(tuple(names)))

    def stop(self) -> None:
        self._stopped = True
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """Without input the process leaves; what it is at is given up."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _ask(self, work: Merge | Delete) -> Tidied:
        for _ in range(_TRIES):  # it may just have left for want of work, or get no core
            if self._stopped:
                break
            if (answer := self._answer(work)) is None:
                self.close()
                continue
            if isinstance(answer, NotTidied):
                raise CorruptionError(answer.why) if answer.damaged else OSError(answer.why)
            return answer
        raise OSError("the process that tidies the checkpoint has ended")

    def _answer(self, work: Merge | Delete) -> Tidied | NotTidied | None:
        """None if the process has ended, or has to be."""
        if self._process is None:
            command = [sys.executable, "-P", "-m", __name__, str(self._root)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            make_way(self._process.pid, idly=self._idly)
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            _put(self._process.stdin, msgspec.msgpack.encode(work))
            if self._idly and not select.select([self._process.stdout], [], [], _IDLE_S)[0]:
                self._idly = False
                return None
            answer = _get(self._process.stdout)
        except OSError:
            return None
        return _ANSWER.decode(answer) if answer is not None else None


def _put(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(len(message).to_bytes(_SIZE_BYTES, "little") + message)
    pipe.flush()


def _get(pipe: IO[bytes]) -> bytes | None:
    """The next message; None at the end."""
    head = pipe.read(_SIZE_BYTES)
    size = int.from_bytes(head, "little")
    message = pipe.read(size)
    return message if len(head) == _SIZE_BYTES and len(message) == size else None


def serve(here: TidyingHere, asked: IO[bytes], answers: IO[bytes]) -> None:
    """Do what is asked until there is no more, or nothing comes for long."""
    while select.select([asked], [], [], _PATIENCE_S)[0] and (message := _get(asked)) is not None:
        _put(answers, msgspec.msgpack.encode(_done(here, _WORK.decode(message))))


def _done(here: TidyingHere, work: Merge | Delete) -> Tidied | NotTidied:
    try:
        if isinstance(work, Merge):
            return Tidied(here.compact(work.manifest, work.by, work.serial))
        here.remove(work.names)
    except (OSError, HeadraceError) as error:
        return NotTidied(str(error), isinstance(error, CorruptionError))
    return Tidied(())


def make_way(pid: int, *, idly: bool) -> None:
    """Whoever else wants a core that a process is on gets it, at once, where the system knows such a thing and it is wanted.

    From outside, so that it holds as soon as there is a process: what it imports takes a second of a core.
    """
    with suppress(ProcessLookupError):
        if idly and hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid) + _COMPETING_NICE)


def die_with_driver() -> None:
    """Also in the midst of work, where the system can do that; else with the next answer that nobody reads."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    (root,) = sys.argv[1:]
    die_with_driver()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    with suppress(BrokenPipeError):
        serve(TidyingHere(LocalStorage(Path(root), gently=True)), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
