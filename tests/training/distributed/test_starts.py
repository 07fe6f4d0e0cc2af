"""How a run of several ranks starts: whole models, and what is left of them in shards."""

from __future__ import annotations

from tests.support.rank_processes import run_ranks


def test_reference_and_critic_are_cut_from_the_policys_memory_and_have_their_own_then():
    """One whole model is held, not three; the shards are those of three copies, bit for bit."""
    run_ranks(2, "rank_starts.py")
