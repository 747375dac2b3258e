"""What is wrong with a configuration or a case."""

from __future__ import annotations

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


def parsed(text: str) -> Any:
    """JSON as values. Its module takes a quarter of the time of importing this package, and is seldom needed."""
    import json

    return json.loads(text)


def violation(problems: str) -> Violation:
    """The exception of the native half."""
    return Violation(parsed(problems))


class Mismatch(ValueError):
    """Ranks of a group have called different operators, or the same one for other shapes or batches. The group has ended."""


class Gone(RuntimeError):
    """Ranks of a group have died or left it, and it cannot go on: each in ``gone``."""

    gone: Sequence[dict[str, Any]]
    """Of each ``process``, which is its rank, ``pid``, ``host``, ``ranks``, ``how`` it went (``signal N``, ``exit N``, ``silent``: it
    does not run, ``left``: by itself, ``ended``: reason unknown), and the ``round`` and ``operator`` (``dispatch``, ``experts``,
    ``combine``) that it was in, or None."""

    def __init__(self, message: str, gone: Sequence[dict[str, Any]]) -> None:
        super().__init__(message, gone)
        self.gone = gone

    def __str__(self) -> str:
        return str(self.args[0])


class Timeout(TimeoutError):
    """No rank of a group has moved for the deadline, or not all have joined it: what is missing is in ``missing``."""

    missing: Sequence[dict[str, Any]]
    """Of each core that waits ``rank``, ``core``, ``round``, ``operator``, ``what`` it waits for, and where that is known
    ``source_rank``, whose it is."""

    def __init__(self, message: str, missing: Sequence[dict[str, Any]]) -> None:
        super().__init__(message, missing)
        self.missing = missing

    def __str__(self) -> str:
        return str(self.args[0])


def gone(message: str, gone: str) -> Gone:
    return Gone(message, parsed(gone))


def timeout(message: str, missing: str) -> Timeout:
    return Timeout(message, parsed(missing))
