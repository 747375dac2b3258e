"""What is exported is enough: programs made of `plan.json` alone do what the reference says, and no core writes where
another does."""

import json
from pathlib import Path

import jsonschema
import plan_round
import pytest
import reference
import veriep

A3 = dict(ep_world_size=5, shared_expert_rank_num=1, moe_expert_num=8, k=3, h=1056, bs=5, aiv_num=3)
PAIRS = dict(release="9.1.0", ep_world_size=3, tp_world_size=2, moe_expert_num=3, k=2, h=1024, bs=4, aiv_num=2)
MESH = dict(product="a2", ep_world_size=16, moe_expert_num=32, k=4, h=64, bs=3, aiv_num=2)
SERVERS = dict(MESH, comm_alg="hierarchy", ep_world_size=24, moe_expert_num=48)

GROUPS = {
    "joint": A3,
    "slots of a line": dict(A3, slots=64),
    "separate": dict(A3, flags="separate", port_offset=1024),
    "blocks": dict(A3, comm_alg="fullmesh_v2"),
    "in place": dict(A3, receive="in-place"),
    "direct": dict(A3, receive="direct"),
    "tp": PAIRS,
    "mesh": MESH,
    "servers, stage 3": SERVERS,
    "servers, stage 2": dict(SERVERS, stage=2),
}
SCHEMA = Path(__file__).parents[3] / "docs/generate/plan.schema.json"
OPTIONS = ("flags", "port_offset", "receive", "slots", "stage")


def round_of(group, folder, **config):
    """The plan as it is exported, a case, and the configuration of both."""
    shape = veriep.Shape(**group, **config)
    plan = json.loads(shape.export(folder)[0].read_text())
    config = {key: value for key, value in {**group, **config}.items() if key not in OPTIONS}
    case = reference.make_case(reference.Group(plan["config"]), seed=3)
    return plan, case, config


@pytest.mark.parametrize("quant_mode", [0, 2])
@pytest.mark.parametrize("name", GROUPS)
def test_a_round_made_of_the_plan_alone_is_the_oracles(name, quant_mode, tmp_path):
    plan, case, config = round_of(GROUPS[name], tmp_path, quant_mode=quant_mode)
    round_ = plan_round.of(plan, case)
    dispatched = round_.dispatch()
    expected = veriep.reference(case, **config)
    assert veriep.compare({key: array for key, array in expected.items() if key in dispatched}, dispatched), (
        "what travels"
    )
    assert {key.split(".")[1] for key in dispatched} >= {"expand_x", "ep_recv_counts"}
    returned = reference.experts(round_.group, case, dispatched)
    combined = round_.combine(returned)
    assert combined.keys() == {key for key in expected if key.endswith("x_out")}
    assert veriep.compare(expected, combined, tensors=["x_out"])


def strict(schema):
    """The schema without room for names that may be added: then it must know all that there are."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return {**closed, **{key: strict(value) for key, value in schema.items()}}


@pytest.mark.parametrize("name", GROUPS)
def test_a_plan_is_what_its_schema_says(name, tmp_path):
    plan = json.loads(veriep.Shape(**GROUPS[name]).export(tmp_path)[0].read_text())
    schema = jsonschema.Draft202012Validator(strict(json.loads(SCHEMA.read_text())))
    schema.validate(plan)
    plan["maps"][0]["dims"][0]["stride"] = 0.5
    assert not schema.is_valid(plan)


@pytest.mark.parametrize(
    "name, map_name, index, change",
    [
        ("joint", "dispatch records", "slot", lambda stride: stride - 512),
        ("joint", "dispatch status", "source", lambda stride: 0),
        ("blocks", "block flags", "block", lambda stride: 0),
        ("direct", "rows", "row", lambda stride: stride // 2),
        ("mesh", "windows in", "peer", lambda stride: 0),
        ("servers, stage 3", "near slots", "source", lambda stride: 0),
    ],
)
def test_a_wrong_stride_is_seen(name, map_name, index, change, tmp_path):
    plan, case, config = round_of(GROUPS[name], tmp_path)
    for found in (m for m in plan["maps"] if m["name"] == map_name):
        for dim in (dim for dim in found["dims"] if dim["index"] == index):
            dim["stride"] = change(dim["stride"])
    round_ = plan_round.of(plan, case)
    with pytest.raises(AssertionError):
        dispatched = round_.dispatch()
        expected = veriep.reference_dispatch(case, **config)
        assert veriep.compare(
            {key: array for key, array in expected.items() if key in dispatched}, dispatched
        )
