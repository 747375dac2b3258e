"""Ranks of a live group, with tensors of the caller's."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union

from . import _native
from ._tensors import _array, _torch, is_torch, keys, type_named

if TYPE_CHECKING:
    import numpy as np

    # A path, or whatever has ``set`` and ``get`` like a store of ``torch.distributed``.
    Rendezvous = Union[str, os.PathLike[str], Any]


@dataclass(frozen=True)
class Handle:
    """A batch between its dispatch and its combine."""

    round: int
    """Its number: 0, 1, ..."""
    rows: int
    """Rows that the rank has received."""
    _native: _native.Handle
    _tokens: int
    _as_torch: bool


@dataclass(frozen=True)
class Received:
    """What dispatch has brought to a rank."""

    x: Any
    """``[n, h]``: the rows for the experts of the rank, expert by expert; int8 where the configuration quantises. They lie in the
    group's memory, and are good until the batch is combined: experts may write results over them. Who writes there later spoils
    another batch."""
    counts: Any
    """``[local experts]``, int64: how many rows each expert has. With ``expert_token_nums_type=0`` one past its last row."""
    handle: Handle
    """For ``combine``."""
    scales: Any = None
    """``[n]``, float32: what the rows are multiplied by where the configuration quantises, else None."""


class _Memory:
    """Memory of the group as NumPy takes it; arrays over it keep the group's memory mapped."""

    def __init__(self, owner: Any, address: int, shape: tuple[int, ...], typestr: str) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "typestr": typestr,
        }


class Group:
    """A rank of a group whose ranks are processes, or threads with ``Group.local``.

    Every rank calls the same operators in the same order; a call returns when the operator has ended on this rank. While it
    waits, other threads run, and signals are served. At most two batches may be in flight, and they are combined in the order
    in which they were dispatched.

    The rank meets the others at ``rendezvous``: a path where no file is, or a store of ``torch.distributed``. Keywords are those of
    ``Shape``; ``ep_world_size`` follows from ``world_size``, and ``hccl_buffsize_mb`` is as large as it must be unless it is
    given. ``join_timeout`` is how many seconds the others are waited for, ``deadline`` how long a call may wait while nobody
    moves: longer than any rank works between two calls; both at most a million.

    Raises:
        Violation: the configuration breaks rules.
        ValueError: ranks were not given the same, or a rank is there twice.
        Timeout: not all have come.
    """

    rank: int
    """The number of this rank."""
    world_size: int
    """How many there are."""
    bs: int
    """Tokens that this rank may bring, at most."""
    k: int
    """Experts of a token."""
    h: int
    """Elements of a row."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        rendezvous: Rendezvous,
        *,
        preset: str | None = None,
        join_timeout: float = 60.0,
        deadline: float = 300.0,
        **config: Any,
    ) -> None:
        if not {"ep_world_size", "epWorldSize"} & config.keys():
            tp = int(config.get("tp_world_size", config.get("tpWorldSize", 1)))
            config["ep_world_size"] = world_size // max(tp, 1)
        is_path = isinstance(rendezvous, (str, os.PathLike))
        place = (os.fspath(rendezvous), None) if is_path else (None, rendezvous)
        self._begin(
            _native.Member.join(
                (rank, world_size),
                place,
                preset,
                keys(config),
                (_seconds("join_timeout", join_timeout), _seconds("deadline", deadline)),
            )
        )

    @classmethod
    def local(cls, *, preset: str | None = None, deadline: float = 300.0, **config: Any) -> list[Group]:
        """All ranks of a group in this process, each to be called by a thread of its own.

        >>> import threading, numpy, veriep
        >>> from ml_dtypes import bfloat16
        >>> def twice(group):
        ...     with group:
        ...         x = numpy.full((3, group.h), group.rank + 1, bfloat16)
        ...         got = group.dispatch(x, numpy.int32([[0, 1], [2, 3], [1, 2]]), numpy.ones((3, 2), numpy.float32))
        ...         print(group.combine(got.x * 2, got.handle)[:, 0].tolist() == [4 * (group.rank + 1)] * 3)
        >>> ranks = veriep.Group.local(ep_world_size=2, moe_expert_num=4, k=2, h=1024, bs=4)
        >>> threads = [threading.Thread(target=twice, args=[rank]) for rank in ranks]
        >>> for thread in threads: thread.start()
        >>> for thread in threads: thread.join()
        True
        True
        """
        groups = []
        for member in _native.Member.local(preset, keys(config), _seconds("deadline", deadline)):
            group = cls.__new__(cls)
            group._begin(member)
            groups.append(group)
        return groups

    def _begin(self, member: _native.Member) -> None:
        self._member = member
        about = member.about()
        self.rank, self.world_size, self.bs, self.k, self.h, self._types, self._have_scales = about
        # Also at the end of the process: who ends without a word counts as dead.
        self._finalizer = weakref.finalize(self, member.close)

    def __repr__(self) -> str:
        return f"<veriep.Group: rank {self.rank} of {self.world_size}>"

    @property
    def experts(self) -> range:
        """The MoE experts that this rank holds; none if it holds a shared expert."""
        experts = self._member.experts()
        return range(experts[0], experts[-1] + 1) if experts else range(0)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of rows."""
        return type_named(self._types[0])

    def dispatch(self, x: Any, topk_ids: Any, topk_weights: Any, mask: Any = None) -> Received:
        """Sends tokens to their experts, and takes what has come for those of this rank.

        ``x`` is ``[n, h]`` of the configuration's type, with n from 0 to ``bs``; ``topk_ids`` is ``[n, k]`` of int32 or int64,
        where -1 is no expert; ``topk_weights`` is ``[n, k]``; ``mask`` of bool says which tokens ``[n]`` or pairs ``[n, k]``
        count. All may be ``torch`` tensors without gradients: what comes back is like ``x``. Contiguous rows are read where they are, and must
        not change before this returns.

        Raises:
            Violation: the tensors break rules. Nothing has been sent.
            ValueError: two batches are in flight, or a tensor has a gradient.
            TypeError: a tensor is of another type or shape.
            Gone: a rank has died, or has left the group. The group has ended.
            Timeout: nobody has moved for the deadline. The group has ended.
        """
        import numpy as np

        for name, tensor in (("x", x), ("topk_weights", topk_weights)):
            _has_no_gradient(name, tensor)
        rows, ids, weights = _array(x), _array(topk_ids), _array(topk_weights)
        n = rows.shape[0] if rows.ndim else -1
        _must_be("x", rows, (n, self.h), self.dtype)
        if ids.dtype.kind not in "iu":
            raise TypeError(f"topk_ids: {ids.dtype}: must be int32 or int64")
        if weights.dtype.name not in ("float32", "float64", "float16", "bfloat16"):
            raise TypeError(f"topk_weights: {weights.dtype}: must be float32")
        short = ids.astype(np.int32)
        if (short != ids).any():
            raise ValueError(f"topk_ids: {ids[short != ids][0]}: must be an expert, or -1")
        weights = np.ascontiguousarray(weights, np.float32)
        _must_be("topk_ids", short, (n, self.k))
        _must_be("topk_weights", weights, (n, self.k))
        arrays = [np.ascontiguousarray(rows), np.ascontiguousarray(short), weights]
        given = None
        if mask is not None:
            active = np.ascontiguousarray(_array(mask))
            pairs = active.ndim == 2
            _must_be("mask", active, (n, self.k) if pairs else (n,), np.dtype(np.bool_))
            given = (*_address(active), pairs)
        native, number, count, outputs = self._member.dispatch([_address(array) for array in arrays], given)
        as_torch = is_torch(x)
        element = type_named(self._types[1])
        # Arrays are made of memory that holds a type of their own, which bfloat16 is not.
        received = self._view(outputs[0], (count, self.h), f"<u{element.itemsize}").view(element)
        scales = self._view(outputs[1], (count,), "<f4") if self._have_scales else None
        counts = self._view(outputs[2], (outputs[2][1] // 8,), "<i8").copy()
        of = Handle(number, count, native, n, as_torch)
        if as_torch:
            return Received(_torch(received), _torch(counts), of, None if scales is None else _torch(scales))
        return Received(received, counts, of, scales)

    def combine(self, y: Any, handle: Handle) -> Any:
        """Returns what experts made of the rows of the oldest batch, a row ``[h]`` of ``y`` for each of ``Received.x`` in the same
        order, and sums for every token of this rank what comes back, by its weights: ``[n, h]``.

        Raises:
            ValueError: it is not the oldest batch, or has been combined.
            TypeError: ``y`` is of another type or shape.
            Gone: a rank has died, or has left the group. The group has ended.
            Timeout: nobody has moved for the deadline. The group has ended.
        """
        import numpy as np

        _has_no_gradient("y", y)
        rows = np.ascontiguousarray(_array(y))
        _must_be("y", rows, (handle.rows, self.h), self.dtype)
        x_out = np.empty((self.bs, self.h), self.dtype)
        self._member.combine(handle._native, _address(rows), _address(x_out))
        summed = x_out[: handle._tokens]
        return _torch(summed) if handle._as_torch else summed

    def close(self) -> None:
        """Leaves the group. Others go on as far as they do not need this rank. A call that waits in another thread raises
        ``ValueError``."""
        self._finalizer()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _view(self, where: tuple[int, int], shape: tuple[int, ...], typestr: str) -> np.ndarray[Any, Any]:
        import numpy as np

        return np.asarray(_Memory(self._member, where[0], shape, typestr))


def _seconds(name: str, value: float) -> float:
    if not 0 < value <= 1e6:
        raise ValueError(f"{name} = {value}: must be in (0, 1000000] seconds")
    return float(value)


def _has_no_gradient(name: str, value: Any) -> None:
    if is_torch(value) and value.requires_grad:
        import torch

        if torch.is_grad_enabled():
            raise ValueError(f"{name}: wants a gradient, and operators have no backward: pass {name}.detach()")


def _address(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes


def _must_be(
    name: str, array: np.ndarray[Any, Any], shape: Sequence[int], dtype: np.dtype[Any] | None = None
) -> None:
    if array.shape != tuple(shape):
        raise TypeError(f"{name}: shape {list(array.shape)}: must be {list(shape)}".replace("-1", "n"))
    if dtype is not None and array.dtype != dtype:
        raise TypeError(f"{name}: {array.dtype}: must be {dtype}")
