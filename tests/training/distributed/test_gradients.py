"""The gradient of several ranks is that of one process, in float64, for every kind of training.

The ranks' shares are as uneven as they can be: the first has most rows, the last few or none at all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.rank_cases import World, all_gradients
from tests.support.rank_processes import run_ranks
from whet.objective import PRESETS
from whet.objective.presets.preference import PAIR_PRESETS

CLOSE = 1e-10  # of the largest element
SINGLE = 2e-5  # of what is computed or kept in float32
Found = dict[str, dict[str, Tensor]]


def by_ranks(size: int, mode: str, every: str, folder: Path) -> Found:
    file = folder / "gradients.pt"
    run_ranks(size, "rank_cases.py", mode, str(file), every)
    found: Found = torch.load(file)
    return found


def by_one(every: bool) -> Found:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return all_gradients(World(), every)
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def single() -> Found:
    return by_one(every=True)


def assert_same(found: Found, expected: Found) -> None:
    for case, tensors in found.items():
        assert tensors.keys() == expected[case].keys(), case
        for name, value in tensors.items():
            wanted = expected[case][name]
            assert value.shape == wanted.shape, (case, name)
            is_single = value.dtype != torch.float64 or name == "metrics"  # entropies are summed in float32
            gap = float((value - wanted).abs().max()) / (float(wanted.abs().max()) or 1.0)
            assert gap <= (SINGLE if is_single else CLOSE), (case, name, gap)


def largest(tensors: dict[str, Tensor]) -> float:
    return max((float(value.abs().max()) for name, value in tensors.items() if name[0].isdigit()), default=0.0)


def test_two_ranks_with_uneven_shares_give_the_gradient_of_one(tmp_path: Path) -> None:
    """Some presets; all of them under `slow`."""
    found = by_ranks(2, "fewer", "some", tmp_path)
    assert len(found) > 20
    assert all(largest(tensors) > 1e-9 for name, tensors in found.items() if name[:6] != "scores")
    assert_same(found, by_one(every=False))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "mode"), [(2, "fewer"), (3, "fewer"), (3, "empty"), (3, "even")])
def test_every_preset_gives_the_gradient_of_one(size: int, mode: str, single: Found, tmp_path: Path) -> None:
    found = by_ranks(size, mode, "every", tmp_path)
    assert {*PRESETS, *PAIR_PRESETS} <= found.keys()
    assert_same(found, single)
