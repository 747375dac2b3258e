"""What is wrong with a configuration or a case."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class Violation(ValueError):
    """A configuration or a case breaks rules: each in ``violations``, the first one in the other attributes.

    >>> import veriep
    >>> try:
    ...     veriep.Shape(preset="tiny", k=17)
    ... except veriep.Violation as violation:
    ...     print(violation.parameter, "|", violation.rule, "|", violation.hint)
    k | must be in [1, 16] | k = 4
    """

    parameter: str
    """The key of the configuration, or the name of the tensor."""
    rule: str
    """What must hold."""
    message: str
    """Parameter, value seen, rule, and the numbers behind it."""
    hint: str | None
    """What to change, in words."""
    cures: Sequence[dict[str, Any]]
    """What to change: each has ``parameter`` and ``value``, and is enough alone."""
    violations: Sequence[Violation]
    """One for each rule that is broken."""

    def __init__(self, problems: Sequence[dict[str, Any]]) -> None:
        super().__init__(problems)
        first = problems[0]
        self.parameter, self.rule, self.message = first["parameter"], first["rule"], first["message"]
        self.hint, self.cures = first.get("hint"), first.get("cures", [])
        self.violations = [self] if len(problems) == 1 else [Violation([problem]) for problem in problems]

    def __str__(self) -> str:
        hint = "" if self.hint is None else f"; hint: {self.hint}"
        return self.message + hint if len(self.violations) == 1 else "\n".join(map(str, self.violations))


def violation(problems: str) -> Violation:
    """The exception of the native half."""
    return Violation(json.loads(problems))
