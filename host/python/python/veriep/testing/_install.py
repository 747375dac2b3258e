"""Puts the double in place of ``torch_npu``, lets code that names a device run on the CPU, and undoes both."""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..torch_npu import _domains, _library
from ..torch_npu._table import OPERATORS

_BACKENDS = {"hccl": "gloo", "nccl": "gloo"}


class Installed:
    """What `install` has put in place. ``undo()`` takes it away again; so does the end of a ``with`` block."""

    def __init__(self, devices: Sequence[str], options: dict[str, Any]) -> None:
        self.devices, self.options = tuple(devices), options
        self._stack = contextlib.ExitStack()
        # Who has asked for it, and how many ``with`` blocks it is in.
        self._asked, self._blocks = 1, 0

    def __enter__(self) -> Installed:
        self._asked, self._blocks = self._asked - 1, self._blocks + 1
        return self

    def __exit__(self, *_: object) -> None:
        self._blocks -= 1
        if self._asked + self._blocks == 0:
            self.undo()

    def undo(self) -> None:
        """Restores everything. A second call does nothing."""
        global _current
        if _current is self:
            _current = None
            self._stack.close()


_current: Installed | None = None


def install(*, devices: Sequence[str] | None = None, **options: Any) -> Installed:
    """Lets ``import torch_npu`` find the double, defines ``torch.ops.npu``, and takes device names for the CPU.

    ``devices`` are those names: "npu", and "cuda" where no CUDA device is visible, unless they are given. Process groups of the
    backends ``hccl`` and ``nccl`` become those of gloo, and have the names that operators ask for. Options are those of
    `veriep.torch_npu.register`, for names that are not registered. Where a test suite has a stand-in of its own for
    ``torch_npu``, such as a mock, that one is given the operators.

    Raises:
        RuntimeError: there is a real ``torch_npu``, or the double is in place already with other arguments, or "cuda" is asked
            for and a CUDA device is visible.
    """
    global _current
    import torch

    if _is_real(sys.modules.get("torch_npu")):
        raise RuntimeError(
            "torch_npu: is installed here: the double never takes its place; hint: use an environment without it"
        )
    sees_cuda = torch.cuda.is_available()
    if devices is None:
        devices = ("npu",) if sees_cuda else ("npu", "cuda")
    unknown = set(devices) - {"npu", "cuda"}
    if unknown:
        raise ValueError(f"devices: {sorted(unknown)[0]!r}: must be 'npu' or 'cuda'")
    if sees_cuda and "cuda" in devices:
        raise RuntimeError(
            "devices: 'cuda': a CUDA device is visible, and is not taken for the CPU; hint: CUDA_VISIBLE_DEVICES=''"
        )

    if _current is not None:
        if (_current.devices, _current.options) == (tuple(devices), options):
            _current._asked += 1
            return _current
        raise RuntimeError(
            "veriep.testing: is installed already with other options; hint: call install() once, in conftest.py"
        )
    installed = Installed(devices, options)
    with contextlib.ExitStack() as stack:
        before = _domains.set_defaults(**options)
        stack.callback(_domains.set_defaults, **vars(before))
        stack.callback(_domains.unregister_all)
        stack.callback(_library.undefine, _library.define())
        _device(stack, devices)
        _process_groups(stack)
        stand_in = sys.modules.get("torch_npu")
        if stand_in is None:
            _put(stack, sys.modules, "torch_npu", _module())
        else:
            for operator in OPERATORS:
                if hasattr(stand_in, operator.name):
                    # A mock has what it is asked for, and forgets what is deleted.
                    stack.callback(setattr, stand_in, operator.name, getattr(stand_in, operator.name))
                    setattr(stand_in, operator.name, getattr(torch.ops.npu, operator.name))
                else:
                    _set(stack, stand_in, operator.name, getattr(torch.ops.npu, operator.name))
        installed._stack = stack.pop_all()
    _current = installed
    return installed


def uninstall() -> None:
    """Takes away what `install` has put in place, if anything."""
    if _current is not None:
        _current.undo()


def installed() -> dict[str, Any] | None:
    """The arguments of `install`, for another process; None if it is not in place."""
    return None if _current is None else dict(devices=_current.devices, **_current.options)


@contextlib.contextmanager
def in_this_thread() -> Iterator[None]:
    """Takes device names for the CPU in another thread than the one that has called `install`."""
    if _current is None or not _current.devices:
        yield
        return
    with _mode():
        yield


def _set(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Sets an attribute until the stack is closed."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)

    def restore() -> None:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    stack.callback(restore)


def _is_real(loaded: Any) -> bool:
    """Whether there is a ``torch_npu`` on a disk, loaded or not. A test's stand-in has no file."""
    if loaded is not None:
        return isinstance(getattr(loaded, "__file__", None), str)
    return importlib.machinery.PathFinder.find_spec("torch_npu") is not None


def _put(stack: contextlib.ExitStack, table: dict[str, Any], key: str, value: Any) -> None:
    table[key] = value
    stack.callback(table.pop, key, None)


def _module() -> types.ModuleType:
    """The module ``torch_npu``: four operators and the device, and a clear word for anything else."""
    import torch

    module = types.ModuleType(
        "torch_npu", "A double of torch_npu: MoE dispatch and combine on the CPU, by veriep."
    )
    module.__spec__ = importlib.machinery.ModuleSpec("torch_npu", None)
    module.__dict__["__version__"] = "0+veriep"
    for operator in OPERATORS:
        setattr(module, operator.name, getattr(torch.ops.npu, operator.name))
    module.__dict__["npu"] = sys.modules["torch.npu"]

    def missing(name: str) -> Any:
        raise AttributeError(f"torch_npu.{name}: the double has dispatch and combine of MoE, not this")

    module.__dict__["__getattr__"] = missing
    return module


# The device


# Names that stand for the CPU. The functions below are traced by Dynamo, which takes global names and no others.
_names: tuple[str, ...] = ()


def _is_named(value: Any) -> bool:
    return isinstance(value, str) and value.split(":")[0] in _names


def _on_cpu(value: Any) -> Any:
    return "cpu" if _is_named(value) else value


def _torch_function(self: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Reads the names of devices as "cpu", wherever a function of ``torch`` is given one."""
    kwargs = kwargs or {}
    if getattr(function, "__name__", "") == "device" and args and _is_named(args[0]):
        # With the number of a device as second argument, too.
        args = ("cpu",)
    if getattr(function, "__name__", "") == "cuda" and "cuda" in _names:
        return args[0]
    for value in args:
        if _is_named(value):
            args = tuple(_on_cpu(one) for one in args)
            break
    for name in ("device", "dst", "type"):
        if name in kwargs and _is_named(kwargs[name]):
            kwargs = {**kwargs, name: "cpu"}
    return function(*args, **kwargs)


def _mode() -> Any:
    from torch.overrides import TorchFunctionMode

    return type("OnCpu", (TorchFunctionMode,), {"__torch_function__": _torch_function})()


class _Event:
    """A point in time of a device that has no queue."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at = 0.0

    def record(self, *_: Any) -> None:
        import time

        self._at = time.perf_counter()

    def elapsed_time(self, other: _Event) -> float:
        return (other._at - self._at) * 1e3

    def query(self) -> bool:
        return True

    def synchronize(self, *_: Any) -> None:
        pass

    wait = synchronize


class _Stream:
    """A queue that is always empty: calls have ended when they return."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self, *_: Any) -> None:
        pass

    wait_stream = wait_event = synchronize

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event()
        event.record()
        return event

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _always(value: Any) -> Callable[..., Any]:
    """A function of its own: Dynamo takes offence at one that has two names."""
    return lambda *_, **__: value


def _device(stack: contextlib.ExitStack, devices: Sequence[str]) -> None:
    import torch

    npu = types.ModuleType("torch.npu", "One device, which is the CPU.")
    for name in (
        "set_device",
        "synchronize",
        "empty_cache",
        "manual_seed",
        "manual_seed_all",
        "init",
        "set_stream",
    ):
        setattr(npu, name, _always(None))
    for name, value in dict(
        current_device=0,
        device_count=1,
        is_available=True,
        is_initialized=True,
        memory_allocated=0,
        _is_in_bad_fork=False,
    ).items():
        setattr(npu, name, _always(value))
    npu.__dict__.update(Stream=_Stream, Event=_Event, stream=_always(_Stream()))
    npu.__dict__.update(current_stream=_always(_Stream()), default_stream=_always(_Stream()))
    _set(stack, torch, "npu", npu)
    _put(stack, sys.modules, "torch.npu", npu)
    if "npu" in devices:
        _set(stack, torch.Tensor, "npu", lambda tensor, *_, **__: tensor)
    if "cuda" in devices:
        for name in ("set_device", "synchronize"):
            _set(stack, torch.cuda, name, _always(None))
        for name in ("current_stream", "stream"):
            _set(stack, torch.cuda, name, _always(_Stream()))
    if devices:
        _set(stack, sys.modules[__name__], "_names", tuple(devices))
        stack.enter_context(_mode())


# Process groups


def _process_groups(stack: contextlib.ExitStack) -> None:
    import torch.distributed as dist

    if not dist.is_available():
        return
    modules = (dist, dist.distributed_c10d)

    def over_gloo(begin: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop("device_id", None)
            if "backend" in kwargs:
                kwargs["backend"] = _gloo(kwargs["backend"])
            return begin(*map(_gloo, args), **kwargs)

        return call

    for name in ("init_process_group", "new_group"):
        begin = getattr(dist, name)
        for module in modules:
            _set(stack, module, name, over_gloo(begin))
    from torch._C._distributed_c10d import Backend

    _set(stack, Backend, "get_hccl_comm_name", _name_of)


def _gloo(backend: Any) -> Any:
    """A backend, or several by device, with gloo for those of devices."""
    if not isinstance(backend, str):
        return backend
    named = [part.split(":")[-1].lower() for part in backend.split(",")]
    return "gloo" if set(named) & set(_BACKENDS) else backend


def _name_of(backend: Any, rank: int, init_comm: bool = True) -> str:
    """The name of the process group that a backend is of, which `veriep.torch_npu` resolves."""
    import torch
    import torch.distributed as dist

    for group, name in dist.distributed_c10d._world.pg_names.items():
        if group._get_backend(torch.device("cpu")) is backend:
            return str(name)
    raise RuntimeError("get_hccl_comm_name: this backend is of no process group that exists")
