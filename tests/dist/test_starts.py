"""How a run of several ranks starts: whole models, and what is left of them in shards."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from processes import run_ranks


def test_reference_and_critic_are_cut_from_the_policys_memory_and_have_their_own_then():
    """One whole model is held, not three; the shards are those of three copies, bit for bit."""
    run_ranks(2, "starts.py")
