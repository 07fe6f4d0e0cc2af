"""`whet study overoptimization`: what becomes of the true score while a learned one is optimised.

Gold is the mean log-probability per token under a model that was taught right workings: a fixed reward with learned
weights whose best completions are known to exist, and which no reward model trained on few comparisons can equal.
Proxies are reward models trained on comparisons of the start policy's completions that gold has labelled. Gao et al.
2022 (2210.10760).
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import tomli_w

from whet.pages.overoptimization import PANELS, figure_svg, result_values, sentence, study_page, table_text
from whet.record.metrics.overoptimization import (
    LAWS,
    Kind,
    ProxyCurve,
    ProxyResult,
    ScorePoint,
    best_of_points,
    binned,
    from_start,
    proxy_results,
)
from whet.record.metrics.selection import sizes as best_of_sizes
from whet.record.run_folder import LOCK, locked, next_free_folder, write_atomically
from whet.record.text import number, percent
from whet.settings.layers import read_toml, validated
from whet.tools.pipelines.library.sampler import ModelSampler
from whet.tools.pipelines.stages import (
    FinishedStage,
    ProgressLine,
    ProgressPrinter,
    Stage,
    print_line,
    read_json_lines,
    run_with_progress,
    write_rows,
)
from whet.tools.pipelines.training import RUN, train_run, trained_model
from whet.tools.studies.overoptimization.proxies import (
    Combination,
    ProxyReward,
    ScoreRecorder,
    combined,
    gold_score,
    read_scores,
)
from whet.tools.studies.overoptimization.settings import PROXY_ROWS, StudySettings, learning_config, study_settings
from whet.training.config import SUPERVISED
from whet.types import Prompt, Sample, WhetError

COMPARISONS, POOL, SCORES = "comparisons.jsonl", "pool.jsonl", "scores.jsonl"
PAIRS, EVAL_PAIRS = "pairs.jsonl", "eval_pairs.jsonl"
RUN_KEYS = ("method", "steps", "learning_rate", "prompts_per_step", "group_size", "eval_every")
GOLD, COMPLETIONS = "gold", "completions"
ScaledProxy = tuple[str, float, float]  # a trained proxy's folder, and the mean and spread of its scores
NUM_HELD_OUT = 300  # comparisons that no proxy learns from
NUM_STANDARD = 1000  # completions of the start that scores are standardised on
PROMPT_SEED, POOL_SEED = 77, 78  # of the questions, the same for every seed of the study
SETTINGS, PAGE, VALUES, FIGURE = "study.toml", "overoptimization.html", "overoptimization.json", "overoptimization.svg"


@dataclass(frozen=True)
class Condition:
    """An experimental condition: what is optimised, and how it is restrained."""

    seed: int
    size: int  # comparisons of the proxy, or of each of several
    beta: float = 0.0  # KL penalty
    how: Combination = "single"


def study_stages(settings: StudySettings) -> list[Stage]:
    """All stages, seed by seed, then what restrains: whenever this is broken off, whole curves are there."""
    return list(_stages(settings))


def _stages(settings: StudySettings) -> Iterator[Stage]:
    base = {key: getattr(settings, key) for key in ("model", "task", "difficulty", "max_new_tokens", "temperature")}
    gold = {**base, "gold_steps": settings.gold_steps}
    compared = {**gold, "most": settings.sizes[-1]}
    drawn = {**compared, "pool": [settings.pool_prompts, settings.pool_completions]}
    yield Stage(GOLD, "teach the model that knows the truth", partial(teach_gold, settings), gold)
    yield Stage(
        COMPLETIONS, "let the start policy answer, and gold score it", partial(draw_completions, settings), drawn
    )
    learnt = {**compared, "labels": settings.labels, "proxy_steps": settings.proxy_steps}
    chosen = {**learnt, "pool": drawn["pool"]}
    run = {**learnt, **{key: getattr(settings, key) for key in RUN_KEYS}}
    for seed in range(settings.seeds):
        for size in settings.sizes:
            about = f"reward model from {size} comparisons, seed {seed}"
            yield Stage(f"proxy-{size}-seed{seed}", about, partial(train_proxy, settings, size, seed, 0), learnt)
        conditions = [Condition(seed, size) for size in settings.sizes]
        about = f"best of 1 to {settings.pool_completions} completions, seed {seed}"
        yield Stage(f"best-of-n-seed{seed}", about, partial(choose_best, settings, conditions), chosen)
        for condition in conditions:
            about = f"learn from the proxy of {condition.size} comparisons, seed {seed}"
            yield Stage(f"learn-{condition.size}-seed{seed}", about, partial(optimise, settings, condition), run)
    for seed in range(min(settings.restrained_seeds, settings.seeds)):
        yield from _restrained(settings, seed, (learnt, chosen, run))


def _restrained(settings: StudySettings, seed: int, known: tuple[dict[str, Any], ...]) -> Iterator[Stage]:
    """One size again, with a KL penalty and by ensembles."""
    learnt, chosen, run = known
    for beta in settings.betas:
        about = f"learn from the proxy of {settings.size} with a KL penalty of {beta:g}, seed {seed}"
        work = partial(optimise, settings, Condition(seed, settings.size, beta))
        yield Stage(f"kl-{beta:g}-seed{seed}", about, work, {**run, "size": settings.size})
    if not settings.ensembles:
        return
    for member in range(1, settings.members):
        about = f"another reward model from the same {settings.size} comparisons, seed {seed}"
        work = partial(train_proxy, settings, settings.size, seed, member)
        yield Stage(f"member{member}-{settings.size}-seed{seed}", about, work, learnt)
    conditions = [Condition(seed, settings.size, how=how) for how in settings.ensembles]
    own = {"members": settings.members, "size": settings.size}
    asked = {**chosen, **own, "penalty": settings.variance_penalty_best_of, "ensembles": list(settings.ensembles)}
    about = f"best of 1 to {settings.pool_completions} completions by ensembles, seed {seed}"
    yield Stage(f"best-of-n-ensembles-seed{seed}", about, partial(choose_best, settings, conditions), asked)
    for condition in conditions:
        about = f"learn from {settings.members} proxies, {condition_name(condition)}, seed {seed}"
        asked = {**run, **own, "penalty": settings.variance_penalty}
        yield Stage(f"ensemble-{condition.how}-seed{seed}", about, partial(optimise, settings, condition), asked)


def teach_gold(settings: StudySettings, folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
    """Train the gold model: supervised, on right workings only."""
    config = {
        "seed": PROMPT_SEED,
        "steps": settings.gold_steps,
        "model": {"name": settings.model},
        "data": {"source": f"task:{settings.task}", "difficulty": [settings.difficulty], "share_worked": 1.0},
        "sampling": {"max_new_tokens": settings.max_new_tokens},
        "eval": {"every": 0, "prompts": 100},
        "report": {"keep_checkpoints": 1, "save_every": 20},
    }
    trained = train_run(folder, SUPERVISED, config)
    accuracy = [percent(trained[when].get("accuracy")) for when in ("before", "after")]
    return {"summary": f"greedy accuracy {accuracy[0]} to {accuracy[1]}, on right workings only", **trained}


def draw_completions(settings: StudySettings, folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
    """Two completions to many questions, for comparisons, and a pool of many completions to a few others."""
    from whet.data.tasks import TASKS, prompts
    from whet.training.assembly.runtime import sampling_from
    from whet.training.config import EvaluationConfig

    config = validated(
        EvaluationConfig,
        {
            "model": {"name": settings.model},
            "sampling": {"max_new_tokens": settings.max_new_tokens, "temperature": settings.temperature},
        },
    )
    sampler, sampling = ModelSampler(config), sampling_from(config.sampling)
    gold = gold_score(model=gold_model(done))
    task = TASKS[settings.task]
    # some pairs are of equal completions and are left out
    wanted = int(1.25 * (settings.sizes[-1] + NUM_HELD_OUT)) + 50
    scores: list[float] = []
    for name, split, count, per_prompt, seed in (
        (COMPARISONS, "train", wanted, 2, PROMPT_SEED),
        (POOL, "eval", settings.pool_prompts, settings.pool_completions, POOL_SEED),
    ):
        chosen = prompts(task, split, count, seed, settings.difficulty)
        written = sampler.completions(chosen, per_prompt, sampling, (seed,))
        judged = gold([p for p, samples in zip(chosen, written, strict=True) for _ in samples], _flat(written))
        remaining = iter(judged)
        rows = [
            {
                "id": prompt.id,
                "messages": [dict(message) for message in prompt.messages],
                "completions": [sample.completion for sample in samples],
                "gold": [next(remaining) for _ in samples],
            }
            for prompt, samples in zip(chosen, written, strict=True)
        ]
        write_rows(folder / name, rows)
        scores = scores or [score for score in judged if score is not None]
    mean, spread = fmean(scores), pstdev(scores)
    return {"summary": f"gold {number(mean)} nats per token, spread {number(spread)}", "mean": mean, "spread": spread}


def _flat(written: Sequence[Sequence[Sample]]) -> list[Sample]:
    return [sample for samples in written for sample in samples]


def gold_model(done: Mapping[str, FinishedStage]) -> str:
    """The model whose log-probabilities are the true score."""
    return trained_model(done[GOLD])


def gold_labelled_pairs(rows: Sequence[Mapping[str, Any]], spread: float, how: str, seed: int) -> list[dict[str, Any]]:
    """Comparisons as gold labels them: chosen and rejected; equal or empty completions cannot be compared."""
    stream = random.Random(f"labels/{seed}")
    pairs = []
    for row in rows:
        (one, other), (mine, theirs) = row["completions"], row["gold"]
        if one == other or not one.strip() or not other.strip() or mine is None or theirs is None:
            continue
        prefers_one = mine > theirs
        if how == "sampled":
            prefers_one = stream.random() < _sigmoid((mine - theirs) / spread)
        chosen, rejected = (one, other) if prefers_one else (other, one)
        pairs.append({"prompt": row["messages"], "chosen": chosen, "rejected": rejected})
    return pairs


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))


def train_proxy(
    settings: StudySettings, size: int, seed: int, place: int, folder: Path, done: Mapping[str, FinishedStage]
) -> Mapping[str, Any]:
    """Train one proxy reward model on pairs that the gold model labelled."""
    drawn = done[COMPLETIONS]
    rows = read_json_lines(drawn.folder / COMPARISONS)
    pairs = gold_labelled_pairs(rows, drawn.result["spread"], settings.labels, seed)
    held_out = gold_labelled_pairs(rows, drawn.result["spread"], "hard", seed)[-NUM_HELD_OUT:]
    learnt = random.Random(f"comparisons/{seed}").sample(pairs[:-NUM_HELD_OUT], len(pairs) - NUM_HELD_OUT)[:size]
    if len(learnt) < size:
        raise WhetError(
            f"only {len(learnt)} of {size} comparisons are of two different completions; give smaller sizes"
        )
    write_rows(folder / PAIRS, learnt)
    write_rows(folder / EVAL_PAIRS, held_out)
    config = {
        "seed": 1000 * seed + place,
        "steps": settings.proxy_steps,
        "model": {"name": settings.model},
        "data": {"source": str(folder / PAIRS)},
        "batch": {"rows_per_step": PROXY_ROWS},
        "optimizer": {"learning_rate": 1e-3},
        "eval": {"source": str(folder / EVAL_PAIRS), "every": 0},
        "report": {"keep_checkpoints": 1, "save_every": 25},
    }
    trained = train_run(folder, "rm", config)
    model = str(sorted((folder / RUN / "checkpoints").iterdir())[-1].resolve())
    prompts, completions = _standard(rows)
    scores = ProxyReward([(model, 0.0, 1.0)], "single", 0.0).opinions(prompts, completions)[0]
    summary = f"held-out accuracy {percent(trained['after'].get('accuracy'))}"
    return {"summary": summary, "model": model, "mean": fmean(scores), "spread": pstdev(scores), **trained}


def _standard(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Prompt], list[str]]:
    pairs = [(_prompt(row), completion) for row in rows[: NUM_STANDARD // 2] for completion in row["completions"]]
    return [prompt for prompt, _ in pairs], [completion for _, completion in pairs]


def _prompt(row: Mapping[str, Any]) -> Prompt:
    return Prompt(row["id"], tuple(row["messages"]))


def proxy_models(settings: StudySettings, done: Mapping[str, FinishedStage], condition: Condition) -> list[ScaledProxy]:
    """The finished proxy reward models that a condition combines, and what standardises each."""
    names = [f"proxy-{condition.size}-seed{condition.seed}"]
    if condition.how != "single":
        names += [f"member{member}-{condition.size}-seed{condition.seed}" for member in range(1, settings.members)]
    results = [done[name].result for name in names]
    return [(result["model"], result["mean"], result["spread"]) for result in results]


def condition_name(condition: Condition) -> str:
    """How its curve is called."""
    if condition.beta:
        return f"KL penalty {condition.beta:g}"
    return f"{condition.size} pairs" if condition.how == "single" else condition.how.replace("_minus_", " - ")


def choose_best(
    settings: StudySettings, conditions: Sequence[Condition], folder: Path, done: Mapping[str, FinishedStage]
) -> Mapping[str, Any]:
    """Best-of-n against each condition's proxy: the gold and proxy scores as n grows."""
    rows = read_json_lines(done[COMPLETIONS].folder / POOL)
    spread = done[COMPLETIONS].result["spread"]
    gold = [[score / spread for score in row["gold"]] for row in rows]
    prompts = [_prompt(row) for row in rows for _ in row["completions"]]
    completions = [completion for row in rows for completion in row["completions"]]
    known: dict[ScaledProxy, list[float]] = {}
    curves = []
    for condition in conditions:
        members = proxy_models(settings, done, condition)
        for member in members:
            if member not in known:
                known[member] = ProxyReward([member], "single", 0.0).opinions(prompts, completions)[0]
        opinions = zip(*(known[member] for member in members), strict=True)
        agreed = [combined(scores, condition.how, settings.variance_penalty_best_of) for scores in opinions]
        width = settings.pool_completions
        proxy = [agreed[start : start + width] for start in range(0, len(agreed), width)]
        points = from_start(best_of_points(gold, proxy, best_of_sizes(width)))
        group = "best_of_n" if condition.how == "single" else "best_of_n_ensemble"
        curves.append(_curve_row(condition_name(condition), "best_of_n", group, condition.seed, points))
    worst = curves[0]["points"][-1]
    summary = (
        f"{curves[0]['name']}: gold {number(worst[1])}, proxy {number(worst[2])} at n = {settings.pool_completions}"
    )
    return {"summary": summary, "curves": curves}


def optimise(
    settings: StudySettings, condition: Condition, folder: Path, done: Mapping[str, FinishedStage]
) -> Mapping[str, Any]:
    """Train the policy by RL against a condition's proxy, recording gold and proxy scores."""
    members = proxy_models(settings, done, condition)
    drawn = done[COMPLETIONS].result
    folders, means, spreads = map(list, zip(*members, strict=True))
    proxy: dict[str, Any] = {"folders": folders, "means": means, "spreads": spreads, "how": condition.how}
    proxy["penalty"] = settings.variance_penalty
    gold = {"model": gold_model(done), "mean": drawn["mean"], "spread": drawn["spread"]}
    parts = [
        {"reward": "whet.tools.studies.overoptimization.proxies:proxy_score", "weight": 1.0, "settings": proxy},
        {"reward": "whet.tools.studies.overoptimization.proxies:gold_score", "weight": 0.0, "settings": gold},
    ]
    config = learning_config(settings, condition.seed, condition.beta, {"parts": parts})
    file = folder / SCORES
    line = ProgressLine("      learning", sys.stdout)
    try:
        train_run(folder, settings.method, config, [ScoreRecorder(file, settings.model, settings.temperature, [line])])
    finally:
        line.clear()
    rows = read_scores(file)
    points = binned(rows, settings.eval_every)
    group = "kl" if condition.beta else "rl" if condition.how == "single" else "ensemble"
    peak, end = max(points, key=lambda point: point.gold), points[-1]
    summary = f"gold {number(peak.gold)} at its peak (d {number(peak.d)}), {number(end.gold)} in the end"
    summary += f" (d {number(end.d)}), proxy {number(end.proxy)}"
    return {"summary": summary, "curves": [_curve_row(condition_name(condition), "rl", group, condition.seed, points)]}


def _curve_row(name: str, kind: Kind, group: str, seed: int, points: Sequence[ScorePoint]) -> dict[str, Any]:
    listed = [[point.d, point.gold, point.proxy] for point in points]
    return {"name": name, "kind": kind, "group": group, "seed": seed, "points": listed}


def read_curves(done: Mapping[str, FinishedStage]) -> list[ProxyCurve]:
    """Every curve of the finished stages."""
    return [
        ProxyCurve(
            row["name"], row["kind"], row["group"], row["seed"], tuple(ScorePoint(*point) for point in row["points"])
        )
        for stage in done.values()
        for row in stage.result.get("curves", ())
    ]


@dataclass(frozen=True)
class StudyRun:
    """A study's folder after (or during) its stages."""

    folder: Path
    status: str  # finished or interrupted
    findings: tuple[ProxyResult, ...]
    page: Path


def study_overoptimization(*layers: Mapping[str, Any], folder: str | Path | None = None, command: str = "") -> StudyRun:
    """Run the study, or continue it where its folder is given again; later layers of settings win."""
    study_folder = Path(folder) if folder else next_free_folder("overoptimization")
    settings = _settled(study_settings(*layers), layers, study_folder)
    stages = study_stages(settings)
    try:
        study_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WhetError(f"{study_folder}: cannot write there ({error.strerror}); give another --folder") from error
    with locked(study_folder):
        write_atomically(study_folder / SETTINGS, tomli_w.dumps(settings.model_dump(mode="json")))
        shown_command = command or f"whet study overoptimization --folder {study_folder}"

        def draw(finished: Mapping[str, FinishedStage]) -> list[ProxyResult]:
            return _draw(study_folder, settings, finished, shown_command, len(finished) == len(stages))

        printer = ProgressPrinter(f"whet study overoptimization: {len(stages)} stages in {study_folder}", draw)
        status = run_with_progress(stages, study_folder, printer)
        findings = draw(printer.finished)
        _print_findings(findings, _base_name(settings))
        print_line(f"\n{status}")
        print_line(f"page  {study_folder / PAGE}")
        if status != "finished":
            print_line(f"next  whet study overoptimization --folder {study_folder}")
    return StudyRun(study_folder, status, tuple(findings), study_folder / PAGE)


def _settled(given: StudySettings, layers: tuple[Mapping[str, Any], ...], place: Path) -> StudySettings:
    """The settings of the folder where it holds a study and none are given; other ones are refused."""
    if not (place / SETTINGS).exists():
        if place.exists() and (not place.is_dir() or any(entry.name != LOCK for entry in place.iterdir())):
            raise WhetError(f"{place} already exists and is not a study; give an empty or new --folder")
        return given
    before = study_settings(read_toml(place / SETTINGS))
    if not any(layers):
        return before
    # more seeds continue with what is there
    differing = [name for name in type(given).model_fields if getattr(given, name) != getattr(before, name)]
    if differing and differing != ["seeds"]:
        raise WhetError(
            f"{place} holds a study with other settings ({', '.join(differing[:3])}); drop the settings "
            "to continue it, or give another --folder"
        )
    return given


def _base_name(settings: StudySettings) -> str:
    return condition_name(Condition(0, settings.size))


def _draw(
    folder: Path, settings: StudySettings, finished: Mapping[str, FinishedStage], command: str, is_whole: bool
) -> list[ProxyResult]:
    """The page, its numbers and its figure, from the stages finished so far."""
    fitted_from = {"best_of_n": settings.least_d_best_of, "rl": settings.least_d}
    findings = proxy_results(read_curves(finished), fitted_from)  # type: ignore[arg-type]
    dumped = settings.model_dump(mode="json")
    values = {"settings": dumped, "findings": [result_values(finding) for finding in findings]}
    facts = {name: _shown(value) for name, value in dumped.items()}
    base = _base_name(settings)
    write_atomically(folder / VALUES, json.dumps(values, indent=1) + "\n")
    write_atomically(folder / PAGE, study_page(findings, base, facts, command, is_whole))
    if findings:
        write_atomically(folder / FIGURE, figure_svg(findings, base))
    return findings


def _print_findings(found: Sequence[ProxyResult], base: str) -> None:
    for group, (title, about) in PANELS.items():
        mine = [finding for finding in found if finding.group == group]
        if mine:
            print_line(f"\n{title}: {about.format(base=base)}; {LAWS[mine[0].kind]}\n{table_text(mine)}")
    print_line("")
    for finding in found:
        if finding.group == "rl":
            print_line(sentence(finding))


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
