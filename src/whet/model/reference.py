"""The reference policy: what the trained one is held close to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.lora import adapters_off
from whet.model.placement import fill, model_copy

Model = TypeVar("Model", bound=nn.Module)


def frozen(model: Model) -> Model:
    """The model in eval mode, unable to learn."""
    return model.eval().requires_grad_(False)


class FrozenModel:
    """A model of its own that stays as it is: a teacher, or another reference than the policy as it began."""

    def __init__(self, lm: CausalLM) -> None:
        frozen(lm.model)
        self._lm = lm

    @contextmanager
    def open(self) -> Iterator[CausalLM]:
        """The model, which is always there."""
        yield self._lm


class CopiedReference(FrozenModel):
    """A second copy of the policy in memory, or another model there. It may be moved towards the policy."""

    def __init__(self, policy: CausalLM, shares_weights: bool = False, other: CausalLM | None = None) -> None:
        """`shares_weights`: with the policy, until both are cut into shards. `other` stands in for the copy."""
        super().__init__(other or causal_lm(frozen(model_copy(policy.model, shares_weights)), policy.dtype))

    def place(self, change: Callable[[CausalLM], CausalLM]) -> None:
        """Keep the copy another way, such as in shards."""
        self._lm = change(self._lm)

    @torch.no_grad()
    def follow(self, policy: CausalLM, share: float) -> None:
        """reference <- share * reference + (1 - share) * policy."""
        for mine, theirs in zip(self._lm.model.parameters(), policy.model.parameters(), strict=True):
            # at share = 0 the copy must be exact: lerp would leave rounding
            mine.copy_(theirs if share == 0 else mine * share + theirs * (1 - share))

    def tensors(self) -> dict[str, Tensor]:
        """The reference's weights by name; a weight that two layers share occurs once."""
        return {name: value.detach() for name, value in self._lm.model.named_parameters()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put a checkpoint's tensors into the copy."""
        for name, parameter in self._lm.model.named_parameters():
            fill(parameter, tensors[name])


class ReloadedReference:
    """Read anew from its source whenever it is asked, and dropped again: slower, but no second copy while training."""

    def __init__(self, load: Callable[[], CausalLM]) -> None:
        self.load = load

    @contextmanager
    def open(self) -> Iterator[CausalLM]:
        """Load the model for as long as the block lasts."""
        loaded = self.load()
        frozen(loaded.model)
        yield loaded


class AdapterFreeReference:
    """The policy itself with its adapters off: the model it began as, bit for bit, and no second copy.

    While it is asked there is no policy: a pass that needs both at once cannot have it.
    """

    def __init__(self, policy: CausalLM) -> None:
        self._policy = policy

    @contextmanager
    def open(self) -> Iterator[CausalLM]:
        """The policy with its adapters off inside the block."""
        with adapters_off(self._policy.model):
            yield self._policy


ReferencePolicy = CopiedReference | ReloadedReference | AdapterFreeReference
