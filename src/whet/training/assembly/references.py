"""From a config to the reference: the policy before the first step, or another model."""

from __future__ import annotations

from collections.abc import Collection

from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.load import load_model
from whet.model.low_precision import widen_vectors
from whet.model.reference import AdapterFreeReference, CopiedReference, ReferencePolicy, ReloadedReference
from whet.model.vocabulary import vocabulary_refusal
from whet.training.assembly.runtime import Runtime
from whet.training.config import Config
from whet.types import WhetError


def check_reference(config: Config, rule: str) -> None:
    """Refuse a reference that moves and cannot; `rule` says whether it moves."""
    if config.model.reference_model and rule != "frozen":
        raise WhetError(
            f"model.reference_model stays as it is, but objective.reference={rule} moves the reference towards the "
            "policy; give objective.reference=frozen, or drop it"
        )
    if config.model.reference == "reload" and rule != "frozen":
        raise WhetError(
            f"model.reference=reload reads the reference anew, but objective.reference={rule} moves it; "
            "give model.reference=memory"
        )


def build_reference(config: Config, runtime: Runtime, rule: str, needs: Collection[str] = ()) -> ReferencePolicy:
    """The policy before the first step, or `model.reference_model`: in memory, or its source to read again.

    `rule` says whether it moves, `needs` are the objective's.
    """
    section = config.model
    if section.reference == "reload":
        return ReloadedReference(lambda: load_reference(config, runtime))
    if section.reference_model:
        return CopiedReference(runtime.policy, other=load_reference(config, runtime))
    if not section.lora.rank:  # the copy shares the policy's memory until both are cut into shards
        return CopiedReference(runtime.policy, runtime.shards is not None)
    if rule != "frozen":
        raise WhetError(
            f"objective.reference={rule} moves the reference, and with model.lora it is the base, which stays; "
            "give objective.reference=frozen, or model.lora=0"
        )
    if "divergence" in needs:
        raise WhetError(
            f"{config.method} asks policy and reference in one pass, and with model.lora they are one model; "
            "give another objective.kl, such as k3, or model.lora=0"
        )
    return AdapterFreeReference(runtime.policy)


def load_reference(config: Config, runtime: Runtime) -> CausalLM:
    """The reference from its source; one whose tokens are others is refused."""
    name, device = config.model.reference_model, runtime.policy.device
    dtype = next(runtime.policy.model.parameters()).dtype
    loaded = load_model(name or config.model.name, dtype, str(device))
    if name and (refusal := vocabulary_refusal(runtime.tokenizer, loaded.tokenizer)):
        raise WhetError(
            f"model.reference_model={name} has another vocabulary than the policy: {refusal}; give a model of the "
            "policy's family"
        )
    if dtype.itemsize < 4:
        widen_vectors(loaded.model)
    return causal_lm(loaded.model, runtime.policy.dtype)
