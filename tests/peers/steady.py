"""The batch the page's numbers were measured on: nobody else's, so that they change only when a peer or whet does."""

import torch

from whet.types import TokenBatch

BUDGET = 64


def steady_batch(*, num_groups=16, group_size=8, drift=0.2, binary=False):
    """128 completions of 1 to 64 tokens with tool output in between, and their log-probabilities now, `drift` away.

    Prompts differ in how often they are answered right; rewards are 0 or 1, and up to 0.5 for form unless `binary`.
    """
    stream = torch.Generator().manual_seed(0)
    num_rows = num_groups * group_size

    def uniform(*shape):
        return torch.rand(shape, generator=stream, dtype=torch.float64)

    def noise(*shape):
        return torch.randn(shape, generator=stream, dtype=torch.float64)

    group = torch.arange(num_groups).repeat_interleave(group_size)
    prompt = torch.randint(1, 9, (num_rows,), generator=stream)[:, None]
    completion = torch.randint(1, BUDGET + 1, (num_rows,), generator=stream)[:, None]
    shape = (num_rows, BUDGET + 10)
    column = torch.arange(shape[1])[None]
    action = (column >= prompt) & (column < prompt + completion)
    action &= (uniform(*shape) > 0.1) | (column == prompt)
    logp = -2 * uniform(*shape) ** 2 - 0.3
    right = (uniform(num_rows) < (0.1 + 0.8 * uniform(num_groups))[group]).double()
    form = uniform(num_rows).mul(4).round().div(4)
    parts, part_weight = torch.stack([right, form], 1), torch.tensor([1.0, 0.0 if binary else 0.5]).double()
    old_logp = (logp + drift * noise(*shape)).clamp(max=-1e-3)
    batch = TokenBatch(
        tokens=torch.randint(0, 50, shape, generator=stream),
        action=action,
        group=group,
        reward=parts @ part_weight,
        behavior_logp=old_logp,
        old_logp=old_logp,
        ref_logp=(logp + 0.5 * noise(*shape)).clamp(max=-1e-3),
        entropy=2 * uniform(*shape),
        value=0.5 + 0.3 * noise(*shape),
        parts=parts,
        part_weight=part_weight.expand(num_rows, 2).clone(),
        greedy_reward=uniform(num_groups).round()[group],
        max_new_tokens=BUDGET,
    )
    return batch, logp
