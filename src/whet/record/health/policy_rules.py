"""How the policy moves: entropy, KL, gradients, and losses that are no numbers.

Whether the critic knows what its states are worth.
"""

from __future__ import annotations

import math
from statistics import fmean, median

from whet.record.health.finding import HealthFinding, note, problem
from whet.record.health.health_rule import ALL_KINDS, health_rule
from whet.record.health.history import FLAT_STEPS, LASTING, RECENT, TREND_STEPS, History, entropy, finite, score
from whet.record.run_kinds import metric
from whet.record.text import number, percent

NARROW = 0.05  # half-width of a band below which most ratios are meant to leave it
MUCH_CLIPPED = 0.5  # of the tokens
FAR_OFF = 0.1  # of a mean ratio from 1
SPIKE = 10  # times the largest norm of the steps before
LOSS_LEFT = 0.01  # below, pairs or rows may all be learned
HUGE = 1000  # times the norm of the first steps


@health_rule(
    "not a number",
    "a metric of the last step is NaN or infinite",
    "it is what an environment measured by itself",
    kinds=ALL_KINDS,
)
def _not_finite(history: History) -> HealthFinding | None:
    last = history.steps[-1]
    broken = [name for name, value in last.metrics.items() if not (math.isfinite(value) or name.startswith("env_"))]
    if not broken:
        return None
    return problem(
        f"{' and '.join(broken[:3])} of step {last.step} {'are' if len(broken) > 1 else 'is'} not a number",
        "the update overflowed and the weights may be lost, or a row holds something that is none",
        "go back to the last checkpoint and look at the rows of this step",
        history.lower("optimizer.learning_rate"),
    )


@health_rule(
    "entropy collapse",
    "entropy fell below a tenth of what it was while the reward did not rise",
    "the reward rises or is at its top: a policy that knows the answer is sure of it (a note)",
    ("metrics.entropy",),
    earliest=TREND_STEPS + LASTING,
    lasting=LASTING,
)
def _entropy_collapse(history: History) -> HealthFinding | None:
    pair = history.start_and_now(entropy)
    if pair is None or history.doing_well:
        return None
    start, now = pair
    if not (start > 0 and now < 0.1 * start):
        return None
    return problem(
        f"Entropy fell from {number(start)} to {number(now)} while the reward stays flat",
        "the policy has stopped exploring",
        history.lower("optimizer.learning_rate"),
        history.warmer(),
        history.higher("objective.clip.high", 1.4),
    )


@health_rule(
    "entropy explosion",
    "entropy grew to three times what it was, by more than 1 nat, without a better reward",
    "the reward rises: longer reasoning is less certain of each word",
    ("metrics.entropy",),
    earliest=TREND_STEPS + LASTING,
    lasting=LASTING,
)
def _entropy_explosion(history: History) -> HealthFinding | None:
    pair = history.start_and_now(entropy)
    if pair is None or history.doing_well:
        return None
    start, now = pair
    if not (now > 3 * start and now > start + 1):
        return None
    return problem(
        f"Entropy grew from {number(start)} to {number(now)} without a better reward",
        "the policy is being washed out towards random text",
        history.lower("optimizer.learning_rate"),
        history.tie(),
    )


@health_rule(
    "entropy falls",
    "entropy fell by half in a run that goes well",
    "always: a note",
    ("metrics.entropy",),
    earliest=TREND_STEPS,
    is_note=True,
)
def _entropy_falls(history: History) -> HealthFinding | None:
    pair = history.start_and_now(entropy)
    if pair is None or not history.doing_well or pair[1] >= 0.5 * pair[0]:
        return None
    evidence = f"Entropy fell from {number(pair[0])} to {number(pair[1])}"
    return note(evidence, "this is normal while the reward grows or is at its top")


@health_rule(
    "KL runaway",
    "the KL from the reference is above 10 nats per token, or above 1 and four times what it was",
    "it grows slowly, or the reward rises with it and it stays below 10",
    ("metrics.kl",),
    earliest=3,
)
def _kl(history: History) -> HealthFinding | None:
    values = history.metric("kl", 13)
    if len(values) < 3:
        return None
    now = median(values[-3:])
    earlier = median(values[-13:-3]) if len(values) >= 13 else math.inf
    if not (now > 10 or (now > 1 and now > 4 * earlier and not history.doing_well)):
        return None
    evidence = f"KL from the reference reached {number(now)} per token"
    slower, read = history.lower("optimizer.learning_rate"), "read the best samples for reward hacking"
    paid = finite(step.reward.get("total") for step in history.steps)
    if fmean(paid[-RECENT:] or [0.0]) <= fmean(paid[:3] or [0.0]):  # no reward draws it there
        cause = "the updates are too large: the policy is leaving the language it started from and is paid no more"
        return problem(evidence, cause, slower, history.tie(), read)
    cause = "the policy is leaving the language it started from, often to please a flaw in the reward"
    return problem(evidence, cause, history.tie(), slower, read)


def _clips_tokens(history: History) -> bool:
    """True where the method drops what left a band around 1, token by token or sentence by sentence: there, a share of
    dropped tokens means something. A ratio of whole completions in a band of thousandths drops most of them by
    design, and other rules weigh every token anew."""
    kind, ratio = history.setting("objective.clip"), str(history.setting("objective.ratio"))
    width = max(history.setting("objective.clip.high") or 0.0, history.setting("objective.clip.low") or 0.0)
    return kind in ("ppo_clip", "dual_clip") and "sequence" not in ratio and "product" not in ratio and width >= NARROW


@health_rule(
    "clipping",
    "more than half of the tokens are clipped and teach nothing",
    "one update per step: the ratio is 1 and nothing is clipped; or the band is one of thousandths around the "
    "ratio of whole completions, which most leave by design (a note)",
    ("metrics.reweighted",),
    earliest=RECENT,
)
def _clipping(history: History) -> HealthFinding | None:
    shares = history.metric("reweighted")
    if len(shares) < RECENT or not _clips_tokens(history) or (share := fmean(shares)) <= MUCH_CLIPPED:
        return None
    return problem(
        f"{percent(share)} of the tokens of the last {RECENT} steps were clipped and taught nothing",
        "the policy moves further within a step than its batch can be trusted",
        history.lower("optimizer.learning_rate"),
        history.lower("batch.updates_per_step", 0.5),
        history.lower("batch.epochs_per_batch", 0.5),
        "take fewer updates from each batch",
    )


@health_rule(
    "clipped by design",
    "most tokens have a weight that is not their ratio, by a method that means it",
    "always: a note",
    ("metrics.reweighted",),
    earliest=RECENT,
    is_note=True,
)
def _clipped_by_design(history: History) -> HealthFinding | None:
    shares = history.metric("reweighted")
    if len(shares) < RECENT or not history.knows_settings or _clips_tokens(history) or (share := fmean(shares)) <= 0.5:
        return None
    return note(
        f"{percent(share)} of the tokens have a weight that is not their ratio",
        "this is normal for this method, whose band is narrow on purpose or which weighs every token anew",
    )


@health_rule(
    "ratio drift",
    f"the mean ratio of the policy to the one that wrote the batch is more than {FAR_OFF:g} from 1",
    "a single step; or the ratio is a product over whole completions, which has no typical size",
    ("metrics.ratio",),
    earliest=RECENT,
)
def _ratio_drift(history: History) -> HealthFinding | None:
    ratios = history.metric("ratio")
    if len(ratios) < RECENT or "product" in str(history.setting("objective.ratio")):
        return None
    off = [ratio - 1 for ratio in ratios]
    if not (min(off) > FAR_OFF or max(off) < -FAR_OFF):
        return None
    return problem(
        f"The mean ratio of the last {RECENT} steps was {number(fmean(ratios))} and should be near 1",
        "the policy is far from the one that wrote the completions",
        history.lower("optimizer.learning_rate"),
        history.lower("batch.updates_per_step", 0.5),
        history.give("optimizer.warmup_steps", "10"),
    )


def _leapt(history: History) -> bool:
    """Whether the last reward, or without one the loss, is as far outside those of the steps before as they differ."""
    values = finite(step.reward.get("total") for step in history.steps) or history.metric("loss", 2 * FLAT_STEPS)
    before, now = values[-FLAT_STEPS - 1 : -1], values[-1] if values else 0.0
    if len(before) < RECENT:
        return False
    return max(now - max(before), min(before) - now) > max(before) - min(before)


@health_rule(
    "gradient spike",
    "the gradient norm is ten times the largest of the 20 steps before, and the reward, or the loss, leaps as well",
    "a single large gradient: it is clipped",
    kinds=ALL_KINDS,
    earliest=2 * RECENT + 1,
)
def _gradient_spike(history: History) -> HealthFinding | None:
    # a step without signal has norm 0: it says nothing about what is typical
    earlier = [norm for norm in finite(map(metric("gradient_norm"), history.steps[-21:-1])) if norm > 0]
    norm = history.steps[-1].metrics.get("gradient_norm") or 0.0
    if history.solved:  # most groups agree then, and the few that do not weigh much
        return None
    if len(earlier) < 2 * RECENT or not norm > SPIKE * max(earlier) or not _leapt(history):
        return None
    return problem(
        f"The gradient norm of step {history.steps[-1].step} was {number(norm)},"
        f" {norm / max(earlier):.0f} times the largest of the {len(earlier)} steps before",
        "a few samples dominate the update, and what they are paid is of another scale",
        history.lower("optimizer.max_gradient_norm", 0.5),
        history.lower("optimizer.learning_rate"),
        history.higher("batch.prompts_per_step"),
    )


@health_rule(
    "no gradient",
    f"the gradient norm is exactly 0 in {RECENT} steps in a row, though there is something to learn",
    "all groups scored alike, or the learning rate is 0 by its schedule",
    kinds=ALL_KINDS,
    earliest=RECENT,
    hides=("flat reward",),
    depth=0,
)
def _no_gradient(history: History) -> HealthFinding | None:
    """Completions differ in what they earn, and nothing of it reaches the weights."""
    norms = finite(map(metric("gradient_norm"), history.steps[-RECENT:]))
    rates, uniform = history.metric("learning_rate"), history.metric("uniform_groups")
    if len(norms) < RECENT or max(norms) > 0 or (uniform and max(uniform) > 0.999):
        return None
    has_signal = bool(uniform) or any(value > LOSS_LEFT for value in history.metric("loss"))
    if not has_signal or (rates and max(rates) == 0):
        return None
    return problem(
        f"The gradient norm of the last {RECENT} steps was exactly 0",
        "no weight receives a gradient, though there is something to learn: they are frozen, or every token is masked "
        "or clipped",
        "look at which weights are trained (`trainable` among the facts of the run) and at what is masked",
    )


@health_rule(
    "huge gradient",
    f"the gradient norm is {HUGE:,} times that of the first steps, in {RECENT} steps in a row",
    "a single step, or the run goes well",
    kinds=ALL_KINDS,
    earliest=TREND_STEPS + RECENT,
)
def _huge_gradient(history: History) -> HealthFinding | None:
    """The norm has grown a thousandfold and stays there; its size alone is the method's own affair."""
    first = [norm for norm in finite(map(metric("gradient_norm"), history.steps[:TREND_STEPS])) if norm > 0]
    norms = finite(map(metric("gradient_norm"), history.steps[-RECENT:]))
    if len(history.steps) < TREND_STEPS + RECENT or len(norms) < RECENT or len(first) < RECENT or history.doing_well:
        return None
    if min(norms) <= HUGE * (typical := median(first)):
        return None
    return problem(
        f"The gradient norm of the last {RECENT} steps was {number(min(norms))} or more, {number(typical)} at first",
        "the updates have left the region in which the model was trained: only their direction is left by the clip",
        "go back to an earlier checkpoint",
        history.lower("optimizer.learning_rate"),
        "look at the scale of rewards and losses",
    )


@health_rule(
    "skipped updates",
    "updates of the last steps had a gradient of exactly 0 and changed nothing",
    "always: a note; what there was not to learn from is said by other rules",
    kinds=ALL_KINDS,
    is_note=True,
)
def _skipped_updates(history: History) -> HealthFinding | None:
    skipped = sum(step.metrics.get("skipped_updates", 0.0) for step in history.steps[-RECENT:])
    if not skipped:
        return None
    return note(
        f"{skipped:.0f} updates of the last {RECENT} steps had a gradient of 0 and were skipped",
        "there was nothing to learn, so weights and moments stay as they are; the learning rate's schedule advances",
    )


@health_rule(
    "surrogate near zero",
    "the value of the objective is near 0",
    "always: a note that the reward is what to watch",
    ("metrics.surrogate",),
    earliest=3,
    is_note=True,
)
def _surrogate_near_zero(history: History) -> HealthFinding | None:
    values = history.metric("surrogate")
    if len(values) < 3 or median(abs(value) for value in values) > 0.01:
        return None
    evidence = f"The surrogate objective is near 0 ({number(values[-1])})"
    cause = "this is normal; while the ratio is 1 the advantages of a group cancel in its value, not in its gradient"
    return note(evidence, cause + ". Watch the reward instead")


POLICY_RULES = (
    _not_finite,
    _entropy_collapse,
    _entropy_explosion,
    _entropy_falls,
    _kl,
    _clipping,
    _clipped_by_design,
    _ratio_drift,
    _gradient_spike,
    _no_gradient,
    _huge_gradient,
    _skipped_updates,
    _surrogate_near_zero,
)

SETTLED = 12  # steps that a critic has to learn its first lesson
LATELY = 10  # steps whose mean decides
NEARLY_SOLVED = 0.85  # mean score from which there is little left to explain
HARDLY = 0.05  # share of the variance that no critic stays below which learns
WORTHLESS = 0.0  # share of the variance explained: a constant does as well


@health_rule(
    "critic misfit",
    "the critic's values explain nothing of what completions earn",
    f"the first {SETTLED} steps, while it learns; or every completion is right and there is nothing to explain",
    ("metrics.critic_explains",),
    earliest=SETTLED,
)
def _misfit(history: History) -> HealthFinding | None:
    known = finite(step.metrics.get("critic_explains") for step in history.steps)
    if len(known) < SETTLED:
        return None
    now = fmean(known[-LATELY:])
    never = max(fmean(known[start : start + RECENT]) for start in range(len(known) - RECENT + 1)) < HARDLY
    easy = (score(history.steps[0]) or 0.0) >= NEARLY_SOLVED
    if easy or not (never or (now <= WORTHLESS and not history.doing_well)):
        return None
    when = "and never did better" if never else f"over the last {LATELY} steps"
    return problem(
        f"The critic explains {number(now)} of the variance of its targets {when}",
        "it is no better than a constant, and its errors are in every advantage",
        history.give("objective.value.warmup", "10"),
        "try critic.learning_rate ten times lower and ten times higher: both break it",
        "leave the critic out: compare each completion with its group",
    )


CRITIC_RULES = (_misfit,)
