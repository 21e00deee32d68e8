"""What a controller saw, written down so that its decisions can be replayed: one JSON line per cycle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import msgspec

from headrace.errors import DataError
from headrace.measure.report import Report, plain


@dataclass(frozen=True, slots=True)
class Observation:
    """One cycle's input: the reports that came, and the parallelism that is really there.

    A trace of these replays to the same decisions.
    """

    at_s: float
    reports: tuple[Report, ...]
    parallelism: Mapping[str, int]


_ENCODER = msgspec.json.Encoder(enc_hook=plain)
_DECODER = msgspec.json.Decoder(Observation)


def write(file: TextIO, seen: Observation) -> None:
    """Append one cycle. Floats are written so that reading gives the same ones."""
    file.write(_ENCODER.encode(seen).decode() + "\n")


def read(path: Path) -> Iterator[Observation]:
    """The cycles of a trace, oldest first. A last line that was cut off by a crash is left out."""
    with path.open(encoding="utf-8") as file:
        yield from read_lines(file)


def read_lines(lines: Iterable[str]) -> Iterator[Observation]:
    """As ``read``; DataError, with the line's number, for one that is no cycle."""
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            return
        try:
            yield _DECODER.decode(line)
        except msgspec.DecodeError as error:
            raise DataError(f"line {number} of the trace is not an observation: {error}") from error
