"""The plug-in of pytest: the fixture ``ranks``, and the end of `install`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ._ranks import Ranks


@pytest.fixture
def ranks() -> Any:
    """Makes the ranks of a test: ``ranks(4).run(function)``, see `veriep.testing.Ranks`."""

    def make(size: int, **how: Any) -> Ranks:
        from ._ranks import Ranks

        return Ranks(size, **how)

    return make


def pytest_unconfigure() -> None:
    """Takes away what a ``conftest.py`` has installed."""
    import sys

    if "veriep.testing._install" in sys.modules:
        sys.modules["veriep.testing._install"].uninstall()
