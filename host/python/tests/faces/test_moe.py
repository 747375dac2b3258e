"""A model of two MoE layers on sixteen ranks whose calls come late, against one rank that has all experts."""

import pytest
import torch
from veriep.testing import Faults, Ranks

RANKS, EXPERTS, K, H, TOKENS = 16, 32, 4, 1024, 6


class Layer(torch.nn.Module):
    """A gate and experts; each expert works row by row, so that a row has the same bits in any company."""

    def __init__(self, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.gate = torch.randn(EXPERTS, H, generator=generator) / H**0.5
        self.up = torch.randn(EXPERTS, 32, H, generator=generator) / H**0.5
        self.down = torch.randn(EXPERTS, H, 32, generator=generator) / 32**0.5

    def route(self, x):
        scores = torch.stack([self.gate @ row for row in x.float()]) if len(x) else torch.empty(0, EXPERTS)
        weights, ids = torch.softmax(scores, 1).topk(K)
        return ids.int(), weights / weights.sum(1, keepdim=True)

    def expert(self, number, rows):
        outs = [self.down[number] @ torch.nn.functional.silu(self.up[number] @ row) for row in rows.float()]
        return torch.stack(outs).to(rows.dtype) if outs else rows


def alone(layers, x):
    """The same model on one rank: weighted results summed in float32, in the order of k."""
    for layer in layers:
        ids, weights = layer.route(x)
        sums = torch.zeros(x.shape)
        for k in range(K):
            results = torch.cat(
                [layer.expert(ids[token, k], x[token : token + 1]) for token in range(len(x))]
            )
            sums += weights[:, k : k + 1] * results.float()
        x = x + sums.bfloat16()
    return x


def tokens(rank):
    return torch.randn(TOKENS, H, generator=torch.Generator().manual_seed(1000 + rank)).bfloat16()


def among_ranks(rank):
    import torch_npu

    local = EXPERTS // RANKS
    x, at = tokens(rank.rank).npu(), dict(rank.at, moe_expert_num=EXPERTS)
    for layer in map(Layer, range(2)):
        ids, weights = layer.route(x)
        rows, _, assist, nums, counts, *_ = torch_npu.npu_moe_distribute_dispatch_v2(x, ids, **at)
        returned, first = torch.full_like(rows, float("nan")), 0
        for number, count in enumerate(nums.tolist()):
            mine = slice(first, first + count)
            returned[mine] = layer.expert(rank.rank * local + number, rows[mine])
            first += count
        x = x + torch_npu.npu_moe_distribute_combine_v2(returned, ids, assist, counts, weights, **at)
    return x


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("threads", [True, False], ids=["threads", "processes"])
def test_sixteen_ranks_with_delays_have_the_bits_of_one(threads):
    layers = [Layer(seed) for seed in range(2)]
    expected = [alone(layers, tokens(rank)) for rank in range(RANKS)]
    assert not torch.equal(expected[0], expected[1])
    for seed in (1, 2):
        ranks = Ranks(RANKS, threads=threads, faults=Faults(seed=seed, delay=0.03))
        outs = ranks.run(among_ranks)
        for rank, (out, must) in enumerate(zip(outs, expected)):
            assert torch.equal(out, must), f"rank {rank} of seed {seed}"
