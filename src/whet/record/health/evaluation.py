"""What the run's own evaluations say: the first witness of a run, before its rewards and losses."""

from __future__ import annotations

from whet.record.evaluations import FALL_LOOKS, evaluations_of
from whet.record.health.finding import HealthFinding, problem
from whet.record.health.history import History
from whet.record.health.rule import ALL_KINDS, HealthRule
from whet.record.run_kinds import kind_of
from whet.record.text import words


def _falls(history: History) -> HealthFinding | None:
    """Each of the last two evaluations is significantly below the best: by `Evaluations.fell_from`."""
    known = [evaluation for evaluation in history.evals if evaluation.step <= history.steps[-1].step]
    evaluations = evaluations_of(known, kind_of(history.steps).evals)
    best, last = evaluations.fell_from, evaluations.last
    if best is None or last is None:
        return None
    at = f"step {best.step}" if best.step else "the start"
    keep = "the best model is in best/" if best.step else "the model was better before training"
    return problem(
        f"Evaluation fell from its best, {words(best.metric)} {best.text} at {at}, to {last.text} at step {last.step}; "
        f"{FALL_LOOKS} evaluations in a row are significantly below it",
        f"the updates do harm by now, and {keep}",
        history.lower("optimizer.learning_rate"),
        history.tie() if "objective.kl" in history.settings else None,
        "end such runs by themselves with health.on_problem.evaluation_falls=stop",
    )


EVALUATION_RULES = (
    HealthRule(
        "evaluation falls",
        _falls,
        "two evaluations in a row are below the best one, by a test paired by prompt (of two shares where the log has "
        "no scores), one-sided, at 1% divided by the number of evaluations that the best was chosen from",
        "a single evaluation is lower, or the difference is what so few prompts give by chance",
        kinds=ALL_KINDS,
        earliest=2,
        hides=("flat reward",),
        by_evaluation=True,
    ),
)
