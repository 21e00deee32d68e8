"""The name of one attempt at one epoch: what everything a worker writes is marked with."""

from __future__ import annotations

import msgspec


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which attempt of which epoch by which driver generation wrote something."""

    generation: int
    epoch: int
    attempt: int

    def __str__(self) -> str:
        return f"e{self.epoch:08d}-g{self.generation:04d}-a{self.attempt:03d}"

    @staticmethod
    def parse(text: str) -> Token:
        epoch, generation, attempt = text.split("-")
        return Token(int(generation[1:]), int(epoch[1:]), int(attempt[1:]))
