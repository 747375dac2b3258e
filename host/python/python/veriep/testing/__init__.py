"""Tests of MoE code without a device: ranks, faults, and a double of ``torch_npu``.

With pytest the fixture ``ranks`` is there as soon as this package is installed:

    def test_layer(ranks):
        outs = ranks(4, distributed=True).run(layer, tokens)

``install()`` puts the double in place of ``torch_npu``; call it in a ``conftest.py`` and pytest undoes it at its end. Importing
this package changes nothing.
"""

from __future__ import annotations

from ._faults import Faults, Plan
from ._install import Installed, install, uninstall
from ._ranks import Outcome, Rank, RankError, Ranks

__all__ = [
    "Faults",
    "Installed",
    "Outcome",
    "Plan",
    "Rank",
    "RankError",
    "Ranks",
    "install",
    "uninstall",
]
