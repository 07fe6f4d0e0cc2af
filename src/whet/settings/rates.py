"""Default learning rates: by kind of training, width of the model, and LoRA or every weight; each with its reason.

The published rates are for models of 7B and 8B, which are 4096 wide. AdamW's best rate falls as 1 / width (Yang et al.
2022, Tensor Programs V), so a narrower model gets more. One digit is kept: nobody knows the second.
"""

from __future__ import annotations

from dataclasses import dataclass

from whet.settings.catalogue import Method
from whet.settings.width import model_width

PUBLISHED_WIDTH = 4096
# times the rate of full training (Schulman et al. 2025, LoRA Without Regret); above the second a tiny model learns less
ADAPTER_RATE, MOST_ADAPTER_RATE = 10, 5e-3


@dataclass(frozen=True)
class PublishedRate:
    rate: float
    source: str


@dataclass(frozen=True)
class RateChoice:
    """A learning rate, and why it is this one."""

    rate: float
    why: str


POLICY = PublishedRate(1e-6, "Shao et al. 2024; Yu et al. 2025")
CRITIC = PublishedRate(1e-5, "Ouyang et al. 2022 (9e-6)")
PREFERENCE = PublishedRate(1e-6, "Rafailov et al. 2023")
DEMONSTRATION = PublishedRate(2e-5, "Touvron et al. 2023; Tunstall et al. 2023")
REWARD_MODEL = PublishedRate(1e-5, "Touvron et al. 2023; Ouyang et al. 2022 (9e-6)")
BY_KIND = {"policy": POLICY, "preference": PREFERENCE, "sft": DEMONSTRATION, "reward_model": REWARD_MODEL}


def published_rate(method: Method) -> PublishedRate:
    """The method's own rate where its paper states one, else that of its kind of training."""
    own = method.run.get("optimizer", {}).get("learning_rate")
    return PublishedRate(own, method.paper.partition(",")[0]) if own is not None else BY_KIND[method.kind]


def default_rate(published: PublishedRate, model: str, adapters: bool, width: int | None = None) -> RateChoice:
    """The rate for a model of the user's own; `width` is known for a model that has no name yet."""
    found = width or model_width(model)
    rate = float(f"{published.rate * PUBLISHED_WIDTH / (found or PUBLISHED_WIDTH):.0e}")
    why = f"{published.rate:g} at width {PUBLISHED_WIDTH} ({published.source})"
    if found is None:
        why += "; the width of this model could not be read"
    elif found != PUBLISHED_WIDTH:
        why += f", as 1 / width for {found}"
    return RateChoice(rate, why) if not adapters else adapter_rate(rate, why)


def adapter_rate(rate: float, why: str) -> RateChoice:
    """Ten times the rate of full training."""
    ten_times = float(f"{ADAPTER_RATE * rate:.6g}")
    most = f", at most {MOST_ADAPTER_RATE:g}" if ten_times > MOST_ADAPTER_RATE else ""
    return RateChoice(min(ten_times, MOST_ADAPTER_RATE), f"{why}; {ADAPTER_RATE} times that for LoRA{most}")
