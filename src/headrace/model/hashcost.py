"""Pages that the hash engines spill, and how many buckets and slots to give them.

Li 2015, sections 4.1.2 (INC-hash) and 4.1.3 (DINC-hash). Pages throughout: B memory, U distinct
key-states, D input, h buckets of one write-buffer page each. Formulas assume uniform keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Buckets:
    """The numbers of buckets that need no recursion; fewest spills least."""

    fewest: int
    maximum: int

    def check(self, buckets: int) -> None:
        if not self.fewest <= buckets <= self.maximum:
            raise ConfigError(f"{buckets} buckets would recurse: use {self.fewest} to {self.maximum}")


def inc_buckets(memory_pages: int, states_pages: float) -> Buckets:
    """(U−1)/(B−2) − 1 ≤ h ≤ B−1; none at all when the states fit, refused below B = √U + 1.

    >>> inc_buckets(102, 1001)
    Buckets(fewest=9, maximum=101)
    >>> inc_buckets(102, 101)
    Buckets(fewest=0, maximum=101)
    """
    _check_memory(memory_pages, states_pages)
    if memory_pages >= states_pages + 1:
        return Buckets(0, memory_pages - 1)
    return Buckets(max(0, math.ceil((states_pages - 1) / (memory_pages - 2) - 1)), memory_pages - 1)


def inc_io_pages(memory_pages: int, states_pages: float, input_pages: float, buckets: int) -> float:
    """Pages written and read back, 2(1 − (B−h−1)/U)·D; zero when the table holds all states."""
    inc_buckets(memory_pages, states_pages).check(buckets)
    held = (memory_pages - buckets - 1) / states_pages
    return 2 * max(0.0, 1 - held) * input_pages


def inc_blind_pages(memory_pages: int, states_pages: float, input_pages: float) -> float:
    """What not knowing U costs: h = B−1 instead of the (real-valued) lower bound.

    2((B−1)²/U − 1)·D/(B−2). The thesis prints it without the factor 2, which its own example needs.
    """
    _check_memory(memory_pages, states_pages)
    if memory_pages > states_pages:
        raise ConfigError(f"{states_pages} pages of states fit in {memory_pages}: without spill there is no extra")
    return 2 * ((memory_pages - 1) ** 2 / states_pages - 1) * input_pages / (memory_pages - 2)


def dinc_buckets(memory_pages: int, states_pages: float) -> Buckets:
    """U/(B−1) ≤ h ≤ B−1; take the fewest, which leaves most slots."""
    _check_memory(memory_pages, states_pages)
    return Buckets(math.ceil(states_pages / (memory_pages - 1)), memory_pages - 1)


def dinc_slots(memory_pages: int, buckets: int, states_per_page: int, *, buffer_pages: int = 1) -> int:
    """s = (B − h·p)·n_p slots beside ``buckets`` write buffers of ``buffer_pages`` each."""
    table_pages = memory_pages - buckets * buffer_pages
    if table_pages < 1:
        raise ConfigError(f"{buckets} write buffers of {buffer_pages} pages leave no slot in {memory_pages} pages")
    return table_pages * states_per_page


def _check_memory(memory_pages: int, states_pages: float) -> None:
    minimum = math.ceil(math.sqrt(states_pages)) + 1
    if states_pages <= 0 or memory_pages < max(3, minimum):
        raise ConfigError(
            f"{memory_pages} pages of memory for {states_pages} pages of states: without recursion at least "
            f"{max(3, minimum)} are needed"
        )
