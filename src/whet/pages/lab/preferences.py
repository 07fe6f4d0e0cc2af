"""The curves of the preference methods: loss and gradient over the margin of a pair."""

from __future__ import annotations

import torch

from whet.objective import PAIR_PRESETS, PairObjective, title, with_changes
from whet.objective.preference.batch import PairBatch, pair_totals
from whet.pages.lab import experiment as lab
from whet.types import WhetError

MARGINS = lab.evenly(-20.0, 20.0, 41)
TOKENS = 20  # of the chosen completion
REF_LOGP = -1.0  # of each token under the reference
# what a pair of log-probabilities supplies; an anchor that looks at other pairs is held at 0
SUPPLIED = frozenset({"pairs", "ref_logp", "token_logp", "mismatched_logp"})
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
SPLITS = {
    "both": "half from the chosen rising, half from the rejected falling",
    "chosen": "all from the chosen rising",
    "rejected": "all from the rejected falling",
}


def drawn_methods() -> list[str]:
    """The preference methods that a pair and its log-probabilities are enough for."""
    return [name for name, preset in PAIR_PRESETS.items() if preset.objective.needs() <= SUPPLIED]


def with_factor(objective: PairObjective, factor: float) -> PairObjective:
    """The method with its beta, or without one its coefficient, times the factor."""
    field = next((parameter for parameter in ("beta", "coefficient") if hasattr(objective.curve, parameter)), None)
    if field is None or factor == 1:
        return objective
    return with_changes(objective, {f"curve.{field}": getattr(objective.curve, field) * factor})


def curves(
    objective: PairObjective, margins: list[float], split: str, rejected_tokens: int
) -> tuple[list[float], list[float], list[float]]:
    """The loss of one pair at each margin, and its gradient in the log-probability of both completions.

    The margin is what the policy has moved the chosen completion above the rejected one since the reference.
    """
    share = {"both": 0.5, "chosen": 1.0, "rejected": 0.0}[split]
    lengths = (TOKENS, rejected_tokens)
    width = max(lengths)
    margin = torch.tensor(margins, dtype=torch.float64)
    moved = torch.stack([share * margin, -(1 - share) * margin], 1)
    length = torch.tensor(lengths).expand(len(margins), 2)
    action = (torch.arange(width) < length[..., None]).contiguous()
    reference = torch.full(action.shape, REF_LOGP, dtype=torch.float64)
    logp = (reference + moved[..., None] / length[..., None]).requires_grad_()
    weight = torch.ones(len(margins), dtype=torch.float64, requires_grad=True)
    batch = PairBatch(length, reference, action=action, weight=weight)
    # every row is a step of its own: the totals are those of one pair
    totals = pair_totals(batch.select([0]))
    value = objective.loss(batch, logp, totals).value
    curve, gradient = torch.autograd.grad(value, (weight, logp))
    # all tokens of a completion have the same gradient but for a method that reads only some of them
    both = (gradient * action).sum(-1) / length
    return curve.tolist(), both[:, 0].tolist(), both[:, 1].tolist()


def _table(settings: lab.LabSettings) -> lab.LabTable:
    name, split = str(settings["method"]), str(settings["split"])
    preset = PAIR_PRESETS[name]
    try:
        objective = with_factor(preset.objective, lab.number(settings, "factor"))
    except WhetError as error:
        return lab.LabTable(refused=str(error))
    loss, chosen, rejected = curves(objective, MARGINS, split, int(lab.number(settings, "rejected_tokens")))
    feasible = [_feasible(margin, split, int(lab.number(settings, "rejected_tokens"))) for margin in MARGINS]
    losses, pushes, pulls = (
        [value if fine else None for value, fine in zip(series, feasible, strict=True)]
        for series in (loss, [-value for value in chosen], [-value for value in rejected])
    )
    zero = [{"x": 0, "label": "reference"}]
    facts = [("paper", preset.paper)]
    if "mismatched_logp" in objective.needs():
        facts.append(("drawn with", "an anchor of 0"))
    return lab.LabTable(
        (
            lab.LabChart(
                "Loss of a pair",
                lab.chart_spec("margin, nats", "loss", [lab.line("loss", MARGINS, losses, 0)], lines=zero),
            ),
            lab.LabChart(
                "How hard it pushes: - d loss / d log pi",
                lab.chart_spec(
                    "margin, nats",
                    "",
                    [lab.line("the chosen, up", MARGINS, pushes, 0), lab.line("the rejected, up", MARGINS, pulls, 1)],
                    lines=[*zero, {"y": 0, "label": ""}],
                ),
            ),
        ),
        tuple(facts),
        "; ".join(objective.symbols()),
    )


def _feasible(margin: float, split: str, rejected_tokens: int) -> bool:
    """Whether no token's probability exceeds 1."""
    share = {"both": 0.5, "chosen": 1.0, "rejected": 0.0}[split]
    moved = ((share * margin) / TOKENS, -((1 - share) * margin) / rejected_tokens)
    return all(REF_LOGP + change < 0 for change in moved)


def experiment() -> lab.Experiment:
    """What the lab shows of it."""
    methods = drawn_methods()
    options = tuple((name, title(PAIR_PRESETS[name].objective)) for name in methods)
    second = next(name for name in methods if PAIR_PRESETS[name].objective.curve.name == "hinge")
    return lab.Experiment(
        "preference",
        "Preference losses",
        "What does a pair cost, and when does it stop teaching?",
        "A logistic loss pushes hardest on pairs that are wrong and fades on pairs that are right; a squared one pulls "
        "a margin back that has grown too large; a hinge stops altogether. beta sets how soon. Where the two gradients "
        "are not mirror images the method judges each completion by itself, or imitates the chosen one.",
        (
            ("Rafailov et al. 2023, eq. 7", "2305.18290"),
            ("Azar et al. 2023, eq. 17", "2310.12036"),
            ("Ethayarajh et al. 2024", "2402.01306"),
            ("Meng et al. 2024, eq. 6", "2405.14734"),
        ),
        (
            lab.Selector("method", "method", options, methods[0]),
            lab.Slider("factor", "beta, times the method's own", FACTORS, 1.0, log=True),
            lab.Selector("split", "the margin comes", tuple(SPLITS.items()), "both"),
            lab.Slider("rejected_tokens", f"tokens of the rejected (chosen: {TOKENS})", (10, 20, 40), 20, whole=True),
        ),
        _table,
        compared={"method": second},
    )
