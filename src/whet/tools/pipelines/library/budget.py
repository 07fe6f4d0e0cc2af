"""What a training spends, in one unit for every method: tokens of one forward pass of the policy's model.

A forward pass over a token costs 1: one that is sampled, and one that a frozen model (reference, reward model) reads.
Training on it costs 3: forward, and twice that backward (Kaplan et al. 2020, arXiv 2001.08361, appendix B). Each model
that is trained or asked counts, and every completion with its prompt. All models are of the policy's size.

It counts arithmetic, not time: sampling is slower per token than scoring, and a prompt that several completions share
is computed once. The seconds of every stage are on the page beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whet.record.text import memory_text
from whet.training.config import PreferenceConfig

TRAINED = 3.0  # forward passes that one of training costs


@dataclass(frozen=True)
class Passes:
    """How often a sequence of a method passes through a model, by what is done there."""

    sampled: float = 0.0
    scored: float = 0.0
    trained: float = 0.0

    @property
    def cost(self) -> float:
        """Per token of the sequence."""
        return self.sampled + self.scored + TRAINED * self.trained

    def __str__(self) -> str:
        parts = ((self.sampled, "sampled"), (self.scored, "scored"), (TRAINED * self.trained, "trained"))
        return " + ".join(f"{cost:g} {name}" for cost, name in parts if cost)


def rl_passes(
    *, reference: bool, critic: bool, reward_model: bool, updates: int = 1, epochs: int = 1, shared_trunk: bool = False
) -> Passes:
    """A completion of a policy that learns from it: written, read by each frozen model, learnt `epochs` times.

    The policy reads it again before the first of several updates; a critic of its own reads it and learns too.
    """
    own_critic = critic and not shared_trunk
    scored = float(reference) + float(reward_model) + float(updates > 1) + float(own_critic)
    return Passes(1.0, scored, epochs * (1.0 + own_critic))


def preference_passes(*, reference: bool) -> Passes:
    """A chosen or rejected completion of the data: learnt, and read by the reference."""
    return Passes(0.0, float(reference), 1.0)


SELECTION = Passes(1.0, 1.0)  # one of n completions: written, and read by the reward model


def steps_within(budget: float, cost_per_step: float, most: int = 0) -> int:
    """Steps that cost as much as the budget, to the nearest step and at least one; `most` of them, 0: any number."""
    steps = max(1, round(budget / cost_per_step))
    return min(steps, most) if most else steps


def choices_within(budget: float, prompts: int, tokens: float, most: int) -> int:
    """n of best-of-n whose choice among n completions of `tokens` each spends the budget on these prompts."""
    return max(1, min(most, int(budget / (prompts * tokens * SELECTION.cost))))


def passes_of(config: Any) -> Passes:
    """How often a sequence of this training passes through a model."""
    from whet.tools.planner.from_config import objective_needs

    needs = objective_needs(config)
    if isinstance(config, PreferenceConfig):
        return preference_passes(reference="ref_logp" in needs)
    return rl_passes(
        reference="ref_logp" in needs,
        critic="value" in needs,
        reward_model=True,
        updates=config.batch.updates_per_step * config.batch.epochs_per_batch,
        epochs=config.batch.epochs_per_batch,
        shared_trunk=config.trains_critic() and config.critic.trunk == "shared",
    )


def memory_of(config: Any) -> str:
    """What each model of a training keeps in memory, in words; empty for a model whose shape cannot be told."""
    from whet.model.load import device_choice
    from whet.tools.planner.from_config import device_plan, this_device

    plan = device_plan(config, this_device(device_choice(config.model.device)), 1, 1)
    sizes: dict[str, float] = {}
    for line in plan.memory.lines if plan is not None else ():
        name = line.name.partition(":")[0].partition(" (")[0]
        if name in ("policy", "reference", "critic", "reward model") and "activations" not in line.name:
            sizes[name] = sizes.get(name, 0.0) + line.bytes
    return ", ".join(f"{name} {memory_text(size)}" for name, size in sizes.items())
