"""Segments: files of blocks, one block per slice and change, checksummed and written atomically.

A segment is ``magic, blocks…``; a block is ``header length, header (msgpack), puts, deletes``, the
last two as Arrow IPC streams (no deletes: no bytes). Small blocks are mostly schema and are
compressed. A block reference in a manifest has the file, position, length and checksum, so a flipped
bit, a torn or swapped file is found at each read and named.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pyarrow as pa

from headrace.errors import CorruptionError
from headrace.state.durable.changes import Change, Digest, no_ids

_MAGIC = b"HRSEG1\n"
FORMAT_ID = 1
"""What checkpoints are made of; a driver refuses those of another format."""
_SMALL_BYTES = 16_384


class BlockRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a block is, and what its bytes must be. ``file`` is relative to the checkpoint."""

    file: str
    offset: int
    length: int
    checksum: str
    rows: int
    full: bool

    def to_json(self) -> list[Any]:
        return [self.file, self.offset, self.length, self.checksum, self.rows, self.full]

    @staticmethod
    def from_json(data: Sequence[Any]) -> BlockRef:
        return BlockRef(*data)


class StoredChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step's change of one slice as a subtask reports it: where it is and the digest afterwards."""

    step: str
    slice: int
    digest: Digest
    block: BlockRef


def write_segment(
    root: Path, name: str, changes: Sequence[tuple[str, Change]], *, full: bool = False
) -> list[StoredChange]:
    """Write changes of several steps into one file: temporary name, fsync, rename, fsync directory."""
    parts, stored, offset = [_MAGIC], [], len(_MAGIC)
    for step, change in changes:
        body = _encode(step, change)
        stored.append(
            StoredChange(
                step,
                change.slice,
                change.digest,
                BlockRef(name, offset, len(body), checksum(body), change.puts.num_rows, full),
            )
        )
        parts.append(body)
        offset += len(body)
    write_durably(root / name, b"".join(parts))
    return stored


def read_block(root: Path, ref: BlockRef, step: str, slice: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """A block's puts and deletes, or CorruptionError naming it."""
    where = f"block of step {step!r}, slice {slice} in {ref.file} at {ref.offset}"
    try:
        with (root / ref.file).open("rb") as file:
            file.seek(ref.offset)
            body = file.read(ref.length)
    except OSError as error:
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
    puts, deletes = content[: header["puts"]], content[header["puts"] :]
    return _decode(puts), _decode(deletes) if deletes else no_ids()


def checksum(body: bytes) -> str:
    return blake2b(body, digest_size=16).hexdigest()


def write_durably(path: Path, data: bytes) -> None:
    """All or nothing: after a crash the file has all of ``data`` or does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{zlib.crc32(os.urandom(8)):08x}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def create_exclusively(path: Path, data: bytes) -> bool:
    """Like ``write_durably``, but False (and no change) if the file exists: the first writer wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{zlib.crc32(os.urandom(8)):08x}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


def sync_directory(path: Path) -> None:
    """Make names in a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _encode(step: str, change: Change) -> bytes:
    puts = _ipc(change.puts)
    content = puts + _ipc(change.deletes) if change.deletes.num_rows else puts
    header = {"step": step, "slice": change.slice, "puts": len(puts)}
    if len(content) < _SMALL_BYTES:
        header["unpacked"] = len(content)
        content = pa.compress(content, codec="zstd", asbytes=True)
    packed = msgpack.packb(header)
    return b"".join([len(packed).to_bytes(4, "little"), packed, content])


def _ipc(batch: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = out.getvalue().to_pybytes()
    return data


def _decode(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
