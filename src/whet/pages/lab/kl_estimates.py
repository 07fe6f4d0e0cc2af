"""k1, k2, k3 against the true KL: what they say, how much they scatter, and where they pull, in the loss or the reward.

Two distributions over the same tokens, a bell each; every expectation is a sum over all tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whet.objective import AXES, Objective
from whet.pages.lab import experiment as lab
from whet.types import TokenBatch, Totals

PLACES = lab.evenly(-5.0, 5.0, 41)  # one for each token
SHIFTS = lab.evenly(0.0, 2.5, 21)
SLOPES = lab.evenly(-2.0, 2.0, 41)


def components(where: str) -> list[str]:
    """The KL terms that look at the reference and nothing else, in the loss or in the reward.

    A term on whole completions is the one on tokens where a completion is one token: left out.
    """
    names = []
    for name, kind in AXES["kl"].items():
        term: Any = kind
        own = not (term.to_old or term.to_sampler or "divergence" in term.needs)
        if (
            own
            and term.needs
            and not name.endswith("completion")
            and (term.in_reward or term.immediate) == (where == "reward")
        ):
            names.append(name)
    return names


def bells(shift: float, width: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the policy and of the reference."""
    places = torch.tensor(PLACES, dtype=torch.float64)
    policy = torch.log_softmax(-0.5 * ((places - shift) / width) ** 2, 0)
    reference = torch.log_softmax(-0.5 * places**2, 0)
    return policy, reference


def true_kl(logp: Tensor, other: Tensor) -> float:
    """The exact KL divergence of the first distribution from the other, in nats."""
    return float((logp.exp() * (logp - other)).sum())


def moments(name: str, logp: Tensor, reference: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of one sample's estimate."""
    term: Any = AXES["kl"][name]()
    estimate = term.value(logp - reference, torch.ones_like(logp))
    mean = (logp.exp() * estimate).sum()
    return float(mean), float((logp.exp() * (estimate - mean) ** 2).sum().sqrt())


def pull(name: str, logp: Tensor, reference: Tensor) -> list[float]:
    """The expected gradient on the logit of each token, as a multiple of beta, by the real loss; all rewards are 0."""
    names = {"baseline": "running_mean", "scale": "none", "ratio": "token", "clip": "on_policy"}
    chosen: dict[str, Any] = {axis: AXES[axis][component]() for axis, component in names.items()}
    term: Any = AXES["kl"][name](beta=1.0)
    objective = Objective("lab", aggregate=AXES["aggregate"]["sequence_sum"](), kl=term, **chosen)
    count = len(logp)
    action = torch.ones(count, 1, dtype=torch.bool)
    empty = torch.zeros(count, dtype=torch.float64)
    old = logp[:, None]
    batch = TokenBatch(
        torch.arange(count)[:, None], action, torch.arange(count), empty, old, old, ref_logp=reference[:, None]
    )
    batch, _ = objective.advantage(batch, {})
    leaf = old.clone().requires_grad_()
    loss = objective.loss(batch, leaf, Totals(tokens=1, sequences=1, max_new_tokens=1)).value
    (gradient,) = torch.autograd.grad(loss, leaf)
    chance = logp.exp()
    push = chance * gradient[:, 0]
    return (push - chance * push.sum()).tolist()


def exact_pull(logp: Tensor, reference: Tensor, reverse: bool) -> list[float]:
    """The gradient of KL(policy, reference), or of KL(reference, policy), on the logit of each token."""
    logits = logp.clone().requires_grad_()
    current = torch.log_softmax(logits, 0)
    other = reference.exp() * (reference - current) if reverse else current.exp() * (current - reference)
    (gradient,) = torch.autograd.grad(other.sum(), logits)
    return gradient.tolist()


def _table(settings: lab.LabSettings) -> lab.LabTable:
    shift, width, where = lab.number(settings, "shift"), lab.number(settings, "width"), str(settings["where"])
    names = components(where)
    # in the loss k1 pulls nowhere, and is refused; what it estimates is drawn all the same
    terms = ({} if where == "reward" else {"k1": "k1_reward"}) | {name: name for name in names}
    values, spreads = [], []
    curves = [bells(shift, width) for shift in SHIFTS]
    truth = [true_kl(*curve) for curve in curves]
    for tone, (name, term) in enumerate(terms.items()):
        spread = [moments(term, *curve) for curve in curves]
        values.append(lab.line(name, SHIFTS, [mean for mean, _ in spread], tone))
        spreads.append(lab.line(name, SHIFTS, [std for _, std in spread], tone))
    values.append(lab.line("KL(policy, reference)", SHIFTS, truth, 7, dashed=True))
    logp, reference = bells(shift, width)
    pulls = [
        lab.line(name, PLACES, pull(term, logp, reference) if term in names else [0.0] * len(PLACES), tone)
        for tone, (name, term) in enumerate(terms.items())
    ]
    pulls.append(lab.line("KL(policy, reference)", PLACES, exact_pull(logp, reference, False), 7, dashed=True))
    pulls.append(lab.line("KL(reference, policy)", PLACES, exact_pull(logp, reference, True), 6, dashed=True))
    estimates = [lab.line(name, SLOPES, _estimate(term), tone) for tone, (name, term) in enumerate(terms.items())]
    mark = [{"x": shift, "label": "shift", "rests": True}]
    facts = [("KL(policy, reference)", f"{true_kl(logp, reference):.4g}")]
    facts.append(("KL(reference, policy)", f"{true_kl(reference, logp):.4g}"))
    facts += [
        (f"{name}, mean and std", "{:.4g} and {:.4g}".format(*moments(term, logp, reference)))
        for name, term in terms.items()
    ]
    return lab.LabTable(
        (
            lab.LabChart("What it says, on average", lab.chart_spec("shift", "nats", values, lines=mark)),
            lab.LabChart(
                "How much one sample scatters", lab.chart_spec("shift", "std", spreads, y_range=(0, None), lines=mark)
            ),
            lab.LabChart(
                "Where it pulls: expected gradient on each logit",
                lab.chart_spec("token (its place under the bells)", "gradient / beta", pulls),
            ),
            lab.LabChart("The estimate of one sample", lab.chart_spec("u = log pi - log ref", "nats", estimates)),
        ),
        tuple(facts),
        "samples are the policy's own; beta is 1",
    )


def _estimate(name: str) -> list[float]:
    term: Any = AXES["kl"][name]()
    u = torch.tensor(SLOPES, dtype=torch.float64)
    return term.value(u, torch.ones_like(u)).tolist()


def experiment() -> lab.Experiment:
    """What the lab shows of it."""
    return lab.Experiment(
        "kl",
        "k1, k2, k3",
        "What do the estimators estimate, and where do they pull?",
        "k3 has the mean of k1, which is the true KL, is never negative and scatters less while the policies are "
        "close; far apart its exponential takes over. k2 is biased. In the loss it is the other way round: k2 pulls "
        "with the gradient of KL(policy, reference), k3 with that of KL(reference, policy), and k1 with nothing, so "
        "whet refuses it there. In the reward k1 has the right gradient and k3 does not.",
        (
            ("Schulman 2020, Approximating KL divergence (note)", ""),
            ("Shao et al. 2024, eq. 4", "2402.03300"),
            ("DeepSeek-V3.2", "2512.02556"),
        ),
        (
            lab.Slider("shift", "distance of the bells", (0, 0.1, 0.25, 0.5, 1, 1.5, 2, 2.5), 0.5),
            lab.Slider("width", "width of the policy's bell", (0.6, 0.8, 1, 1.25, 1.6), 1),
            lab.Selector("where", "the term stands in the", (("loss", "loss"), ("reward", "reward")), "loss"),
        ),
        _table,
    )
