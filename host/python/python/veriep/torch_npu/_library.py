"""The operators in ``torch.ops.npu``, where fake tensors and ``torch.compile`` find them."""

from __future__ import annotations

from typing import Any

from . import _calls
from ._table import OPERATORS, Operator


def define() -> Any:
    """Defines them, and returns the library that holds the definitions; ``undefine`` takes them back."""
    import torch

    library = torch.library.Library("npu", "FRAGMENT")
    for operator in OPERATORS:
        # Each call exchanges rows with other ranks: two equal ones are two, and none may be left out.
        library.define(operator.schema, tags=(torch.Tag.nondeterministic_seeded,))
        library.impl(operator.name, _run(operator), "CPU")
        torch.library.register_fake(f"npu::{operator.name}", _fake(operator), lib=library)
    return library


def undefine(library: Any) -> None:
    library._destroy()


def _run(operator: Operator) -> Any:
    run = _calls.dispatch if operator.half == "dispatch" else _calls.combine

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(operator, *args, **kwargs)

    return call


def _fake(operator: Operator) -> Any:
    """Shapes and types alone: the same rules that need no values, and tensors as large as those of a call."""
    import torch

    def dispatch(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        a = operator.bind(*args, **kwargs)
        _calls.check(operator, a)
        shapes = _calls.outputs(a, operator, a.x.shape[0], a.expert_ids.shape[1], a.x.shape[1])
        kinds = [a.x.dtype if output.dtype == "x" else getattr(torch, output.dtype) for output in shapes]
        return tuple(a.x.new_empty(output.shape, dtype=kind) for output, kind in zip(shapes, kinds))

    def combine(*args: Any, **kwargs: Any) -> Any:
        a = operator.bind(*args, **kwargs)
        _calls.check(operator, a)
        return a.expand_x.new_empty((a.expert_ids.shape[0], a.expand_x.shape[1]))

    return dispatch if operator.half == "dispatch" else combine
