"""Delays, deaths and skipped calls of ranks, all chosen by a seed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Union

from .._group import Group, Received

# How many ranks, or which: pairs of a rank and the number of a call.
Places = Union[int, Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Faults:
    """What goes wrong while ranks call their groups.

    >>> import veriep.testing
    >>> print(veriep.testing.Faults(seed=3, delay=0.01, dies=1).plan(4))
    seed 3: up to 0.01 s before and after each call; rank 0 dies before call 7
    """

    seed: int = 0
    """Chooses the delays, and the places of what is given as a number."""
    delay: float = 0.0
    """Seconds that a rank waits at most before and after each call."""
    dies: Places = 0
    """How many ranks die, or which: pairs of a rank and the number of its call, dispatches and combines counted from 0."""
    skips: Places = 0
    """How many ranks leave out a dispatch and its combine, or which: pairs of a rank and the number of its dispatch."""
    calls: int = 8
    """Places that the seed chooses are among this many calls."""

    def plan(self, ranks: int) -> Plan:
        """The places for a number of ranks."""
        rng = random.Random(f"{self.seed}/{ranks}")
        dies = self._places("dies", self.dies, ranks, self.calls, rng)
        skips = self._places("skips", self.skips, ranks, max(self.calls // 2, 1), rng)
        return Plan(self, dies, skips)

    @staticmethod
    def _places(
        name: str, places: Places, ranks: int, calls: int, rng: random.Random
    ) -> frozenset[tuple[int, int]]:
        if isinstance(places, int):
            if not 0 <= places <= ranks:
                raise ValueError(f"{name} = {places}: must be in [0, {ranks}], the ranks")
            return frozenset((rank, rng.randrange(calls)) for rank in rng.sample(range(ranks), places))
        for rank, call in places:
            if not 0 <= rank < ranks or call < 0:
                raise ValueError(
                    f"{name}: rank {rank}, call {call}: must be a rank in [0, {ranks}) and a call from 0 on"
                )
        return frozenset((rank, call) for rank, call in places)


@dataclass(frozen=True)
class Plan:
    """Which rank does what at which call."""

    faults: Faults
    dies: frozenset[tuple[int, int]]
    skips: frozenset[tuple[int, int]]

    def __str__(self) -> str:
        parts = []
        if self.faults.delay:
            parts.append(f"up to {self.faults.delay} s before and after each call")
        parts += [f"rank {rank} dies before call {call}" for rank, call in sorted(self.dies)]
        parts += [f"rank {rank} leaves out dispatch {call}" for rank, call in sorted(self.skips)]
        return f"seed {self.faults.seed}: {'; '.join(parts) or 'nothing'}"


class Injector:
    """Counts the calls of a rank, over all of its groups, and does what the plan says."""

    def __init__(self, plan: Plan, rank: int, die: Callable[[], None]) -> None:
        self._plan, self._rank, self._die = plan, rank, die
        self._rng = random.Random(f"{plan.faults.seed}/of rank {rank}")
        self._calls = self._dispatches = 0

    def watch(self, group: Group) -> Any:
        return Watched(group, self)

    def pause(self) -> None:
        if self._plan.faults.delay:
            time.sleep(self._rng.uniform(0, self._plan.faults.delay))

    def before(self) -> None:
        self.pause()
        call, self._calls = self._calls, self._calls + 1
        if (self._rank, call) in self._plan.dies:
            self._die()

    def skips_dispatch(self) -> bool:
        number, self._dispatches = self._dispatches, self._dispatches + 1
        return (self._rank, number) in self._plan.skips


class Watched:
    """A group whose calls are late, end the rank, or do not happen."""

    def __init__(self, group: Group, injector: Injector) -> None:
        self._group, self._injector = group, injector

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._group.close()

    def dispatch(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        self._injector.before()
        if self._injector.skips_dispatch():
            return self._nothing(len(x))
        received = self._group.dispatch(x, *args, **kwargs)
        self._injector.pause()
        return received

    def combine(self, y: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
        import numpy as np

        self._injector.before()
        if isinstance(handle, _Skipped):
            return np.full((handle.tokens, self._group.h), np.nan, self._group.dtype)
        out = self._group.combine(y, handle, *args, **kwargs)
        self._injector.pause()
        return out

    def _nothing(self, tokens: int) -> Received:
        """What a rank has that did not call dispatch: no rows."""
        import numpy as np

        group = self._group
        local = max(len(group.experts), 1)
        return Received(
            x=np.empty((0, group.h), group.dtype),
            counts=np.zeros(local, np.int64),
            handle=_Skipped(rows=0, tokens=tokens),  # type: ignore[arg-type]
            scales=np.empty(0, np.float32) if group._layers[0].have_scales else None,
            recv_counts=np.zeros(local * group.world_size, np.int32),
            assist_info=np.empty((0, 3), np.int32),
        )


class _Skipped(SimpleNamespace):
    """The handle of a batch that was left out."""
