"""A decision is a sentence: what, why, on which evidence, what is expected of it, and when.

Made or withheld, it is kept, and later compared with what happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Action = Literal["batch", "resize", "chain", "scale", "provision", "move", "hold", "give up"]
Verdict = Literal["effective", "ineffective", "unknown"]

_MIN_GAIN = 0.1
"""Share of the expected change below which a decision was ineffective, as in Flink's autoscaler."""
_NEAR = 0.1
"""How far measurements scatter anyway, as a share of the expected value."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """That a measured quantity goes from one value to another by the given cycle.

    ``quantity`` and ``element`` name what the loop can look up again: a step's ``utilisation``, or an
    edge's ``wait_ms``. ``executors`` are counted after the restart that changes their number. ``unevenness`` is the
    largest load of a step's subtasks over their mean, once slices have moved.
    """

    quantity: Literal["utilisation", "wait_ms", "executors", "unevenness"]
    element: str | int
    before: float
    after: float
    due_cycle: int


@dataclass(frozen=True, slots=True)
class Decision:
    """``withheld`` says why it was not carried out; None if it was."""

    at_s: float
    action: Action
    subject: str
    change: str
    reason: str
    evidence: Mapping[str, float]
    expects: Expectation | None = None
    withheld: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for two decisions that say the same."""
        return self.action, self.subject, self.reason

    def sentence(self) -> str:
        """What and why; when is for who tells it, by whatever clock ``at_s`` is."""
        seen = ", ".join(f"{name} {value:.4g}" for name, value in self.evidence.items())
        parts = [f"{self.action} {self.subject}"]
        parts.append(f": {self.change}" if self.change else "")
        parts.append(f", because {self.reason}")
        parts.append(f" (seen: {seen})" if seen else "")
        if self.expects is not None:
            parts.append(f"; expects {self.expects.quantity} {self.expects.after:.4g}")
        parts.append(f"; withheld: {self.withheld}" if self.withheld else "")
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a decision."""

    at_s: float
    decision: Decision
    verdict: Verdict
    observed: float | None

    def sentence(self) -> str:
        expects = self.decision.expects
        if expects is None or self.observed is None:
            return f"{self.verdict}: {self.decision.subject} was not measured again"
        seen = f"{expects.quantity} of {expects.element} went from {expects.before:.4g} to {self.observed:.4g}"
        return f"{self.verdict}: {seen}, {expects.after:.4g} was expected"


def compare(decision: Decision, observed: float | None, at_s: float) -> Outcome:
    """Judge a decision by the share of the expected change that came about.

    More than was expected is effective, too, and so is whatever ends near the expected value. A
    utilisation is expected to be at most what was predicted: lower is no failure of a scale-down.
    """
    expects = decision.expects
    if expects is None or observed is None:
        return Outcome(at_s, decision, "unknown", observed)
    near = abs(observed - expects.after) <= _NEAR * abs(expects.after)
    near |= expects.quantity == "utilisation" and observed <= expects.after
    came = (observed - expects.before) * (expects.after - expects.before)
    enough = came >= _MIN_GAIN * (expects.after - expects.before) ** 2
    return Outcome(at_s, decision, "effective" if near or enough else "ineffective", observed)
