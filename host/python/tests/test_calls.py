"""What a live group takes and gives beyond rows, and what it says of ranks that call different operators."""

import threading
import time

import numpy as np
import pytest
import reference
import veriep
from ml_dtypes import bfloat16
from test_group import TINY, all_ranks, sent


def made(config, seed=0, **options):
    case = reference.make_case(reference.Group(veriep.Shape(**config).config), seed=seed, **options)
    case.pop("expert_gain", None)
    return case


def results_of(received, dtype):
    if received.scales is None:
        return received.x
    return (np.asarray(received.x).astype(np.float32) * received.scales[:, None]).astype(dtype)


@pytest.mark.parametrize(
    "config",
    [TINY, dict(TINY, quant_mode=2), dict(TINY, ep_world_size=4, tp_world_size=2, release="9.1.0")],
)
def test_dispatch_gives_every_output_of_the_operator(config):
    case = made(config)
    dispatched = veriep.reference_dispatch(case, **config)

    def run(group):
        received = group.dispatch(*sent(case, group.rank))
        of = {
            "expand_x": received.x,
            "expert_token_nums": received.counts,
            "dynamic_scales": received.scales,
            "ep_recv_counts": received.recv_counts,
            "assist_info_for_combine": received.assist_info,
            "tp_recv_counts": received.tp_recv_counts,
        }
        for name, seen in of.items():
            want = dispatched.get(f"rank{group.rank}.{name}")
            assert (seen is None) == (want is None), name
            assert seen is None or seen.tobytes() == want.tobytes(), name
        assert received.assist_info.shape == (received.handle.rows, 3)
        return group.combine(results_of(received, group.dtype), received.handle) is not None

    ranks = veriep.Group.local(**config)
    assert all_ranks(ranks, run) == [True] * len(ranks)


def test_weights_are_taken_at_combine():
    case = made(TINY)
    expected = veriep.reference(case, **TINY)

    def run(group):
        x, ids, weights = sent(case, group.rank)
        received = group.dispatch(x, ids)
        with pytest.raises(
            veriep.Violation, match="expert_scales is missing: must be given to dispatch or to"
        ):
            group.combine(received.x, received.handle)
        with pytest.raises(TypeError, match=r"topk_weights: shape \[1, 2\]: must be \[4, 2\]"):
            group.combine(received.x, received.handle, weights[:1])
        summed = group.combine(received.x, received.handle, weights)
        return summed.tobytes() == expected[f"rank{group.rank}.x_out"].tobytes()

    assert all_ranks(veriep.Group.local(**TINY), run) == [True, True]


def test_smooth_scales_shared_rows_and_const_experts_are_taken():
    config = dict(TINY, quant_mode=2, const_expert_num=1, moe_expert_num=4, bs=4)
    case = made(config, scales=True)
    rng = np.random.default_rng(1)
    consts = [case[f"const_expert_{name}"] for name in ("alpha_1", "alpha_2", "v")]
    for rank in range(2):
        case[f"rank{rank}.shared_expert_x"] = rng.normal(size=(4, 1024)).astype(bfloat16)
    dispatched = veriep.reference_dispatch(case, **config)
    returned = {}

    def run(group):
        received = group.dispatch(*sent(case, group.rank), scales=case["scales"])
        assert received.x.tobytes() == dispatched[f"rank{group.rank}.expand_x"].tobytes()
        y = results_of(received, group.dtype)
        returned[f"rank{group.rank}.y"] = np.array(y)
        return group.combine(
            y,
            received.handle,
            shared_expert_x=case[f"rank{group.rank}.shared_expert_x"],
            const_experts=tuple(consts),
        )

    seen = all_ranks(veriep.Group.local(**config), run)
    want = veriep.reference_combine(case, returned, **config)
    assert [rows.tobytes() for rows in seen] == [want[f"rank{rank}.x_out"].tobytes() for rank in range(2)]


def test_logical_experts_have_replicas():
    config = dict(TINY, moe_expert_num=4)
    case = made(config)
    table = np.int32([[0, 2], [1, -1], [3, -1]])
    for rank in range(2):
        case[f"rank{rank}.expert_ids"] = np.int32([[0, 1], [2, 0], [1, 2], [0, 2]])
    expected = veriep.reference({**case, "expert_map": table}, **config)

    def run(group):
        received = group.dispatch(*sent(case, group.rank))
        return group.combine(received.x, received.handle)

    seen = all_ranks(veriep.Group.local(**config, expert_map=table), run)
    assert [rows.tobytes() for rows in seen] == [expected[f"rank{rank}.x_out"].tobytes() for rank in range(2)]
    with pytest.raises(veriep.Violation, match="must name every physical expert"):
        veriep.Group.local(**config, expert_map=table[:2])


def test_layers_share_a_group():
    layers = [dict(bs=4), dict(h=2048, k=3), dict(quant_mode=2, bs=2)]
    common = dict(ep_world_size=2, moe_expert_num=4, k=2, h=1024)
    configs = [dict(common, bs=8) | layer for layer in layers]
    cases = [made(config, seed) for seed, config in enumerate(configs)]
    wanted = [veriep.reference_dispatch(case, **config) for case, config in zip(cases, configs)]

    def run(group):
        for layer in (0, 1, 2, 2, 0, 1, 0):
            received = group.dispatch(*sent(cases[layer], group.rank), layer=layer)
            assert received.x.tobytes() == wanted[layer][f"rank{group.rank}.expand_x"].tobytes()
            group.combine(results_of(received, group.dtype), received.handle)
        with pytest.raises(ValueError, match=r"layer = 3: must be in \[0, 3\)"):
            group.dispatch(*sent(cases[0], group.rank), layer=3)
        return True

    assert all_ranks(veriep.Group.local(**common, bs=8, layers=layers), run) == [True, True]
    with pytest.raises(ValueError, match="aiv_num = 4 in layer 0, 2 in layer 1: must be equal on one group"):
        veriep.Group.local(**common, layers=[dict(aiv_num=4), dict(aiv_num=2)])


def test_a_loose_group_combines_a_batch_twice_or_never():
    cases = [made(TINY, seed) for seed in range(4)]
    wanted = [veriep.reference(case, **TINY) for case in cases]

    def run(group):
        sums = []
        handles = []
        for case in cases:
            received = group.dispatch(*sent(case, group.rank))
            handles.append((received.handle, np.array(received.x)))
        for number in (3, 0, 0, 2):
            handle, y = handles[number]
            want = wanted[number][f"rank{group.rank}.x_out"]
            sums.append(group.combine(y, handle).tobytes() == want.tobytes())
        return sums

    assert all_ranks(veriep.Group.local(**TINY, order="loose"), run) == [[True] * 4] * 2


def test_the_order_is_the_same_on_all_ranks(tmp_path):
    seen = [None, None]

    def join(rank, order):
        try:
            veriep.Group(
                rank,
                2,
                tmp_path / "meeting",
                moe_expert_num=4,
                k=2,
                h=1024,
                bs=4,
                order=order,
                join_timeout=5,
            )
        except Exception as error:
            seen[rank] = str(error)

    threads = [
        threading.Thread(target=join, args=(rank, order)) for rank, order in enumerate(("strict", "loose"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert any("order: must be the same as on process" in str(line) for line in seen), seen
    with pytest.raises(ValueError, match='order = "any": must be strict or loose'):
        veriep.Group.local(**TINY, order="any")


def test_calls_that_differ_are_named_on_both_ranks():
    case = made(TINY)

    def run(group):
        received = group.dispatch(*sent(case, group.rank))
        if group.rank == 0:
            group.combine(received.x, received.handle)
        else:
            group.dispatch(*sent(case, group.rank))
        return None

    lines = [str(error) for error in all_ranks(veriep.Group.local(**TINY), run)]
    rule = "every rank must call the same operators in the same order"
    assert lines[0] == f"rank 1 called dispatch, rank 0 combine: {rule}"
    assert lines[1] == f"rank 0 called combine, rank 1 dispatch: {rule}"


def test_groups_beside_each_other_compare_their_calls():
    small, wide = TINY, dict(TINY, h=2048)
    first = veriep.Group.local(**small)
    second = veriep.Group.local(**wide, beside=first)
    case, other = made(small), made(wide)

    def run(group):
        for member, tensors in ((first[group.rank], case), (second[group.rank], other)):
            received = member.dispatch(*sent(tensors, group.rank))
            member.combine(received.x, received.handle)
        member, tensors = ((first, case), (second, other))[group.rank]
        member[group.rank].dispatch(*sent(tensors, group.rank))

    lines = all_ranks(first, run)
    assert all(isinstance(line, veriep.Mismatch) for line in lines), lines
    assert str(lines[0]).startswith(
        "rank 1 called dispatch with h = 2048, k = 2, bs = 4, rank 0 with h = 1024"
    )


def test_a_join_beside_a_call_is_named(tmp_path):
    groups = veriep.Group.local(**TINY)
    case = made(TINY)

    def run(group):
        if group.rank == 0:
            group.dispatch(*sent(case, 0))
        else:
            veriep.Group(1, 2, tmp_path / "meeting", moe_expert_num=4, k=2, h=2048, bs=4, beside=group)

    lines = all_ranks(groups, run)
    assert [type(line) for line in lines] == [veriep.Mismatch] * 2, lines
    assert str(lines[0]).startswith("rank 1 called join, rank 0 dispatch: ")


def test_limits_open_when_asked():
    config = dict(TINY, h=64, bs=600)
    with pytest.raises(veriep.Violation, match="h = 64"):
        veriep.Group.local(**config)

    def run(group):
        x = np.full((600, 64), group.rank + 1).astype(bfloat16)
        ids = np.tile(np.int32([0, 3]), (600, 1))
        received = group.dispatch(x, ids, np.ones((600, 2), np.float32))
        return group.combine(received.x, received.handle).astype(np.float32).sum()

    assert all_ranks(veriep.Group.local(**config, limits="open"), run) == [600 * 64 * 2.0, 600 * 64 * 4.0]


def test_rows_of_a_loose_group_are_a_copy():
    cases = [made(TINY, seed) for seed in range(3)]
    wanted = [veriep.reference(case, **TINY) for case in cases]

    def run(group):
        received = [group.dispatch(*sent(case, group.rank)) for case in cases]
        orders = [0, 0, 2, 1, 0, 2]
        sums = [group.combine(received[number].x, received[number].handle) for number in orders]
        return [
            one.tobytes() == wanted[number][f"rank{group.rank}.x_out"].tobytes()
            for one, number in zip(sums, orders)
        ]

    assert all_ranks(veriep.Group.local(**TINY, order="loose"), run) == [[True] * 6] * 2


def test_a_batch_that_is_combined_again_is_the_same_on_all_ranks():
    case = made(TINY)

    def run(group):
        handles = []
        for _ in range(2):
            received = group.dispatch(*sent(case, group.rank))
            handles.append(received.handle)
            group.combine(received.x, received.handle)
        group.combine(received.x, handles[group.rank])

    lines = [str(error) for error in all_ranks(veriep.Group.local(**TINY, order="loose"), run)]
    assert lines[0].startswith("rank 1 called dispatch of batch 1, rank 0 of batch 0"), lines


def test_weights_of_the_hierarchy_are_those_of_dispatch():
    config = dict(product="a2", comm_alg="hierarchy", ep_world_size=16, moe_expert_num=16, k=2, h=1024, bs=2)
    case = made(config)

    def run(group):
        x, ids, weights = sent(case, group.rank)
        received = group.dispatch(x, ids, weights)
        with pytest.raises(veriep.Violation, match="expert_scales differ: must be those of dispatch"):
            group.combine(received.x, received.handle, weights * 2)
        return group.combine(received.x, received.handle, weights) is not None

    assert all_ranks(veriep.Group.local(**config), run) == [True] * 16


def test_smooth_scales_have_a_row_for_each_expert():
    config = dict(TINY, quant_mode=2)
    case = made(config, scales=True)

    def run(group):
        for wrong in (case["scales"].T, case["scales"].ravel()):
            with pytest.raises(TypeError, match=r"scales: shape"):
                group.dispatch(*sent(case, group.rank), scales=np.ascontiguousarray(wrong))
        with pytest.raises(veriep.Violation, match="scales"):
            group.dispatch(*sent(case, group.rank), scales=case["scales"][:3])
        return True

    assert all_ranks(veriep.Group.local(**config), run) == [True, True]


def test_open_limits_have_masks():
    def run(group):
        x = np.ones((3, 64), bfloat16)
        received = group.dispatch(x, np.int32([[0, 3], [1, -1], [2, 0]]), np.ones((3, 2), np.float32))
        return group.combine(received.x, received.handle)[:, 0].tolist()

    assert all_ranks(veriep.Group.local(**dict(TINY, h=64), limits="open"), run) == [[2.0, 1.0, 2.0]] * 2


def test_a_rank_without_tokens_may_be_far_ahead():
    groups = [veriep.Group.local(**TINY)]
    for _ in range(5):
        groups.append(veriep.Group.local(**TINY, beside=groups[0]))
    # More than one call ahead of the other: combine waits for nothing here.
    nothing = [
        np.zeros((0, width), kind) for width, kind in ((1024, bfloat16), (2, np.int32), (2, np.float32))
    ]
    case = made(TINY)

    def run(first):
        for _ in range(60):
            given = nothing if first.rank else sent(case, 0)
            received = [(group[first.rank], group[first.rank].dispatch(*given)) for group in groups]
            for group, of in received:
                group.combine(of.x, of.handle)
        return True

    assert all_ranks(groups[0], run) == [True, True]


def test_ranks_that_wait_are_told_of_calls_that_differ_elsewhere():
    config = dict(TINY, ep_world_size=3, moe_expert_num=6)
    case = made(config)

    def run(group):
        x, ids, weights = sent(case, group.rank)
        if group.rank == 2:
            x, ids, weights = x[:0], ids[:0], weights[:0]
        received = group.dispatch(x, ids, weights)
        if group.rank == 1:
            group.dispatch(x, ids, weights)
        else:
            group.combine(received.x, received.handle)
            group.dispatch(x, ids, weights)

    since = time.monotonic()
    lines = all_ranks(veriep.Group.local(**config, deadline=60), run)
    assert [type(line) for line in lines] == [veriep.Mismatch] * 3, lines
    assert time.monotonic() - since < 30


@pytest.mark.parametrize("nth", range(10))
def test_a_group_that_is_closed_during_a_call_is_closed_behind_it(nth):
    case = made(TINY)

    def run(group):
        if group.rank == 1:
            threading.Timer(0.002, group.close).start()
        try:
            for _ in range(10000):
                received = group.dispatch(*sent(case, group.rank))
                group.combine(received.x, received.handle)
        except (ValueError, veriep.Gone) as error:
            return type(error)

    assert all_ranks(veriep.Group.local(**TINY, deadline=30), run) == [veriep.Gone, ValueError]


def test_a_join_that_failed_is_no_call(tmp_path):
    first = veriep.Group.local(**TINY)
    case, later = made(TINY), threading.Event()

    def run(group):
        how = dict(moe_expert_num=4, k=2, h=2048, bs=4, beside=group)
        if group.rank == 0:
            with pytest.raises(veriep.Timeout):
                veriep.Group(0, 2, tmp_path / "meeting", join_timeout=0.2, **how)
            later.set()
        later.wait()
        with veriep.Group(group.rank, 2, tmp_path / "meeting", join_timeout=20, **how):
            received = group.dispatch(*sent(case, group.rank))
            group.combine(received.x, received.handle)
        return True

    assert all_ranks(first, run) == [True, True]


def test_a_rank_that_is_too_far_ahead_names_those_who_are_behind():
    first = veriep.Group.local(**TINY, deadline=1)
    groups = [first] + [veriep.Group.local(**TINY, beside=first, deadline=1) for _ in range(17)]
    case, done = made(TINY), threading.Event()

    def run(one):
        x, ids, weights = sent(case, one.rank)
        given = (x[:0], ids[:0], weights[:0]) if one.rank else (x, ids, weights)
        received = [(group[one.rank], group[one.rank].dispatch(*given)) for group in groups for _ in range(2)]
        if one.rank == 0:
            # Behind, until the other has given up.
            done.wait(30)
            return None
        try:
            # Without tokens, combine waits for nothing.
            for group, of in received:
                group.combine(of.x, of.handle)
        finally:
            done.set()

    _, error = all_ranks(first, run)
    assert isinstance(error, veriep.Timeout), error
    assert "ranks [0] have not made a call that rank 1 is far ahead of" in str(error)
    assert [(missing["what"], missing["source_rank"]) for missing in error.missing] == [("call", 0)]
