"""What a method is besides its components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

AnyObjective = TypeVar("AnyObjective", covariant=True)


@dataclass(frozen=True)
class Preset(Generic[AnyObjective]):
    """A named method and what a reader should know about it: of a policy, a preference method or a reward model."""

    objective: AnyObjective
    title: str
    paper: str
    # the paper's own expression; of preferences: d = log pi/ref, m = d_w - d_l, q = log pi per token, b = beta
    formula: str
    fixes: str
    breaks: str
    deviations: tuple[str, ...] = ()  # what the paper does not state, or codes do otherwise, and whet chose
    unverified: str = ""  # what could not be read in the paper or its authors' code
    episodes: bool = False  # the method is nothing without an environment, tools or an agent
    run: Mapping[str, Any] = field(default_factory=dict)  # settings of a run the method is nothing without
    small_run: Mapping[str, Any] = field(default_factory=dict)  # and for the built-in model: its completions are short


LEFT_OUT = {
    "power_dl": "of Rashidinejad et al. 2024 (arXiv 2412.09544) the drifting labels and the eta term could not be "
    "verified; power has the reward alone",
    "pg_dpo": "no paper of that name with a preference loss was found; dpop protects the chosen completion's "
    "likelihood",
    "flowrl": "FlowRL (arXiv 2509.15207) learns log Z(x), a number for each prompt, by a head of its own, which no "
    "component here trains; pmd_mean is the regression with the group's mean in its place",
    "otb": "the optimal token baseline (arXiv 2602.07078) weighs tokens by SUM_v pi_v^2 of the policy that wrote them, "
    "which the pass before the updates does not compute (preference losses have it, as log_square), and which a "
    "batch has no field for; opo weighs completions by their length",
}
