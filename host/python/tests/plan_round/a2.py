"""A2: the full mesh, and the hierarchy in both stages."""

import numpy as np

from .base import Round


class Windows(Round):
    """A2 full mesh: a window for each peer, carried over by one task."""

    def carry(self, rank, peer, partition, end):
        """What the agent does; to this rank the cores do it."""
        out = self.plan.at("windows out", partition=partition, peer=peer)
        into = self.plan.at("windows in", partition=partition, peer=rank)
        self.memory.put(rank, peer, into, self.memory.get(rank, out, np.uint8, end.offset + 8 - out.offset))

    def put(self, rank, out, name, data, **index):
        place = self.plan.at(name, inside=out, **index)
        self.memory.put(rank, rank, place, data)
        return place

    def flag(self, rank, place, name, field):
        word = np.uint32(self.plan.word(name, field))
        self.memory.put(rank, rank, place, word)

    def seen(self, rank, place, name, field):
        """A flag is the low half of its word."""
        seen = self.memory.get(rank, place, np.uint32, 1)
        assert seen[0] == self.plan.word(name, field)
        seen[:] = 0

    def dispatch(self):
        plan, memory, group, out = self.plan, self.memory, self.group, {}
        for (source, rank), of_rank in self.pairs.items():
            window, position = plan.at("windows out", partition=0, peer=rank), 0
            for local, (expert, pairs) in enumerate(zip(group.hosted(rank), of_rank)):
                self.put(source, window, "window counts", np.uint32(len(pairs)), local_expert=local)
                for token, _ in pairs:
                    row, scale = self.row(source, token, expert)
                    place = self.put(source, window, "window records", row, position=position)
                    if group.int8:
                        memory.put(
                            source,
                            source,
                            plan.at("window records", field="scale", inside=window, position=position),
                            scale,
                        )
                    position += 1
            self.flag(
                source, plan.at("windows out", field="flag 1", partition=0, peer=rank), "windows in", "flag 1"
            )
            place = plan.at("dispatch flags", inside=window, rows=position)
            self.flag(source, place, "dispatch flags", None)
            self.carry(source, rank, 0, place)
        for rank in self.all:
            came = {}
            for source in self.all:
                window, position = plan.at("windows in", partition=0, peer=source), 0
                self.seen(
                    rank,
                    plan.at("windows in", field="flag 1", partition=0, peer=source),
                    "windows in",
                    "flag 1",
                )
                for local in range(group.local):
                    place = plan.at("window counts", inside=window, local_expert=local)
                    count = int(memory.get(rank, place, np.uint32, 1)[0])
                    came[local, source] = [self.record(rank, window, position + n) for n in range(count)]
                    position += count
                self.seen(
                    rank, plan.at("dispatch flags", inside=window, rows=position), "dispatch flags", None
                )
            order = [came[key] for key in self.incoming(rank)]
            out.update(
                self.received(rank, [row for rows in order for row in rows], [len(rows) for rows in order])
            )
        memory.end()
        return out

    def record(self, rank, window, position):
        place = self.plan.at("window records", inside=window, position=position)
        kind = np.int8 if self.group.int8 else self.group.dtype
        data = self.memory.get(rank, place, kind, self.group.h).copy()
        if not self.group.int8:
            return data, np.float32(0)
        place = self.plan.at("window records", field="scale", inside=window, position=position)
        return data, self.memory.get(rank, place, np.float32, 1)[0]

    def combine(self, returned):
        plan, group, back = self.plan, self.group, {}
        for rank in self.all:
            firsts = dict(
                zip(
                    self.incoming(rank),
                    np.cumsum([0] + [len(self.pairs[s, rank][e]) for e, s in self.incoming(rank)]),
                )
            )
            for source in self.all:
                window, position = plan.at("windows out", partition=1, peer=source), 0
                for local, pairs in enumerate(self.pairs[source, rank]):
                    for n in range(len(pairs)):
                        row = returned[f"rank{rank}.expand_x"][firsts[local, source] + n]
                        self.put(rank, window, "window rows", row, position=position)
                        position += 1
                place = plan.at("combine flags", inside=window, rows=position)
                self.flag(rank, place, "combine flags", None)
                self.carry(rank, source, 1, place)
        for source in self.all:
            for rank in self.all:
                window = plan.at("windows in", partition=1, peer=rank)
                sent = [pair for pairs in self.pairs[source, rank] for pair in pairs]
                self.seen(
                    source, plan.at("combine flags", inside=window, rows=len(sent)), "combine flags", None
                )
                for position, (token, k) in enumerate(sent):
                    place = plan.at("window rows", inside=window, position=position)
                    back[source, token, k] = self.memory.get(source, place, group.dtype, group.h)
        self.memory.end()
        return self.summed(back)


class Servers(Round):
    """A2 hierarchy: a token crosses to a server once, and its sum comes back once. Flags are epochs, which no rank clears."""

    NEAR = 8

    def near(self, rank):
        return range(rank // self.NEAR * self.NEAR, (rank // self.NEAR + 1) * self.NEAR)

    def namesake(self, rank, server):
        return server * self.NEAR + rank % self.NEAR

    def enter(self, epoch):
        for rank in self.all:
            for near in self.near(rank):
                place = self.plan.at("entered", near, "word", near=rank % self.NEAR)
                self.memory.publish(rank, near, place, self.plan.word("entered", "word", number=epoch))

    def stream(self, rank, server, epoch, kind, records):
        """Sends records, dictionaries of bytes by fields, to the namesake on a server."""
        plan, memory, to, partition = self.plan, self.memory, self.namesake(rank, server), epoch - 1
        if plan.has("relay records"):
            places = [
                plan.at("relay records", to, partition=partition, server=rank // self.NEAR, record=n)
                for n in range(len(records))
            ]
            writes, end = to, plan.at("end flags", to, "word", partition=partition, server=rank // self.NEAR)
            mark = plan.word("end flags", "word", epoch=epoch, count=len(records))
        else:
            out = plan.at("streams out", partition=partition, server=server)
            places = [plan.at(f"{kind} records", inside=out, record=n) for n in range(len(records))]
            writes, end = rank, plan.at("streams out", field="end flag", partition=partition, server=server)
            mark = plan.word("streams in", "end flag", epoch=epoch, count=len(records))
        for place, record in zip(places, records):
            for offset, data in record.items():
                memory.put(rank, writes, place._replace(offset=place.offset + offset), data)
        memory.publish(rank, writes, end, mark)
        if writes == rank:
            first = min([place.offset for place in places], default=end.offset)
            into = plan.at("streams in", partition=partition, server=rank // self.NEAR)
            data = memory.get(rank, end._replace(offset=first), np.uint8, end.offset + 8 - first)
            memory.put(rank, to, into._replace(offset=into.offset + first - out.offset), data)

    def records(self, rank, server, epoch, kind):
        """The places of what came from the namesake on a server."""
        plan, partition = self.plan, epoch - 1
        if plan.has("relay records"):
            end, name, field = (
                plan.at("end flags", rank, "word", partition=partition, server=server),
                "end flags",
                "word",
            )
        else:
            end = plan.at("streams in", field="end flag", partition=partition, server=server)
            name, field = "streams in", "end flag"
        word = int(self.memory.get(rank, end, np.uint64, 1)[0])
        count = next(
            n for n in range(self.group.bs[0] + 1) if word == plan.word(name, field, epoch=epoch, count=n)
        )
        for record in range(count):
            if plan.has("relay records"):
                place = plan.at("relay records", rank, partition=partition, server=server, record=record)
            else:
                place = plan.at(
                    f"{kind} records",
                    inside=plan.at("streams in", partition=partition, server=server),
                    record=record,
                )
            front = self.memory.get(rank, place, np.uint64, 1)
            assert front[0] == epoch
            yield place

    def layout(self):
        """Offsets in a token's record; of a sum's, front and row are the same."""
        name = "relay records" if self.plan.has("relay records") else "token records"
        return {field["name"]: field["offset"] for field in self.plan.map(name, 0)["fields"]}

    def dispatch(self):
        plan, memory, group, case, out = self.plan, self.memory, self.group, self.case, {}
        at, servers = self.layout(), group.ranks // self.NEAR
        self.enter(1)
        forwarded = {}
        for rank in self.all:
            ids = case[f"rank{rank}.expert_ids"]
            for server in range(servers):
                tokens = [t for t in range(len(ids)) if server in group.server(ids[t])]
                if server == rank // self.NEAR:
                    for token in tokens:
                        row, scale = self.row(rank, token, 0)
                        self.forward(
                            rank,
                            rank,
                            token,
                            row,
                            scale,
                            ids[token],
                            case[f"rank{rank}.expert_scales"][token],
                            forwarded,
                        )
                    continue
                records = []
                for token in tokens:
                    row, scale = self.row(rank, token, 0)
                    front = (
                        np.uint64(1).tobytes()
                        + np.uint32([token, np.sum(group.server(ids[token]) == server)]).tobytes()
                    )
                    weights = case[f"rank{rank}.expert_scales"][token]
                    records.append(
                        {
                            0: front,
                            at["data"]: row,
                            at["scale"]: scale,
                            at["ids"]: ids[token],
                            at["weights"]: weights,
                        }
                    )
                self.stream(rank, server, 1, "token", records)
        for relay in self.all:
            for server in set(range(servers)) - {relay // self.NEAR}:
                for place in self.records(relay, server, 1, "token"):
                    token = int(self.part(relay, place, "front flag", np.uint32, 4)[2])
                    row = self.part(relay, place, "data", np.int8 if group.int8 else group.dtype, group.h)
                    ids, weights = (
                        self.part(relay, place, "ids", np.int32, group.k),
                        self.part(relay, place, "weights", np.float32, group.k),
                    )
                    source = self.namesake(relay, server)
                    self.forward(
                        relay,
                        source,
                        token,
                        row,
                        self.part(relay, place, "scale", np.float32, 1)[0],
                        ids,
                        weights,
                        forwarded,
                    )
        for source in self.all:
            for rank in self.all:
                relay = self.namesake(source, rank // self.NEAR)
                for local in range(group.local):
                    mark = plan.word("counts", "word", epoch=1, count=forwarded.get((rank, local, source), 0))
                    place = plan.at("counts", rank, "word", partition=0, local_expert=local, source=source)
                    memory.publish(relay, rank, place, mark)
        self.rows = {}
        for rank in self.all:
            rows, counts, weights = [], [], []
            for local, source in self.incoming(rank):
                place = plan.at("counts", rank, "word", partition=0, local_expert=local, source=source)
                word = int(memory.get(rank, place, np.uint64, 1)[0])
                counts.append(
                    next(
                        n
                        for n in range(group.bs[0] + 1)
                        if word == plan.word("counts", "word", epoch=1, count=n)
                    )
                )
                for slot in range(counts[-1]):
                    where = dict(local_expert=local, source=source, slot=slot)
                    kind = np.int8 if group.int8 else group.dtype
                    row = memory.get(rank, plan.at("near slots", rank, "data", **where), kind, group.h).copy()
                    tail = memory.get(rank, plan.at("near slots", rank, "tail", **where), np.uint32, 5).copy()
                    rows.append((row, tail[:1].view(np.float32)[0], tuple(tail[1:4].view(np.int32))))
                    weights.append(tail[4:].view(np.float32)[0])
            self.rows[rank] = [(*triple, weight) for (*_, triple), weight in zip(rows, weights)]
            out.update(self.received(rank, rows, counts))
            out[f"rank{rank}.expand_scales"] = np.float32(weights)
        memory.end()
        return out

    def part(self, rank, record, field, dtype, count):
        place = record._replace(offset=record.offset + self.layout()[field])
        return self.memory.get(rank, place, dtype, count)

    def forward(self, relay, source, token, row, scale, ids, weights, forwarded):
        """What a relay, or a rank of its own tokens, puts on the ranks of its server."""
        here = np.flatnonzero(self.group.server(ids) == relay // self.NEAR)
        for position, k in enumerate(here):
            rank, local = divmod(int(ids[k]), self.group.local)
            slot = forwarded.get((rank, local, source), 0)
            forwarded[rank, local, source] = slot + 1
            where = dict(local_expert=local, source=source, slot=slot)
            tail = (
                np.float32([scale]).tobytes()
                + np.int32([source, token, len(here) << 16 | position]).tobytes()
            )
            self.memory.put(relay, rank, self.plan.at("near slots", rank, "data", **where), row)
            self.memory.put(
                relay, rank, self.plan.at("near slots", rank, "tail", **where), tail + weights[k].tobytes()
            )

    def combine(self, returned):
        plan, memory, group, out = self.plan, self.memory, self.group, {}
        at, servers = self.layout(), group.ranks // self.NEAR
        self.enter(2)
        for rank in self.all:
            for row, (source, token, part, weight) in zip(returned[f"rank{rank}.expand_x"], self.rows[rank]):
                relay = self.namesake(source, rank // self.NEAR)
                where = dict(server=source // self.NEAR, token=token, position=part & 0xFFFF)
                memory.put(rank, relay, plan.at("returned slots", relay, "data", **where), row)
                memory.put(
                    rank, relay, plan.at("returned slots", relay, "weight", **where), np.float32(weight)
                )
                mark = plan.word("returned slots", "flag", epoch=2, count=part >> 16)
                memory.publish(rank, relay, plan.at("returned slots", relay, "flag", **where), mark)
            for near in self.near(rank):
                for core in range(plan.constants["aiv_num"]):
                    place = plan.at("rows done", near, "word", near=rank % self.NEAR, core=core)
                    memory.publish(rank, near, place, plan.word("rows done", "word", number=2))
        own = {}
        for relay in self.all:
            for server in range(servers):
                records = []
                for token in range(group.bs[0]):
                    partial = self.partial(relay, server, token)
                    if partial is not None and server == relay // self.NEAR:
                        own[relay, token] = partial
                    elif partial is not None:
                        front = np.uint64(2).tobytes() + np.uint32([token, 0]).tobytes()
                        records.append({0: front, at["data"]: partial})
                if server != relay // self.NEAR:
                    self.stream(relay, server, 2, "sum", records)
        for rank in self.all:
            parts = {
                (rank // self.NEAR, token): own[rank, token]
                for token in range(group.bs[0])
                if (rank, token) in own
            }
            for server in set(range(servers)) - {rank // self.NEAR}:
                for place in self.records(rank, server, 2, "sum"):
                    token = int(memory.get(rank, place, np.uint32, 4)[2])
                    data = place._replace(offset=place.offset + at["data"])
                    parts[server, token] = memory.get(rank, data, group.dtype, group.h)
            sums = np.zeros((group.bs[0], group.h), np.float32)
            for (_, token), partial in sorted(parts.items(), key=lambda part: part[0]):
                sums[token] += partial.astype(np.float32)
            out[f"rank{rank}.x_out"] = group.rounded(sums)
        memory.end()
        return out

    def partial(self, relay, server, token):
        """The sum of what has come back of a token, if anything has: how many rows it has stands beside each flag."""
        plan, memory, group = self.plan, self.memory, self.group
        sum_, pairs, position = np.zeros(group.h, np.float32), None, 0
        while pairs is None or position < pairs:
            where = dict(server=server, token=token, position=position)
            word = int(memory.get(relay, plan.at("returned slots", relay, "flag", **where), np.uint64, 1)[0])
            if pairs is None:
                marks = {
                    plan.word("returned slots", "flag", epoch=2, count=n): n for n in range(1, group.k + 1)
                }
                if word not in marks:
                    return None
                pairs = marks[word]
            assert word == plan.word("returned slots", "flag", epoch=2, count=pairs)
            weight = memory.get(relay, plan.at("returned slots", relay, "weight", **where), np.float32, 1)[0]
            row = memory.get(relay, plan.at("returned slots", relay, "data", **where), group.dtype, group.h)
            sum_ += weight * row.astype(np.float32)
            position += 1
        return group.rounded(sum_)
