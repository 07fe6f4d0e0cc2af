"""Three biases of a group-relative gradient, measured exactly: `python benchmarks/bias_plots.py` draws the figures.

A prompt has a few possible completions; the first token chooses one, the rest of it is forced. Every group of G
completions is enumerated with its probability and sent through the real `Objective.advantage` and `Objective.loss`.
What comes out is the expected gradient on the logits of the choice, which nothing but the method decides: there is no
sampling. In the third figure a completion is an episode: each of its tokens is a turn with a reward of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import factorial, prod
from pathlib import Path

import torch

from whet.objective import PRESETS, Objective, with_changes
from whet.report.charts import QUIET, Frame, Panel, PlottedCurve, curves_svg
from whet.types import TokenBatch, Totals

IMAGES = Path(__file__).parent.parent / "docs" / "images"
GROUP_SIZE = 8
USUAL_LENGTH, LENGTHS = (
    8,
    range(2, 41),
)  # of the right and one wrong completion; of the other wrong one, up to the budget
RATES = [0.01 * percent for percent in range(1, 100)]
STOP_PAYS = 1.0  # what an episode earns that ends at once
WORTHS = [0.1 * tenth for tenth in range(31)]  # what one earns that goes on


@dataclass(frozen=True)
class Completion:
    """One thing the toy policy can say."""

    chance: float
    length: int
    reward: float
    turns: tuple[float, ...] = ()  # what each of its tokens earned, where each is a turn: they add up to the reward


def group_counts(kinds: int, size: int) -> Iterator[tuple[int, ...]]:
    """How often each kind may occur in a group of that size: all ways."""
    if kinds == 1:
        yield (size,)
        return
    for first in range(size + 1):
        for rest in group_counts(kinds - 1, size - first):
            yield (first, *rest)


def expected_push(objective: Objective, completions: Sequence[Completion], group_size: int = GROUP_SIZE) -> list[float]:
    """The expected gradient of the method's objective on the logit of each completion."""
    counts = list(group_counts(len(completions), group_size))
    chance = torch.tensor(
        [
            factorial(group_size)
            / prod(map(factorial, each))
            * prod(r.chance**c for r, c in zip(completions, each, strict=True))
            for each in counts
        ],
        dtype=torch.float64,
    )
    kind = torch.tensor([[place for place, count in enumerate(each) for _ in range(count)] for each in counts]).reshape(
        -1
    )
    length = torch.tensor([completion.length for completion in completions])[kind]
    action = torch.arange(max(completion.length for completion in completions)) < length[:, None]
    reward = torch.tensor([completion.reward for completion in completions], dtype=torch.float64)[kind]
    group = torch.arange(len(counts)).repeat_interleave(group_size)
    batch = TokenBatch(torch.zeros_like(action).long(), action, group, reward)
    if any(completion.turns for completion in completions):
        batch = _with_turns(batch, completions, kind)
    batch, _ = objective.advantage(batch, {})
    policy = torch.tensor([completion.chance for completion in completions], dtype=torch.float64)
    logp = torch.zeros(action.shape, dtype=torch.float64)
    logp[:, 0] = policy.log()[kind]
    logp.requires_grad_()
    totals = Totals(tokens=1, sequences=group_size, max_new_tokens=LENGTHS[-1])
    (gradient,) = torch.autograd.grad(objective.loss(batch, logp, totals).value, logp)
    pull = torch.zeros(len(completions), dtype=torch.float64)
    pull.index_add_(0, kind, -gradient[:, 0] * chance.repeat_interleave(group_size))
    return (pull - policy * pull.sum()).tolist()


def _with_turns(batch: TokenBatch, completions: Sequence[Completion], kind: torch.Tensor) -> TokenBatch:
    """Every token is a turn, and has earned what its completion says."""
    width = batch.action.shape[1]
    earned = torch.full((len(completions), width), float("nan"), dtype=torch.float64)
    for row, completion in zip(earned, completions, strict=True):
        row[: completion.length] = torch.tensor(completion.turns, dtype=torch.float64)
    segment = torch.where(batch.action, torch.arange(width), -1)
    return replace(batch, step_reward=earned[kind], returned=batch.reward, segment=segment)


def exact_push(completions: Sequence[Completion]) -> list[float]:
    """The gradient of the expected reward on the logit of each completion."""
    mean = sum(completion.chance * completion.reward for completion in completions)
    return [completion.chance * (completion.reward - mean) for completion in completions]


def bare(name: str, **changes: str) -> Objective:
    """The method without its KL."""
    return with_changes(PRESETS[name].objective, {"kl": "none", **changes})


def length_bias(length: int, objective: Objective | None = None) -> list[float]:
    """How hard the right, the wrong and the other wrong completion are pushed, as a share of the exact gradient.

    The three are equally likely; the last has `length` tokens, the others USUAL_LENGTH. The unit is what a method does
    where all three are of one length, so that its constant factors drop out.
    """
    objective = bare("grpo") if objective is None else objective

    def relative(last: int) -> list[float]:
        sizes = ((USUAL_LENGTH, 1.0), (USUAL_LENGTH, 0.0), (last, 0.0))
        completions = [Completion(1 / 3, size, reward) for size, reward in sizes]
        return [
            one / other
            for one, other in zip(expected_push(objective, completions), exact_push(completions), strict=True)
        ]

    return [one / other for one, other in zip(relative(length), relative(USUAL_LENGTH), strict=True)]


def prompt_weight(objective: Objective, rate: float, group_size: int = GROUP_SIZE) -> float:
    """What a prompt solved at this rate counts, as a multiple of its exact gradient."""
    completions = [Completion(rate, 1, 1.0), Completion(1 - rate, 1, 0.0)]
    return expected_push(objective, completions, group_size)[0] / exact_push(completions)[0]


def weighing_methods() -> dict[str, Objective]:
    """The methods of the second figure, their completions counted whole: what differs is how a prompt is weighed."""
    return {name: bare(name, aggregate="sequence_sum") for name in ("grpo", "dr_grpo", "maxrl")}


def stopping_push(objective: Objective, worth: float, chance: float = 0.5, group_size: int = GROUP_SIZE) -> float:
    """How hard the choice of another turn is pushed up, in units of the choice's variance: exactly, worth - STOP_PAYS.

    An episode may end with its first turn, which then earns STOP_PAYS, or go on: the first turn earns nothing and the
    second `worth`.
    """
    stops = Completion(1 - chance, 1, STOP_PAYS, (STOP_PAYS,))
    goes_on = Completion(chance, 2, worth, (0.0, worth))
    return expected_push(objective, [stops, goes_on], group_size)[1] / (chance * (1 - chance))


def turn_methods() -> dict[str, Objective]:
    """The methods of the third figure: by turns without a bias, and normalised by turn index."""
    return {
        name: bare("rloo_turns", aggregate="sequence_sum", baseline=name)
        for name in ("turn_return", "turn_index_rewards")
    }


def length_figure() -> str:
    found = [length_bias(length) for length in LENGTHS]
    names = ("right, 8 tokens", "wrong, 8 tokens", "the other wrong completion")
    curves = [
        PlottedCurve(
            name, (tuple((float(length), each[place]) for length, each in zip(LENGTHS, found, strict=True)),), tone
        )
        for place, (name, tone) in enumerate(zip(names, (0, 1, 3), strict=True))
    ]
    level = PlottedCurve("exact, Dr. GRPO", (((LENGTHS[0], 1.0), (LENGTHS[-1], 1.0)),), QUIET, dashed=True)
    frame = Frame(
        title="Length bias: what 1/n does to the push on three completions",
        subtitle="GRPO, G = 8, each completion of probability 1/3; relative to the exact gradient, 1 at equal lengths",
        x_label="tokens of the other wrong completion",
        y_label="push / exact",
        x_range=(0.0, 40.0),
        y_range=(0.0, 3.0),
        guide=float(USUAL_LENGTH),
        size=(560, 260),
    )
    return curves_svg([Panel((level, *curves))], frame)


def difficulty_figure() -> str:
    tones = dict(zip(weighing_methods(), (1, 0, 2), strict=True))
    curves = [
        PlottedCurve(
            PRESETS[name].title, (tuple((rate, prompt_weight(objective, rate)) for rate in RATES),), tones[name]
        )
        for name, objective in weighing_methods().items()
    ]
    rare = PlottedCurve("1/p", (tuple((rate, 1 / rate) for rate in RATES),), QUIET, dashed=True)
    level = PlottedCurve("exact, RLOO", (((0.0, 1.0), (1.0, 1.0)),), QUIET)
    frame = Frame(
        title="Difficulty bias: what a prompt counts, by its success rate",
        subtitle="expected gradient as a multiple of the exact one; rewards of 0 and 1, G = 8",
        x_label="success rate p",
        y_label="weight",
        x_range=(0.0, 1.0),
        y_range=(0.0, 8.0),
        size=(560, 280),
    )
    return curves_svg([Panel((level, rare, *curves))], frame)


def stopping_figure() -> str:
    tones = dict(zip(turn_methods(), (0, 1), strict=True))
    curves = [
        PlottedCurve(
            objective.baseline.name,
            (tuple((worth, stopping_push(objective, worth)) for worth in WORTHS),),
            tones[name],
        )
        for name, objective in turn_methods().items()
    ]
    exact = PlottedCurve("exact", (tuple((worth, worth - STOP_PAYS) for worth in WORTHS),), QUIET, dashed=True)
    frame = Frame(
        title="Stopping bias: how hard another turn is pushed, by what it is worth",
        subtitle="an episode that ends at once earns 1; in units of the exact gradient per unit of reward, G = 8",
        x_label="what an episode earns that goes on",
        y_label="push to go on",
        x_range=(0.0, 3.0),
        y_range=(-1.5, 2.0),
        guide=STOP_PAYS,
        size=(560, 260),
    )
    return curves_svg([Panel((*curves, exact))], frame)


def figures() -> dict[str, str]:
    """The figures by the name of their file."""
    return {
        "length_bias.svg": length_figure(),
        "difficulty_bias.svg": difficulty_figure(),
        "stopping_bias.svg": stopping_figure(),
    }


def write_figures(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in figures().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_figures(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
