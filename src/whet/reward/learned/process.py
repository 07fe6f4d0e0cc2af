"""Steps scored by a process reward model: a token classifier, or a language model that says good or bad."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from whet.reward.learned.ensemble_reward import EnsembleReward, EnsembleSettings, check_choice
from whet.reward.learned.members import head_scales
from whet.reward.learned.network import Kind, Network, Tokens, read_network
from whet.reward.learned.outcome import member_labels
from whet.types import Prompt, Sample, WhetError

logger = logging.getLogger(__name__)

Steps = list[tuple[int, float]]
Aggregate = Literal["min", "mean", "last", "product"]
SEPARATOR = "step_separator"  # of a saved model's config: what ended a step in its training
EMPTY_LINE = "\n\n"


@dataclass(frozen=True, kw_only=True)
class StepSettings(EnsembleSettings):
    """Which models score the steps of a completion, where a step ends, and what the completion gets for them."""

    name: str = "learned_steps"
    separator: str = ""  # ends a step; "" for the one the model was trained with, else an empty line
    tag: str = ""  # written after a step, the score is read there; "" for the separator itself
    after_tag: str = ""  # written after the tag
    label: str = ""  # of a token classifier: which label is a right step; the second of two
    good: str = "+"  # of a language model: the token that stands for a right step,
    bad: str = "-"  # and the one for a wrong step
    aggregate: Aggregate = "min"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.aggregate, Aggregate, f"aggregate of reward {self.name!r}")


def learned_steps(**settings: Any) -> LearnedSteps:
    """The score of a process reward model over the steps, in [0, 1]; `mean_minus_std` can go below."""
    return LearnedSteps(StepSettings(**settings))


learned_steps.__signature__ = inspect.signature(StepSettings, eval_str=True)  # type: ignore[attr-defined]


class LearnedSteps(EnsembleReward[StepSettings]):
    """The aggregate of a completion's step scores; each score is the probability that the step is right.

    `steps` gives them one by one, for methods that learn from every step. A completion without a step gets 0, one that
    outgrows a model's context None.
    """

    deterministic = True

    def __init__(self, settings: StepSettings) -> None:
        super().__init__(settings)
        self._networks: list[tuple[Network, Kind, tuple[int, ...]]] = []
        self._latest: dict[tuple[str, str], Steps | None] = {}

    def prepare(self) -> None:
        """Load the models, once."""
        if self._networks:
            return
        networks = []
        for place in self.settings.places:
            network, kind = read_network(place, ["token", "causal"])
            networks.append((network, kind, self._choices(network, kind)))
        self._networks = networks

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        completions = [sample.completion for sample in samples]
        scores = self._step_scores(prompts, completions)
        keys = [(prompt.id, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        self._latest = dict(zip(keys, scores, strict=True))
        return [
            None if steps is None else aggregated([score for _, score in steps], self.settings.aggregate)
            for steps in scores
        ]

    def steps(self, prompt: Prompt, completion: str) -> Steps:
        """(end of the step in characters of the completion, its score), in order."""
        key = (prompt.id, completion)
        if key not in self._latest:
            self._latest[key] = self._step_scores([prompt], [completion])[0]
        return self._latest[key] or []

    @property
    def separator(self) -> str:
        """What ends a step: the given text, or that of the models, which have to agree."""
        if self.settings.separator:
            return self.settings.separator
        self.prepare()
        own = {str(getattr(network.model.config, SEPARATOR, None) or EMPTY_LINE) for network, _, _ in self._networks}
        if len(own) > 1:
            listed = " and ".join(sorted(map(repr, own)))
            raise WhetError(f"reward {self.name!r}: its models end a step by {listed}; give separator=TEXT")
        return own.pop()

    def _step_scores(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[Steps | None]:
        self.prepare()
        separator = self.separator
        ends = [step_ends(completion, separator) for completion in completions]
        by_network = [self._member_scores(*network, prompts, completions, ends) for network in self._networks]
        scored: list[Steps | None] = []
        for row, places in enumerate(ends):
            known = [scores for by_row in by_network if (scores := by_row[row]) is not None]
            if len(known) < len(by_network):
                scored.append(None)
                continue
            members = [
                [value for values in step_values for value in values] for step_values in zip(*known, strict=True)
            ]
            scored.append(list(zip(places, map(self._combined, members), strict=True)))
        return scored

    def _member_scores(
        self,
        network: Network,
        kind: Kind,
        choices: tuple[int, ...],
        prompts: Sequence[Prompt],
        completions: Sequence[str],
        ends: Sequence[Sequence[int]],
    ) -> list[list[list[float]] | None]:
        """The score of each step by each of one model's members; None for a completion that does not fit."""
        written = [self._written(network, *row) for row in zip(prompts, completions, ends, strict=True)]
        by_step: list[list[list[float]] | None] = [[] if not places else None for places in ends]
        rows = [row for row, (tokens, _) in enumerate(written) if ends[row] and len(tokens) <= network.context]
        lost = sum(bool(places) for places in ends) - len(rows)
        if lost:
            limit = network.context
            logger.warning("reward %r: %d completions outgrow its model's context of %d tokens", self.name, lost, limit)

        one_by_one = kind == "token" and head_scales(network.model.config) is not None
        logits = network.logits(
            [Tokens(written[row][0]) for row in rows],
            [prompts[row].id for row in rows],
            [written[row][1] for row in rows],
        )
        scores = [_right(row_logits, kind, choices, one_by_one) for row_logits in logits]
        for row, values in zip(rows, scores, strict=True):
            by_step[row] = values.tolist()
        return by_step

    def _written(
        self, network: Network, prompt: Prompt, completion: str, ends: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """The tokens, and the position where each step's score is read. Steps are tokenised one by one, so that no
        token runs across the end of a step."""
        tokens = network.prompt_tokens(prompt)
        separator = self.separator
        separator_tokens = network.text_tokens(self.settings.tag or separator)
        after = network.text_tokens(self.settings.after_tag) if self.settings.after_tag else []
        places = []
        for step in step_texts(completion, ends, separator):
            tokens = tokens + network.text_tokens(step) + separator_tokens
            places.append(len(tokens) - 1)
            tokens = tokens + after
        return tokens, places

    def _choices(self, network: Network, kind: Kind) -> tuple[int, ...]:
        """The numbers of the outputs that are looked at: the right one, and for a language model the wrong one."""
        if kind == "causal":
            return (self._token(network, self.settings.good), self._token(network, self.settings.bad))
        if len(network.labels) == 2 and not self.settings.label and head_scales(network.model.config) is None:
            return (1,)
        return tuple(member_labels(network, self.settings.label))

    def _token(self, network: Network, text: str) -> int:
        for written in (text, f" {text}"):
            tokens = network.text_tokens(written)
            if len(tokens) == 1 and tokens[0] != network.tokenizer.unk_token_id:
                return tokens[0]
        raise WhetError(
            f"{network.place.folder}: {text!r} is not one token of its tokenizer, so it cannot stand for a step's "
            "verdict; give good=TOKEN and bad=TOKEN as the model was trained with"
        )


def aggregated(scores: Sequence[float], how: Aggregate) -> float:
    """The score of a completion from the scores of its steps; 0 for a completion without steps."""
    if not scores:
        return 0.0
    match how:
        case "min":
            return min(scores)
        case "mean":
            return sum(scores) / len(scores)
        case "last":
            return scores[-1]
        case "product":
            return math.prod(scores)


def _right(logits: Tensor, kind: Kind, choices: tuple[int, ...], one_by_one: bool) -> Tensor:
    """The probability that each step is right, by each member: [steps, members]."""
    chosen = list(choices)
    if kind == "causal":
        return torch.softmax(logits[:, chosen], -1)[:, :1]
    if logits.shape[-1] == 1 or one_by_one:
        return torch.sigmoid(logits[:, chosen])
    return torch.softmax(logits, -1)[:, chosen]


def step_texts(completion: str, ends: Sequence[int], separator: str) -> list[str]:
    """Each step without the separator that ends it: the caller writes it once."""
    mark = separator.strip() or "\n"
    return [completion[start:end].strip().removesuffix(mark).strip() for start, end in pairwise([0, *ends])]


def step_ends(completion: str, separator: str) -> list[int]:
    """Where each step ends, in characters, its separator included; blank steps belong to the one before."""
    ends: list[int] = []
    start = 0
    for piece in completion.split(separator):
        end = min(start + len(piece) + len(separator), len(completion))
        if piece.strip():
            ends.append(end)
        elif ends:
            ends[-1] = end
        start = end
    return ends
