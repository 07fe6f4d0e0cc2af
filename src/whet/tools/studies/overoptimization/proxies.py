"""The over-optimisation study's rewards, gold and proxy, and the recorder of scores and KL at every step.

All scores are standardised on the completions of the start policy, so that they can be drawn on one axis, combined by
an ensemble and weighed against a KL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from whet.record.metrics.reward_model import ensemble_score
from whet.types import Group, Prompt, Sample, StepReport

Combination = Literal["single", "mean", "worst", "mean_minus_variance"]
MICRO_BATCH_TOKENS = 16_384


def combined(opinions: Sequence[float], how: Combination, penalty: float) -> float:
    """Opinions on one scale as one; a single opinion is its own mean."""
    return ensemble_score(opinions, "mean" if how == "single" else how, variance_weight=penalty)


class GoldReward:
    """Mean log-probability per token under a model that was taught right workings, standardised."""

    name = "gold"
    limits_itself = True
    deterministic = True

    def __init__(self, model: str, mean: float, spread: float) -> None:
        self._model, self._mean, self._spread = model, mean, spread

    @property
    def made_of(self) -> Mapping[str, Any]:
        """What the reward's fingerprint depends on."""
        return {"model": self._model, "mean": self._mean, "spread": self._spread}

    @cached_property
    def _judge(self) -> Callable[[Sequence[Sample]], Any]:
        return completion_logp(self._model, 1.0)

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        sums = self._judge(samples)
        return [
            (float(total) / sample.num_actions - self._mean) / self._spread if sample.num_actions else None
            for total, sample in zip(sums, samples, strict=True)
        ]


def gold_score(*, model: str, mean: float = 0.0, spread: float = 1.0) -> GoldReward:
    """The true score of the study, as a reward."""
    return GoldReward(model, mean, spread)


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
    """The learned score of the study, as a reward."""
    return ProxyReward(list(zip(folders, means, spreads, strict=True)), how, penalty)


def completion_logp(model: str, temperature: float) -> Callable[[Sequence[Sample]], Any]:
    """samples -> summed log-probability of each completion under a frozen model: [N]."""
    import torch

    from whet.data.packing import token_batch
    from whet.model.causal_lm import causal_lm
    from whet.model.load import load_model
    from whet.training.update import token_scores

    loaded = load_model(model, torch.float32, "cpu").model
    split = causal_lm(loaded.eval().requires_grad_(False), torch.float32)

    def summed(samples: Sequence[Sample]) -> Any:
        batch = token_batch([Group(Prompt("", ()), tuple(samples))])
        logp = token_scores(split, batch, temperature, MICRO_BATCH_TOKENS).logp
        return (logp.double() * batch.action).sum(-1)

    return summed


class ScoreRecorder:
    """A callback that records, step by step, both scores of the completions and their distance from the start."""

    def __init__(self, file: Path, start: str, temperature: float, beside: Sequence[Any] = ()) -> None:
        self._file, self._start, self._temperature, self._beside = file, start, temperature, tuple(beside)

    @cached_property
    def _reference(self) -> Callable[[Sequence[Sample]], Any]:
        return completion_logp(self._start, self._temperature)

    def started(self, summary: Mapping[str, Any]) -> None:
        for follower in self._beside:
            follower.started(summary)

    def stepped(self, report: StepReport, samples: Sequence[tuple[Prompt, Sample]]) -> None:
        written = [sample for _, sample in samples]
        own = [float(sample.behavior_logp[sample.action].double().sum()) for sample in written]
        gaps = [mine - float(theirs) for mine, theirs in zip(own, self._reference(written), strict=True)]
        row = {
            "step": report.step,
            "kl": fmean(gaps),
            **{name: fmean(sample.parts[name] for sample in written) for name in ("gold", "proxy")},
            "completion_tokens": fmean(sample.num_actions for sample in written),
        }
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        for follower in self._beside:
            follower.stepped(report, samples)


def read_scores(file: Path) -> list[dict[str, float]]:
    """The recorded rows by step; a step that was done again after a break counts once."""
    by_step: dict[int, dict[str, float]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:  # a kill in the middle of a line: that step is done again
            continue
        by_step[int(row["step"])] = row
    return [by_step[step] for step in sorted(by_step)]
