"""The residency policies as the pseudo-code has them: counters in a dictionary, every decrement done.

Where the pseudo-code chooses at random, the choice is given, and must be a legal one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.index.keyindex import Admission, KeyIndex
from headrace.state.index.policies import ResidencyPolicy, Rule

Key = Hashable
NEVER = 2**63 - 1


@dataclass
class Slot:
    """A monitored key: its counter c, the tuples t it absorbed, when it is complete."""

    c: int
    t: int
    expires: int = NEVER


@dataclass
class Reference:
    """SCALLA 2.5 and 2.6, tuple by tuple; a record of weight w is w tuples that are absorbed or refused as one."""

    policy: ResidencyPolicy
    s: int
    slots: dict[Key, Slot] = field(default_factory=dict)
    refused: Counter[Key] = field(default_factory=Counter)
    evicted: list[tuple[Key, int]] = field(default_factory=list)
    decrements: int = 0
    floor: int = 0

    def record(self, key: Key, weight: int, now: int, choices: Iterator[Key]) -> bool:
        """Whether the record is absorbed; takes a choice if a slot must be emptied."""
        if key in self.slots:
            slot = self.slots[key]
            slot.c, slot.t = 1 if self.policy.rule == Rule.MARKER else slot.c + weight, slot.t + weight
            return True
        if len(self.slots) < self.s:
            self._enter(key, self.floor + weight, weight)
            return True
        c = getattr(self, f"_{self.policy.rule.name.lower()}")(weight, now, choices)
        if c is None:
            self.refused[key] += weight
            return False
        self._enter(key, c, weight)
        return True

    def drop(self, key: Key) -> None:
        """The caller forgets a key; the thesis has no such step."""
        del self.slots[key]

    def _enter(self, key: Key, c: int, weight: int) -> None:
        self.slots[key] = Slot(1 if self.policy.rule == Rule.MARKER else c, weight)

    def _inc(self, weight: int, now: int, choices: Iterator[Key]) -> int | None:
        return None

    def _frequent(self, weight: int, now: int, choices: Iterator[Key]) -> int | None:
        for left in range(weight, 0, -1):
            if self._with_counter(0):
                return left if self._evict(0, now, choices) else None
            for slot in self.slots.values():
                slot.c -= 1
            self.decrements += 1
        return None

    def _space_saving(self, weight: int, now: int, choices: Iterator[Key]) -> int | None:
        self.floor = min(slot.c for slot in self.slots.values())  # what any absent key has lost at most
        return self.floor + weight if self._evict(self.floor, now, choices) else None

    def _marker(self, weight: int, now: int, choices: Iterator[Key]) -> int | None:
        if self._with_counter(0):
            return 1 if self._evict(0, now, choices) else None
        for slot in self.slots.values():
            slot.c = 0
        return None

    def _with_counter(self, c: int) -> set[Key]:
        return {key for key, slot in self.slots.items() if slot.c == c}

    def _evict(self, c: int, now: int, choices: Iterator[Key]) -> bool:
        legal = self._with_counter(c)
        if self.policy.complete_only:
            legal = {key for key in legal if self.slots[key].expires <= now}
        if not legal:
            return False
        victim = next(choices)
        assert victim in legal, f"{victim} was evicted, but only {legal} may be"
        self.evicted.append((victim, self.slots.pop(victim).t))
        return True


@dataclass
class Memory:
    """An index of whole numbers with the accumulators and the disk that its caller would have."""

    index: KeyIndex
    in_memory: Counter[int] = field(default_factory=Counter)
    on_disk: Counter[int] = field(default_factory=Counter)
    counts: Any = field(default_factory=lambda: np.zeros(0, np.int64))

    def absorb(self, keys: list[int], weights: list[int] | None = None, now: int | None = None) -> Admission:
        """Admit, count, export and release in the order that ``Admission`` asks for."""
        given = None if weights is None else np.array(weights, np.int64)
        admission = self.index.admit([pa.array(keys, pa.int64())], 0, weights=given, now=now)
        grown = np.zeros(self.index.capacity, np.int64)
        grown[: len(self.counts)] = self.counts
        self.counts = grown
        self.counts[admission.fresh] = 0
        amounts = np.ones(len(keys), np.int64) if given is None else given
        kept = admission.rows >= 0
        np.add.at(self.counts, admission.rows[kept], amounts[kept])
        for key, amount in zip(np.array(keys, np.int64)[~kept].tolist(), amounts[~kept].tolist()):
            self.on_disk[key] += amount
        self.on_disk.update(self._states(admission.evicted))
        self.index.release(admission.evicted)
        self.in_memory = Counter(self._states(self.index.all_rows()))
        return admission

    def _states(self, rows: Any) -> dict[int, int]:
        states: Counter[int] = Counter()  # one key may be evicted twice in a batch
        for key, count in zip(self.keys_of(rows), self.counts[rows].tolist()):
            states[key] += count
        return states

    def keys_of(self, rows: Any) -> list[int]:
        return list(self.index.key_columns(rows)[0].to_pylist())

    @property
    def writes(self) -> int:
        """Records and states that went to disk, before the final flush."""
        return self.index.figures.refused + self.index.figures.evictions


def index_of(s: int | None, policy: ResidencyPolicy, seed: int = 0) -> KeyIndex:
    return KeyIndex([pa.field("key", pa.int64())], slots=s, policy=policy, seed=seed)


def run(
    keys: list[int], s: int | None, policy: ResidencyPolicy, *, batch: int = 1000, weights: list[int] | None = None
) -> Memory:
    """All records through one index."""
    memory = Memory(index_of(s, policy))
    for at in range(0, len(keys), batch):
        memory.absorb(keys[at : at + batch], None if weights is None else weights[at : at + batch])
    return memory
