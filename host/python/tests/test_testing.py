"""Ranks, their faults, and what is said of them, without ``torch``."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import veriep
from veriep.testing import Faults, RankError, Ranks

TINY = dict(moe_expert_num=12, k=2, h=1024, bs=4)
HOW = pytest.mark.parametrize(
    "how", [dict(threads=True), dict(), dict(start="spawn")], ids=["threads", "fork", "spawn"]
)
BOTH = pytest.mark.parametrize("threads", [True, False], ids=["threads", "processes"])


def layers(rank, number=4):
    """Sums of a few layers whose experts double; each token goes to two experts with weights 1 and 2."""
    group, rng = rank.group(**TINY), rank.rng()
    x = rng.integers(-8, 8, (4, 1024)).astype(group.dtype)
    ids = np.int32([rng.permutation(12)[:2] for _ in range(4)])
    outs = []
    for _ in range(number):
        received = group.dispatch(x, ids)
        out = group.combine(received.x * 2, received.handle, np.float32([[1, 2]] * 4))
        outs.append(bool((out == x * 6).all()))
    return outs


def fails(rank, who):
    if rank.rank == who:
        time.sleep(0.1)
        raise KeyError(f"of {who}")
    return layers(rank)


@HOW
def test_a_function_runs_on_each_rank(how):
    assert Ranks(3, **how).run(layers) == [[True] * 4] * 3
    assert Ranks(3, **how).run(layers, number=1) == [[True]] * 3


@HOW
def test_the_failure_that_is_no_consequence_is_raised_with_its_rank(how):
    with pytest.raises(KeyError, match="of 1") as raised:
        Ranks(3, **how).run(fails, 1)
    assert raised.value.rank == 1
    assert isinstance(raised.value.__cause__, RankError)
    assert "on rank 1 of 3:" in str(raised.value.__cause__) and "in fails" in str(raised.value.__cause__)
    outcomes = Ranks(3, **how).outcomes(fails, 1)
    assert [type(outcome.error) for outcome in outcomes] == [veriep.Gone, KeyError, veriep.Gone]


@BOTH
def test_violations_and_timeouts_cross_as_they_are(threads):
    def refused(rank):
        rank.group(**dict(TINY, h=1))

    with pytest.raises(veriep.Violation, match="h = 1: must be in") as raised:
        Ranks(2, threads=threads).run(refused)
    assert raised.value.parameter == "h"

    def late(rank):
        if rank.rank == 1:
            time.sleep(1)
        else:
            rank.group(**TINY)

    with pytest.raises(
        veriep.Timeout, match="rank 0 is the first to use a shape with moe_expert_num = 12"
    ) as timeout:
        Ranks(2, threads=threads, join_timeout=0.3).run(late)
    assert [missing["source_rank"] for missing in timeout.value.missing] == [1]


@BOTH
def test_a_rank_that_has_ended_is_not_waited_for(threads):
    def one(rank):
        return rank.rank == 1 or rank.group(**TINY)

    start = time.monotonic()
    with pytest.raises(veriep.Gone, match="rank 1 has ended and does not join"):
        Ranks(2, threads=threads).run(one)
    assert time.monotonic() - start < 20


def test_results_that_cannot_be_sent_are_an_error_of_their_rank():
    with pytest.raises(RankError, match="cannot go from process to process: .*; hint: return plain values"):
        Ranks(2).run(lambda rank: lambda: None)

    class Odd(Exception):
        pass

    def odd(rank):
        raise Odd("strange")

    with pytest.raises(RankError, match="Odd: strange"):
        Ranks(2).run(odd)


@BOTH
def test_delays_by_seed_change_no_result(threads):
    assert Ranks(4, threads=threads, faults=Faults(seed=5, delay=0.02)).run(layers) == [[True] * 4] * 4


def test_delays_are_slept():
    start = time.monotonic()
    Ranks(2, threads=True).run(layers)
    quick = time.monotonic() - start
    start = time.monotonic()
    Ranks(2, threads=True, faults=Faults(seed=1, delay=0.1)).run(layers)
    # Eight calls, and a delay of 0.05 s on average before and after each.
    assert time.monotonic() - start > quick + 0.3


@BOTH
def test_a_death_by_seed_is_seen_by_the_others(threads):
    faults = Faults(seed=2, dies=1, calls=6)
    [(dead, call)] = faults.plan(3).dies
    outcomes = Ranks(3, threads=threads, faults=faults).outcomes(layers)
    assert [outcome.died for outcome in outcomes] == [rank == dead for rank in range(3)]
    for outcome in outcomes:
        if outcome.rank != dead:
            assert isinstance(outcome.error, veriep.Gone)
            assert [gone["process"] for gone in outcome.error.gone] == [dead]
            if not threads:
                assert outcome.error.gone[0]["how"] in ("signal 9", "ended")
    # A death that was asked for is no failure of its own: what others see of it is.
    with pytest.raises(veriep.Gone) as raised:
        Ranks(3, threads=threads, faults=faults).run(layers)
    assert raised.value.rank != dead
    assert f"seed 2: rank {dead} dies before call {call}" in str(raised.value.__cause__)


def test_a_death_that_was_not_asked_for_is_the_failure():
    def crashes(rank):
        if rank.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return layers(rank)

    with pytest.raises(RankError, match="rank 2 has died: signal 9"):
        Ranks(3).run(crashes)


@BOTH
def test_a_skipped_call_leaves_the_others_waiting_for_its_rank(threads):
    ranks = Ranks(2, threads=threads, faults=Faults(skips=[(1, 3)]), deadline=0.5)
    first, second = ranks.outcomes(layers)
    # The last layer is left out: rank 1 has its poison and goes.
    assert second.value == [True, True, True, False]
    assert isinstance(first.error, (veriep.Gone, veriep.Timeout))
    missing = getattr(first.error, "gone", None) or first.error.missing
    assert {row.get("process", row.get("source_rank")) for row in missing} == {1}


def test_places_are_the_same_for_a_seed_and_others_for_another():
    plans = [Faults(seed=seed, dies=1, skips=2).plan(8) for seed in range(20)]
    assert plans == [Faults(seed=seed, dies=1, skips=2).plan(8) for seed in range(20)]
    assert len({plan.dies for plan in plans}) > 10 and len({plan.skips for plan in plans}) > 10
    for plan in plans:
        assert len({rank for rank, _ in plan.skips}) == 2 and all(call < 4 for _, call in plan.skips)
    with pytest.raises(ValueError, match=r"dies = 3: must be in \[0, 2\], the ranks"):
        Faults(dies=3).plan(2)
    with pytest.raises(ValueError, match=r"skips: rank 2, call 0: must be a rank in \[0, 2\)"):
        Faults(skips=[(2, 0)]).plan(2)


@BOTH
def test_who_does_not_end_in_time_is_named_with_its_place(threads):
    def sleeps(rank):
        if rank.rank == 1:
            time.sleep(3)

    with pytest.raises(TimeoutError, match=r"ranks 1 of 2 have not ended within 0.5 s[\s\S]*in sleeps"):
        Ranks(2, threads=threads, timeout=0.5).run(sleeps)


def test_a_rank_that_waits_for_nothing_of_a_group_is_ended_after_a_failure(monkeypatch):
    monkeypatch.setattr(sys.modules["veriep.testing._ranks"], "_GRACE", 0.5)

    def run(rank):
        if rank.rank == 0:
            raise KeyError("first")
        time.sleep(60)

    start = time.monotonic()
    with pytest.raises(KeyError, match="first"):
        Ranks(2).run(run)
    assert time.monotonic() - start < 20


def test_the_fixture_is_there(ranks):
    assert ranks(2, threads=True).run(lambda rank: (rank.rank, rank.size)) == [(0, 2), (1, 2)]


def test_importing_changes_nothing():
    code = """
import sys
before = set(sys.modules)
import veriep, veriep.torch_npu, veriep.testing
assert "torch_npu" not in sys.modules and "torch" not in sys.modules and "numpy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
