"""The operators' parameters, and what becomes of each: behaviour, documents and tests come from this table."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameter:
    """A parameter of dispatch, of combine, or of both."""

    half: str
    """``dispatch``, ``combine`` or ``both``."""
    name: str
    kind: str
    """Its type in a schema of ``torch``, such as ``Tensor?``."""
    default: Any
    status: str
    """``supported``; ``mapped``: a value stands for another one, which a warning says once; ``refused`` unless it has its
    default."""
    why: str
    """What becomes of it, for the documents and for messages."""
    values: tuple[Any, ...] | None = None
    """The values that are taken, where they are few."""
    mapped: Mapping[Any, Any] = field(default_factory=dict)
    """Values that stand for others."""

    def is_default(self, value: Any) -> bool:
        return value is self.default or (not _is_tensor(value) and bool(value == self.default))


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape")


def _rows() -> list[Parameter]:
    rows: list[Parameter] = []

    def row(half: str, kind: str, name: str, default: Any, status: str, why: str, **more: Any) -> None:
        rows.append(Parameter(half, name, kind, default, status, why, **more))

    tensor, number, word, maybe = "Tensor", "int", "str", "Tensor?"
    yes, no = "supported", "refused"
    later = "belongs to operators of A5, whose numbers are not here"

    row("both", tensor, "expert_ids", REQUIRED, yes, "int32 [BS, K]; combine takes those of its dispatch")
    row("both", word, "group_ep", REQUIRED, yes, "the name of a process group, or one given to `register`")
    row("both", number, "ep_world_size", REQUIRED, yes, "must be the number of ranks of `group_ep`")
    row("both", number, "ep_rank_id", REQUIRED, yes, "must be this rank's number in `group_ep`")
    row("both", number, "moe_expert_num", REQUIRED, yes, "combine takes that of its dispatch")
    row("both", maybe, "x_active_mask", None, yes, "bool [BS] or [BS, K]; combine takes that of its dispatch")
    row("both", maybe, "elastic_info", None, no, "live groups have all of their ranks")
    row("both", maybe, "performance_info", None, no, "there are no times of a device to put in")
    row("both", word, "group_tp", "", yes, "not read: there is no TP domain, so it may be `group_ep` too")
    row(
        "both",
        number,
        "tp_world_size",
        0,
        yes,
        "release 2026-07 of the operators refuses 2",
        values=(0, 1),
    )
    row("both", number, "tp_rank_id", 0, yes, "there is no TP domain", values=(0,))
    row("both", number, "expert_shard_type", 0, yes, "ranks of shared experts come first", values=(0,))
    row("both", number, "shared_expert_num", 1, yes, "counts as 0 if no rank holds a shared expert")
    row("both", number, "shared_expert_rank_num", 0, yes, "combine takes that of its dispatch")
    row("both", number, "global_bs", 0, yes, "0, or capacity of a rank times `ep_world_size`")
    row(
        "both",
        word,
        "comm_alg",
        "",
        "mapped",
        "`hierarchy` and `ccu` run as full mesh: sums differ in their last bits, and weights travel with combine",
        values=("", "fullmesh_v1", "fullmesh_v2"),
        mapped={"hierarchy": "", "ccu": ""},
    )
    row("both", number, "zero_expert_num", 0, yes, "combine takes that of its dispatch")
    row("both", number, "copy_expert_num", 0, yes, "combine takes that of its dispatch, and `ori_x`")
    row(
        "both",
        number,
        "const_expert_num",
        0,
        yes,
        "combine takes that of its dispatch, and the three tensors",
    )

    row("dispatch", tensor, "x", REQUIRED, yes, "bfloat16 or float16 [BS, H]")
    row("dispatch", maybe, "scales", None, yes, "float32 [S + E, H], smooth scales of `quant_mode` 2")
    row("dispatch", maybe, "expert_scales", None, yes, "float32 [BS, K]; full mesh does not read it")
    row("dispatch", number, "quant_mode", 0, yes, "1 is static; 3 and 4 are of A5", values=(0, 2))
    row("dispatch", number, "expert_token_nums_type", 1, yes, "0: prefix sums, 1: counts", values=(0, 1))
    row("dispatch", "int?", "y_dtype", None, no, later)
    row("dispatch", "int?", "x_dtype", None, no, later)
    row("dispatch", "int?", "scales_dtype", None, no, later)

    row("combine", tensor, "expand_x", REQUIRED, yes, "[A, H]; rows after those received are not read")
    row(
        "combine", tensor, "assist_info_for_combine", REQUIRED, yes, "names the batch: what dispatch returned"
    )
    row("combine", tensor, "expand_idx", REQUIRED, yes, "names the batch: what dispatch returned")
    row("combine", tensor, "ep_send_counts", REQUIRED, yes, "the receive counts that dispatch returned")
    row("combine", tensor, "expert_scales", REQUIRED, yes, "float32 [BS, K]: the weights of the sums")
    row("combine", maybe, "tp_send_counts", None, yes, "not read: there is no TP domain")
    row("combine", maybe, "expand_scales", None, yes, "not read: weights are those of `expert_scales`")
    row("combine", maybe, "shared_expert_x", None, yes, "[BS, H], added to each sum")
    row("combine", maybe, "ori_x", None, yes, "copy and const experts need it: the `x` of dispatch")
    row("combine", maybe, "const_expert_alpha_1", None, yes, "[const experts], in the type of `x`")
    row("combine", maybe, "const_expert_alpha_2", None, yes, "[const experts], in the type of `x`")
    row("combine", maybe, "const_expert_v", None, yes, "[const experts, H], in the type of `x`")
    row("combine", number, "comm_quant_mode", 0, yes, "2: blocks of int8 on the way back", values=(0, 2))
    row("combine", maybe, "activation_scale", None, no, "the operators keep it for later")
    row("combine", maybe, "weight_scale", None, no, "the operators keep it for later")
    row("combine", maybe, "group_list", None, no, "the operators keep it for later")
    row("combine", number, "out_dtype", 0, no, "the operators keep it for later")
    row("combine", number, "group_list_type", 0, no, "the operators keep it for later")
    return rows


PARAMETERS = tuple(_rows())


class Operator:
    """The signature of an operator: names, order and defaults are those that torch_npu publishes."""

    def __init__(self, name: str, half: str, positional: str, keywords: str) -> None:
        self.name, self.half = name, half
        rows = {row.name: row for row in PARAMETERS if row.half in (half, "both")}
        self._absent = {name: row.default for name, row in rows.items() if row.default is not REQUIRED}
        self.positional = tuple(rows[name] for name in positional.split())
        self.keywords = tuple(rows[name] for name in keywords.split())
        kinds = inspect.Parameter
        self.signature = inspect.Signature(
            [kinds(row.name, kinds.POSITIONAL_OR_KEYWORD) for row in self.positional]
            + [kinds(row.name, kinds.KEYWORD_ONLY, default=row.default) for row in self.keywords]
        )

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return self.positional + self.keywords

    @property
    def is_first_pair(self) -> bool:
        """Whether it is of the pair that has ``expand_idx``."""
        return not self.name.endswith("_v2")

    @property
    def schema(self) -> str:
        """As ``torch.library`` takes it."""

        def one(row: Parameter) -> str:
            if row.default is REQUIRED:
                return f"{row.kind} {row.name}"
            return f"{row.kind} {row.name}=" + ('""' if row.default == "" else str(row.default))

        arguments = [*map(one, self.positional), "*", *map(one, self.keywords)]
        results = "(" + ", ".join(["Tensor"] * 7) + ")" if self.half == "dispatch" else "Tensor"
        return f"{self.name}({', '.join(arguments)}) -> {results}"

    def bind(self, *args: Any, **kwargs: Any) -> SimpleNamespace:
        """The arguments by name. What this operator does not have has its default.

        Raises:
            TypeError: one is missing, or the operator has none of that name.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        bound.apply_defaults()
        return SimpleNamespace(**{**self._absent, **bound.arguments})


_DISPATCH = "x expert_ids group_ep ep_world_size ep_rank_id moe_expert_num"
_COMBINE = (
    "expand_x expert_ids {} ep_send_counts expert_scales group_ep ep_world_size ep_rank_id moe_expert_num"
)
_TP = "group_tp tp_world_size tp_rank_id expert_shard_type shared_expert_num shared_expert_rank_num"
_SPECIAL = "zero_expert_num copy_expert_num const_expert_num"

OPERATORS = (
    Operator(
        "npu_moe_distribute_dispatch_v2",
        "dispatch",
        _DISPATCH,
        f"scales x_active_mask expert_scales elastic_info performance_info {_TP} quant_mode global_bs "
        f"expert_token_nums_type comm_alg {_SPECIAL} y_dtype x_dtype scales_dtype",
    ),
    Operator(
        "npu_moe_distribute_combine_v2",
        "combine",
        _COMBINE.format("assist_info_for_combine"),
        "tp_send_counts x_active_mask expand_scales shared_expert_x elastic_info ori_x const_expert_alpha_1 "
        f"const_expert_alpha_2 const_expert_v performance_info {_TP} global_bs comm_quant_mode comm_alg {_SPECIAL}",
    ),
    Operator(
        "npu_moe_distribute_dispatch",
        "dispatch",
        _DISPATCH,
        f"scales x_active_mask expert_scales {_TP} quant_mode global_bs expert_token_nums_type",
    ),
    Operator(
        "npu_moe_distribute_combine",
        "combine",
        _COMBINE.format("expand_idx"),
        "tp_send_counts x_active_mask activation_scale weight_scale group_list expand_scales shared_expert_x "
        f"{_TP} global_bs out_dtype comm_quant_mode group_list_type",
    ),
)


def table() -> str:
    """What becomes of each parameter, as a table in Markdown."""
    lines = ["| parameter | of | | |", "|---|---|---|---|"]
    for row in PARAMETERS:
        values = "" if row.values is None else f"{', '.join(map(_shown, row.values))}; "
        lines.append(f"| `{row.name}` | {row.half} | {row.status} | {values}{row.why} |")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    return f"`{value}`" if value != "" else '`""`'
