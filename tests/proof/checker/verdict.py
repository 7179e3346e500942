"""What was found: violations, and how much there was to judge."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

SHOWN: Final = 50
"""Violations of one rule that are kept word by word; the others are counted."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule broken once.

    Attributes:
        rule: ``C0`` to ``C14``. what: a sentence for people. t: when, seconds of the run's clock.
        ids: connections, messages and members that it is about.
    """

    rule: str
    what: str
    t: float = 0.0
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule} at {self.t:.3f}: {self.what}"


@dataclass(slots=True)
class Verdict:
    """Whether a run keeps the rules.

    Attributes:
        violations: the first `SHOWN` of each rule. broken: rule -> how many there are in all.
        messages: kind -> how many were written down. judged: how much of it something was demanded of; see `judge`.
        faults: kind -> how many were played.
    """

    violations: list[Violation] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when no rule is broken."""
        return not self.broken

    def add(self, rule: str, what: str, t: float = 0.0, *ids: str) -> None:
        """A rule is broken."""
        self.broken[rule] += 1
        if self.broken[rule] <= SHOWN:
            self.violations.append(Violation(rule, what, t, ids))

    def as_json(self) -> dict[str, Any]:
        """Plain values, for the result file."""
        return {
            "ok": self.ok,
            "broken": dict(sorted(self.broken.items())),
            "violations": [str(one) for one in self.violations],
            "messages": dict(sorted(self.messages.items())),
            "judged": dict(sorted(self.judged.items())),
            "faults": dict(sorted(self.faults.items())),
        }
