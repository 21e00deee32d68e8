"""Synthetic video for ``bench livestream``: packets in, four small transformations, packets out.

The job is the thesis's: decode, merge the feeds of a group into one picture, lay a marquee over it, encode. The codec
is ours (coarse blocks, mixed; then every other pixel, in eight shades, deflated), with pictures of the papers' size:
320 x 240 in, a group of four decoded in 300 KB. A record is what the feeds of one group sent for one moment, so
that no step keeps state: the papers' mergers wait for packets of four connections, here the source has them together.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Picture = npt.NDArray[np.uint8]
FEEDS, WIDTH, HEIGHT, BLOCK = 4, 320, 240, 8
PERIOD = 50
"""Pictures after which a group's film repeats, so that the reference is small."""
PACKET_BYTES = FEEDS * (WIDTH // BLOCK) * (HEIGHT // BLOCK)
_MARQUEE_ROWS = 24
_SHADE = 32


@dataclass(frozen=True, slots=True)
class Film:
    """What ``groups`` of four cameras see; record ``n`` is the next moment of group ``n % groups``."""

    groups: int

    def __call__(self, n: Ints) -> dict[str, Any]:
        group, moment = n % self.groups, n // self.groups % PERIOD
        return {"seq": n, "moment": moment, "packets": [self.packets(int(g), int(m)) for g, m in zip(group, moment)]}

    def packets(self, group: int, moment: int) -> bytes:
        """The packets of a group's feeds, 1,200 bytes each: moving waves, one shade per block."""
        feed = np.arange(FEEDS)[:, None, None]
        y, x = np.mgrid[0 : HEIGHT // BLOCK, 0 : WIDTH // BLOCK]
        phase = (x * (feed + 1) + y * (group + 2)) / 9 + 2 * np.pi * moment / PERIOD
        waves: Picture = (127 + 120 * np.sin(phase)).astype(np.uint8)
        return waves.tobytes()

    def checksums(self) -> Ints:
        """The right answers: of each group and moment the encoded picture's checksum."""
        pictures = [[self.packets(group, moment) for moment in range(PERIOD)] for group in range(self.groups)]
        return np.array([[zlib.crc32(whole(p, m)) for m, p in enumerate(film)] for film in pictures])


def decode(packets: bytes) -> bytes:
    """Packets to full pictures: each block spread out, then mixed with a shifted copy."""
    coarse = np.frombuffer(packets, np.uint8).reshape(FEEDS, HEIGHT // BLOCK, WIDTH // BLOCK)
    pictures = (coarse // 2).repeat(BLOCK, axis=1).repeat(BLOCK, axis=2)
    return (pictures + np.roll(pictures, BLOCK // 2, axis=2)).tobytes()


def merge(pictures: bytes) -> bytes:
    """Four pictures to one of the same size, each a quarter of it."""
    feeds = np.frombuffer(pictures, np.uint8).reshape(FEEDS, HEIGHT, WIDTH) // 4
    small = feeds[:, ::2, ::2] + feeds[:, ::2, 1::2] + feeds[:, 1::2, ::2] + feeds[:, 1::2, 1::2]
    return np.vstack([np.hstack(list(small[:2])), np.hstack(list(small[2:]))]).tobytes()


def overlay(picture: bytes, moment: int) -> bytes:
    """A marquee across the foot of the picture, moved on a little each moment."""
    below: Picture = np.frombuffer(picture, np.uint8).reshape(HEIGHT, WIDTH).copy()
    pattern = ((np.arange(WIDTH) + 4 * moment) // 6 % 2 * 200).astype(np.uint16)
    foot = below[-_MARQUEE_ROWS:]
    foot[:] = (foot + pattern) // 2
    return below.tobytes()


def encode(picture: bytes) -> bytes:
    shades = np.frombuffer(picture, np.uint8).reshape(HEIGHT, WIDTH)[::2, ::2] // _SHADE
    return zlib.compress(shades.tobytes(), 6)


def whole(packets: bytes, moment: int) -> bytes:
    """All four steps, one after the other: the reference."""
    return encode(overlay(merge(decode(packets)), moment))


@dataclass(frozen=True, slots=True)
class Work:
    """One of the steps on a batch: ``fn`` of the columns it reads, the first of which is replaced by what it makes."""

    fn: Callable[..., bytes]
    reads: tuple[str, ...]
    makes: str

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        columns = [records.column(name).to_pylist() for name in self.reads]
        made = pa.array([self.fn(*values) for values in zip(*columns)], pa.binary())
        return records.set_column(records.schema.get_field_index(self.reads[0]), self.makes, made)


STEPS = {
    "decoder": Work(decode, ("packets",), "pictures"),
    "merger": Work(merge, ("pictures",), "picture"),
    "overlay": Work(overlay, ("picture", "moment"), "overlaid"),
    "encoder": Work(encode, ("overlaid",), "encoded"),
}
