"""The residency policies by name; ``state.index.residency`` says what they do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Rule(IntEnum):
    """What happens to a new key when all slots are taken."""

    INC = 0
    FREQUENT = 1
    SPACE_SAVING = 2
    MARKER = 3


@dataclass(frozen=True, slots=True)
class ResidencyPolicy:
    """A rule, and whether only complete rows may be pushed out (windows, sessions)."""

    rule: Rule
    complete_only: bool = False

    @property
    def evicts(self) -> bool:
        return self.rule != Rule.INC

    @property
    def counts(self) -> bool:
        """Whether rows know how many tuples they absorbed."""
        return self.rule in (Rule.FREQUENT, Rule.SPACE_SAVING)


INC = ResidencyPolicy(Rule.INC)
FREQUENT = ResidencyPolicy(Rule.FREQUENT)
SPACE_SAVING = ResidencyPolicy(Rule.SPACE_SAVING)
MARKER = ResidencyPolicy(Rule.MARKER)
