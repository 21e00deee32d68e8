"""Makes freed memory go back to the system, so that a memory bound is also what the system sees.

By default glibc raises the size from which arrays have pages of their own to whatever was freed last, and
Arrow's allocator keeps pages for later: tables that grow by doubling leave more behind than they hold.
"""

from __future__ import annotations

import ctypes
from functools import cache

import pyarrow as pa

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of mallopt(3)."""
_OWN_PAGES_BYTES = 131_072
"""glibc's own start value; setting it keeps it from moving."""


@cache
def give_back_freed() -> None:
    """For the rest of this process's life. Where there is no mallopt, things stay as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_MMAP_THRESHOLD, _OWN_PAGES_BYTES)
    mallopt(_TRIM_THRESHOLD, _OWN_PAGES_BYTES)
    pa.set_memory_pool(pa.system_memory_pool())
