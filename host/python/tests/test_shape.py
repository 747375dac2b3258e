"""Numbers at specialisation time. Times are of the processor: others may compete for it."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
import veriep

KINDS = [
    dict(preset="tiny"),
    dict(preset="tiny", flags="separate", port_offset=1024),
    dict(preset="tiny", comm_alg="fullmesh_v2", quant_mode=2),
    dict(preset="tiny", receive="direct"),
    dict(preset="tiny", receive="direct", experts="overwrite"),
    dict(preset="tiny", ep_world_size=3, shared_expert_rank_num=1),
    dict(preset="a2-hier-16", bs=2, stage=2),
]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_exported_is_what_the_shape_says(kind, tmp_path):
    shape = veriep.Shape(**kind)
    files = shape.export(tmp_path, prefix="p", ranks=[1])
    assert [path.name for path in files] == ["plan.json", "p_plan.h", "p_check.c"]
    plan = json.loads(files[0].read_text())
    assert plan["fingerprint"] == shape.fingerprint and plan["constants"] == shape.constants
    assert [m.name for m in shape.maps] == [m["name"] for m in plan["maps"]]
    assert plan["sends"] == [shape.sends(1, core) for core in range(shape.constants["aiv_num"])]
    for m in plan["maps"]:
        ends = {dim["index"]: dim["extent"] - 1 for dim in m["dims"]}
        must = m["base"] + sum(dim["stride"] * ends[dim["index"]] for dim in m["dims"])
        assert shape.offset(m["name"], rank=m["owners"][1] - 1, **ends) == must
    program = tmp_path / "check"
    subprocess.run(["cc", "-o", program, files[2]], check=True)
    assert b" 0 wrong" in subprocess.run([program], check=True, capture_output=True).stdout


def test_offsets_broadcast_and_are_held_to_their_extents():
    shape = veriep.Shape(preset="tiny")
    source, slot = np.arange(2)[:, None], np.arange(4)
    at = shape.offset("dispatch records", rank=1, partition=1, source=source, local_expert=0, slot=slot)
    assert at.shape == (2, 4) and at.dtype == np.int64
    one = shape.offset("dispatch records", rank=1, partition=1, source=1, local_expert=0, slot=3)
    assert isinstance(one, int) and one == at[1, 3]
    assert shape.offset("combine status", partition=0, token=0, k=1, field="word") == at.dtype.type(65568)
    with pytest.raises(IndexError, match=r"slot = 4: must be in \[0, 4\)"):
        shape.offset("dispatch records", rank=1, partition=1, source=1, local_expert=0, slot=slot + 1)
    with pytest.raises(IndexError, match="source = -1"):
        shape.offset("dispatch records", rank=1, partition=1, source=-1, local_expert=0, slot=0)
    with pytest.raises(TypeError, match="has indices"):
        shape.offset("dispatch records", rank=1, partition=1)
    with pytest.raises(TypeError, match="must be integers"):
        shape.offset("combine status", partition=0.5, token=0, k=0)
    with pytest.raises(KeyError, match="no such map"):
        shape.offset("records")
    with pytest.raises(KeyError, match="has fields"):
        shape.offset("combine status", partition=0, token=0, k=0, field="flag")
    with pytest.raises(IndexError, match="no such core"):
        shape.sends(0, 8)
    with pytest.raises(IndexError, match="no such core"):
        shape.sends(-1, 0)


def test_where_ranks_differ_the_rank_must_be_told():
    shape = veriep.Shape(preset="tiny", ep_world_size=3, shared_expert_rank_num=1)
    with pytest.raises(KeyError, match="rank must be given"):
        shape.map("dispatch records")
    assert shape.map("dispatch records", rank=0).owner == "shared"


def test_export_refuses_what_is_no_name_and_no_rank(tmp_path):
    shape = veriep.Shape(preset="tiny")
    with pytest.raises(ValueError, match="must be a letter"):
        shape.export(tmp_path, prefix="9")
    with pytest.raises(IndexError, match="rank 2"):
        shape.export(tmp_path, ranks=[2])
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        shape.export(tmp_path / "file")


def test_importing_takes_no_numpy():
    code = "import sys, veriep; veriep.Shape(preset='tiny').maps; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_shape_with_its_plan_takes_a_millisecond_at_most():
    def once(preset):
        start = time.process_time()
        shape = veriep.Shape(preset=preset)
        assert shape.maps and shape.events
        return time.process_time() - start

    for preset in ("tiny", "deepseek-v3-decode", "a3-288", "a2-hier-64"):
        assert min(once(preset) for _ in range(50)) < 1e-3, preset


def test_importing_takes_fifty_milliseconds_at_most():
    def once(module):
        code = f"import time; start = time.process_time(); import {module}; print(time.process_time() - start)"
        return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)

    # On a slow processor as much longer as what it is used with takes.
    limit = max(0.05, min(once("numpy") for _ in range(5)) / 3)
    assert min(once("veriep") for _ in range(10)) < limit
