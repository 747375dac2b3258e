"""What is right: rules, and results by the definition alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from . import _native
from ._errors import Violation, parsed
from ._tensors import given, is_torch, subject, taken

if TYPE_CHECKING:
    from ._tensors import Case, Tensors


def check(
    case: Case | None = None,
    /,
    *,
    preset: str | None = None,
    receive: str = "copy",
    experts: str = "apart",
    port_offset: int = 0,
    **config: Any,
) -> list[Violation]:
    """Everything that is wrong with a configuration, and with a case if there is one. As long as ``release``, ``product`` or
    ``comm_alg`` is unknown, that alone.

    A case is a dictionary of arrays with the names and shapes of case files, or the folder of one, whose configuration
    the keywords change.

    >>> import veriep
    >>> veriep.check(preset="tiny")
    []
    >>> for violation in veriep.check(preset="tiny", bs=0, quant_mode=7):
    ...     print(violation)
    bs = 0: must be in [1, 512]; hint: bs = 1; a rank without tokens has an x_active_mask that is false everywhere
    quant_mode = 7: must be 0 or 2
    """
    options = (receive, experts, None, None, 32, port_offset)
    problems = _native.check(subject(case, preset, config), options, case is not None)
    return [Violation([problem]) for problem in parsed(problems)]


def _ask(case: Case, preset: str | None, config: Any, half: str, returned: Tensors) -> dict[str, Any]:
    as_torch = not isinstance(case, str) and any(map(is_torch, getattr(case, "values", list)()))
    return taken(_native.reference(subject(case, preset, config), half, given(returned)), as_torch)


def reference(case: Case, /, *, preset: str | None = None, **config: Any) -> dict[str, Any]:
    """The result of dispatch, stand-in experts and combine on every rank.

    A case is a dictionary of arrays with the names and shapes of case files (``rank0.x``, ``rank0.expert_ids``, ...),
    or the folder of one. The result has those of result files (``rank0.expand_x``, ``rank0.x_out``, ...). Rows are
    ``ml_dtypes.bfloat16`` or ``numpy.float16``; of no rows the shape is ``(0, h)``. Of ``torch`` tensors the result is
    ``torch`` tensors.

    Raises:
        Violation: the configuration breaks rules, or a tensor is wrong.
    """
    return _ask(case, preset, config, "both", {})


def reference_dispatch(case: Case, /, *, preset: str | None = None, **config: Any) -> dict[str, Any]:
    """What dispatch puts out on every rank; otherwise as `reference`."""
    return _ask(case, preset, config, "dispatch", {})


def reference_combine(
    case: Case, returned: Tensors, /, *, preset: str | None = None, **config: Any
) -> dict[str, Any]:
    """What combine puts out on every rank; otherwise as `reference`.

    ``returned`` are the rows that experts return, ``rank{r}.y`` or ``rank{r}.expand_x``: one for each row that
    `reference_dispatch` puts out, in the same order, ``[n, h]`` in ``dtype``; with ``rank{r}.assist_info_for_combine`` in
    the order of its triples. With a TP domain combine adds what both peers return.
    """
    return _ask(case, preset, config, "combine", returned)


class Comparison:
    """What became of the values of a result. It is true if the verdict is yes."""

    verdict: Literal["yes", "no", "unknown"]
    """``yes`` if all values within the bound are right, ``no`` if one is wrong. ``unknown`` if nothing was compared, or if
    nothing was of a rank or a tensor that was asked for by name."""
    bound: str
    """What was compared, and how strictly."""
    decides: Sequence[str]
    """What would decide an unknown verdict."""
    tensors: Sequence[dict[str, Any]]
    """Of each tensor: ``name``, ``rank``, ``compared``, ``wrong``, ``max_abs``, ``max_rel``, ``max_ulp``, the
    ``stray_row`` where the first wrong row would be right, the ``first`` wrong values (``index``, ``seen``,
    ``expected``), and an ``error`` if it is wrong as a whole."""

    def __init__(
        self, judgement: dict[str, Any], tensors: Sequence[dict[str, Any]], lines: Sequence[str]
    ) -> None:
        self.verdict = judgement["verdict"]
        self.bound = judgement["bound"]
        self.decides = judgement.get("decides", [])
        self.tensors = tensors
        self._lines = lines

    @property
    def ok(self) -> bool:
        """Whether the verdict is yes."""
        return self.verdict == "yes"

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        decides = f"; decided by: {'; '.join(self.decides)}" if self.decides else ""
        return "\n".join(self._lines) or f"{self.verdict}: {self.bound}{decides}"

    __repr__ = __str__


def compare(
    expected: Tensors,
    seen: Tensors,
    /,
    *,
    ulp: int = 0,
    rtol: float = 0.0,
    atol: float = 0.0,
    ranks: Sequence[int] = (),
    tensors: Sequence[str] = (),
    padded: bool = False,
    padded_with: float | None = None,
) -> Comparison:
    """Compares a result with the one expected, as ``veriep compare`` does.

    A value is right if its bits are the same, or both are NaN, or it is within ``ulp`` steps of its type, or within
    ``atol + rtol * abs(expected)``; ids and counts are exact. Without ``ranks`` and ``tensors`` an absent tensor is
    wrong; with them what there is of them is judged, and the bound names it. ``padded``: rows behind those received are
    not looked at; ``padded_with``: they must hold this value throughout.

    >>> import numpy, veriep
    >>> expected = {"rank0.dynamic_scales": numpy.float32([1, 2])}
    >>> print(veriep.compare(expected, {"rank0.dynamic_scales": numpy.float32([1, 3])}))
    rank0.dynamic_scales[1] = 3 (0x40400000): must be 2 (0x40000000) (1 of 2 values differ)
    >>> veriep.compare(expected, expected, tensors=["x_out"]).verdict
    'unknown'

    Raises:
        ValueError: there is no such rank.
    """
    near = (ulp, rtol, atol)
    tail = (padded, None if padded_with is None else str(padded_with))
    judged = _native.compare(given(expected), given(seen), near, list(ranks), list(tensors), tail)
    judgement, compared = parsed(judged[0])
    return Comparison(judgement, compared, judged[1])
