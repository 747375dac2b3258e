"""Dispatch and combine with the arguments of torch_npu's operators, on NumPy's arrays."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from .._shape import Shape
from .._tensors import _array, _torch, is_torch
from . import _domains
from ._batches import Batch
from ._table import Operator, Parameter

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

# Arguments of dispatch that combine must be given again.
_SAME = (
    "ep_world_size",
    "ep_rank_id",
    "moe_expert_num",
    "shared_expert_num",
    "shared_expert_rank_num",
    "global_bs",
    "zero_expert_num",
    "copy_expert_num",
    "const_expert_num",
)
_said: set[tuple[str, Any]] = set()


@dataclass(frozen=True)
class Output:
    """A tensor that dispatch puts out: a shape, and a type of NumPy, or that of the rows."""

    shape: tuple[Any, ...]
    dtype: str


def outputs(a: SimpleNamespace, operator: Operator, n: Any, k: Any, h: Any) -> list[Output]:
    """What dispatch puts out, as large as torch_npu allocates it: room for all rows that could come."""
    of_all = a.global_bs or n * a.ep_world_size
    if a.ep_rank_id < a.shared_expert_rank_num:
        local = 1
        replicas = max(a.shared_expert_rank_num // max(a.shared_expert_num, 1), 1)
        rows = (of_all // a.ep_world_size) * -(-a.ep_world_size // replicas)
    else:
        local = a.moe_expert_num // (a.ep_world_size - a.shared_expert_rank_num)
        rows = of_all * min(local, k)
    have_weights = a.expert_scales is not None
    # The room after the counts is for the hierarchy, and is there as soon as dispatch has weights.
    after_counts = 2 * of_all * k * (a.ep_world_size // 8) if have_weights else 0
    token = n * k if operator.is_first_pair else max(n * k, 128 * rows)
    weighted = rows if have_weights or not operator.is_first_pair else 0
    return [
        Output((rows, h), "int8" if a.quant_mode else "x"),
        Output((rows,), "float32"),
        Output((token,), "int32"),
        Output((local,), "int64"),
        Output((a.ep_world_size * local + after_counts,), "int32"),
        Output((a.tp_world_size,), "int32"),
        Output((weighted,), "float32"),
    ]


def check(operator: Operator, a: SimpleNamespace) -> None:
    """What can be said without tensors and ranks.

    Raises:
        NotImplementedError: an argument is refused.
        ValueError: a number is out of range.
    """
    for row in operator.parameters:
        value = getattr(a, row.name)
        if row.status == "refused" and not row.is_default(value):
            raise NotImplementedError(f"{operator.name}: {row.name}: must be left out: {row.why}")
        if row.values is not None and value not in row.values:
            _stands_for(operator, row, a)
    if a.ep_world_size < 1 or not 0 <= a.ep_rank_id < a.ep_world_size:
        raise ValueError(f"ep_rank_id = {a.ep_rank_id}: must be in [0, ep_world_size = {a.ep_world_size})")
    if not 0 <= a.shared_expert_rank_num < a.ep_world_size:
        raise ValueError(
            f"shared_expert_rank_num = {a.shared_expert_rank_num}: must be in [0, ep_world_size = {a.ep_world_size})"
        )


def _stands_for(operator: Operator, row: Parameter, a: SimpleNamespace) -> None:
    """Puts in place of a value the one that it stands for, and says so once."""
    value = getattr(a, row.name)
    if value not in row.mapped:
        must = ", ".join(map(repr, (*row.values, *row.mapped))) if row.values else ""
        raise NotImplementedError(
            f"{operator.name}: {row.name} = {value!r}: must be one of {must}: {row.why}"
        )
    setattr(a, row.name, row.mapped[value])
    if (row.name, value) not in _said:
        _said.add((row.name, value))
        warnings.warn(
            f"{row.name} = {value!r}: stands for {row.mapped[value]!r} here: {row.why}", stacklevel=4
        )


def dispatch(operator: Operator, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Runs dispatch and returns its seven tensors, poisoned where the operator writes nothing."""
    import numpy as np

    a = operator.bind(*args, **kwargs)
    check(operator, a)
    domain = _domain(a)
    x = _taken("x", a.x, 2, ("bfloat16", "float16"))
    ids = _taken("expert_ids", a.expert_ids, 2, ("int32",))
    (n, h), k = x.shape, ids.shape[1]
    if len(ids) != n:
        raise TypeError(f"expert_ids: shape {list(ids.shape)}: must be [{n}, K], a row for each token of x")
    mask = _mask(a.x_active_mask, n, k)
    scales = _optional("scales", a.scales, (2,), ("float32",))
    _optional("expert_scales", a.expert_scales, (2,), ("float32",), (n, k))
    _check_ids(domain.options, ids, mask)
    group = domain.group(_config(a, domain.options, x, k, has_mask=mask is not None))
    received = group.dispatch(x, ids, None, mask, scales=scales)

    count, tensors = received.handle.rows, []
    for output in outputs(a, operator, n, k, h):
        dtype = x.dtype if output.dtype == "x" else np.dtype(output.dtype)
        tensors.append(np.full(output.shape, _poison(dtype), dtype))
    rows, dynamic_scales, token, nums, counts, *_ = tensors
    rows[:count] = received.x
    if received.scales is not None:
        dynamic_scales[:count] = received.scales
    nums[:] = received.counts if a.expert_token_nums_type else np.cumsum(received.counts)
    counts[: len(received.recv_counts)] = received.recv_counts
    words = n * k
    if operator.is_first_pair:
        token[:] = _slots(ids, mask, a.moe_expert_num).ravel()
    else:
        words = 3 * count
        token[:words] = received.assist_info.ravel()
        if words < len(token):
            # Tells copies of two batches apart that sent the same rows.
            token[-1] = domain.batches.dispatched
    keeps_x = a.copy_expert_num or a.const_expert_num
    domain.batches.add(
        Batch(
            group,
            received.handle,
            domain.batches.dispatched,
            token,
            words,
            {name: getattr(a, name) for name in _SAME},
            ids.copy(),
            None if mask is None else mask.copy(),
            counts.copy(),
            x.copy() if keeps_x else None,
        )
    )
    return tuple(_as(a.x, tensor) for tensor in tensors)


def combine(operator: Operator, *args: Any, **kwargs: Any) -> Any:
    """Runs combine for the batch that a tensor of dispatch names, and returns the sums of its tokens."""
    import numpy as np

    a = operator.bind(*args, **kwargs)
    check(operator, a)
    domain = _domain(a)
    name = "expand_idx" if operator.is_first_pair else "assist_info_for_combine"
    batch = domain.batches.find(name, _taken(name, getattr(a, name), 1, ("int32",)))
    for same, value in batch.arguments.items():
        if getattr(a, same) != value:
            raise ValueError(f"{same} = {getattr(a, same)}: must be {value}, as at dispatch")
    ids = _taken("expert_ids", a.expert_ids, 2, ("int32",))
    _must_equal("expert_ids", ids, batch.ids, "those of its dispatch")
    mask = _optional("x_active_mask", a.x_active_mask, (1, 2), ("bool",))
    _must_equal("x_active_mask", mask, batch.mask, "that of its dispatch")
    counts = _taken("ep_send_counts", a.ep_send_counts, 1, ("int32",))
    _must_equal("ep_send_counts", counts, batch.recv_counts, "the receive counts of its dispatch")
    weights = _taken("expert_scales", a.expert_scales, 2, ("float32",), ids.shape)

    group, rows = batch.group, batch.handle.rows
    kind = (group.dtype.name,)
    y = _taken("expand_x", a.expand_x, 2, kind)
    if y.shape[1] != group.h:
        raise TypeError(f"expand_x: shape {list(y.shape)}: must be [rows, {group.h}]")
    if len(y) < rows:
        raise ValueError(f"expand_x: {len(y)} rows: must be at least {rows}, those that dispatch received")
    y = y[:rows]
    if a.comm_quant_mode:
        y = through_int8(y)
    shared = _optional("shared_expert_x", a.shared_expert_x, (2,), kind, (len(ids), group.h))
    out = group.combine(
        y, batch.handle, weights, shared_expert_x=shared, const_experts=_special(a, batch, kind)
    )
    domain.batches.combined(batch)
    return _as(a.expand_x, np.asarray(out))


def _domain(a: SimpleNamespace) -> _domains.Domain:
    domain = _domains.find(a.group_ep)
    if a.ep_world_size != domain.size:
        raise ValueError(
            f"ep_world_size = {a.ep_world_size}: must be {domain.size}, the ranks of {a.group_ep!r}"
        )
    if a.ep_rank_id != domain.rank:
        raise ValueError(f"ep_rank_id = {a.ep_rank_id}: must be {domain.rank}, this rank of {a.group_ep!r}")
    return domain


def _config(
    a: SimpleNamespace, options: _domains.Options, x: Array, k: int, has_mask: bool
) -> dict[str, Any]:
    n, h = x.shape
    ranks = a.ep_world_size
    least = n * ranks
    if a.global_bs and (a.global_bs % ranks or a.global_bs < least):
        raise ValueError(
            f"global_bs = {a.global_bs}: must be 0 or a multiple of ep_world_size from BS * ep_world_size on "
            f"(BS = {n}, ep_world_size = {ranks}); hint: global_bs = {least}"
        )
    if has_mask and a.global_bs not in (0, least) and options.limits == "product":
        raise ValueError(
            f"global_bs = {a.global_bs}: must be 0 with x_active_mask, and all ranks must have the same BS; "
            "hint: pad each batch to the largest one, mask the padding and leave global_bs out"
        )
    config = dict(
        moe_expert_num=a.moe_expert_num,
        k=k,
        h=h,
        bs=a.global_bs // ranks if a.global_bs else n,
        quant_mode=a.quant_mode,
        comm_alg=a.comm_alg,
        dtype="bf16" if x.dtype.name == "bfloat16" else "f16",
        shared_expert_num=a.shared_expert_num,
        shared_expert_rank_num=a.shared_expert_rank_num,
        zero_expert_num=a.zero_expert_num,
        copy_expert_num=a.copy_expert_num,
        const_expert_num=a.const_expert_num,
    )
    window = os.environ.get("HCCL_BUFFSIZE")
    if window is not None and options.limits == "product":
        # For its rules alone: a live group takes the memory that it needs.
        Shape(ep_world_size=ranks, hccl_buffsize_mb=int(window), **config)
    return config


def _mask(value: Any, n: int, k: int) -> Array | None:
    """A mask of tokens, all active ones first, or of pairs."""
    import numpy as np

    mask = _optional("x_active_mask", value, (1, 2), ("bool",))
    if mask is None:
        return None
    if mask.shape not in ((n,), (n, k)):
        raise TypeError(f"x_active_mask: shape {list(mask.shape)}: must be [{n}] or [{n}, {k}]")
    if mask.ndim == 1:
        behind = np.flatnonzero(mask[1:] & ~mask[:-1])
        if len(behind):
            raise ValueError(
                f"x_active_mask[{behind[0] + 1}] = True behind a False: active tokens must come first; "
                "hint: a mask [BS, K] leaves any pairs out"
            )
    return mask


def _check_ids(options: _domains.Options, ids: Array, mask: Array | None) -> None:
    import numpy as np

    if options.ids == "-1-inactive":
        return
    is_active = True if mask is None else mask.reshape(len(ids), -1)
    wrong = np.argwhere((ids < 0) & is_active)
    if len(wrong):
        token, pair = wrong[0]
        raise ValueError(
            f"expert_ids[{token}, {pair}] = {ids[token, pair]}: must be an expert; "
            "hint: x_active_mask leaves pairs out, or register the name with ids='-1-inactive'"
        )


def _slots(ids: Array, mask: Array | None, experts: int) -> Array:
    """How many pairs of this rank go to the same expert before each; -1 of pairs that go nowhere."""
    import numpy as np

    flat = ids.ravel()
    goes = (flat >= 0) & (flat < experts)
    if mask is not None:
        goes &= np.broadcast_to(mask.reshape(len(ids), -1), ids.shape).ravel()
    slots = np.full(flat.shape, -1, np.int32)
    for expert in np.unique(flat[goes]):
        of_expert = np.flatnonzero(goes & (flat == expert))
        slots[of_expert] = np.arange(len(of_expert))
    return np.asarray(slots.reshape(ids.shape))


def through_int8(rows: Array) -> Array:
    """What arrives of rows that travel as int8, in blocks of eight with a scale in the type of the rows."""
    import numpy as np

    if not rows.size:
        return rows
    n, h = rows.shape
    # Zeros after the last block change neither its largest value nor what is cut off again.
    values = np.zeros((n, -(-h // 8), 8), np.float32)
    values.reshape(n, -1)[:, :h] = rows
    with np.errstate(all="ignore"):
        scale = np.abs(values).max(axis=2, keepdims=True) * (np.float32(1) / np.float32(127))
        q = np.where(scale > 0, np.rint(values / scale), np.float32(0))
        scale = np.where(np.isfinite(scale), scale, np.float32("nan"))
        arrived = (q * scale.astype(rows.dtype).astype(np.float32)).astype(rows.dtype)
    return np.asarray(arrived.reshape(n, -1)[:, :h])


def _special(a: SimpleNamespace, batch: Batch, kind: tuple[str, ...]) -> tuple[Array, Array, Array] | None:
    """The tensors of const experts, once ``ori_x`` is seen to be the tokens that the group has kept."""
    if batch.x is None:
        return None
    if a.ori_x is None:
        raise ValueError("ori_x: missing: copy and const experts need it, the x of dispatch")
    _must_equal("ori_x", _taken("ori_x", a.ori_x, 2, kind), batch.x, "the x of its dispatch")
    if not a.const_expert_num:
        return None
    q, h = a.const_expert_num, batch.group.h
    shapes = dict(const_expert_alpha_1=(q,), const_expert_alpha_2=(q,), const_expert_v=(q, h))
    for name in shapes:
        if getattr(a, name) is None:
            raise ValueError(f"{name}: missing: const_expert_num = {q}")
    first, second, v = (
        _taken(name, getattr(a, name), len(shape), kind, shape) for name, shape in shapes.items()
    )
    return first, second, v


def _taken(
    name: str, value: Any, dims: int, kinds: Sequence[str], shape: tuple[int, ...] | None = None
) -> Array:
    """A tensor as an array, if it is of the right type and shape."""
    array = _optional(name, value, (dims,), kinds, shape)
    if array is None:
        raise TypeError(f"{name}: missing: must be a tensor")
    return array


def _optional(
    name: str,
    value: Any,
    dims: Sequence[int],
    kinds: Sequence[str],
    shape: tuple[int, ...] | None = None,
) -> Array | None:
    if value is None:
        return None
    if is_torch(value) and value.requires_grad:
        import torch

        if torch.is_grad_enabled():
            raise ValueError(
                f"{name}: wants a gradient, and operators have no backward: pass {name}.detach()"
            )
    array = _array(value)
    if array.dtype.name not in kinds:
        raise TypeError(f"{name}: {array.dtype}: must be {' or '.join(kinds)}")
    if array.ndim not in dims:
        raise TypeError(
            f"{name}: shape {list(array.shape)}: must have {' or '.join(map(str, dims))} dimensions"
        )
    if shape is not None and array.shape != shape:
        raise TypeError(f"{name}: shape {list(array.shape)}: must be {list(shape)}")
    return array


def _must_equal(name: str, seen: Array | None, must: Array | None, what: str) -> None:
    if (seen is None) != (must is None):
        raise ValueError(
            f"{name}: {'missing' if seen is None else 'is given'}: must be {what}, which had {'none' if must is None else 'one'}"
        )
    if seen is None or must is None:
        return
    if seen.shape != must.shape:
        raise ValueError(f"{name}: shape {list(seen.shape)}: must be {what}, {list(must.shape)}")
    if seen.tobytes() != must.tobytes():
        raise ValueError(f"{name}: must be {what}: values differ")


def _poison(dtype: np.dtype[Any]) -> Any:
    """NaN, or the smallest number, which no operator writes."""
    import numpy as np

    return np.iinfo(dtype).min if dtype.kind == "i" else float("nan")


def _as(like: Any, array: Array) -> Any:
    if not is_torch(like):
        return array
    import torch

    tensor = _torch(array)
    # NumPy's strides of no elements are 0, those of fake tensors 1.
    return tensor if array.size else tensor.clone(memory_format=torch.contiguous_format)
