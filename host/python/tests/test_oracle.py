"""The reference against `reference`, which is written independently: every tensor, bit by bit."""

import numpy as np
import pytest
import reference
import veriep

A3 = dict(ep_world_size=5, shared_expert_rank_num=1, moe_expert_num=8, k=3, h=1032, bs=6)
PAIRS = dict(release="9.1.0", ep_world_size=3, tp_world_size=2, moe_expert_num=3, k=2, h=1024, bs=4)
MESH = dict(product="a2", ep_world_size=16, moe_expert_num=32, k=4, h=64, bs=3)
SERVERS = dict(MESH, comm_alg="hierarchy", ep_world_size=40, moe_expert_num=80, hccl_buffsize_mb=400)

KINDS = {
    "joint": A3,
    "blocks": dict(A3, comm_alg="fullmesh_v2"),
    "specials": dict(A3, zero_expert_num=1, copy_expert_num=2, const_expert_num=2),
    "prefix sums": dict(A3, expert_token_nums_type=0, bs=[1, 6, 2, 5, 3], global_bs=30),
    "int8 back": dict(A3, comm_quant_mode=2),
    "two shared experts": dict(A3, ep_world_size=8, shared_expert_num=2, shared_expert_rank_num=4),
    "tp": PAIRS,
    "mesh": MESH,
    "servers": SERVERS,
    "servers, int8 back": dict(SERVERS, comm_quant_mode=2),
}


def same(expected, seen):
    assert expected.keys() == seen.keys()
    for name, must in expected.items():
        assert (must.dtype, must.shape) == (seen[name].dtype, seen[name].shape), name
        assert must.tobytes() == seen[name].tobytes(), name


def held(config, **how):
    """Both halves, and the whole."""
    group = reference.Group(veriep.Shape(**config).config)
    case = reference.make_case(group, **how)
    dispatched = veriep.reference_dispatch(case, **config)
    same(reference.dispatch(group, case), dispatched)
    returned = reference.experts(group, case, dispatched)
    combined = veriep.reference_combine(case, returned, **config)
    same(reference.combine(group, case, returned), combined)
    same({**dispatched, **combined}, veriep.reference(case, **config))
    return case, dispatched


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("quant_mode", [0, 2])
def test_every_kind_in_every_type(kind, dtype, quant_mode):
    held(
        dict(KINDS[kind], dtype=dtype, quant_mode=quant_mode),
        scales=quant_mode == 2 and "servers" not in kind,
    )


@pytest.mark.parametrize("routing", ["uniform", "zipf", "hot", "node-limited"])
@pytest.mark.parametrize("kind", ["joint", "mesh", "servers"])
def test_every_routing(kind, routing):
    if routing == "node-limited" and kind == "joint":
        pytest.skip("it has no servers of eight")
    _, dispatched = held(KINDS[kind], routing=routing, seed=1)
    if routing == "hot" and kind == "joint":
        assert dispatched["rank4.expand_x"].shape == (0, A3["h"]), (
            "no rank sends there, and that is a tensor of no rows"
        )


@pytest.mark.parametrize("mask", ["tokens", "pairs"])
@pytest.mark.parametrize("kind", ["joint", "specials", "two shared experts", "mesh", "tp"])
def test_masks(kind, mask):
    held(KINDS[kind], mask=mask, seed=2)


def test_a_result_is_ones_own_to_change():
    group = reference.Group(veriep.Shape(**PAIRS).config)
    result = veriep.reference(reference.make_case(group), **PAIRS)
    result["rank0.x_out"][0, 0] = 0


def test_compare_tells_what_differs():
    group = reference.Group(veriep.Shape(**A3).config)
    case = reference.make_case(group)
    expected = veriep.reference(case, **A3)
    assert veriep.compare(expected, expected)
    seen = {name: array.copy() for name, array in expected.items()}
    seen["rank1.x_out"].view(np.uint16)[2, 3] += 1
    wrong = veriep.compare(expected, seen)
    assert not wrong and str(wrong).startswith("rank1.x_out[2, 3] = ")
    assert veriep.compare(expected, seen, ulp=1)
    assert veriep.compare(expected, seen, ranks=[0])
    del seen["rank1.x_out"]
    assert str(veriep.compare(expected, seen)) == "rank1.x_out: missing"
    asked_for = veriep.compare(expected, seen, tensors=["x_out"])
    assert asked_for.verdict == "unknown" and "rank1.x_out is asked for" in asked_for.bound
    rows = seen["rank2.expand_x"]
    seen["rank2.expand_x"] = np.concatenate([rows, rows])
    assert not veriep.compare(expected, seen, tensors=["expand_x"])
    assert veriep.compare(expected, seen, tensors=["expand_x"], padded=True)
    with pytest.raises(ValueError, match="ranks = 9"):
        veriep.compare(expected, seen, ranks=[9])


def test_compare_has_no_yes_for_what_was_not_compared():
    group = reference.Group(veriep.Shape(**A3).config)
    expected = veriep.reference(reference.make_case(group), **A3)
    whole = veriep.compare(expected, expected)
    assert (whole.verdict, whole.ok) == ("yes", True)
    assert f"all {len(expected)} expected tensors of ranks 0-4" in whole.bound
    part = veriep.compare(expected, expected, tensors=["x_out"], ranks=[1])
    assert part.verdict == "yes" and part.bound.endswith("x_out of rank 1 and nothing else")
    seen = {name: array.copy() for name, array in expected.items() if name.endswith(".x_out")}
    for asked in [dict(tensors=["rstd"]), dict(tensors=["x_out", "expand_x"]), dict(tensors=["expand_x"])]:
        unknown = veriep.compare(expected, seen, **asked)
        assert unknown.verdict == "unknown" and not unknown and not unknown.ok, asked
        assert "in both files" in unknown.decides[0] and str(unknown).startswith("unknown: "), asked
    seen["rank2.x_out"].view(np.uint16)[0, 0] += 1
    assert veriep.compare(expected, seen, tensors=["x_out", "expand_x"]).verdict == "no"


def test_torch_comes_in_and_goes_out():
    torch = pytest.importorskip("torch")
    group = reference.Group(veriep.Shape(**A3).config)
    case = reference.make_case(group)

    def tensor(array):
        bits = array.view(np.int16) if array.dtype.name == "bfloat16" else array
        tensor = torch.from_numpy(bits.copy())
        return tensor.view(torch.bfloat16) if bits is not array else tensor

    seen = veriep.reference({name: tensor(array) for name, array in case.items()}, **A3)
    assert seen["rank0.x_out"].dtype == torch.bfloat16
    assert veriep.compare(veriep.reference(case, **A3), seen)
