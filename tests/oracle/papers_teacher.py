"""Distillation: the papers' objectives with a teacher, transcribed naively like those of `papers.py`."""

from tests.support.naive_losses import each_token, ratio, score_function, token_mean


def gaps(case):
    """log teacher - log policy of each token, at the time it was sampled; an unscorable completion has none."""
    return each_token(case, lambda i, t: 0.0 if case.reward[i] is None else case.teacher[i][t] - case.old[i][t])


def opd(case):
    """On-policy distillation: the teacher's gap as the advantage of an importance-sampling loss."""
    gap = gaps(case)
    return token_mean(each_token(case, lambda i, t: ratio(case, i, t) * gap[i][t]))


def iw_opd(case, *, gain=0.5):
    """IW-OPD (2606.22600): the share of the completion's disagreement that lies behind a token takes its extra off."""
    weighted = []
    for row in gaps(case):
        total = sum(abs(gap) for gap in row)
        weights = [1 + gain * (1 - sum(abs(gap) for gap in row[:t]) / total) if total else 1 for t in range(len(row))]
        weighted.append([weight * gap for weight, gap in zip(weights, row, strict=True)])
    return token_mean(score_function(case, weighted))


def distances(case):
    """How far the policy is from its teacher at each token; an unscorable completion is not looked at."""
    return each_token(case, lambda i, t: case.from_teacher[i][t] * (0.0 if case.reward[i] is None else 1.0))


def whole_distributions(case, *, strength=1.0):
    """GKD (2306.13649) and the reverse KL: a divergence at each token of the policy's own, averaged over all tokens."""
    return token_mean([[-strength * each for each in row] for row in distances(case)])


def sdpo(case, *, strength=1.0, ceiling=2.0):
    """SDPO (2601.20802): each token's divergence times its ratio, stopped and held at 2."""
    distance = distances(case)
    return token_mean(
        each_token(case, lambda i, t: -strength * min(float(ratio(case, i, t).detach()), ceiling) * distance[i][t])
    )


TEACHER = {
    "opd": opd,
    "iw_opd": iw_opd,
    "opd_full": whole_distributions,
    "gkd": whole_distributions,
    "sdpo": sdpo,
    "sdft": opd,
}
