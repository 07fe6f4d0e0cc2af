"""Learning from a judge: it compares the policy's completions, and a reward model or the policy learns from that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from whet.build.preference import preference_objective
from whet.config.config import PolicyConfig, PreferenceConfig, config_kind
from whet.config.sections import RewardPartSection, RewardSection
from whet.objective.presets import PRESETS
from whet.objective.presets.preference import PAIR_PRESETS
from whet.objective.presets.reward_model import REWARD_MODELS
from whet.pipeline import Done, Recipe, Stage, found, read_json_lines
from whet.pipeline.judge import (
    JudgeSection,
    WithJudge,
    check_judge,
    is_made,
    making_stages,
    train_prompts,
    write_labels,
)
from whet.pipeline.judging import contests, judged_pairs
from whet.pipeline.pairs import pair_row
from whet.pipeline.parts import (
    COMPLETIONS,
    PAIRS,
    check_training,
    evaluation,
    is_marked,
    marks_stage,
    model_of,
    run_told,
    stage_settings,
    trained,
    training,
    write_completions,
    write_rows,
)
from whet.pipeline.rounds import POLICY, steps_for
from whet.pipeline.sections import TRAIN_KEYS
from whet.report.text import percent
from whet.types import WhetError

HELD_OUT_PAIRS = "held_out.jsonl"
EVALUATE_EVERY = 5  # steps
SCORER = next(name for name, preset in REWARD_MODELS.items() if preset.objective.learns == "rankings")
# a learned reward is right only near what it has seen: the first row that is tied to the reference
TIED = next(name for name, preset in PRESETS.items() if "ref_logp" in preset.objective.needs())
FIRST_OF = {"pairs": next(iter(PAIR_PRESETS)), "reward_model": TIED}


class JudgedSettings(WithJudge):
    """Pairs labelled by a judge."""

    prompts: int = Field(1024, ge=8, description="whose completions the judge compares")
    least: float = Field(
        0.0, ge=0, lt=0.5, description="how far from 1/2 the judge's preference must be; soft verdicts"
    )
    soft: bool = Field(
        True, description="a pair counts as far as the judge is sure of it: the loss is told its preference"
    )
    learn: Literal["reward_model", "pairs"] = Field(
        "reward_model", description="train a reward model and then against it, or the policy on the pairs themselves"
    )
    method: str = Field(
        "", description="of the policy's training; empty: the first of `whet algorithms` that fits and has a reference"
    )
    steps: int = Field(100, ge=1, description="of the training against the reward model, which is soon over-optimised")
    epochs: float = Field(2.0, gt=0, description="passes over the pairs, of the reward model or of the policy")
    reward_model: dict[str, Any] = Field({}, description=f"of the reward model: {TRAIN_KEYS}")
    train: dict[str, Any] = Field({}, description=f"of the policy: {TRAIN_KEYS}")

    small_run: ClassVar[Mapping[str, Any]] = {
        "prompts": 384,
        "steps": 20,
        "sampling": {"max_new_tokens": 64},
        "judge": {"examples": 640, "verdict": "logp", "train": {"steps": 120, "batch": {"rows_per_step": 32}}},
        "reward_model": {"batch": {"rows_per_step": 32}},
    }

    def idle(self) -> dict[str, str]:
        found = super().idle()
        if self.learn == "pairs":
            found |= dict.fromkeys(
                ("steps", "reward_model"), "has no effect: learn=pairs trains no reward model; drop it"
            )
        if not is_made(self):
            reason = "has no effect: this judge is there already, and is not made; drop it"
            found |= dict.fromkeys(("judge.examples", "judge.train"), reason)
        return found


def judged_stages(settings: JudgedSettings) -> list[Stage]:
    check_judge(settings)
    check_policy(settings)
    same = stage_settings(settings)
    stages = [marks_stage(settings, POLICY, 0, None)] if is_marked(settings) else []
    stages += making_stages(settings)
    who = "the judge made above" if is_made(settings) else settings.judge.name or settings.judge.settings["base_url"]
    stages += [
        Stage(
            "completions",
            f"two completions of the policy to each of {settings.prompts} new prompts",
            lambda folder, done: _written(settings, folder),
            same,
        ),
        Stage(
            "pairs",
            f"{who} compares them, in both orders",
            lambda folder, done: _labelled(settings, folder, done),
            same,
        ),
    ]
    if settings.learn == "reward_model":
        stages.append(
            Stage(
                "reward-model",
                f"{SCORER} on these pairs",
                lambda folder, done: train_scorer(settings, folder, done),
                same,
            )
        )
    against = "the reward model" if settings.learn == "reward_model" else "these pairs"
    about = f"{method_of(settings)} on {against}; begins with the first policy"
    stages.append(Stage("train", about, lambda folder, done: train_policy(settings, folder, done), same))
    if is_marked(settings):
        stages.append(marks_stage(settings, POLICY, 1, "train", "marks1"))
    return stages


def method_of(settings: JudgedSettings) -> str:
    return settings.method or FIRST_OF[settings.learn]


def check_policy(settings: JudgedSettings) -> None:
    if settings.learn == "reward_model" and "steps" in settings.train:
        raise WhetError("train.steps is set by the pipeline; set steps instead")
    kind = PolicyConfig if settings.learn == "reward_model" else PreferenceConfig
    if config_kind(method_of(settings)) is not kind:
        raise WhetError(f"method {settings.method!r} does not learn from {settings.learn}; see `whet algorithms`")
    config = check_training(method_of(settings), _policy_training(settings, "pairs.jsonl", "model", 1))
    if settings.learn == "pairs" and settings.soft and "preference" not in preference_objective(config).curve.takes:
        raise WhetError(f"soft: {method_of(settings)} cannot weigh how sure a judge is; give --set soft=false")
    if settings.learn == "reward_model":
        check_training(SCORER, _scorer_training(settings, "pairs.jsonl", "", 1), "reward_model")


def _written(settings: JudgedSettings, folder: Path) -> Mapping[str, Any]:
    first = settings.judge.examples if is_made(settings) else 0
    chosen = train_prompts(settings, first, settings.prompts)
    config = evaluation(settings, settings.model.name)
    # the truth is asked only to tell how often the judge meets it
    rows = write_completions(folder, config, chosen, 2, (settings.seed, 1), is_scored=is_marked(settings))
    fought, counts = contests(rows)
    return found(f"{len(fought)} pairs of different completions", counts={**counts, "contests": len(fought)})


def _labelled(settings: JudgedSettings, folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
    fought, _ = contests(read_json_lines(done["completions"].folder / COMPLETIONS))
    labels = write_labels(folder, settings, done, fought)
    pairs, counts = judged_pairs(fought, labels, settings.least, settings.soft)
    return write_pairs(folder, pairs, counts, lambda held_out: _true(held_out, fought))


def write_pairs(
    folder: Path,
    pairs: Sequence[dict[str, Any]],
    counts: Mapping[str, int],
    shown: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list,
) -> dict[str, Any]:
    """Write labelled pairs, an eighth of them apart as `shown` makes them, and tell what the labelling came to."""
    held_out = len(pairs) // 8
    write_rows(folder / PAIRS, pairs[held_out:])
    write_rows(folder / HELD_OUT_PAIRS, shown(list(pairs[:held_out])))
    asked = max(1, counts["asked"])
    known, met = counts["truth_known"], counts["truth_met"]
    said = [
        f"{len(pairs)} of {counts['asked']} pairs have a winner",
        f"flips {percent(counts['flips'] / asked)}, ties {percent(counts['ties'] / asked)}",
        *([f"the winner is right in {percent(met / known)} of {known}"] if known else []),
    ]
    marks = {"flip_rate": counts["flips"] / asked, "tie_rate": counts["ties"] / asked}
    marks |= {"truth_accuracy": met / known} if known else {}
    over = "" if len(pairs) > held_out else "no pair has a winner"
    return found("; ".join(said), marks, {**counts, "held_out": held_out}, over, train_pairs=len(pairs) - held_out)


def _true(pairs: list[dict[str, Any]], fought: Any) -> list[dict[str, Any]]:
    """Held-out pairs as the truth has them, where it is known; else as the judge has."""
    truths = {contest.row["id"]: contest for contest in fought if contest.truth is not None}
    if not truths:
        return pairs
    known = [truths[pair["id"]] for pair in pairs if truths[pair["id"]].truth != 0.5]
    return [
        pair_row(each.row, each.one, each.other) if each.truth == 1 else pair_row(each.row, each.other, each.one)
        for each in known
    ]


def _scorer_training(settings: JudgedSettings, pairs: str, held_out: str, steps: int) -> dict[str, Any]:
    own = {"data": {"source": pairs}, "eval": {"source": held_out} if held_out else {}, "steps": steps}
    return training(settings, settings.model.name, own, settings.reward_model, "reward_model")


def train_scorer(settings: JudgedSettings, folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
    labelled = done["pairs"]
    pairs, held_out = ((labelled.folder / name).resolve() for name in (PAIRS, HELD_OUT_PAIRS))
    names = (str(pairs), str(held_out) if held_out.stat().st_size else "")
    config = check_training(SCORER, _scorer_training(settings, *names, 1), "reward_model")
    steps = steps_for(labelled.result["train_pairs"], settings.epochs, config.batch.rows_per_step)
    marks = trained(folder, SCORER, _scorer_training(settings, *names, steps))
    before, after = marks["before"].get("accuracy"), marks["after"].get("accuracy")
    told = f"; accuracy {percent(before)} to {percent(after)} on held-out pairs" if after is not None else ""
    return found(run_told(folder) + told, {} if after is None else {"accuracy": after}, steps=steps)


def _policy_training(settings: JudgedSettings, pairs: str, scorer: str, steps: int) -> dict[str, Any]:
    name = settings.model.name
    if settings.learn == "pairs":
        return training(settings, name, {"data": {"source": pairs}, "steps": steps}, settings.train, "train")
    learned = RewardPartSection(reward="learned", settings={"folder": scorer})
    watched = [part.model_copy(update={"weight": 0.0}) for part in _truth(settings)]
    reward = RewardSection(parts=(*watched, learned)).model_dump(mode="json", exclude_defaults=True)
    data = settings.data.model_dump(exclude_defaults=True)
    own = {"data": data, "reward": reward, "sampling": settings.sampling.model_dump()}
    asked = settings.eval.prompts if is_marked(settings) else 0
    # by its own marks on the way one sees where a learned reward stops to help
    report = {"eval": {"prompts": asked, "every": EVALUATE_EVERY if asked else 0}}
    return training(settings, name, {**own, **report, "steps": settings.steps}, settings.train, "train")


def _truth(settings: JudgedSettings) -> list[RewardPartSection]:
    """What the marks are given by, to be watched without counting."""

    if settings.marks.parts:
        return list(settings.marks.parts)
    if not settings.data.parsed_source.is_task:
        return []
    names = {task.reward for task in settings.data.parsed_source.tasks()}
    return [RewardPartSection(reward=name) for name in sorted(names)] if len(names) == 1 else []


def train_policy(settings: JudgedSettings, folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
    pairs, scorer, steps = str((done["pairs"].folder / PAIRS).resolve()), "", 1
    if settings.learn == "reward_model":
        scorer = str(newest_checkpoint(done["reward-model"]))
    else:
        config = check_training(method_of(settings), _policy_training(settings, pairs, scorer, 1))
        steps = steps_for(done["pairs"].result["train_pairs"], settings.epochs, config.batch.rows_per_step)
    trained(folder, method_of(settings), _policy_training(settings, pairs, scorer, steps))
    return found(run_told(folder))


def newest_checkpoint(done: Done) -> Path:
    from whet.model import complete_checkpoints

    return complete_checkpoints(Path(model_of(done)) / "checkpoints")[-1]


JUDGED = Recipe(
    "rlaif",
    "a judge compares the policy's completions in both orders; a reward model, or the policy itself, learns from it",
    JudgedSettings,
    judged_stages,
)
__all__ = ["JUDGED", "JudgeSection", "JudgedSettings"]
