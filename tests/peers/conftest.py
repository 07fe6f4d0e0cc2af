"""A running peer a fixture; a peer that cannot be installed skips the tests that ask it, and says why."""

import pytest

from tests.peers.peer import PACKAGES, Peer, PeerMissing


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
