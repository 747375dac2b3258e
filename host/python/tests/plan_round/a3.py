"""A3: records with their flags, blocks, TP, and direct placement."""

import numpy as np

from .base import Round


class Records(Round):
    """A3, into the window and out of it: joint and separate flags, blocks, TP."""

    def fields(self, place, name, ep):
        return {
            f["name"]: place._replace(offset=place.offset + f["offset"])
            for f in self.plan.map(name, ep)["fields"]
        }

    def put_record(self, writer, rank, name, place, row, scale, triple):
        ep = rank // self.group.tp
        parts = {
            "data": row.tobytes(),
            "scale": np.float32(scale).tobytes(),
            "triple": np.int32(triple).tobytes(),
        }
        at = self.fields(place, name, ep)
        if not self.plan.has("blocks") or name != "dispatch records":
            for part, data in parts.items():
                self.memory.put(writer, rank, at[part], data)
            return
        stream = np.zeros(self.plan.constants["record_stream_bytes"], np.uint8)
        for part, data in parts.items():
            start = self.in_stream(at[part].offset - place.offset)
            stream[start : start + len(data)] = np.frombuffer(data, np.uint8)
        size = self.plan.map("blocks", ep)["bytes"]
        for block, start in enumerate(range(0, len(stream), size)):
            self.memory.put(
                writer,
                rank,
                self.plan.at("blocks", ep, inside=place, block=block),
                stream[start : start + size],
            )
            flag = self.plan.at("block flags", ep, inside=place, block=block)
            self.memory.publish(writer, rank, flag, self.plan.word("block flags", "word"))

    def in_stream(self, offset):
        blocks = self.plan.map("blocks", 0)
        stride = blocks["dims"][0]["stride"]
        return offset // stride * blocks["bytes"] + offset % stride

    def get_record(self, rank, name, place):
        ep, at = rank // self.group.tp, self.fields(place, name, rank // self.group.tp)
        kinds = {"data": (np.int8 if self.group.int8 else self.group.dtype, self.group.h)}
        kinds.update(scale=(np.float32, 1), triple=(np.int32, 3))
        if not self.plan.has("blocks") or name != "dispatch records":
            parts = {part: self.memory.get(rank, at[part], *kind) for part, kind in kinds.items()}
        else:
            blocks, length = self.plan.map("blocks", ep), self.plan.constants["record_stream_bytes"]
            stream = []
            for block in range(-(-length // blocks["bytes"])):
                flag = self.plan.at("block flags", ep, inside=place, block=block)
                assert self.memory.take(rank, flag) == self.plan.word("block flags", "word")
                size = min(blocks["bytes"], length - block * blocks["bytes"])
                stream.append(
                    self.memory.get(
                        rank, self.plan.at("blocks", ep, inside=place, block=block), np.uint8, size
                    )
                )
            stream = np.concatenate(stream)
            parts = {}
            for part, (kind, count) in kinds.items():
                start = self.in_stream(at[part].offset - place.offset)
                parts[part] = stream[start : start + count * np.dtype(kind).itemsize].view(kind)
        return parts["data"].copy(), parts["scale"][0], tuple(parts["triple"])

    def slot(self, source, rank, local, slot):
        ep, source = rank // self.group.tp, source // self.group.tp
        return self.plan.at("dispatch records", ep, partition=0, source=source, local_expert=local, slot=slot)

    def status(self, source, rank, local, field):
        ep, source = rank // self.group.tp, source // self.group.tp
        return self.plan.at("dispatch status", ep, field, partition=0, local_expert=local, source=source)

    def dispatch(self):
        plan, memory, tp = self.plan, self.memory, self.group.tp
        separate = self.plan.options["flags"] == "separate"
        for source, rank, local, slot, token, k, expert in self.outgoing():
            row, scale = self.row(source, token, expert)
            place = self.slot(source, rank, local, slot)
            self.put_record(source, rank, "dispatch records", place, row, scale, (source // tp, token, k))
        for (source, rank), of_rank in self.pairs.items():
            for local, pairs in enumerate(of_rank):
                word = plan.word("dispatch status", "status", count=len(pairs))
                memory.publish(source, rank, self.status(source, rank, local, "status"), word)
                if separate:
                    word = plan.word("dispatch status", "token flag")
                    memory.publish(source, rank, self.status(source, rank, local, "token flag"), word)
        out, of_rank = {}, {}
        for rank in self.all:
            rows, counts = [], []
            for local, source in self.incoming(rank):
                word = memory.take(rank, self.status(source, rank, local, "status"))
                counts.append(plan.count("dispatch status", "status", word))
                if separate:
                    word = memory.take(rank, self.status(source, rank, local, "token flag"))
                    assert word == plan.word("dispatch status", "token flag")
                for slot in range(counts[-1]):
                    rows.append(
                        self.get_record(rank, "dispatch records", self.slot(source, rank, local, slot))
                    )
            of_rank[rank] = rows, counts
            out.update(self.received(rank, rows, counts))
        if tp == 2:
            out.update(self.gathered(of_rank))
        memory.end()
        self.rows = {rank: [triple for *_, triple in rows] for rank, (rows, _) in of_rank.items()}
        return out

    def gathered(self, of_rank):
        """Each core hands the peer the rows of its own slots, and says which they are."""
        plan, out = self.plan, {}
        for rank in self.all:
            rows, counts = of_rank[rank]
            for share in (share for share in plan.sends if share["rank"] == rank):
                first, last = (sum(counts[:slot]) for slot in share["slots"])
                for row in range(first, last):
                    place = plan.at("tp records", rank // 2, partition=0, row=row)
                    self.put_record(rank, rank ^ 1, "tp records", place, *rows[row])
                self.tell(rank, "dispatch", share["core"], last - first, first)
        for rank in self.all:
            (rows, counts), (_, of_peer) = of_rank[rank], of_rank[rank ^ 1]
            told = [self.told(rank, "dispatch", core) for core in range(plan.constants["aiv_num"])]
            theirs = {
                row: self.get_record(
                    rank, "tp records", plan.at("tp records", rank // 2, partition=0, row=row)
                )
                for count, first in told
                for row in range(first, first + count)
            }
            rows = rows + [theirs[row] for row in range(len(theirs))]
            out.update(self.received(rank, rows, counts))
            out[f"rank{rank}.ep_recv_counts"] = np.int32(
                np.concatenate([np.cumsum(counts), np.cumsum(of_peer)])
            )
        return out

    def tell(self, rank, kind, core, count, first):
        name = f"tp {kind} slots"
        slot = {
            field: self.plan.at(name, rank // 2, field, partition=0, core=core)
            for field in ("rows", "first row")
        }
        self.memory.put(rank, rank ^ 1, slot["first row"], np.uint32(first))
        self.memory.publish(rank, rank ^ 1, slot["rows"], self.plan.word(name, "rows", count=count))

    def told(self, rank, kind, core):
        name = f"tp {kind} slots"
        slot = {
            field: self.plan.at(name, rank // 2, field, partition=0, core=core)
            for field in ("rows", "first row")
        }
        first = int(self.memory.get(rank, slot["first row"], np.uint32, 1)[0])
        return self.plan.count(name, "rows", self.memory.take(rank, slot["rows"])), first

    def combine(self, returned):
        plan, memory, group = self.plan, self.memory, self.group
        results = {rank: returned[f"rank{rank}.expand_x"] for rank in self.all}
        if group.tp == 2:
            results = self.added(results)
        for rank in self.all:
            for row, (ep, token, k) in zip(results[rank], self.rows[rank]):
                owner, where = ep * group.tp + rank % group.tp, dict(partition=0, token=token, k=k)
                memory.put(rank, owner, plan.at("combine rows", ep, "data", **where), row)
                memory.publish(
                    rank,
                    owner,
                    plan.at("combine status", ep, "word", **where),
                    plan.word("combine status", "word"),
                )
        back = {}
        for rank in self.all:
            for token in range(group.bs[rank // group.tp]):
                for k in range(group.k + group.shared):
                    where = dict(partition=0, token=token, k=k)
                    word = memory.take(rank, plan.at("combine status", rank // group.tp, "word", **where))
                    assert word == plan.word("combine status", "word")
                    place = plan.at("combine rows", rank // group.tp, "data", **where)
                    back[rank, token, k] = memory.get(rank, place, group.dtype, group.h)
        memory.end()
        return self.summed(back)

    def added(self, results):
        """Each rank hands its peer what it returns for the peer's rows; both add."""
        plan, memory, cores, out = self.plan, self.memory, self.plan.constants["aiv_num"], {}
        for rank in self.all:
            theirs = results[rank][len(self.rows[rank]) :]
            for core in range(cores):
                first, last = (len(theirs) * n // cores for n in (core, core + 1))
                for row in range(first, last):
                    memory.put(
                        rank, rank ^ 1, plan.at("tp results", rank // 2, partition=0, row=row), theirs[row]
                    )
                self.tell(rank, "combine", core, last - first, first)
        for rank in self.all:
            out[rank] = results[rank][: len(self.rows[rank])].copy()
            for core in range(cores):
                count, first = self.told(rank, "combine", core)
                for row in range(first, first + count):
                    place = plan.at("tp results", rank // 2, partition=0, row=row)
                    theirs = memory.get(rank, place, self.group.dtype, self.group.h).astype(np.float32)
                    out[rank][row] = self.group.rounded(out[rank][row].astype(np.float32) + theirs)
        return out


class Direct(Round):
    """A3: counts, then grants, then every row once, to its last place; results are read where experts left them."""

    def table(self, rank, source, table, local):
        inside = self.plan.at("direct records", rank, partition=0, source=source)
        return self.plan.at(table, rank, inside=inside, local_expert=local)._replace(end=inside.end)

    def tell(self, writer, rank, field, table=None, values=()):
        for local, value in enumerate(values):
            self.memory.put(writer, rank, self.table(rank, writer, table, local), np.uint32(value))
        word = self.plan.at("direct records", rank, field, partition=0, source=writer)
        self.memory.publish(writer, rank, word, self.plan.word("direct records", field))

    def hear(self, rank, source, field, table=None, entries=0):
        word = self.plan.at("direct records", rank, field, partition=0, source=source)
        assert self.memory.take(rank, word) == self.plan.word("direct records", field)
        return [
            int(self.memory.get(rank, self.table(rank, source, table, local), np.uint32, 1)[0])
            for local in range(entries)
        ]

    def dispatch(self):
        plan, memory, group, out = self.plan, self.memory, self.group, {}
        for (source, rank), of_rank in self.pairs.items():
            self.tell(source, rank, "counts told", "count table", [len(pairs) for pairs in of_rank])
        counts = {}
        for rank in self.all:
            experts = len(group.hosted(rank))
            told = [self.hear(rank, source, "counts told", "count table", experts) for source in self.all]
            counts[rank] = [told[source][local] for local, source in self.incoming(rank)]
            firsts = np.cumsum([0, *counts[rank]])[:-1].reshape(experts, -1)
            for source in self.all:
                self.tell(rank, source, "grants told", "grant table", firsts[:, source])
        self.granted = {
            (source, rank): self.hear(source, rank, "grants told", "grant table", len(group.hosted(rank)))
            for source, rank in self.pairs
        }
        for source, rank, local, slot, token, k, expert in self.outgoing():
            row, scale = self.row(source, token, expert)
            at = self.granted[source, rank][local] + slot
            memory.put(source, rank, plan.at(self.kind("rows"), rank, area=0, row=at), row)
            memory.put(source, rank, plan.at("infos", rank, "scale", area=0, row=at), scale)
            memory.put(
                source, rank, plan.at("infos", rank, "triple", area=0, row=at), np.int32([source, token, k])
            )
        for source, rank in self.pairs:
            self.tell(source, rank, "rows landed")
        for rank in self.all:
            for source in self.all:
                self.hear(rank, source, "rows landed")
            rows = []
            for at in range(sum(counts[rank])):
                kind = np.int8 if group.int8 else group.dtype
                data = memory.get(rank, plan.at(self.kind("rows"), rank, area=0, row=at), kind, group.h)
                scale = memory.get(rank, plan.at("infos", rank, "scale", area=0, row=at), np.float32, 1)[0]
                triple = memory.get(rank, plan.at("infos", rank, "triple", area=0, row=at), np.int32, 3)
                rows.append((data.copy(), scale, tuple(triple)))
            out.update(self.received(rank, rows, counts[rank]))
        memory.end()
        return out

    def kind(self, name):
        """Where experts overwrite rows, results are there, too."""
        return name if self.plan.has(name) else "overwritten rows"

    def combine(self, returned):
        plan, memory, back = self.plan, self.memory, {}
        word = plan.word("results ready", "word")
        for rank in self.all:
            for at, row in enumerate(returned[f"rank{rank}.expand_x"]):
                memory.put(rank, rank, plan.at(self.kind("results"), rank, area=0, row=at), row)
            for owner in self.all:
                memory.publish(
                    rank, owner, plan.at("results ready", owner, "word", partition=0, source=rank), word
                )
        for rank in self.all:
            for source in self.all:
                assert (
                    memory.take(rank, plan.at("results ready", rank, "word", partition=0, source=source))
                    == word
                )
        for source, rank, local, slot, token, k, _ in self.outgoing():
            at = self.granted[source, rank][local] + slot
            place = plan.at(self.kind("results"), rank, area=0, row=at)
            back[source, token, k] = memory.get(rank, place, self.group.dtype, self.group.h)
        memory.end()
        return self.summed(back)
