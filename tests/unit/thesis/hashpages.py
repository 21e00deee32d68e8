"""What Li 2015, sections 4.1.2 and 4.1.3, says of buckets and slots beyond what ``headrace explain`` uses."""

from __future__ import annotations

import math

from headrace.errors import ConfigError
from headrace.model.hashcost import Buckets, check_pages


def inc_blind_pages(memory_pages: int, states_pages: float, input_pages: float) -> float:
    """What not knowing U costs: h = B−1 instead of the (real-valued) lower bound.

    2((B−1)²/U − 1)·D/(B−2). The thesis prints it without the factor 2, which its own example needs.
    """
    check_pages(memory_pages, states_pages)
    if memory_pages > states_pages:
        raise ConfigError(f"{states_pages} pages of states fit in {memory_pages}: without spill there is no extra")
    return 2 * ((memory_pages - 1) ** 2 / states_pages - 1) * input_pages / (memory_pages - 2)


def dinc_buckets(memory_pages: int, states_pages: float) -> Buckets:
    """U/(B−1) ≤ h ≤ B−1; take the fewest, which leaves most slots."""
    check_pages(memory_pages, states_pages)
    return Buckets(math.ceil(states_pages / (memory_pages - 1)), memory_pages - 1)


def dinc_slots(memory_pages: int, buckets: int, states_per_page: int, *, buffer_pages: int = 1) -> int:
    """s = (B − h·p)·n_p slots beside ``buckets`` write buffers of ``buffer_pages`` each."""
    table_pages = memory_pages - buckets * buffer_pages
    if table_pages < 1:
        raise ConfigError(f"{buckets} write buffers of {buffer_pages} pages leave no slot in {memory_pages} pages")
    return table_pages * states_per_page
