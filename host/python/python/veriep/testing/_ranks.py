"""A function on several ranks, each a process or a thread."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from .._errors import Gone, Mismatch, Timeout
from .._group import Group
from .._shape import Shape
from ..torch_npu import _domains
from . import _install
from ._faults import Faults, Injector

# Seconds that other ranks have left, once one has failed, to say what they see of it.
_GRACE = 10.0


class RankError(RuntimeError):
    """A rank has failed: the cause of the exception that it has raised, or that it has died."""


class _Death(BaseException):
    """Ends a rank that is a thread."""


@dataclass
class Outcome:
    """What became of a rank."""

    rank: int
    value: Any = None
    """What its function returned."""
    error: BaseException | None = None
    """What it raised, or a `RankError` if it died."""
    trace: str = ""
    died: bool = False
    """Whether it ended without either."""
    at: float = 0.0
    """When that was."""


class Rank:
    """What a function is given of its rank."""

    def __init__(self, rank: int, size: int, name: str, domain: _domains.Domain, seed: int) -> None:
        self.rank, self.size, self.name = rank, size, name
        """``name`` is what ``group_ep`` may be."""
        self._domain, self._seed = domain, seed

    def __repr__(self) -> str:
        return f"<veriep.testing.Rank {self.rank} of {self.size}>"

    @property
    def at(self) -> dict[str, Any]:
        """The three arguments of each operator that say where it is called."""
        return dict(group_ep=self.name, ep_world_size=self.size, ep_rank_id=self.rank)

    def rng(self) -> Any:
        """A generator of NumPy that is the same in each run, and different on each rank."""
        import numpy as np

        return np.random.default_rng([self._seed, self.rank])

    def group(self, **config: Any) -> Any:
        """This rank of a `veriep.Group` of that configuration, which is made when it is first asked for."""
        return self._domain.group(config)


class Ranks:
    """Runs a function on ``size`` ranks.

    Each is a process, forked unless ``start="spawn"``, or a thread with ``threads=True``. With ``distributed=True`` each process
    is also a rank of ``torch.distributed`` over gloo. ``timeout`` is how many seconds all of it may take. Other keywords are the
    options of `veriep.torch_npu.register`.

    >>> import numpy, veriep.testing
    >>> def twice(rank):
    ...     group = rank.group(moe_expert_num=4, k=2, h=1024, bs=4)
    ...     got = group.dispatch(numpy.ones((1, 1024), group.dtype), numpy.int32([[0, 3]]))
    ...     return float(group.combine(got.x * 2, got.handle, numpy.ones((1, 2), numpy.float32))[0, 0])
    >>> veriep.testing.Ranks(2, threads=True).run(twice)
    [4.0, 4.0]
    """

    def __init__(
        self,
        size: int,
        *,
        threads: bool = False,
        start: str = "fork",
        distributed: bool = False,
        faults: Faults | None = None,
        timeout: float = 120.0,
        **options: Any,
    ) -> None:
        if threads and distributed:
            raise ValueError(
                "distributed: torch.distributed has one rank a process: must be False with threads=True"
            )
        self.size, self.threads, self.start, self.distributed = size, threads, start, distributed
        self.faults, self.timeout = faults or Faults(), timeout
        self.plan = self.faults.plan(size)
        known = [option.name for option in fields(_domains.Options)]
        for name in options:
            if name not in known:
                raise TypeError(f"{name}: ranks have no such option: must be one of {', '.join(known)}")
        self.options = replace(_domains.Options(deadline=60.0), **options)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Returns what ``function(rank, *args, **kwargs)`` returns on each rank, a `Rank` first.

        Raises:
            The first failure that is not the consequence of another rank's, with the number of its rank in ``rank``.
            RankError: a rank has died.
            TimeoutError: not all have ended in time.
        """
        outcomes = self.outcomes(function, *args, **kwargs)
        failed = [outcome for outcome in outcomes if outcome.error is not None]
        if failed:
            first = min(failed, key=self._precedence)
            error = first.error
            assert error is not None
            where = f"rank {first.rank} of {self.size}"
            if self.plan.faults != Faults():
                where += f" ({self.plan})"
            error.rank = first.rank  # type: ignore[attr-defined]
            raise error from RankError(f"on {where}:\n{first.trace}")
        return [outcome.value for outcome in outcomes]

    def _precedence(self, outcome: Outcome) -> tuple[int, float]:
        """Reasons of a rank's own come first, in the order of time; those that others see of them last, by rank."""
        is_planned = any(rank == outcome.rank for rank, _ in self.plan.dies)
        if outcome.died:
            return (5 if is_planned else 1), outcome.rank
        for kind, order in ((Gone, 4), (Timeout, 3), (Mismatch, 2)):
            if isinstance(outcome.error, kind):
                # Of two that differ, the one that asks for a new shape knows more.
                return order, outcome.rank - self.size * ("is the first to use a shape" in str(outcome.error))
        # Collectives of torch.distributed see no more than that another rank is gone.
        if isinstance(outcome.error, RuntimeError) and "Connection " in str(outcome.error):
            return 6, outcome.at
        return 0, outcome.at

    def outcomes(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Outcome]:
        """What became of each rank, for tests in which ranks shall fail."""
        with tempfile.TemporaryDirectory(prefix="veriep-") as folder:
            work = _Work(self, Path(folder), function, args, kwargs)
            return _in_threads(work) if self.threads else _in_processes(work)


class Meeting:
    """A folder in which ranks say where they are, so that none waits to join for one that will not come."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._size = folder, size

    def ends(self, rank: int, how: str) -> None:
        # A thread that was too late finds no folder, and no rank that looks.
        with contextlib.suppress(FileNotFoundError):
            (self._folder / f"{how}-{rank}").touch()

    def waits(self, rank: int, timeout: float, shape: dict[str, Any]) -> None:
        """Waits until all ranks have come to make their first group.

        Raises:
            Gone: one has failed or ended.
            Timeout: one has not come.
            Mismatch: one has come with another shape.
        """
        (self._folder / f"shape-{rank}").write_text(json.dumps(shape))
        (self._folder / f"joins-{rank}").touch()
        until = time.monotonic() + timeout
        while True:
            # In this order: who has ended came before if it came at all.
            ways = {name: self._marks(name) for name in ("failed", "ended")}
            missing = sorted(set(range(self._size)) - self._marks("joins"))
            if not missing:
                return self._compare(rank, shape)
            for how, ranks in ways.items():
                for gone in ranks & set(missing):
                    entry = dict(process=gone, ranks=[gone], how=how, round=None, operator=None)
                    raise Gone(f"rank {gone} has {how} and does not join", [entry])
            if time.monotonic() > until:
                names = ", ".join(map(str, missing))
                entries = [
                    dict(source_rank=source, what="to join", rank=rank, core=None) for source in missing
                ]
                raise Timeout(f"ranks {names} of {self._size} did not join within {timeout:g} s", entries)
            time.sleep(0.002)

    def _compare(self, rank: int, shape: dict[str, Any]) -> None:
        for other in range(self._size):
            theirs = json.loads((self._folder / f"shape-{other}").read_text())
            names = [name for name in shape if theirs.get(name) != shape[name]]
            if names:
                one, another = (
                    ", ".join(f"{name} = {of.get(name)}" for name in names) for of in (theirs, shape)
                )
                raise Mismatch(
                    f"rank {other} called dispatch with {one}, rank {rank} with {another}: "
                    "every rank must call the same operators in the same order"
                )

    def _marks(self, name: str) -> set[int]:
        return {int(mark.name.split("-")[-1]) for mark in self._folder.glob(f"{name}-*")}


@dataclass(frozen=True)
class _Work:
    ranks: Ranks
    folder: Path
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        return "veriep.testing.ranks"

    def on(self, rank: int, domain: _domains.Domain) -> Outcome:
        """Runs the function for a rank, whatever it raises."""
        outcome = Outcome(rank)
        try:
            context = Rank(rank, self.ranks.size, self.name, domain, self.ranks.faults.seed)
            outcome.value = self.function(context, *self.args, **self.kwargs)
        except _Death:
            _has_died(outcome, "of its faults")
            self.meeting.ends(rank, "failed")
        except BaseException as error:
            outcome.error, outcome.trace = error, traceback.format_exc()
            self.meeting.ends(rank, "failed")
        finally:
            outcome.at = time.monotonic()
            self.meeting.ends(rank, "ended")
            domain.close()
        return outcome

    @property
    def meeting(self) -> Meeting:
        return Meeting(self.folder, self.ranks.size)

    def domain(self, rank: int, die: Callable[[], None]) -> _domains.Domain:
        def join(number: int, **how: Any) -> Group:
            if number == 0:
                # Later ones are compared with the other ranks' calls of this one.
                options = self.ranks.options.of_group()
                shape = {name: how[name] for name in sorted(how) if name not in {"beside", *options}}
                if self.ranks.options.limits == "product":
                    # What breaks rules is refused before others are waited for; groups have the memory that they need.
                    Shape(ep_world_size=self.ranks.size, **{"hccl_buffsize_mb": 50000, **shape})
                self.meeting.waits(rank, how["join_timeout"], shape)
            return Group(rank, self.ranks.size, self.folder / f"group-{number}", **how)

        watch = Injector(self.ranks.plan, rank, die).watch
        return _domains.Domain(rank, self.ranks.size, join, self.ranks.options, watch)


def _has_died(outcome: Outcome, how: str) -> None:
    outcome.died, outcome.error = True, RankError(f"rank {outcome.rank} has died: {how}")


# Threads


def _in_threads(work: _Work) -> list[Outcome]:
    size = work.ranks.size
    outcomes: list[Outcome | None] = [None] * size
    domains: list[_domains.Domain | None] = [None] * size

    def call(rank: int) -> None:
        def die() -> None:
            raise _Death

        domain = domains[rank] = work.domain(rank, die)
        _domains.enter(work.name, domain, of_thread=True)
        with _install.in_this_thread():
            outcomes[rank] = work.on(rank, domain)

    threads = [threading.Thread(target=call, args=[rank], daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + work.ranks.timeout
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    if late:
        stacks = sys._current_frames()
        idents = [threads[rank].ident for rank in late]
        where = "\n".join("".join(traceback.format_stack(stacks[at])) for at in idents if at in stacks)
        for domain in filter(None, domains):
            # Ends calls that wait.
            domain.close()
        raise _late(work.ranks, late, where)
    return [outcome for outcome in outcomes if outcome is not None]


# Processes


def _in_processes(work: _Work) -> list[Outcome]:
    context: Any = multiprocessing.get_context(work.ranks.start)
    pipes, processes = [], []
    for rank in range(work.ranks.size):
        ours, theirs = context.Pipe(duplex=False)
        given = (work, rank, theirs, _install.installed())
        processes.append(context.Process(target=_process, args=given, daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        return _collect(work, pipes, processes)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
        for pipe in pipes:
            pipe.close()


def _collect(work: _Work, pipes: list[Any], processes: list[Any]) -> list[Outcome]:
    """Waits for what each process says, and no longer than others need to notice when one has failed."""
    outcomes: dict[int, Outcome] = {}
    until = time.monotonic() + work.ranks.timeout
    while len(outcomes) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in outcomes]
        ready = multiprocessing.connection.wait(waiting, max(until - time.monotonic(), 0))
        if not ready:
            break
        for rank, pipe in enumerate(pipes):
            if pipe in ready and rank not in outcomes:
                outcomes[rank] = outcome = _heard(rank, pipe, processes[rank])
                if outcome.error is not None:
                    work.meeting.ends(rank, "failed")
                    until = min(until, time.monotonic() + _GRACE)
    missing = [rank for rank in range(len(pipes)) if rank not in outcomes]
    where = _stacks(work, processes, missing) if missing else ""
    if missing and not any(outcome.error for outcome in outcomes.values()):
        raise _late(work.ranks, missing, where)
    for rank in missing:
        late = outcomes[rank] = Outcome(rank, trace=where, at=time.monotonic())
        late.error = Timeout(f"rank {rank} has not ended after another has failed", [])
    return [outcomes[rank] for rank in range(len(pipes))]


def _heard(rank: int, pipe: Any, process: Any) -> Outcome:
    try:
        outcome: Outcome = pickle.loads(pipe.recv_bytes())
    except EOFError:
        process.join()
        code = process.exitcode
        outcome = Outcome(rank, at=time.monotonic())
        _has_died(outcome, f"signal {-code}" if code < 0 else f"exit {code}")
    return outcome


def _process(work: _Work, rank: int, pipe: Any, installed: dict[str, Any] | None) -> None:
    """A rank that is a process, from its first to its last."""
    with open(work.folder / f"stack-{rank}", "w") as stack:
        faulthandler.register(signal.SIGUSR1, stack, all_threads=True)
        if installed is not None and _install.installed() is None:
            _install.install(**installed)
        if "torch" in sys.modules or work.ranks.distributed:
            import torch

            # Pools of threads do not survive a fork, and ranks share the processor anyway.
            torch.set_num_threads(1)
        _domains.forget_all()
        domain = work.domain(rank, lambda: os.kill(os.getpid(), signal.SIGKILL))
        _domains.enter(work.name, domain, of_thread=False)
        with _distributed(work, rank, domain):
            outcome = work.on(rank, domain)
        pipe.send_bytes(_pickled(outcome))
        pipe.close()


@contextlib.contextmanager
def _distributed(work: _Work, rank: int, domain: _domains.Domain) -> Iterator[None]:
    if not work.ranks.distributed:
        yield
        return
    import torch.distributed as dist

    _domains.set_defaults(**vars(work.ranks.options))
    _domains.set_watch(domain.watch)
    dist.init_process_group(
        "gloo", init_method=f"file://{work.folder / 'store'}", rank=rank, world_size=work.ranks.size
    )
    try:
        yield
    finally:
        _domains.unregister_all()
        # The function may have done so itself.
        if dist.is_initialized():
            dist.destroy_process_group()


def _pickled(outcome: Outcome) -> bytes:
    """The outcome, or why it cannot be sent."""
    try:
        data = pickle.dumps(outcome)
        pickle.loads(data)
    except Exception as error:
        seen, outcome.value = outcome.error, None
        returned = RankError(
            f"what the function returned cannot go from process to process: {error}; "
            "hint: return plain values or tensors, or use threads=True"
        )
        outcome.error = RankError(f"{type(seen).__name__}: {seen}") if seen else returned
        data = pickle.dumps(outcome)
    return data


def _stacks(work: _Work, processes: list[Any], ranks: list[int]) -> str:
    """Where the processes are."""
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(processes[rank].pid, signal.SIGUSR1)
    time.sleep(0.5)
    return "\n".join((work.folder / f"stack-{rank}").read_text() for rank in ranks)


def _late(ranks: Ranks, late: list[int], where: str) -> TimeoutError:
    names = ", ".join(map(str, late))
    return TimeoutError(f"ranks {names} of {ranks.size} have not ended within {ranks.timeout:g} s\n{where}")
