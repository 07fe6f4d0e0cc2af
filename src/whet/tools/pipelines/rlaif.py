"""RLAIF: a judge compares the policy's completions, and a reward model or the policy itself learns from that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from whet.objective.presets import PRESETS
from whet.objective.presets.preference import PAIR_PRESETS
from whet.objective.presets.reward_model import REWARD_MODELS
from whet.record.text import count_of, percent
from whet.reward.sections import RewardPartSection, RewardSection
from whet.settings.bounds import MOST_ROWS, MOST_STEPS
from whet.settings.sections import Table
from whet.tools.pipelines.evaluation import POLICY, eval_stage, evaluation_config, has_eval
from whet.tools.pipelines.generation import COMPLETIONS, PAIRS, train_prompts, write_completions, write_rows
from whet.tools.pipelines.judging import (
    CandidatePair,
    JudgedPipelineSettings,
    candidate_pairs,
    check_judge,
    judge_training_stages,
    judged_pairs,
    trains_judge,
    write_labels,
)
from whet.tools.pipelines.pairs import pair_row
from whet.tools.pipelines.settings import TRAIN_KEYS, Pipeline
from whet.tools.pipelines.stages import FinishedStage, Stage, read_json_lines, stage_result
from whet.tools.pipelines.training import (
    check_training,
    run_summary,
    stage_settings,
    steps_for,
    train_run,
    trained_model,
    training_config,
)
from whet.training.assembly.preference import preference_objective
from whet.training.config import PolicyConfig, PreferenceConfig, config_kind
from whet.types import WhetError

EVAL_PAIRS = "eval_pairs.jsonl"
EVAL_EVERY = 5  # steps
REWARD_MODEL = next(name for name, preset in REWARD_MODELS.items() if preset.objective.learns == "rankings")
# a learned reward is right only near what it has seen: the first preset that is tied to the reference
TIED = next(name for name, preset in PRESETS.items() if "ref_logp" in preset.objective.needs())
FIRST_OF = {"pairs": next(iter(PAIR_PRESETS)), "reward_model": TIED}


class RLAIFSettings(JudgedPipelineSettings):
    """Pairs labelled by a judge."""

    prompts: int = Field(1024, ge=8, le=MOST_ROWS, description="whose completions the judge compares")
    min_margin: float = Field(
        0.0, ge=0, lt=0.5, description="how far from 1/2 the judge's preference must be; soft verdicts"
    )
    soft_labels: bool = Field(
        True,
        description="a pair counts as far as the judge is sure of it: the loss weights pairs by the judge's preference",
    )
    learn: Literal["reward_model", "pairs"] = Field(
        "reward_model", description="train a reward model and then against it, or the policy on the pairs themselves"
    )
    method: str = Field(
        "", description="of the policy's training; empty: the first of `whet algorithms` that fits and has a reference"
    )
    steps: int = Field(
        100, ge=1, le=MOST_STEPS, description="of the training against the reward model, which is soon over-optimised"
    )
    epochs: float = Field(
        2.0, ge=1e-6, le=1000, description="passes over the pairs, of the reward model or of the policy"
    )
    reward_model: Table = Field({}, description=f"of the reward model: {TRAIN_KEYS}")
    train: Table = Field({}, description=f"of the policy: {TRAIN_KEYS}")

    small_run: ClassVar[Mapping[str, Any]] = {
        "prompts": 384,
        "steps": 20,
        "sampling": {"max_new_tokens": 64},
        "judge": {"examples": 640, "verdict": "logp", "train": {"steps": 120, "batch": {"rows_per_step": 32}}},
        "reward_model": {"batch": {"rows_per_step": 32}},
    }

    def idle(self) -> dict[str, str]:
        idle = super().idle()
        if self.learn == "pairs":
            idle |= dict.fromkeys(
                ("steps", "reward_model"), "has no effect: learn=pairs trains no reward model; drop it"
            )
        if not trains_judge(self):
            reason = "has no effect: this judge is given and not trained; drop it"
            idle |= dict.fromkeys(("judge.examples", "judge.train"), reason)
        return idle


def rlaif_stages(settings: RLAIFSettings) -> list[Stage]:
    check_judge(settings)
    check_policy(settings)
    same = stage_settings(settings)
    stages = [eval_stage(settings, POLICY, 0, None)] if has_eval(settings) else []
    stages += judge_training_stages(settings)
    who = (
        "the judge trained above"
        if trains_judge(settings)
        else settings.judge.name or settings.judge.settings["base_url"]
    )
    stages += [
        Stage(
            "completions",
            f"two completions of the policy to each of {settings.prompts} new prompts",
            lambda folder, done: _write_completions(settings, folder),
            same,
        ),
        Stage(
            "pairs",
            f"{who} compares them, in both orders",
            lambda folder, done: _label_pairs(settings, folder, done),
            same,
        ),
    ]
    if settings.learn == "reward_model":
        stages.append(
            Stage(
                "reward-model",
                f"{REWARD_MODEL} on these pairs",
                lambda folder, done: train_reward_model(settings, folder, done),
                same,
            )
        )
    against = "the reward model" if settings.learn == "reward_model" else "these pairs"
    about = f"{method_of(settings)} on {against}; starts from the first policy"
    stages.append(Stage("train", about, lambda folder, done: train_policy(settings, folder, done), same))
    if has_eval(settings):
        stages.append(eval_stage(settings, POLICY, 1, "train", "eval1"))
    return stages


def method_of(settings: RLAIFSettings) -> str:
    return settings.method or FIRST_OF[settings.learn]


def check_policy(settings: RLAIFSettings) -> None:
    if settings.learn == "reward_model" and "steps" in settings.train:
        raise WhetError("train.steps is set by the pipeline; set steps instead")
    kind = PolicyConfig if settings.learn == "reward_model" else PreferenceConfig
    if config_kind(method_of(settings)) is not kind:
        raise WhetError(f"method {settings.method!r} does not learn from {settings.learn}; see `whet algorithms`")
    config = check_training(method_of(settings), _policy_config(settings, "pairs.jsonl", "model", 1))
    if (
        settings.learn == "pairs"
        and settings.soft_labels
        and "preference" not in preference_objective(config).curve.takes
    ):
        raise WhetError(
            f"soft_labels: {method_of(settings)} cannot weight pairs by preference; give --set soft_labels=false"
        )
    if settings.learn == "reward_model":
        check_training(REWARD_MODEL, _reward_model_config(settings, "pairs.jsonl", "", 1), "reward_model")


def _write_completions(settings: RLAIFSettings, folder: Path) -> Mapping[str, Any]:
    first = settings.judge.examples if trains_judge(settings) else 0
    config = evaluation_config(settings, settings.model.name)
    chosen = train_prompts(config, first, settings.prompts, "prompts")
    # the true scores only serve to measure how often the judge is right
    rows = write_completions(folder, config, chosen, 2, (settings.seed, 1), is_scored=has_eval(settings))
    candidates, counts = candidate_pairs(rows)
    return stage_result(
        f"{count_of(len(candidates), 'pair')} of different completions",
        counts={**counts, "candidate_pairs": len(candidates)},
    )


def _label_pairs(settings: RLAIFSettings, folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
    candidates, _ = candidate_pairs(read_json_lines(done["completions"].folder / COMPLETIONS))
    labels = write_labels(folder, settings, done, candidates)
    pairs, counts = judged_pairs(candidates, labels, settings.min_margin, settings.soft_labels)
    return write_pairs(folder, pairs, counts, lambda eval_pairs: _true_pairs(eval_pairs, candidates))


def write_pairs(
    folder: Path,
    pairs: Sequence[dict[str, Any]],
    counts: Mapping[str, int],
    shown: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list,
) -> dict[str, Any]:
    """Write the labelled pairs, an eighth of them, as `shown` makes them, for evaluation; sum up the labelling."""
    num_eval = len(pairs) // 8
    write_rows(folder / PAIRS, pairs[num_eval:])
    write_rows(folder / EVAL_PAIRS, shown(list(pairs[:num_eval])))
    compared = max(1, counts["compared"])
    known, met = counts["truth_known"], counts["truth_met"]
    summary = [
        f"{len(pairs)} of {counts['compared']} pairs have a winner",
        f"flips {percent(counts['flips'] / compared)}, ties {percent(counts['ties'] / compared)}",
        *([f"the winner is right in {percent(met / known)} of {known}"] if known else []),
    ]
    metrics = {"flip_rate": counts["flips"] / compared, "tie_rate": counts["ties"] / compared}
    metrics |= {"truth_accuracy": met / known} if known else {}
    stop_reason = "" if len(pairs) > num_eval else "no pair has a winner"
    return stage_result(
        "; ".join(summary), metrics, {**counts, "eval_pairs": num_eval}, stop_reason, train_pairs=len(pairs) - num_eval
    )


def _true_pairs(pairs: list[dict[str, Any]], candidates: Sequence[CandidatePair]) -> list[dict[str, Any]]:
    """Eval pairs that the truth orders, as it does; as the judge does where no truth is known at all."""
    truths = {candidate.row["id"]: candidate for candidate in candidates if candidate.truth is not None}
    if not truths:
        return pairs
    known = [truths[pair["id"]] for pair in pairs if pair["id"] in truths and truths[pair["id"]].truth != 0.5]
    return [
        pair_row(each.row, each.one, each.other) if each.truth == 1 else pair_row(each.row, each.other, each.one)
        for each in known
    ]


def _reward_model_config(settings: RLAIFSettings, pairs: str, eval_pairs: str, steps: int) -> dict[str, Any]:
    own = {"data": {"source": pairs}, "eval": {"source": eval_pairs} if eval_pairs else {}, "steps": steps}
    return training_config(settings, settings.model.name, own, settings.reward_model, "reward_model")


def train_reward_model(settings: RLAIFSettings, folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
    labelled = done["pairs"]
    pairs, eval_pairs = ((labelled.folder / name).resolve() for name in (PAIRS, EVAL_PAIRS))
    names = (str(pairs), str(eval_pairs) if eval_pairs.stat().st_size else "")
    config = check_training(REWARD_MODEL, _reward_model_config(settings, *names, 1), "reward_model")
    steps = steps_for(labelled.result["train_pairs"], settings.epochs, config.batch.rows_per_step)
    metrics = train_run(folder, REWARD_MODEL, _reward_model_config(settings, *names, steps))
    before, after = metrics["before"].get("accuracy"), metrics["after"].get("accuracy")
    accuracy = f"; accuracy {percent(before)} to {percent(after)} on held-out pairs" if after is not None else ""
    return stage_result(run_summary(folder) + accuracy, {} if after is None else {"accuracy": after}, steps=steps)


def _policy_config(settings: RLAIFSettings, pairs: str, reward_model: str, steps: int) -> dict[str, Any]:
    name = settings.model.name
    if settings.learn == "pairs":
        return training_config(settings, name, {"data": {"source": pairs}, "steps": steps}, settings.train, "train")
    learned = RewardPartSection(reward="learned", settings={"folder": reward_model})
    watched = [part.model_copy(update={"weight": 0.0}) for part in _truth(settings)]
    reward = RewardSection(parts=(*watched, learned)).model_dump(mode="json", exclude_defaults=True)
    data = settings.data.model_dump(exclude_defaults=True)
    own = {"data": data, "reward": reward, "sampling": settings.sampling.model_dump()}
    own["sandbox"] = settings.sandbox.model_dump()
    num_prompts = settings.eval.prompts if has_eval(settings) else 0
    # its own eval on the way shows where a learned reward stops helping
    evals: dict[str, Any] = {"prompts": num_prompts, "every": EVAL_EVERY if num_prompts else 0}
    if settings.eval.source:
        evals["source"] = settings.eval.source
    return training_config(settings, name, {**own, "eval": evals, "steps": settings.steps}, settings.train, "train")


def _truth(settings: RLAIFSettings) -> list[RewardPartSection]:
    """The rewards of the eval, to be watched with weight 0."""
    if settings.eval.reward.parts:
        return list(settings.eval.reward.parts)
    if not settings.data.parsed_source.is_task:
        return []
    names = {task.reward for task in settings.data.parsed_source.tasks()}
    return [RewardPartSection(reward=name) for name in sorted(names)] if len(names) == 1 else []


def train_policy(settings: RLAIFSettings, folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
    pairs, reward_model, steps = str((done["pairs"].folder / PAIRS).resolve()), "", 1
    if settings.learn == "reward_model":
        reward_model = str(newest_checkpoint(done["reward-model"]))
    else:
        config = check_training(method_of(settings), _policy_config(settings, pairs, reward_model, 1))
        steps = steps_for(done["pairs"].result["train_pairs"], settings.epochs, config.batch.rows_per_step)
    train_run(folder, method_of(settings), _policy_config(settings, pairs, reward_model, steps))
    return stage_result(run_summary(folder))


def newest_checkpoint(done: FinishedStage) -> Path:
    from whet.model.checkpoint import complete_checkpoints

    return complete_checkpoints(Path(trained_model(done)) / "checkpoints")[-1]


RLAIF = Pipeline(
    "rlaif",
    "a judge compares the policy's completions in both orders; a reward model, or the policy itself, learns from it",
    RLAIFSettings,
    rlaif_stages,
)
