"""A Mixture-of-Experts layer with expert parallelism on this machine's processors, checked against the dense layer.

Each rank has a share of the experts and tokens of its own. Threads by default; with a number, so many processes:

    python moe_layer.py
    python moe_layer.py 2
"""

import multiprocessing
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import veriep
from ml_dtypes import bfloat16

EXPERTS, K, H, INNER, TOKENS, LAYERS = 8, 2, 1024, 64, 6, 3
CONFIG = dict(moe_expert_num=EXPERTS, k=K, h=H, bs=TOKENS)


def weights(layer, expert):
    """Of an expert: up and down. A model would load them."""
    rng = np.random.default_rng([layer, expert])
    return rng.normal(0, 0.02, (H, INNER)).astype(np.float32), rng.normal(0, 0.1, (INNER, H)).astype(
        np.float32
    )


def expert(x, up, down):
    inner = x.astype(np.float32) @ up
    return (inner / (1 + np.exp(-inner))) @ down


def route(x, layer):
    """The experts of each token and their weights, by a softmax over the best."""
    scores = x.astype(np.float32) @ np.random.default_rng([layer, 99]).normal(0, 0.1, (H, EXPERTS)).astype(
        np.float32
    )
    ids = np.argsort(-scores, axis=1)[:, :K].astype(np.int32)
    best = np.exp(np.take_along_axis(scores, ids, 1))
    return ids, best / best.sum(axis=1, keepdims=True)


def normed(x):
    x = x.astype(np.float32)
    return (x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6)).astype(bfloat16)


class MoeLayer:
    """The experts of this rank, and a group that brings every token to them."""

    def __init__(self, group, layer):
        self.group, self.layer = group, layer
        self.experts = [weights(layer, number) for number in group.experts]

    def __call__(self, x):
        received = self.group.dispatch(x, *route(x, self.layer))
        ends = np.cumsum(received.counts)
        y, start = received.x, 0
        for (up, down), end in zip(self.experts, ends):
            # In place: the rows are this rank's own.
            y[start:end] = expert(y[start:end], up, down)
            start = end
        return self.group.combine(y, received.handle)


def tokens(rank):
    # The last rank has fewer.
    return np.random.default_rng(rank).normal(size=(TOKENS - rank, H)).astype(bfloat16)


def model(group):
    """All layers, one after the other, over one group."""
    x = tokens(group.rank)
    with group:
        for layer in range(LAYERS):
            x = normed(x + MoeLayer(group, layer)(x))
    return x


def dense(x):
    """The same with all experts in one place."""
    for layer in range(LAYERS):
        ids, gates = route(x, layer)
        y = np.zeros(x.shape, np.float32)
        for token, k in np.ndindex(ids.shape):
            row = expert(x[token : token + 1], *weights(layer, ids[token, k])).astype(bfloat16)
            y[token] += gates[token, k].astype(np.float32) * row[0].astype(np.float32)
        x = normed(x + y.astype(bfloat16))
    return x


def check(outs):
    for rank, out in enumerate(outs):
        expected = dense(tokens(rank)).astype(np.float32)
        np.testing.assert_allclose(
            out.astype(np.float32), expected, rtol=0.05, atol=0.05, err_msg=f"rank {rank}"
        )
    print(f"{len(outs)} ranks agree with the dense layer")


def process(rank, world_size, rendezvous, results):
    group = veriep.Group(rank, world_size, rendezvous, **CONFIG)
    results.put((rank, model(group)))


def main():
    if len(sys.argv) < 2:
        groups = veriep.Group.local(ep_world_size=4, **CONFIG)
        with ThreadPoolExecutor(len(groups)) as threads:
            return check(list(threads.map(model, groups)))
    world_size = int(sys.argv[1])
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results = context.SimpleQueue()
        arguments = (world_size, Path(folder) / "group", results)
        ranks = [context.Process(target=process, args=(rank, *arguments)) for rank in range(world_size)]
        for rank in ranks:
            rank.start()
        outs = dict(results.get() for _ in ranks)
        for rank in ranks:
            rank.join()
    check([outs[rank] for rank in range(world_size)])


if __name__ == "__main__":
    main()
