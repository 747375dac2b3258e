"""Ranks of a live group, with tensors of the caller's."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Union

from . import _native
from ._tensors import _array, _torch, is_torch, keys, type_named

if TYPE_CHECKING:
    import numpy as np

    # A path, or whatever has ``set`` and ``get`` like a store of ``torch.distributed``.
    Rendezvous = Union[str, os.PathLike[str], Any]


@dataclass(frozen=True)
class Handle:
    """A batch between its dispatch and its combine."""

    batch: int
    """The number of its dispatch: 0, 1, ..."""
    rows: int
    """Rows that the rank has received."""
    layer: int
    """The layer that it went through."""
    _native: _native.Handle
    _tokens: int
    _as_torch: bool


@dataclass(frozen=True)
class Received:
    """What dispatch has brought to a rank. Of what the protocol does not have it is None."""

    x: Any
    """``[n, h]``: the rows for the experts of the rank, expert by expert; int8 where the configuration quantises. They lie in the
    group's memory, and are good until the batch is combined: experts may write results over them. A later write there spoils
    another batch. In a loose order they are a copy."""
    counts: Any
    """``[local experts]``, int64: how many rows each expert has. With ``expert_token_nums_type=0`` one past its last row."""
    handle: Handle
    """For ``combine``."""
    scales: Any = None
    """``[n]``, float32: what the rows are multiplied by where the configuration quantises."""
    recv_counts: Any = None
    """``[local experts * ranks]``, int32: one past the last row of each pair of local expert and source rank."""
    assist_info: Any = None
    """``[n, 3]``, int32: source rank, token and k of each row (A3, and the hierarchy of A2)."""
    expand_scales: Any = None
    """``[n]``, float32: the weight of each row (the hierarchy of A2)."""
    tp_recv_counts: Any = None
    """int32: the rows of each TP peer."""


_T = TypeVar("_T")


class Sent(Generic[_T]):
    """An operator that has sent everything, and has still to take what comes: a hook that needs no thread."""

    def __init__(self, member: _native.Member, native: _native.Sent, finish: Callable[[], _T]) -> None:
        self._member, self._native, self._finish = member, native, finish

    def poll(self) -> bool:
        """Goes on without waiting, and says whether the operator has ended, so that ``finish`` will not wait. With the first poll the
        receiving half begins: until it has ended, no other operator may begin on this rank. The deadline counts from the first poll
        in vain, and again from each that moves; ``finish`` counts its own.

        Raises:
            As ``finish``.
        """
        return self._member.poll(self._native)

    def finish(self) -> _T:
        """Waits until the operator has ended, and returns what ``dispatch`` or ``combine`` returns. Once.

        Raises:
            ValueError: it has been finished, or another half has been polled and has not ended.
            Mismatch: another rank has called something else. The group has ended.
            Gone: a rank has died, or has left the group. The group has ended.
            Timeout: no rank has moved for the deadline. The group has ended.
        """
        return self._finish()

    __call__ = finish


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


@dataclass(frozen=True)
class _Layer:
    bs: int
    k: int
    h: int
    const_experts: int
    types: Sequence[str]
    """Of rows, and of received ones."""
    have_scales: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        return type_named(self.types[0])


def _given(
    preset: str | None,
    layers: Sequence[Mapping[str, Any]] | None,
    config: Mapping[str, Any],
    expert_map: Any,
    terms: tuple[float, str, str],
) -> tuple[str | None, list[list[tuple[str, str]]], tuple[list[int], int] | None, tuple[float, str, str]]:
    """What a group is given, for the native half."""
    deadline, order, limits = terms
    table = None
    if expert_map is not None:
        words = _array(expert_map)
        if words.ndim != 2 or words.dtype.kind not in "iu":
            raise TypeError(
                f"expert_map: {words.dtype} {list(words.shape)}: must be integers [logical experts, replicas]"
            )
        table = ([int(word) for word in words.ravel()], words.shape[0])
    of_layers = [keys({**config, **layer}) for layer in ([{}] if layers is None else layers)]
    return preset, of_layers, table, (_seconds("deadline", deadline), order, limits)


class Group:
    """A rank of a group whose ranks are processes, or threads with ``Group.local``.

    Every rank calls the same operators in the same order; a call returns when the operator has ended on this rank. While it
    waits, other threads run, and signals are served. At most two batches may be in flight, and they are combined in the order
    in which they were dispatched.

    The rank meets the others at ``rendezvous``: a path where no file is, or a store of ``torch.distributed``. Keywords are those of
    ``Shape``; ``ep_world_size`` follows from ``world_size``, and ``hccl_buffsize_mb`` is as large as it must be unless it is
    given. ``join_timeout`` is how many seconds the others are waited for, ``deadline`` how long a call may wait while no rank
    moves: longer than any rank works between two calls; both at most a million.

    ``layers`` are configurations of layers that share the group's memory, each over the other keywords; ``dispatch`` takes the
    number of one. With an ``expert_map``, ``[logical experts, replicas]`` with -1 behind the replicas, ids are logical experts.
    ``order="loose"`` lets a batch be combined twice or never: the group emulates that by operators that the caller does not
    see. ``limits="open"`` allows an ``h`` and a ``bs`` that no product has.

    Each call is compared with those of the other ranks before anything moves. The calls of a group with ``beside=another``
    are compared with those of that group, too: give it to all groups of one communicator.

    Raises:
        Violation: the configuration breaks rules.
        ValueError: ranks were not given the same, or a rank is there twice.
        Mismatch: another rank of the group ``beside`` calls something else.
        Timeout: not all have come.
    """

    rank: int
    """The number of this rank."""
    world_size: int
    """How many there are."""
    bs: int
    """Tokens that this rank may bring, at most; of the first layer, as all sizes here."""
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
        layers: Sequence[Mapping[str, Any]] | None = None,
        expert_map: Any = None,
        order: Literal["strict", "loose"] = "strict",
        limits: Literal["product", "open"] = "product",
        beside: Group | None = None,
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
                _given(preset, layers, config, expert_map, (deadline, order, limits)),
                _seconds("join_timeout", join_timeout),
                None if beside is None else beside._member,
            ),
            order,
        )

    @classmethod
    def of(cls, process_group: Any = None, *, name: str = "", **keywords: Any) -> Group:
        """The rank of a process group of ``torch.distributed``, the default one if none is given, in a group of the same ranks.

        The ranks meet in the process group's store. Several groups of one process group need a ``name`` each. The keywords are
        those of ``Group``.
        """
        import torch.distributed as dist

        group = dist.group.WORLD if process_group is None else process_group
        if group is None:
            raise ValueError("process_group: torch.distributed.init_process_group must come first")
        ranks = "-".join(map(str, dist.get_process_group_ranks(group)))
        store = dist.PrefixStore(f"veriep/{name}/{ranks}", dist.distributed_c10d._get_default_store())
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        return cls(rank, size, store, **keywords)

    @classmethod
    def local(
        cls,
        *,
        preset: str | None = None,
        layers: Sequence[Mapping[str, Any]] | None = None,
        expert_map: Any = None,
        order: Literal["strict", "loose"] = "strict",
        limits: Literal["product", "open"] = "product",
        beside: Sequence[Group] = (),
        deadline: float = 300.0,
        **config: Any,
    ) -> list[Group]:
        """All ranks of a group in this process, each to be called by a thread of its own.

        >>> import threading, numpy, veriep
        >>> from ml_dtypes import bfloat16
        >>> def twice(group):
        ...     with group:
        ...         x = numpy.full((3, group.h), group.rank + 1, bfloat16)
        ...         got = group.dispatch(x, numpy.int32([[0, 1], [2, 3], [1, 2]]), numpy.ones((3, 2), numpy.float32))
        ...         sums[group.rank] = group.combine(got.x * 2, got.handle)[:, 0].tolist()
        >>> sums = {}
        >>> ranks = veriep.Group.local(ep_world_size=2, moe_expert_num=4, k=2, h=1024, bs=4)
        >>> threads = [threading.Thread(target=twice, args=[rank]) for rank in ranks]
        >>> for thread in threads: thread.start()
        >>> for thread in threads: thread.join()
        >>> sums == {0: [4, 4, 4], 1: [8, 8, 8]}
        True
        """
        groups = []
        given = _given(preset, layers, config, expert_map, (deadline, order, limits))
        for member in _native.Member.local(given, [group._member for group in beside]):
            group = cls.__new__(cls)
            group._begin(member, order)
            groups.append(group)
        return groups

    def _begin(self, member: _native.Member, order: str) -> None:
        self._member, self._is_loose = member, order == "loose"
        self.rank, self.world_size, layers = member.about()
        self._layers = [_Layer(*layer) for layer in layers]
        first = self._layers[0]
        self.bs, self.k, self.h = first.bs, first.k, first.h
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
        return self._layers[0].dtype

    def dispatch(
        self,
        x: Any,
        topk_ids: Any,
        topk_weights: Any = None,
        mask: Any = None,
        *,
        scales: Any = None,
        layer: int = 0,
        call: int | None = None,
    ) -> Received:
        """Sends tokens to their experts, and takes what has come for those of this rank.

        A rank without tokens, or whose tokens were refused, must call all the same: ``dispatch(x[:0], topk_ids[:0])``. Its
        experts then serve the others.

        ``x`` is ``[n, h]`` of the configuration's type, with n from 0 to ``bs``; ``topk_ids`` is ``[n, k]`` of int32 or int64,
        where -1 is no expert; ``topk_weights`` is ``[n, k]``, and may be left to ``combine`` but in the hierarchy of A2; ``mask``
        of bool says which tokens ``[n]`` or pairs ``[n, k]`` count; ``scales``, ``[shared and MoE experts, h]``, are the smooth
        scales of quantisation; ``call`` is a number that all ranks give alike, such as step times layers plus layer: a rank that
        leaves out a call is then refused by name, else it is not seen. All may be ``torch`` tensors without gradients: what comes back is like ``x``. Contiguous rows are
        read where they are, and must not change before this returns.

        Raises:
            Violation: the tensors break rules. Nothing has been sent.
            ValueError: two batches are in flight, or a tensor has a gradient.
            TypeError: a tensor is of another type or shape.
            Mismatch: another rank has called something else. The group has ended.
            Gone: a rank has died, or has left the group. The group has ended.
            Timeout: no rank has moved for the deadline. The group has ended.
        """
        given, _arrays = self._given(x, topk_ids, topk_weights, mask, scales, layer, call)
        return self._received(self._member.dispatch(given), layer, len(x), is_torch(x))

    def dispatch_send(
        self,
        x: Any,
        topk_ids: Any,
        topk_weights: Any = None,
        mask: Any = None,
        *,
        scales: Any = None,
        layer: int = 0,
        call: int | None = None,
    ) -> Sent[Received]:
        """Sends tokens like ``dispatch``, and returns when everything is sent; ``finish()`` of what it returns, or a call of it, takes
        what has come. Other operators may begin between, such as the combine of the batch before; every rank must take them
        in the same order. The tensors are the caller's again when this returns.

        Raises:
            As ``dispatch``; and ValueError if the order of this rank would let it overwrite what another rank has not read, with a
            reason. Then nothing has been sent, and the group goes on.
        """
        given, _arrays = self._given(x, topk_ids, topk_weights, mask, scales, layer, call)
        sent = self._member.send_dispatch(given)
        n, as_torch = len(x), is_torch(x)

        def finish() -> Received:
            return self._received(self._member.finish_dispatch(sent), layer, n, as_torch)

        return Sent(self._member, sent, finish)

    def _given(
        self, x: Any, topk_ids: Any, topk_weights: Any, mask: Any, scales: Any, layer: int, call: int | None
    ) -> tuple[Any, list[Any]]:
        """What the native half is given, and the arrays that it reads meanwhile."""
        import numpy as np

        of_layer = self._layer(layer)
        _has_no_gradient("x", x)
        rows, ids = _array(x), _array(topk_ids)
        n = rows.shape[0] if rows.ndim else -1
        _must_be("x", rows, (n, of_layer.h), of_layer.dtype)
        if ids.dtype.kind not in "iu":
            raise TypeError(f"topk_ids: {ids.dtype}: must be int32 or int64")
        short = ids.astype(np.int32)
        if (short != ids).any():
            raise ValueError(f"topk_ids: {ids[short != ids][0]}: must be an expert, or -1")
        _must_be("topk_ids", short, (n, of_layer.k))
        pairs = (n, of_layer.k)
        weights = np.empty(0, np.float32) if topk_weights is None else _weights(topk_weights, pairs)
        arrays = [np.ascontiguousarray(rows), np.ascontiguousarray(short), weights]
        active = None if mask is None else np.ascontiguousarray(_array(mask))
        if active is not None:
            _must_be("mask", active, pairs if active.ndim == 2 else (n,), np.dtype(np.bool_))
        smooth = None if scales is None else np.ascontiguousarray(_array(scales), np.float32)
        if smooth is not None:
            _must_be("scales", smooth, (len(smooth) if smooth.ndim else -1, of_layer.h))
        given = (
            layer,
            [_address(array) for array in arrays],
            None if active is None else (*_address(active), active.ndim == 2),
            None if smooth is None else _address(smooth),
            None if call is None else operator.index(call) % 2**32,
        )
        return given, [*arrays, active, smooth]

    def _received(self, taken: Any, layer: int, n: int, as_torch: bool) -> Received:
        native, batch, count, outputs = taken
        of_layer = self._layer(layer)
        like = _torch if as_torch else _as_it_is
        element = type_named(of_layer.types[1])
        # Arrays are made of memory that holds a type of their own, which bfloat16 is not.
        received = self._view(outputs[0], (count, of_layer.h), f"<u{element.itemsize}").view(element)
        row_scales = self._view(outputs[1], (count,), "<f4") if of_layer.have_scales else None
        if self._is_loose:
            # Operators that the caller does not see write there.
            received = received.copy()
            row_scales = None if row_scales is None else row_scales.copy()

        def copied(output: tuple[int, int], typestr: str, *shape: int) -> Any:
            length = output[1] // int(typestr[-1])
            return like(self._view(output, (length,), typestr).copy().reshape(shape or (length,)))

        def if_any(output: tuple[int, int], typestr: str, *shape: int) -> Any:
            # Of no rows there are no bytes either.
            return copied(output, typestr, *shape) if output[1] or not count else None

        return Received(
            x=like(received),
            counts=copied(outputs[2], "<i8"),
            handle=Handle(batch, count, layer, native, n, as_torch),
            scales=None if row_scales is None else like(row_scales),
            recv_counts=copied(outputs[3], "<i4"),
            assist_info=if_any(outputs[4], "<i4", -1, 3),
            expand_scales=if_any(outputs[5], "<f4"),
            tp_recv_counts=copied(outputs[6], "<i4") if outputs[6][1] else None,
        )

    def combine(
        self,
        y: Any,
        handle: Handle,
        topk_weights: Any = None,
        *,
        shared_expert_x: Any = None,
        const_experts: tuple[Any, Any, Any] | None = None,
    ) -> Any:
        """Returns what experts made of the rows of the oldest batch, a row ``[h]`` of ``y`` for each of ``Received.x`` in the same
        order, and sums for every token of this rank what comes back, by its weights: ``[n, h]``.

        ``topk_weights`` ``[n, k]`` replace those of dispatch, but not in the hierarchy of A2, which sends them there. ``shared_expert_x`` ``[n, h]`` is added to each sum, on all ranks or
        on none. ``const_experts`` are their ``alpha_1`` ``[q]``, ``alpha_2`` ``[q]`` and ``v`` ``[q, h]``, the same on all ranks.

        Raises:
            Violation: the tensors break rules. Nothing has been sent.
            ValueError: it is not the oldest batch, or has been combined.
            TypeError: a tensor is of another type or shape.
            Mismatch: another rank has called something else. The group has ended.
            Gone: a rank has died, or has left the group. The group has ended.
            Timeout: no rank has moved for the deadline. The group has ended.
        """
        given, _arrays = self._returned(y, handle, topk_weights, shared_expert_x, const_experts)
        return self._summed(handle, lambda x_out: self._member.combine(handle._native, given, x_out))

    def combine_send(
        self,
        y: Any,
        handle: Handle,
        topk_weights: Any = None,
        *,
        shared_expert_x: Any = None,
        const_experts: tuple[Any, Any, Any] | None = None,
    ) -> Sent[Any]:
        """Returns rows like ``combine``, and returns when everything is sent; ``finish()`` of what it returns, or a call of it, sums
        what has come back. Other operators may begin between; every rank must take them in the same order.

        Raises:
            As ``combine``; and ValueError if the order of this rank would let it overwrite what another rank has not read, with a
            reason. Then nothing has been sent, and the group goes on.
        """
        given, _arrays = self._returned(y, handle, topk_weights, shared_expert_x, const_experts)
        sent = self._member.send_combine(handle._native, given)

        def finish() -> Any:
            return self._summed(handle, lambda x_out: self._member.finish_combine(sent, x_out))

        return Sent(self._member, sent, finish)

    def _returned(
        self, y: Any, handle: Handle, topk_weights: Any, shared_expert_x: Any, const_experts: Any
    ) -> tuple[Any, list[Any]]:
        """What the native half is given, and the arrays that it reads meanwhile."""
        import numpy as np

        of_layer = self._layer(handle.layer)
        n, h, dtype = handle._tokens, of_layer.h, of_layer.dtype

        def rows_of(name: str, value: Any, *shape: int) -> np.ndarray[Any, Any]:
            _has_no_gradient(name, value)
            array = np.ascontiguousarray(_array(value))
            _must_be(name, array, shape, dtype)
            return array

        rows = rows_of("y", y, handle.rows, h)
        weights = None if topk_weights is None else _weights(topk_weights, (n, of_layer.k))
        shared = None if shared_expert_x is None else rows_of("shared_expert_x", shared_expert_x, n, h)
        q = of_layer.const_experts
        consts = [np.empty(0, dtype)] * 3
        if const_experts is not None:
            alpha_1, alpha_2, v = const_experts
            consts = [
                rows_of("alpha_1", alpha_1, q),
                rows_of("alpha_2", alpha_2, q),
                rows_of("v", v, q, h),
            ]
        given = (
            _address(rows),
            None if weights is None else _address(weights),
            None if shared is None else _address(shared),
            [_address(array) for array in consts],
        )
        return given, [rows, weights, shared, *consts]

    def _summed(self, handle: Handle, combine: Callable[[tuple[int, int]], None]) -> Any:
        import numpy as np

        of_layer = self._layer(handle.layer)
        x_out = np.empty((of_layer.bs, of_layer.h), of_layer.dtype)
        combine(_address(x_out))
        summed = x_out[: handle._tokens]
        return _torch(summed) if handle._as_torch else summed

    def _layer(self, number: int) -> _Layer:
        if not 0 <= number < len(self._layers):
            raise ValueError(f"layer = {number}: must be in [0, {len(self._layers)})")
        return self._layers[number]

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
            raise ValueError(
                f"{name}: wants a gradient, and operators have no backward: pass {name}.detach()"
            )


def _weights(value: Any, shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    import numpy as np

    _has_no_gradient("topk_weights", value)
    weights = _array(value)
    if weights.dtype.name not in ("float32", "float64", "float16", "bfloat16"):
        raise TypeError(f"topk_weights: {weights.dtype}: must be float32")
    weights = np.ascontiguousarray(weights, np.float32)
    _must_be("topk_weights", weights, shape)
    return weights


def _as_it_is(array: np.ndarray[Any, Any]) -> Any:
    return array


def _address(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes


def _must_be(
    name: str, array: np.ndarray[Any, Any], shape: Sequence[int], dtype: np.dtype[Any] | None = None
) -> None:
    if array.shape != tuple(shape):
        raise TypeError(f"{name}: shape {list(array.shape)}: must be {list(shape)}".replace("-1", "n"))
    if dtype is not None and array.dtype != dtype:
        raise TypeError(f"{name}: {array.dtype}: must be {dtype}")
