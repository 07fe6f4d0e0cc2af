"""Whole completions scored by a sequence classifier, or by several.

The part of a score that is only length.
"""

from __future__ import annotations

import inspect
import logging
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from whet.record.metrics.reward_model import standardized
from whet.reward.learned.ensemble_reward import EnsembleReward, EnsembleSettings, check_choice
from whet.reward.learned.members import Scale, head_scales, warn_of_scales
from whet.reward.learned.network import Network, read_network
from whet.types import Prompt, Sample, WhetError, did_you_mean


def length_slope(lengths: Sequence[float], scores: Sequence[float], groups: Sequence[Hashable]) -> float:
    """SUM (l - l_g)(s - s_g) / SUM (l - l_g)^2, with l_g and s_g the means of the row's group: what a token earns.

    Within groups, because a harder question has longer answers and other scores without either being the cause of
    the other. 0 where lengths do not vary.
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for row, group in enumerate(groups):
        members[group].append(row)
    together = spread = 0.0
    for rows in members.values():
        mean_length = sum(lengths[row] for row in rows) / len(rows)
        mean_score = sum(scores[row] for row in rows) / len(rows)
        together += sum((lengths[row] - mean_length) * (scores[row] - mean_score) for row in rows)
        spread += sum((lengths[row] - mean_length) ** 2 for row in rows)
    return together / spread if spread >= 1e-9 else 0.0


logger = logging.getLogger(__name__)

Output = Literal["auto", "raw", "probability"]
ScaleChoice = Literal["auto", "plain"]


@dataclass(frozen=True, kw_only=True)
class LearnedSettings(EnsembleSettings):
    """Which classifiers score a completion, and what is made of their outputs."""

    name: str = "learned"
    output: Output = "auto"  # raw: the logit; probability: sigmoid or softmax; auto: raw for a model of one label
    scale: ScaleChoice = "auto"  # of several members: each one's own, as saved with it; plain: scores as they are
    length_slope: float = 0.0  # what a token earns by itself, to be taken off
    length_center: float = 0.0  # tokens: the length that keeps its score

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.output, Output, f"output of reward {self.name!r}")
        check_choice(self.scale, ScaleChoice, f"scale of reward {self.name!r}")


def learned(**settings: Any) -> Learned:
    """The score of a reward model; several models or heads form an ensemble. Settings: `LearnedSettings`.

    A probability is in [0, 1]; the raw output of a model with one label has no bounds, and squashing it would hide
    the differences between good completions.
    """
    return Learned(LearnedSettings(**settings))


learned.__signature__ = inspect.signature(LearnedSettings, eval_str=True)  # type: ignore[attr-defined]


class Learned(EnsembleReward[LearnedSettings]):
    """One score per completion: the combined output of the classifiers, less what its length alone would earn.

    The heads of one model are members like the models of several folders; several are put on one scale first, where
    each knows its own. None for a conversation that is longer than a model's context.
    """

    says_right = False  # its scores have no value that stands for a right answer
    deterministic = True

    def __init__(self, settings: LearnedSettings) -> None:
        super().__init__(settings)
        self._networks: list[tuple[Network, list[int]]] = []
        self._scales: list[Scale] | None = None
        self._is_warned = False

    def prepare(self) -> None:
        """Load the models, once."""
        if self._networks:
            return
        networks, scales = [], []
        for place in self.settings.places:
            network, _ = read_network(place, ["sequence"])
            noted = head_scales(network.model.config) or [None] * len(network.labels)
            labels = member_labels(network, self.settings.label)
            networks.append((network, labels))
            scales += [noted[label] if self._is_raw(network, labels) else None for label in labels]
        self._networks = networks
        known = [scale for scale in scales if scale is not None]
        if len(known) == len(scales) > 1 and self.settings.scale == "auto":
            self._scales = known
        if len(scales) == 1 and self.settings.ensemble != "mean":
            logger.warning("reward %r: ensemble=%s of a single member is its score", self.name, self.settings.ensemble)

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        self.prepare()
        completions = [sample.completion for sample in samples]
        scores = self._score(prompts, completions)
        slope, center = self.settings.length_slope, self.settings.length_center
        if not slope:
            return scores
        lengths = [len(self._networks[0][0].text_tokens(completion)) for completion in completions]
        return [
            None if score is None else score - slope * (length - center)
            for score, length in zip(scores, lengths, strict=True)
        ]

    def _score(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float | None]:
        by_network = [self._outputs(network, labels, prompts, completions) for network, labels in self._networks]
        member_scores = [_joined(outputs) for outputs in zip(*by_network, strict=True)]
        self._warn_of_scales([scores for scores in member_scores if scores is not None])
        return [
            None if scores is None else self._combined(standardized(scores, self._scales)) for scores in member_scores
        ]

    def _warn_of_scales(self, scores: Sequence[Sequence[float]]) -> None:
        if not scores or len(scores[0]) < 2:
            return
        is_raw = all(self._is_raw(*network) for network in self._networks)
        if self._scales is None and is_raw and self.settings.scale == "auto" and not self._is_warned:
            self._is_warned = warn_of_scales(scores, self.name)

    def _outputs(
        self, network: Network, labels: Sequence[int], prompts: Sequence[Prompt], completions: Sequence[str]
    ) -> list[list[float] | None]:
        """The outputs of one model's members for each completion."""
        tokens = [network.conversation_tokens(*pair) for pair in zip(prompts, completions, strict=True)]
        fitting = [row for row, sequence in enumerate(tokens) if 0 < len(sequence.ids) <= network.context]
        if len(fitting) < len(tokens):
            lost, limit = len(tokens) - len(fitting), network.context
            logger.warning("reward %r: %d completions outgrow its model's context of %d tokens", self.name, lost, limit)
        logits = network.logits([tokens[row] for row in fitting], [prompts[row].id for row in fitting])
        scored = [self._output(network, row_logits[0], labels) for row_logits in logits]
        outputs: list[list[float] | None] = [None] * len(tokens)
        for row, values in zip(fitting, scored, strict=True):
            outputs[row] = values.tolist()
        return outputs

    def _is_raw(self, network: Network, labels: Sequence[int]) -> bool:
        are_members = len(labels) == len(network.labels) or head_scales(network.model.config) is not None
        return self.settings.output == "raw" or (self.settings.output == "auto" and are_members)

    def _output(self, network: Network, logits: Tensor, labels: Sequence[int]) -> Tensor:
        logits = logits.float()
        config = network.model.config
        chosen = list(labels)
        if self._is_raw(network, labels):
            return logits[chosen]
        one_by_one = len(network.labels) == 1 or head_scales(config) is not None
        several = one_by_one or config.problem_type == "multi_label_classification"
        return torch.sigmoid(logits[chosen]) if several else torch.softmax(logits, -1)[chosen]


def _joined(outputs: Sequence[list[float] | None]) -> list[float] | None:
    """All members' outputs for a completion; None where one of them has none."""
    scored = [output for output in outputs if output is not None]
    return [value for output in scored for value in output] if len(scored) == len(outputs) else None


def member_labels(network: Network, label: str) -> list[int]:
    """The numbers of the labels that are members: every head of an ensemble, else the one that is named."""
    if not label and head_scales(network.model.config) is not None:
        return list(range(len(network.labels)))
    return [label_number(network, label)]


def label_number(network: Network, label: str) -> int:
    """The number of the label whose output is the score."""
    labels = network.labels
    known = f"its labels: {', '.join(labels)}"
    if not label:
        if len(labels) == 1:
            return 0
        raise WhetError(f"{network.place.folder} has {len(labels)} labels and none is named; give label=NAME, {known}")
    lowered = [known_label.casefold() for known_label in labels]
    if label.casefold() in lowered:
        return lowered.index(label.casefold())
    if label.isdigit() and int(label) < len(labels):
        return int(label)
    raise WhetError(f"{network.place.folder} has no label {label!r}{did_you_mean(label, labels)}; {known}")
