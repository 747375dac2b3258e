"""What is refused, and what is said of it."""

import pickle

import numpy as np
import pytest
import reference
import veriep

TINY = dict(preset="tiny")


def test_a_violation_has_parameter_and_hint():
    with pytest.raises(veriep.Violation) as raised:
        veriep.Shape(ep_world_size=144, moe_expert_num=288, shared_expert_rank_num=16)
    violation = raised.value
    assert (
        violation.parameter == "moe_expert_num" and "ep_world_size - shared_expert_rank_num" in violation.rule
    )
    assert violation.hint.startswith("moe_expert_num = 384 or 256")
    cure = violation.cures[0]
    assert (cure["parameter"], cure["value"]) == ("moe_expert_num", 384)
    assert isinstance(violation, ValueError) and str(pickle.loads(pickle.dumps(violation))) == str(violation)


def test_a_cure_is_one():
    config = dict(ep_world_size=16, moe_expert_num=60, bs=512, k=17, h=1000)
    broken = veriep.check(**config)
    assert {violation.parameter for violation in broken} >= {"moe_expert_num", "k", "h"}
    for violation in broken:
        cure = violation.cures[0]
        left = veriep.check(**{**config, cure["parameter"]: cure["value"]})
        assert violation.parameter not in {other.parameter for other in left}


def test_all_violations_are_told_at_once():
    with pytest.raises(veriep.Violation) as raised:
        veriep.Shape(preset="tiny", k=17, bs=0)
    assert [violation.parameter for violation in raised.value.violations] == ["k", "bs"]
    assert len(str(raised.value).splitlines()) == 2


@pytest.mark.parametrize(
    "config, said",
    [
        (dict(kk=4), "did you mean `k`"),
        (dict(k="8"), "must be an integer"),
        (dict(k=8.0), "must be an integer"),
        (dict(k=True), "must be an integer"),
        (dict(k=None), "must be an integer"),
        (dict(k=1 << 63), "must be an integer"),
        (dict(k=8, K=8), "two spellings"),
        (dict(bs=[1, "2"]), "must be an integer"),
    ],
)
def test_a_keyword_that_is_none_is_a_type_error(config, said):
    with pytest.raises(TypeError, match=said):
        veriep.Shape(**config)


@pytest.mark.parametrize(
    "options, said",
    [
        (dict(preset="tinny"), "must be one of deepseek-v3-decode"),
        (dict(receive="cpoy"), 'one of "copy", "in-place", "direct"'),
        (dict(flags="both"), '"joint" or "separate"'),
        (dict(stage=4), "must be None, 2 or 3"),
        (dict(stage=2), "only comm_alg = hierarchy"),
    ],
)
def test_an_option_that_is_none_is_a_value_error(options, said):
    with pytest.raises(ValueError, match=said) as raised:
        veriep.Shape(**{"preset": "tiny", **options})
    assert not isinstance(raised.value, veriep.Violation)


def test_numbers_of_numpy_are_numbers():
    shape = veriep.Shape(
        preset="tiny", k=np.int64(1), bs=np.array([3, 4]), global_bs=8, norm_eps=np.float32(1e-5)
    )
    assert (shape.config["k"], shape.config["bs"]) == (1, [3, 4])


def test_a_rank_without_tokens_runs_here_and_is_no_batch_of_the_operators():
    idle = {**TINY, "bs": [4, 0], "global_bs": 8}
    assert [violation.parameter for violation in veriep.check(**idle)] == ["bs"]
    assert veriep.Shape(**idle).config["bs"] == [4, 0]
    case = reference.make_case(reference.Group(veriep.Shape(**idle).config))
    assert [violation.parameter for violation in veriep.check(case, **idle)] == ["bs"]


def test_a_wrong_tensor_is_a_violation_of_its_name():
    group = reference.Group(veriep.Shape(**TINY).config)
    good = reference.make_case(group)
    assert veriep.check(good, **TINY) == []
    broken = dict(good)
    broken["rank1.expert_ids"] = good["rank1.expert_ids"].astype(np.int64)
    broken["rank0.expert_ids"] = np.full_like(good["rank0.expert_ids"], 9)
    broken["rank0.z"] = np.zeros(1, np.float32)
    del broken["rank1.x"]
    told = {violation.parameter: violation.message for violation in veriep.check(broken, **TINY)}
    assert told.keys() >= {"rank1.expert_ids", "rank0.z", "rank1.x"}
    assert told["rank1.x"] == "rank1.x: missing: must be BF16 [4, 1024]"
    with pytest.raises(veriep.Violation, match="rank1.expert_ids: dtype I64: must be I32"):
        veriep.reference(broken, **TINY)
    with pytest.raises(veriep.Violation, match="rank0.expand_x: missing"):
        veriep.reference_combine(good, {}, **TINY)
    with pytest.raises(TypeError, match="rank0.x: dtype complex128"):
        veriep.reference({"rank0.x": np.zeros(3, complex)}, **TINY)


def test_direct_placement_needs_room():
    assert [v.parameter for v in veriep.check(preset="a3-288", receive="direct", hccl_buffsize_mb=300)]
