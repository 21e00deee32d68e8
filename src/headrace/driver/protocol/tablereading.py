"""Tables of lookups: when they are read again, and which edition of each holds from which cut on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.driver.protocol.events import Instruction, Remove, Say
from headrace.runtime.operators.lookups import lookups_of
from headrace.runtime.plan import JobPlan
from headrace.state.durable.editions import EditionRead, ReadEdition, edition_stem, has_columns
from headrace.state.durable.manifest import Manifest


@dataclass(slots=True)
class Editions:
    """``columns`` are those of each lookup's editions, by step, ``refresh_s`` how often its table is read. Every driver
    reads each once.

    ``wanted`` are the newest ones. What the newest version says holds (``held``), unless it has other columns, or the
    lookup is new: then that with which the first attempt began.
    """

    columns: Mapping[str, pa.Schema]
    refresh_s: Mapping[str, float | None]
    generation: int = 0
    held: dict[str, str] = field(default_factory=dict)
    wanted: dict[str, str] = field(default_factory=dict)
    announced: dict[str, str] = field(default_factory=dict)
    _kept: list[frozenset[str]] = field(default_factory=list)
    _stored: set[str] = field(default_factory=set)
    _reading: set[str] = field(default_factory=set)
    _due_s: dict[str, float] = field(default_factory=dict)
    _troubled: set[str] = field(default_factory=set)
    _serial: int = 0

    @staticmethod
    def of(plan: JobPlan) -> Editions:
        lookups = lookups_of(plan)
        refresh_us = {step: node.table.refresh_us for step, (node, _) in lookups.items()}
        return Editions(
            {step: columns for step, (_, columns) in lookups.items()},
            {step: us / 1e6 if us is not None else None for step, us in refresh_us.items()},
        )

    def begin(self, manifests: Iterable[Manifest]) -> None:
        """The log was read; ``manifests`` are its last two."""
        for manifest in manifests:
            self._take(manifest)

    def logged(self, manifest: Manifest) -> list[Instruction]:
        """A cut has happened."""
        self._take(manifest)
        self.announced = {}
        return self._tidied()

    def _take(self, manifest: Manifest) -> None:
        fit = {step: manifest.editions.get(step) for step in self.columns}
        self.held = {step: name for step, name in fit.items() if name and has_columns(name, self.columns[step])}
        named = frozenset(manifest.editions.values())
        self._kept = [*self._kept[-1:], named]
        self._stored |= named

    def _tidied(self) -> list[Instruction]:
        """Remove what neither the last two versions name, nor the running attempt, nor a cut to come."""
        needed = (one.values() for one in (self.held, self.announced, self.wanted))
        gone = self._stored.difference(*self._kept, *needed)
        self._stored -= gone
        return [Remove(tuple(sorted(gone)))] if gone else []

    @property
    def complete(self) -> bool:
        """Whether there is one for each lookup."""
        return self.columns.keys() <= {*self.wanted, *self.held}

    def hold(self) -> dict[str, str]:
        """What lookups of an attempt that begins now begin with."""
        self.held = {**self.wanted, **self.held}
        return self.held

    def announce(self) -> dict[str, str]:
        """What the cut that is asked for will change."""
        self.announced = {step: name for step, name in self.wanted.items() if self.held.get(step) != name}
        return self.announced

    def after(self, changed: Mapping[str, str], *, end: bool) -> dict[str, str]:
        """What holds after a cut. After the last one of a batch all subtasks begin anew, with the newest ones."""
        if end:
            self.announced = dict(self.wanted)
        return {**self.held, **(self.announced if end else changed)}

    def due(self, now_s: float) -> list[Instruction]:
        """Which tables are to be read now."""
        out: list[Instruction] = []
        for step, columns in self.columns.items():
            if step not in self._reading and now_s >= self._due_s.get(step, 0.0):
                self._reading.add(step)
                self._serial += 1
                known = self.wanted.get(step) or self.held.get(step)
                stem = edition_stem(self.generation, self._serial, columns)
                needed = frozenset[str]().union(*self._kept)
                out.append(ReadEdition(step, stem, known, self.generation, needed))
        return out

    def on(self, event: EditionRead, now_s: float) -> list[Instruction]:
        """A table was read. One that cannot be read again stays as it is, which is told once."""
        self._reading.discard(event.step)
        refresh_s = self.refresh_s[event.step]
        self._due_s[event.step] = now_s + refresh_s if refresh_s is not None else float("inf")
        if event.edition is not None:
            self.wanted[event.step] = event.edition
            self._stored.add(event.edition)
            self._troubled.discard(event.step)
            return self._tidied()
        if event.step in self._troubled:
            return []
        self._troubled.add(event.step)
        return [Say("lookup", f"{event.error}; step {event.step!r} goes on with the table it has", loud=True)]
