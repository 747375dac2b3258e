"""Live groups: threads, processes, those who die, and what is left of them."""

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest
import reference
import veriep
from ml_dtypes import bfloat16

TINY = dict(ep_world_size=2, moe_expert_num=4, k=2, h=1024, bs=4)


def sent(case, rank):
    return [case[f"rank{rank}.{name}"] for name in ("x", "expert_ids", "expert_scales")]


def all_ranks(groups, run):
    """Runs a function for each rank on a thread of its own, and returns what each has returned or raised."""
    seen = [None] * len(groups)

    def call(rank):
        try:
            seen[rank] = run(groups[rank])
        except Exception as error:
            seen[rank] = error

    threads = [threading.Thread(target=call, args=[rank]) for rank in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in seen:
        if isinstance(error, AssertionError):
            raise error
    return seen


@pytest.mark.parametrize("config", [TINY, dict(TINY, quant_mode=2), dict(TINY, dtype="f16", aiv_num=3)])
def test_threads_receive_and_sum_what_the_oracle_says(config):
    case = reference.make_case(reference.Group(veriep.Shape(**config).config))
    case.pop("expert_gain", None)
    expected = veriep.reference(case, **config)
    dispatched = veriep.reference_dispatch(case, **config)

    def run(group):
        x, ids, weights = sent(case, group.rank)
        received = group.dispatch(x, ids.astype(np.int64), weights)
        name = f"rank{group.rank}."
        assert received.x.tobytes() == dispatched[name + "expand_x"].tobytes()
        assert received.counts.tolist() == dispatched[name + "expert_token_nums"].tolist()
        y = received.x
        if received.scales is not None:
            y = (y.astype(np.float32) * received.scales[:, None]).astype(x.dtype)
        return group.combine(y, received.handle)

    outs = all_ranks(veriep.Group.local(**config), run)
    for rank, out in enumerate(outs):
        assert out.tobytes() == expected[f"rank{rank}.x_out"].tobytes()


def test_fewer_tokens_and_pairs_without_an_expert_are_masked():
    rng = np.random.default_rng(1)

    def run(group):
        n = (3, 0)[group.rank]
        x = rng.normal(size=(n, group.h)).astype(bfloat16)
        ids = np.int64([[0, -1], [-1, -1], [3, 1]])[:n]
        received = group.dispatch(x, ids, np.ones((n, 2)))
        assert received.counts.tolist() == [[1, 1], [0, 1]][group.rank]
        out = group.combine(received.x, received.handle)
        assert out.shape == (n, group.h)
        if n:
            assert (out[0] == x[0]).all() and not out[1].any() and (out[2] == x[2] + x[2]).all()
        # The same by a mask.
        received = group.dispatch(x, np.abs(ids) * [1, 2], np.ones((n, 2)), mask=ids >= 0)
        masked = group.combine(received.x, received.handle)
        return (masked[:1] == out[:1]).all()

    assert all_ranks(veriep.Group.local(**TINY), run) == [True, True]


def test_batches_overlap_in_halves_without_a_thread():
    batches = [np.full((2, 1024), n + 1).astype(bfloat16) for n in range(5)]
    ids = np.int64([[0, 1], [3, 2]])
    ones = np.ones((2, 2), np.float32)

    def run(group):
        outs, before = [], None
        for x in batches:
            dispatched = group.dispatch_send(x, ids, ones)
            combined = None if before is None else group.combine_send(before.x * 2, before.handle)
            while not dispatched.poll():
                time.sleep(0)
            received = dispatched()
            if combined is not None:
                outs.append(combined.finish())
            before = received
        outs.append(group.combine(before.x * 2, before.handle))
        return [float(out[0, 0]) for out in outs]

    assert all_ranks(veriep.Group.local(**TINY), run) == [[4.0 * (n + 1) for n in range(5)]] * 2


def test_a_false_gate_is_refused_and_the_group_goes_on():
    x, ids, ones = np.ones((2, 1024), bfloat16), np.int64([[0, 1], [3, 2]]), np.ones((2, 2), np.float32)

    def run(group):
        sent = group.dispatch_send(x, ids, ones)
        with pytest.raises(ValueError, match="batch 0 has been sent and not received: must be finished before"):
            group.dispatch_send(x, ids, ones)
        received = sent.finish()
        with pytest.raises(ValueError, match="dispatch of batch 0: has been finished already"):
            sent.finish()
        return float(group.combine(received.x, received.handle)[0, 0])

    assert all_ranks(veriep.Group.local(**TINY), run) == [2.0, 2.0]


def test_a_dispatch_waits_for_the_sums_of_the_batch_before_the_last():
    x, ids, ones = np.ones((2, 1024), bfloat16), np.int64([[0, 1], [3, 2]]), np.ones((2, 2), np.float32)

    def run(group):
        batches = [group.dispatch(x, ids, ones) for _ in range(2)]
        first, second = [group.combine_send(received.x, received.handle) for received in batches]
        second.finish()
        with pytest.raises(ValueError, match="combine of batch 0 has been sent and not summed: must be finished before"):
            group.dispatch(x, ids, ones)
        first.finish()
        received = group.dispatch(x, ids, ones)
        return float(group.combine(received.x, received.handle)[0, 0])

    assert all_ranks(veriep.Group.local(**TINY), run) == [2.0, 2.0]


def test_rows_are_not_copied_and_two_batches_may_be_in_flight():
    case = reference.make_case(reference.Group(veriep.Shape(**TINY).config))

    def run(group):
        first = group.dispatch(*sent(case, group.rank))
        second = group.dispatch(*sent(case, group.rank))
        assert not first.x.flags.owndata and not np.shares_memory(first.x, second.x)
        with pytest.raises(ValueError, match="third must not be dispatched before the oldest is combined"):
            group.dispatch(*sent(case, group.rank))
        with pytest.raises(ValueError, match="handle of batch 1: must be of batch 0"):
            group.combine(second.x, second.handle)
        # Experts may work in place.
        first.x[...] = first.x * 2
        doubled = group.combine(first.x, first.handle)
        return np.array_equal(doubled, group.combine(second.x, second.handle) * 2)

    assert all_ranks(veriep.Group.local(**TINY), run) == [True, True]


def test_what_is_wrong_with_tensors_is_said_and_nothing_has_happened():
    case = reference.make_case(reference.Group(veriep.Shape(**TINY).config))

    def run(group):
        x, ids, weights = sent(case, group.rank)
        for wrong, error, text in [
            ((x.astype(np.float32), ids, weights), TypeError, "x: float32: must be bfloat16"),
            ((x[:, :512], ids, weights), TypeError, r"x: shape \[4, 512\]: must be \[4, 1024\]"),
            ((x, ids[:2], weights), TypeError, r"topk_ids: shape \[2, 2\]: must be \[4, 2\]"),
            ((x, ids * 1.0, weights), TypeError, "topk_ids: float64: must be int32 or int64"),
            ((x, ids.astype(np.int64) + 2**32, weights), ValueError, "must be an expert, or -1"),
            ((x, ids + 4, weights), veriep.Violation, r"expert_ids\[0, 0\] = "),
            ((x, ids, weights * np.inf), veriep.Violation, "expert_scales"),
            (
                (np.concatenate([x, x]), np.concatenate([ids, ids]), np.ones((8, 2))),
                veriep.Violation,
                "bs = 4",
            ),
        ]:
            with pytest.raises(error, match=text):
                group.dispatch(*wrong)
        received = group.dispatch(x, ids, weights)
        with pytest.raises(TypeError, match="y: shape"):
            group.combine(received.x[1:], received.handle)
        return group.combine(received.x, received.handle).shape

    assert all_ranks(veriep.Group.local(**TINY), run) == [(4, 1024)] * 2
    with pytest.raises(veriep.Violation, match="members have no residual"):
        veriep.Group.local(**TINY, op="combine_add_rms_norm")


def nothing(group):
    return [
        np.zeros((0, width), kind) for width, kind in ((group.h, bfloat16), (2, np.int32), (2, np.float32))
    ]


def test_a_layout_without_masks_takes_whole_batches_alone():
    servers = dict(TINY, product="a2", comm_alg="hierarchy", ep_world_size=16, moe_expert_num=16)
    group, *_others = veriep.Group.local(**servers)
    x, _, _ = nothing(group)
    one = [np.zeros((1, x.shape[1]), x.dtype), np.arange(2, dtype=np.int32)[None], np.ones((1, 2), np.float32)]
    with pytest.raises(veriep.Violation, match="expert_ids: 1 tokens, .*must be bs = 4 tokens"):
        group.dispatch(*one)


def test_who_does_not_come_in_time_is_missing():
    groups = veriep.Group.local(**TINY, deadline=0.1)
    case = reference.make_case(reference.Group(veriep.Shape(**TINY).config))
    with pytest.raises(veriep.Timeout) as raised:
        groups[0].dispatch(*sent(case, 0))
    assert {missing["source_rank"] for missing in raised.value.missing} == {1}
    with pytest.raises(veriep.Timeout):
        groups[0].dispatch(*sent(case, 0))


def test_polls_alone_reach_the_deadline():
    group, _other = veriep.Group.local(**TINY, deadline=0.1)
    case = reference.make_case(reference.Group(veriep.Shape(**TINY).config))
    hook, until = group.dispatch_send(*sent(case, 0)), time.monotonic() + 60
    with pytest.raises(veriep.Timeout) as raised:
        while time.monotonic() < until:
            assert not hook.poll()
    assert {missing["source_rank"] for missing in raised.value.missing} == {1}


def test_times_are_numbers_of_seconds():
    for wrong in (0, -1, float("nan"), float("inf"), 1e30):
        with pytest.raises(ValueError, match="must be in"):
            veriep.Group.local(**TINY, deadline=wrong)
        with pytest.raises(ValueError, match="join_timeout"):
            veriep.Group(0, 2, "/nowhere", join_timeout=wrong, **TINY)


def test_closing_ends_a_call_of_another_thread():
    groups = veriep.Group.local(**TINY)
    threading.Timer(0.2, groups[0].close).start()
    start = time.monotonic()
    with pytest.raises(ValueError, match="interrupted"):
        groups[0].dispatch(*nothing(groups[0]))
    assert time.monotonic() - start < 5
    with pytest.raises(veriep.Gone):
        groups[1].dispatch(*nothing(groups[1]))


def test_ctrl_c_ends_a_call(tmp_path):
    # What a shell starts beside itself ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    group, _other = veriep.Group.local(**TINY)
    case = reference.make_case(reference.Group(veriep.Shape(**TINY).config))
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        group.dispatch(*sent(case, 0))
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        veriep.Group(0, 2, tmp_path / "group", preset="tiny")
    assert not list(tmp_path.iterdir())


def rank_of(rank, rendezvous, case, rounds, pipe, dies=None):
    """A process of a group."""
    config = {key: value for key, value in TINY.items() if key != "ep_world_size"}
    try:
        with veriep.Group(rank, 3, rendezvous, join_timeout=60, **dict(config, moe_expert_num=6)) as group:
            for round_ in range(rounds):
                received = group.dispatch(*sent(case, rank))
                if dies == round_:
                    os.kill(os.getpid(), signal.SIGKILL)
                out = group.combine(received.x, received.handle)
        pipe.send(out.tobytes())
    except veriep.Gone as gone:
        survivors = veriep.Group(min(rank, 1), 2, f"{rendezvous}.2", **config)
        received = survivors.dispatch(*[tensor[:0] for tensor in sent(case, rank)])
        empty = survivors.combine(received.x, received.handle)
        survivors.close()
        pipe.send((str(gone), gone.gone, empty.shape))


def start(method, tmp_path, rounds, dies=()):
    config = dict(TINY, ep_world_size=3, moe_expert_num=6)
    case = reference.make_case(reference.Group(veriep.Shape(**config).config))
    case.pop("expert_gain", None)
    context = multiprocessing.get_context(method)
    pipes, processes = [], []
    for rank in range(3):
        ours, theirs = context.Pipe()
        arguments = (rank, tmp_path / "group", case, rounds, theirs, dict(dies).get(rank))
        processes.append(context.Process(target=rank_of, args=arguments))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    return case, config, pipes, processes


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_sum_what_the_oracle_says_and_leave_nothing(method, tmp_path):
    case, config, pipes, processes = start(method, tmp_path, rounds=5)
    expected = veriep.reference(case, **config)
    for rank, pipe in enumerate(pipes):
        assert pipe.poll(60) and pipe.recv() == expected[f"rank{rank}.x_out"].tobytes()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert not list(tmp_path.iterdir())


def test_a_killed_rank_is_named_and_the_others_go_on_without_it(tmp_path):
    _, _, pipes, processes = start("spawn", tmp_path, rounds=1000, dies=[(1, 7)])
    for rank in (0, 2):
        assert pipes[rank].poll(60)
        line, gone, shape = pipes[rank].recv()
        assert shape == (0, 1024)
        [one] = gone
        assert (one["process"], one["ranks"], one["pid"]) == (1, [1], processes[1].pid)
        assert (one["how"], one["round"], one["operator"]) == ("signal 9", 7, "experts")
        assert line.startswith("experts of round 7: process 1 (pid ")
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, -9, 0]
    assert not list(tmp_path.iterdir())


def test_a_copy_of_a_process_is_no_member():
    group, _other = veriep.Group.local(**TINY)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            group.dispatch(*nothing(group))
        except ValueError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"a copy made by fork must join a group of its own" in os.read(reading, 1000)


def test_who_was_given_something_else_is_told_what(tmp_path):
    path = tmp_path / "group"
    waiting = threading.Thread(target=lambda: veriep.Group(0, 2, path, preset="tiny"), daemon=True)
    waiting.start()
    while not path.exists():
        time.sleep(0.01)
    with pytest.raises(ValueError, match="process 1: k: must be the same as on process 0"):
        veriep.Group(1, 2, path, preset="tiny", k=1)
    veriep.Group(1, 2, path, preset="tiny")
    waiting.join()
    with pytest.raises(veriep.Timeout, match="of 2 processes 0 did not join within 0.1 s") as raised:
        veriep.Group(1, 2, path, preset="tiny", join_timeout=0.1)
    assert [missing["source_rank"] for missing in raised.value.missing] == [0]


class Store:
    """What ``torch.distributed`` calls a store, as far as a group needs it."""

    def __init__(self):
        self.words = {}

    def check(self, keys):
        return all(key in self.words for key in keys)

    def set(self, key, value):
        self.words[key] = value.encode()

    def get(self, key):
        return self.words[key]


class OldStore:
    """One whose ``get`` waits and which cannot be asked whether a key is there, but for its numbers."""

    def __init__(self):
        self.words, self.numbers = {}, {}

    def set(self, key, value):
        self.words[key] = value.encode()

    def add(self, key, number):
        self.numbers[key] = self.numbers.get(key, 0) + number
        return self.numbers[key]

    def get(self, key):
        return self.words[key]


def test_a_store_that_nobody_invites_in_is_left_in_time():
    for store in (Store(), OldStore()):
        start = time.monotonic()
        with pytest.raises(veriep.Timeout):
            veriep.Group(1, 2, store, join_timeout=0.3, **TINY)
        assert time.monotonic() - start < 5


@pytest.mark.parametrize("store", [Store(), OldStore()])
def test_a_store_is_a_rendezvous_again_and_again(store):
    case = reference.make_case(reference.Group(veriep.Shape(**TINY).config))

    def run(rank):
        for _ in range(3):
            with veriep.Group(rank, 2, store, **TINY) as group:
                received = group.dispatch(*sent(case, rank))
                out = group.combine(received.x, received.handle)
        return out.shape

    assert all_ranks([0, 1], run) == [(4, 1024)] * 2


def test_nothing_is_lost_over_many_rounds():
    rounds = int(os.environ.get("VERIEP_ROUNDS", "300"))
    case = reference.make_case(reference.Group(veriep.Shape(**TINY).config))

    def resident():
        return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])

    def run(group):
        for _ in range(rounds):
            received = group.dispatch(*sent(case, group.rank))
            group.combine(received.x, received.handle)

    def groups():
        for _ in range(20):
            with veriep.Group.local(**TINY)[0]:
                pass

    all_ranks(veriep.Group.local(**TINY), run)
    groups()
    before, files = resident(), len(os.listdir("/proc/self/fd"))
    assert all_ranks(veriep.Group.local(**TINY), run) == [None, None]
    groups()
    assert resident() - before < 2000, "kilobytes"
    assert len(os.listdir("/proc/self/fd")) <= files
