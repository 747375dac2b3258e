"""Every offset of random shapes in every language of the header is the core's; wrong ones are seen."""

import os
import random
import subprocess

import compilers
import pytest
import veriep

# VERIEP_CASES=1000 takes some minutes.
CASES = int(os.environ.get("VERIEP_CASES", 50))
SEED = int(os.environ.get("VERIEP_SEED", 1))
# Shapes in one program: starting a compiler costs more than what it compiles.
AT_ONCE = 25


def drawn(rng):
    """A random group that may exist."""
    kind = rng.choice(
        ["plain", "separate", "blocks", "in-place", "direct", "tp", "mesh", "servers 3", "servers 2"]
    )
    a2 = kind == "mesh" or kind.startswith("servers")
    shared = 0 if a2 or kind == "tp" else rng.choice([0, 0, 1, 2])
    local = 1 if kind == "tp" else rng.randint(1, 4)
    moe_ranks = rng.choice([16, 24]) if a2 else rng.randint(2, 9)
    config = dict(
        ep_world_size=moe_ranks + shared,
        shared_expert_rank_num=shared,
        moe_expert_num=moe_ranks * local,
        k=rng.randint(1, 4),
        h=rng.choice([32, 64, 1056]) if a2 else rng.randint(1024, 2100),
        bs=rng.randint(1, 9),
        aiv_num=rng.randint(1, 48),
        quant_mode=rng.choice([0, 2]),
        comm_quant_mode=rng.choice([0, 2]),
        dtype=rng.choice(["bf16", "f16"]),
        hccl_buffsize_mb=rng.randint(104, 400),
    )
    options = {
        "separate": dict(flags="separate", port_offset=512 * rng.randint(0, 3)),
        "blocks": dict(comm_alg="fullmesh_v2"),
        "in-place": dict(receive="in-place"),
        "direct": dict(receive="direct"),
        "tp": dict(release="9.1.0", tp_world_size=2),
        "mesh": dict(product="a2"),
        "servers 3": dict(product="a2", comm_alg="hierarchy"),
        "servers 2": dict(product="a2", comm_alg="hierarchy", stage=2),
    }
    return {**config, **options.get(kind, {})}


def shapes(count, seed):
    """Valid ones; the others are drawn again."""
    rng = random.Random(seed)
    while count:
        config = drawn(rng)
        try:
            shape = veriep.Shape(**config)
        except ValueError:
            continue
        count -= 1
        yield config, shape


def program(folder, shapes):
    """One that checks the headers of all shapes, and ends with the number of those that are wrong."""
    lines = []
    for n, (_, shape) in enumerate(shapes):
        shape.export(folder, prefix=f"s{n}", ranks=[])
        lines += [f"#define main check_{n}", f'#include "s{n}_check.c"', "#undef main"]
    calls = "".join(f'    puts("shape {n}"); wrong += check_{n}();\n' for n in range(len(shapes)))
    source = folder / "all.c"
    source.write_text(
        "\n".join(lines) + "\n\nint main(void)\n{\n    int wrong = 0;\n" + calls + "    return wrong;\n}\n"
    )
    return source


def run(program):
    return subprocess.run([program], capture_output=True, text=True)


@pytest.mark.parametrize("batch", range(-(-CASES // AT_ONCE)))
def test_offsets_of_random_shapes_are_the_cores(batch, tmp_path):
    drawn = list(shapes(min(AT_ONCE, CASES - batch * AT_ONCE), SEED + batch))
    source, commands = program(tmp_path, drawn), compilers.commands()
    assert commands.keys() >= {"C99", "C++17"}
    counts = set()
    for name, command in commands.items():
        done = run(compilers.compiled(command, source, tmp_path / "check"))
        assert done.returncode == 0, (name, done.stdout, [config for config, _ in drawn])
        counts.add(sum(int(line.split()[0]) for line in done.stdout.splitlines() if "offsets" in line))
    (count,) = counts
    assert count > 100 * len(drawn)
    kinds = {
        (c.get("comm_alg"), c.get("product"), c.get("receive"), c.get("flags"), c.get("stage"))
        for c, _ in drawn
    }
    assert len(drawn) < AT_ONCE or len(kinds) > 5


@pytest.mark.parametrize("language", ["C99", "C++17", "AscendC", "CUDA's host pass"])
def test_a_wrong_stride_constant_and_word_are_seen(language, tmp_path):
    command = compilers.needed(language)
    source = program(tmp_path, [({}, veriep.Shape(preset="tiny"))])
    header = tmp_path / "s0_plan.h"
    good = header.read_text()
    for right, wrong, told in [
        ("(uint64_t)slot * 2560ull", "(uint64_t)slot * 2561ull", "s0_dispatch_records differs"),
        ("#define S0_AIV_NUM 8ull", "#define S0_AIV_NUM 9ull", "S0_AIV_NUM differs"),
        (
            "0x3f800000ull | (uint64_t)count << 32",
            "0x3f800000ull | count",
            "s0_dispatch_status_status_word differs",
        ),
    ]:
        assert good.count(right) == 1
        header.write_text(good.replace(right, wrong))
        done = run(compilers.compiled(command, source, tmp_path / "check"))
        assert done.returncode == 1 and told in done.stdout
