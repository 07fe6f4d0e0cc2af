"""Three biases of a group-relative gradient, measured exactly: `python benchmarks/bias_plots.py` draws the figures.

The toy and its expected gradient are those of `whet.pages.lab.shares`: every group is enumerated. In the third
figure a completion is an episode: each of its tokens is a turn with a reward of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from whet.objective import PRESETS, Objective, with_changes
from whet.pages.chart_specs import QUIET, chart, curve
from whet.pages.chart_svg import figure_file
from whet.pages.lab.shares import BUDGET, GROUP_SIZE, ToyCompletion, expected_push, length_push, prompt_weight

IMAGES = Path(__file__).parent.parent / "docs" / "images"
USUAL_LENGTH, LENGTHS = (
    8,
    range(2, BUDGET + 1),
)  # of the right and one wrong completion; of the other wrong one, up to the budget
RATES = [0.01 * percent for percent in range(1, 100)]
STOP_PAYS = 1.0  # what an episode earns that ends at once
WORTHS = [0.1 * tenth for tenth in range(31)]  # what one earns that goes on


def bare(name: str, **changes: str) -> Objective:
    """The method without its KL."""
    return with_changes(PRESETS[name].objective, {"kl": "none", **changes})


def length_bias(length: int, objective: Objective | None = None) -> list[float]:
    """What the length of one completion does to the push on three; see `length_push`."""
    return length_push(bare("grpo") if objective is None else objective, USUAL_LENGTH, length)


def weighing_methods() -> dict[str, Objective]:
    """The methods of the second figure, their completions counted whole: what differs is how a prompt is weighed."""
    return {name: bare(name, aggregate="sequence_sum") for name in ("grpo", "dr_grpo", "maxrl")}


def stopping_push(objective: Objective, worth: float, chance: float = 0.5, group_size: int = GROUP_SIZE) -> float:
    """How hard the choice of another turn is pushed up, in units of the choice's variance: exactly, worth - STOP_PAYS.

    An episode may end with its first turn, which then earns STOP_PAYS, or go on: the first turn earns nothing and the
    second `worth`.
    """
    stops = ToyCompletion(1 - chance, 1, STOP_PAYS, (STOP_PAYS,))
    goes_on = ToyCompletion(chance, 2, worth, (0.0, worth))
    return expected_push(objective, [stops, goes_on], group_size)[1] / (chance * (1 - chance))


def turn_methods() -> dict[str, Objective]:
    """The methods of the third figure: by turns without a bias, and normalised by turn index."""
    return {
        name: bare("rloo_turns", aggregate="sequence_sum", baseline=name)
        for name in ("turn_return", "turn_index_rewards")
    }


def length_figure() -> str:
    """The push on three completions, against the length of one of them."""
    biases = [length_bias(length) for length in LENGTHS]
    names = ("right, 8 tokens", "wrong, 8 tokens", "the other wrong completion")
    curves = [
        curve(name, (tuple((float(length), bias[index]) for length, bias in zip(LENGTHS, biases, strict=True)),), tone)
        for index, (name, tone) in enumerate(zip(names, (0, 1, 3), strict=True))
    ]
    level = curve("exact, Dr. GRPO", (((LENGTHS[0], 1.0), (LENGTHS[-1], 1.0)),), QUIET, dashed=True)
    panel = chart(
        (level, *curves),
        x={"label": "tokens of the other wrong completion", "min": 0.0, "max": 40.0},
        y={"label": "push / exact", "min": 0.0, "max": 3.0},
        smooth=False,
        lines=[{"x": float(USUAL_LENGTH)}],
    )
    return figure_file(
        [panel],
        "Length bias: what 1/n does to the push on three completions",
        "GRPO, G = 8, each completion of probability 1/3; relative to the exact gradient, 1 at equal lengths",
        size=(560, 260),
    )


def difficulty_figure() -> str:
    """What a prompt counts, against its success rate."""
    tones = dict(zip(weighing_methods(), (1, 0, 2), strict=True))
    curves = [
        curve(PRESETS[name].title, (tuple((rate, prompt_weight(objective, rate)) for rate in RATES),), tones[name])
        for name, objective in weighing_methods().items()
    ]
    rare = curve("1/p", (tuple((rate, 1 / rate) for rate in RATES),), QUIET, dashed=True)
    level = curve("exact, RLOO", (((0.0, 1.0), (1.0, 1.0)),), QUIET)
    panel = chart(
        (level, rare, *curves),
        x={"label": "success rate p", "min": 0.0, "max": 1.0},
        y={"label": "weight", "min": 0.0, "max": 8.0},
        smooth=False,
    )
    return figure_file(
        [panel],
        "Difficulty bias: what a prompt counts, by its success rate",
        "expected gradient as a multiple of the exact one; rewards of 0 and 1, G = 8",
        size=(560, 280),
    )


def stopping_figure() -> str:
    """How hard another turn is pushed, against what it is worth."""
    tones = dict(zip(turn_methods(), (0, 1), strict=True))
    curves = [
        curve(
            objective.baseline.name,
            (tuple((worth, stopping_push(objective, worth)) for worth in WORTHS),),
            tones[name],
        )
        for name, objective in turn_methods().items()
    ]
    exact = curve("exact", (tuple((worth, worth - STOP_PAYS) for worth in WORTHS),), QUIET, dashed=True)
    panel = chart(
        (*curves, exact),
        x={"label": "what an episode earns that goes on", "min": 0.0, "max": 3.0},
        y={"label": "push to go on", "min": -1.5, "max": 2.0},
        smooth=False,
        lines=[{"x": STOP_PAYS}],
    )
    return figure_file(
        [panel],
        "Stopping bias: how hard another turn is pushed, by what it is worth",
        "an episode that ends at once earns 1; in units of the exact gradient per unit of reward, G = 8",
        size=(560, 260),
    )


def figures() -> dict[str, str]:
    """The figures by the name of their file."""
    return {
        "length_bias.svg": length_figure(),
        "difficulty_bias.svg": difficulty_figure(),
        "stopping_bias.svg": stopping_figure(),
    }


def write_figures(folder: Path) -> None:
    """Write every figure into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in figures().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=IMAGES)
    write_figures(parser.parse_args().folder)
