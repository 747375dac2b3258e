"""The double of torch_npu's operators, on NumPy's arrays: against the reference, and each parameter by itself."""

import inspect
import time
import warnings

import double
import numpy as np
import pytest
import reference
import veriep
import veriep.torch_npu as torch_npu
from ml_dtypes import bfloat16
from veriep import conformance
from veriep.testing import Ranks

TWO = dict(ep_world_size=2, moe_expert_num=4, k=2, h=1024, bs=4)
FIVE = dict(ep_world_size=5, shared_expert_rank_num=1, moe_expert_num=8, k=3, h=1032, bs=6)

KINDS = {
    "two ranks": (TWO, {}),
    "three ranks, f16": (dict(TWO, ep_world_size=3, moe_expert_num=6, dtype="f16"), {}),
    "four ranks, int8": (dict(TWO, ep_world_size=4, moe_expert_num=8, quant_mode=2), {}),
    "smooth scales": (dict(FIVE, quant_mode=2), dict(scales=True)),
    "a shared expert": (FIVE, {}),
    "two shared experts": (dict(FIVE, ep_world_size=8, shared_expert_num=2, shared_expert_rank_num=4), {}),
    "no shared expert": (dict(TWO, shared_expert_num=0), {}),
    "blocks": (dict(FIVE, comm_alg="fullmesh_v2"), {}),
    "by name": (dict(FIVE, comm_alg="fullmesh_v1"), {}),
    "zero experts": (dict(TWO, zero_expert_num=2), {}),
    "copy experts": (dict(TWO, copy_expert_num=2), {}),
    "const experts": (dict(FIVE, zero_expert_num=1, copy_expert_num=1, const_expert_num=2), {}),
    "prefix sums, uneven ranks": (dict(FIVE, expert_token_nums_type=0, bs=[1, 6, 2, 5, 3], global_bs=30), {}),
    "a capacity": (dict(TWO, global_bs=16), {}),
    "a mask of tokens": (dict(TWO, ep_world_size=6, moe_expert_num=12), dict(mask="tokens")),
    "a mask of pairs": (dict(FIVE, ep_world_size=7, moe_expert_num=12), dict(mask="pairs")),
    "int8 back": (dict(FIVE, comm_quant_mode=2), {}),
    "int8 back, f16": (dict(FIVE, comm_quant_mode=2, dtype="f16"), {}),
    "shared expert x": (dict(TWO, ep_world_size=4), dict(shared_x=True)),
}
OF_SECOND_PAIR = ("comm_alg", "zero_expert_num", "copy_expert_num", "const_expert_num")


def same(expected, seen, names):
    for name in names:
        must, got = expected[name], seen[name]
        assert (must.dtype, must.shape) == (got.dtype, got.shape), name
        assert must.tobytes() == got.tobytes(), name


def through(config, case, pair=double.SECOND_PAIR, **how):
    outs = Ranks(config["ep_world_size"], **how).run(double.layer, case, config, pair)
    seen = double.as_result(outs, reference.Group(veriep.Shape(**config).config))
    same(veriep.reference(case, **config), seen, seen)
    return outs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [True, False], ids=["threads", "processes"])
def test_both_operators_are_those_of_the_oracle(kind, threads):
    config, how = KINDS[kind]
    through(config, double.case_of(config, **how), threads=threads)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not set(OF_SECOND_PAIR) & set(KINDS[kind][0])])
def test_the_first_pair_is_that_of_the_oracle(kind):
    config, how = KINDS[kind]
    through(config, double.case_of(config, **how), double.FIRST_PAIR, threads=True)


@pytest.mark.parametrize("size", [2, 5, 8])
def test_the_double_passes_the_conformance_suite(size):
    def run(rank):
        names = []
        for case in conformance.cases(size):
            case.run(rank.rank, *double.SECOND_PAIR, group_ep=rank.name)
            names.append(case.name)
        return names

    outs = Ranks(size, threads=True).run(run)
    assert len(outs[0]) > 10 and outs == [outs[0]] * size


def test_outputs_are_as_large_as_torch_npu_allocates_them_and_poisoned_after_what_is_written():
    config = dict(FIVE, quant_mode=2)
    # A rank of the shared expert has room for the tokens of all, the others for min(L, K) rows of each.
    rows = {0: 5 * 6, 1: 5 * 6 * 2}
    for rank, (got, _) in enumerate(through(config, double.case_of(config, scales=True), threads=True)):
        a, local = rows[min(rank, 1)], (1, 2)[min(rank, 1)]
        shapes = [tensor.shape for tensor in got]
        assert shapes == [(a, 1032), (a,), (128 * a,), (local,), (5 * local,), (0,), (a,)]
        n = int(got[3].sum())
        # The shared expert has every token of a full batch.
        assert n == a if rank == 0 else 0 < n < a
        assert (got[0][n:] == -128).all() and np.isnan(got[1][n:]).all() and np.isnan(got[6]).all()
        # The last word tells copies apart.
        assert (got[2][3 * n : -1] == np.iinfo(np.int32).min).all()
    (got, _), *_ = through(TWO, double.case_of(TWO), threads=True)
    assert np.isnan(got[0][got[3].sum() :].astype(np.float32)).all() and np.isnan(got[1]).all()


def test_weights_at_dispatch_make_counts_longer_as_torch_npu_does():
    config = dict(TWO, ep_world_size=8, moe_expert_num=16)
    case = double.case_of(config)

    def run(rank):
        of_dispatch, of_combine = double.arguments(rank, case, config)
        got = double.SECOND_PAIR[0](**of_dispatch, expert_scales=case[f"rank{rank.rank}.expert_scales"])
        double.back(double.SECOND_PAIR[1], got, got[0], of_combine)
        return got[4]

    for counts in Ranks(8, threads=True).run(run):
        assert counts.shape == (8 * 2 + 2 * (8 * 4) * 2 * 1,)
        assert counts[15] >= 0 and (counts[16:] == np.iinfo(np.int32).min).all()


# The signatures as they are published, defaults of torch_npu 2.9 with those parameters that came later.
PUBLISHED = {
    "npu_moe_distribute_dispatch_v2": "(x, expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, *, scales=None, "
    "x_active_mask=None, expert_scales=None, elastic_info=None, performance_info=None, group_tp='', tp_world_size=0, "
    "tp_rank_id=0, expert_shard_type=0, shared_expert_num=1, shared_expert_rank_num=0, quant_mode=0, global_bs=0, "
    "expert_token_nums_type=1, comm_alg='', zero_expert_num=0, copy_expert_num=0, const_expert_num=0, y_dtype=None, "
    "x_dtype=None, scales_dtype=None)",
    "npu_moe_distribute_combine_v2": "(expand_x, expert_ids, assist_info_for_combine, ep_send_counts, expert_scales, group_ep, "
    "ep_world_size, ep_rank_id, moe_expert_num, *, tp_send_counts=None, x_active_mask=None, expand_scales=None, "
    "shared_expert_x=None, elastic_info=None, ori_x=None, const_expert_alpha_1=None, const_expert_alpha_2=None, "
    "const_expert_v=None, performance_info=None, group_tp='', tp_world_size=0, tp_rank_id=0, expert_shard_type=0, "
    "shared_expert_num=1, shared_expert_rank_num=0, global_bs=0, comm_quant_mode=0, comm_alg='', zero_expert_num=0, "
    "copy_expert_num=0, const_expert_num=0)",
    "npu_moe_distribute_dispatch": "(x, expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, *, scales=None, "
    "x_active_mask=None, expert_scales=None, group_tp='', tp_world_size=0, tp_rank_id=0, expert_shard_type=0, "
    "shared_expert_num=1, shared_expert_rank_num=0, quant_mode=0, global_bs=0, expert_token_nums_type=1)",
    "npu_moe_distribute_combine": "(expand_x, expert_ids, expand_idx, ep_send_counts, expert_scales, group_ep, ep_world_size, "
    "ep_rank_id, moe_expert_num, *, tp_send_counts=None, x_active_mask=None, activation_scale=None, weight_scale=None, "
    "group_list=None, expand_scales=None, shared_expert_x=None, group_tp='', tp_world_size=0, tp_rank_id=0, "
    "expert_shard_type=0, shared_expert_num=1, shared_expert_rank_num=0, global_bs=0, out_dtype=0, comm_quant_mode=0, "
    "group_list_type=0)",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_signatures_are_those_that_torch_npu_publishes(name):
    function = getattr(torch_npu, name)
    assert function.__name__ == name
    assert str(inspect.signature(function)) == PUBLISHED[name]


# One test a row of the table: what a wrong value is answered with, or that a value changes nothing.


def int32(*values):
    return np.int32(values)


SPOILT = {
    ("dispatch", "x"): (lambda v: v.astype(np.float32), TypeError, "x: float32: must be bfloat16 or float16"),
    ("dispatch", "expert_ids"): (lambda v: v.astype(np.int64), TypeError, "expert_ids: int64: must be int32"),
    ("dispatch", "group_ep"): (
        lambda v: "another",
        ValueError,
        "group_ep = 'another': no process group has this name",
    ),
    ("dispatch", "ep_world_size"): (lambda v: 4, ValueError, "ep_world_size = 4: must be 2, the ranks of"),
    ("dispatch", "ep_rank_id"): (
        lambda v: 1 - v,
        ValueError,
        "ep_rank_id = [01]: must be [01], this rank of",
    ),
    ("dispatch", "moe_expert_num"): (lambda v: 3, veriep.Violation, "moe_expert_num = 3: must be a multiple"),
    ("dispatch", "x_active_mask"): (
        lambda v: int32(1, 1, 1, 0),
        TypeError,
        "x_active_mask: int32: must be bool",
    ),
    ("dispatch", "group_tp"): (lambda v: "veriep.testing.ranks", None, ""),
    ("dispatch", "tp_world_size"): (
        lambda v: 2,
        NotImplementedError,
        "tp_world_size = 2: must be one of 0, 1: ",
    ),
    ("dispatch", "tp_rank_id"): (lambda v: 1, NotImplementedError, "tp_rank_id = 1: must be one of 0: "),
    ("dispatch", "expert_shard_type"): (
        lambda v: 1,
        NotImplementedError,
        "expert_shard_type = 1: must be one of 0: ",
    ),
    ("dispatch", "shared_expert_num"): (
        lambda v: 2,
        veriep.Violation,
        "shared_expert_rank_num = 0: must be above 0",
    ),
    ("dispatch", "shared_expert_rank_num"): (
        lambda v: 2,
        ValueError,
        r"shared_expert_rank_num = 2: must be in \[0, ep_world",
    ),
    ("dispatch", "global_bs"): (
        lambda v: 6,
        ValueError,
        "global_bs = 6: must be 0 or a multiple.*hint: global_bs = 8",
    ),
    ("dispatch", "comm_alg"): (
        lambda v: "fullmesh",
        NotImplementedError,
        "comm_alg = 'fullmesh': must be one of '', ",
    ),
    ("dispatch", "zero_expert_num"): (lambda v: -1, veriep.Violation, "zero_expert_num = -1"),
    ("dispatch", "copy_expert_num"): (lambda v: -1, veriep.Violation, "copy_expert_num = -1"),
    ("dispatch", "const_expert_num"): (lambda v: -1, veriep.Violation, "const_expert_num = -1"),
    ("dispatch", "scales"): (lambda v: np.ones((4, 1024), np.float32), veriep.Violation, "scales"),
    ("dispatch", "expert_scales"): (lambda v: np.ones((4, 2), np.float32), None, ""),
    ("dispatch", "quant_mode"): (lambda v: 3, NotImplementedError, "quant_mode = 3: must be one of 0, 2: "),
    ("dispatch", "expert_token_nums_type"): (
        lambda v: 2,
        NotImplementedError,
        "expert_token_nums_type = 2: must be one of 0, 1",
    ),
    ("combine", "expand_x"): (
        lambda v: v[:1],
        ValueError,
        "expand_x: 1 rows: must be at least [0-9]+, those that dispatch",
    ),
    ("combine", "expert_ids"): (
        lambda v: v[::-1],
        ValueError,
        "expert_ids: must be those of its dispatch: values differ",
    ),
    ("combine", "assist_info_for_combine"): (
        lambda v: v + 1,
        ValueError,
        "assist_info_for_combine: is not what dispatch returned",
    ),
    ("combine", "expand_idx"): (lambda v: v + 1, ValueError, "expand_idx: is not what dispatch returned"),
    ("combine", "ep_send_counts"): (
        lambda v: v * 0,
        ValueError,
        "ep_send_counts: must be the receive counts of its dispatch",
    ),
    ("combine", "expert_scales"): (
        lambda v: v[:, :1],
        TypeError,
        r"expert_scales: shape \[4, 1\]: must be \[4, 2\]",
    ),
    ("combine", "group_ep"): (
        lambda v: "another",
        ValueError,
        "group_ep = 'another': no process group has this name",
    ),
    ("combine", "ep_world_size"): (lambda v: 4, ValueError, "ep_world_size = 4: must be 2, the ranks of"),
    ("combine", "ep_rank_id"): (lambda v: 1 - v, ValueError, "ep_rank_id = [01]: must be [01], this rank of"),
    ("combine", "moe_expert_num"): (lambda v: 8, ValueError, "moe_expert_num = 8: must be 4, as at dispatch"),
    ("combine", "tp_send_counts"): (lambda v: int32(), None, ""),
    ("combine", "x_active_mask"): (
        lambda v: np.ones(4, bool),
        ValueError,
        "x_active_mask: is given: must be that of its dispatch",
    ),
    ("combine", "expand_scales"): (lambda v: np.ones(16, np.float32), None, ""),
    ("combine", "shared_expert_x"): (
        lambda v: np.ones((4, 8), bfloat16),
        TypeError,
        r"shared_expert_x: shape \[4, 8\]: must be",
    ),
    ("combine", "ori_x"): (lambda v: np.ones((4, 1024), bfloat16), None, ""),
    ("combine", "const_expert_alpha_1"): (lambda v: np.ones(1, bfloat16), None, ""),
    ("combine", "const_expert_alpha_2"): (lambda v: np.ones(1, bfloat16), None, ""),
    ("combine", "const_expert_v"): (lambda v: np.ones((1, 1024), bfloat16), None, ""),
    ("combine", "group_tp"): (lambda v: "veriep.testing.ranks", None, ""),
    ("combine", "tp_world_size"): (
        lambda v: 2,
        NotImplementedError,
        "tp_world_size = 2: must be one of 0, 1: ",
    ),
    ("combine", "tp_rank_id"): (lambda v: 1, NotImplementedError, "tp_rank_id = 1: must be one of 0: "),
    ("combine", "expert_shard_type"): (
        lambda v: 1,
        NotImplementedError,
        "expert_shard_type = 1: must be one of 0: ",
    ),
    ("combine", "shared_expert_num"): (
        lambda v: 0,
        ValueError,
        "shared_expert_num = 0: must be 1, as at dispatch",
    ),
    ("combine", "shared_expert_rank_num"): (
        lambda v: 1,
        ValueError,
        "shared_expert_rank_num = 1: must be 0, as at dispatch",
    ),
    ("combine", "global_bs"): (lambda v: 8, ValueError, "global_bs = 8: must be 0, as at dispatch"),
    ("combine", "comm_quant_mode"): (
        lambda v: 1,
        NotImplementedError,
        "comm_quant_mode = 1: must be one of 0, 2: ",
    ),
    ("combine", "comm_alg"): (
        lambda v: "fullmesh",
        NotImplementedError,
        "comm_alg = 'fullmesh': must be one of '', ",
    ),
    ("combine", "zero_expert_num"): (
        lambda v: 1,
        ValueError,
        "zero_expert_num = 1: must be 0, as at dispatch",
    ),
    ("combine", "copy_expert_num"): (
        lambda v: 1,
        ValueError,
        "copy_expert_num = 1: must be 0, as at dispatch",
    ),
    ("combine", "const_expert_num"): (
        lambda v: 1,
        ValueError,
        "const_expert_num = 1: must be 0, as at dispatch",
    ),
}
ROWS = [(operator, row) for operator in torch_npu.OPERATORS for row in operator.parameters]


@pytest.mark.parametrize("operator, row", ROWS, ids=lambda of: of.name)
def test_each_parameter_is_taken_or_refused_by_name(operator, row):
    pair = double.FIRST_PAIR if operator.is_first_pair else double.SECOND_PAIR
    case = double.case_of(TWO)
    if row.status == "refused":
        value = 1 if row.kind.startswith("int") else int32(1)
        change, error, text = (
            lambda _: value,
            NotImplementedError,
            f"{operator.name}: {row.name}: must be left out: {row.why}",
        )
    else:
        change, error, text = SPOILT[operator.half, row.name]

    def run(rank):
        of_dispatch, of_combine = double.arguments(rank, case, TWO, pair)
        of = {"dispatch": of_dispatch, "combine": of_combine}

        got = None

        def call(half, spoilt):
            if half == "combine":
                of_combine.update(expand_x=got[0], ep_send_counts=got[4])
                of_combine["expand_idx" if pair is double.FIRST_PAIR else "assist_info_for_combine"] = got[2]
            given = of[half]
            if spoilt:
                given = dict(given, **{row.name: change(given.get(row.name))})
            return pair[half == "combine"](**given)

        for half in ("dispatch", "combine"):
            if half == operator.half and error is not None:
                with pytest.raises(error, match=text):
                    call(half, spoilt=True)
            out = call(half, spoilt=half == operator.half and error is None)
            got = out if half == "dispatch" else got
        # Nothing that was refused has changed anything.
        return out

    outs = Ranks(2, threads=True).run(run)
    expected = veriep.reference({**case, "expert_gain": np.ones(4, np.float32)}, **TWO)
    for rank, out in enumerate(outs):
        assert out.tobytes() == expected[f"rank{rank}.x_out"].tobytes()


def test_the_table_has_a_test_for_each_row_and_no_other():
    rows = {(operator.half, row.name) for operator, row in ROWS if row.status != "refused"}
    assert rows == set(SPOILT)
    assert {row.status for row in torch_npu.PARAMETERS} == {"supported", "mapped", "refused"}
    assert len(torch_npu.table().splitlines()) == len(torch_npu.PARAMETERS) + 2


@pytest.mark.parametrize("alg", ["hierarchy", "ccu"])
def test_what_is_mapped_is_said_once(alg, monkeypatch):
    monkeypatch.setattr(torch_npu._calls, "_said", set())
    config = dict(TWO, comm_alg=alg)
    case = double.case_of(TWO)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        outs = Ranks(2, threads=True).run(
            lambda rank: [double.layer(rank, case, config) for _ in range(2)][1]
        )
    assert [str(one.message).startswith(f"comm_alg = '{alg}': stands for '' here: ") for one in said] == [
        True
    ]
    expected = veriep.reference(case, **TWO)
    assert outs[1][1].tobytes() == expected["rank1.x_out"].tobytes()


def test_only_const_and_copy_experts_need_the_tokens_again():
    config = dict(TWO, copy_expert_num=1, const_expert_num=1)
    case = double.case_of(config)

    def run(rank):
        of_dispatch, of_combine = double.arguments(rank, case, config)
        got = double.SECOND_PAIR[0](**of_dispatch)
        for name, value, text in [
            ("ori_x", None, "ori_x: missing: copy and const experts need it, the x of dispatch"),
            ("ori_x", of_combine["ori_x"] * 2, "ori_x: must be the x of its dispatch: values differ"),
            ("const_expert_v", None, "const_expert_v: missing: const_expert_num = 1"),
        ]:
            with pytest.raises(ValueError, match=text):
                double.back(double.SECOND_PAIR[1], got, got[0], dict(of_combine, **{name: value}))
        double.back(double.SECOND_PAIR[1], got, got[0], of_combine)

    Ranks(2, threads=True).run(run)


def two_batches(rank, case):
    of_dispatch, of_combine = double.arguments(rank, case, TWO)
    return [double.SECOND_PAIR[0](**of_dispatch) for _ in range(2)], of_combine


def test_a_batch_is_named_by_its_tensor_or_a_copy_of_it():
    case = double.case_of(TWO)

    def run(rank):
        (first, second), of_combine = two_batches(rank, case)
        combine = double.SECOND_PAIR[1]

        def back(got, token):
            return combine(got[0], assist_info_for_combine=token, ep_send_counts=got[4], **of_combine)

        with pytest.raises(ValueError, match="combines come in the order of dispatches"):
            back(second, second[2])
        foreign = np.zeros_like(first[2])
        with pytest.raises(ValueError, match="is not what dispatch returned for a batch of this group"):
            back(first, foreign)
        # Copies of two batches with the same rows differ in their last word.
        one = back(first, first[2].copy())
        with pytest.raises(ValueError, match="its batch has been combined already; hint: order='loose'"):
            back(first, first[2])
        second[2][0] += 1
        with pytest.raises(ValueError, match="is not what dispatch returned: its words have been changed"):
            back(second, second[2])
        second[2][0] -= 1
        return one.tobytes() == back(second, second[2]).tobytes()

    assert Ranks(2, threads=True).run(run) == [True, True]


def test_copies_of_the_first_pairs_tensor_are_taken_if_one_batch_has_its_words():
    case = double.case_of(TWO)
    dispatch, combine = double.FIRST_PAIR

    def run(rank):
        of_dispatch, of_combine = double.arguments(rank, case, TWO, double.FIRST_PAIR)
        first, second = dispatch(**of_dispatch), dispatch(**of_dispatch)

        def back(got, token):
            return combine(got[0], expand_idx=token, ep_send_counts=got[4], **of_combine)

        with pytest.raises(ValueError, match="expand_idx: is a copy, and batches 0, 1 have the same words"):
            back(first, first[2].copy())
        back(first, first[2])
        # It may as well be the one that has been combined.
        with pytest.raises(ValueError, match="a batch that has been combined had the same words"):
            back(second, second[2].copy())
        back(second, second[2])
        other = dict(expert_ids=of_dispatch["expert_ids"][::-1].copy())
        third = dispatch(**dict(of_dispatch, **other))
        of_combine.update(other)
        back(third, third[2].copy())

    Ranks(2, threads=True).run(run)


def test_a_loose_order_combines_twice_or_never():
    case = double.case_of(TWO)

    def run(rank):
        of_dispatch, of_combine = double.arguments(rank, case, TWO)
        dispatch, combine = double.SECOND_PAIR
        never = [dispatch(**of_dispatch) for _ in range(4)]
        outs = [double.back(combine, never[-1], never[-1][0], of_combine) for _ in range(2)]
        return outs[0].tobytes() == outs[1].tobytes()

    assert Ranks(2, threads=True, order="loose").run(run) == [True, True]
    with pytest.raises(ValueError, match="third must not be dispatched before the oldest is combined"):
        Ranks(2, threads=True).run(run)


def test_sizes_beyond_the_product_are_refused_unless_limits_are_open():
    config = dict(TWO, h=64)
    case = double.case_of(TWO)
    for rank in range(2):
        case[f"rank{rank}.x"] = case[f"rank{rank}.x"][:, :64].copy()

    def run(rank):
        of_dispatch, of_combine = double.arguments(rank, case, config)
        got = double.SECOND_PAIR[0](**of_dispatch)
        return double.back(double.SECOND_PAIR[1], got, got[0], of_combine).shape

    with pytest.raises(veriep.Violation, match="h = 64"):
        Ranks(2, threads=True).run(run)
    assert Ranks(2, threads=True, limits="open").run(run) == [(4, 64)] * 2


def test_ids_of_no_expert_are_refused_unless_they_are_asked_for():
    case = double.case_of(TWO)
    for rank in range(2):
        case[f"rank{rank}.expert_ids"][1, 1] = -1

    def run(rank):
        return double.layer(rank, {**case, "expert_gain": np.ones(4, np.float32)}, TWO)[1]

    with pytest.raises(
        ValueError, match=r"expert_ids\[1, 1\] = -1: must be an expert; hint: x_active_mask leaves pairs out"
    ):
        Ranks(2, threads=True).run(run)
    out = Ranks(2, threads=True, ids="-1-inactive").run(run)[0]
    weight = case["rank0.expert_scales"][1, 0]
    expected = (case["rank0.x"][1].astype(np.float32) * weight).astype(bfloat16)
    assert out[1].tobytes() == expected.tobytes()
    masked = {f"rank{rank}.x_active_mask": case[f"rank{rank}.expert_ids"] >= 0 for rank in range(2)}
    again = Ranks(2, threads=True).run(
        lambda rank: double.layer(rank, {**case, **masked, "expert_gain": np.ones(4, np.float32)}, TWO)[1]
    )
    assert again[0].tobytes() == out.tobytes()


def test_a_window_that_is_too_small_is_refused_as_by_the_product(monkeypatch):
    config = dict(ep_world_size=2, moe_expert_num=64, k=8, h=7168, bs=64)
    case = double.case_of(dict(config, hccl_buffsize_mb=1000))
    run = lambda rank: double.layer(rank, case, dict(config, hccl_buffsize_mb=1000))  # noqa: E731
    monkeypatch.setenv("HCCL_BUFFSIZE", "100")
    with pytest.raises(veriep.Violation, match="hccl_buffsize_mb = 100: must hold the windows"):
        Ranks(2, threads=True).run(run)


@pytest.mark.parametrize("option", ["order", "limits", "ids"])
def test_options_have_few_values(option):
    with pytest.raises(ValueError, match=f"{option} = 'wrong': must be '.*' or '"):
        torch_npu.Options(**{option: "wrong"})


def test_a_missing_argument_is_named():
    with pytest.raises(TypeError, match="npu_moe_distribute_dispatch_v2: missing a required argument: 'x'"):
        torch_npu.npu_moe_distribute_dispatch_v2()
    with pytest.raises(
        TypeError, match="npu_moe_distribute_dispatch: got an unexpected keyword argument 'comm_alg'"
    ):
        torch_npu.npu_moe_distribute_dispatch(*[None] * 6, comm_alg="")


def test_masks_of_tokens_have_the_active_ones_first():
    config, case = TWO, double.case_of(TWO)

    def run(rank):
        given = double.arguments(rank, case, config)[0]
        dispatch = double.SECOND_PAIR[0]
        for mask, error, text in [
            (np.array([True, False, True, False]), ValueError, r"x_active_mask\[2\] = True behind a False"),
            (np.ones(3, bool), TypeError, r"x_active_mask: shape \[3\]: must be \[4\] or \[4, 2\]"),
            (np.ones((2, 4), bool), TypeError, r"x_active_mask: shape \[2, 4\]: must be \[4\] or \[4, 2\]"),
        ]:
            with pytest.raises(error, match=text):
                dispatch(**dict(given, x_active_mask=mask))
        with pytest.raises(TypeError, match=r"expert_ids: shape \[3, 2\]: must be \[4, K\]"):
            dispatch(**dict(given, expert_ids=given["expert_ids"][:3]))
        return True

    assert Ranks(2, threads=True).run(run) == [True, True]


@pytest.mark.parametrize("threads", [True, False])
def test_ranks_that_begin_with_other_shapes_are_told_at_once(threads):
    def run(rank):
        config = dict(TWO, h=1024 * (1 + rank.rank))
        double.layer(rank, double.case_of(config), config)

    since = time.monotonic()
    with pytest.raises(veriep.Mismatch, match="rank 1 called dispatch with h = 2048, rank 0 with h = 1024"):
        Ranks(2, threads=threads).run(run)
    assert time.monotonic() - since < 15
