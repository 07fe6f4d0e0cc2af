"""Ragged random rows of completions in float64: prompts, holes and padding around the trained tokens."""

import torch

from whet.objective.preference.batch import PairBatch, PairExtras

WIDTH = 12


def random_rows(seed, num_rows=7, paired=True, empty=False):
    """A batch with log-probabilities of tokens, its logp and its extras; `empty` adds a row with an empty
    completion."""
    draw = torch.Generator().manual_seed(seed)
    sides = 2 if paired else 1
    shape = (num_rows, sides, WIDTH)

    def uniform():
        return torch.rand(shape, generator=draw, dtype=torch.float64)

    action = uniform() < 0.5
    action[..., 3] = True
    if empty:
        action[1, sides - 1] = False
    logp = -2 * uniform() - 0.01
    ref = logp + 0.8 * (uniform() - 0.5)
    label = None
    if not paired:
        label = torch.where(torch.arange(num_rows) % 3 == 0, 1, -1)[:, None]
    group = torch.arange(num_rows) // 2
    batch = PairBatch(action.sum(-1), ref, label, action, group=group)
    return batch, logp, PairExtras(-uniform(), -2 * uniform() - 0.01)
