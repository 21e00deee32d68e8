"""Names of what happens to a job's state: which attempt did it, and which cut it belongs to."""

from __future__ import annotations

import msgspec


class Attempt(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """One try at running the job from some version on: the driver's generation, and its number in it."""

    generation: int
    number: int

    def __str__(self) -> str:
        return f"g{self.generation:06d}-a{self.number:04d}"

    def cut(self, number: int) -> Token:
        """The name of a cut that this attempt makes."""
        return Token(self.generation, self.number, number)


class Token(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A cut of an attempt. Once it is in the version log it is the name of a version; a number alone names nothing.

    >>> Token.parse(str(Token(2, 0, 17)))
    Token(generation=2, attempt=0, cut=17)
    """

    generation: int
    attempt: int
    cut: int

    @property
    def by(self) -> Attempt:
        return Attempt(self.generation, self.attempt)

    def __str__(self) -> str:
        return f"c{self.cut:010d}-{self.by}"

    @staticmethod
    def parse(text: str) -> Token:
        cut, generation, attempt = text.split("-")
        if (cut[0], generation[0], attempt[0]) != ("c", "g", "a"):
            raise ValueError(f"{text!r} names no cut")
        return Token(int(generation[1:]), int(attempt[1:]), int(cut[1:]))
