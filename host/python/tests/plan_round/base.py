"""What rounds of all protocols share: all ranks send, then all receive. `reference` knows the operators, `Plan` where
rows and words go.

`Memory` notes every write: it must stay in the place that it is for, and no two ranks may write a byte in one operator.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import reference


class Place(NamedTuple):
    region: str
    offset: int
    end: int
    """Where the place ends that it is in."""


class Plan:
    """The maps, words and constants of a `plan.json`."""

    def __init__(self, plan):
        self.maps, self.events, self.constants = plan["maps"], plan["events"], plan["constants"]
        self.config, self.options, self.sends = plan["config"], plan["options"], plan["sends"]

    def map(self, name, ep_rank):
        return next(m for m in self.maps if m["name"] == name and m["owners"][0] <= ep_rank < m["owners"][1])

    def has(self, name):
        return any(m["name"] == name for m in self.maps)

    def at(self, name, ep_rank=0, field=None, inside=None, **indices):
        """The place in the memory of an EP rank; in that of any, if all have the same."""
        found = self.map(name, ep_rank)
        indices.setdefault("owner", ep_rank - found["owners"][0])
        for dim in found["dims"]:
            assert 0 <= indices[dim["index"]] < dim["extent"], (name, dim, indices)
        at = found["base"] + sum(dim["stride"] * int(indices[dim["index"]]) for dim in found["dims"])
        if inside is not None:
            at += inside.offset
        end = at + found["bytes"]
        if field is not None:
            at += next(f["offset"] for f in found["fields"] if f["name"] == field)
        return Place(inside.region if inside is not None else found["region"], at, end)

    def word(self, name, field, **variables):
        """A flag word of that map, with these variables."""
        value = next(e for e in self.events if (e["map"], e["field"]) == (name, field))["value"]
        shifts = {term["variable"]: term["shift"] for term in value["terms"]}
        assert shifts.keys() == variables.keys(), (name, field)
        return int(value["constant"], 16) | sum(
            int(n) << shifts[variable] for variable, n in variables.items()
        )

    def count(self, name, field, word):
        """The number in a word that holds one, which must have been written."""
        event = next(e for e in self.events if (e["map"], e["field"]) == (name, field))
        (term,) = event["value"]["terms"]
        count = word >> term["shift"]
        assert word == self.word(name, field, **{term["variable"]: count}), (name, field, hex(word))
        return count


class Memory:
    """What ranks share, and who has written where since the operator began."""

    def __init__(self, plan):
        self.plan, self.bytes, self.written = plan, {}, {}

    def _of(self, rank, region):
        if (rank, region) not in self.bytes:
            ends = [
                m["base"] + m["bytes"] + sum(max(dim["stride"], 0) * (dim["extent"] - 1) for dim in m["dims"])
                for m in self.plan.maps
                if m["region"] == region
            ]
            self.bytes[rank, region] = np.zeros(max(ends), np.uint8)
        return self.bytes[rank, region]

    def put(self, writer, rank, place, data):
        data = np.frombuffer(
            data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes(), np.uint8
        )
        end = place.offset + len(data)
        assert 0 <= place.offset and end <= place.end, f"{place}: {len(data)} bytes"
        self._of(rank, place.region)[place.offset : end] = data
        self.written.setdefault((rank, place.region), []).append((place.offset, end, writer))

    def get(self, rank, place, dtype, count):
        dtype = np.dtype(dtype)
        return self._of(rank, place.region)[place.offset :][: count * dtype.itemsize].view(dtype)

    def publish(self, writer, rank, place, word):
        self.put(writer, rank, place, np.uint64(word))

    def take(self, rank, place):
        """A word, which is cleared."""
        word = int(self.get(rank, place, np.uint64, 1)[0])
        self._of(rank, place.region)[place.offset :][:8] = 0
        return word

    def end(self):
        """Ends an operator: no byte has two writers."""
        for (rank, region), writes in self.written.items():
            writes.sort()
            for (_, end, writer), (start, _, other) in zip(writes, writes[1:]):
                assert end <= start or writer == other, (
                    f"{writer} and {other} write {region}+{start} of rank {rank}"
                )
        self.written.clear()


class Round:
    """A dispatch and its combine on all ranks."""

    def __init__(self, plan, case):
        self.plan, self.case = Plan(plan), case
        self.group, self.memory = reference.Group(self.plan.config), Memory(self.plan)
        group = self.group
        self.all = range(group.ranks * group.tp)
        # What is on the way: the (token, k, expert) of each source on each rank, by expert and slot.
        self.pairs = {
            (source, rank): [
                reference.pairs(group, case, source, rank // group.tp, expert)
                for expert in group.hosted(rank // group.tp)
            ]
            for source in self.all
            for rank in self.all
            if source % group.tp == rank % group.tp
        }

    def row(self, source, token, expert):
        """A token as it travels, and its scale."""
        row = self.case[f"rank{source}.x"][token]
        if not self.group.int8:
            return row, np.float32(0)
        smooth = self.case["scales"][expert] if "scales" in self.case else np.float32(1)
        return reference.quantised(self.group, row, smooth)

    def outgoing(self):
        """Every row: source, receiver, local expert, slot, token, k, expert."""
        for (source, rank), of_rank in self.pairs.items():
            for local, (expert, pairs) in enumerate(zip(self.group.hosted(rank // self.group.tp), of_rank)):
                for slot, (token, k) in enumerate(pairs):
                    yield source, rank, local, slot, token, k, expert

    def incoming(self, rank):
        """What a rank looks at, in order: local expert and source."""
        for local in range(len(self.group.hosted(rank // self.group.tp))):
            for ep in range(self.group.ranks):
                yield local, ep * self.group.tp + rank % self.group.tp

    def received(self, rank, rows, counts):
        """The outputs of dispatch that travel: rows are pairs of data and scale, and maybe a triple."""
        kind = np.int8 if self.group.int8 else self.group.dtype
        out = {"expand_x": np.array([row[0] for row in rows], kind).reshape(len(rows), self.group.h)}
        if self.group.int8:
            out["dynamic_scales"] = np.float32([row[1] for row in rows])
        if not self.group.by_counts:
            out["assist_info_for_combine"] = np.int32([row[2] for row in rows]).reshape(len(rows), 3)
        out["ep_recv_counts"] = np.int32(np.cumsum(counts))
        return {f"rank{rank}.{name}": array for name, array in out.items()}

    def summed(self, back):
        """x_out of the rows that came back to each rank, by token and k."""
        group, out = self.group, {}
        for rank in self.all:
            ids, weights = self.case[f"rank{rank}.expert_ids"], self.case[f"rank{rank}.expert_scales"]
            sums = np.zeros((len(ids), group.h), np.float32)
            for token in range(len(ids)):
                for k in range(group.k):
                    sums[token] += weights[token, k] * back[rank, token, k].astype(np.float32)
                for shared in range(group.k, group.k + group.shared):
                    sums[token] += back[rank, token, shared].astype(np.float32)
            out[f"rank{rank}.x_out"] = group.rounded(sums)
        return out
