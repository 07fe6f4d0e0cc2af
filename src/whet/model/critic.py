"""The critic: what a state is worth. A scalar head on a trunk of its own, or on the policy's.

The value that belongs to an action is that of the state before it: it may not have seen the token it judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.lora import adapter_factors
from whet.model.placement import laid_out_like, model_copy
from whet.model.pretrained import first_line, quiet_transformers
from whet.model.run_models import run_model
from whet.model.token_logp import states_before
from whet.types import WhetError


@dataclass(frozen=True)
class Critic:
    """`trunk` is None for a head on the policy's own trunk: its states come with the policy's forward pass."""

    head: nn.Linear  # hidden -> 1
    trunk: CausalLM | None

    def values(self, states: Tensor) -> Tensor:
        """[A, D] -> [A], at least float32."""
        return self.head(states.to(self.head.weight.dtype))[:, 0]

    def states(self, policy: CausalLM, tokens: Tensor, action: Tensor, replay: Tensor | None = None) -> Tensor:
        """[A, D], of its own trunk or the policy's; the policy's routers are told the experts of `replay`."""
        return states_before(self.trunk or policy, tokens, action, replay if self.trunk is None else None)

    def state_values(self, policy: CausalLM, tokens: Tensor, action: Tensor, replay: Tensor | None = None) -> Tensor:
        """[A], of the states before the actions."""
        if self.trunk is None:
            return self.values(self.states(policy, tokens, action, replay))
        return self.trunk.one_pass(lambda: self.values(self.states(policy, tokens, action)))

    def modules(self) -> nn.ModuleDict:
        """What the critic's own optimizer trains, by name."""
        modules = nn.ModuleDict({"head": self.head})
        if self.trunk is not None:
            modules["trunk"] = self.trunk.trunk
        return modules

    def tensors(self) -> dict[str, Tensor]:
        """The critic's own weights by name, for a checkpoint."""
        modules = self.modules()
        values = {**modules.state_dict(), **adapter_factors(modules)}
        return {name: value.detach() for name, value in values.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put a checkpoint's tensors back."""
        modules = self.modules()
        places: dict[str, Tensor] = {**dict(modules.named_parameters()), **dict(modules.named_buffers())}
        modules.load_state_dict(
            {name: laid_out_like(value, places[name]) if name in places else value for name, value in tensors.items()}
        )


def critic_on(
    policy: CausalLM, *, shared: bool, start: str = "", tokenizer: Any = None, shares_weights: bool = False
) -> Critic:
    """A critic that starts as the policy with a head of zeros (every state is worth 0), or as a reward model.

    `start` is a reward model's run, or the folder of a sequence-classification model with one label; it reads the
    policy's own tokens, so a `tokenizer` of the policy's that numbers them otherwise is an error. `shares_weights`: a
    trunk of its own lies in the policy's memory until both are cut into shards.
    """
    if policy.whole:
        raise WhetError("this model's trunk cannot be told from its head, so a critic has nothing to stand on")
    size = int(policy.model.config.get_text_config().hidden_size)  # type: ignore[union-attr, operator]
    if start and shared:
        raise WhetError(f"critic.start={start} needs a trunk of its own; give critic.trunk=own")
    if start:
        start = str(run_model(Path(start).expanduser()) or Path(start).expanduser())
        critic = _from_reward_model(start, policy)
        _check_tokens(start, tokenizer)
        return critic
    head = nn.Linear(size, 1, device=policy.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    if shared:
        return Critic(head, None)
    return Critic(head, _own_trunk(policy, shares_weights))


def _own_trunk(policy: CausalLM, shares_weights: bool) -> CausalLM:
    twin: Any = model_copy(policy.model, shares_weights)
    twin.train(policy.model.training)
    return causal_lm(twin, policy.dtype, policy.recompute)


def _from_reward_model(folder: str, policy: CausalLM) -> Critic:
    from transformers import AutoModelForSequenceClassification

    if not Path(folder).is_dir():
        raise WhetError(f"critic.start={folder}: no such folder; give a reward model's run, or a folder of its model")
    try:
        with quiet_transformers():
            judge: Any = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise WhetError(f"critic.start={folder}: not a sequence-classification model ({first_line(error)})") from error
    layer = getattr(judge, "score", None)
    if layer is None or layer.weight.shape[0] != 1:
        raise WhetError(f"critic.start={folder}: a critic needs a `score` head of one label")
    if judge.config.get_text_config().vocab_size != policy.vocabulary:
        raise WhetError(
            f"critic.start={folder}: its vocabulary has {judge.config.get_text_config().vocab_size} tokens and the "
            f"policy's {policy.vocabulary}; give a reward model of the same tokenizer"
        )
    judge.to(policy.device)
    head = nn.Linear(layer.weight.shape[1], 1, device=policy.device)
    with torch.no_grad():
        head.weight.copy_(layer.weight)
        head.bias.zero_()
    if getattr(policy.model, "is_gradient_checkpointing", False):  # its own layers recompute, and so do the critic's
        judge.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trunk = CausalLM(judge, judge.base_model, _no_logits, False, policy.takes_positions, policy.dtype, policy.recompute)
    return Critic(head, trunk)


def _check_tokens(folder: str, tokenizer: Any) -> None:
    from transformers import AutoTokenizer

    if tokenizer is None or not (Path(folder) / "tokenizer_config.json").is_file():
        return
    with quiet_transformers():
        own = AutoTokenizer.from_pretrained(folder, local_files_only=True).get_vocab()
    known = tokenizer.get_vocab()
    apart = sum(own.get(word) != number for word, number in known.items())
    if apart:
        raise WhetError(
            f"critic.start={folder}: its tokenizer has {apart} of the policy's {len(known)} tokens not, or under "
            "another number, and a critic reads the policy's tokens; give a reward model of the same tokenizer, or use "
            "this one as the reward `learned`, which reads text"
        )


def _no_logits(hidden: Tensor) -> Tensor:
    raise TypeError("a critic has no vocabulary head")
