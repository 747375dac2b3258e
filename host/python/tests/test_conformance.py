"""The conformance suite passes live groups, and catches implementations that are spoilt on purpose."""

import numpy as np
import pytest
import veriep
from ml_dtypes import bfloat16
from test_group import all_ranks
from veriep import conformance


class Live:
    """The operators of one rank over a live group, with the keywords of torch_npu."""

    def __init__(self, group):
        self.group, self.handles = group, []

    def dispatch(self, **given):
        received = self.group.dispatch(
            given["x"], given["expert_ids"], None, given.get("x_active_mask"), scales=given.get("scales")
        )
        self.handles.append(received.handle)
        # Room behind the rows, as the operators allocate it.
        rows = np.zeros((len(received.x) + 2, self.group.h), received.x.dtype)
        rows[: len(received.x)] = received.x
        assist = np.int32([len(self.handles) - 1])
        return [rows, received.scales, assist, received.counts, received.recv_counts, None, None]

    def combine(self, **given):
        handle = self.handles[given["assist_info_for_combine"][0]]
        shared = given.get("shared_expert_x")
        return self.group.combine(
            given["expand_x"][: handle.rows], handle, given["expert_scales"], shared_expert_x=shared
        )


def wrong(case, spoilt=lambda live: live):
    """Runs a case on threads: what ranks say is wrong. A rank that ends so leaves the group, and others cannot go on."""

    def run(group):
        with group:
            live = spoilt(Live(group))
            case.run(group.rank, live.dispatch, live.combine)

    seen = all_ranks(veriep.Group.local(**case.keywords(), deadline=20), _kept(run))
    others = [error for error in seen if error is not None and not isinstance(error, (str, veriep.Gone))]
    assert others == []
    return [line for line in seen if isinstance(line, str)]


def _kept(run):
    """Returns what is wrong, which is no failure of the test itself."""

    def call(group):
        try:
            return run(group)
        except conformance.Wrong as error:
            return str(error)

    return call


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_live_group_passes_every_case(world_size):
    for case in conformance.cases(world_size):
        assert wrong(case) == [], case.name


def at_dispatch(change):
    """An implementation whose dispatch puts out something else: ``change(live, given, put_out)``."""

    def spoilt(live):
        right = live.dispatch

        def dispatch(**given):
            put_out = right(**given)
            rows = live.handles[-1].rows
            put_out[0], put_out[3], put_out[4] = (np.array(put_out[number]) for number in (0, 3, 4))
            if rows:
                change(live.group, rows, given, put_out)
            return put_out

        live.dispatch = dispatch
        return live

    return spoilt


def at_combine(change):
    """An implementation whose combine is given something else: ``change(group, given)``."""

    def spoilt(live):
        right = live.combine

        def combine(**given):
            change(live.group, given)
            return right(**given)

        live.combine = combine
        return live

    return spoilt


def behind_combine(change):
    """An implementation that makes something else of the sums: ``change(group, given, x_out)`` returns them."""

    def spoilt(live):
        right = live.combine
        live.combine = lambda **given: change(live.group, given, np.array(right(**given)))
        return live

    return spoilt


def _weights(change):
    def spoil(group, given):
        given["expert_scales"] = change(np.array(given["expert_scales"]))

    return at_combine(spoil)


def _y(change):
    """Rows that experts returned, as combine takes them."""

    def spoil(group, given):
        given["expand_x"] = np.array(given["expand_x"])
        if given["ep_send_counts"][-1]:
            change(given["expand_x"], given["ep_send_counts"])

    return at_combine(spoil)


def _rows(change):
    def spoil(group, rows, given, put_out):
        change(put_out[0][:rows], put_out[4])

    return at_dispatch(spoil)


def _swap(array, one, other):
    array[[one, other]] = array[[other, one]]


def _within_runs(rows, ends, change):
    """Changes the rows of each pair of expert and source rank."""
    for start, end in zip([0, *ends[:-1]], ends):
        if end > start:
            change(rows[start:end])


def _experts_swapped(rows, ends, world):
    """The first rows of the first two experts, if both have some."""
    if 0 < ends[world - 1] < ends[2 * world - 1]:
        _swap(rows, 0, ends[world - 1])


def _scales(factor):
    def spoil(group, rows, given, put_out):
        if put_out[1] is not None:
            put_out[1] = np.array(put_out[1]) * np.float32(factor)

    return at_dispatch(spoil)


def _counts(change):
    def spoil(group, rows, given, put_out):
        change(put_out[3])

    return at_dispatch(spoil)


def _stale(live):
    """The weights of the batch before."""
    right, before = live.combine, []

    def combine(**given):
        weights = np.array(given["expert_scales"])
        before.append(weights)
        given["expert_scales"] = before[-2] if len(before) > 1 else weights
        return right(**given)

    live.combine = combine
    return live


def _rounded_down(group, given, x_out):
    """A quarter of all values is rounded down where it must be rounded up."""
    bits = np.array(x_out).view(np.uint16)
    return np.where((bits & 3) == 3, bits - 1, bits).astype(np.uint16).view(x_out.dtype)


def _smooth_of_the_next(live):
    right = live.dispatch

    def dispatch(**given):
        if "scales" in given:
            given["scales"] = np.roll(given["scales"], 1, axis=0)
        return right(**given)

    live.dispatch = dispatch
    return live


def _before_dispatch(change):
    def spoilt(live):
        right = live.dispatch
        live.dispatch = lambda **given: right(**change(live.group, dict(given)))
        return live

    return spoilt


def _without_mask(group, given):
    mask = given.pop("x_active_mask", None)
    if mask is not None:
        given["expert_ids"] = np.where(given["expert_ids"] < 0, 0, given["expert_ids"])
    return given


def _mask_too_short(group, given):
    if "x_active_mask" in given:
        given["x_active_mask"] = np.array(given["x_active_mask"])
        active = np.argwhere(given["x_active_mask"])
        if len(active):
            given["x_active_mask"][tuple(active[-1])] = False
    return given


def _last_of_a_small_batch(group, given):
    if len(given["x"]) < group.bs or "global_bs" in given and group.rank:
        given["x"] = np.array(given["x"])
        given["x"][-1] = given["x"][0]
    return given


def _sorted_ids(group, given):
    given["expert_ids"] = np.sort(given["expert_ids"], axis=1)
    return given


def _counts_for_sums(group, rows, given, put_out):
    if given.get("expert_token_nums_type") == 0:
        put_out[3] = np.diff(put_out[3], prepend=0)


def _special(name, value):
    """Sums of tokens with a copy or zero expert."""

    def spoil(group, given, x_out):
        number = given["moe_expert_num"] + (given.get("zero_expert_num", 0) if name == "copy" else 0)
        if given.get(f"{name}_expert_num"):
            of = (given["expert_ids"] == number).any(axis=1)
            x_out[of] = value(x_out[of], given["ori_x"][of]).astype(x_out.dtype)
        return x_out

    return behind_combine(spoil)


def _half_of_shared(group, given):
    if "shared_expert_x" in given:
        given["shared_expert_x"] = (given["shared_expert_x"].astype(np.float32) / 2).astype(bfloat16)


def _without_shared(group, given):
    if "shared_expert_x" in given:
        given["shared_expert_x"] = np.array(given["shared_expert_x"])
        given["shared_expert_x"][-1] = 0


def _tokens_reversed(group, given, x_out):
    return x_out[::-1] if given["ep_rank_id"] == group.world_size - 1 else x_out


def _column_lost(group, given, x_out):
    x_out[:, -1] = x_out[:, -2]
    return x_out


# What is spoilt, and whether the assertions of public device tests accept it: experts that return what they get, rows that
# are constant, a cosine difference below 1e-5 (0.003 for int8), and counts of all experts but the first of a rank.
SPOILT = {
    "weights of a token exchanged among its experts": (_weights(lambda w: w[:, ::-1]), True),
    "weights of a token by one place further": (_weights(lambda w: np.roll(w, 1, axis=1)), True),
    "the first and the last weight exchanged": (_weights(lambda w: w[:, [2, 1, 0]]), True),
    "all weights of a token are their mean": (
        _weights(lambda w: w.mean(axis=1, keepdims=True).repeat(3, 1)),
        True,
    ),
    "weights rounded to three bits": (_weights(lambda w: np.round(w * 8) / 8), False),
    "weights in bfloat16, doubled and halved": (_weights(lambda w: w * np.float32(1.002)), True),
    "weights rounded to bfloat16": (_weights(lambda w: w.astype(bfloat16).astype(np.float32)), True),
    "weights ignored": (_weights(np.ones_like), False),
    "weights of the batch before": (_stale, True),
    "int8 scales 4 % too large": (_scales(1.04), True),
    "int8 scales 1/128 in place of 1/127": (_scales(127 / 128), True),
    "int8 scales one bit off": (_scales(1 + 2**-23), True),
    "smooth scales of another expert": (_smooth_of_the_next, True),
    "rows of a source in reverse order": (
        _rows(lambda rows, ends: _within_runs(rows, ends, lambda run: np.copyto(run, run[::-1].copy()))),
        False,
    ),
    "rows of a source by one place further": (
        _rows(
            lambda rows, ends: _within_runs(rows, ends, lambda run: np.copyto(run, np.roll(run, 1, axis=0)))
        ),
        False,
    ),
    "the first row of a source in place of its others": (
        _rows(lambda rows, ends: _within_runs(rows, ends, lambda run: np.copyto(run, run[:1]))),
        False,
    ),
    "rows of two sources exchanged": (_rows(lambda rows, ends: _swap(rows, 0, -1)), False),
    "rows of two experts exchanged": (
        _rows(lambda rows, ends: _experts_swapped(rows, ends, len(ends) // 4)),
        False,
    ),
    "results of two rows exchanged": (_y(lambda y, ends: _swap(y, 0, max(ends[-1] - 1, 0))), False),
    "the last value of each row": (_rows(lambda rows, ends: rows[:, -1:].fill(0)), False),
    "two columns exchanged": (_rows(lambda rows, ends: _swap(rows.T, 5, 6)), True),
    "columns by one place further": (
        _rows(lambda rows, ends: np.copyto(rows[:, :-128], np.roll(rows[:, :-128], 1, 1))),
        True,
    ),
    "negative zeros and lost signs": (_rows(lambda rows, ends: np.copyto(rows, abs(rows))), True),
    "one row more for the first expert": (_counts(lambda nums: nums[:1].__iadd__(1)), True),
    "counts of the last two experts exchanged": (
        _counts(lambda nums: len(nums) > 1 and _swap(nums, -1, -2)),
        False,
    ),
    "receive counts of the first source": (
        at_dispatch(lambda group, rows, given, put_out: put_out[4][:1].__iadd__(1)),
        False,
    ),
    "sums without the last bit": (behind_combine(_rounded_down), True),
    "sums of a rank's tokens in reverse order": (behind_combine(_tokens_reversed), False),
    "the last column of sums": (behind_combine(_column_lost), True),
    "sums twice as large where negative": (
        behind_combine(lambda group, given, x_out: np.where(x_out < 0, x_out * 2, x_out).astype(x_out.dtype)),
        True,
    ),
    "the last token without its shared row": (at_combine(_without_shared), True),
    "half of each shared row": (at_combine(_half_of_shared), True),
    "masks ignored": (_before_dispatch(_without_mask), True),
    "masks one entry too short": (_before_dispatch(_mask_too_short), True),
    "the last token of an uneven batch": (_before_dispatch(_last_of_a_small_batch), True),
    "experts of a token sorted, and weights not": (_before_dispatch(_sorted_ids), True),
    "counts in place of prefix sums": (at_dispatch(_counts_for_sums), True),
    "copy experts return zeros": (_special("copy", lambda sums, x: sums * 0), True),
    "zero experts return the token": (_special("zero", lambda sums, x: sums + x), True),
}


def accepted_by_weak_assertions(spoilt, quantised):
    """Runs what public device tests run and assert: experts that return what they get, rows that are constant up to their last
    128 values, counts of all experts but a rank's first, a cosine difference. Whether every rank accepts the implementation."""
    world, k, h, bs = 3, 3, 1024, 6
    experts = 4 * world
    config = dict(
        ep_world_size=world, moe_expert_num=experts, k=k, h=h, bs=bs, quant_mode=2 if quantised else 0
    )
    rng = np.random.default_rng(7)
    ids = [np.stack([rng.permutation(experts)[:k] for _ in range(bs)]).astype(np.int32) for _ in range(world)]
    weights = [rng.random((bs, k)).astype(np.float32) for _ in range(world)]

    def run(group):
        with group:
            live, rank = spoilt(Live(group)), group.rank
            x = np.full((bs, h), rank + 1, bfloat16)
            x[:, -128:] = np.arange(bs)[:, None]
            names = {"group_ep": "", "ep_world_size": world, "ep_rank_id": rank, "moe_expert_num": experts}
            put_out = live.dispatch(x=x, expert_ids=ids[rank], **names)
            rows, scales, assist, nums, ends, *_ = put_out
            for local in range(1, 4):
                number = 4 * rank + local
                if nums[local] != sum(int((of == number).sum()) for of in ids):
                    return False
            values = rows.astype(np.float32) * (1 if scales is None else np.pad(scales, (0, 2))[:, None])
            for run_of, (start, end) in enumerate(zip([0, *ends[:-1]], ends)):
                of_source = values[start:end, :-128]
                # Of quantised rows only that they are constant.
                source = of_source[:, :1] if quantised else run_of % world + 1
                if (of_source != source).any():
                    return False
            y = values.astype(bfloat16)
            x_out = live.combine(
                expand_x=y,
                expert_ids=ids[rank],
                assist_info_for_combine=assist,
                ep_send_counts=ends,
                expert_scales=weights[rank],
                **names,
            )
            a, b = x_out.astype(np.float64), x.astype(np.float64) * weights[rank].sum(axis=1, keepdims=True)
            difference = 1 - 2 * (a * b).sum() / (a * a + b * b).sum()
            return bool(difference < (3e-3 if quantised else 1e-5))

    return all(answer is True for answer in all_ranks(veriep.Group.local(**config, deadline=20), run))


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_spoilt_is_caught(name):
    spoilt, accepted = SPOILT[name]
    assert any(wrong(case, spoilt) for case in conformance.cases(3))
    weak = accepted_by_weak_assertions(spoilt, False) and accepted_by_weak_assertions(spoilt, True)
    assert weak == accepted


def test_at_least_twenty_more_pass_weak_assertions():
    assert sum(bool(accepted) for _, accepted in SPOILT.values()) >= 20
