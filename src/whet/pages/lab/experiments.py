"""Every experiment of the lab, in the order in which a reader meets them."""

from __future__ import annotations

from functools import cache

from whet.pages.lab import (
    bandit,
    clip_weights,
    groups,
    kl_estimates,
    lookahead,
    preferences,
    rare_token,
    ratio_noise,
    shares,
)
from whet.pages.lab.experiment import Experiment
from whet.types import WhetError, did_you_mean

MODULES = (groups, clip_weights, rare_token, ratio_noise, shares, kl_estimates, lookahead, preferences, bandit)


@cache
def experiments() -> tuple[Experiment, ...]:
    """All of them, in the order of the page."""
    return tuple(module.experiment() for module in MODULES)


def experiment_named(name: str) -> Experiment:
    """The experiment of that name; an error that names the nearest where there is none."""
    found = {experiment.name: experiment for experiment in experiments()}
    if name not in found:
        raise WhetError(
            f"no experiment is called {name[:40]!r}{did_you_mean(name[:40], found)}; give {', '.join(found)}"
        )
    return found[name]
