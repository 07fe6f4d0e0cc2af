"""A causal language model cut in two: a trunk that ends in hidden states and a vocabulary head.

Training and sampling both go through this cut, so that logits are only ever built for the positions that need them,
a chunk at a time. The cut is checked against the model's own forward once; a model that does more between trunk and
logits than we know keeps its head in the trunk (the head is then the identity) and still works, with larger memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from whet.model.head import VocabularyHead
from whet.model.trials import verdict

Recompute = Literal["none", "wide", "layers"]
T = TypeVar("T")


class Gathering(Protocol):
    """How a model whose weights lie in shards is run: what a pass reads is gathered for as long as it reads it.

    All ranks make the same passes in the same order. What a function returns is a tensor or a tuple of them.
    """

    device: torch.device  # where passes are computed; shards may lie elsewhere
    dtype: torch.dtype  # of the gathered weights of layers

    def one_pass(self, work: Callable[[], T]) -> T:
        """Run `work` with the weights outside of layers gathered. They stay so until the backward pass, if there is
        one."""
        ...

    def hold(self, work: Callable[[], T]) -> T:
        """Run `work` as `one_pass` does, but keep the weights gathered until `release`."""
        ...

    def release(self) -> None:
        """Free the gathered weights."""
        ...

    def one_layer(self, layer: nn.Module, work: Callable[..., T], *inputs: Tensor | None) -> T:
        """Run `work(*inputs)` with the layer's weights gathered, in its backward pass too."""
        ...


@dataclass(frozen=True)
class CausalLM:
    """`logits(hidden(...))` are the model's logits. Sampler and trainer share it, precision included."""

    model: nn.Module
    trunk: nn.Module
    head: Callable[[Tensor], Tensor]  # [M, D] -> [M, V]
    whole: bool  # True: the trunk is the whole model and the head the identity
    takes_positions: bool
    dtype: torch.dtype = torch.float32  # of the matrix products; the weights keep their own
    recompute: Recompute = "none"  # what training computes a second time instead of keeping it
    gathering: Gathering | None = None  # None: the weights are whole
    follows_sampler: bool = False  # trained on what its sampler has just written: with the same copies of the weights

    def one_pass(self, work: Callable[[], T]) -> T:
        """Run a forward pass, from tokens to what is made of the logits."""
        return work() if self.gathering is None else self.gathering.one_pass(work)

    def hold(self, work: Callable[[], T]) -> T:
        """A pass after which logits are still asked for; `release` ends it."""
        return work() if self.gathering is None else self.gathering.hold(work)

    def release(self) -> None:
        """Free gathered weights; nothing to do for a model that is whole."""
        if self.gathering is not None:
            self.gathering.release()

    def hidden(
        self,
        tokens: Tensor,  # int64 [N, T]
        attention_mask: Tensor | None = None,  # int64 [N, T including cache]
        position_ids: Tensor | None = None,  # int64 [N, T]
        cache: Any = None,
    ) -> Tensor:
        """Hidden states [N, T, D]; `cache` is a transformers cache that is read and extended in place."""
        extra: dict[str, Any] = {}
        if position_ids is not None and self.takes_positions:
            extra["position_ids"] = position_ids
        if cache is not None:
            extra[_cache_argument(self.trunk)] = cache
        with self._precision():
            output = self.trunk(input_ids=tokens, attention_mask=attention_mask, use_cache=cache is not None, **extra)
        return output.logits if self.whole else output.last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, D] -> [M, V], at least float32."""
        with self._precision(for_logits=not torch.is_grad_enabled()):
            logits = self.head(hidden)
        return logits if logits.dtype == torch.float64 else logits.float()

    def _precision(self, for_logits: bool = False) -> AbstractContextManager[Any]:
        if self.dtype.itemsize >= 4:
            return nullcontext()
        # as in `whet.model.head`: bfloat16 rounds a logit of 25 by up to 0.06; a gradient needs its range
        fine = for_logits and self.dtype == torch.bfloat16 and self.device.type == "cuda"
        return torch.autocast(self.device.type, dtype=torch.float16 if fine else self.dtype)

    @property
    def finest(self) -> torch.dtype:
        """The products of a trial, which shows smaller mistakes in float32; weights of 16 bits do not allow that."""
        narrow = min(weight.dtype.itemsize for weight in self.model.parameters()) < 4
        return self.dtype if narrow else torch.float32

    @property
    def vocabulary(self) -> int:
        """V, the number of logits."""
        return int(self.model.config.get_text_config().vocab_size)  # type: ignore[union-attr,operator]

    @property
    def device(self) -> torch.device:
        """The device on which passes are computed."""
        return next(self.model.parameters()).device if self.gathering is None else self.gathering.device


def causal_lm(model: Any, dtype: torch.dtype = torch.float32, recompute: Recompute = "none") -> CausalLM:
    """The cut that reproduces the model's own logits; `dtype` is that of its matrix products."""
    trunk = model.base_model
    if trunk is model:  # some families name their trunk otherwise than where they keep it
        trunk = getattr(model, "model", model)
    head = _head(model)
    if head is not None and trunk is not model:
        candidate = CausalLM(model, trunk, head, False, takes_positions(trunk), dtype, recompute)
        single = replace(candidate, dtype=candidate.finest, recompute="none")  # tried without gradients
        if not verdict("trunk and head", single, lambda: "" if _agrees(single) else "other logits"):
            return candidate
    return CausalLM(model, model, _identity, True, takes_positions(model), dtype, recompute)


def _identity(logits: Tensor) -> Tensor:
    return logits


def _cache_argument(trunk: nn.Module) -> str:
    """What a forward calls its cache; models without attention have a name of their own for it."""
    return "cache_params" if "cache_params" in inspect.signature(trunk.forward).parameters else "past_key_values"


def takes_positions(module: nn.Module) -> bool:
    """Whether its forward has a parameter `position_ids`."""
    return "position_ids" in inspect.signature(module.forward).parameters


def _head(model: Any) -> VocabularyHead | None:
    layer = model.get_output_embeddings()
    if layer is None:
        return None
    settings = model.config.get_text_config()
    factor = getattr(settings, "logit_scale", None) or 1.0 / (getattr(settings, "logits_scaling", None) or 1.0)
    return VocabularyHead(layer, factor, getattr(settings, "final_logit_softcapping", None))


@torch.no_grad()
def _agrees(lm: CausalLM) -> bool:
    was_training = lm.model.training
    lm.model.eval()  # two passes with dropout never agree
    try:
        return _agrees_in_eval_mode(lm)
    finally:
        lm.model.train(was_training)


def _agrees_in_eval_mode(lm: CausalLM) -> bool:
    device = lm.device
    tokens = (torch.arange(1, 7, device=device) % lm.vocabulary)[None]
    with lm._precision():
        try:
            ours = lm.head(lm.hidden(tokens)[0])
        except (TypeError, AttributeError, RuntimeError):
            return False
        theirs = lm.model(input_ids=tokens).logits[0]
    tolerance = 1e-4 if ours.dtype == torch.float32 else 5e-2
    return ours.shape == theirs.shape and torch.allclose(ours.float(), theirs.float(), rtol=tolerance, atol=tolerance)
