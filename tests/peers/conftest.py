"""A running peer a fixture; a peer that cannot be installed skips the tests that ask it, and says why."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from peer import PACKAGES, Peer, PeerMissing


def pytest_configure(config):
    config.addinivalue_line("markers", "peers: compares with other packages, installed by pip on the first run")


def started(name):
    try:
        peer = Peer(PACKAGES[name])
    except PeerMissing as reason:
        pytest.skip(str(reason))
    yield peer
    peer.close()


@pytest.fixture(scope="session")
def trl():
    yield from started("trl")


@pytest.fixture(scope="session")
def trl_ppo():
    yield from started("trl_ppo")


@pytest.fixture(scope="session")
def verl():
    yield from started("verl")
