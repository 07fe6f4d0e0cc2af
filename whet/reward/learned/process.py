"""Steps scored by a process reward model: a token classifier, or a language model that says good or bad."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.reward.learned.ensemble import Aggregate, Ensemble, aggregated, agreed, check_choice
from whet.reward.learned.network import Kind, Network, Place, Tokens, read_network
from whet.reward.learned.outcome import check_folders, folders_of, label_number
from whet.types import Prompt, Sample, WhetError

logger = logging.getLogger(__name__)

Steps = list[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """Which models score the steps of a reply, where a step ends, and what the reply gets for them."""

    folder: str | Sequence[str] = ""  # of a token classifier or language model; several make an ensemble
    name: str = "learned_steps"
    separator: str = "\n\n"  # ends a step
    tag: str = ""  # written after a step, the score is read there; "" for the separator itself
    after_tag: str = ""  # written after the tag
    label: str = ""  # of a token classifier: which label is a right step; the second of two
    good: str = "+"  # of a language model: the token that stands for a right step,
    bad: str = "-"  # and the one for a wrong step
    aggregate: Aggregate = "min"
    ensemble: Ensemble = "mean"
    deviations: float = 1.0  # of mean_minus_std
    tokenizer: str = ""
    device: str = "auto"
    dtype: str = "auto"
    tokens_per_pass: int = 16_384

    def __post_init__(self) -> None:
        check_folders(self.folder, self.name)
        check_choice(self.aggregate, Aggregate, f"aggregate of reward {self.name!r}")
        check_choice(self.ensemble, Ensemble, f"ensemble of reward {self.name!r}")
        if not self.separator or self.tokens_per_pass < 1:
            raise WhetError(
                f"reward {self.name!r} has separator={self.separator!r} and tokens_per_pass={self.tokens_per_pass}; "
                "give a text that ends a step, and at least 1"
            )


def learned_steps(**settings: Any) -> LearnedSteps:
    """A process reward with the settings of `StepSettings`; scores in [0, 1], unless `mean_minus_std` goes below."""
    return LearnedSteps(StepSettings(**settings))


learned_steps.__signature__ = inspect.signature(StepSettings, eval_str=True)  # type: ignore[attr-defined]


class LearnedSteps:
    """The aggregate of a reply's step scores; each score is the probability that the step is right.

    `steps` gives them one by one, for methods that learn from every step. A reply without a step gets 0, one that
    outgrows a model's context None.
    """

    limits_itself = True
    deterministic = True

    def __init__(self, settings: StepSettings) -> None:
        self.settings = settings
        self._networks: list[tuple[Network, Kind, tuple[int, ...]]] = []
        self._latest: dict[tuple[str, str], Steps | None] = {}

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def made_of(self) -> Mapping[str, Any]:
        hidden = ("folder", "name", "device", "tokens_per_pass")
        settings = {key: value for key, value in vars(self.settings).items() if key not in hidden}
        return {"folder": folders_of(self.settings.folder), **settings}

    def prepare(self) -> None:
        """Load the models, once."""
        if self._networks:
            return
        networks = []
        for folder in folders_of(self.settings.folder):
            settings = self.settings
            place = Place(folder, settings.tokenizer, settings.device, settings.dtype, settings.tokens_per_pass)
            network, kind = read_network(place, ["token", "causal"])
            networks.append((network, kind, self._choices(network, kind)))
        self._networks = networks

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        replies = [sample.reply for sample in samples]
        found = self._step_scores(prompts, replies)
        keys = [(prompt.id, reply) for prompt, reply in zip(prompts, replies, strict=True)]
        self._latest = dict(zip(keys, found, strict=True))
        return [
            None if steps is None else aggregated([score for _, score in steps], self.settings.aggregate)
            for steps in found
        ]

    def steps(self, prompt: Prompt, reply: str) -> Steps:
        """(end of the step in characters of the reply, its score), in order."""
        key = (prompt.id, reply)
        if key not in self._latest:
            self._latest[key] = self._step_scores([prompt], [reply])[0]
        return self._latest[key] or []

    def _step_scores(self, prompts: Sequence[Prompt], replies: Sequence[str]) -> list[Steps | None]:
        self.prepare()
        ends = [step_ends(reply, self.settings.separator) for reply in replies]
        opinions = [self._opinions(*network, prompts, replies, ends) for network in self._networks]
        found: list[Steps | None] = []
        for row, places in enumerate(ends):
            known = [scores for each in opinions if (scores := each[row]) is not None]
            if len(known) < len(opinions):
                found.append(None)
                continue
            scores = [
                agreed(each, self.settings.ensemble, self.settings.deviations) for each in zip(*known, strict=True)
            ]
            found.append(list(zip(places, scores, strict=True)))
        return found

    def _opinions(
        self,
        network: Network,
        kind: Kind,
        choices: tuple[int, ...],
        prompts: Sequence[Prompt],
        replies: Sequence[str],
        ends: Sequence[Sequence[int]],
    ) -> list[list[float] | None]:
        """One model's score of each step; None for a reply that does not fit."""
        written = [self._written(network, *row) for row in zip(prompts, replies, ends, strict=True)]
        found: list[list[float] | None] = [[] if not places else None for places in ends]
        rows = [row for row, (tokens, _) in enumerate(written) if ends[row] and len(tokens) <= network.context]
        lost = sum(bool(places) for places in ends) - len(rows)
        if lost:
            limit = network.context
            logger.warning("reward %r: %d replies outgrow its model's context of %d tokens", self.name, lost, limit)

        def pick(logits: Tensor, number: int) -> Tensor:
            at = torch.tensor(written[rows[number]][1], device=logits.device)
            return _right(logits[at].float(), kind, choices)

        scores = network.logits([Tokens(written[row][0]) for row in rows], pick)
        for row, values in zip(rows, scores, strict=True):
            found[row] = [float(value) for value in values]
        return found

    def _written(
        self, network: Network, prompt: Prompt, reply: str, ends: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """The tokens, and the position where each step's score is read. Steps are tokenised one by one, so that no
        token runs across the end of a step."""
        tokens = network.prompt_tokens(prompt)
        mark = network.text_tokens(self.settings.tag or self.settings.separator)
        after = network.text_tokens(self.settings.after_tag) if self.settings.after_tag else []
        places, start = [], 0
        for end in ends:
            # as in training: the mark stands once, also where the reply has written it itself
            step = reply[start:end].strip().removesuffix(self.settings.separator.strip() or "\n").strip()
            tokens = tokens + network.text_tokens(step) + mark
            places.append(len(tokens) - 1)
            tokens = tokens + after
            start = end
        return tokens, places

    def _choices(self, network: Network, kind: Kind) -> tuple[int, ...]:
        """The numbers of the outputs that are looked at: the right one, and for a language model the wrong one."""
        if kind == "causal":
            return (self._token(network, self.settings.good), self._token(network, self.settings.bad))
        if len(network.labels) == 2 and not self.settings.label:
            return (1,)
        return (label_number(network, self.settings.label),)

    def _token(self, network: Network, text: str) -> int:
        for written in (text, f" {text}"):
            tokens = network.text_tokens(written)
            if len(tokens) == 1 and tokens[0] != network.tokenizer.unk_token_id:
                return tokens[0]
        raise WhetError(
            f"{network.place.folder}: {text!r} is not one token of its tokenizer, so it cannot stand for a step's "
            "verdict; give good=TOKEN and bad=TOKEN as the model was trained with"
        )


def _right(logits: Tensor, kind: Kind, choices: tuple[int, ...]) -> Tensor:
    """The probability that each step is right: [steps]."""
    if kind == "causal":
        return torch.softmax(logits[:, list(choices)], -1)[:, 0]
    if logits.shape[-1] == 1:
        return torch.sigmoid(logits[:, 0])
    return torch.softmax(logits, -1)[:, choices[0]]


def step_ends(reply: str, separator: str) -> list[int]:
    """Where each step ends, in characters, its separator included; blank steps belong to the one before."""
    ends: list[int] = []
    start = 0
    for piece in reply.split(separator):
        end = min(start + len(piece) + len(separator), len(reply))
        if piece.strip():
            ends.append(end)
        elif ends:
            ends[-1] = end
        start = end
    return ends
