"""Dispatch and combine by their definition, in NumPy alone: what the reference is held against, and cases for both."""

from __future__ import annotations

import ml_dtypes
import numpy as np

DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
NAN_BITS = {"bf16": 0x7FC0, "f16": 0x7E00}


class Group:
    """A configuration with all its keys, as ``veriep.Shape(...).config`` has them."""

    def __init__(self, config):
        self.ranks, self.tp = config["ep_world_size"], max(config["tp_world_size"], 1)
        self.shared_ranks = config["shared_expert_rank_num"]
        self.shared = config.get("shared_expert_num", 1) if self.shared_ranks else 0
        self.experts, self.k, self.h = config["moe_expert_num"], config["k"], config["h"]
        self.local = self.experts // (self.ranks - self.shared_ranks)
        self.zero, self.copy, self.const = (
            config[f"{kind}_expert_num"] for kind in ("zero", "copy", "const")
        )
        bs = config["bs"]
        self.bs = bs if isinstance(bs, list) else [bs] * self.ranks
        self.name, self.dtype = config["dtype"], DTYPES[config["dtype"]]
        self.int8, self.int8_back = config["quant_mode"] == 2, config["comm_quant_mode"] == 2
        self.counts = config["expert_token_nums_type"] == 1
        self.by_servers = config["comm_alg"] == "hierarchy"
        self.by_counts = config["product"] == "a2" and not self.by_servers

    def rounded(self, values):
        rows = values.astype(self.dtype)
        rows.view(np.uint16)[np.isnan(values)] = NAN_BITS[self.name]
        return rows

    def hosted(self, rank):
        """The experts of an EP rank, shared ones first in the numbers."""
        if rank < self.shared_ranks:
            return [rank // (self.shared_ranks // self.shared)]
        first = self.shared + (rank - self.shared_ranks) * self.local
        return list(range(first, first + self.local))

    def server(self, expert):
        return expert // (8 * self.local)


def make_case(group, routing="uniform", seed=0, mask=None, scales=False):
    """Random tensors. Routings: uniform, zipf, hot (all tokens to the same experts), node-limited (to four servers)."""
    rng = np.random.default_rng(seed)
    ids = group.experts + group.zero + group.copy + group.const
    case = {}
    for rank in range(group.ranks * group.tp):
        bs = group.bs[rank // group.tp]
        chosen = np.empty((bs, group.k), np.int32)
        for token in range(bs):
            weights = np.ones(ids)
            if routing == "zipf":
                weights = 1 / np.arange(1, ids + 1)
            if routing == "hot":
                weights[group.k :] = 0
            if routing == "node-limited":
                servers = rng.permutation(group.ranks // 8)[:4]
                weights[~np.isin(group.server(np.arange(ids)), servers)] = 0
            chosen[token] = rng.choice(ids, group.k, replace=False, p=weights / weights.sum())
        x = rng.normal(size=(bs, group.h)) * 2.0 ** rng.integers(-8, 8, (bs, 1))
        case[f"rank{rank}.x"] = x.astype(np.float32).astype(group.dtype)
        case[f"rank{rank}.expert_ids"] = chosen
        case[f"rank{rank}.expert_scales"] = rng.normal(size=(bs, group.k)).astype(np.float32)
        if mask == "tokens":
            case[f"rank{rank}.x_active_mask"] = np.arange(bs) < rng.integers(bs + 1)
        if mask == "pairs":
            case[f"rank{rank}.x_active_mask"] = rng.random((bs, group.k)) < 0.5
    if scales:
        rows = group.shared + group.experts
        case["scales"] = np.exp2(rng.normal(size=(rows, group.h))).astype(np.float32)
    if group.const:
        for name, shape in (("alpha_1", ()), ("alpha_2", ()), ("v", (group.h,))):
            values = rng.normal(size=(group.const, *shape)).astype(np.float32)
            case[f"const_expert_{name}"] = values.astype(group.dtype)
    case["expert_gain"] = rng.normal(size=group.shared + group.experts).astype(np.float32)
    return case


def active(group, case, rank):
    bs = group.bs[rank // group.tp]
    mask = case.get(f"rank{rank}.x_active_mask", np.ones(bs, bool))
    return mask if mask.ndim == 2 else np.repeat(mask[:, None], group.k, axis=1)


def pairs(group, case, source, receiver, expert):
    """The (token, k) that rank ``source`` sends to an expert of EP rank ``receiver``, in the order of their slots."""
    mask = active(group, case, source)
    if expert < group.shared:
        replicas, ep = group.shared_ranks // group.shared, source // group.tp
        if receiver != expert * replicas + ep % replicas:
            return []
        return [(token, group.k + expert) for token in np.flatnonzero(mask.any(axis=1))]
    chosen = (case[f"rank{source}.expert_ids"] == expert - group.shared) & mask
    return [tuple(pair) for pair in np.argwhere(chosen)]


def quantised(group, row, smooth):
    values = row.astype(np.float32) * smooth
    most = np.abs(values).max(initial=np.float32(0))
    with np.errstate(divide="ignore", over="ignore"):
        scale = np.float32(127) / most
    if not np.isfinite(scale):
        return np.zeros(len(row), np.int8), np.float32(0)
    return np.rint(values * scale).astype(np.int8), np.float32(1) / scale


def exchanged(group, case, rank):
    """What comes to a rank: source, token, k and expert of each row; the number of rows by expert and source."""
    rows, counts = [], []
    for expert in group.hosted(rank // group.tp):
        for ep in range(group.ranks):
            source = ep * group.tp + rank % group.tp
            of_source = pairs(group, case, source, rank // group.tp, expert)
            rows += [(source, token, k, expert) for token, k in of_source]
            counts.append(len(of_source))
    return rows, counts


def dispatch(group, case):
    out = {}
    for rank in range(group.ranks * group.tp):
        peers = [rank] if group.tp == 1 else [rank, rank ^ 1]
        sides = [exchanged(group, case, peer) for peer in peers]
        rows = [row for side, _ in sides for row in side]
        x = np.zeros((len(rows), group.h), np.int8 if group.int8 else group.dtype)
        scales = np.zeros(len(rows), np.float32)
        triples, weights = np.zeros((len(rows), 3), np.int32), np.zeros(len(rows), np.float32)
        for n, (source, token, k, expert) in enumerate(rows):
            x[n] = row = case[f"rank{source}.x"][token]
            if group.int8:
                smooth = case["scales"][expert] if "scales" in case else np.float32(1)
                x[n], scales[n] = quantised(group, row, smooth)
            if group.by_servers:
                here = [
                    group.server(e) == group.server(expert) for e in case[f"rank{source}.expert_ids"][token]
                ]
                weights[n] = case[f"rank{source}.expert_scales"][token, k]
                k = sum(here) << 16 | sum(here[:k])
            triples[n] = source // group.tp, token, k
        nums = np.sum([np.reshape(counts, (-1, group.ranks)).sum(axis=1) for _, counts in sides], axis=0)
        out[f"rank{rank}.expand_x"] = x
        out[f"rank{rank}.expert_token_nums"] = np.int64(nums if group.counts else np.cumsum(nums))
        out[f"rank{rank}.ep_recv_counts"] = np.int32(
            np.concatenate([np.cumsum(counts) for _, counts in sides])
        )
        slots = np.full((group.bs[rank // group.tp], group.k), -1, np.int32)
        for expert in range(group.experts):
            owner = group.shared_ranks + expert // group.local
            for slot, pair in enumerate(pairs(group, case, rank, owner, group.shared + expert)):
                slots[pair] = slot
        out[f"rank{rank}.expand_idx"] = slots
        if group.int8:
            out[f"rank{rank}.dynamic_scales"] = scales
        if not group.by_counts:
            out[f"rank{rank}.assist_info_for_combine"] = triples
        if group.by_servers:
            out[f"rank{rank}.expand_scales"] = weights
        if group.tp == 2:
            totals = [len(rows) for rows, _ in sides]
            out[f"rank{rank}.tp_recv_counts"] = np.int32(totals if rank % 2 == 0 else totals[::-1])
    return out


def experts(group, case, dispatched):
    """What stand-in experts return: every row times the gain of its expert."""
    out = {}
    for rank in range(group.ranks * group.tp):
        peers = [rank] if group.tp == 1 else [rank, rank ^ 1]
        rows = [row for peer in peers for row in exchanged(group, case, peer)[0]]
        gain = np.float32([case["expert_gain"][expert] for *_, expert in rows])[:, None]
        values = dispatched[f"rank{rank}.expand_x"].astype(np.float32)
        if group.int8:
            values = values * dispatched[f"rank{rank}.dynamic_scales"][:, None]
        out[f"rank{rank}.expand_x"] = group.rounded(values * gain.reshape(-1, 1) / np.float32(group.tp))
    return out


def through_blocks(group, values):
    """What arrives of values that travel as int8, in blocks of eight."""
    out = np.empty_like(values)
    for at in range(0, len(values), 8):
        block = values[at : at + 8]
        scale = np.abs(block).max() * (np.float32(1) / np.float32(127))
        q = np.rint(block / scale) if scale > 0 else np.zeros_like(block)
        out[at : at + 8] = group.rounded(q * np.float32(group.rounded(np.float32([scale]))[0])).astype(
            np.float32
        )
    return out


def special(group, case, rank, token, number):
    """What an expert returns that is on no rank."""
    x = case[f"rank{rank}.x"][token].astype(np.float32)
    if number < group.zero:
        return None
    if number < group.zero + group.copy:
        return x
    const = number - group.zero - group.copy
    alpha_1, alpha_2, v = (
        case[f"const_expert_{name}"][const].astype(np.float32) for name in ("alpha_1", "alpha_2", "v")
    )
    return alpha_1 * x + alpha_2 * v


def combine(group, case, returned):
    back = {}
    for rank in range(group.ranks * group.tp):
        rows, _ = exchanged(group, case, rank)
        values = returned[f"rank{rank}.expand_x"][: len(rows)].astype(np.float32)
        if group.tp == 2:
            of_peer = returned[f"rank{rank ^ 1}.expand_x"]
            values = group.rounded(values + of_peer[len(of_peer) - len(rows) :].astype(np.float32)).astype(
                np.float32
            )
        if group.int8_back and not group.by_servers:
            values = [through_blocks(group, row) for row in values]
        back.update({pair: value for (*pair, _), value in zip(rows, values) for pair in [tuple(pair)]})
    out = {}
    for rank in range(group.ranks * group.tp):
        mask, ids = active(group, case, rank), case[f"rank{rank}.expert_ids"]
        weights, sums = case[f"rank{rank}.expert_scales"], np.zeros((len(ids), group.h), np.float32)
        for token in range(len(ids)):
            for k in np.flatnonzero(mask[token]) if not group.by_servers else ():
                moe = ids[token, k] < group.experts
                value = (
                    back[rank, token, k]
                    if moe
                    else special(group, case, rank, token, ids[token, k] - group.experts)
                )
                if value is not None:
                    sums[token] += weights[token, k] * value
            for shared in range(group.shared if mask[token].any() else 0):
                sums[token] += back[rank, token, group.k + shared]
            for server in sorted({group.server(e) for e in ids[token]} if group.by_servers else ()):
                partial = np.zeros(group.h, np.float32)
                for k in np.flatnonzero(group.server(ids[token]) == server):
                    partial += weights[token, k] * back[rank, token, k]
                travels = through_blocks(group, partial) if group.int8_back else group.rounded(partial)
                sums[token] += travels.astype(np.float32)
        out[f"rank{rank}.x_out"] = group.rounded(sums)
    return out
