"""Tests that need ``torch``; .ci/faces runs them."""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def installed():
    import veriep.testing

    with veriep.testing.install() as installed:
        yield installed
