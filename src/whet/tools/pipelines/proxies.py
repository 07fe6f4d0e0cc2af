"""Rewards of the over-optimisation pipeline: the true score, a learned one, and how far the policy has gone.

All scores are standardised on the completions of the start policy, so that they can be drawn on one axis, combined by
an ensemble and weighed against a KL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from whet.record.metrics.reward_model import ensemble_score
from whet.tools.pipelines.library.sampler import MICRO_BATCH_TOKENS, summed_logp
from whet.types import Prompt, Sample

Combination = Literal["single", "mean", "worst", "mean_minus_variance"]


def combined(opinions: Sequence[float], how: Combination, penalty: float) -> float:
    """Opinions on one scale as one; a single opinion is its own mean."""
    return ensemble_score(opinions, "mean" if how == "single" else how, variance_weight=penalty)


class FrozenModelReward:
    """What a frozen model's log-probability of a completion comes to."""

    limits_itself = True
    deterministic = True

    def __init__(
        self, name: str, model: str, temperature: float, value: Callable[[Sample, float], float], **made_of: float
    ) -> None:
        self.name, self._model, self._temperature, self._value = name, model, temperature, value
        self.made_of: Mapping[str, Any] = {"model": model, "temperature": temperature, **made_of}

    @cached_property
    def _logp(self) -> Callable[[Sequence[Sample]], list[float]]:
        return completion_logp(self._model, self._temperature)

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        sums = self._logp(samples)
        return [
            self._value(sample, total) if sample.num_actions else None
            for total, sample in zip(sums, samples, strict=True)
        ]


def gold_score(*, model: str, mean: float = 0.0, spread: float = 1.0) -> FrozenModelReward:
    """The true score: mean log-probability per token under a model that was taught right workings, standardised."""

    def value(sample: Sample, total: float) -> float:
        return (total / sample.num_actions - mean) / spread

    return FrozenModelReward("gold", model, 1.0, value, mean=mean, spread=spread)


def moved_score(*, model: str, temperature: float) -> FrozenModelReward:
    """log pi / pi_start of a completion, whose mean over the policy's own is the KL to the start."""

    def value(sample: Sample, total: float) -> float:
        return float(sample.behavior_logp[sample.action].double().sum()) - total

    return FrozenModelReward("kl", model, temperature, value)


class ProxyReward:
    """One reward model, or several combined, each standardised first."""

    name = "proxy"
    limits_itself = True
    deterministic = True

    def __init__(self, members: Sequence[tuple[str, float, float]], how: Combination, penalty: float) -> None:
        self._members, self._how, self._penalty = tuple(members), how, penalty

    @property
    def made_of(self) -> Mapping[str, Any]:
        """What the reward's fingerprint depends on."""
        return {"members": [list(member) for member in self._members], "how": self._how, "penalty": self._penalty}

    @cached_property
    def _networks(self) -> list[Any]:
        from whet.reward.learned.network import Place, read_network

        places = [Place(folder, micro_batch_tokens=MICRO_BATCH_TOKENS) for folder, _, _ in self._members]
        return [read_network(path, ["sequence"])[0] for path in places]

    def opinions(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[list[float]]:
        """One list per member, standardised."""
        keys = [(prompt.id, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        # a policy that narrows down says the same again and again
        places = {key: index for index, key in reversed(list(enumerate(keys)))}
        by_member = []
        for network, (_, mean, spread) in zip(self._networks, self._members, strict=True):
            tokens = [network.conversation_tokens(prompts[index], completions[index]) for index in places.values()]
            groups = [prompts[index].id for index in places.values()]
            scores = [logits[0, 0] for logits in network.logits(tokens, groups)]
            known = dict(zip(places, map(float, scores), strict=True))
            by_member.append([(known[key] - mean) / spread for key in keys])
        return by_member

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        opinions = self.opinions(prompts, [sample.completion for sample in samples])
        return [combined(scores, self._how, self._penalty) for scores in zip(*opinions, strict=True)]


def proxy_score(
    *,
    folders: tuple[str, ...],
    means: tuple[float, ...] = (0.0,),
    spreads: tuple[float, ...] = (1.0,),
    how: Combination = "single",
    penalty: float = 0.0,
) -> ProxyReward:
    """The learned score, as a reward."""
    return ProxyReward(list(zip(folders, means, spreads, strict=True)), how, penalty)


def completion_logp(model: str, temperature: float) -> Callable[[Sequence[Sample]], list[float]]:
    """samples -> summed log-probability of each completion under a frozen model."""
    import torch

    from whet.model.causal_lm import causal_lm
    from whet.model.load import load_model

    loaded = load_model(model, torch.float32, "cpu").model
    split = causal_lm(loaded.eval().requires_grad_(False), torch.float32)
    return lambda samples: summed_logp(split, samples, temperature)
