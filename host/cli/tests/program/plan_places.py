"""Whether a plan.json gives every byte to one writer: every place of every area of each rank is apart from all others, what lies
inside a slot stays in it, and no two words share a byte. The indices of a place say whose it is: its source, peer or core.
"""
import itertools
import json
import sys

plan = json.load(open(sys.argv[1]))
maps = plan["maps"]
ranks = plan["constants"]["ep_world_size"]
sizes = {"state": plan["constants"]["state_bytes"], "tp_state": plan["constants"]["state_bytes"]}
sizes["window"] = sizes["window_out"] = plan["constants"]["window_bytes"]


def places(map_, rank=None):
    """Offset and end of all places; of the rank's own where it is an index."""
    ranges = []
    for dim in map_["dims"]:
        own = rank - map_["owners"][0] if rank is not None and dim["index"] == "owner" else None
        ranges.append([own] if own is not None else range(dim["extent"]))
    for indices in itertools.product(*ranges):
        at = map_["base"] + sum(dim["stride"] * i for dim, i in zip(map_["dims"], indices))
        yield at, at + map_["bytes"]


def apart(spans, what):
    spans = sorted(spans)
    for (_, end), (start, _) in zip(spans, spans[1:]):
        assert end <= start, f"{what}: a place at {start} begins before another ends at {end}"


def of(rank):
    return [m for m in maps if m["owners"][0] <= rank < m["owners"][1]]


words = 0
for rank in {0, plan["constants"]["shared_expert_rank_num"], ranks - 1}:
    for region in {m["region"] for m in of(rank) if m["is_area"]} - {None}:
        spans = [span for m in of(rank) if m["is_area"] and m["region"] == region for span in places(m, rank)]
        apart(spans, region)
        assert all(0 <= start and end <= sizes.get(region, end) for start, end in spans), region
    for m in of(rank):
        assert all(f["offset"] + f["size"] <= m["bytes"] for f in m["fields"] if f["name"] not in ("data",)), m["name"]
        for outer in (o for o in of(rank) if o["name"] in m["inside"]):
            assert all(0 <= start and end <= outer["bytes"] for start, end in places(m)), m["name"]
names = {m["name"]: m for m in maps}
for event in plan["events"]:
    fields = {field["name"]: field for field in names[event["map"]]["fields"]}
    assert event["field"] is None or fields[event["field"]]["size"] >= 8, event["name"]
    assert all(name in names for name in event["data"]), event["name"]
    words += 1
for inside in {i for m in maps for i in m["inside"]}:
    kinds = [m for m in maps if inside in m["inside"] and m["name"] in ("blocks", "block flags", "count table", "grant table")]
    apart([span for m in kinds for span in places(m)], inside)
assert words
print(len(maps), "maps,", words, "events")
