"""What a subtask writes into the header of every buffer so that its receiver can measure."""

from __future__ import annotations

from dataclasses import dataclass

_GOLDEN = 0x9E3779B1
"""2³² divided by the golden ratio: multiples of it, modulo 2³², are spread as evenly as can be."""


@dataclass(slots=True)
class Stamp:
    """How far this host's clock is behind the driver's, and the version of the settings in force.

    Times in headers are the driver's: the sender adds its offset, the receiver subtracts its own.
    """

    offset_us: int = 0
    version: int = 0


def tagged(edge: int, sender: int, sequence: int, share: float) -> bool:
    """Whether a buffer is one of the sampled; sender and receiver agree without a word.

    The thesis (section 2.5 of our specification) draws each event by luck. Here a share of the
    sequence is taken evenly, at distances that repeat no period of the load.
    """
    return (sequence * _GOLDEN + edge * 0x85EBCA6B + sender * 0xC2B2AE35) & 0xFFFFFFFF < share * 2**32
