"""Segments: files of blocks, one block per slice and change, checksummed and written atomically.

A segment is ``magic, blocks…``; a block is ``header length, header (msgpack), puts, deletes``, the
last two as Arrow IPC streams (no deletes: no bytes; puts in two streams where they say something twice, see
``state.durable.leanrows``). Small blocks are mostly schema and are compressed. A block reference in a manifest has the file, position, length and checksum, so a flipped
bit, a torn or swapped file is found at each read and named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import msgpack
import msgspec
import pyarrow as pa
import xxhash

from headrace.errors import CorruptionError
from headrace.state.durable.changes import Change, Digest, no_ids
from headrace.state.durable.leanrows import LeanRows, lean, whole
from headrace.state.durable.storage import Storage
from headrace.tokens import Token

_MAGIC = b"HRSEG1\n"
FORMAT_ID = 3
"""What segments are made of; a driver refuses checkpoints of another format."""
SEGMENTS = "segments"
_SMALL_BYTES = 16_384


class BlockRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a block is, and what its bytes must be. ``file`` is a name in the checkpoint's storage."""

    file: str
    offset: int
    length: int
    checksum: str
    rows: int
    full: bool


class StoredChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step's change of one slice as a subtask reports it: where it is, and the digests before and afterwards."""

    step: str
    slice: int
    parent: Digest
    digest: Digest
    block: BlockRef


def write_segment(
    storage: Storage, name: str, changes: Iterable[tuple[str, Change]], *, full: bool = False
) -> list[StoredChange]:
    """Write changes of several steps into one file; it is durable when this returns. No changes: no file.

    They are written as they come, so that only one of them need be in memory.
    """
    stored: list[StoredChange] = []
    left = iter(changes)

    def parts(first: tuple[str, Change]) -> Iterator[bytes | pa.Buffer]:
        yield _MAGIC
        offset = len(_MAGIC)
        for step, change in chain((first,), left):
            body = _encode(step, change)
            length = sum(len(part) for part in body)
            block = BlockRef(name, offset, length, checksum(*body), change.puts.num_rows, full)
            stored.append(StoredChange(step, change.slice, change.parent, change.digest, block))
            offset += length
            yield from body

    if (first := next(left, None)) is not None:
        storage.put(name, parts(first))
    return stored


def read_block(storage: Storage, ref: BlockRef, step: str, slice: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """A block's puts and deletes, or CorruptionError naming it. An OSError may pass by itself, and is raised as it is."""
    where = f"block of step {step!r}, slice {slice} in {ref.file} at {ref.offset}"
    try:
        body = storage.get_range(ref.file, ref.offset, ref.length)
    except FileNotFoundError as error:
        raise CorruptionError(f"{where} cannot be read: {error}") from error
    if len(body) != ref.length:
        raise CorruptionError(f"{where} is cut off: {len(body)} of {ref.length} bytes")
    if checksum(body) != ref.checksum:
        raise CorruptionError(f"{where} has changed since it was written (checksum differs)")
    size = int.from_bytes(body[:4], "little")
    header = msgpack.unpackb(body[4 : 4 + size])
    if header["step"] != step or header["slice"] != slice:
        raise CorruptionError(f"{where} belongs to step {header['step']!r}, slice {header['slice']}")
    content = body[4 + size :]
    if "unpacked" in header:
        content = pa.decompress(content, header["unpacked"], codec="zstd", asbytes=True)
    puts, rest = _decode(content[: header["puts"]]), content[header["puts"] :]
    if "lean" in header:
        columns, names, single = header["lean"]
        puts, rest = whole(LeanRows(puts, _decode(rest[:single]), columns), names), rest[single:]
    return puts, _decode(rest) if rest else no_ids()


def segment_token(file: str) -> Token | None:
    """The cut that a segment belongs to: its name is ``<token>-…``; None for what is not ours.

    >>> segment_token("segments/c0000000017-g000002-a0000-s01-0000-00.seg")
    Token(generation=2, attempt=0, cut=17)
    """
    try:
        return Token.parse("-".join(file.rpartition("/")[2].split("-")[:3]))
    except (ValueError, IndexError):
        return None


def checksum(*body: bytes | pa.Buffer) -> str:
    """What tells a changed block: against damage, not against malice, and so as cheap as reading the bytes."""
    found = xxhash.xxh3_128()
    for part in body:
        found.update(part)
    return found.hexdigest()


def _encode(step: str, change: Change) -> list[bytes | pa.Buffer]:
    """A block, in parts: what is large is not copied to be joined."""
    slim = lean(change.puts)
    parts: list[bytes | pa.Buffer] = [_ipc(change.puts if slim is None else slim.different)]
    header: dict[str, Any] = {"step": step, "slice": change.slice, "puts": len(parts[0])}
    if slim is not None:
        parts.append(_ipc(slim.single))
        header["lean"] = slim.columns, change.puts.schema.names, len(parts[1])
    if change.deletes.num_rows:
        parts.append(_ipc(change.deletes))
    size = sum(len(part) for part in parts)
    if size < _SMALL_BYTES:
        header["unpacked"] = size
        parts = [pa.compress(b"".join(parts), codec="zstd")]
    packed = msgpack.packb(header)
    return [len(packed).to_bytes(4, "little") + packed, *parts]


def _ipc(batch: pa.RecordBatch) -> pa.Buffer:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue()


def _decode(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
