"""The preference losses as their papers write them, one pair or one completion at a time. Nothing is shared with whet.

d = log pi/ref of a completion, q = log pi a token, w the chosen completion and r the rejected one.
"""

from dataclasses import dataclass

import torch


@dataclass
class Completion:
    """The trained tokens of one completion, as lists of scalars."""

    tokens: list
    reference: list
    square: list
    rival: list
    good: bool

    @property
    def n(self):
        return len(self.tokens)

    @property
    def logp(self):
        return sum(self.tokens)

    @property
    def d(self):
        return sum(self.tokens) - sum(self.reference)

    @property
    def q(self):
        return sum(self.tokens) / len(self.tokens)


def log_sigma(x):
    return torch.log(1 / (1 + torch.exp(-x)))


def sigma(x):
    return 1 / (1 + torch.exp(-x))


def dpo(w, r, b=0.1):
    return -log_sigma(b * (w.d - r.d))


def smoothed(x, e):
    return -(1 - e) * log_sigma(x) - e * log_sigma(-x)


def cdpo(w, r, b=0.1, e=0.1):
    return smoothed(b * (w.d - r.d), e)


def robust(w, r, b=0.1, e=0.1):
    x = b * (w.d - r.d)
    return (-(1 - e) * log_sigma(x) + e * log_sigma(-x)) / (1 - 2 * e)


def ipo(w, r, t=0.1):
    return (w.d - r.d - 1 / (2 * t)) ** 2


def ipo_mean(w, r, t=0.1):
    return (w.d / w.n - r.d / r.n - 1 / (2 * t)) ** 2


def simpo(w, r, b=2.0, g=1.0):
    return -log_sigma(b * (w.q - r.q) - g)


def orpo(w, r, weight=0.1):
    def log_odds(completion):
        p = torch.exp(completion.q)
        return torch.log(p / (1 - p))

    return -w.q - weight * log_sigma(log_odds(w) - log_odds(r))


def cpo(w, r, b=0.1):
    return -log_sigma(b * (w.logp - r.logp)) - w.logp


def dpo_shift(w, r, b=0.01, f=0.95):
    return -log_sigma(b * (w.d - f * r.d))


def dpop(w, r, b=0.3, penalty=50.0):
    return -log_sigma(b * (w.d - r.d - penalty * max(torch.zeros_like(w.d), -w.d)))


def hinge(w, r, b=0.1):
    return max(torch.zeros_like(w.d), 1 - b * (w.d - r.d))


def slic(w, r, delta=1.0, weight=0.1):
    return max(torch.zeros_like(w.d), delta - (w.logp - r.logp)) - weight * w.logp


def sigmoid_norm(w, r, b=5.0):
    return -log_sigma(b * (w.d / w.n - r.d / r.n))


def apo_zero(w, r, b=0.1):
    return 1 - sigma(b * w.d) + sigma(b * r.d)


def apo_down(w, r, b=0.1):
    return sigma(b * w.d) + 1 - sigma(b * (w.d - r.d))


def sppo(w, r, b=1e-3, p=1.0):
    return (w.d - (p - 0.5) / b) ** 2 + (r.d - ((1 - p) - 0.5) / b) ** 2


def nca(w, r, b=0.01):
    return -log_sigma(b * w.d) - 0.5 * log_sigma(-b * w.d) - 0.5 * log_sigma(-b * r.d)


def bco(w, r, delta, b=0.1):
    return -log_sigma(b * w.d - delta) - log_sigma(-(b * r.d - delta))


def discopop(w, r, b=0.05, t=0.05):
    x = b * (w.d - r.d)
    k = sigma(x / t)
    return (1 - k) * -log_sigma(x) + k * torch.exp(-x)


def alphapo(w, r, a=0.25, b=2.5, g=0.1):
    def reward(completion):
        return b * (1 - torch.exp(completion.q) ** -a) / a

    return -log_sigma(reward(w) - reward(r) - g)


def ld_dpo(w, r, a=0.5, b=0.1):
    shared = min(w.n, r.n)

    def ratio(completion):
        steps = [mine - other for mine, other in zip(completion.tokens, completion.reference, strict=True)]
        return sum(steps[:shared]) + a * sum(steps[shared:])

    return -log_sigma(b * (ratio(w) - ratio(r)))


def wpo(w, r, b=0.01):
    def weight(completion):
        steps = [mine.detach() - square for mine, square in zip(completion.tokens, completion.square, strict=True)]
        return torch.exp(sum(steps) / completion.n)

    return weight(w) * weight(r) * dpo(w, r, b)


def rpo(w, r, b=0.5, eta=0.2):
    """The mean of the NLL over the tokens of the chosen completion, as the authors' released trainer takes it."""
    return dpo(w, r, b) - eta * sum(w.tokens) / len(w.tokens)


def rpo_iterative(w, r, b=0.1, a=1.0):
    return dpo(w, r, b) - a * w.logp / w.n


def pairwise_cringe(w, r, a=1.0, b=0.0, t=1.0):
    gate = sigma((b - (w.logp - r.logp).detach()) / t)
    cringe = 0.0
    for token, rival in zip(r.tokens, r.rival, strict=True):
        cringe = cringe - torch.log(torch.exp(rival) / (torch.exp(rival) + torch.exp(token))) / r.n
    return gate * (-w.logp / w.n + a * cringe)


def power(w, r, b=2.0, g=0.0):
    """The reward b w (log pi + 1), w = 1/n; with g it stands in simpo's place."""
    x = b * (w.logp / w.n - r.logp / r.n + 1 / w.n - 1 / r.n)
    return -log_sigma(x - g)


def f_forward(w, r, b=0.1):
    """f(t) = -log t, f'(t) = -1/t; a constant cancels."""
    return -log_sigma(b * (-1 / torch.exp(w.d) + 1 / torch.exp(r.d)))


def f_js(w, r, b=0.1):
    """f'(t) = log(2t/(1+t))."""

    def grad(d):
        t = torch.exp(d)
        return torch.log(2 * t / (1 + t))

    return -log_sigma(b * (grad(w.d) - grad(r.d)))


def f_alpha(w, r, b=0.1, a=0.5):
    """The paper's f'(t) = (1 - t^-A)/A with A = 1 - a."""
    letter = 1 - a

    def grad(d):
        return (1 - torch.exp(d) ** -letter) / letter

    return -log_sigma(b * (grad(w.d) - grad(r.d)))


def kto(completion, z, b=0.1, desirable=1.0, undesirable=1.0):
    """Of one completion; the mean is taken over completions."""
    if completion.good:
        return desirable * (1 - sigma(b * (completion.d - z)))
    return undesirable * (1 - sigma(b * (z - completion.d)))


# one pair at a time
PAPERS = {
    **{"dpo": dpo, "cdpo": cdpo, "robust_dpo": robust, "ipo": ipo, "ipo_mean": ipo_mean, "simpo": simpo},
    **{"orpo": orpo, "cpo": cpo, "dpo_shift": dpo_shift, "dpop": dpop, "hinge": hinge, "slic": slic},
    **{"sigmoid_norm": sigmoid_norm, "apo_zero": apo_zero, "apo_down": apo_down, "sppo": sppo, "nca": nca},
    **{"discopop": discopop, "alphapo": alphapo, "power": power, "ld_dpo": ld_dpo, "wpo": wpo, "rpo": rpo},
    **{"rpo_iterative": rpo_iterative, "pairwise_cringe": pairwise_cringe},
    **{"fdpo_forward": f_forward, "fdpo_js": f_js, "fdpo_alpha": f_alpha},
    **{"tr_dpo": lambda w, r: dpo(w, r, 0.05), "tr_dpo_hard": lambda w, r: dpo(w, r, 0.05)},
}
# one completion at a time, or with a number of the whole step
STEPWISE = ("kto", "bco")


def completions(batch, logp, extras):
    """Each row as its completions; a row with an empty one is left out."""
    rows = []
    for i in range(batch.num_rows):
        row = []
        for side in range(batch.lengths.shape[1]):
            places = [t for t in range(logp.shape[-1]) if batch.action[i, side, t]]

            def taken(values, i=i, side=side, places=places):
                return [values[i, side, t] for t in places]

            good = side == 0 if batch.label is None else bool(batch.label[i, side] > 0)
            columns = [taken(each) for each in (logp, batch.ref_logp, extras.log_square, extras.rival_logp)]
            row.append(Completion(*columns, good))
        rows.append(row)
    return [row for row in rows if all(completion.n for completion in row)]
