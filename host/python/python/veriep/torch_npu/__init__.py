"""A double of torch_npu's operators of MoE dispatch and combine, which runs on a CPU over live groups.

``npu_moe_distribute_dispatch_v2`` and ``npu_moe_distribute_combine_v2``, and the pair before them, have the signatures that
torch_npu publishes, and take tensors of ``torch`` or NumPy on the CPU. Results are those of the operators' definition, bit by
bit; nothing of a device's kernels is run. Importing this module changes nothing: `veriep.testing.install` puts it in place of
``torch_npu`` and defines ``torch.ops.npu``.

Whatever dispatch does not write is poisoned: floats are NaN and integers the smallest of their type.
"""

from __future__ import annotations

import functools
from typing import Any

from . import _calls
from ._domains import Options, register, set_defaults, unregister
from ._table import OPERATORS, PARAMETERS, Operator, Parameter, table

__all__ = [
    "OPERATORS",
    "PARAMETERS",
    "Operator",
    "Options",
    "Parameter",
    "npu_moe_distribute_combine",
    "npu_moe_distribute_combine_v2",
    "npu_moe_distribute_dispatch",
    "npu_moe_distribute_dispatch_v2",
    "register",
    "set_defaults",
    "table",
    "unregister",
]


def _function(operator: Operator) -> Any:
    run = _calls.dispatch if operator.half == "dispatch" else _calls.combine

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(operator, *args, **kwargs)

    functools.update_wrapper(call, run, assigned=("__doc__",))
    call.__name__ = call.__qualname__ = operator.name
    call.__signature__ = operator.signature  # type: ignore[attr-defined]
    return call


npu_moe_distribute_dispatch_v2, npu_moe_distribute_combine_v2 = map(_function, OPERATORS[:2])
npu_moe_distribute_dispatch, npu_moe_distribute_combine = map(_function, OPERATORS[2:])
