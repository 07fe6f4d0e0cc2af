"""Which experts the routers of a mixture choose: noted in a forward pass, or replayed from an earlier one.

The hook is the router's own `topk` over its experts. A router that is told whom to choose gives its own scores for
them: softmax, renormalisation and scaling after `topk` stay the model's, and so does the gradient into the router. For
a router of softmax and renormalised weights that is R3's gate (Ma et al. 2025, arXiv 2510.11370): exp(s_i) over the sum
of exp(s_j) of the replayed experts j, with the current logits s. Which modules are routers is found by trying, once per
model; a model whose routers do without `topk` (sampled or hashed experts) is not covered, and says so.

Tables of experts are [tokens, layers, k], tokens in the flat order of what `CausalLM.hidden` was given, -1 where nobody
knows: there a router chooses by itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whet.model.causal_lm import CausalLM
from whet.model.recomputation import recomputed_within

UNKNOWN = -1  # no expert is known: the router's own choice stands
COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")  # what configs call them
TOPK = (torch.topk, Tensor.topk)
NO_MIXTURE = "the model is no mixture of experts"


@dataclass(frozen=True)
class Routers:
    """The routers of a model, in the order of its layers."""

    modules: tuple[nn.Module, ...]  # whose forward calls `topk` over the experts
    calls: tuple[int, ...]  # how often each does so: the last call decides (others score groups of experts)
    num_experts: int
    experts_per_token: int
    layer_numbers: tuple[int, ...]  # of all layers of the model, those without experts included

    @property
    def num_layers(self) -> int:
        """How many layers have a router."""
        return len(self.modules)

    @property
    def dtype(self) -> torch.dtype:
        """The number type of tables of experts: room for every expert and for -1."""
        return torch.int8 if self.num_experts <= 128 else torch.int16

    def unknown(self, *sizes: int, device: torch.device | None = None) -> Tensor:
        """A table [*sizes, layers, k] of which nothing is known."""
        shape = (*sizes, self.num_layers, self.experts_per_token)
        return torch.full(shape, UNKNOWN, dtype=self.dtype, device=device)


_FOUND: weakref.WeakKeyDictionary[nn.Module, Routers | str] = weakref.WeakKeyDictionary()


def is_mixture(lm: CausalLM) -> bool:
    """Whether the model's config names experts to choose among."""
    return _num_experts(lm) > 1


def _num_experts(lm: CausalLM) -> int:
    settings = lm.model.config.get_text_config()  # type: ignore[union-attr,operator]
    return next((count for name in COUNTS if (count := getattr(settings, name, None))), 0)


def routers(lm: CausalLM) -> Routers | None:
    """The model's routers; None where it has none, or where they cannot be told whom to choose."""
    routers_or_reason = _find(lm)
    return None if isinstance(routers_or_reason, str) else routers_or_reason


def routing_refusal(lm: CausalLM) -> str:
    """Why the routers can be neither watched nor told whom to choose; empty where they can."""
    routers_or_reason = _find(lm)
    return routers_or_reason if isinstance(routers_or_reason, str) else ""


class RoutingPass:
    """What the routers chose in the last forward pass, and what they were told to use instead."""

    def __init__(self, of: Routers, replay: Tensor | None = None) -> None:
        self._of, self._replay = of, replay
        self._chosen: list[Tensor | None] = [None] * of.num_layers
        self.is_hooked = False

    @property
    def chosen(self) -> Tensor:
        """[tokens, layers, k]: the routers' own choice, whatever was replayed."""
        chosen = [experts for experts in self._chosen if experts is not None]
        if len(chosen) < len(self._chosen):
            raise RuntimeError("no forward pass has gone through every router")
        return torch.stack(chosen, 1).to(self._of.dtype)

    def decide(self, layer: int, scores: Tensor, own: Any) -> Any:
        """What a router's `topk` returns: (values, indices)."""
        self._chosen[layer] = own.indices.detach().reshape(-1, self._of.experts_per_token)
        if self._replay is None:
            return own
        wanted = self._replay[:, layer].to(own.indices).reshape(own.indices.shape)
        index = torch.where(wanted < 0, own.indices, wanted)
        return torch.return_types.topk((scores.gather(-1, index), index))  # type: ignore[call-overload]


class _WatchedTopK(TorchFunctionMode):
    """Inside, `topk` over the experts is decided by a pass."""

    def __init__(self, walk: RoutingPass, layer: int, of: Routers) -> None:
        super().__init__()
        self._walk, self._layer, self._of = walk, layer, of
        self._calls = 0

    def __enter__(self) -> Any:
        self._calls = 0
        return super().__enter__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        output = func(*args, **named)
        if func not in TOPK:
            return output
        scores = args[0] if args else named["input"]
        self._calls += scores.shape[-1] == self._of.num_experts
        if scores.shape[-1] != self._of.num_experts or self._calls != self._of.calls[self._layer]:
            return output
        return self._walk.decide(self._layer, scores, output)


@contextmanager
def routing(lm: CausalLM, replay: Tensor | None = None) -> Iterator[RoutingPass]:
    """Forward passes inside are watched, with `replay` [tokens, layers, k] told whom to choose; as before outside.

    Layers that the backward pass computes again find the same table again.
    """
    of = routers(lm)
    if of is None:
        raise ValueError(routing_refusal(lm))
    walk = RoutingPass(of, replay)
    with _hooked(lm.trunk, of, walk):
        yield walk


@contextmanager
def _hooked(trunk: nn.Module, of: Routers, walk: RoutingPass) -> Iterator[None]:
    if walk.is_hooked:  # a layer that will be computed again, in its first pass
        yield
        return
    modules: list[Any] = list(of.modules)
    before = [vars(module).get("forward") for module in modules]
    walk.is_hooked = True
    try:
        for layer, module in enumerate(modules):
            module.forward = _watched(module.forward, _WatchedTopK(walk, layer, of))
        # by the same choice of experts
        with recomputed_within(trunk, lambda: _hooked(trunk, of, walk)):
            yield
    finally:
        walk.is_hooked = False
        for module, forward in zip(modules, before, strict=True):
            if forward is None:
                del module.forward
            else:
                module.forward = forward


def _watched(forward: Callable[..., Any], mode: _WatchedTopK) -> Callable[..., Any]:
    def inside(*inputs: Any, **named: Any) -> Any:
        with mode:
            return forward(*inputs, **named)

    return inside


class _Probe(TorchFunctionMode):
    """Notes which modules call `topk` over so many experts, and how many they pick."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self._num_experts = num_experts
        self.inside: list[nn.Module] = []  # modules whose forward is running, the innermost last
        self.calls: list[tuple[nn.Module, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in TOPK and self.inside:
            scores = args[0] if args else (kwargs or {})["input"]
            if scores.shape[-1] == self._num_experts:
                self.calls.append((self.inside[-1], output.indices.shape[-1]))
        return output


def _find(lm: CausalLM) -> Routers | str:
    if lm.trunk not in _FOUND:
        training = [module for module in lm.trunk.modules() if module.training]
        try:
            lm.trunk.eval()
            with torch.no_grad():
                _FOUND[lm.trunk] = _tried(lm)
        finally:
            for module in training:
                module.training = True
    return _FOUND[lm.trunk]


def _tried(lm: CausalLM) -> Routers | str:
    num_experts = _num_experts(lm)
    if num_experts < 2:
        return NO_MIXTURE
    tokens = (torch.arange(3, 15, device=lm.device) * 7 % lm.vocabulary).view(2, 6)
    probe = _Probe(num_experts)
    with _announced(lm.trunk, probe.inside), probe:
        own = _hidden(lm, tokens)
    picked: dict[nn.Module, list[int]] = {}
    for module, count in probe.calls:
        picked.setdefault(module, []).append(count)
    chosen = {counts[-1] for counts in picked.values()}
    name = type(lm.model).__name__
    if not picked:
        return f"the routers of {name} do not choose their experts by topk over all of them"
    if len(chosen) > 1:
        return f"the routers of {name} choose different numbers of experts"
    number_of = {module: _layer_number(name) for name, module in lm.trunk.named_modules()}
    layers = tuple(number_of.get(module, -1) for module in picked)
    of = Routers(tuple(picked), tuple(map(len, picked.values())), num_experts, chosen.pop(), layers)
    return _replay_gap(lm, of, tokens, own) or of


def _replay_gap(lm: CausalLM, of: Routers, tokens: Tensor, own: Tensor) -> str:
    """How a replay fails to do what it says: the same experts give the same states, others give others."""
    name = type(lm.model).__name__
    try:
        walk = RoutingPass(of)
        with _hooked(lm.trunk, of, walk):
            _hidden(lm, tokens)
        with _hooked(lm.trunk, of, RoutingPass(of, walk.chosen)):
            same = _hidden(lm, tokens)
        moved = (walk.chosen.long() + 1) % of.num_experts
        with _hooked(lm.trunk, of, RoutingPass(of, moved)):
            other = _hidden(lm, tokens)
    except Exception as failure:  # whatever a model stumbles over when it is told its experts, it trains without
        return f"the routers of {name} cannot be told their experts, {type(failure).__name__}: {failure}"
    apart, moved_by = (float((states - own).abs().max()) for states in (same, other))
    if of.experts_per_token < of.num_experts and not moved_by:
        return f"{name} does not use the experts that its routers are told"
    # a device may sum in another order each time; a mistake is as large as the change of experts
    if apart > 0.1 * moved_by:
        return f"{name} gives other states when it is told the experts it chose"
    return ""


def _layer_number(name: str) -> int:
    """The first number in a module's name, as in layers.3.mlp.gate; -1 where it has none."""
    return next((int(part) for part in name.split(".") if part.isdigit()), -1)


def _hidden(lm: CausalLM, tokens: Tensor) -> Tensor:
    return lm.one_pass(lambda: lm.hidden(tokens))


@contextmanager
def _announced(trunk: nn.Module, inside: list[nn.Module]) -> Iterator[None]:
    """Modules of the trunk enter the list while their forward runs."""

    def enter(module: nn.Module, _: Any) -> None:
        inside.append(module)

    def leave(module: nn.Module, _: Any, __: Any) -> None:
        inside.pop()

    modules = list(trunk.modules())
    hooks = [module.register_forward_pre_hook(enter) for module in modules]
    hooks += [module.register_forward_hook(leave, always_call=True) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
