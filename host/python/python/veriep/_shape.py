"""A valid configuration, and where everything lies: what a generator of kernels needs when it specialises one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from . import _native
from ._errors import parsed
from ._tensors import keys

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Dim:
    """An index of a map."""

    index: str
    """Its name."""
    extent: int
    """It is in ``[0, extent)``."""
    stride: int
    """Bytes from one to the next."""


@dataclass(frozen=True)
class Field:
    """A part of each place of a map."""

    name: str
    """Its name."""
    offset: int
    """Bytes from the start of the place."""
    size: int
    """Bytes."""


@dataclass(frozen=True)
class Map:
    """Places in memory: a base, and for each index a stride."""

    name: str
    """Its name, the same in every configuration that has it."""
    region: str | None
    """The memory of a rank that it is in; None if it is inside other maps."""
    inside: Sequence[str]
    """The maps at whose places it begins."""
    owner: str
    """Which ranks have it: ``any``, or those with ``shared`` or ``moe`` experts."""
    owners: range
    """Their numbers."""
    is_area: bool
    """Whether memory is set aside for it: areas do not overlap."""
    base: int
    """Offset of the place whose indices are 0, in bytes."""
    bytes: int
    """What is used at each place."""
    dims: Sequence[Dim]
    """Its indices."""
    fields: Sequence[Field]
    """The parts of each place."""


@dataclass(frozen=True)
class Event:
    """A word that tells of data."""

    name: str
    """Its name."""
    map: str
    """The map of its places."""
    field: str | None
    """The field that it is there; None if it is the whole place."""
    data: Sequence[str]
    """The maps of what it tells of."""
    constant: int
    """Its value, but for the variables."""
    shifts: Mapping[str, int]
    """Of each variable, the bit at which it begins."""
    writer: str
    """Who writes it."""
    clearer: str
    """Who sets it back to 0, or ``nobody``."""
    order: str
    """Why the data is there when the word is seen."""
    scope: str
    """Who sees it."""

    def value(self, **variables: int) -> int:
        """The word with these variables.

        >>> import veriep
        >>> status, *_ = veriep.Shape(preset="tiny").events
        >>> status.name, hex(status.value(count=5))
        ('dispatch status: status', '0x53f800000')
        """
        if variables.keys() != self.shifts.keys():
            raise TypeError(f"{self.name}: has variables {sorted(self.shifts)}, not {sorted(variables)}")
        word = self.constant
        for name, value in variables.items():
            word |= int(value) << self.shifts[name]
        return word


class Shape:
    """A valid configuration.

    Keywords are the keys of ``config.toml``, or the sources' names of them; what is left out is as in ``preset``, or has its
    default. ``receive``, ``experts``, ``flags``, ``stage``, ``slots`` and ``port_offset`` are the choices of a group that decide where
    things lie.

    >>> import veriep
    >>> shape = veriep.Shape(epWorldSize=4, moe_expert_num=8, k=2, h=1024, bs=4)
    >>> shape.config["ep_world_size"], shape.options["receive"]
    (4, 'copy')

    Raises:
        Violation: the configuration breaks rules.
        TypeError: a key is unknown, or its value of another type.
        ValueError: an option is unknown, or the configuration leaves no such choice.
    """

    def __init__(
        self,
        *,
        preset: str | None = None,
        receive: str = "copy",
        experts: str = "apart",
        flags: str | None = None,
        stage: int | None = None,
        slots: int = 32,
        port_offset: int = 0,
        **config: Any,
    ) -> None:
        self._native = _native.Plan(preset, keys(config), (receive, experts, flags, stage, slots, port_offset))

    @cached_property
    def _plan(self) -> dict[str, Any]:
        return cast("dict[str, Any]", parsed(self._native.plan()))

    def __repr__(self) -> str:
        return f"<veriep.Shape {self.fingerprint}: {self.config}>"

    @property
    def config(self) -> dict[str, Any]:
        """All keys of the configuration with their values."""
        return dict(self._plan["config"])

    @property
    def options(self) -> dict[str, Any]:
        """The choices of the group."""
        return dict(self._plan["options"])

    @property
    def constants(self) -> dict[str, int]:
        """What a kernel needs to know beside the maps: numbers of ranks, experts and tokens, sizes in bytes."""
        return dict(self._plan["constants"])

    @property
    def fingerprint(self) -> str:
        """Differs where ranks would not understand each other."""
        return str(self._plan["fingerprint"])

    @cached_property
    def maps(self) -> Sequence[Map]:
        """Where everything lies.

        >>> import veriep
        >>> [m.name for m in veriep.Shape(preset="tiny").maps][:3]
        ['dispatch status', 'combine status', 'dispatch selectors']
        """

        def one(m: dict[str, Any]) -> Map:
            dims = tuple(Dim(dim["index"], dim["extent"], dim["stride"]) for dim in m["dims"])
            fields = tuple(Field(field["name"], field["offset"], field["size"]) for field in m["fields"])
            owners = range(*m["owners"])
            return Map(
                **{**m, "dims": dims, "fields": fields, "owners": owners, "inside": tuple(m["inside"])}
            )

        return tuple(map(one, self._plan["maps"]))

    @cached_property
    def events(self) -> Sequence[Event]:
        """The words that tell of data."""

        def one(event: dict[str, Any]) -> Event:
            value = event.pop("value")
            shifts = {term["variable"]: term["shift"] for term in value["terms"]}
            return Event(**event, constant=int(value["constant"], 16), shifts=shifts)

        return tuple(one(dict(event)) for event in self._plan["events"])

    def map(self, name: str, /, *, rank: int | None = None) -> Map:
        """The map of that name that a rank has; ``rank`` may be left out where all have the same one.

        Raises:
            KeyError: there is none, or ranks have different ones.
        """
        found = [m for m in self.maps if m.name == name and (rank is None or rank in m.owners)]
        if len(found) == 1:
            return found[0]
        if found:
            raise KeyError(
                f"{name}: ranks {[m.owners for m in found]} have different ones: rank must be given"
            )
        raise KeyError(f"{name}: no such map{'' if rank is None else f' on rank {rank}'}")

    def offset(
        self,
        name: str,
        /,
        *,
        rank: int | None = None,
        field: str | None = None,
        **indices: ArrayLike,
    ) -> Any:
        """The offset of a place in its region, in bytes; of one inside other maps, from where those begin.

        Every index of the map must be given; ``rank`` says whose memory is meant, where that matters, and stands for
        the index ``owner``. Indices may be arrays, which broadcast: then so is the offset, else it is an ``int``. With
        a ``field``, the offset is that of the field.

        >>> import numpy, veriep
        >>> shape = veriep.Shape(preset="tiny")
        >>> shape.offset("dispatch status", partition=0, local_expert=1, source=0)
        64
        >>> shape.offset("dispatch status", partition=0, local_expert=numpy.arange(2), source=1)
        array([32, 96])

        Raises:
            KeyError: no such map or field.
            TypeError: an index is missing, or the map has none of that name.
            IndexError: an index is out of range.
        """
        found = self.map(name, rank=rank)
        at: Any = found.base
        if field is not None:
            fields = {one.name: one.offset for one in found.fields}
            if field not in fields:
                raise KeyError(f"{name}: has fields {list(fields)}, not {field!r}")
            at += fields[field]
        if rank is not None and any(dim.index == "owner" for dim in found.dims):
            indices.setdefault("owner", rank - found.owners.start)
        names = [dim.index for dim in found.dims]
        if sorted(names) != sorted(indices):
            raise TypeError(f"{name}: has indices {names}, not {sorted(indices)}")
        for dim in found.dims:
            at = at + dim.stride * _index(dim, indices[dim.index])
        return at

    def sends(self, rank: int, core: int) -> dict[str, Any]:
        """What a core does of the work of its rank: ranges ``[start, end)`` of tokens, pairs, experts and ranks.

        >>> import veriep
        >>> veriep.Shape(preset="tiny").sends(1, 0)["tokens"]
        [0, 1]

        Raises:
            IndexError: there is no such core.
        """
        return cast("dict[str, Any]", parsed(self._native.share(rank, core)))

    def export(
        self, folder: str | os.PathLike[str], *, prefix: str = "veriep", ranks: Sequence[int] | None = None
    ) -> list[Path]:
        """Writes ``plan.json``, ``{prefix}_plan.h`` and ``{prefix}_check.c``, as ``veriep export`` does.

        ``ranks``: whose work is in the plan; all, if they are left out.
        """
        if not (prefix.isidentifier() and prefix.isascii() and prefix[0] != "_"):
            raise ValueError(f"prefix = {prefix!r}: must be a letter, then letters, digits and _")
        ranks = None if ranks is None else list(ranks)
        from pathlib import Path

        return [Path(folder) / name for name in self._native.export(folder, prefix, ranks)]


def _index(dim: Dim, index: Any) -> Any:
    """The index, if it is in range."""
    try:
        low = high = index = index.__index__()
    except (AttributeError, TypeError):
        import numpy as np

        index = np.asarray(index)
        if index.dtype.kind not in "iu":
            raise TypeError(f"{dim.index}: {index.dtype}: must be integers") from None
        index = index.astype(np.int64)
        low, high = (int(index.min()), int(index.max())) if index.size else (0, 0)
    if low < 0 or high >= dim.extent:
        seen = low if low < 0 else high
        raise IndexError(f"{dim.index} = {seen}: must be in [0, {dim.extent})")
    return index
