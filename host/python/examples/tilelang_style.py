"""A kernel that is specialised as TileLang does it: a Python function in which every size and offset is an integer is
lowered to a program with those integers in it.

The kernel puts the record of one token into the window of an expert's rank, as fullmesh_v2 wants it: in blocks, each with
its flag behind it. Here it is lowered to C, and run on the window of this process.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import veriep


def put_record(shape: veriep.Shape, source: int, receiver: int, partition: int) -> str:
    """The program of one pair of ranks; left open are expert, slot and record."""
    first = shape.offset(
        "dispatch records", rank=receiver, partition=partition, source=source, local_expert=0, slot=0
    )
    strides = {dim.index: dim.stride for dim in shape.map("dispatch records", rank=receiver).dims}
    blocks, flags = shape.map("blocks"), shape.map("block flags")
    flag = next(event for event in shape.events if event.map == "block flags").value()
    last, lines = blocks.dims[0].extent - 1, []
    for block in range(last + 1):
        to, size = shape.offset("blocks", block=block), blocks.bytes
        size = shape.constants["last_block_bytes"] if block == last else size
        lines.append(f"    memcpy(at + {to}, record + {block * blocks.bytes}, {size});")
        # Behind what it tells of, and seen by each core that sees it.
        word = f"(uint64_t *)(at + {shape.offset(flags.name, block=block)})"
        lines.append(f"    __atomic_store_n({word}, {flag:#x}ull, __ATOMIC_RELEASE);")
    return "\n".join(
        [
            "#include <stdint.h>",
            "#include <string.h>",
            "void put_record(unsigned char *window, const unsigned char *record, uint64_t local_expert, uint64_t slot)",
            "{",
            f"    unsigned char *at = window + {first} + local_expert * {strides['local_expert']}",
            f"        + slot * {strides['slot']};",
            *lines,
            "}",
            "",
        ]
    )


def lowered(text: str):
    """The function that a program is."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "kernel.c", Path(folder) / "kernel.so"
        source.write_text(text)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        function = ctypes.CDLL(str(library)).put_record
    pointer = np.ctypeslib.ndpointer(np.uint8, flags="C_CONTIGUOUS")
    function.argtypes = [pointer, pointer, ctypes.c_uint64, ctypes.c_uint64]
    function.restype = None
    return function


if __name__ == "__main__":
    shape = veriep.Shape(ep_world_size=2, moe_expert_num=4, k=2, h=1024, bs=4, comm_alg="fullmesh_v2")
    text = put_record(shape, source=1, receiver=0, partition=0)
    print(text)
    record = np.arange(shape.constants["record_stream_bytes"], dtype=np.uint32).astype(np.uint8)
    window = np.zeros(shape.constants["window_bytes"], np.uint8)
    lowered(text)(window, record, 1, 2)
    at = shape.offset("dispatch records", rank=0, partition=0, source=1, local_expert=1, slot=2)
    assert (window[at : at + 480] == record[:480]).all()
