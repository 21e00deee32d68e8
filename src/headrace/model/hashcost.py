"""Pages that INC-hash spills, and how many buckets to give it.

Li 2015, section 4.1.2. Pages throughout: B memory, U distinct
key-states, D input, h buckets of one write-buffer page each. Formulas assume uniform keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Buckets:
    """The numbers of buckets that need no recursion; the fewest spill least."""

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
    check_pages(memory_pages, states_pages)
    if memory_pages >= states_pages + 1:
        return Buckets(0, memory_pages - 1)
    return Buckets(max(0, math.ceil((states_pages - 1) / (memory_pages - 2) - 1)), memory_pages - 1)


def inc_io_pages(memory_pages: int, states_pages: float, input_pages: float, buckets: int) -> float:
    """Pages written and read back, 2(1 − (B−h−1)/U)·D; zero when the table holds all states."""
    inc_buckets(memory_pages, states_pages).check(buckets)
    held = (memory_pages - buckets - 1) / states_pages
    return 2 * max(0.0, 1 - held) * input_pages


def check_pages(memory_pages: int, states_pages: float) -> None:
    """Refuse less memory than two passes need."""
    minimum = math.ceil(math.sqrt(states_pages)) + 1
    if states_pages <= 0 or memory_pages < max(3, minimum):
        raise ConfigError(
            f"{memory_pages} pages of memory for {states_pages} pages of states: without recursion at least "
            f"{max(3, minimum)} are needed"
        )
