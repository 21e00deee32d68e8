"""The version log: what has happened to a job's state, and the only fence between drivers.

Entries 1, 2, 3, … are created exclusively, one after the other. Each says either that a driver has opened the log, and
its number is that driver's generation, or that a cut has happened, with the manifest of the state after it. Rules 16 to
23 of the protocol (``docs/how-it-works.md``) are about when an entry may be made, and when old ones may be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import islice

import msgspec
import pyarrow as pa

from headrace.errors import CorruptionError, StateError
from headrace.state.durable.manifest import Manifest
from headrace.state.durable.storage import Storage

LOG = "log"
_MAGIC = b"HRLOG1\n"
_SUM_BYTES, _SIZE_BYTES = 32, 8
_EARLIER_FOLDERS = ("manifests", "picks", "generations")
"""What checkpoints were made of before there was a version log."""


class Opened(msgspec.Struct, frozen=True, tag="open", tag_field="kind"):
    """OPEN: a driver has taken over. Its generation is the entry's number; host, process and time tell it from others."""

    generation: int
    host: str
    pid: int
    at_us: int


class CutEntry(msgspec.Struct, frozen=True, tag="cut", tag_field="kind"):
    """CUT: a version of the state, which follows that of the cut before."""

    manifest: Manifest


Entry = Opened | CutEntry
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)


def encode_entry(number: int, entry: Entry) -> bytes:
    """An entry's bytes: their sum counts for this number only, so entries cannot be mixed up."""
    body = _ENCODER.encode(entry)
    packed: bytes = len(body).to_bytes(_SIZE_BYTES, "little") + pa.compress(body, codec="zstd", asbytes=True)
    return _MAGIC + _sum(number, packed) + packed


def decode_entry(number: int, data: bytes) -> Entry:
    """An entry out of its bytes; CorruptionError naming it if they are not those that were written."""
    head = len(_MAGIC) + _SUM_BYTES
    packed = data[head:]
    if data[:head] != _MAGIC + _sum(number, packed):
        raise CorruptionError(f"entry {number} of the version log has changed since it was written (sha256 differs)")
    try:
        size = int.from_bytes(packed[:_SIZE_BYTES], "little")
        entry: Entry = _DECODER.decode(pa.decompress(packed[_SIZE_BYTES:], size, codec="zstd", asbytes=True))
    except (ValueError, OSError) as error:
        raise CorruptionError(f"entry {number} of the version log cannot be read: {error}") from error
    return entry


class VersionLog:
    """The entries below ``log`` in a checkpoint's storage. It remembers nothing: each call looks."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def numbers(self) -> list[int]:
        """The numbers of the entries, ascending. StateError if the checkpoint is older than version logs."""
        names = [name.rpartition("/")[2] for name in self._storage.names(LOG)]
        found = sorted(int(name) for name in names if name.isdecimal())
        if not found:
            self._refuse_earlier()
        return found

    def newest(self) -> int:
        """The number of the newest entry, 0 if there is none."""
        return max(self.numbers(), default=0)

    def read(self, number: int) -> Entry:
        """An entry; CorruptionError if it is damaged, FileNotFoundError if there is none."""
        return decode_entry(number, self._storage.get(_name(number)))

    def append(self, number: int, entry: Entry) -> bool:
        """Create an entry; False if there is one of that number.

        An entry counts only if there is none of a higher number: those that were forgotten leave their numbers free, and
        who has slept for long may get one of them. After an ``OSError`` only ``read`` tells whether there is an entry.
        """
        return self._storage.put_if_absent(_name(number), encode_entry(number, entry))

    def newest_cut(self, upto: int | None = None) -> tuple[int, CutEntry] | None:
        """The last cut, or the last one whose number is not above ``upto``, with its number; None if there is none."""
        return next(((number, cut) for number, cut in self._line() if upto is None or number <= upto), None)

    def last_cuts(self, count: int) -> list[tuple[int, CutEntry]]:
        """The last cuts, at most so many, oldest first."""
        return list(islice(self._line(), count))[::-1]

    def cuts(self) -> list[tuple[int, CutEntry]]:
        """All cuts, oldest first."""
        return list(self._line())[::-1]

    def forget_before(self, number: int) -> list[str]:
        """Delete entries below a number, oldest first, but none from the last but one cut on; returns their names.

        So whatever is left is the newest part of the log, and has two versions if there ever were two.
        """
        kept = self.last_cuts(2)
        if len(kept) < 2:
            return []
        names = [_name(old) for old in self.numbers() if old < min(number, kept[0][0])]
        for name in names:
            self._storage.delete(name)
        return names

    def _line(self) -> Iterator[tuple[int, CutEntry]]:
        """The cuts that follow each other and end with the newest, newest first.

        What else there may be was put into a number that had been forgotten, by a driver that was fenced for it.
        """
        follower: Manifest | None = None
        numbers = self.numbers()
        while numbers:
            number = numbers.pop()
            try:
                entry = self.read(number)
            except FileNotFoundError:
                if follower is not None:
                    return  # forgotten just now, and so is all that is older
                numbers = self.numbers()  # all that was there is, so there are newer ones by now
                continue
            if isinstance(entry, CutEntry) and (follower is None or follower.base == entry.manifest.token):
                follower = entry.manifest
                yield number, entry

    def _refuse_earlier(self) -> None:
        if any(self._storage.names(folder) for folder in _EARLIER_FOLDERS):
            raise StateError(
                "this checkpoint was made by a version of Headrace that had no version log, and cannot be read any more; "
                "start with a new checkpoint, or finish the job with the Headrace that made it"
            )


def _name(number: int) -> str:
    return f"{LOG}/{number:010d}"


def _sum(number: int, packed: bytes) -> bytes:
    return sha256(number.to_bytes(8, "little") + packed).digest()
