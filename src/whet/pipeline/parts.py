"""What the stages of a pipeline are made of: trainings, completions of a model, and marks of one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whet import api
from whet.config.config import EvaluationConfig, merged, resolved
from whet.config.run_folder import CONFIG
from whet.config.sections import DataSection, EvalSection, RewardSection
from whet.experiments.comparison import RunLine
from whet.pipeline import Done, Interrupted, Stage, found, json_lines, read_json_lines, written_in_chunks, written_whole
from whet.pipeline.pairs import prompt_row
from whet.pipeline.sections import PipelineSettings, without_own_keys
from whet.report.record import read_metrics, read_summary
from whet.report.text import headline, metric_text
from whet.types import Prompt, Sample, WhetError

RUN = "run"  # a training stage's run folder
PAIRS, COMPLETIONS, ROWS = "pairs.jsonl", "completions.jsonl", "demonstrations.jsonl"
CHUNK = 64  # prompts that are asked together, and lost together by a kill


def trained(folder: Path, method: str, config: Mapping[str, Any], callbacks: Any = None) -> Mapping[str, Any]:
    """A run in this very folder, begun or gone on with: its marks before and after, as JSON."""
    run_folder = folder / RUN
    line = RunLine("      training", sys.stdout)
    watching = [line] if callbacks is None else callbacks
    try:
        if (run_folder / CONFIG).exists():
            summary = read_summary(run_folder)
            if summary.get("status") == "finished":
                return {"before": summary.get("before") or {}, "after": summary.get("after") or {}}
            run = api.resume(run_folder, callbacks=watching, console=False)
        else:
            run = api.train(method, config={**config, "folder": str(run_folder)}, callbacks=watching, console=False)
    finally:
        line.clear()
    if run.status == "interrupted":
        raise Interrupted
    return {"before": dict(run.before), "after": dict(run.after)}


def model_of(done: Done) -> str:
    """The model that a training stage left behind."""
    return str((done.folder / RUN).resolve())


def training(
    settings: PipelineSettings, model: str, own: Mapping[str, Any], wished: Mapping[str, Any], section: str
) -> dict[str, Any]:
    """The config of a training: what the pipeline decides, `own`, over what the user wished for in that section."""
    base = {
        "seed": settings.seed,
        "model": {**settings.model.model_dump(), "name": model},
        "eval": {"every": 0},
        "report": {"save_every": settings.report.save_every, "review_every": 0},
    }
    return merged(merged(base, without_own_keys(wished, section, "steps" in own)), own)


def run_told(folder: Path) -> str:
    """A finished training in one line."""
    steps = [line for line in read_metrics(folder / RUN) if "metrics" in line]
    last = steps[-1]["metrics"] if steps else {}
    words = [f"{len(steps)} updates"]
    told = {"loss": "last loss", "accuracy": "pairs told apart"}
    words += [f"{text} {metric_text(name, last[name])}" for name, text in told.items() if name in last]
    return ", ".join(words)


def check_training(method: str, config: Mapping[str, Any], section: str = "train") -> Any:
    """Refuse a training that could not start, before the first stage."""
    try:
        return resolved(method, config)
    except WhetError as error:
        raise WhetError(f"{section}: {str(error).removeprefix('config: ')}") from error


def evaluation(settings: PipelineSettings, model: str, reward: RewardSection | None = None) -> EvaluationConfig:
    """How a model is asked: the pipeline's prompts, sampling and rewards."""
    data = {name: getattr(settings.data, name) for name in DataSection.model_fields}
    return EvaluationConfig(
        seed=settings.seed,
        model=settings.model.model_copy(update={"name": model}),
        data=DataSection(**data),
        sampling=settings.sampling,
        reward=settings.marks if reward is None else reward,
        eval=EvalSection(source=settings.eval.source, prompts=settings.eval.prompts),
    )


def is_marked(settings: PipelineSettings) -> bool:
    """True where there are held-out prompts and something to mark the completions by."""
    brings_own = settings.data.parsed_source.is_generated
    told = bool(settings.marks.parts or settings.marks.template)
    return settings.eval.prompts > 0 and (brings_own or (bool(settings.eval.source) and told))


def marked(settings: PipelineSettings, model: str) -> dict[str, Any]:
    """Greedy completions of a model to the held-out prompts, marked."""
    from whet.evaluate.evaluation import evaluate_metrics

    marks = evaluate_metrics(evaluation(settings, model), 1)
    asked = int(marks.pop("prompts"))
    main = headline(marks) or ""
    said = f"{main.replace('_', ' ')} {metric_text(main, marks.get(main))} on {asked} held-out prompts"
    return found(said, marks, asked=asked)


def marks_stage(settings: PipelineSettings, who: str, number: int, after: str | None, name: str = "") -> Stage:
    """Marks of the model that the stage `after` trained, or of the first one."""

    def work(folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
        return marked(settings, settings.model.name if after is None else model_of(done[after]))

    about = f"marks of {who} {'before the first round' if number == 0 else f'after round {number}'}"
    return Stage(name or f"marks{number}", about, work, stage_settings(settings), (who, number))


def stage_settings(settings: PipelineSettings) -> dict[str, Any]:
    """What a finished stage depends on. More rounds do not change the first ones."""
    values = settings.model_dump(mode="json")
    return {key: value for key, value in values.items() if key not in ("folder", "rounds", "report")}


def write_completions(
    folder: Path,
    config: EvaluationConfig,
    chosen: Sequence[Prompt],
    count: int,
    seed: tuple[int, ...],
    is_scored: bool = False,
) -> list[dict[str, Any]]:
    """`count` completions to each prompt, scored by the config's reward where wanted, as rows of completions.jsonl."""
    asked: list[Callable[[int, Sequence[Prompt]], list[dict[str, Any]]]] = []

    def rows_of(number: int, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        if not asked:  # a stage that had only its result left to write needs no model
            asked.append(_asking(config, count, seed, is_scored))
        return asked[0](number, prompts)

    return read_json_lines(written_in_chunks(folder / COMPLETIONS, chosen, CHUNK, rows_of))


def _asking(
    config: EvaluationConfig, count: int, seed: tuple[int, ...], is_scored: bool
) -> Callable[[int, Sequence[Prompt]], list[dict[str, Any]]]:
    from whet.build.assembly import encode_prompts, load_runtime, sampling_from
    from whet.build.rewards import bind_judges, build_reward_parts, build_scorer
    from whet.rollout.collect import draw_completions, score_groups

    parts = build_reward_parts(config, wanted=True) if is_scored else []
    machine = load_runtime(config)
    sampling = sampling_from(config.sampling)
    judge = build_scorer(config, bind_judges(parts, machine.engine, machine.loaded.tokenizer)) if is_scored else None

    def rows_of(number: int, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        tokens = encode_prompts(machine, prompts, sampling)
        written = draw_completions(machine.engine, tokens, count, sampling, (*seed, number))
        if judge is not None:
            groups = score_groups(prompts, written, judge)
            return [_completion_row(group.prompt, group.samples, True) for group in groups]
        return [_completion_row(prompt, samples, False) for prompt, samples in zip(prompts, written, strict=True)]

    return rows_of


def _completion_row(prompt: Prompt, samples: Sequence[Sample], is_scored: bool) -> dict[str, Any]:
    row = {
        **prompt_row(prompt),
        "completions": [sample.completion for sample in samples],
        "finished": [sample.stop != "length" for sample in samples],
    }
    return {**row, "scores": [sample.reward for sample in samples]} if is_scored else row


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    return written_whole(path, json_lines(rows))
