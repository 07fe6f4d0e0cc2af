"""Scalar heads on a causal language model: what a reward model is. Several are an ensemble on one trunk.

The model that is saved is transformers' own classifier with a label for each head; it shares its trunk with the
language model it was made from, whose packed forward pass serves here. A score is read at a token, from the state that
has seen it. That its labels are members of an ensemble, and where each one's scores lie, stands in its config.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whet.model.causal_lm import CausalLM
from whet.model.pretrained import quiet_transformers
from whet.model.shared_prefix import to_device
from whet.model.token_logp import states_before
from whet.types import WhetError

Kind = Literal["sequence", "token"]
CLASSES: dict[Kind, str] = {
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
}
MEMBERS = "score_members"  # of the config: [centre, scale] of each head, or None where they were not measured


@dataclass(frozen=True)
class ScalarModel:
    """`model` is what is trained and saved; `lm` walks its trunk."""

    model: Any  # transformers' classifier of K labels
    lm: CausalLM
    head: nn.Linear  # hidden -> K

    @property
    def num_heads(self) -> int:
        """How many scores a completion gets."""
        return self.head.out_features

    def scores(
        self,
        tokens: Tensor,  # int64 [N, T], right-padded
        scored: Tensor,  # bool [N, T], the tokens to score
        shared: Tensor,  # int64 [N], leading tokens that a row may have in common with others
    ) -> Tensor:
        """Each head's score of each scored token, in row order: [A, K], at least float32, with gradient."""
        # the state that has seen a token is the one before the next; a last column stands for what never comes
        wide = torch.nn.functional.pad(tokens, (0, 1))
        after = torch.nn.functional.pad(scored, (1, 0))
        column = torch.arange(wide.shape[1], device=tokens.device)
        opens = (column == shared.clamp(min=1)[:, None]) & after.any(-1, keepdim=True)
        action = after | opens

        def scored_states() -> Tensor:
            states = states_before(self.lm, wide, action)
            # places, not flags: to count flags on a device is to wait for it
            wanted = states[to_device(after[action].nonzero()[:, 0], states.device)]
            scores: Tensor = self.head(wanted.to(self.head.weight.dtype))
            return scores

        return self.lm.one_pass(scored_states)

    def note_scales(self, scales: Sequence[Sequence[float]] | None) -> None:
        """Write each head's centre and scale into what is saved; None once the weights have moved on."""
        noted = [None] * self.num_heads if scales is None else [list(scale) for scale in scales]
        setattr(self.model.config, MEMBERS, noted)

    @property
    def noted_scales(self) -> list[list[float]] | None:
        """What `note_scales` has written, as JSON."""
        noted = getattr(self.model.config, MEMBERS)
        return None if None in noted else noted


def scalar_model(
    language: CausalLM,
    kind: Kind,
    seed: int,
    end_tokens: Iterable[int] = (),
    paddings: Iterable[int | None] = (),
    heads: int = 1,
) -> ScalarModel:
    """A classifier on the language model's own trunk, its heads drawn from N(0, 1/(D+1)) by `seed`.

    A classifier reads its score at the last token that is not padding, so padding must be none of the `end_tokens`
    that close a row: the first of `paddings` that is not, else another token of the vocabulary.
    """
    if language.whole:
        raise WhetError("this model's trunk cannot be told from its head, so a score has nothing to stand on")
    model = _shell(language, kind, heads)
    trunk = model.base_model
    setattr(model, model.base_model_prefix, language.trunk)
    size = int(model.config.get_text_config().hidden_size)
    head = nn.Linear(size, heads, bias=model.score.bias is not None, device=language.device)
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.weight.copy_(torch.randn(heads, size, generator=stream) / math.sqrt(size + 1))
        if head.bias is not None:
            head.bias.zero_()
    model.score = head
    left = [name for name, value in model.named_parameters() if value.is_meta]
    if left or trunk is model.base_model:
        raise WhetError(f"{type(model).__name__} has weights besides trunk and score ({left[:2]}); give another model")
    for module in model.children():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    chosen = padding_token(language.vocabulary, end_tokens, paddings)
    model.config.pad_token_id = model.config.get_text_config().pad_token_id = chosen
    model.train(language.model.training)
    made = ScalarModel(model, language, head)
    made.note_scales(None)
    return made


def padding_token(vocabulary: int, end_tokens: Iterable[int], paddings: Iterable[int | None]) -> int:
    """The first padding that no row ends in; where there is none, the last such token of the vocabulary."""
    ends = set(end_tokens)
    wanted = [token for token in paddings if token is not None and token < vocabulary]
    return next(token for token in [*wanted, *range(vocabulary - 1, -1, -1)] if token not in ends)


def _shell(language: CausalLM, kind: Kind, heads: int) -> Any:
    """An instance of the transformers classifier without weights."""
    import transformers

    source: Any = language.model
    config = type(source.config).from_dict(source.config.to_dict())
    names = ["score"] if heads == 1 else [f"score_{number}" for number in range(1, heads + 1)]
    config.num_labels = heads
    config.id2label, config.label2id = dict(enumerate(names)), {name: number for number, name in enumerate(names)}
    try:
        with quiet_transformers(), torch.device("meta"):
            model = getattr(transformers, CLASSES[kind]).from_config(config)
    except ValueError as error:
        raise WhetError(
            f"transformers has no {kind} classifier for {config.model_type} models; give a model of another kind, "
            "such as llama, qwen2 or gemma"
        ) from error
    if not isinstance(getattr(model, "score", None), nn.Linear):
        raise WhetError(
            f"{type(model).__name__} has no linear `score` head; give a model of another kind, such as llama or qwen2"
        )
    return model
