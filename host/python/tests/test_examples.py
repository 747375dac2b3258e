"""The examples of generators of kernels."""

import ctypes
import re
import runpy
import subprocess
import sys
from pathlib import Path

import compilers
import numpy as np
import plan_round
import pytest
import reference
import veriep

EXAMPLES = Path(__file__).parent.parent / "examples"
DECODE = dict(ep_world_size=4, moe_expert_num=8, k=2, h=1024, bs=4)


def example(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.parametrize(
    "command",
    ["triton_style.py", "tilelang_style.py", "moe_layer.py", "moe_layer.py 2", "round_times.py 2 16 20"],
)
def test_an_example_runs_alone(command):
    name, *arguments = command.split()
    subprocess.run([sys.executable, EXAMPLES / name, *arguments], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("routing", ["uniform", "zipf", "hot"])
def test_kernels_in_the_style_of_triton_dispatch_as_the_oracle_says(routing):
    config = dict(ep_world_size=5, moe_expert_num=15, k=3, h=1056, bs=7)
    shape = veriep.Shape(**config)
    case = reference.make_case(reference.Group(shape.config), routing)
    expected = veriep.reference_dispatch(case, **config)
    for rank, (rows, infos) in enumerate(example("triton_style")["dispatch"](shape, case)):
        assert rows.tobytes() == expected[f"rank{rank}.expand_x"].tobytes()
        assert infos.tobytes() == expected[f"rank{rank}.assist_info_for_combine"].tobytes()


@pytest.mark.parametrize("quant_mode", [0, 2])
def test_a_specialised_kernel_puts_blocks_where_the_plan_reads_them(quant_mode, tmp_path):
    import json

    shape = veriep.Shape(**DECODE, comm_alg="fullmesh_v2", quant_mode=quant_mode)
    plan = json.loads(shape.export(tmp_path, ranks=[])[0].read_text())
    round_ = plan_round.of(plan, reference.make_case(reference.Group(plan["config"])))
    row, scale = round_.row(3, 2, expert=5)
    # The record as a stream: row, scale, triple, where the plan's own round has put them.
    place = round_.slot(3, 2, 1, 1)
    round_.put_record(3, 2, "dispatch records", place, row, scale, (3, 2, 1))
    window = round_.memory._of(2, "window").copy()
    stream = np.concatenate(
        [
            round_.memory.get(2, round_.plan.at("blocks", 2, inside=place, block=block), np.uint8, 480)
            for block in range(shape.map("blocks").dims[0].extent)
        ]
    )[: shape.constants["record_stream_bytes"]]
    module, seen = example("tilelang_style"), np.zeros(shape.constants["window_bytes"], np.uint8)
    kernel = module["lowered"](module["put_record"](shape, source=3, receiver=2, partition=0))
    kernel(seen, np.ascontiguousarray(stream), 1, 1)
    assert (seen[: len(window)] == window).all() and not seen[len(window) :].any()


def test_a_record_in_ascendc_lies_where_the_shape_says(tmp_path):
    command = compilers.needed("AscendC")
    shape = veriep.Shape(**DECODE)
    shape.export(tmp_path, prefix="decode", ranks=[])
    options = ["-shared", "-fPIC", "-I", EXAMPLES / "ascendc", "-I", tmp_path]
    library = compilers.compiled(
        command, EXAMPLES / "ascendc/dispatch_record.cpp", tmp_path / "kernel.so", *options
    )
    kernel = ctypes.CDLL(str(library)).dispatch_record
    x = np.random.default_rng(1).integers(256, size=(4, 2048), dtype=np.uint8)
    window = np.zeros(shape.constants["window_bytes"], np.uint8)
    state = np.zeros(shape.constants["state_bytes"], np.uint8)
    owner, source, local, token, k = 2, 3, 1, 2, 1
    kernel(
        *(array.ctypes.data_as(ctypes.c_void_p) for array in (x, window, state)),
        owner,
        source,
        local,
        token,
        k,
    )
    where = dict(rank=owner, partition=0, source=source, local_expert=local)
    at = shape.offset("dispatch records", slot=0, **where)
    assert (window[at : at + 2048] == x[token]).all()
    triple = shape.offset("dispatch records", field="triple", slot=0, **where)
    assert list(window[triple : triple + 12].view(np.int32)) == [source, token, k]
    status = next(event for event in shape.events if event.map == "dispatch status")
    word = shape.offset("dispatch status", field="status", **where)
    assert state[word : word + 8].view(np.uint64)[0] == status.value(count=1)
    state[word : word + 8] = 0
    window[at : at + shape.map("dispatch records").bytes] = 0
    assert not state.any() and not window.any(), "nothing else is written"


@pytest.mark.parametrize("generation", ["sm_80", "sm_90", "sm_100"])
def test_publish_and_wait_in_cuda_are_of_the_whole_system(generation, tmp_path):
    compilers.needed("CUDA's host pass")
    veriep.Shape(**DECODE).export(tmp_path, prefix="decode", ranks=[])

    def ptx(text):
        source = tmp_path / "dispatch.cu"
        source.write_text(text)
        command = [compilers.nvcc(), "-std=c++17", "-arch", generation, "-ptx", "-I", tmp_path]
        subprocess.run([*command, "-o", tmp_path / "dispatch.ptx", source], check=True)
        # The text of each kernel.
        parts = (tmp_path / "dispatch.ptx").read_text().split(".visible .entry ")[1:]
        return {part.split("(")[0]: part for part in parts}

    def orders(kernel):
        return re.findall(r"\b(?:st|ld|fence|atom)\.[a-z_.]*(?:sys|gpu|cta)[a-z0-9_.]*", kernel)

    text = (EXAMPLES / "dispatch.cu").read_text()
    kernels = ptx(text)
    assert [order.rsplit(".", 1)[0] for order in orders(kernels["put_row"])] == ["st.release.sys"]
    assert [order.rsplit(".", 1)[0] for order in orders(kernels["take_row"])] == ["ld.acquire.sys"]
    # A word that reaches its own GPU alone is seen to.
    assert not any(
        "sys" in order
        for order in orders(ptx(text.replace("thread_scope_system", "thread_scope_device"))["put_row"])
    )
