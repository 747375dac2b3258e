"""A layer through the double of torch_npu's operators, with the stand-in experts of the reference."""

import numpy as np
import reference
import veriep
import veriep.torch_npu as torch_npu

FIRST_PAIR = (torch_npu.npu_moe_distribute_dispatch, torch_npu.npu_moe_distribute_combine)
SECOND_PAIR = (torch_npu.npu_moe_distribute_dispatch_v2, torch_npu.npu_moe_distribute_combine_v2)

BOTH = (
    "moe_expert_num",
    "shared_expert_num",
    "shared_expert_rank_num",
    "global_bs",
    "comm_alg",
    "zero_expert_num",
    "copy_expert_num",
    "const_expert_num",
)


def case_of(config, seed=0, mask=None, scales=False, shared_x=False):
    group = reference.Group(veriep.Shape(**config).config)
    case = reference.make_case(group, seed=seed, mask=mask, scales=scales)
    if shared_x:
        rng = np.random.default_rng(seed + 1)
        for rank in range(group.ranks):
            shared = rng.normal(size=(group.bs[rank], group.h)).astype(np.float32)
            case[f"rank{rank}.shared_expert_x"] = shared.astype(group.dtype)
    return case


def arguments(rank, case, config, pair=SECOND_PAIR):
    """Those of dispatch, and those of combine that are no outputs of dispatch."""
    of = {
        name[len(f"rank{rank.rank}.") :]: value
        for name, value in case.items()
        if name.startswith(f"rank{rank.rank}.")
    }
    both = dict(rank.at, **{name: config[name] for name in BOTH if name in config})
    both["expert_ids"] = of["expert_ids"]
    if "x_active_mask" in of:
        both["x_active_mask"] = of["x_active_mask"]
    dispatch = dict(both, x=of["x"], scales=case.get("scales"))
    for name in ("quant_mode", "expert_token_nums_type"):
        if name in config:
            dispatch[name] = config[name]
    combine = dict(both, expert_scales=of["expert_scales"], comm_quant_mode=config.get("comm_quant_mode", 0))
    if "shared_expert_x" in of:
        combine["shared_expert_x"] = of["shared_expert_x"]
    if config.get("copy_expert_num") or config.get("const_expert_num"):
        combine["ori_x"] = of["x"]
    for name in ("alpha_1", "alpha_2", "v"):
        if f"const_expert_{name}" in case:
            combine[f"const_expert_{name}"] = case[f"const_expert_{name}"]
    return dispatch, combine


def experts(group, case, rank, rows, scales, nums, are_counts):
    """What the stand-in experts of a rank make of what it received; NaN after it."""
    counts = nums if are_counts else np.diff(nums, prepend=0)
    gains = np.repeat(np.float32([case["expert_gain"][expert] for expert in group.hosted(rank)]), counts)
    out = np.full(rows.shape, np.nan, group.dtype)
    values = rows[: len(gains)].astype(np.float32)
    if group.int8:
        values = values * scales[: len(gains), None]
    out[: len(gains)] = group.rounded(values * gains[:, None])
    return out


def back(combine, got, y, of_combine, pair=SECOND_PAIR):
    name = "expand_idx" if pair is FIRST_PAIR else "assist_info_for_combine"
    return combine(y, ep_send_counts=got[4], **{name: got[2]}, **of_combine)


def layer(rank, case, config, pair=SECOND_PAIR):
    """One layer on one rank: what dispatch put out, and the sums."""
    # Names of algorithms that stand for another are the double's alone.
    known = {**config, "comm_alg": config.get("comm_alg", "").replace("hierarchy", "").replace("ccu", "")}
    group = reference.Group(veriep.Shape(**known).config)
    dispatch, combine = pair
    of_dispatch, of_combine = arguments(rank, case, config, pair)
    got = dispatch(**of_dispatch)
    y = experts(group, case, rank.rank, got[0], got[1], got[3], group.counts)
    return got, back(combine, got, y, of_combine, pair)


def as_result(outs, group):
    """Outputs of all ranks with the names that the reference has for them, without what comes after the rows received."""
    result = {}
    for rank, (got, x_out) in enumerate(outs):
        counts = got[3] if group.counts else np.diff(got[3], prepend=0)
        n = int(counts.sum())
        name = f"rank{rank}."
        result[name + "expand_x"] = got[0][:n]
        result[name + "expert_token_nums"] = got[3]
        result[name + "ep_recv_counts"] = got[4]
        result[name + "x_out"] = x_out
        if group.int8:
            result[name + "dynamic_scales"] = got[1][:n]
        if len(got[2]) >= 128 * len(got[0]):
            result[name + "assist_info_for_combine"] = got[2][: 3 * n].reshape(n, 3)
        else:
            result[name + "expand_idx"] = got[2].reshape(-1, group.k)
    return result
