"""Where completions come from: sampler against trainer, routers, age and speed."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import islice
from statistics import fmean, median

from whet.record.health.finding import HealthFinding, problem
from whet.record.health.health_rule import ALL_KINDS, health_rule
from whet.record.health.history import DECODING, DEVICE, RECENT, SPENT, TREND_STEPS, History
from whet.record.run_kinds import completion_length, speed
from whet.record.text import duration, number, percent
from whet.types import StepReport

MUCH_DRIFT = 0.05  # of (token, layer)
MUCH_STALE = 0.1  # nats per token
MANY_DEAD = 0.1  # of the experts, more than at first
WARM_UP = 2  # steps whose time says nothing
LOOK_BACK = 50  # steps that say how fast the run was
SLOWER = 0.5  # of the speed before
LONG_RUN = 600  # seconds after which it matters where they go
MUCH_TIME = 0.25
ELSEWHERE = {
    "reward": "scoring completions",
    "evaluate": "evaluations",
    "save": "saving checkpoints",
    "start_up": "starting up",
}


@health_rule(
    "sampler gap",
    "the trainer's log-probabilities are not the sampler's, before any update",
    "the products run in half precision: 0.05 nats are allowed there, 0.001 otherwise",
    ("metrics.sampler_gap",),
    depth=0,
)
def _sampler_gap(history: History) -> HealthFinding | None:
    gap = history.steps[-1].metrics.get("sampler_gap")
    if gap is None or not gap > history.tolerance:
        return None
    return problem(
        f"Sampler and trainer disagree by {number(gap)} per token (at most {history.tolerance:g} is expected)",
        "the completions are not quite from the policy that is trained",
        "run sampler and trainer in the same precision (model.precision) and with the same weights",
    )


@health_rule(
    "router drift",
    "sampler and trainer send tokens of a mixture of experts to different experts",
    "the experts are replayed, or the completions are meant to be an older policy's",
    ("metrics.router_drift_layers",),
    hides=("sampler gap",),
    depth=0,
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


@health_rule(
    "stale rollouts",
    f"the policy has moved {MUCH_STALE:g} nats per token or more since the completions were written",
    "completions are a version or two old, and the policy has hardly moved",
    ("metrics.staleness",),
    earliest=RECENT,
    depth=0,
)
def _stale(history: History) -> HealthFinding | None:
    gaps, behind = history.metric("staleness"), history.metric("versions_behind")
    if len(gaps) < RECENT or (gap := median(gaps)) <= MUCH_STALE:
        return None
    age = f", {number(fmean(behind))} versions behind" if behind else ""
    return problem(
        f"The policy has moved {number(gap)} nats per token since the completions were written{age}",
        "they are another policy's, and what is learned from them is wrong for this one",
        history.lower("scale.max_staleness", 0.5),
        history.lower("batch.staleness", 0.5),
        history.lower("optimizer.learning_rate"),
        history.give("objective.mismatch", "truncate"),
    )


@health_rule(
    "dead experts",
    "a tenth more of the experts than at first get no token",
    "they got none from the start: the step is too small to use them all",
    ("metrics.dead_experts",),
    earliest=TREND_STEPS,
)
def _dead_experts(history: History) -> HealthFinding | None:
    dead = history.start_and_now(lambda step: step.metrics.get("dead_experts"))
    if dead is None or not dead[1] > dead[0] + MANY_DEAD:
        return None
    return problem(
        f"{percent(dead[1])} of the experts get no token, {percent(dead[0])} at first",
        "the router has stopped using them, and what they knew is lost",
        history.lower("optimizer.learning_rate"),
        history.give("objective.ratio", "sequence"),
        history.give("batch.routing_replay", "sampler"),
    )


def _pace(step: StepReport) -> float | None:
    """Tokens per second, those of completions that were left out included."""
    trained, written = step.counts.get("samples", 0), step.counts.get("samples_spent", 0)
    rate = speed(step)
    return rate if rate is None or not trained or not written else rate * written / trained


@health_rule(
    "throughput loss",
    "tokens per second fell to half of what they were",
    "completions became much shorter: what a step costs besides is shared by fewer tokens",
    ("seconds", "counts.tokens"),
    kinds=ALL_KINDS,
    earliest=WARM_UP + 3 * RECENT,
    is_timed=True,
    depth=3,
)
def _slower(history: History) -> HealthFinding | None:
    """Tokens per second of the last steps against those of the steps before; the first steps warm up."""
    latest = (
        (pace, completion_length(step) or 0.0) for step in reversed(history.steps[WARM_UP:]) if (pace := _pace(step))
    )
    timed = [*islice(latest, RECENT + LOOK_BACK)]
    if len(timed) < 3 * RECENT:
        return None
    recent, earlier = timed[:RECENT], timed[RECENT:]
    typical, now = median(pace for pace, _ in earlier), median(pace for pace, _ in recent)
    if not (now < SLOWER * typical and max(pace for pace, _ in recent) < typical):
        return None
    # short completions are dear per token: what a step costs besides them is shared by fewer
    if median(length for _, length in recent) < 0.7 * median(length for _, length in earlier):
        return None
    return problem(
        f"The run makes {number(now)} tokens per second, {number(typical)} before",
        "another process took the machine, memory is short, or what writes completions has slowed down",
        "look at the time split of the steps, and at what else runs on the machine",
    )


@health_rule(
    "time spent elsewhere",
    "more than a quarter of the time of a run goes into scoring, evaluations, saving or starting up",
    f"the run has taken less than {LONG_RUN // 60} minutes",
    ("seconds",),
    kinds=ALL_KINDS,
    is_timed=True,
    depth=3,
)
def _elsewhere(history: History) -> HealthFinding | None:
    """A long run that spends its time neither writing nor learning."""
    spent: defaultdict[str, float] = defaultdict(float)
    for step in history.steps:
        for name, took in step.seconds.items():
            spent[name] += took if math.isfinite(took) else 0.0
    spent["evaluate"] += sum(evaluation.seconds for evaluation in history.evals if math.isfinite(evaluation.seconds))
    stated = {name.removeprefix(SPENT): took for name, took in history.settings.items() if name.startswith(SPENT)}
    spent |= {phase: took for phase, took in stated.items() if math.isfinite(took)}
    total = sum(spent.values())
    if total < LONG_RUN or not any(step.seconds for step in history.steps):
        return None
    phase = max(ELSEWHERE, key=lambda name: spent[name])
    if spent[phase] <= MUCH_TIME * total:
        return None
    advice = {
        "reward": history.higher("scale.reward_workers") or "score in processes of their own (scale.reward_workers)",
        "evaluate": history.higher("eval.every") or history.lower("eval.prompts", 0.5),
        "save": history.higher("report.save_every"),
        "start_up": None,
    }
    return problem(
        f"{percent(spent[phase] / total)} of the {duration(total)} went into {ELSEWHERE[phase]}",
        "the time is not spent on writing completions and learning from them",
        advice[phase],
        "look at the time split of the steps",
    )


@health_rule(
    "slow decode path",
    "completions are not written by CUDA graphs on a CUDA device, by the facts of the run",
    "never: the facts say why",
    is_timed=True,
    depth=3,
    is_stated=True,
)
def _slow_path(history: History) -> HealthFinding | None:
    """A run that says its GPU does not get whole decode steps: it waits for Python between them."""
    path, _, reason = str(history.settings.get(DECODING) or "").partition(" (")
    if not str(history.settings.get(DEVICE) or "").startswith("cuda") or not reason:
        return None
    return problem(
        f"On the GPU completions are written by {path}, not by CUDA graphs: {reason.removesuffix(')')}",
        "writing takes several times as long as it could",
        "where that is no limit of your settings, another engine may write this model faster (sampling.engine=vllm)",
    )


ROLLOUT_RULES = (_sampler_gap, _stale, _slower, _elsewhere, _slow_path, _dead_experts, _router_drift)
