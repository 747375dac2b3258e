"""Cases with exact results, for implementations of MoE dispatch and combine on any backend.

An implementation is two functions with the keywords of torch_npu's operators. Every rank runs every case; nothing has to be
exchanged, since a case knows what all ranks send:

    for case in veriep.conformance.cases(world_size):
        case.run(rank, dispatch, combine, group_ep=name, device="npu")

Rows, weights and experts are all different, so that an exchange of any two shows. Values have few bits: whatever the order of a
sum in float32, it is exact, and its rounding is the only one. So results are compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ._reference import reference_combine, reference_dispatch
from ._tensors import _array, _torch, type_named

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Routing = Callable[["Case", np.random.Generator, int, int], Array]

__all__ = ["Case", "Wrong", "cases"]

_K = 3
_LOCAL = 4
_H = 1024
_BS = 6


class Wrong(AssertionError):
    """A tensor that an implementation has put out is not what it must be."""


@dataclass(frozen=True)
class Case:
    """What all ranks do, and what comes of it."""

    name: str
    """What it is about."""
    world_size: int
    """Ranks."""
    schedule: str = "D0 C0"
    """Dispatches and combines with the number of their layer, in one order on all ranks. Each layer has other tokens, routing and
    weights."""
    config: dict[str, Any] = field(default_factory=dict)
    """What differs from a plain configuration, with the names of ``veriep.Shape``."""
    _routing: Routing | None = None
    _mask: str = ""
    _masked_ids: int | None = None
    _uneven: bool = False
    _smooth: bool = False
    _shared_rows: bool = False

    @property
    def moe_expert_num(self) -> int:
        """MoE experts, ``4`` on each rank that has no shared one."""
        return _LOCAL * (self.world_size - self._shared_ranks)

    @property
    def _shared_ranks(self) -> int:
        return int(self.config.get("shared_expert_rank_num", 0))

    def _tokens(self, rank: int) -> int:
        return _BS - rank % 3 if self._uneven else _BS

    def keywords(self) -> dict[str, Any]:
        """The configuration as ``veriep.Shape`` takes it."""
        shape: dict[str, Any] = dict(
            ep_world_size=self.world_size, moe_expert_num=self.moe_expert_num, k=_K, h=_H, bs=_BS
        )
        if self._uneven:
            shape["bs"] = [self._tokens(rank) for rank in range(self.world_size)]
            shape["global_bs"] = _BS * self.world_size
        return {**shape, **self.config}

    def tensors(self, layer: int) -> dict[str, Array]:
        """What all ranks bring to a layer, by the names of case files (``rank0.x``, ...)."""
        import numpy as np

        rng = np.random.default_rng([layer, *self.name.encode()])
        dtype = type_named({"f16": "float16"}.get(self.config.get("dtype", ""), "bfloat16"))
        tensors: dict[str, Array] = {}
        for rank in range(self.world_size):
            n = self._tokens(rank)
            of = f"rank{rank}."
            tensors[of + "x"] = _rows(rng, n, self._is_quantised()).astype(dtype)
            route = self._routing or _spread
            ids = np.stack([route(self, rng, rank, token) for token in range(n)]).astype(np.int32)
            tensors[of + "expert_ids"] = ids
            # No two weights of a token are equal. They are of either sign, beyond 1, and of twelve bits.
            weights = np.stack([rng.permutation(np.arange(-4095, 4096, 2))[:_K] for _ in range(n)])
            tensors[of + "expert_scales"] = (weights / 2048).astype(np.float32)
            mask = self._mask_of(rng, rank, n)
            if mask is not None:
                tensors[of + "x_active_mask"] = mask
                if self._masked_ids is not None:
                    ids[~(mask if mask.ndim == 2 else mask[:, None].repeat(_K, 1))] = self._masked_ids
            if self._shared_rows:
                tensors[of + "shared_expert_x"] = _rows(rng, n, False).astype(dtype)
        if self._smooth:
            experts = self.moe_expert_num + (1 if self._shared_ranks else 0)
            # A row for each expert, of powers of two; the largest value of a token stays the largest.
            tensors["scales"] = np.exp2(rng.integers(-2, 1, (experts, _H))).astype(np.float32)
            tensors["scales"][:, 0] = np.exp2(np.arange(experts) % 3 - 1)
        return tensors

    def _mask_of(self, rng: np.random.Generator, rank: int, n: int) -> Array | None:
        import numpy as np

        if self._mask == "tokens":
            # Every third rank has no token, the last one of these all.
            return np.arange(n) < (0 if rank % 3 == 0 else n - rank % 3 + 1)
        if self._mask == "pairs":
            return rng.random((n, _K)) < 0.6
        return None

    def expected(self, tensors: dict[str, Array]) -> dict[str, Array]:
        """What dispatch and combine put out on all ranks of these tensors, by the names of result files (``rank0.expand_x``, ...)."""
        shape = self.keywords()
        dispatched = reference_dispatch(tensors, **shape)
        returned = {}
        for rank in range(self.world_size):
            of = f"rank{rank}."
            counts = dispatched[of + "expert_token_nums"]
            if not self._counts_rows():
                counts = _differences(counts)
            rows = _values(dispatched[of + "expand_x"], dispatched.get(of + "dynamic_scales"))
            returned[of + "y"] = self.experts(rank, rows, counts).astype(tensors[of + "x"].dtype)
        return {**dispatched, **reference_combine(tensors, returned, **shape)}

    def _is_quantised(self) -> bool:
        return bool(self.config.get("quant_mode", 0)) and not self._smooth

    def _counts_rows(self) -> bool:
        return bool(self.config.get("expert_token_nums_type", 1))

    def experts(self, rank: int, rows: Array, counts: Array) -> Array:
        """What the experts of a rank make of its rows, in float32: each shifts them by another distance and scales them by a
        power of two."""
        import numpy as np

        results, start = np.zeros((len(rows), _H), np.float32), 0
        first = (rank - self._shared_ranks) * _LOCAL
        for local, count in enumerate(counts):
            number = self.moe_expert_num + rank if rank < self._shared_ranks else first + local
            of_expert = slice(start, start + int(count))
            results[of_expert] = np.roll(rows[of_expert], number + 1, axis=1) * 2.0 ** (number % 3 - 1)
            start += int(count)
        return results

    def _of_dispatch(self, rank: int, tensors: dict[str, Array], group_ep: str) -> dict[str, Any]:
        """The keywords of dispatch on a rank."""
        of = f"rank{rank}."
        optional = {"scales": tensors.get("scales"), "x_active_mask": tensors.get(of + "x_active_mask")}
        numbers = {name: value for name, value in self.config.items() if name != "dtype"}
        if self._uneven:
            numbers["global_bs"] = _BS * self.world_size
        return {
            "x": tensors[of + "x"],
            "expert_ids": tensors[of + "expert_ids"],
            "group_ep": group_ep,
            "ep_world_size": self.world_size,
            "ep_rank_id": rank,
            "moe_expert_num": self.moe_expert_num,
            **numbers,
            **{name: value for name, value in optional.items() if value is not None},
        }

    def run(
        self,
        rank: int,
        dispatch: Callable[..., Any],
        combine: Callable[..., Any],
        *,
        group_ep: str = "",
        device: str | None = None,
    ) -> None:
        """Runs the case on a rank and compares what it puts out.

        ``dispatch`` returns torch_npu's seven tensors, ``combine`` its one. With a ``device`` they are given tensors of ``torch``
        there, else arrays of NumPy. What they allocate beyond what they write is not looked at.

        Raises:
            Wrong: a tensor differs: which, where, and from what.
        """
        held: dict[int, _Sent] = {}
        for step in self.schedule.split():
            layer = int(step[1:])
            if step[0] == "D":
                tensors = self.tensors(layer)
                given = self._of_dispatch(rank, tensors, group_ep)
                sent = _Sent(
                    f"{self.name}: rank {rank}, layer {layer}", rank, tensors, self.expected(tensors)
                )
                put_out = _called(sent.where, dispatch, given, device)
                sent.returned = self._of_combine(sent, given, put_out, self._check_dispatch(sent, put_out))
                held[layer] = sent
            else:
                sent = held.pop(layer)
                self._check_combine(sent, _called(sent.where, combine, sent.returned, device))

    def _of_combine(self, sent: _Sent, given: dict[str, Any], put_out: Any, y: Array) -> dict[str, Any]:
        """The keywords of combine on a rank."""
        of_dispatch_alone = ("x", "scales", "quant_mode", "expert_token_nums_type")
        returned = {
            **{name: value for name, value in given.items() if name not in of_dispatch_alone},
            "expand_x": y,
            "assist_info_for_combine": put_out[2],
            "ep_send_counts": put_out[4],
            "expert_scales": sent.own("expert_scales"),
        }
        if self._shared_rows:
            returned["shared_expert_x"] = sent.own("shared_expert_x")
        if self.config.get("copy_expert_num"):
            returned["ori_x"] = given["x"]
        return returned

    def _check_dispatch(self, sent: _Sent, put_out: Any) -> Array:
        """Compares what dispatch has put out, and returns what the experts make of it, with room as large as the rows have."""
        import numpy as np

        rows, scales, _, nums, recv_counts, *_ = (None if one is None else _array(one) for one in put_out)
        want = sent.must("expand_x")
        for name, seen in (("expert_token_nums", nums), ("ep_recv_counts", recv_counts), ("expand_x", rows)):
            _compare(sent.where, name, seen, sent.must(name))
        if self.config.get("quant_mode"):
            _compare(sent.where, "dynamic_scales", scales, sent.must("dynamic_scales"))
        assert rows is not None and nums is not None
        counts = nums[: len(sent.must("expert_token_nums"))]
        used = rows[: len(want)]
        values = _values(used, None if scales is None or used.dtype.kind != "i" else scales[: len(used)])
        results = self.experts(sent.rank, values, counts if self._counts_rows() else _differences(counts))
        y = np.zeros((len(rows), _H), sent.must("x_out").dtype)
        y[: len(used)] = results.astype(y.dtype)
        return y

    def _check_combine(self, sent: _Sent, put_out: Any) -> None:
        import numpy as np

        seen, want = _array(put_out), sent.must("x_out")
        mask = sent.tensors.get(f"rank{sent.rank}.x_active_mask", np.ones(len(want), bool))
        active = mask if mask.ndim == 1 else mask.any(axis=1)
        if seen.shape != want.shape:
            raise Wrong(f"{sent.where}: x_out: shape {list(seen.shape)}: must be {list(want.shape)}")
        for token in np.flatnonzero(active):
            _compare(sent.where, f"x_out[{token}]", seen[token], want[token])


@dataclass
class _Sent:
    """A layer on one rank, between its dispatch and its combine."""

    where: str
    """For messages."""
    rank: int
    tensors: dict[str, Array]
    """What all ranks bring."""
    expected: dict[str, Array]
    returned: dict[str, Any] = field(default_factory=dict)
    """The keywords of combine."""

    def own(self, name: str) -> Array:
        return self.tensors[f"rank{self.rank}.{name}"]

    def must(self, name: str) -> Array:
        return self.expected[f"rank{self.rank}.{name}"]


def cases(world_size: int) -> Iterator[Case]:
    """All cases for a number of ranks, at least two. All ranks must run them in this order."""
    if world_size < 2:
        raise ValueError(f"world_size = {world_size}: must be at least 2")
    many: dict[str, Any] = {"schedule": "D0 D1 C0 D2 C1 C2"}
    yield from (
        Case("rows, experts and weights are distinct", world_size),
        Case("three layers, two in flight", world_size, **many),
        Case(
            "six layers, one after the other",
            world_size,
            schedule=" ".join(f"D{layer} C{layer}" for layer in range(6)),
        ),
        Case("rows of shared experts, and a mask", world_size, _shared_rows=True, _mask="tokens"),
        Case("the same in float16", world_size, **many, config=dict(dtype="f16")),
        Case("counts are prefix sums", world_size, config=dict(expert_token_nums_type=0)),
        Case("all tokens to the same experts", world_size, **many, _routing=_hot),
        Case("all tokens to the last rank", world_size, **many, _routing=_to_last),
        Case("each rank to itself", world_size, _routing=_to_itself),
        Case("each rank to the next", world_size, **many, _routing=_to_next),
        Case("layers of other routings", world_size, **many, _routing=_by_turns),
        Case("ranks of uneven batches", world_size, **many, _uneven=True),
        Case("ranks without active tokens", world_size, **many, _mask="tokens"),
        Case("inactive pairs", world_size, **many, _mask="pairs"),
        Case("inactive pairs with id -1", world_size, _mask="pairs", _masked_ids=-1),
        Case("int8 rows", world_size, **many, config=dict(quant_mode=2)),
        Case("int8 rows, smooth scales", world_size, config=dict(quant_mode=2), _smooth=True),
        Case("int8 rows of masked ranks", world_size, config=dict(quant_mode=2), _mask="tokens"),
        Case("rows of shared experts are added", world_size, **many, _shared_rows=True),
        Case(
            "copy and zero experts",
            world_size,
            config=dict(copy_expert_num=1, zero_expert_num=1),
            _routing=_special,
        ),
        Case("a rank of shared experts", world_size, **many, config=dict(shared_expert_rank_num=1)),
    )


def _rows(rng: np.random.Generator, n: int, rounds: bool) -> Array:
    """Rows of integers of seven bits, each row by a power of two that follows from its token; 127 is in each, so that int8 is
    exact, unless it ``rounds``: then values lie a quarter beside integers, which have one rounding."""
    import numpy as np

    rows = rng.integers(-126, 127, (n, _H)).astype(np.float64)
    if rounds:
        rows = np.trunc(rows / 4) + rng.choice([-0.25, 0.0, 0.25], rows.shape)
    rows[:, 0] = np.where(rng.random(n) < 0.5, 127, -127)
    return rows * np.exp2(-(np.arange(n) % 4))[:, None]


def _spread(case: Case, rng: np.random.Generator, rank: int, token: int) -> Array:
    return rng.permutation(case.moe_expert_num)[:_K]


def _hot(case: Case, rng: np.random.Generator, rank: int, token: int) -> Array:
    import numpy as np

    return rng.permutation(np.arange(1, 1 + _K))


def _to(rank: int, rng: np.random.Generator) -> Array:
    return rank * _LOCAL + rng.permutation(_LOCAL)[:_K]


def _to_last(case: Case, rng: np.random.Generator, rank: int, token: int) -> Array:
    return _to(case.world_size - 1, rng)


def _to_itself(case: Case, rng: np.random.Generator, rank: int, token: int) -> Array:
    return _to(rank, rng)


def _to_next(case: Case, rng: np.random.Generator, rank: int, token: int) -> Array:
    return _to((rank + 1) % case.world_size, rng)


def _by_turns(case: Case, rng: np.random.Generator, rank: int, token: int) -> Array:
    # Drawn once more by each layer, token and rank.
    routes = (_spread, _hot, _to_last, _to_itself, _to_next)
    return routes[int(rng.integers(len(routes)))](case, rng, rank, token)


def _special(case: Case, rng: np.random.Generator, rank: int, token: int) -> Array:
    ids = _spread(case, rng, rank, token)
    ids[int(rng.integers(_K))] = case.moe_expert_num + token % 2
    return ids


def _values(rows: Array, scales: Array | None) -> Array:
    import numpy as np

    values: Array = rows.astype(np.float32)
    return values if scales is None else values * scales[:, None]


def _differences(ends: Array) -> Array:
    import numpy as np

    return np.diff(ends, prepend=0)


def _called(where: str, operator: Callable[..., Any], given: dict[str, Any], device: str | None) -> Any:
    """Calls an operator, which must leave what it is given as it is."""
    import numpy as np

    passed = _on(given, device)
    before = {name: np.array(value) for name, value in given.items() if isinstance(value, np.ndarray)}
    put_out = operator(**passed)
    for name, value in before.items():
        if _array(passed[name]).tobytes() != value.tobytes():
            raise Wrong(f"{where}: {name}: was written, and is an input")
    return put_out


def _on(arguments: dict[str, Any], device: str | None) -> dict[str, Any]:
    """Arrays as tensors on a device, and everything else as it is."""
    import numpy as np

    if device is None:
        return arguments
    return {
        name: _torch(np.ascontiguousarray(value)).to(device) if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }


def _compare(where: str, name: str, seen: Array | None, want: Array) -> None:
    """The first entries of a tensor, bit by bit; zeros of either sign are equal."""
    import numpy as np

    if seen is None:
        raise Wrong(f"{where}: {name}: is missing")
    if seen.dtype != want.dtype:
        raise Wrong(f"{where}: {name}: {seen.dtype}: must be {want.dtype}")
    if len(seen) < len(want) or seen.shape[1:] != want.shape[1:]:
        raise Wrong(f"{where}: {name}: shape {list(seen.shape)}: must have room for {list(want.shape)}")
    wrong = np.argwhere(~(seen[: len(want)] == want))
    if not len(wrong):
        return
    at = tuple(int(index) for index in wrong[0])
    place = "".join(f"[{index}]" for index in at)
    count = f"{len(wrong)} of {want.size} values are wrong, this one first"
    raise Wrong(f"{where}: {name}{place} = {seen[at]}: must be {want[at]} ({count})")
