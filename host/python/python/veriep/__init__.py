"""Layouts, checks, the reference and live groups of Mixture-of-Experts dispatch and combine of Ascend A2/A3.

A configuration is given by keywords, those of ``config.toml`` or as the sources write them, over a ``preset`` if there
is one:

>>> import veriep
>>> shape = veriep.Shape(preset="tiny", bs=8)
>>> shape.constants["bs_max"]
8
>>> veriep.check(preset="tiny", k=17)[0].hint
'k = 4'
"""

from __future__ import annotations

from ._errors import Gone, Mismatch, Timeout, Violation
from ._group import Group, Handle, Received, Sent
from ._reference import Comparison, check, compare, reference, reference_combine, reference_dispatch
from ._shape import Dim, Event, Field, Map, Shape

__all__ = [
    "Comparison",
    "Dim",
    "Event",
    "Field",
    "Gone",
    "Group",
    "Handle",
    "Map",
    "Mismatch",
    "Received",
    "Sent",
    "Shape",
    "Timeout",
    "Violation",
    "check",
    "compare",
    "reference",
    "reference_combine",
    "reference_dispatch",
]
