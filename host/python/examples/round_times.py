"""How long a round of dispatch and combine takes with one rank a process, and what does the same takes beside it.

    python round_times.py [RANKS] [TOKENS] [ROUNDS] [PROGRAM]

Beside it, if there is ``torch``: rows by all-to-all of gloo, counts first, and back. With PROGRAM, the program ``veriep``: what
``run --backend processes`` needs. The systems run alternately; of each the median counts, of the slowest rank.
"""

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import veriep
from ml_dtypes import bfloat16

TURNS = 5


def config(tokens):
    return dict(preset="deepseek-v3-decode", moe_expert_num=64, bs=tokens)


def inputs(rank, k, h, tokens):
    rng = np.random.default_rng(rank)
    ids = np.argsort(rng.random((tokens, 64)), axis=1)[:, :k].astype(np.int32)
    return rng.normal(size=(tokens, h)).astype(bfloat16), ids, np.full((tokens, k), 1 / k, np.float32)


def timed(rounds, run):
    """The median time of a round, without those that begin cold."""
    times = []
    for _ in range(rounds + 3):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[3:])


def with_groups(rank, ranks, folder, tokens, rounds, results):
    with veriep.Group(rank, ranks, Path(folder) / "group", **config(tokens)) as group:
        given = inputs(rank, group.k, group.h, tokens)

        def round_():
            received = group.dispatch(*given)
            group.combine(received.x, received.handle)

        results.put(timed(rounds, round_))


def with_gloo(rank, ranks, folder, tokens, rounds, results):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=ranks)
    x, ids, weights = inputs(rank, 8, 7168, tokens)
    rows = torch.from_numpy(x.view(np.int16))
    # gloo moves no bf16, and needs not know what it moves.
    gates = torch.from_numpy(weights)

    def round_():
        home = torch.from_numpy(ids.reshape(-1) // (64 // ranks)).long()
        order = torch.argsort(home, stable=True)
        sent = torch.bincount(home, minlength=ranks)
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        out, back = rows[order // 8].view(torch.int32), torch.empty((len(home), 3584), dtype=torch.int32)
        received = torch.empty((int(got.sum()), 3584), dtype=torch.int32)
        dist.all_to_all_single(received, out, got.tolist(), sent.tolist())
        dist.all_to_all_single(back, received, sent.tolist(), got.tolist())
        pairs = torch.empty_like(back)
        pairs[order] = back
        values = pairs.view(torch.bfloat16).view(tokens, 8, 7168).float()
        return (values * gates[:, :, None]).sum(1).bfloat16()

    results.put(timed(rounds, round_))
    dist.destroy_process_group()


def with_processes(run, ranks, tokens, rounds):
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results = context.SimpleQueue()
        arguments = (ranks, folder, tokens, rounds, results)
        processes = [context.Process(target=run, args=(rank, *arguments)) for rank in range(ranks)]
        for process in processes:
            process.start()
        times = [results.get() for _ in processes]
        for process in processes:
            process.join()
    return max(times)


def with_program(program, ranks, tokens, rounds):
    shape = veriep.Shape(**config(tokens), ep_world_size=ranks, hccl_buffsize_mb=4000)
    keys = [
        f"--set={key}={shape.config[key]}"
        for key in ("ep_world_size", "moe_expert_num", "bs", "hccl_buffsize_mb")
    ]
    command = [
        program,
        "run",
        "--preset=deepseek-v3-decode",
        *keys,
        "--backend=processes",
        f"--processes={ranks}",
    ]
    command += ["--threads=1", "--no-check", f"--rounds={rounds}", "--format=json"]
    ran = subprocess.run(command, stdout=subprocess.PIPE)
    if ran.returncode != 4:  # What was not compared has no verdict.
        raise subprocess.CalledProcessError(ran.returncode, command)
    told = json.loads(ran.stdout)
    return sum(operator["ms"]["median"] for operator in told["operators"]) / 1000


def main():
    ranks, tokens, rounds = (
        int(given) for given in (sys.argv[1:4] + ["2", "16", "200"][len(sys.argv[1:4]) :])
    )
    systems = {"veriep.Group": lambda: with_processes(with_groups, ranks, tokens, rounds)}
    if len(sys.argv) > 4:
        systems["veriep run"] = lambda: with_program(sys.argv[4], ranks, tokens, rounds)
    try:
        import torch  # noqa: F401
    except ImportError:
        pass
    else:
        systems["gloo"] = lambda: with_processes(with_gloo, ranks, tokens, rounds)
    seen = {name: [] for name in systems}
    for _ in range(TURNS if len(systems) > 1 else 1):
        for name, run in systems.items():
            seen[name].append(run())
    print(
        f"{ranks} ranks, {tokens} tokens each, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    )
    for name, times in seen.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(seen["veriep.Group"], times))
        print(
            f"{name:14}{statistics.median(times) * 1000:9.3f} ms a round; veriep.Group takes {ratio:.2f} of that"
        )


if __name__ == "__main__":
    main()
