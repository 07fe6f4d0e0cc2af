"""What each planted fault is, which rules name it, and what shows that it took hold.

The map of rules was written before any rule was measured on the corpus. `names` are rules that point at the fault
itself; `follows` are true things to say of such a run that name a consequence. A fault counts as found when a rule of
either set speaks as a problem at or after the step in which the fault begins, as named when one of `names` does.

`held` looks at what the run did: at numbers the plant must move, with bounds of its own, and never at a rule. A run
that its fault did not change is no run with that fault, and is left out of the corpus; so is a "healthy" run that did
not learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from outside import FAULTS
from readings import Run, died, evals_of, first, last, no_gain, series, since, steps_of

PREFERENCE_METRIC = "chosen_logp"
SOON = 6  # fewest steps of a run
WITNESSES = frozenset(("evaluation falls", "evaluation lags"))  # true of any run they are said of: they are measured


@dataclass(frozen=True)
class FaultKind:
    names: frozenset[str]
    follows: frozenset[str]
    criterion: str  # `held` in words
    held: Callable[[Run], bool]


def learned(run: Run) -> bool:
    """A healthy run: it gains, or there was little to gain."""
    if run["status"] != "finished":
        return False
    right = series(run, "seen/right")
    if "env" in run["settings"]:
        right = series(run, "reward/total")
    if right:
        return last(right) >= min(0.9, first(right, 3) + 0.1)
    losses = series(run, "metrics/loss")
    if run["method"] == "sft":
        return last(losses) < first(losses)
    accuracies = series(run, "metrics/accuracy")
    if accuracies:
        return last(accuracies) > 0.65
    chosen, rejected = series(run, "metrics/chosen_reward"), series(run, "metrics/rejected_reward")
    if chosen and rejected:
        return last(chosen) - last(rejected) > first(chosen, 2) - first(rejected, 2)
    return last(losses) < first(losses)


def unlearned(run: Run) -> bool:
    right = series(run, "seen/right")
    return died(run) or (bool(right) and last(right) < 0.6 * max(first(right, 3), 0.1))


def wrong_way(run: Run) -> bool:
    right = series(run, "seen/right")
    before = right[: run["start"]][-8:] if run["start"] > 1 else right[:3]
    return last(right) < fmean(before) - 0.15


def lengthened(run: Run) -> bool:
    """Longer, and not because working things out is longer: that would be right."""
    tokens, right = series(run, "counts/tokens"), series(run, "seen/right")
    return last(tokens) > 1.5 * first(tokens, 3) and last(right) < 2 / 3


def shortened(run: Run) -> bool:
    tokens, right = series(run, "counts/tokens"), series(run, "seen/right")
    return last(tokens) < 0.5 * first(tokens, 3) and last(right) < 0.3


def formatted(run: Run) -> bool:
    (part,) = [name for name in steps_of(run)[0]["reward"] if name in ("marks", "well_formed")]
    paid, right = series(run, f"reward/{part}"), series(run, "seen/right")
    return last(paid) > first(paid, 3) + 0.2 and last(right) < 0.5


def repeated(run: Run) -> bool:
    share = series(run, "seen/repeated")
    return last(share) > first(share, 3) + 0.2


def proxied(run: Run) -> bool:
    """What is paid rises by 0.2 more than what is right."""
    paid, right = series(run, "reward/total"), series(run, "seen/right")
    return (last(paid) - first(paid, 3)) > (last(right) - first(right, 3)) + 0.2


def apart(run: Run) -> bool:
    return median(since(run, series(run, "metrics/sampler_gap")) or [0.0]) > 3e-3


def part_of_drawn(run: Run, name: str, of: Sequence[str], share: float) -> bool:
    lines = steps_of(run)[run["start"] - 1 :]
    counted = sum(line["counts"].get(name, 0) for line in lines)
    total = sum(line["counts"].get(each, 0) for line in lines for each in of)
    return bool(total) and counted / total >= share


def slower(run: Run) -> bool:
    seconds = series(run, "seconds")
    before, after = seconds[3 : run["start"] - 1], seconds[run["start"] - 1 :]
    return median(after) > 2.5 * median(before)


def fooled(run: Run) -> bool:
    """Pairs or scores with wrong labels: on right ones it is no better than a coin."""
    accuracy = evals_of(run, "pair_accuracy") or evals_of(run, "accuracy")
    return bool(accuracy) and accuracy[-1] < 0.65


def lost_pairs(run: Run) -> bool:
    chosen, rejected = series(run, "metrics/chosen_logp"), series(run, "metrics/rejected_logp")
    return min(first(chosen) - last(chosen), first(rejected) - last(rejected)) > 3


def spiked(run: Run) -> bool:
    lines = steps_of(run)
    norms = [line["metrics"].get("gradient_norm") or 0.0 for line in lines]
    at = run["start"] - 1
    usual = [norm for norm in norms[max(0, at - 15) : at] if norm > 0]
    return len(norms) > at and len(usual) > 3 and norms[at] > 4 * median(usual)


def rose(run: Run) -> bool:
    losses = series(run, "metrics/loss")
    lowest = min(losses[:30])
    return died(run) or last(losses) > 1.2 * lowest + 0.05


def always(run: Run) -> bool:
    """Of a run whose truth is drawn, or that its own evaluations have judged (`slow_runs.py`)."""
    return True


def kind(names: str, follows: str, criterion: str, held: Callable[[Run], bool]) -> FaultKind:
    def split(text: str) -> frozenset[str]:
        return frozenset(each.strip() for each in text.split(",") if each.strip())

    return FaultKind(split(names), split(follows) | WITNESSES - split(names), criterion, held)


KINDS: dict[str, FaultKind] = {
    "rate too high": kind(
        "not a number, KL runaway, entropy explosion, entropy collapse, gradient spike, falling reward, ratio drift",
        "no reward signal, flat reward, truncated completions, length blow-up, length collapse, repetition, clipping",
        "right completions fall below 0.6 of the first steps', or the weights overflow",
        unlearned,
    ),
    "rate too low": kind(
        "flat reward",
        "no reward signal",
        "right completions gain less than 0.1 over the run, where others gain 0.3",
        no_gain,
    ),
    "entropy bonus too large": kind(
        "entropy explosion",
        "KL runaway, falling reward, flat reward, truncated completions, length blow-up, no reward signal, repetition",
        "entropy of the last steps above twice that of the first",
        lambda run: last(series(run, "metrics/entropy")) > 2 * first(series(run, "metrics/entropy")),
    ),
    "too many updates": kind(
        "clipping, ratio drift",
        "KL runaway, entropy collapse, entropy explosion, gradient spike, falling reward, flat reward,"
        " no reward signal, truncated completions, length blow-up, length collapse, repetition, not a number",
        "a tenth of the tokens' weights differ from their ratios, on average, or right completions fall below 0.6 of"
        " the first steps'",
        lambda run: fmean(series(run, "metrics/reweighted") or [0.0]) > 0.1 or unlearned(run),
    ),
    "broken critic": kind(
        "critic misfit",
        "flat reward, falling reward, no reward signal, KL runaway, entropy collapse, entropy explosion",
        "over the second half the critic explains less than a tenth of its targets' variance",
        lambda run: last(series(run, "metrics/critic_explains"), 20) < 0.1,
    ),
    "one huge reward": kind(
        "gradient spike",
        "falling reward, one part dominates, flat reward, KL runaway, entropy collapse, entropy explosion,"
        " no reward signal",
        "the gradient norm of that step is above four times the median before it",
        spiked,
    ),
    "no exploration": kind(
        "no reward signal, entropy collapse",
        "flat reward",
        "four fifths of the groups scored alike, and right completions stay below 0.9",
        lambda run: fmean(series(run, "metrics/uniform_groups")) > 0.8 and last(series(run, "seen/right")) < 0.9,
    ),
    "batch too small": kind(
        "batch too small, entropy collapse, falling reward, KL runaway",
        "flat reward, no reward signal, gradient spike, truncated completions, length collapse,"
        " length blow-up, repetition, entropy explosion",
        "right completions fall below 0.6 of the first steps'",
        unlearned,
    ),
    "reward always 0": kind(
        "no reward signal",
        "flat reward",
        "every reward is 0",
        lambda run: not any(series(run, "reward/total")),
    ),
    "reward per prompt": kind(
        "no reward signal",
        "flat reward",
        "in every step all groups scored alike",
        lambda run: min(series(run, "metrics/uniform_groups")) == 1,
    ),
    "sign error": kind(
        "falling reward, reward hacked",
        "no reward signal, flat reward, entropy collapse, KL runaway, length collapse, length blow-up,"
        " entropy explosion, truncated completions",
        "right completions fall by 0.15 from what they were before",
        wrong_way,
    ),
    "dominant noise": kind(
        "one part dominates",
        "flat reward, KL runaway, entropy explosion, falling reward, reward hacked",
        "right completions gain less than 0.1 over the run, where others gain 0.3",
        no_gain,
    ),
    "too few tokens": kind(
        "truncated completions",
        "no reward signal, flat reward, length collapse",
        "half of the completions of the run ran out of tokens",
        lambda run: fmean(series(run, "counts/truncated")) > 0.5,
    ),
    "pays for length": kind(
        "reward follows length, length blow-up",
        "reward hacked, one part dominates, truncated completions, repetition, falling reward, KL runaway,"
        " entropy explosion, held-out disagreement",
        "completions of the last steps have 1.5 times the tokens of the first, and fewer than two thirds are right",
        lengthened,
    ),
    "pays for brevity": kind(
        "length collapse, reward hacked",
        "one part dominates, falling reward, entropy collapse, KL runaway",
        "completions have half of the tokens they had, and fewer than 0.3 of them are right",
        shortened,
    ),
    "pays for format": kind(
        "format farmed, reward hacked, one part dominates",
        "held-out disagreement, repetition, length blow-up, reward follows length, KL runaway, truncated completions,"
        " falling reward",
        "the part that pays rises by 0.2, and fewer than half of the completions are right",
        formatted,
    ),
    "pays for repetition": kind(
        "repetition",
        "reward hacked, one part dominates, length blow-up, reward follows length, truncated completions, KL runaway,"
        " format farmed, entropy collapse, falling reward",
        "the repeated share of a completion's text rises by 0.2",
        repeated,
    ),
    "proxy reward": kind(
        "reward hacked, held-out disagreement",
        "one part dominates, KL runaway, format farmed, repetition",
        "what is paid gains 0.2 more than what is right",
        proxied,
    ),
    "careless check": kind(
        "held-out disagreement, reward hacked",
        "repetition, reward follows length, length blow-up, format farmed, KL runaway, truncated completions",
        "what is paid gains 0.2 more than what is right",
        proxied,
    ),
    "sampler differs": kind("sampler gap", "ratio drift", "sampler and trainer are 0.003 nats per token apart", apart),
    "weights do not arrive": kind(
        "sampler gap, stale rollouts",
        "ratio drift, flat reward, clipping, KL runaway, entropy explosion, entropy collapse, falling reward",
        "sampler and trainer are 0.003 nats per token apart",
        apart,
    ),
    "stale rollouts": kind(
        "stale rollouts, ratio drift",
        "clipping, KL runaway, falling reward, flat reward, entropy collapse, entropy explosion, gradient spike,"
        " no reward signal, truncated completions, length blow-up, length collapse, repetition",
        "the old policy's log-probabilities are 0.02 nats per token from the trainer's",
        lambda run: median(series(run, "metrics/staleness")[10:] or [0.0]) > 0.02,
    ),
    "failing reward": kind(
        "failing rewards, unscorable completions",
        "",
        "a tenth of the completions was left without a reward",
        lambda run: fmean(since(run, series(run, "counts/unscorable")) or [0.0]) > 0.1,
    ),
    "slow reward": kind("throughput loss", "", "a step takes 2.5 times the seconds it took", slower),
    "failing tool": kind(
        "failing tools",
        "flat reward, no reward signal, falling reward",
        "three tenths of the calls ended in an error",
        lambda run: part_of_drawn(run, "tool_errors", ("tool_calls",), 0.3),
    ),
    "garbled calls": kind(
        "malformed calls",
        "flat reward, no reward signal, truncated completions, episodes cut off, failing tools",
        "a quarter of the calls cannot be read",
        lambda run: part_of_drawn(run, "malformed_calls", ("malformed_calls", "tool_calls"), 0.25),
    ),
    "failing environment": kind(
        "failing environment",
        "unscorable completions, failing rewards",
        "one in twenty episodes raised",
        lambda run: part_of_drawn(run, "failed_episodes", ("samples",), 0.05),
    ),
    "endless episodes": kind(
        "episodes cut off",
        "truncated completions, no reward signal, flat reward, unscorable completions",
        "half of the episodes were ended by a limit",
        lambda run: (
            part_of_drawn(run, "ended_by_turns", ("samples",), 0.5)
            or part_of_drawn(run, "ended_by_tokens", ("samples",), 0.5)
        ),
    ),
    "random labels": kind(
        "not learning, guessing",
        "loss rises, flat reward, likelihood displacement",
        "right pairs of the eval set are told apart less than 65 times in 100",
        fooled,
    ),
    "swapped labels": kind(
        "swapped labels, not learning, held-out disagreement, falling reward, chosen is shorter",
        "likelihood displacement",
        "right pairs of the eval set are told apart less than 65 times in 100",
        fooled,
    ),
    "chosen is padded": kind(
        "chosen is longer",
        "too easy, likelihood displacement",
        "the chosen completion is the longer one in nine pairs of ten",
        lambda run: fmean(series(run, "metrics/chosen_is_longer") or [0.0]) > 0.9,
    ),
    "wrong reference": kind(
        "reference mismatch",
        "likelihood displacement, not learning",
        "before the first update policy and reference are half a nat per completion apart",
        lambda run: (series(run, "metrics/drift") or [0.0])[0] > 0.5,
    ),
    "displacement": kind(
        "likelihood displacement",
        "KL runaway, not a number, gradient spike, beta out of range, not learning, loss rises",
        "both completions lose three nats",
        lost_pairs,
    ),
    "loss rises": kind(
        "loss rises, not a number",
        "gradient spike",
        "the loss ends 1.2 times above its lowest of the first 30 steps",
        rose,
    ),
    "routers differ": kind(
        "router drift",
        "sampler gap, ratio drift",
        "sampler and trainer choose other experts in a twentieth of the layers",
        lambda run: median(series(run, "metrics/router_drift_layers") or [0.0]) > 0.03,
    ),
    "updates do harm": kind(
        "evaluation falls, length blow-up, length collapse, KL runaway, entropy collapse, entropy explosion,"
        " falling reward, ratio drift, clipping",
        "flat reward, truncated completions, no reward signal, repetition, gradient spike",
        "the last evaluation is 3.5 standard errors below the best",
        always,
    ),
    "pays for another thing": kind(
        "evaluation falls, evaluation lags", "", "the reward is drawn to rise, and evaluation to fall", always
    ),
    "learned by heart": kind(
        "evaluation lags", "", "the reward is drawn to rise, and evaluation to stay where it was", always
    ),
    "nothing to learn from": kind("flat reward", "", "the policy moves, and nothing is drawn to rise", always),
    "wrong gold": kind("gold refused", "flat reward", "45% of the answers that groups agree on are refused", always),
    "gradients explode": kind(
        "huge gradient, gradient spike",
        "falling reward, flat reward",
        "the gradient norm grows five thousandfold half-way, and the reward falls",
        always,
    ),
    "frozen weights": kind("no gradient", "flat reward", "the gradient norm is 0 in every step", always),
    "noisy labels": kind(
        "noisy labels", "not learning, guessing", "held-out pairs are ordered right, training pairs in 60%", always
    ),
    "rows learned by heart": kind(
        "overfitting", "", "the loss of the training falls, that of held-out rows rises by half", always
    ),
}


KINDS |= {name: kind(fault.names, fault.follows, fault.criterion, fault.held) for name, fault in FAULTS.items()}


def took_hold(run: Run) -> bool:
    """Whether a run is what its kind says."""
    if len(steps_of(run)) < SOON:
        return False
    try:
        if run["kind"] == "healthy":
            return learned(run)
        return KINDS[run["kind"]].held(run)
    except (ValueError, IndexError, KeyError):  # it ended before there was anything to see
        return False
