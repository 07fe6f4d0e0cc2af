"""A frozen classifier or language model from a folder, with its own tokenizer.

transformers gives a model without a trained head a random one, and only warns: here that is an error, as is a
tokenizer that cannot be the model's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from whet.data.chat import templated
from whet.data.families import classifier_batch, classifier_rows, family_micro_batches
from whet.model.causal_lm import CausalLM, takes_positions
from whet.model.load import device_choice
from whet.model.pretrained import quiet_transformers
from whet.model.scalar_head import ScalarModel
from whet.model.server_client import one_line
from whet.model.token_logp import packs
from whet.types import Prompt, WhetError

logger = logging.getLogger(__name__)

Kind = Literal["sequence", "token", "causal"]

SUFFIX: dict[Kind, str] = {
    "sequence": "ForSequenceClassification",
    "token": "ForTokenClassification",
    "causal": "ForCausalLM",
}
DTYPES = ("auto", "float32", "bfloat16", "float16")
NO_LIMIT = 10**9


@dataclass(frozen=True)
class Place:
    """The folder of a network, and the device and dtype in which it runs."""

    folder: str
    tokenizer: str = ""  # another folder; "" for the same
    device: str = "auto"
    dtype: str = "auto"
    micro_batch_tokens: int = 16_384


class Tokens(NamedTuple):
    """What a model reads: its tokens and, for a pair of texts, which of the two each belongs to."""

    ids: Sequence[int]
    types: Sequence[int] = ()


@dataclass(frozen=True)
class Network:
    """A model that is only ever read."""

    place: Place
    model: Any
    tokenizer: Any
    labels: tuple[str, ...]  # () for a language model
    context: int  # tokens
    padding: int | None  # the model's own padding token
    scalar: ScalarModel | None = None  # a decoder with a linear head: completions share their prompt's computation

    def logits(
        self, sequences: Sequence[Tokens], groups: Sequence[Hashable], places: Sequence[Sequence[int]] | None = None
    ) -> list[Tensor]:
        """The model's outputs at the `places` of each sequence, [places, labels], in order, float32 on the CPU.

        Without places, a sequence classifier's one output. Sequences of one group (the completions to one prompt)
        are computed together, and what they begin with only once, where the model allows it.
        """
        if self.scalar is not None and places is None:
            places = [[self._last(sequence.ids)] for sequence in sequences]
        if self.scalar is not None and places is not None:
            return self._shared_logits(sequences, groups, places)
        every: dict[int, Tensor] = {}
        for rows in batches([len(sequence.ids) for sequence in sequences], self.place.micro_batch_tokens):
            inputs = self._padded([sequences[row] for row in rows])
            with torch.inference_mode():
                logits = self.model(**inputs).logits
            for at, row in enumerate(rows):
                every[row] = (logits[at][None] if places is None else logits[at][list(places[row])]).float().cpu()
        return [every[row] for row in range(len(sequences))]

    def _shared_logits(
        self, sequences: Sequence[Tokens], groups: Sequence[Hashable], places: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        assert self.scalar is not None
        families = list(self._families(sequences, groups))
        rows = [[tuple(sequences[row].ids) for row in family] for family in families]
        scored = [
            classifier_rows(family_rows, [places[row] for row in family])
            for family_rows, family in zip(rows, families, strict=True)
        ]
        every: dict[int, Tensor] = {}
        for numbers in family_micro_batches(scored, self.place.micro_batch_tokens, packed=True):
            batch = classifier_batch([scored[number] for number in numbers])
            with torch.no_grad():
                scores = self.scalar.scores(batch.tokens, batch.scored, batch.shared).float().cpu()
            order = [row for number in numbers for row in families[number]]
            every.update(zip(order, scores.split([len(places[row]) for row in order]), strict=True))
        return [every[row] for row in range(len(sequences))]

    def _families(self, sequences: Sequence[Tokens], groups: Sequence[Hashable]) -> Iterator[list[int]]:
        """Rows of one group, as many as fit into a pass."""
        members: dict[Hashable, list[int]] = {}
        for row, group in enumerate(groups):
            members.setdefault(group, []).append(row)
        for rows in members.values():
            longest = max(len(sequences[row].ids) for row in rows)
            most = max(1, self.place.micro_batch_tokens // longest)
            yield from (rows[start : start + most] for start in range(0, len(rows), most))

    def _last(self, ids: Sequence[int]) -> int:
        """The index at which transformers' own classifiers read a sequence: its last token that is not padding."""
        return next((at for at in range(len(ids) - 1, 0, -1) if ids[at] != self.padding), 0)

    def _padded(self, sequences: Sequence[Tokens]) -> dict[str, Tensor]:
        width = max(len(sequence.ids) for sequence in sequences)
        padding = self.padding
        if padding is None:
            # a decoder reads its score at the last token that is not this one, so it must not be in any sequence
            used = {token for sequence in sequences for token in sequence.ids}
            padding = next(token for token in range(len(used) + 1) if token not in used)
            self.model.config.get_text_config().pad_token_id = padding
        device = self.model.device

        def padded(rows: Sequence[Sequence[int]], filling: int) -> Tensor:
            return torch.tensor([[*row, *[filling] * (width - len(row))] for row in rows], device=device)

        inputs = {
            "input_ids": padded([sequence.ids for sequence in sequences], padding),
            "attention_mask": padded([[1] * len(sequence.ids) for sequence in sequences], 0),
        }
        if sequences[0].types:
            inputs["token_type_ids"] = padded([sequence.types for sequence in sequences], 0)
        return inputs

    def text_tokens(self, text: str) -> list[int]:
        """The tokens of a text without those that open or close it."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        """The tokens before the completion, including the token that opens the text."""
        if prompt.text is None and self.tokenizer.chat_template:
            return self.text_tokens(templated(self.tokenizer, prompt.messages, prompt.id, open_completion=True))
        text = prompt.text if prompt.text is not None else plain_text(prompt) + "\n"
        return list(self.tokenizer(text)["input_ids"])

    def conversation_tokens(self, prompt: Prompt, completion: str) -> Tokens:
        """Prompt and completion: by the chat template, else as the pair of texts of older classifiers."""
        if prompt.text is None and self.tokenizer.chat_template:
            messages = (*prompt.messages, {"role": "assistant", "content": completion})
            return Tokens(self.text_tokens(templated(self.tokenizer, messages, prompt.id)))
        if self.tokenizer.sep_token_id is not None:
            # the model decides, not the tokenizer: not every saved one remembers that its model wants them
            typed = getattr(self.model.config, "type_vocab_size", 0) > 1
            pair = self.tokenizer(plain_text(prompt), completion, return_token_type_ids=typed)
            return Tokens(list(pair["input_ids"]), list(pair["token_type_ids"]) if typed else ())
        between = "" if prompt.text is not None else "\n"
        return Tokens(list(self.tokenizer(plain_text(prompt) + between + completion)["input_ids"]))


def plain_text(prompt: Prompt) -> str:
    """The prompt without a chat template: its text, else its messages' contents, one per line, roles left out."""
    return prompt.text if prompt.text is not None else "\n".join(message["content"] for message in prompt.messages)


def batches(lengths: Sequence[int], micro_batch_tokens: int) -> Iterator[list[int]]:
    """Row numbers, long ones first, so many at once that rows * longest stays within the budget; at least one."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if rows and (len(rows) + 1) * lengths[rows[0]] > micro_batch_tokens:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows


def read_network(place: Place, kinds: Sequence[Kind]) -> tuple[Network, Kind]:
    """The network of a folder, and which of the `kinds` it is."""
    folder = Path(place.folder)
    if not (folder / "config.json").is_file():
        raise WhetError(f"{place.folder or '(no folder)'} has no config.json; give the folder of a saved model")
    transformers = _library()
    with quiet_transformers():
        config = _read(lambda: transformers.AutoConfig.from_pretrained(folder, **_LOCAL), place.folder, "config.json")
        kind = _kind_of(config, kinds, place.folder)
        model = _model(transformers, place, kind, config)
        home = place.tokenizer or place.folder
        tokenizer = _read(
            lambda: transformers.AutoTokenizer.from_pretrained(home, **_LOCAL),
            home,
            "tokenizer",
            "give tokenizer=FOLDER",
        )
    _check_vocabulary(model, tokenizer, place)
    labels = () if kind == "causal" else tuple(str(model.config.id2label[at]) for at in range(model.config.num_labels))
    text_config = model.config.get_text_config()
    longest = getattr(text_config, "max_position_embeddings", None)
    context = min(int(longest or NO_LIMIT), int(getattr(tokenizer, "model_max_length", NO_LIMIT) or NO_LIMIT))
    scalar = None if kind == "causal" else _shared_prefix_model(model)
    return Network(place, model, tokenizer, labels, context, text_config.pad_token_id, scalar), kind


_LOCAL = {"local_files_only": True, "trust_remote_code": False}


def _model(transformers: ModuleType, place: Place, kind: Kind, config: Any) -> Any:
    device, dtype = device_choice(place.device), _dtype(place, config)
    loader = getattr(transformers, f"AutoModel{SUFFIX[kind]}")
    loaded = _read(
        lambda: loader.from_pretrained(place.folder, dtype=dtype, output_loading_info=True, **_LOCAL),
        place.folder,
        "weights",
    )
    model, loading = loaded
    missing = sorted(set(loading.get("missing_keys") or ()) - set(getattr(model, "all_tied_weights_keys", None) or ()))
    wrong = sorted(str(entry[0]) for entry in loading.get("mismatched_keys") or ())
    if missing or wrong:
        raise WhetError(
            f"{place.folder} lacks {', '.join((missing or wrong)[:3])} of {type(model).__name__}, which would be "
            "random numbers; give a folder with a trained head, or save the model again with all its weights"
        )
    model.eval().requires_grad_(False).to(device)
    return model


def _kind_of(config: Any, kinds: Sequence[Kind], folder: str) -> Kind:
    names = [str(name) for name in getattr(config, "architectures", None) or ()]
    for kind in kinds:
        if any(name.endswith((SUFFIX[kind], "LMHeadModel" if kind == "causal" else SUFFIX[kind])) for name in names):
            return kind
    wanted = " or ".join(SUFFIX[kind].removeprefix("For") for kind in kinds)
    raise WhetError(
        f"{folder} holds {', '.join(names) or 'a model of no stated architecture'}, which is no {wanted} model; give "
        "the folder of a reward model, or train one and save it as such"
    )


def _check_vocabulary(model: Any, tokenizer: Any, place: Place) -> None:
    rows = int(model.get_input_embeddings().num_embeddings)
    highest = max(tokenizer.get_vocab().values(), default=0) + 1
    if highest > rows or 2 * highest < rows:
        raise WhetError(
            f"the tokenizer of {place.tokenizer or place.folder} has {highest} tokens and the model {place.folder} was "
            f"made for {rows}: it is another model's; give tokenizer=FOLDER of the one it was trained with"
        )


def _read(load: Callable[[], Any], folder: str, what: str, fix: str = "save the model again, or give another") -> Any:
    try:
        return load()
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise WhetError(f"{folder}: its {what} cannot be read: {one_line(str(error))}; {fix}") from error


def _shared_prefix_model(model: Any) -> ScalarModel | None:
    """The classifier as a trunk and a linear head, where rows that share a prefix give the outputs of rows alone."""
    head = getattr(model, "score", None)
    if not isinstance(head, torch.nn.Linear) or model.dtype != torch.float32 or model.base_model is model:
        return None
    lm = CausalLM(model, model.base_model, head, False, takes_positions(model.base_model))
    return ScalarModel(model, lm, head) if packs(lm) else None


def _dtype(place: Place, config: Any) -> torch.dtype:
    if place.dtype not in DTYPES:
        raise WhetError(f"dtype of a learned reward is {place.dtype!r}; give one of {', '.join(DTYPES)}")
    if place.dtype != "auto":
        return getattr(torch, place.dtype)
    saved = getattr(config, "dtype", None)
    if saved in (torch.bfloat16, torch.float16) and device_choice(place.device).type == "cuda":
        return saved
    return torch.float32


def _library() -> ModuleType:
    import transformers

    return transformers
