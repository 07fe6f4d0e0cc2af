"""The registry of health checks: what a run's numbers say, as pure functions from the steps so far to findings.

Every kind of run has its own checks besides those of all runs. A run that improves, or that has solved its task, is
left in peace: low entropy, short completions and groups that agree are what success looks like. The problems of each
step are recorded with it, so the page shows each with the steps in which it held, also when it is over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from whet.report.episode_health import EPISODE_CHECKS, REMEDIES
from whet.report.findings import (
    FAILED,
    FLAT_STEPS,
    RECENT,
    Check,
    HealthFinding,
    History,
    entropy,
    finite,
    history_of,
    note,
    problem,
    score,
    share_of,
    trend_in_errors,
)
from whet.report.kinds import PREFERENCE, REWARD_MODEL, RL, SFT, completion_length, gradient_norm, kind_of
from whet.report.preference_health import PREFERENCE_CHECKS
from whet.report.text import ACCURACY_NAMES, number, percent
from whet.types import StepReport

FEWEST_FOR_HACKING = 12  # steps before a trend of the parts is one
FALL = 0.05  # of the first part, below which a fall is noise
GIVE = 0.01  # by how much the total may fall and still be said to hold
DISAGREEMENT = "_disagreement"  # ends the name of a metric, after the reward's own
LEAST_DISAGREEMENT = 0.1  # of checked completions: below, a check says nothing
MUCH_DISAGREEMENT = 0.5  # from here on it need not have grown
STRONG_COMPANY = 0.6  # a correlation from here on is one
FEWEST_FOR_PARTING = 8
ENDS = 3  # steps that the first and last disagreement are taken over
GROWTH = 2.0  # times the first disagreement
MUCH_DRIFT = 0.05  # of (token, layer)
LEAST_APART = 0.05  # in the scores' own scale: below, members agree


@dataclass(frozen=True)
class FindingSpan:
    """The steps in which a finding held, with its last wording."""

    finding: HealthFinding
    first: int
    last: int
    num_steps: int
    holds: bool  # still true at the last step


def diagnosis(steps: Sequence[StepReport], dtype: str = "float32", checks: Sequence[Check] = ()) -> tuple[str, ...]:
    """The problems visible at the last step, one sentence each; empty when the run is healthy."""
    return tuple(finding.text for finding in findings(steps, dtype, checks) if finding.is_problem)


def notes(steps: Sequence[StepReport], dtype: str = "float32") -> tuple[str, ...]:
    """What may look wrong at the last step and is normal, one sentence each."""
    return tuple(finding.text for finding in findings(steps, dtype) if not finding.is_problem)


def findings(
    steps: Sequence[StepReport], dtype: str = "float32", checks: Sequence[Check] = ()
) -> tuple[HealthFinding, ...]:
    """Problems first, then notes, each name once; `checks` are those that one run brings besides its kind's."""
    if not steps:
        return ()
    history = history_of(steps, dtype)
    problems: dict[str, HealthFinding] = {}
    for each in (*CHECKS, *CHECKS_BY_KIND.get(kind_of(steps).name, ()), *checks):
        finding = each(history)
        if finding is not None:
            problems.setdefault(finding.name, finding)
    if "no reward signal" in problems:
        problems.pop("flat reward", None)
    return tuple(sorted(problems.values(), key=lambda finding: not finding.is_problem))


def finding_spans(
    steps: Sequence[StepReport],
    dtype: str = "float32",
    recorded: Sequence[tuple[int, tuple[str, ...]]] | None = None,
) -> tuple[FindingSpan, ...]:
    """Every problem recorded in any step, in the order they first appeared, then the notes of the last step.

    `recorded` are the problems by step, where `steps` are not all there are.
    """
    if not steps:
        return ()
    spans: dict[str, FindingSpan] = {}
    end = steps[-1].step
    for step, texts in ((each.step, each.health) for each in steps) if recorded is None else recorded:
        for text in texts:
            finding = recorded_finding(text)
            before = spans.get(finding.name)
            first, count = (before.first, before.num_steps + 1) if before else (step, 1)
            spans[finding.name] = FindingSpan(finding, first, step, count, step == end)
    last = [FindingSpan(each, end, end, 1, True) for each in findings(steps, dtype) if not each.is_problem]
    return (*spans.values(), *last)


KNOWN_NAME = re.compile(r"[A-Za-z][A-Za-z -]{2,38}")
NUMBERS = re.compile(r"[-+]?\d[\d.,]*")


def recorded_finding(text: str) -> HealthFinding:
    """A problem as `HealthFinding.text` wrote it; one of a run of 0.1 has no name and is known by its words."""
    name, colon, sentence = text.partition(": ")
    if colon and KNOWN_NAME.fullmatch(name):
        return HealthFinding(name, sentence)
    return HealthFinding(NUMBERS.sub("", text), text)


def _not_finite(history: History) -> HealthFinding | None:
    last = history.steps[-1]
    broken = [name for name in ("loss", "gradient_norm", "grad_norm") if not _is_finite(last.metrics.get(name))]
    if not broken:
        return None
    return problem(
        "not a number",
        f"{' and '.join(broken)} of step {last.step} is not a number",
        "the update overflowed and the weights may be lost",
        "go back to the last checkpoint, lower learning_rate or train in float32",
    )


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _no_signal(history: History) -> HealthFinding | None:
    uniform = history.metric("uniform_groups")
    if len(uniform) < RECENT or min(uniform) < 0.999:
        return None
    evidence = f"All groups of the last {RECENT} steps scored alike (mean {number(history.score)})"
    name = "no reward signal"
    if history.solved:
        idle = sorted(part for part, mean in history.steps[-1].reward.items() if mean == 0)
        doubt = f"; look at {', '.join(idle)}, though, which stays at 0" if idle else ""
        cause = f"every completion is right, which is normal once a task is solved{doubt}"
        return note(name, evidence, f"{cause}. Give harder data to learn more")
    if history.rising:
        return None
    if history.score <= FAILED:
        cause = "every completion is wrong, so there is nothing to learn from"
        fix = "give easier data, raise temperature or enlarge group_size"
        return problem(name, evidence, cause, fix)
    cause = "each prompt is always solved or never, so no completion is better than its group"
    return problem(name, evidence, cause, "give data of middling difficulty, raise temperature or group_size")


def _entropy(history: History) -> HealthFinding | None:
    pair = history.start_and_now(entropy)
    if pair is None or history.doing_well:
        return None
    start, now = pair
    moved = f"from {number(start)} to {number(now)}"
    if start > 0 and now < 0.1 * start:
        cause = "the policy has stopped exploring"
        fix = "lower optimizer.learning_rate, or raise sampling.temperature or objective.clip.high"
        return problem("entropy collapse", f"Entropy fell {moved} while the reward stays flat", cause, fix)
    if now > 3 * start and now > start + 1:
        cause = "the policy is being washed out towards random text"
        fix = "lower optimizer.learning_rate, or raise objective.kl.beta"
        return problem("entropy explosion", f"Entropy grew {moved} without a better reward", cause, fix)
    return None


def _kl(history: History) -> HealthFinding | None:
    values = history.metric("kl", 13)
    if len(values) < 3:
        return None
    now = median(values[-3:])
    earlier = median(values[-13:-3]) if len(values) >= 13 else math.inf
    if not (now > 10 or (now > 1 and now > 4 * earlier and not history.doing_well)):
        return None
    return problem(
        "KL runaway",
        f"KL from the reference reached {number(now)} per token",
        "the policy is leaving the language it started from, often to please a flaw in the reward",
        "raise the kl coefficient, lower learning_rate and read the best samples for reward hacking",
    )


def _gradient_spike(history: History) -> HealthFinding | None:
    # a step without signal has norm 0: it says nothing about what is typical
    earlier = [norm for norm in finite(map(gradient_norm, history.steps[-21:-1])) if norm > 0]
    norm = gradient_norm(history.steps[-1]) or 0.0
    if len(earlier) < RECENT or not norm > 10 * (typical := median(earlier)):
        return None
    return problem(
        "gradient spike",
        f"The gradient norm of step {history.steps[-1].step} was {number(norm)},"
        f" {norm / typical:.0f} times its median of {number(typical)}",
        "a few samples dominate the update",
        "clip the gradient norm lower, lower learning_rate or raise prompts_per_step",
    )


def _truncation(history: History) -> HealthFinding | None:
    if history.solved or len(history.steps) < RECENT:
        return None
    recent = history.steps[-RECENT:]
    # episodes that a limit of their own ended ran out of something else, which has its own check
    share = share_of(recent, "truncated") - sum(share_of(recent, f"ended_by_{limit}") for limit in REMEDIES)
    if share <= 0.5:
        return None
    return problem(
        "truncated completions",
        f"{percent(share)} of the completions of the last {RECENT} steps ran out of tokens",
        "they are cut before their answer",
        "raise max_new_tokens, or reward shorter completions",
    )


def _length(history: History) -> HealthFinding | None:
    pair, scores = history.start_and_now(completion_length), history.start_and_now(score)
    if pair is None or history.doing_well or (scores is not None and scores[1] > scores[0] + 0.1 * abs(scores[0])):
        return None
    start, now = pair
    moved = f"from {number(start)} to {number(now)} tokens"
    if start >= 8 and now < 0.25 * start:
        cause = "the policy found that short completions cost less, not that they are right"
        fix = "weaken length costs and check that the reward gives nothing to an empty completion"
        return problem("length collapse", f"Completions shrank {moved} without a better reward", cause, fix)
    if now > 4 * start and now >= 32:
        cause = "length is being rewarded, or the end of the completion is no longer learned"
        fix = "set objective.aggregate=token_mean, or lower sampling.max_new_tokens"
        return problem("length blow-up", f"Completions grew {moved} without a better reward", cause, fix)
    return None


def _sampler_gap(history: History) -> HealthFinding | None:
    gap = history.steps[-1].metrics.get("sampler_gap")
    if gap is None or not gap > history.tolerance:
        return None
    return problem(
        "sampler gap",
        f"Sampler and trainer disagree by {number(gap)} per token (at most {history.tolerance:g} is expected)",
        "the completions are not quite from the policy that is trained",
        "run sampler and trainer in the same precision (model.precision) and with the same weights",
    )


def _router_drift(history: History) -> HealthFinding | None:
    metrics = history.steps[-1].metrics
    drift = metrics.get("router_drift_layers")
    # completions of an older policy are meant to differ, and replayed experts do no harm
    if drift is None or "staleness" in metrics or "replayed_experts" in metrics or not drift > MUCH_DRIFT:
        return None
    return problem(
        "router drift",
        f"Sampler and trainer send a token to other experts in {percent(drift)} of the layers",
        "the trained log-probabilities are not those of the experts that wrote the completions",
        "give batch.routing_replay=sampler, or run sampler and trainer in the same precision",
    )


def _unscorable(history: History) -> HealthFinding | None:
    share = share_of(history.steps[-RECENT:], "unscorable")
    if len(history.steps) < min(RECENT, 3) or share <= 0.1:
        return None
    return problem(
        "unscorable completions",
        f"{percent(share)} of the completions of the last steps could not be scored",
        "the reward gave None, so they were left out of training",
        "read them in samples.jsonl, then fix the reward or the answers in the data",
    )


def _flat(history: History) -> HealthFinding | None:
    scores = finite(score(step) for step in history.steps[-FLAT_STEPS:])
    if len(scores) < FLAT_STEPS or history.doing_well:
        return None
    start, now = fmean(scores[: FLAT_STEPS // 2]), fmean(scores[FLAT_STEPS // 2 :])
    falling = trend_in_errors(scores) < -2
    if not falling and 0.8 <= now <= 1:
        evidence = f"The reward stays at {number(now)}"
        return note("little to gain", evidence, "this is normal so near its top; harder data would teach more")
    verb = "fell" if falling else "has not risen"
    cause = "the updates do harm" if falling else "the updates are too small, too noisy, or have nothing to reward"
    fix = (
        "lower learning_rate and check the reward on samples.jsonl"
        if falling
        else "raise learning_rate or prompts_per_step, or give easier data"
    )
    evidence = f"The reward {verb} over {FLAT_STEPS} steps ({number(start)} to {number(now)})"
    return problem("flat reward", evidence, cause, fix)


def _surrogate_near_zero(history: History) -> HealthFinding | None:
    values = history.metric("surrogate")
    if len(values) < 3 or median(abs(value) for value in values) > 0.01:
        return None
    evidence = f"The surrogate objective is near 0 ({number(values[-1])})"
    cause = "this is normal; while the ratio is 1 the advantages of a group cancel in its value, not in its gradient"
    return note("surrogate near zero", evidence, cause + ". Watch the reward instead")


def _entropy_falls_with_success(history: History) -> HealthFinding | None:
    pair = history.start_and_now(entropy)
    if pair is None or not history.doing_well or pair[1] >= 0.5 * pair[0]:
        return None
    evidence = f"Entropy fell from {number(pair[0])} to {number(pair[1])}"
    return note("entropy falls", evidence, "this is normal while the reward grows or is at its top")


def _some_uniform(history: History) -> HealthFinding | None:
    uniform = history.metric("uniform_groups")
    if len(uniform) < RECENT or not history.doing_well or not 0.5 < (share := fmean(uniform)) < 0.999:
        return None
    evidence = f"{percent(share)} of the groups scored alike and gave no gradient"
    return note("groups agree", evidence, "this is normal as the accuracy grows; harder data would use them better")


def _hacked(history: History) -> HealthFinding | None:
    """The first part of a reward says whether a completion is right: the total must not hold or rise without it."""
    steps = [step.reward for step in history.steps if len(step.reward) > 2]  # the total and at least two parts
    if len(steps) < FEWEST_FOR_HACKING:
        return None
    first = next(name for name in steps[-1] if name != "total")
    quarter = len(steps) // 4

    def ends(name: str) -> tuple[float, float]:
        values = finite(rewards.get(name) for rewards in steps)
        return fmean(values[:quarter] or [0.0]), fmean(values[-quarter:] or [0.0])

    (part_before, part_after), (before, after) = ends(first), ends("total")
    if not (part_before - part_after > FALL and before - after < GIVE):
        return None
    return problem(
        "reward hacked",
        f"{first} fell from {part_before:.2f} to {part_after:.2f} while the total reward went from {before:.2f} to "
        f"{after:.2f}",
        "another part pays without it",
        f"let it count only where {first} passes (gate), or lower its weight",
    )


def _held_out(history: History) -> HealthFinding | None:
    """A stricter verifier no longer accepts what the reward pays."""
    shares = finite(step.metrics.get("held_out_disagreement") for step in history.steps)
    if len(shares) < FEWEST_FOR_PARTING:
        return None
    start, now = fmean(shares[:ENDS]), fmean(shares[-RECENT:])
    if now < LEAST_DISAGREEMENT or (now < MUCH_DISAGREEMENT and now < start + LEAST_DISAGREEMENT):
        return None
    return problem(
        "held-out disagreement",
        f"The held-out reward rejects {percent(now)} of what the reward paid, {percent(start)} at first",
        "the policy has found what the reward pays and a stricter one does not",
        "read such completions in review.html, run `whet reward attack`, and make the held-out reward the first part",
    )


def _frame(history: History) -> HealthFinding | None:
    """The score of the same answer depends on what stands around it."""
    shares = history.metric("frame_moves", FEWEST_FOR_PARTING)
    if len(shares) < RECENT or fmean(shares) < LEAST_DISAGREEMENT:
        return None
    pays = history.metric("frame_pays", FEWEST_FOR_PARTING)
    return problem(
        "reward follows the frame",
        f"{percent(fmean(shares))} of the rewarded completions score otherwise when only the text around their answer "
        f"is changed, by {fmean(pays):.2f} on average",
        "the reward is paid for its frame, not for its answer",
        "make the first part compare the answer alone, or add defences",
    )


def _company(history: History) -> HealthFinding | None:
    """The reward goes with length, or against the reference, more than it did, and the policy follows.

    Where an accuracy rises too, longer or rarer completions are simply better ones.
    """
    if history.doing_well and any(name in history.steps[-1].reward for name in ACCURACY_NAMES):
        return None
    with_length = history.start_and_now(lambda step: step.metrics.get("reward_length_correlation"))
    lengths = history.start_and_now(completion_length)
    if with_length and lengths and with_length[1] > STRONG_COMPANY and lengths[1] > 1.5 * lengths[0]:
        return problem(
            "reward follows length",
            f"Within groups the reward goes with length (correlation {with_length[1]:.2f}), and completions grew from "
            f"{number(lengths[0])} to {number(lengths[1])} tokens",
            "longer completions are paid more, whether or not they are better",
            "add a length cost, normalise the reward by length, or look at `whet reward test --run`",
        )
    with_reference = history.start_and_now(lambda step: step.metrics.get("reward_reference_correlation"))
    if with_reference and with_reference[1] < -STRONG_COMPANY and with_reference[1] < with_reference[0] - 0.3:
        return problem(
            "reward against the reference",
            f"Within groups the reward goes against the reference's log-probability (correlation "
            f"{with_reference[1]:.2f}, {with_reference[0]:.2f} at first)",
            "what is paid is what the starting model would hardly write, a sign of a reward that is being gamed",
            "read the best completions in review.html, raise objective.kl.beta, and run `whet reward attack`",
        )
    return None


def _members_part(history: History) -> HealthFinding | None:
    """The members of a learned reward are further apart on the policy's completions than they were at first."""
    names = [name for name in history.steps[-1].metrics if name.endswith(DISAGREEMENT)]
    evidence = "; ".join(text for name in names if (text := _parting(history.steps, name)))
    if not evidence:
        return None
    return problem(
        "members part",
        evidence,
        "the policy writes what they have not learnt to judge",
        "take a cautious ensemble (worst, mean_minus_variance), raise objective.kl.beta, or train the reward model on "
        "new completions",
    )


def _parting(steps: Sequence[StepReport], name: str) -> str:
    measured = [step for step in steps if name in step.metrics]
    if len(measured) < FEWEST_FOR_PARTING:
        return ""
    start, now = (median(step.metrics[name] for step in part) for part in (measured[:ENDS], measured[-ENDS:]))
    if now < LEAST_APART or now <= GROWTH * start:
        return ""
    reward = name.removesuffix(DISAGREEMENT)
    scores = [finite(step.reward.get(reward) for step in part) for part in (measured[:ENDS], measured[-ENDS:])]
    moved = f" while it went from {fmean(scores[0]):.2f} to {fmean(scores[1]):.2f}" if all(scores) else ""
    return f"The members of {reward} were {start:.2g} apart on the first completions and are {now:.2g} apart now{moved}"


def _loss_rises(history: History) -> HealthFinding | None:
    """A loss on rows that are seen again should fall."""
    losses = history.metric("loss", FLAT_STEPS)
    if len(losses) < FLAT_STEPS or trend_in_errors(losses) <= 2:
        return None
    start, now = fmean(losses[:RECENT]), fmean(losses[-RECENT:])
    return problem(
        "loss rises",
        f"The loss rose from {number(start)} to {number(now)} over {FLAT_STEPS} steps",
        "the updates do harm",
        "lower optimizer.learning_rate, and look for rows of another kind late in the data",
    )


def _guesses(history: History) -> HealthFinding | None:
    accuracies = history.metric("accuracy", FLAT_STEPS)
    if len(accuracies) < FLAT_STEPS or (now := fmean(accuracies[-2 * RECENT :])) > 0.55:
        return None
    return problem(
        "guessing",
        f"Accuracy on the training pairs is {percent(now)} after {len(history.steps)} steps",
        "the scores do not tell better from worse",
        "raise optimizer.learning_rate, and read a few pairs: the difference may not be visible, or labels be swapped",
    )


CHECKS: tuple[Check, ...] = (
    _not_finite,
    _no_signal,
    _flat,
    _entropy,
    _kl,
    _gradient_spike,
    _truncation,
    _length,
    _sampler_gap,
    _router_drift,
    _unscorable,
    _hacked,
    _held_out,
    _frame,
    _company,
    _members_part,
    _surrogate_near_zero,
    _entropy_falls_with_success,
    _some_uniform,
)

CHECKS_BY_KIND: dict[str, tuple[Check, ...]] = {
    RL: EPISODE_CHECKS,
    PREFERENCE: PREFERENCE_CHECKS,
    SFT: (_loss_rises,),
    REWARD_MODEL: (_loss_rises, _guesses),
}
