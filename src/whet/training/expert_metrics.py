"""How the experts of a mixture are used, and how far two passes over the same tokens disagree about them. Pure.

A table of experts is [N, T, layers, k], -1 where nothing is known of a token. The order of the k is no difference.
"""

from __future__ import annotations

import torch
from torch import Tensor


def used_experts(chosen: Tensor, replay: Tensor | None) -> Tensor:
    """The experts that a pass went through: those it was told, else its own; -1 for tokens it did not compute."""
    return chosen if replay is None else torch.where((replay < 0) | (chosen < 0), chosen, replay.to(chosen.dtype))


def expert_counts(used: Tensor, num_experts: int) -> Tensor:
    """int64 [layers, num_experts]: how many tokens each expert was given."""
    layers = used.shape[2]
    chosen = used[(used >= 0).all(-1).all(-1)].long()  # [tokens, layers, k]
    flat = chosen + torch.arange(layers)[None, :, None] * num_experts
    return torch.bincount(flat.flatten(), minlength=layers * num_experts).view(layers, num_experts)


def load_metrics(counts: Tensor) -> dict[str, float]:
    """Expert load, averaged over layers: the busiest expert's load relative to the mean, the evenness (entropy over its
    greatest value, 1 is even), and the share of all experts that got no token."""
    total = counts.sum(-1, keepdim=True)
    if not bool(total.all()):
        return {}
    share = counts.double() / total
    evenness = torch.special.entr(share).sum(-1) / torch.log(torch.tensor(float(counts.shape[-1])))
    return {
        "expert_load_max": float((share.amax(-1) * counts.shape[-1]).mean()),
        "expert_load_evenness": float(evenness.mean()),
        "dead_experts": float((counts == 0).double().mean()),
    }


def disagreement(first: Tensor, second: Tensor) -> tuple[float, float] | None:
    """The share of tokens with other experts in at least one layer, and that of (token, layer); of tokens that both
    tables know. None where there are none."""
    known = ((first >= 0) & (second >= 0)).all(-1).all(-1)
    if not bool(known.any()):
        return None
    differs = (first[known].sort(-1).values != second[known].sort(-1).values).any(-1)  # [tokens, layers]
    return float(differs.any(-1).double().mean()), float(differs.double().mean())


def drift_metrics(name: str, first: Tensor | None, second: Tensor | None) -> dict[str, float]:
    """`name`: share of tokens whose experts differ somewhere; `name_layers`: share of (token, layer)."""
    if first is None or second is None:
        return {}
    drift = disagreement(first, second)
    return {} if drift is None else {name: drift[0], f"{name}_layers": drift[1]}


def replayed_share(chosen: Tensor, replay: Tensor | None) -> dict[str, float]:
    """The share of computed tokens whose experts were replayed; nothing without a replay."""
    if replay is None:
        return {}
    computed, replayed = (chosen >= 0).all(-1).all(-1), (replay >= 0).all(-1).all(-1)
    return {"replayed_experts": float((replayed & computed).sum() / computed.sum().clamp(min=1))}
