"""Over-optimisation: what becomes of the true score while a learned one is optimised.

Gold is the mean log-probability per token under a model that was taught right workings: a fixed reward with learned
weights whose best completions are known to exist, and which no reward model trained on few comparisons can equal.
Proxies are reward models trained on comparisons of the start policy's completions that gold has labelled. Gao et al.
2022 (2210.10760).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from whet.pages.overoptimization import HEADS, PANELS, cells, figure_svg, result_values, sentence
from whet.record.log import read_metrics
from whet.record.metrics.overoptimization import (
    Kind,
    ProxyCurve,
    ScorePoint,
    best_of_points,
    binned,
    from_start,
    proxy_results,
)
from whet.record.metrics.selection import sizes as best_of_sizes
from whet.record.run_folder import write_atomically
from whet.record.text import number, percent
from whet.settings.bounds import MOST_REPEATS, MOST_ROWS, MOST_SAMPLES, MOST_WEIGHT
from whet.settings.layers import merged
from whet.settings.sections import listed
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library.choices import RLChoice
from whet.tools.pipelines.library.sampler import ModelSampler, prompt_row, row_prompt
from whet.tools.pipelines.proxies import Combination, ProxyReward, combined, gold_score
from whet.tools.pipelines.settings import (
    Pipeline,
    PipelineSettings,
    no_effect,
    own_data,
    sampling_config,
    shared_values,
)
from whet.tools.pipelines.stages import FinishedStage, Stage, read_json_lines, stage_result, write_rows
from whet.tools.pipelines.training import RUN, check_training, train_run, trained_model
from whet.training.config import SUPERVISED, PolicyConfig, config_class
from whet.types import WhetError

COMPARISONS, POOL = "comparisons.jsonl", "pool.jsonl"
PAIRS, EVAL_PAIRS = "pairs.jsonl", "eval_pairs.jsonl"
VALUES, FIGURE = "overoptimization.json", "overoptimization.svg"
GOLD, COMPLETIONS = "gold", "completions"
REWARDS = "whet.tools.pipelines.proxies"
Done = Mapping[str, FinishedStage]
Ensemble = Literal["mean", "worst", "mean_minus_variance"]
ScaledProxy = tuple[str, float, float]  # a trained proxy's folder, and the mean and spread of its scores
PROXY_ROWS = 32  # comparisons per training step of a proxy
NUM_HELD_OUT = 300  # comparisons that no proxy learns from
NUM_STANDARD = 1000  # completions of the start that scores are standardised on
PROMPT_SEED, POOL_SEED = 77, 78  # of the questions, the same for every seed
STEPS_PER_POINT = 5  # of a curve
VARIANCE_PENALTY, VARIANCE_PENALTY_BEST_OF = 0.1, 0.5  # of mean_minus_variance, learning and in best-of-n (2310.02743)
LEAST_D: dict[Kind, float] = {"best_of_n": 0.3, "rl": 1.0}  # distance beyond which a law is fitted


class LearningChoice(RLChoice):
    """Learning from a proxy."""

    # the cheapest method whose reward is what it is given, unscaled
    method: str = Field("rloo", description="a method of `whet algorithms` that learns from a reward")
    steps: amounts.StepsOrNone = Field(80, description="steps; 0: the method's own")


class OveroptimizationSettings(PipelineSettings):
    """A gold score, proxies of several data sizes, and what restrains their optimisation."""

    seeds: amounts.Repeats = Field(1, description="each has its own comparisons, proxies and runs")
    sizes: Annotated[tuple[Annotated[int, Field(ge=2, le=MOST_ROWS)], ...], BeforeValidator(listed)] = Field(
        (32, 256, 4096), min_length=1, max_length=4, description="comparisons of a proxy, ascending"
    )
    gold_steps: amounts.Steps = Field(60, description="training steps of gold's model")
    proxy_steps: amounts.Steps = Field(128, description="steps of every proxy, so that only the data differ")
    pool_prompts: int = Field(48, ge=2, le=MOST_SAMPLES, description="questions of best-of-n")
    pool_completions: int = Field(128, ge=4, le=MOST_SAMPLES, description="completions to each: the largest n")
    rl: LearningChoice = Field(LearningChoice(), description="every learning run")
    betas: Annotated[tuple[Annotated[float, Field(gt=0, le=MOST_WEIGHT)], ...], BeforeValidator(listed)] = Field(
        (0.02, 0.1), max_length=3, description="KL penalties to try, with the proxy of the smallest size"
    )
    members: int = Field(
        4, ge=2, le=MOST_REPEATS, description="proxies of an ensemble, trained from other seeds on the same data"
    )
    ensembles: Annotated[tuple[Ensemble, ...], BeforeValidator(listed)] = Field(
        ("mean", "worst", "mean_minus_variance"), description="ways of agreeing to try"
    )

    small_run: ClassVar[Mapping[str, Any]] = {
        "data": {"source": "task:countdown", "difficulty": [3]},
        "sampling": {"max_new_tokens": 48},
        "sizes": [32, 1024],
        "gold_steps": 40,
        "proxy_steps": 40,
        "pool_prompts": 32,
        "pool_completions": 64,
        "rl": {
            "steps": 40,
            "train": {"optimizer": {"learning_rate": 1.6e-4}, "batch": {"prompts_per_step": 16, "group_size": 8}},
        },
        "betas": [0.1],
        "members": 3,
        "ensembles": ["mean_minus_variance"],
    }

    def idle(self) -> dict[str, str]:
        why = "gold and the proxies are the rewards, and every curve is measured"
        return super().idle() | no_effect(why, "reward", "eval", "allow_contamination")


@dataclass(frozen=True)
class Condition:
    """An experimental condition: what is optimised, and how it is restrained."""

    seed: int
    size: int  # comparisons of the proxy, or of each of several
    beta: float = 0.0  # KL penalty
    how: Combination = "single"

    @property
    def name(self) -> str:
        """How its curve is called."""
        if self.beta:
            return f"KL penalty {self.beta:g}"
        return f"{self.size} pairs" if self.how == "single" else self.how.replace("_minus_", " - ")

    @property
    def stage(self) -> str:
        """The stage that learns under it."""
        kind = f"kl-{self.beta:g}" if self.beta else f"ensemble-{self.how}"
        return f"{f'learn-{self.size}' if self.how == 'single' and not self.beta else kind}-seed{self.seed}"

    def proxies(self, members: int) -> tuple[str, ...]:
        """The stages of the reward models that it combines."""
        others = range(1, members) if self.how != "single" else ()
        first = f"proxy-{self.size}-seed{self.seed}"
        return (first, *(f"member{member}-{self.size}-seed{self.seed}" for member in others))


def conditions_of(settings: OveroptimizationSettings, seed: int) -> list[Condition]:
    """Every size, then the smallest with a KL penalty and by ensembles."""
    smallest = settings.sizes[0]
    return [
        *(Condition(seed, size) for size in settings.sizes),
        *(Condition(seed, smallest, beta) for beta in settings.betas),
        *(Condition(seed, smallest, how=how) for how in settings.ensembles),
    ]


def check(settings: OveroptimizationSettings) -> None:
    """Refuse what could not start before the first stage."""
    source, sizes, seen = settings.data.parsed_source, list(settings.sizes), settings.proxy_steps * PROXY_ROWS
    complaints = (
        (
            source.is_task and len(source.tasks()) == 1,
            f"data.source is {source}; give one task, such as task:countdown",
        ),
        (len(settings.data.difficulty) == 1, "data.difficulty has several values; give one"),
        (sizes == sorted(set(sizes)), f"sizes is {sizes}; give ascending ones, such as 32,256,4096"),
        (
            sizes[-1] <= seen,
            f"sizes has {sizes[-1]}, but proxy_steps x {PROXY_ROWS} rows are only {seen}; raise proxy_steps",
        ),
        (
            config_class(settings.rl.method) is PolicyConfig,
            f"rl.method is {settings.rl.method!r}, which learns from no reward; see `whet algorithms`",
        ),
    )
    for is_fine, complaint in complaints:
        if not is_fine:
            raise WhetError(complaint)
    for beta in (0.0, *settings.betas):
        check_training(settings.rl.method, learning_config(settings, Condition(0, sizes[0], beta), []), "rl")


def overoptimization_stages(settings: OveroptimizationSettings) -> list[Stage]:
    """All stages, seed by seed: whenever this is broken off, whole curves are there."""
    check(settings)
    return list(_stages(settings))


def _stages(settings: OveroptimizationSettings) -> Iterator[Stage]:
    base = {"name": settings.model.name, **shared_values(settings, ("seed", "model", "data", "sampling"))}
    drawn = {"most": settings.sizes[-1], "pool": [settings.pool_prompts, settings.pool_completions]}
    yield Stage(
        GOLD,
        "teach the model that knows the truth",
        partial(teach_gold, settings),
        {**base, "steps": settings.gold_steps},
        reads=(),
    )
    yield Stage(
        COMPLETIONS,
        "let the start policy answer, and gold score it",
        partial(draw_completions, settings),
        drawn,
        reads=(GOLD,),
    )
    measured = []
    for seed in range(settings.seeds):
        conditions = conditions_of(settings, seed)
        for name, (size, place) in _proxies(settings, conditions).items():
            about = f"reward model from {size} comparisons, seed {seed}"
            own: dict[str, Any] = {"size": size, "seed": seed, "place": place, "steps": settings.proxy_steps}
            yield Stage(name, about, partial(train_proxy, settings, size, seed, place), own, reads=(COMPLETIONS,))
        chosen = [condition for condition in conditions if not condition.beta]
        read = (COMPLETIONS, *_proxies(settings, chosen))
        about = f"best of 1 to {settings.pool_completions} completions, seed {seed}"
        own = {"conditions": [condition.name for condition in chosen]}
        measured.append(f"best-of-n-seed{seed}")
        yield Stage(measured[-1], about, partial(choose_best, settings, chosen), own, reads=read)
        for condition in conditions:
            own = {"rl": settings.rl.model_dump(mode="json"), "condition": vars(condition)}
            read = (GOLD, COMPLETIONS, *condition.proxies(settings.members))
            about = f"learn from the proxy, {condition.name}, seed {seed}"
            measured.append(condition.stage)
            yield Stage(condition.stage, about, partial(optimise, settings, condition), own, reads=read)
    yield Stage("curves", "the true score while a learned one is optimised", compare, reads=tuple(measured))


def _proxies(settings: OveroptimizationSettings, conditions: Sequence[Condition]) -> dict[str, tuple[int, int]]:
    """The reward models of some conditions: their size, and their place in an ensemble."""
    return {
        name: (condition.size, place)
        for condition in conditions
        for place, name in enumerate(condition.proxies(settings.members))
    }


def teach_gold(settings: OveroptimizationSettings, folder: Path, done: Done) -> Mapping[str, Any]:
    """Train the gold model: supervised, on right workings only."""
    config = {
        "seed": PROMPT_SEED,
        "steps": settings.gold_steps,
        "model": settings.model.model_dump(),
        "data": {**own_data(settings), "share_worked": 1.0},
        "sampling": {"max_new_tokens": settings.sampling.max_new_tokens},
        "eval": {"every": 0, "prompts": 100},
        "report": {"keep_checkpoints": 1, "save_every": 20},
    }
    trained = train_run(folder, SUPERVISED, config)
    accuracy = [percent(trained[when].get("accuracy")) for when in ("before", "after")]
    return stage_result(f"greedy accuracy {accuracy[0]} to {accuracy[1]}, on right workings only")


def draw_completions(settings: OveroptimizationSettings, folder: Path, done: Done) -> Mapping[str, Any]:
    """Two completions to many questions, for comparisons, and a pool of many completions to a few others."""
    from whet.data.tasks import prompts
    from whet.training.assembly.runtime import sampling_from

    config = sampling_config(settings, "")
    sampler, sampling = ModelSampler(config), sampling_from(config.sampling)
    gold = gold_score(model=trained_model(done[GOLD]))
    (task,), (difficulty,) = settings.data.parsed_source.tasks(), settings.data.difficulty
    # some pairs are of equal completions and are left out
    wanted = int(1.25 * (settings.sizes[-1] + NUM_HELD_OUT)) + 50
    scores: list[float] = []
    for name, split, count, per_prompt, seed in (
        (COMPARISONS, "train", wanted, 2, PROMPT_SEED),
        (POOL, "eval", settings.pool_prompts, settings.pool_completions, POOL_SEED),
    ):
        chosen = prompts(task, split, count, seed, difficulty)
        written = sampler.completions(chosen, per_prompt, sampling, (seed,))
        pairs = [(prompt, sample) for prompt, samples in zip(chosen, written, strict=True) for sample in samples]
        judged = gold([prompt for prompt, _ in pairs], [sample for _, sample in pairs])
        remaining = iter(judged)
        rows = [
            {
                **prompt_row(prompt),
                "completions": [sample.completion for sample in samples],
                "gold": [next(remaining) for _ in samples],
            }
            for prompt, samples in zip(chosen, written, strict=True)
        ]
        write_rows(folder / name, rows)
        scores = scores or [score for score in judged if score is not None]
    mean, spread = fmean(scores), pstdev(scores)
    return stage_result(f"gold {number(mean)} nats per token, spread {number(spread)}", mean=mean, spread=spread)


def gold_labelled_pairs(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Comparisons as gold labels them: chosen and rejected; equal or empty completions cannot be compared."""
    pairs = []
    for row in rows:
        (one, other), (mine, theirs) = row["completions"], row["gold"]
        if one == other or not one.strip() or not other.strip() or mine is None or theirs is None:
            continue
        chosen, rejected = (one, other) if mine > theirs else (other, one)
        pairs.append({"prompt": row["prompt"], "chosen": chosen, "rejected": rejected})
    return pairs


def train_proxy(
    settings: OveroptimizationSettings, size: int, seed: int, place: int, folder: Path, done: Done
) -> Mapping[str, Any]:
    """Train one proxy reward model on pairs that the gold model labelled."""
    rows = read_json_lines(done[COMPLETIONS].folder / COMPARISONS)
    pairs = gold_labelled_pairs(rows)
    held_out = pairs[-NUM_HELD_OUT:]
    learnt = random.Random(f"comparisons/{seed}").sample(pairs[:-NUM_HELD_OUT], len(pairs) - NUM_HELD_OUT)[:size]
    if len(learnt) < size:
        raise WhetError(
            f"only {len(learnt)} of {size} comparisons are of two different completions; give smaller sizes"
        )
    write_rows(folder / PAIRS, learnt)
    write_rows(folder / EVAL_PAIRS, held_out)
    config = {
        "seed": 1000 * (settings.seed + seed) + place,
        "steps": settings.proxy_steps,
        "model": settings.model.model_dump(),
        "data": {"source": str(folder / PAIRS)},
        "batch": {"rows_per_step": PROXY_ROWS},
        "optimizer": {"learning_rate": 1e-3},
        "eval": {"source": str(folder / EVAL_PAIRS), "prompts": len(held_out), "every": 0},
        "report": {"keep_checkpoints": 1, "save_every": 25},
    }
    trained = train_run(folder, "rm", config)
    model = str(sorted((folder / RUN / "checkpoints").iterdir())[-1].resolve())
    standard = [(row_prompt(row), text) for row in rows[: NUM_STANDARD // 2] for text in row["completions"]]
    proxy = ProxyReward([(model, 0.0, 1.0)], "single", 0.0)
    scores = proxy.opinions([prompt for prompt, _ in standard], [text for _, text in standard])[0]
    summary = f"held-out accuracy {percent(trained['after'].get('accuracy'))}"
    return stage_result(summary, model=model, mean=fmean(scores), spread=pstdev(scores))


def proxy_models(settings: OveroptimizationSettings, done: Done, condition: Condition) -> list[ScaledProxy]:
    """The finished proxy reward models that a condition combines, and what standardises each."""
    results = [done[name].result for name in condition.proxies(settings.members)]
    return [(result["model"], result["mean"], result["spread"]) for result in results]


def choose_best(
    settings: OveroptimizationSettings, conditions: Sequence[Condition], folder: Path, done: Done
) -> Mapping[str, Any]:
    """Best-of-n against each condition's proxy: the gold and proxy scores as n grows."""
    rows = read_json_lines(done[COMPLETIONS].folder / POOL)
    spread, width = done[COMPLETIONS].result["spread"], settings.pool_completions
    gold = [[score / spread for score in row["gold"]] for row in rows]
    prompts = [row_prompt(row) for row in rows for _ in row["completions"]]
    completions = [completion for row in rows for completion in row["completions"]]
    known: dict[ScaledProxy, list[float]] = {}
    curves = []
    for condition in conditions:
        members = proxy_models(settings, done, condition)
        for member in members:
            if member not in known:
                known[member] = ProxyReward([member], "single", 0.0).opinions(prompts, completions)[0]
        opinions = zip(*(known[member] for member in members), strict=True)
        agreed = [combined(scores, condition.how, VARIANCE_PENALTY_BEST_OF) for scores in opinions]
        proxy = [agreed[start : start + width] for start in range(0, len(agreed), width)]
        points = from_start(best_of_points(gold, proxy, best_of_sizes(width)))
        group = "best_of_n" if condition.how == "single" else "best_of_n_ensemble"
        curves.append(_curve_row(condition, "best_of_n", group, points))
    worst = curves[0]["points"][-1]
    summary = f"{curves[0]['name']}: gold {number(worst[1])}, proxy {number(worst[2])} at n = {width}"
    return stage_result(summary, curves=curves)


def learning_config(
    settings: OveroptimizationSettings, condition: Condition, parts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A run on the proxy. The KL penalty is in the reward, where the scale of both is known."""
    own = {
        "seed": settings.seed + condition.seed,
        "model": settings.model.model_dump(),
        "data": own_data(settings),
        "sampling": settings.sampling.model_dump(),
        "objective": {"kl": {"kind": "k1_reward", "beta": condition.beta} if condition.beta else "none"},
        "eval": {"prompts": 0, "every": 0},
        "report": {"review_every": 0, "save_every": 20, "keep_checkpoints": 1},
        **({"steps": settings.rl.steps} if settings.rl.steps else {}),
        **({"reward": {"parts": list(parts)}} if parts else {}),
    }
    return merged(settings.rl.train, own)


def optimise(settings: OveroptimizationSettings, condition: Condition, folder: Path, done: Done) -> Mapping[str, Any]:
    """Train the policy by RL against a condition's proxy; gold and the KL are recorded as parts without a weight."""
    drawn = done[COMPLETIONS].result
    folders, means, spreads = map(list, zip(*proxy_models(settings, done, condition), strict=True))
    proxy = {"folders": folders, "means": means, "spreads": spreads, "how": condition.how, "penalty": VARIANCE_PENALTY}
    gold = {"model": trained_model(done[GOLD]), "mean": drawn["mean"], "spread": drawn["spread"]}
    moved = {"model": settings.model.name, "temperature": settings.sampling.temperature}
    parts = [
        {"reward": f"{REWARDS}:proxy_score", "weight": 1.0, "settings": proxy},
        {"reward": f"{REWARDS}:gold_score", "weight": 0.0, "settings": gold},
        {"reward": f"{REWARDS}:moved_score", "weight": 0.0, "settings": moved},
    ]
    train_run(folder, settings.rl.method, learning_config(settings, condition, parts))
    rows = [line["reward"] for line in read_metrics(folder / RUN) if "metrics" in line]
    points = binned(rows, STEPS_PER_POINT)
    group = "kl" if condition.beta else "rl" if condition.how == "single" else "ensemble"
    peak, end = max(points, key=lambda point: point.gold), points[-1]
    summary = f"gold {number(peak.gold)} at its peak (d {number(peak.d)}), {number(end.gold)} in the end"
    summary += f" (d {number(end.d)}), proxy {number(end.proxy)}"
    return stage_result(summary, curves=[_curve_row(condition, "rl", group, points)])


def _curve_row(condition: Condition, kind: Kind, group: str, points: Sequence[ScorePoint]) -> dict[str, Any]:
    listed = [[point.d, point.gold, point.proxy] for point in points]
    return {"name": condition.name, "kind": kind, "group": group, "seed": condition.seed, "points": listed}


def read_curves(done: Done) -> list[ProxyCurve]:
    """Every curve of the finished stages, panel by panel."""
    curves = [
        ProxyCurve(
            row["name"], row["kind"], row["group"], row["seed"], tuple(ScorePoint(*point) for point in row["points"])
        )
        for stage in done.values()
        for row in stage.result.get("curves", ())
    ]
    return sorted(curves, key=lambda curve: list(PANELS).index(curve.group))


def compare(folder: Path, done: Done) -> Mapping[str, Any]:
    """The laws, the table, the figure and every point."""
    results = proxy_results(read_curves(done), LEAST_D)
    values = {"findings": [result_values(result) for result in results]}
    write_atomically(folder / VALUES, json.dumps(values, indent=1) + "\n")
    write_atomically(folder / FIGURE, figure_svg(results))
    learning = [sentence(result) for result in results if result.group == "rl"]
    table = [list(HEADS), *(cells(result) for result in results)]
    return stage_result("; ".join(learning), table=table, findings=[f"the figure is {folder.name}/{FIGURE}"])


OVEROPTIMIZATION = Pipeline(
    "overoptimization",
    "the true score while a reward model is optimised: best of n, learning, with a KL penalty, by ensembles",
    OveroptimizationSettings,
    overoptimization_stages,
)
