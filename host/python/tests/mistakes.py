"""Mistakes that users make with the operators: what each rank does, and which options the ranks have."""

import double
import numpy as np
from veriep.testing import Faults

TWO = dict(ep_world_size=2, moe_expert_num=4, k=2, h=1024, bs=4)
CASE = double.case_of(TWO)
DISPATCH, COMBINE = double.SECOND_PAIR

MISTAKES = {}


def mistake(name, **options):
    """Takes a function of a rank into the table, by what is wrong with it."""

    def enter(function):
        MISTAKES[name] = (function, options)
        return function

    return enter


def layer(rank, dispatch=None, combine=None):
    """A layer with other arguments; those that are functions are given the right ones."""
    of_dispatch, of_combine = double.arguments(rank, CASE, TWO)
    got = (
        DISPATCH(**of_dispatch, **(dispatch or {}))
        if not callable(dispatch)
        else DISPATCH(**dispatch(of_dispatch))
    )
    of_combine.update(expand_x=got[0], assist_info_for_combine=got[2], ep_send_counts=got[4])
    if callable(combine):
        of_combine = combine(of_combine, got)
    return COMBINE(**of_combine)


@mistake("one rank has fewer tokens, and `global_bs` is 0", deadline=5)
def uneven(rank):
    def shorter(given, *_):
        cut = ("x", "expert_ids", "expert_scales")
        return {name: value[rank.rank :] if name in cut else value for name, value in given.items()}

    layer(rank)
    layer(rank, shorter, shorter)


@mistake("a rank dies", faults=Faults(seed=1, dies=[(1, 4)]))
def dies(rank):
    for _ in range(4):
        layer(rank)


@mistake("a rank leaves out a layer", faults=Faults(seed=1, skips=[(1, 2)]), deadline=1)
def skips(rank):
    for _ in range(3):
        layer(rank)


@mistake("a rank dispatches where the others combine")
def out_of_step(rank):
    of_dispatch, of_combine = double.arguments(rank, CASE, TWO)
    got = DISPATCH(**of_dispatch)
    if rank.rank == 1:
        DISPATCH(**of_dispatch)
    double.back(COMBINE, got, got[0], of_combine)


@mistake("ranks run the layers of a model in another order", deadline=5)
def other_order(rank):
    sizes = [TWO, dict(TWO, h=2048)]
    cases = [double.case_of(config) for config in sizes]
    for config, case in zip(sizes, cases):
        double.layer(rank, case, config)
    order = (0, 1) if rank.rank == 0 else (1, 0)
    for number in order:
        double.layer(rank, cases[number], sizes[number])


@mistake("a batch is combined twice")
def twice(rank):
    of_dispatch, of_combine = double.arguments(rank, CASE, TWO)
    got = DISPATCH(**of_dispatch)
    for _ in range(2):
        double.back(COMBINE, got, got[0], of_combine)


@mistake("two layers' batches are combined in the wrong order")
def crossed(rank):
    of_dispatch, of_combine = double.arguments(rank, CASE, TWO)
    first, second = DISPATCH(**of_dispatch), DISPATCH(**of_dispatch)
    for got in (second, first):
        double.back(COMBINE, got, got[0], of_combine)


@mistake("batches are dispatched and never combined")
def never(rank):
    of_dispatch, _ = double.arguments(rank, CASE, TWO)
    for _ in range(3):
        DISPATCH(**of_dispatch)


@mistake("combine is given other assist information")
def foreign(rank):
    layer(rank, combine=lambda given, got: dict(given, assist_info_for_combine=np.zeros_like(got[2])))


@mistake("combine is given other `expert_ids`, such as those of the next layer")
def other_ids(rank):
    layer(rank, combine=lambda given, got: dict(given, expert_ids=given["expert_ids"][::-1]))


@mistake("combine is given the token counts of experts in place of the receive counts")
def other_counts(rank):
    layer(rank, combine=lambda given, got: dict(given, ep_send_counts=got[3].astype(np.int32)))


@mistake("combine is not given the mask of its dispatch")
def no_mask(rank):
    mask = np.arange(4) < 3
    layer(rank, lambda given: dict(given, x_active_mask=mask))


@mistake("`expert_ids` are int64, as `topk` returns them")
def wide_ids(rank):
    layer(rank, lambda given: dict(given, expert_ids=given["expert_ids"].astype(np.int64)))


@mistake("`expert_scales` have the type of the model")
def narrow_weights(rank):
    layer(
        rank,
        combine=lambda given, got: dict(
            given, expert_scales=given["expert_scales"].astype(given["expand_x"].dtype)
        ),
    )


@mistake("ids of padding were never set")
def unset_ids(rank):
    ids = double.arguments(rank, CASE, TWO)[0]["expert_ids"].copy()
    ids[3, 1] = 544342016
    layer(rank, lambda given: dict(given, expert_ids=ids))


@mistake("a token names an expert twice")
def repeated_ids(rank):
    layer(rank, lambda given: dict(given, expert_ids=np.zeros((4, 2), np.int32)))


@mistake("`ep_rank_id` is the rank in the world, not in the group")
def rank_of_world(rank):
    layer(rank, lambda given: dict(given, ep_rank_id=rank.rank + 2, ep_world_size=4))


@mistake("`group_ep` is a name that no process group has")
def no_name(rank):
    layer(rank, lambda given: dict(given, group_ep="ep"))


@mistake("the capacity is smaller than a rank's tokens")
def capacity(rank):
    layer(rank, lambda given: dict(given, global_bs=6))


@mistake("more tokens than the operators take")
def too_many(rank):
    config = dict(TWO, bs=513)
    of = double.case_of(dict(TWO, bs=512, hccl_buffsize_mb=1000))
    of = {
        name: np.concatenate([value, value[:1]]) if name.startswith("rank") else value
        for name, value in of.items()
    }
    DISPATCH(**double.arguments(rank, of, config)[0])


def table(messages):
    lines = ["| mistake | message |", "|---|---|"]
    return "\n".join(lines + [f"| {name} | {text} |" for name, text in messages.items()]) + "\n"
