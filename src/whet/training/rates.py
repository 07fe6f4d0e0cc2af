"""Default learning rates: by kind of training, and LoRA or every weight; each with its reason.

They are published rates of models of 7B and 8B, 4096 wide, and every real model has them. AdamW's best rate is said to
fall as 1 / width (Yang et al. 2022, Tensor Programs V), but what that gives a model of 0.5B ruined it in each kind of
training that was tried, RL, distillation and SFT: docs/defaults.md has the runs. Only models as narrow as the built-in
one get more.
"""

from __future__ import annotations

from dataclasses import dataclass

from whet.model.width import model_width
from whet.objective.catalogue import Method

PUBLISHED_WIDTH = 4096
BUILT_IN_WIDTH = 96
# times the rate of full training (Schulman et al. 2025, LoRA Without Regret); above the second a tiny model learns less
ADAPTER_RATE, MOST_ADAPTER_RATE = 10, 5e-3
# AdamW's running mean averages 1 / (1 - beta1) gradients. Before it is full an update is close to the full rate times
# the sign of a single noisy gradient, in every weight.
WARMUP_STEPS, STEPS_PER_WARMUP_STEP = 10, 10


@dataclass(frozen=True)
class PublishedRate:
    """A rate that papers state for models of `PUBLISHED_WIDTH`."""

    rate: float
    source: str


@dataclass(frozen=True)
class DefaultChoice:
    """A learning rate or a number of warm-up steps, and why it is this one."""

    value: float
    why: str


POLICY = PublishedRate(1e-6, "Shao et al. 2024; Yu et al. 2025")
CRITIC = PublishedRate(1e-5, "Ouyang et al. 2022 (9e-6)")
PREFERENCE = PublishedRate(1e-6, "Rafailov et al. 2023")
DEMONSTRATION = PublishedRate(2e-5, "Touvron et al. 2023; Tunstall et al. 2023")
REWARD_MODEL = PublishedRate(1e-5, "Touvron et al. 2023; Ouyang et al. 2022 (9e-6)")
# a teacher's word on every token is a denser signal than one reward per completion
TEACHER = PublishedRate(1e-5, f"half of that for demonstrations, {DEMONSTRATION.source}")
BY_KIND = {"policy": POLICY, "preference": PREFERENCE, "sft": DEMONSTRATION, "reward_model": REWARD_MODEL}


def published_rate(method: Method) -> PublishedRate:
    """The method's own rate where its paper states one, else that of its kind of training."""
    own = method.run.get("optimizer", {}).get("learning_rate")
    usual = TEACHER if method.is_taught else BY_KIND[method.kind]
    return usual if own is None else PublishedRate(own, method.paper.partition(",")[0])


def default_rate(published: PublishedRate, model: str, adapters: bool, width: int | None = None) -> DefaultChoice:
    """The rate for a model of the user's own; `width` is known for a model that has no name yet."""
    width = width or model_width(model)
    rate, why = published.rate, f"{published.rate:g} ({published.source}), docs/defaults.md"
    if width is not None and width <= BUILT_IN_WIDTH:
        rate = float(f"{rate * PUBLISHED_WIDTH / width:.0e}")  # nobody knows the second digit
        why = f"{published.rate:g} at width {PUBLISHED_WIDTH} ({published.source}), as 1 / width for {width}"
    return DefaultChoice(rate, why) if not adapters else adapter_rate(rate, why)


def adapter_rate(rate: float, why: str) -> DefaultChoice:
    """Ten times the rate of full training."""
    ten_times = float(f"{ADAPTER_RATE * rate:.6g}")
    most = f", at most {MOST_ADAPTER_RATE:g}" if ten_times > MOST_ADAPTER_RATE else ""
    return DefaultChoice(min(ten_times, MOST_ADAPTER_RATE), f"{why}; {ADAPTER_RATE} times that for LoRA{most}")


def default_warmup(steps: int) -> DefaultChoice:
    """The warm-up of a policy that is a real model, in a run of so many steps."""
    why = f"what AdamW's running mean averages over, or a tenth of {steps} steps"
    return DefaultChoice(min(WARMUP_STEPS, steps // STEPS_PER_WARMUP_STEP), why)
