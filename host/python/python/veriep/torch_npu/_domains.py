"""Names of communicators, their ranks, and their groups: one for each shape that is used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from .._errors import Mismatch, Timeout
from .._group import Group
from ._batches import Batches


@dataclass(frozen=True)
class Options:
    """How the groups of a name run; all ranks must have the same."""

    order: str = "strict"
    """``loose``: a batch may be combined twice or never."""
    limits: str = "product"
    """``open``: sizes beyond the product's."""
    deadline: float = 300.0
    """Seconds that a call may wait while no rank moves."""
    join_timeout: float = 60.0
    """Seconds that the other ranks are waited for when a shape is used for the first time."""
    ids: str = "all-active"
    """``-1-inactive``: -1 is no expert. The operators are not known to take it."""

    def __post_init__(self) -> None:
        for name, value, words in (
            ("order", self.order, ("strict", "loose")),
            ("limits", self.limits, ("product", "open")),
            ("ids", self.ids, ("all-active", "-1-inactive")),
        ):
            if value not in words:
                raise ValueError(f"{name} = {value!r}: must be {' or '.join(map(repr, words))}")

    def of_group(self) -> dict[str, Any]:
        return dict(
            order=self.order, limits=self.limits, deadline=self.deadline, join_timeout=self.join_timeout
        )


@dataclass
class Domain:
    """A rank of a communicator."""

    rank: int
    size: int
    join: Callable[..., Group]
    """Makes this rank's member of the next group, of its number and the keywords of `Group`."""
    options: Options = field(default_factory=Options)
    watch: Callable[[Group], Any] | None = None
    """Stands between callers and a group, for tests."""

    def __post_init__(self) -> None:
        self.batches = Batches(self.options.order)
        self._groups: dict[str, Group] = {}
        self._newest: dict[str, Any] = {}

    def group(self, config: dict[str, Any]) -> Any:
        """The group of a shape. All ranks ask for the same shapes in the same order, or joining says what differs."""
        key = repr(sorted(config.items()))
        if key not in self._groups:
            first = next(iter(self._groups.values()), None)
            try:
                group = self.join(len(self._groups), beside=first, **self.options.of_group(), **config)
            except Timeout as error:
                raise Timeout(f"{error}: {self._asks_for(config)}", error.missing) from None
            except Mismatch as error:
                raise Mismatch(f"{error}: {self._asks_for(config)}") from None
            self._groups[key], self._newest = group, config
        group = self._groups[key]
        return group if self.watch is None else self.watch(group)

    def _asks_for(self, config: dict[str, Any]) -> str:
        new = {name: value for name, value in config.items() if self._newest.get(name, ...) != value}
        shape = ", ".join(f"{name} = {value}" for name, value in new.items())
        return f"rank {self.rank} is the first to use a shape with {shape}"

    def close(self) -> None:
        for group in self._groups.values():
            group.close()
        self._groups.clear()


class _OfThread(threading.local):
    """Names of this thread, which may be a rank of its own."""

    def __init__(self) -> None:
        self.domains: dict[str, Domain] = {}


_of_thread = _OfThread()
_of_process: dict[str, Domain] = {}
# Names of process groups that were found, not registered.
_resolved: dict[str, tuple[Any, Domain]] = {}
_defaults = Options()
_watch: Callable[[Group], Any] | None = None


def set_defaults(**options: Any) -> Options:
    """Sets options of names that are used for the first time from now on, and returns those before."""
    global _defaults
    before, _defaults = _defaults, replace(_defaults, **options)
    return before


def set_watch(watch: Callable[[Group], Any] | None) -> None:
    """Sets what stands between callers and groups of names that are used for the first time from now on."""
    global _watch
    _watch = watch


def enter(name: str, domain: Domain, *, of_thread: bool) -> None:
    """Lets a name stand for a rank, in this thread alone or in all that have no other."""
    table = _of_thread.domains if of_thread else _of_process
    if name in table:
        raise ValueError(f"group_ep = {name!r}: is registered already")
    table[name] = domain


def register(name: str, process_group: Any, **options: Any) -> None:
    """Lets ``group_ep=name`` stand for a process group of ``torch.distributed`` in this process.

    Options are ``order``, ``limits``, ``deadline``, ``join_timeout`` and ``ids``, and must be the same on all ranks.
    """
    enter(name, _of_process_group(name, process_group, replace(_defaults, **options)), of_thread=False)


def unregister(name: str) -> None:
    """Takes a name back and closes its groups."""
    table = _of_thread.domains if name in _of_thread.domains else _of_process
    if name not in table:
        raise KeyError(f"group_ep = {name!r}: is not registered")
    table.pop(name).close()


def unregister_all() -> None:
    for table in (_of_thread.domains, _of_process):
        while table:
            table.popitem()[1].close()
    while _resolved:
        _resolved.popitem()[1][1].close()


def forget_all() -> None:
    """Forgets names that are another process's, in a copy of it."""
    _of_thread.domains.clear()
    _of_process.clear()
    _resolved.clear()


def find(name: str) -> Domain:
    """The rank that a name stands for: of this thread, of this process, or of a process group of that name."""
    domain = _of_thread.domains.get(name) or _of_process.get(name)
    if domain is not None:
        return domain
    group = _process_group_named(name)
    if group is None:
        raise ValueError(
            f"group_ep = {name!r}: no process group has this name; hint: veriep.torch_npu.register(name, process_group)"
        )
    # A process group that was destroyed may have a successor of the same name.
    if name in _resolved and _resolved[name][0] is not group:
        _resolved.pop(name)[1].close()
    if name not in _resolved:
        _resolved[name] = group, _of_process_group(name, group, _defaults)
    return _resolved[name][1]


def _of_process_group(name: str, process_group: Any, options: Options) -> Domain:
    def join(number: int, **how: Any) -> Group:
        return Group.of(process_group, name=f"{name}/{number}", **how)

    return Domain(process_group.rank(), process_group.size(), join, options, _watch)


def _process_group_named(name: str) -> Any:
    import sys

    if "torch.distributed" not in sys.modules:
        return None
    distributed = sys.modules["torch.distributed"]
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    world = distributed.distributed_c10d._world
    return next((group for group, its in world.pg_names.items() if its == name), None)
