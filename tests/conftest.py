"""What all tests share: the order in which parallel workers take them."""

from __future__ import annotations


def pytest_collection_modifyitems(items):
    """Tests that kill and resume whole runs go first: at the end one worker would wait minutes for the other."""
    items.sort(key=lambda item: "test_kill" not in item.nodeid)
