"""`veriep.testing.install` and the plug-in: what is put in place, where it refuses, and that nothing is left."""

import subprocess
import sys
import textwrap
import types
from unittest.mock import MagicMock

import pytest
import torch
import torch.distributed as dist
import veriep.testing
from veriep.testing import Ranks


def places():
    """Everything that `install` may touch."""
    from torch._C._distributed_c10d import Backend

    owners = [torch, torch.cuda, torch.Tensor, dist, dist.distributed_c10d, Backend, dist.ProcessGroup]
    attributes = {(owner.__name__, name): value for owner in owners for name, value in vars(owner).items()}
    modules = {
        name for name in sys.modules if name.split(".")[0] in ("torch_npu", "npu") or name == "torch.npu"
    }
    return attributes, modules, torch.overrides._len_torch_function_stack()


def test_everything_is_undone():
    # What others import on the way is there before.
    with veriep.testing.install():
        pass
    attributes, modules, modes = places()
    installed = veriep.testing.install()
    assert places() != (attributes, modules, modes)
    import torch_npu

    assert torch_npu.npu_moe_distribute_dispatch_v2 is torch.ops.npu.npu_moe_distribute_dispatch_v2
    installed.undo()
    installed.undo()
    after = places()
    assert after[1:] == (modules, modes)
    assert {key: id(value) for key, value in after[0].items()} == {
        key: id(value) for key, value in attributes.items()
    }
    assert not hasattr(torch.ops.npu, "npu_moe_distribute_dispatch_v2")
    for owner, name in [
        (torch, "npu"),
        (torch.Tensor, "npu"),
        (torch._C._distributed_c10d.Backend, "get_hccl_comm_name"),
    ]:
        assert not hasattr(owner, name)
    with pytest.raises(RuntimeError, match="npu"):
        torch.device("npu")


def test_a_second_install_has_the_same_options(installed):
    assert veriep.testing.install() is installed
    with pytest.raises(RuntimeError, match="is installed already with other options; hint: call install"):
        veriep.testing.install(order="loose")
    with veriep.testing.install():
        pass
    # The block has not taken it from others.
    assert veriep.testing.install() is installed
    installed.undo()


def test_a_real_torch_npu_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "torch_npu.py").write_text("npu_moe_distribute_dispatch_v2 = 'real'")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match="torch_npu: is installed here: the double never takes its place"
        ):
            veriep.testing.install()
        import torch_npu

        assert torch_npu.npu_moe_distribute_dispatch_v2 == "real"
    del sys.modules["torch_npu"]


@pytest.mark.parametrize("make", [lambda: types.ModuleType("torch_npu"), MagicMock], ids=["module", "mock"])
def test_a_stand_in_of_a_test_suite_is_given_the_operators(make, monkeypatch):
    stand_in = make()
    stand_in.npu_swiglu = "of the suite"
    before = getattr(stand_in, "npu_moe_distribute_combine_v2", None)
    monkeypatch.setitem(sys.modules, "torch_npu", stand_in)
    with veriep.testing.install():
        import torch_npu

        assert torch_npu is stand_in and torch_npu.npu_swiglu == "of the suite"
        assert torch_npu.npu_moe_distribute_combine_v2 is torch.ops.npu.npu_moe_distribute_combine_v2
    assert sys.modules["torch_npu"] is stand_in
    assert getattr(stand_in, "npu_moe_distribute_combine_v2", None) is before


def test_cuda_is_the_cpu_only_where_no_device_is_visible(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RuntimeError, match="a CUDA device is visible, and is not taken for the CPU"):
        veriep.testing.install(devices=["npu", "cuda"])
    with veriep.testing.install() as installed:
        assert installed.devices == ("npu",)
        assert torch.device("cuda").type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with veriep.testing.install() as installed:
        assert installed.devices == ("npu", "cuda")
        assert torch.device("cuda", 1) == torch.device("cpu")
    with pytest.raises(ValueError, match="devices: 'tpu': must be 'npu' or 'cuda'"):
        veriep.testing.install(devices=["tpu"])


def on_devices():
    import torch_npu

    made = [
        torch.zeros(2, device="npu"),
        torch.zeros(2, device=torch.device("npu", 0)),
        torch.zeros(2, device="cuda:1"),
        torch.zeros(2).to("npu:3"),
        torch.zeros(2).to(device="npu"),
        torch.zeros(2).npu(),
        torch.zeros(2).npu(0, non_blocking=True),
        torch.zeros(2).cuda(),
        torch.zeros(2).cuda(non_blocking=True),
        torch.nn.Linear(2, 2, device="npu").weight,
        torch.nn.Linear(2, 2).to("npu").weight,
    ]
    torch_npu.npu.set_device(0)
    torch.npu.synchronize()
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    start.record()
    with torch.npu.stream(torch.npu.Stream()):
        end.record(torch.npu.current_stream())
    assert start.elapsed_time(end) >= 0 and torch.npu.is_available() and torch.npu.current_device() == 0
    return {tensor.device.type for tensor in made}


def test_names_of_devices_stand_for_the_cpu(installed):
    assert on_devices() == {"cpu"}
    # A word that is no device's is left as it is.
    assert torch.zeros(2, device="meta").device.type == "meta"


def test_other_threads_and_processes_have_them_too(installed):
    for how in (dict(threads=True), dict(), dict(start="spawn")):
        assert Ranks(2, **how).run(device_of_rank) == [{"cpu"}] * 2


def device_of_rank(rank):
    return on_devices()


def test_an_operator_that_the_double_lacks_is_named(installed):
    import torch_npu

    with pytest.raises(
        AttributeError, match="torch_npu.npu_swiglu: the double has dispatch and combine of MoE, not this"
    ):
        torch_npu.npu_swiglu(torch.zeros(2))
    assert not hasattr(torch_npu, "npu_swiglu")


def names_of_groups(rank):
    pairs = [dist.new_group([0, 1], backend="hccl"), dist.new_group([2, 3])]
    mine = pairs[rank.rank // 2]
    of = {
        group.group_name: group._get_backend(torch.device("npu")).get_hccl_comm_name(dist.get_rank(group))
        for group in (dist.group.WORLD, mine)
    }
    assert all(name == key for key, name in of.items()) and len(of) == 2
    import torch_npu

    x = torch.full((4, 1024), rank.rank + 1.0).bfloat16()
    ids, weights = torch.tensor([[0, 3]] * 4).int(), torch.ones(4, 2)
    outs = []
    for group, name in zip((dist.group.WORLD, mine), of.values()):
        at = dict(group_ep=name, ep_world_size=group.size(), ep_rank_id=group.rank(), moe_expert_num=4)
        got = torch_npu.npu_moe_distribute_dispatch_v2(x, ids, **at)
        out = torch_npu.npu_moe_distribute_combine_v2(got[0], ids, got[2], got[4], weights, **at)
        outs.append((got[3].tolist(), out[0, 0].item()))
    return outs


def test_process_groups_of_other_backends_are_those_of_gloo(installed):
    first, second, third, fourth = Ranks(4, distributed=True).run(names_of_groups)
    assert first == [([16], 2.0), ([8, 0], 2.0)] and second == [([0], 4.0), ([0, 8], 4.0)]
    assert third == [([0], 6.0), ([8, 0], 6.0)] and fourth == [([16], 8.0), ([0, 8], 8.0)]


def test_backends_by_device_become_gloo(installed, tmp_path):
    for backend in ("hccl", "cpu:gloo,npu:hccl", "NCCL"):
        place = f"file://{tmp_path / backend.replace(':', '-')}"
        dist.init_process_group(backend, init_method=place, rank=0, world_size=1)
        assert dist.get_backend() == "gloo"
        dist.destroy_process_group()


def test_a_process_group_that_was_destroyed_is_not_used_again(installed, tmp_path):
    def run(rank):
        outs, mine = [], rank.rank
        for number in range(2):
            if number:
                # The ranks change places under the same name.
                dist.destroy_process_group()
                mine = 1 - mine
                dist.init_process_group(
                    "gloo", init_method=f"file://{tmp_path}/again", rank=mine, world_size=2
                )
            name = dist.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(mine)
            x, ids = torch.ones(4, 1024).bfloat16(), torch.tensor([[0, 1]] * 4).int()
            got = torch.ops.npu.npu_moe_distribute_dispatch_v2(x, ids, name, 2, mine, 4)
            outs.append((name, got[3].tolist()))
        return outs

    (name, first), second = Ranks(2, distributed=True).run(run)[0]
    assert first == [8, 8] and second == (name, [0, 0])


def test_pytest_has_the_fixture_and_undoes_what_a_conftest_installs(tmp_path):
    (tmp_path / "conftest.py").write_text(
        textwrap.dedent(
            """
            import sys
            import pytest
            import veriep.testing
            veriep.testing.install(order="loose")
            class Last:
                @pytest.hookimpl(trylast=True)
                def pytest_unconfigure(self):
                    print("left:", "torch_npu" in sys.modules)
            def pytest_configure(config):
                config.pluginmanager.register(Last(), "last")
            """
        )
    )
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(
            """
            import torch, torch_npu
            def layer(rank):
                x, ids = torch.ones(2, 1024).bfloat16(), torch.tensor([[0, 3]] * 2).int()
                at = dict(rank.at, moe_expert_num=4)
                got = torch_npu.npu_moe_distribute_dispatch_v2(x.npu(), ids, **at)
                return torch_npu.npu_moe_distribute_combine_v2(got[0], ids, got[2], got[4], torch.ones(2, 2), **at)[0, 0].item()
            def test_layer(ranks):
                assert ranks(2).run(layer) == [2.0, 2.0]
            """
        )
    )
    plugin = [] if "veriep.testing._plugin" not in " ".join(sys.argv) else ["-p", "veriep.testing._plugin"]
    run = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *plugin, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout and "left: False" in done.stdout
