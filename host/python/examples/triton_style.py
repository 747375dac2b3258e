"""Offsets into a kernel in the style of Triton.

A kernel is a function over `tl`; what it knows of memory are integers, which `veriep.Shape` gives when it is specialised.
Here `tl` is a few lines of NumPy, so that the kernels run anywhere, one program after the other. On a device a row is put,
and a word published and awaited, by its library for symmetric memory, with the scope and the order that the event has.
"""

from __future__ import annotations

import numpy as np
import veriep


class tl:
    """As much of the language as the kernels below need. A pointer is memory with an offset in bytes."""

    constexpr = int
    program = 0

    @classmethod
    def program_id(cls, axis):
        return cls.program

    @staticmethod
    def load(memory, offset, dtype, count=1):
        values = memory[offset:].view(np.uint8)[: count * np.dtype(dtype).itemsize].view(dtype)
        return values if count > 1 else values[0]

    @staticmethod
    def store(memory, offset, values):
        data = np.ascontiguousarray(values).view(np.uint8).ravel()
        memory[offset : offset + data.size] = data


def launch(kernel, programs, *arguments, **constants):
    for tl.program in range(programs):
        kernel(*arguments, **constants)


def put_rows(
    x,
    ids,
    slots,
    windows,
    RANK: tl.constexpr,
    K: tl.constexpr,
    LOCAL: tl.constexpr,
    ROW: tl.constexpr,
    **AT: tl.constexpr,
):
    """One program for each token and expert: the row goes to the window of the expert's rank."""
    pair = tl.program_id(0)
    expert, slot = tl.load(ids, 4 * pair, np.int32), tl.load(slots, 4 * pair, np.int32)
    owner, local = expert // LOCAL, expert % LOCAL
    row = tl.load(x, pair // K * ROW, np.uint8, ROW)
    at = (
        AT["BASE"]
        + owner * AT["OWNER"]
        + RANK * AT["SOURCE"]
        + local * AT["LOCAL_EXPERT"]
        + slot * AT["SLOT"]
    )
    tl.store(windows[owner], at + AT["DATA"], row)
    tl.store(windows[owner], at + AT["TRIPLE"], np.int32([RANK, pair // K, pair % K]))


def notify_counts(
    counts,
    states,
    RANK: tl.constexpr,
    LOCAL: tl.constexpr,
    WORD: tl.constexpr,
    SHIFT: tl.constexpr,
    **AT: tl.constexpr,
):
    """One program for each expert: how many rows it gets from here, behind them. Flag and count are one word."""
    expert = tl.program_id(0)
    owner, local = expert // LOCAL, expert % LOCAL
    word = np.uint64(WORD) | np.uint64(tl.load(counts, 4 * expert, np.int32)) << np.uint64(SHIFT)
    tl.store(states[owner], AT["BASE"] + local * AT["LOCAL_EXPERT"] + RANK * AT["SOURCE"], word)


def copy_out(
    state,
    window,
    out,
    infos,
    OWNER: tl.constexpr,
    RANKS: tl.constexpr,
    ROW: tl.constexpr,
    WORD: tl.constexpr,
    SHIFT: tl.constexpr,
    STATUS,
    RECORD,
):
    """One program for each (expert, source), which waits for its word; its rows follow those of all before it."""
    me, first = tl.program_id(0), 0
    for number in range(me + 1):
        local, source = number // RANKS, number % RANKS
        at = STATUS["BASE"] + local * STATUS["LOCAL_EXPERT"] + source * STATUS["SOURCE"]
        word = int(tl.load(state, at, np.uint64))
        assert word & ((1 << SHIFT) - 1) == WORD, "no core has told"
        count, first = word >> SHIFT, first + (word >> SHIFT if number < me else 0)
    for slot in range(count):
        at = (
            RECORD["BASE"]
            + OWNER * RECORD["OWNER"]
            + source * RECORD["SOURCE"]
            + local * RECORD["LOCAL_EXPERT"]
            + slot * RECORD["SLOT"]
        )
        tl.store(out, (first + slot) * ROW, tl.load(window, at + RECORD["DATA"], np.uint8, ROW))
        tl.store(infos, (first + slot) * 12, tl.load(window, at + RECORD["TRIPLE"], np.uint8, 12))


def constants(shape, name, **fixed):
    """What a kernel is specialised with: base and strides of a map, offsets of its fields. The base has what is fixed."""
    found = shape.map(name)
    base = found.base + sum(dim.stride * fixed.get(dim.index, 0) for dim in found.dims)
    strides = {dim.index.upper(): dim.stride for dim in found.dims if dim.index not in fixed}
    return {"BASE": base, **strides, **{field.name.upper(): field.offset for field in found.fields}}


def dispatch(shape, case):
    """Runs a dispatch of all ranks. Returns `expand_x` and `assist_info_for_combine` of each, as bytes."""
    known, ranks = shape.constants, shape.constants["ep_world_size"]
    told = next(event for event in shape.events if "dispatch records" in event.data)
    word = {"WORD": told.constant, "SHIFT": told.shifts["count"]}
    record, status = (constants(shape, name, partition=0) for name in ("dispatch records", told.map))
    status["BASE"] += status[told.field.upper()]
    windows = [np.zeros(known["window_bytes"], np.uint8) for _ in range(ranks)]
    states = [np.zeros(known["state_bytes"], np.uint8) for _ in range(ranks)]
    local, row = known["local_expert_num"], known["row_bytes"]
    for rank in range(ranks):
        ids = case[f"rank{rank}.expert_ids"]
        slots = np.array(
            [np.sum(ids.ravel()[:n] == expert) for n, expert in enumerate(ids.ravel())], np.int32
        )
        counts = np.bincount(ids.ravel(), minlength=known["moe_expert_num"]).astype(np.int32)
        x = case[f"rank{rank}.x"].view(np.uint8).ravel()
        as_bytes = lambda array: array.ravel().view(np.uint8)  # noqa: E731
        sizes = dict(RANK=rank, K=known["k"], LOCAL=local, ROW=row)
        launch(put_rows, ids.size, x, as_bytes(ids), as_bytes(slots), windows, **sizes, **record)
        launch(notify_counts, len(counts), as_bytes(counts), states, RANK=rank, LOCAL=local, **word, **status)
    results = []
    for rank in range(ranks):
        rows = sum(np.sum(case[f"rank{source}.expert_ids"] // local == rank) for source in range(ranks))
        out, infos = np.zeros(rows * row, np.uint8), np.zeros(rows * 12, np.uint8)
        sizes = dict(OWNER=rank, RANKS=ranks, ROW=row, STATUS=status, RECORD=record)
        launch(copy_out, local * ranks, states[rank], windows[rank], out, infos, **sizes, **word)
        results.append((out, infos))
    return results


if __name__ == "__main__":
    import ml_dtypes

    config = dict(ep_world_size=4, moe_expert_num=8, k=2, h=1024, bs=4)
    rng = np.random.default_rng(1)
    case = {}
    for rank in range(4):
        case[f"rank{rank}.x"] = rng.normal(size=(4, 1024)).astype(ml_dtypes.bfloat16)
        case[f"rank{rank}.expert_ids"] = np.int32([rng.permutation(8)[:2] for _ in range(4)])
        case[f"rank{rank}.expert_scales"] = np.ones((4, 2), np.float32)
    expected = veriep.reference_dispatch(case, **config)
    for rank, (rows, infos) in enumerate(dispatch(veriep.Shape(**config), case)):
        assert rows.tobytes() == expected[f"rank{rank}.expand_x"].tobytes()
        assert infos.tobytes() == expected[f"rank{rank}.assist_info_for_combine"].tobytes()
    print("as the reference says")
