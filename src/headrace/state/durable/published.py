"""How far results are known to be visible: a mark beside the log, which a driver that takes over goes on from."""

from __future__ import annotations

from hashlib import sha256

from headrace.errors import CorruptionError
from headrace.state.durable.storage import Storage

PUBLISHED = "published"


def read_published(storage: Storage) -> int:
    """The number of the log's entry up to which all cuts are published; 0 if that is known of none."""
    try:
        data = storage.get(PUBLISHED)
    except FileNotFoundError:
        return 0
    digits = data.partition(b" ")[0]
    if not digits.isdigit() or data != _checked(int(digits)):
        raise CorruptionError(f"the mark {PUBLISHED!r} has changed since it was written: {data[:80]!r}")
    return int(digits)


def write_published(storage: Storage, number: int) -> None:
    """All cuts up to a number of the log are published. A mark that is further on stays: publishing twice is harmless,
    but who has slept for long should not cause it.
    """
    if number > read_published(storage):
        storage.put(PUBLISHED, _checked(number))


def _checked(number: int) -> bytes:
    """A changed digit must not pass for another number."""
    return f"{number} {sha256(str(number).encode()).hexdigest()[:16]}".encode()
