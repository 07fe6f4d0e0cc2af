"""Policy, reference and critic from one whole model into shards, by one rank: as a script, with RANK and WORLD_SIZE."""

from __future__ import annotations

import torch
from torch import nn

from tests.support.rank_cases import tiny
from tests.support.rank_processes import joined_ranks
from whet.model.causal_lm import causal_lm
from whet.model.critic import critic_on
from whet.model.reference import CopiedReference
from whet.training.distributed.shard import sharded, sharded_critic, sharded_reference, sharding

CPU = torch.device("cpu")


def storages(*modules: nn.Module) -> dict[int, int]:
    """Where weights lie in this process, and how many bytes each place has."""
    found = {}
    for module in modules:
        for weight in module.parameters():
            local = weight.to_local() if hasattr(weight, "to_local") else weight
            if local.numel():
                found[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
    return found


def start(tied: bool, shares_weights: bool) -> tuple[list[nn.Module], int]:
    """The three models in shards, and the bytes of weights that were held before they were cut."""
    cut = sharding(RANKS, CPU)
    policy = causal_lm(tiny(tied=tied))
    critic = critic_on(policy, shared=False, shares_weights=shares_weights)
    critic.head.double()
    reference = CopiedReference(policy, shares_weights)
    assert critic.trunk is not None
    with reference.open() as lm:
        held = sum(storages(policy.model, lm.model, critic.trunk.model).values())
    policy = sharded(policy, cut)
    critic = sharded_critic(critic, cut)
    placed = sharded_reference(reference, policy, cut)
    assert critic.trunk is not None
    with placed.open() as lm:
        return [policy.model, lm.model, critic.trunk.trunk], held


def check(tied: bool) -> None:
    model = sum(storages(tiny(tied=tied)).values())
    plain, held = start(tied, False)
    assert held == 3 * model, (held, model)
    shared, held = start(tied, True)
    assert held == model, (held, model)
    for one, other in zip(plain, shared, strict=True):
        for (name, mine), (_, theirs) in zip(one.named_parameters(), other.named_parameters(), strict=True):
            assert torch.equal(mine.to_local(), theirs.to_local()), name
            assert mine.requires_grad == theirs.requires_grad, name
    places = [storages(each) for each in shared]
    assert len(set().union(*places)) == sum(map(len, places))  # each has memory of its own
    assert max(sum(each.values()) for each in places) <= 0.6 * model
    before = [weight.to_local().clone() for module in shared[1:] for weight in module.parameters()]
    with torch.no_grad():
        for weight in shared[0].parameters():
            weight.to_local().add_(1.0)
    after = [weight.to_local() for module in shared[1:] for weight in module.parameters()]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


if __name__ == "__main__":
    RANKS = joined_ranks()
    for tied in (True, False):
        check(tied)
    torch.distributed.destroy_process_group()
