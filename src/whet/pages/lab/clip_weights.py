"""The gradient weight against the ratio: every clip rule of the registry, with its own numbers as sliders."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from whet.objective import AXES, PRESETS
from whet.objective.clip import ClipRule
from whet.pages.clip_plots import (
    COMPLETION_TOKENS,
    SIDES,
    curve_points,
    looks_at_completion,
    looks_at_probability,
    ratio_range,
    weights,
)
from whet.pages.lab import experiment as lab

POINTS = 48  # of a curve, its edges apart
FACTORS = (0.5, 2.0, 0.25, 4.0, 0.75, 1.5)  # of a rule's own number, the most interesting ones first
MOST_VALUES = {1: 7, 2: 7, 3: 4, 4: 3}  # of each number's slider, by how many numbers the rule has; 2 of more
PROBES = (0.05, 0.3, 0.55, 0.75, 0.85, 0.95, 1.05, 1.15, 1.25, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 3.95)
PROBABILITIES = (0.01, 0.05, 0.2, 0.5, 0.9)


def rule_sliders(name: str) -> list[lab.Slider]:
    """A slider for each number of a rule: what methods use, and multiples of the rule's own, as far as it takes them.

    A number that changes nothing in this picture has none.
    """
    kind: Any = AXES["clip"][name]
    usual = kind()
    choices = {}
    for setting in fields(usual):
        own = float(getattr(usual, setting.name))
        used = {float(getattr(clip, setting.name)) for clip in _used() if clip.name == name}
        wanted = [value for value in _by_interest(own, used) if _taken(kind, {setting.name: value})]
        seen = _seen(usual)
        if any(_seen(kind(**{setting.name: value})) != seen for value in {min(wanted), max(wanted)} - {own}):
            choices[setting.name] = (own, wanted)
    most = MOST_VALUES.get(len(choices), 2)
    return [
        lab.Slider(
            f"{name}.{parameter}", parameter, tuple(sorted(wanted[:most])), own, log=True, when={"rule": (name,)}
        )
        for parameter, (own, wanted) in choices.items()
    ]


def rule_of(settings: lab.LabSettings) -> ClipRule:
    """The rule that is chosen, with its numbers as they are set. A combination it does not take is a ValueError."""
    name = str(settings["rule"])
    parameters = {
        path.partition(".")[2]: lab.number(settings, path) for path in settings if path.startswith(f"{name}.")
    }
    kind: Any = AXES["clip"][name]
    return kind(**parameters)


def _used() -> list[Any]:
    return [preset.objective.clip for preset in PRESETS.values()]


def _by_interest(own: float, used: set[float]) -> list[float]:
    """The rule's own number, those of methods nearest to it, then multiples, without repetition."""
    candidates = [own, *sorted(used, key=lambda value: abs(value - own))[:4], *(own * factor for factor in FACTORS)]
    return list(dict.fromkeys(float(f"{value:.4g}") for value in candidates))


def _seen(rule: ClipRule) -> tuple[float, ...]:
    return tuple(weight for p in (0.2, 0.9) for side, _ in SIDES for weight in weights(rule, PROBES, side, p))


def _taken(kind: Any, numbers: dict[str, float]) -> bool:
    try:
        kind(**numbers)
    except ValueError:
        return False
    return True


def _table(settings: lab.LabSettings) -> lab.LabTable:
    try:
        rule = rule_of(settings)
    except ValueError as error:
        return lab.LabTable(refused=str(error))
    probability = lab.number(settings, "probability") if "probability" in settings else 0.5
    low, high = ratio_range(rule)
    if looks_at_probability(rule):
        high = min(high, 1 / probability)
    series = []
    for tone, (side, label) in enumerate(SIDES):
        points = curve_points(rule, side, (low, high), probability, POINTS)
        series.append(lab.line(label, [at for at, _ in points], [weight for _, weight in points], tone))
    spec = lab.chart_spec(
        "ratio", "weight", series, y_range=(0, None), lines=[{"x": 1, "label": "on policy"}], height=320
    )
    notes = []
    if looks_at_completion(rule):
        notes.append(f"one token of {COMPLETION_TOKENS}, the others at ratio 1")
    titles = [preset.title for preset in PRESETS.values() if preset.objective.clip.name == rule.name]
    facts = (("methods with this rule", ", ".join(titles) or "none of the presets"), ("in words", rule.words()))
    return lab.LabTable(
        (lab.LabChart("The factor in front of grad log pi", spec, "; ".join(notes)),), facts, rule.symbols()
    )


def _controls() -> tuple[lab.LabControl, ...]:
    names = list(AXES["clip"])
    likely = tuple(name for name in names if looks_at_probability(AXES["clip"][name]()))
    sliders = [slider for name in names for slider in rule_sliders(name)]
    return (
        lab.Selector("rule", "clip rule", tuple((name, name) for name in names), "ppo_clip"),
        *sliders,
        lab.Slider("probability", "old probability", PROBABILITIES, 0.5, log=True, when={"rule": likely}),
    )


def experiment() -> lab.Experiment:
    """What the lab shows of it."""
    return lab.Experiment(
        "clip",
        "Clip rules",
        "How far off-policy may a token learn?",
        "A weight of 0 means that the token no longer learns; a weight of 1 that it learns as if nothing had moved. "
        "ppo_clip cuts a good token off above its band and a bad one below, and lets both come back; cap never cuts; "
        "soft_gate fades. Turn high up to widen the band for good tokens only. Compare with a second rule to see where "
        "they part.",
        (
            ("Schulman et al. 2017, eq. 7", "1707.06347"),
            ("Yu et al. 2025, section 3.1", "2503.14476"),
            ("MiniMax 2025, eq. 4", "2506.13585"),
            ("Gao et al. 2025", "2511.20347"),
        ),
        _controls(),
        _table,
    )
