"""Default learning rates: by kind of training, width of the model, and LoRA or every weight; each with its reason.

The published rates are for models of 7B and 8B, which are 4096 wide. AdamW's best rate falls as 1 / width (Yang et al.
2022, Tensor Programs V), so a narrower model gets more. One digit is kept: nobody knows the second.

A policy is the exception, whether a reward or a teacher grades its completions: they change with it, and what 1 / width
gives a model of 0.5B (5e-6 for a reward, 9e-5 for a teacher) ruined one. Every policy wider than the built-in model
learns at one rate, after a warm-up; docs/defaults.md has the runs.
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
    depends_on_width: bool = True


@dataclass(frozen=True)
class DefaultChoice:
    """A learning rate or a number of warm-up steps, and why it is this one."""

    value: float
    why: str


POLICY = PublishedRate(1e-6, "Shao et al. 2024; Yu et al. 2025", depends_on_width=False)
CRITIC = PublishedRate(1e-5, "Ouyang et al. 2022 (9e-6)")
PREFERENCE = PublishedRate(1e-6, "Rafailov et al. 2023")
DEMONSTRATION = PublishedRate(2e-5, "Touvron et al. 2023; Tunstall et al. 2023")
REWARD_MODEL = PublishedRate(1e-5, "Touvron et al. 2023; Ouyang et al. 2022 (9e-6)")
# a teacher's word on every token is a denser signal than one reward per completion
TEACHER = PublishedRate(1e-5, f"half of that for demonstrations, {DEMONSTRATION.source}", depends_on_width=False)
BY_KIND = {"policy": POLICY, "preference": PREFERENCE, "sft": DEMONSTRATION, "reward_model": REWARD_MODEL}


def published_rate(method: Method) -> PublishedRate:
    """The method's own rate where its paper states one, else that of its kind of training."""
    own = method.run.get("optimizer", {}).get("learning_rate")
    usual = TEACHER if method.is_taught else BY_KIND[method.kind]
    return usual if own is None else PublishedRate(own, method.paper.partition(",")[0], usual.depends_on_width)


def default_rate(published: PublishedRate, model: str, adapters: bool, width: int | None = None) -> DefaultChoice:
    """The rate for a model of the user's own; `width` is known for a model that has no name yet."""
    width = width or model_width(model)
    if not published.depends_on_width and (width is None or width > BUILT_IN_WIDTH):
        why = f"{published.rate:g} ({published.source}) at every width: measured at 0.5B, docs/defaults.md"
        return DefaultChoice(published.rate, why) if not adapters else adapter_rate(published.rate, why)
    rate = float(f"{published.rate * PUBLISHED_WIDTH / (width or PUBLISHED_WIDTH):.0e}")
    why = f"{published.rate:g} at width {PUBLISHED_WIDTH} ({published.source})"
    if width is None:
        why += "; the width of this model could not be read"
    elif width != PUBLISHED_WIDTH:
        why += f", as 1 / width for {width}"
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
