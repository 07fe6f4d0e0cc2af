"""Ragged random batches in float64, for the oracle and the properties."""

import torch

from whet.types import TokenBatch

BUDGET = 16


def random_batch(
    seed: int, num_groups: int = 4, group_size: int = 5, drift: float = 0.4, binary: bool = False
) -> tuple[TokenBatch, torch.Tensor]:
    """A batch whose policy has drifted since it was sampled, and its current log-probabilities [N, T].

    Rows start with a prompt, and tool output interrupts some replies: the trained tokens are not contiguous.
    """
    stream = torch.Generator().manual_seed(seed)
    num_rows = num_groups * group_size
    prompt = torch.randint(1, 5, (num_rows,), generator=stream)
    reply = torch.randint(1, BUDGET + 1, (num_rows,), generator=stream)
    width = int((prompt + reply).max()) + 2
    column = torch.arange(width)[None]
    action = (column >= prompt[:, None]) & (column < (prompt + reply)[:, None])
    action &= torch.rand(action.shape, generator=stream) > 0.15
    action[torch.arange(num_rows), prompt] = True
    logp = -2 * torch.rand(num_rows, width, generator=stream, dtype=torch.float64) - 0.05
    old_logp = logp + drift * torch.randn(logp.shape, generator=stream, dtype=torch.float64)
    ref_logp = logp + 0.7 * torch.randn(logp.shape, generator=stream, dtype=torch.float64)
    reward = torch.rand(num_rows, generator=stream, dtype=torch.float64).mul(4).round().div(2)
    if binary:
        reward = (reward >= 1).to(reward.dtype)
    batch = TokenBatch(
        tokens=torch.randint(0, 50, action.shape, generator=stream),
        action=action,
        group=torch.arange(num_groups).repeat_interleave(group_size),
        reward=reward,
        old_logp=old_logp,
        ref_logp=ref_logp,
    )
    return batch, logp


def ragged(values: torch.Tensor, action: torch.Tensor) -> list[torch.Tensor]:
    return [row[mask] for row, mask in zip(values, action, strict=True)]
