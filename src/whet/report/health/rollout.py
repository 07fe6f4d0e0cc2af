"""Where completions come from: sampler against trainer, routers, age and speed."""

from __future__ import annotations

from whet.report.health.finding import HealthFinding, problem
from whet.report.health.history import History
from whet.report.health.rule import HealthRule
from whet.report.text import number, percent

MUCH_DRIFT = 0.05  # of (token, layer)


def _sampler_gap(history: History) -> HealthFinding | None:
    gap = history.steps[-1].metrics.get("sampler_gap")
    if gap is None or not gap > history.tolerance:
        return None
    return problem(
        f"Sampler and trainer disagree by {number(gap)} per token (at most {history.tolerance:g} is expected)",
        "the completions are not quite from the policy that is trained",
        "run sampler and trainer in the same precision (model.precision) and with the same weights",
        history.give("objective.mismatch", "truncate"),
    )


def _router_drift(history: History) -> HealthFinding | None:
    metrics = history.steps[-1].metrics
    drift = metrics.get("router_drift_layers")
    # completions of an older policy are meant to differ, and replayed experts do no harm
    if drift is None or "staleness" in metrics or "replayed_experts" in metrics or not drift > MUCH_DRIFT:
        return None
    return problem(
        f"Sampler and trainer send a token to other experts in {percent(drift)} of the layers",
        "the trained log-probabilities are not those of the experts that wrote the completions",
        history.give("batch.routing_replay", "sampler"),
        "run sampler and trainer in the same precision (model.precision)",
    )


ROLLOUT_RULES = (
    HealthRule(
        "sampler gap",
        _sampler_gap,
        "the trainer's log-probabilities are not the sampler's, before any update",
        "the products run in half precision: 0.05 nats are allowed there, 0.001 otherwise",
        ("metrics.sampler_gap",),
    ),
    HealthRule(
        "router drift",
        _router_drift,
        "sampler and trainer send tokens of a mixture of experts to different experts",
        "the experts are replayed, or the completions are meant to be an older policy's",
        ("metrics.router_drift_layers",),
    ),
)
