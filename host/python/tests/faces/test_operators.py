"""The operators in ``torch.ops.npu``: schemas, fake tensors, ``torch.compile``, and the reference."""

import inspect

import double
import numpy as np
import pytest
import reference
import torch
import veriep
import veriep.torch_npu
from test_torch_npu import KINDS, PUBLISHED, TWO, same
from torch._functorch.compile_utils import fx_graph_cse
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from veriep import conformance
from veriep._tensors import _array, _torch
from veriep.testing import Ranks

pytestmark = pytest.mark.usefixtures("installed")


def of_torch(arguments):
    return {
        name: _torch(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }


def of_numpy(value):
    return _array(value) if isinstance(value, torch.Tensor) else value


def operators(pair=double.SECOND_PAIR):
    import torch_npu

    return [getattr(torch_npu, function.__name__) for function in pair]


def layer(rank, case, config, pair, name):
    """One layer of tensors of torch, and what fake tensors say of it."""
    group = reference.Group(veriep.Shape(**config).config)
    dispatch, combine = operators(pair)
    of_dispatch, of_combine = map(of_torch, double.arguments(rank, case, config, pair))
    if name is not None:
        of_dispatch["group_ep"] = of_combine["group_ep"] = name(rank)
    got = dispatch(**of_dispatch)
    y = double.experts(
        group, case, rank.rank, *(of_numpy(tensor) for tensor in (*got[:2], got[3])), group.counts
    )
    out = double.back(combine, got, _torch(y), of_combine, pair)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:

        def fake(arguments):
            return {
                key: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
                for key, value in arguments.items()
            }

        fakes = dispatch(**fake(of_dispatch))
        sums = double.back(combine, fakes, mode.from_tensor(_torch(y)), fake(of_combine), pair)
    for real, said in [*zip(got, fakes), (out, sums)]:
        assert (real.shape, real.dtype, real.stride()) == (said.shape, said.dtype, said.stride())
    return [of_numpy(tensor) for tensor in got], of_numpy(out)


def world_name(rank):
    return torch.distributed.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(rank.rank)


def held(config, how, pair=double.SECOND_PAIR, name=None, **ranks):
    case = double.case_of(config, **how)
    outs = Ranks(config["ep_world_size"], **ranks).run(layer, case, config, pair, name)
    seen = double.as_result(outs, reference.Group(veriep.Shape(**config).config))
    same(veriep.reference(case, **config), seen, seen)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_torch_give_what_the_oracle_says_and_fake_ones_their_shapes(kind):
    config, how = KINDS[kind]
    held(config, how, threads=True)


def test_the_operators_pass_the_conformance_suite():
    def run(rank):
        for case in conformance.cases(4):
            case.run(rank.rank, *operators(), group_ep=rank.name, device="npu")

    Ranks(4).run(run)


@pytest.mark.parametrize("kind", ["two ranks", "smooth scales"])
def test_the_first_pair_too(kind):
    config, how = KINDS[kind]
    held(config, how, double.FIRST_PAIR, threads=True)


@pytest.mark.parametrize("size", [2, 5, 8])
def test_process_groups_have_names_that_operators_find(size):
    config = dict(TWO, ep_world_size=size, moe_expert_num=2 * size)
    held(config, {}, name=world_name, distributed=True)


def test_schemas_are_those_that_torch_npu_publishes():
    for operator in veriep.torch_npu.OPERATORS:
        schema = getattr(torch.ops.npu, operator.name).default._schema
        defaults = {
            argument.name: argument.default_value for argument in schema.arguments if argument.kwarg_only
        }
        published = PUBLISHED[operator.name].strip("()").split(", *, ")
        assert [argument.name for argument in schema.arguments if not argument.kwarg_only] == published[
            0
        ].split(", ")
        assert [f"{name}={value!r}" for name, value in defaults.items()] == published[1].split(", ")
        assert len(schema.returns) == (7 if operator.half == "dispatch" else 1)


def tensors(rank, n=4, k=2):
    generator = torch.Generator().manual_seed(rank.rank)
    x = torch.randn(n, 1024, generator=generator).bfloat16()
    ids = torch.stack([torch.randperm(4, generator=generator)[:k] for _ in range(n)]).int()
    return x, ids, torch.rand(n, k, generator=generator)


def two_layers(at):
    dispatch, combine = operators()

    def run(x, ids, weights):
        for gain in (2, 3):
            got = dispatch(x, ids, **at)
            y = torch.where(torch.isnan(got[0]), 0, got[0]) * gain
            x = combine(y, ids, got[2], got[4], weights, **at)
        return x

    return run


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_two_layers_compile_into_one_graph(backend):
    def run(rank):
        function = two_layers(dict(rank.at, moe_expert_num=4))
        given = tensors(rank)
        expected = function(*given)
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        return all(torch.equal(compiled(*given), expected) for _ in range(3))

    assert Ranks(2, timeout=200).run(run) == [True, True]


def test_a_graph_of_any_number_of_tokens():
    def run(rank):
        at = dict(rank.at, moe_expert_num=4)
        function = two_layers(at)
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
        seen = []
        for n in (4, 6, 9):
            given = tensors(rank, n)
            seen.append(torch.equal(compiled(*given), function(*given)))
        return seen

    assert Ranks(2, timeout=200).run(run) == [[True] * 3] * 2


def test_equal_calls_of_a_graph_are_calls_of_their_own():
    def run(rank):
        at = dict(rank.at, moe_expert_num=4)
        dispatch, combine = operators()

        def twice(x, ids, weights):
            first, second = dispatch(x, ids, **at), dispatch(x, ids, **at)
            outs = [combine(got[0], ids, got[2], got[4], weights, **at) for got in (first, second)]
            return outs[0] + outs[1]

        given = tensors(rank)
        with FakeTensorMode(allow_non_fake_inputs=True):
            graph = fx_graph_cse(make_fx(twice)(*given).graph)
        called = [node.target for node in graph.nodes if node.target in (dispatch.default, combine.default)]
        # Older versions of torch do not ask whether a call may be merged; they merge where there are gradients alone.
        assert len(called) == 4 or "is_impure" not in inspect.getsource(fx_graph_cse)
        compiled = torch.compile(twice, fullgraph=True, backend="inductor")
        return torch.equal(compiled(*given), twice(*given))

    assert Ranks(2, timeout=200).run(run) == [True, True]


def test_opcheck_has_no_complaint():
    def run(rank):
        x, ids, weights = tensors(rank)
        at = dict(rank.at, moe_expert_num=4)
        checks = ("test_schema", "test_faketensor")
        dispatch, combine = (operator.default for operator in operators())
        told = torch.library.opcheck(dispatch, (x, ids), at, test_utils=checks)
        got = dispatch(x, ids, **at)
        given = (got[0], ids, got[2], got[4], weights)
        return told, torch.library.opcheck(combine, given, at, test_utils=checks)

    good = dict(test_schema="SUCCESS", test_faketensor="SUCCESS")
    assert Ranks(2, order="loose").run(run) == [(good, good)] * 2


def test_gradients_are_refused_and_no_grad_is_not():
    def run(rank):
        x, ids, weights = tensors(rank)
        at = dict(rank.at, moe_expert_num=4)
        dispatch, combine = operators()
        x.requires_grad_()
        with pytest.raises(ValueError, match="x: wants a gradient, and operators have no backward"):
            dispatch(x, ids, **at)
        outs = []
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                got = dispatch(x, ids, **at)
                outs.append(combine(got[0], ids, got[2], got[4], weights, **at))
        return outs[0].requires_grad, torch.equal(*outs)

    assert Ranks(2, threads=True).run(run) == [(False, True)] * 2


def test_tensors_need_not_be_contiguous():
    def run(rank):
        x, ids, weights = tensors(rank)
        at = dict(rank.at, moe_expert_num=4)
        dispatch, combine = operators()
        outs = []
        for spread in (lambda tensor: tensor, lambda tensor: tensor.repeat_interleave(2, 1)[:, ::2]):
            got = dispatch(spread(x), spread(ids), **at)
            outs.append(combine(spread(got[0]), spread(ids), got[2], got[4], spread(weights), **at))
        return torch.equal(*outs)

    assert Ranks(2, threads=True).run(run) == [True, True]


def test_fake_tensors_are_refused_what_real_ones_are():
    dispatch, _ = operators()
    with FakeTensorMode():
        x, ids = torch.empty(4, 1024, dtype=torch.bfloat16), torch.empty(4, 2, dtype=torch.int32)
        with pytest.raises(
            NotImplementedError, match="npu_moe_distribute_dispatch_v2: y_dtype: must be left out"
        ):
            dispatch(x, ids, "any", 2, 0, 4, y_dtype=1)
        with pytest.raises(ValueError, match=r"ep_rank_id = 2: must be in \[0, ep_world_size = 2\)"):
            dispatch(x, ids, "any", 2, 2, 4)
