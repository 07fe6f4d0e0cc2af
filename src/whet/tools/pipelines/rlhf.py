"""RLHF: imitate what was chosen, learn a reward from the pairs, optimise it; several ways to do so at equal cost.

Ouyang et al. 2022 (arXiv 2203.02155). The policy, its reward model and the ways of the third stage see one half of the
pairs; a judge, which only measures, sees the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from whet.objective.presets import PLAIN_GROUP_METHOD, PRESETS
from whet.objective.presets.preference import PAIR_PRESETS
from whet.record.log import read_metrics
from whet.record.text import count_of, memory_text, number, percent
from whet.reward.sections import RewardPartSection, RewardSection
from whet.settings.bounds import MOST_SAMPLES, MOST_STEPS
from whet.settings.sections import Table
from whet.tools.pipelines.compute import SELECTION, Passes, choices_within, preference_passes, rl_passes, steps_within
from whet.tools.pipelines.judged_policies import (
    JUDGE,
    JUDGED,
    REWARD_MODEL,
    PolicyMeasures,
    length_slope,
    mean_sequence,
    measures,
    rate_cell,
    rate_text,
    sample_pairs,
    selected_measures,
)
from whet.tools.pipelines.library.trainings import trained_result
from whet.tools.pipelines.preference_stages import (
    CHOSEN,
    JUDGE_SEED,
    OTHER_HALF,
    OWN,
    PROMPTS,
    RANKER,
    Done,
    PairSettings,
    check_pairs,
    depends_on,
    first_model,
    judge_completions,
    judged_cost,
    newest,
    pairs_stage,
    reward_model_config,
    reward_model_stage,
)
from whet.tools.pipelines.settings import TRAIN_KEYS, Pipeline
from whet.tools.pipelines.stages import Stage, StageCost, StagePlan, no_inputs, read_json_lines, stage_result
from whet.tools.pipelines.training import RUN, check_training, steps_for, train_run, trained_model, training_config
from whet.training.config import SUPERVISED, PolicyConfig, PreferenceConfig, config_kind
from whet.types import WhetError, did_you_mean

SELECT = "best_of_n"  # no training: the reward model chooses among n completions of the first stage's policy
START = "sft"
JUDGED_START = f"{START}-judged"
SCORERS = ("reward-model", "judge-model")
WITH_CRITIC = next(name for name, each in PRESETS.items() if {"value", "ref_logp"} <= each.objective.needs())
WAYS = (WITH_CRITIC, next(iter(PAIR_PRESETS)), PLAIN_GROUP_METHOD, SELECT)
COLUMNS = {
    "win_rate": "win rate by the judge",
    "win_rate_same_length": "at equal length",
    "win_rate_reward_model": "by the reward model",
}
SAMPLES = 4  # completions of each policy that the page shows


def _listed(value: Any) -> Any:
    return tuple(each.strip() for each in value.split(",") if each.strip()) if isinstance(value, str) else value


class RLHFSettings(PairSettings):
    """Imitation, a reward model, and the ways to optimise it."""

    compare: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        WAYS,
        min_length=1,
        description=f"ways of the third stage: methods of `whet algorithms` that learn from a reward or from pairs, "
        f"and {SELECT}, which trains nothing",
    )
    steps: int = Field(
        100, ge=1, le=MOST_STEPS, description="of the first method in compare; the others get as many as cost the same"
    )
    most_n: int = Field(
        64,
        ge=1,
        le=MOST_SAMPLES,
        description=f"{SELECT}: at most this n; less where the budget is spent on the judged prompts before",
    )
    most_epochs: float = Field(
        2.0,
        ge=0,
        le=1000,
        description="passes over the pairs that a method which learns from pairs makes at most, though it then spends "
        "less than the budget; 0: as many as the budget pays",
    )
    sft: Table = Field({}, description=f"of the imitation of chosen completions: {TRAIN_KEYS}")
    sft_epochs: float = Field(
        1.0, ge=0, le=1000, description="passes over the chosen completions; 0: the policy is a good one already"
    )
    train: Table = Field({}, description=f"by method of compare, of its training: {TRAIN_KEYS}")

    small_run: ClassVar[Mapping[str, Any]] = {
        "prompts": 1024,
        "completions": 4,
        "steps": 12,
        "most_n": 16,
        "sft_epochs": 0.5,
        "sampling": {"max_new_tokens": 64},
        "sft": {"batch": {"rows_per_step": 32}},
        "reward_model": {"batch": {"rows_per_step": 32}},
        "judged_prompts": 80,
    }

    def idle(self) -> dict[str, str]:
        idle = super().idle()
        if SELECT not in self.compare:
            idle["most_n"] = f"has no effect: {SELECT} is not in compare; drop it"
        if not self.sft_epochs:
            idle["sft"] = "has no effect: sft_epochs is 0; drop it"
        return idle


def rlhf_stages(settings: RLHFSettings) -> list[Stage]:
    check_pairs(settings)
    check_ways(settings)
    memory = memory_of_models(settings)
    stages = [pairs_stage(settings)]
    if settings.sft_epochs:
        stages.append(_sft_stage(settings))
    stages += [
        reward_model_stage(
            settings,
            "reward-model",
            f"{RANKER} on the policy's half of the pairs; starts from {_start_words(settings)}",
            OWN,
            lambda done: start_model(settings, done),
            settings.seed,
            _start_reads(settings),
        ),
        reward_model_stage(
            settings,
            "judge-model",
            f"{RANKER} on the other half and with another seed; nothing is trained against it",
            OTHER_HALF,
            lambda done: settings.model.name,
            settings.seed + JUDGE_SEED,
        ),
        _start_stage(settings),
    ]
    for place, way in enumerate(settings.compare, 1):
        if way == SELECT:
            stages.append(_select_stage(settings, place))
            continue
        stages += [_train_stage(settings, way, memory.get(way, "")), _judge_stage(settings, way, place)]
    return [*stages, _compare_stage(settings)]


def check_ways(settings: RLHFSettings) -> None:
    """Refuse a way that could not work, before the first stage."""
    known = (*PRESETS, *PAIR_PRESETS, SELECT)
    for way in settings.compare:
        if way not in known or (way != SELECT and config_kind(way) not in (PolicyConfig, PreferenceConfig)):
            raise WhetError(
                f"compare: {way!r} learns neither from a reward nor from pairs{did_you_mean(way, known)}; give methods "
                f"of `whet algorithms`, or {SELECT}"
            )
        if settings.compare.count(way) > 1:
            raise WhetError(f"compare names {way} twice; name it once")
    for name in settings.train:
        if name not in settings.compare or name == SELECT:
            trained = ", ".join(way for way in settings.compare if way != SELECT) or "none"
            raise WhetError(f"train.{name}: no method of compare is called that; its methods: {trained}")
    if settings.sft_epochs:
        check_training(SUPERVISED, _sft_config(settings, "rows.jsonl", 1), "sft")
    check_training(
        RANKER, reward_model_config(settings, settings.model.name, "p.jsonl", "h.jsonl", 1, 0), "reward_model"
    )
    for way in settings.compare:
        if way != SELECT:
            config = _checked(settings, way)
            if isinstance(config, PreferenceConfig) and (config.preference.online or config.preference.labels):
                raise WhetError(f"train.{way}.preference: it learns from the pairs; drop online and labels")


def _checked(settings: RLHFSettings, way: str) -> Any:
    return check_training(way, _way_config(settings, way, settings.model.name, "pairs", "model", 1), f"train.{way}")


def _start_words(settings: RLHFSettings) -> str:
    return "the imitating policy" if settings.sft_epochs else "the first policy"


def start_model(settings: RLHFSettings, done: Done) -> str:
    """The policy that the third stage starts from, is tied to and is compared with."""
    return trained_model(done[START]) if settings.sft_epochs else settings.model.name


def _start_reads(settings: RLHFSettings) -> tuple[str, ...]:
    return (START,) if settings.sft_epochs else ()


def _sft_config(settings: RLHFSettings, rows: str, steps: int) -> dict[str, Any]:
    own = {"data": {"source": rows}, "eval": {"prompts": 0}, "steps": steps}
    return training_config(settings, settings.model.name, own, settings.sft, "sft")


def _sft_stage(settings: RLHFSettings) -> Stage:
    def work(folder: Path, done: Done) -> Mapping[str, Any]:
        rows = str((done["pairs"].folder / CHOSEN).resolve())
        config = check_training(SUPERVISED, _sft_config(settings, rows, 1), "sft")
        steps = steps_for(done["pairs"].result["counts"]["own_pairs"], settings.sft_epochs, config.batch.rows_per_step)
        train_run(folder, SUPERVISED, _sft_config(settings, rows, steps))
        return trained_result(folder, steps=steps)

    about = f"{SUPERVISED} on the chosen completions of its half, {settings.sft_epochs:g} epochs"
    cost = StageCost(note=f"as many updates as {settings.sft_epochs:g} passes over its half of the pairs take")
    return Stage(
        START,
        about,
        work,
        depends_on(settings, "sft", "sft_epochs"),
        reads=("pairs",),
        inputs=first_model(settings),
        plan=StagePlan({"rows": CHOSEN, "start": settings.model.name}, "model", cost),
    )


def _way_config(
    settings: RLHFSettings, way: str, model: str, rows: str, reward_model: str, steps: int
) -> dict[str, Any]:
    """The config of a training of the third stage; `rows` are pairs or prompts."""
    asked, section = dict(settings.train.get(way) or {}), f"train.{way}"
    own: dict[str, Any] = {"data": {"source": rows}, "steps": steps}
    if config_kind(way) is PreferenceConfig:
        return training_config(settings, model, own, asked, section)
    learned = RewardPartSection(reward="learned", settings={"folder": reward_model})
    own["reward"] = RewardSection(parts=(learned,)).model_dump(mode="json", exclude_defaults=True)
    own["sampling"], own["eval"] = settings.sampling.model_dump(), {"prompts": 0, "every": 0}
    if way_trains_critic(way, asked):
        # a critic that can tell good completions from the first step on, as in the paper
        asked = {**asked, "critic": {"start": reward_model, **dict(asked.get("critic") or {})}}
    return training_config(settings, model, own, asked, section)


def way_trains_critic(way: str, asked: Mapping[str, Any]) -> bool:
    is_shared = (asked.get("critic") or {}).get("trunk") == "shared"
    return "value" in PRESETS[way].objective.needs() and not is_shared


def way_passes(config: Any) -> Passes:
    """How often a sequence of this training passes through a model."""
    from whet.tools.planner.from_config import objective_needs

    needs = objective_needs(config)
    if isinstance(config, PreferenceConfig):
        return preference_passes(reference="ref_logp" in needs)
    return rl_passes(
        reference="ref_logp" in needs,
        critic="value" in needs,
        reward_model=True,
        updates=config.batch.updates_per_step * config.batch.epochs_per_batch,
        epochs=config.batch.epochs_per_batch,
        shared_trunk=config.trains_critic() and config.critic.trunk == "shared",
    )


def memory_of_models(settings: RLHFSettings) -> dict[str, str]:
    """What each model of each training keeps in memory, in words; nothing for a model whose shape cannot be told."""
    from whet.model.load import device_choice
    from whet.tools.planner.from_config import device_plan, this_device

    room = this_device(device_choice(settings.model.device))
    found = {}
    for way in settings.compare:
        if way == SELECT:
            continue
        name = settings.model.name  # a reward model has the policy's shape
        config = check_training(way, _way_config(settings, way, name, "rows", name, 1), f"train.{way}")
        plan = device_plan(config, room, 1, 1)
        if plan is None:
            continue
        sizes: dict[str, float] = {}
        for line in plan.memory.lines:
            name = line.name.partition(":")[0].partition(" (")[0]
            if name in ("policy", "reference", "critic", "reward model") and "activations" not in line.name:
                sizes[name] = sizes.get(name, 0.0) + line.bytes
        found[way] = ", ".join(f"{name} {memory_text(size)}" for name, size in sizes.items())
    return found


def _start_stage(settings: RLHFSettings) -> Stage:
    def work(folder: Path, done: Done) -> Mapping[str, Any]:
        model = start_model(settings, done)
        rows = judge_completions(settings, folder, done, model, model, settings.judged_completions, 0, _judges(done))
        prompt, completion = mean_sequence(rows)
        found = measures(rows, rows, 0.0)
        return stage_result(
            f"{number(completion)} tokens per completion, {percent(found.truncated)} cut off",
            found.metrics(),
            {"truncated_completions": sum(not each for row in rows for each in row["finished"])},
            slope=length_slope(rows),
            measured=found.json(),
            sequence=prompt + completion,
            prompt=prompt,
            pair_tokens=_pair_tokens(settings, done),
            eval_prompts=len(rows),
        )

    return Stage(
        JUDGED_START,
        f"{_start_words(settings)} answers the held-out prompts: what every way is compared with",
        work,
        depends_on(settings, "sampling", "eval", "judged_completions"),
        (START, 0),
        reads=("pairs", *_start_reads(settings), *SCORERS),
        inputs=no_inputs if settings.sft_epochs else first_model(settings),
        plan=StagePlan(
            {"policy": _start_label(settings)}, "metrics", judged_cost(settings, settings.judged_completions)
        ),
    )


def _start_label(settings: RLHFSettings) -> str:
    return START if settings.sft_epochs else settings.model.name


def _judges(done: Done) -> dict[str, str]:
    return {REWARD_MODEL: newest(done["reward-model"]), JUDGE: newest(done["judge-model"])}


def _pair_tokens(settings: RLHFSettings, done: Done) -> float:
    """Tokens of a pair of the policy's half, its prompt counted with each completion."""
    from whet.data.families import completion_family
    from whet.tools.pipelines.evaluation import evaluation_config
    from whet.tools.pipelines.pairs import row_prompt
    from whet.training.assembly.runtime import load_runtime

    tokenizer = load_runtime(evaluation_config(settings, start_model(settings, done))).loaded.tokenizer
    rows = read_json_lines(done["pairs"].folder / OWN)
    families = [completion_family(tokenizer, row_prompt(row), (row["chosen"], row["rejected"])) for row in rows]
    return fmean(sum(len(each.tokens) for each in family) for family in families)


def budget_of(settings: RLHFSettings, done: Done) -> dict[str, Any]:
    """`spending`, once the start policy's completions are known."""
    start, counts = done[JUDGED_START].result, done["pairs"].result["counts"]
    return spending(settings, start["sequence"], start["pair_tokens"], counts["own_pairs"], start["eval_prompts"])


def budget_settings(settings: RLHFSettings, way: str) -> dict[str, Any]:
    """What the number of steps of a way depends on: itself, and the method that sets the budget."""
    first = next((each for each in settings.compare if each != SELECT), "")
    trained = {each: settings.train.get(each) for each in (way, first)}
    return {
        "way": way,
        "first": first,
        "train": trained,
        **depends_on(settings, "steps", "most_n", "most_epochs", "sampling"),
    }


def spending(settings: RLHFSettings, sequence: float, pair: float, num_pairs: int, prompts: int) -> dict[str, Any]:
    """The budget, set by the steps of the first method, and what each other way gets for it.

    `sequence` and `pair` are mean tokens of the start policy's completions and of the pairs, prompts included.
    """
    costs = {way: _step_cost(settings, way, sequence, pair) for way in settings.compare if way != SELECT}
    first = next(iter(costs), None)
    budget = settings.steps * costs[first] if first else settings.most_n * prompts * sequence * SELECTION.cost
    steps = {way: settings.steps if way == first else steps_within(budget, cost) for way, cost in costs.items()}
    for way in costs:
        config = _checked(settings, way)
        if isinstance(config, PreferenceConfig) and settings.most_epochs and way != first:
            steps[way] = min(steps[way], steps_for(num_pairs, settings.most_epochs, config.batch.rows_per_step))
    if SELECT in settings.compare:
        steps[SELECT] = choices_within(budget, prompts, sequence, settings.most_n)
    return {"budget": budget, "steps": {way: steps[way] for way in settings.compare}}


def _step_cost(settings: RLHFSettings, way: str, sequence: float, pair: float) -> float:
    config = _checked(settings, way)
    if isinstance(config, PreferenceConfig):
        return way_passes(config).cost * config.batch.rows_per_step * pair
    return way_passes(config).cost * config.batch.prompts_per_step * config.batch.group_size * sequence


def _train_stage(settings: RLHFSettings, way: str, memory: str) -> Stage:
    learns_pairs = config_kind(way) is PreferenceConfig

    def work(folder: Path, done: Done) -> Mapping[str, Any]:
        start, rows = done[JUDGED_START].result, done["pairs"].folder / (OWN if learns_pairs else PROMPTS)
        plan, scorer = budget_of(settings, done), newest(done["reward-model"])
        steps = int(plan["steps"][way])
        config = _way_config(settings, way, start_model(settings, done), str(rows.resolve()), scorer, steps)
        train_run(folder, way, config)
        checked = check_training(way, config, f"train.{way}")
        passes = way_passes(checked)
        if learns_pairs:
            tokens = steps * checked.batch.rows_per_step * start["pair_tokens"]
        else:
            counts = [line["counts"] for line in read_metrics(folder / RUN) if "metrics" in line]
            sampled = sum(each["tokens"] for each in counts)
            tokens = sampled + start["prompt"] * sum(each["samples"] for each in counts)
        spent = passes.cost * tokens
        result = trained_result(folder, spent=spent, steps=steps)
        share = percent(spent / plan["budget"])
        return {**result, "summary": f"{result['summary']}; spent {share} of the budget ({passes} per token)"}

    on = "its half of the pairs" if learns_pairs else "the reward model, on the prompts of its half"
    about = f"{way} on {on}; starts from and is tied to {_start_words(settings)}"
    about += f"; weights, gradients and moments: {memory}" if memory else ""
    reads = ("pairs", *_start_reads(settings), "reward-model", JUDGED_START)
    inputs = {"rows": OWN if learns_pairs else PROMPTS, "start": _start_label(settings)}
    if not learns_pairs:
        inputs["reward"] = "reward-model"
    return Stage(
        f"{way}-train",
        about,
        work,
        budget_settings(settings, way),
        reads=reads,
        inputs=no_inputs if settings.sft_epochs else first_model(settings),
        plan=StagePlan(inputs, "model", _train_cost(settings, way, memory)),
    )


def _train_cost(settings: RLHFSettings, way: str, memory: str) -> StageCost:
    """Known before for the method that sets the budget; the others depend on how long completions are."""
    first = next(each for each in settings.compare if each != SELECT)
    notes = [f"weights, gradients and moments of {memory}"] if memory else []
    if way != first:
        return StageCost(note="; ".join([f"as many steps as cost what {settings.steps} of {first} do", *notes]))
    config = _checked(settings, way)
    if isinstance(config, PreferenceConfig):
        return StageCost(settings.steps, settings.steps * config.batch.rows_per_step, note="; ".join(notes))
    batch = config.batch
    count = settings.steps * batch.prompts_per_step * batch.group_size
    updates = settings.steps * batch.updates_per_step * batch.epochs_per_batch
    return StageCost(updates, count, count, count * settings.sampling.max_new_tokens, note="; ".join(notes))


def _judge_stage(settings: RLHFSettings, way: str, place: int) -> Stage:
    def work(folder: Path, done: Done) -> Mapping[str, Any]:
        model, start = trained_model(done[f"{way}-train"]), start_model(settings, done)
        count = settings.judged_completions
        rows = judge_completions(settings, folder, done, model, start, count, place, _judges(done))
        return _judged_result(measures(rows, _start_rows(done), _slope(done)), rows)

    about = f"the policy of {way} answers the held-out prompts, and is judged against {_start_words(settings)}"
    return Stage(
        f"{way}-judged",
        about,
        work,
        depends_on(settings, "sampling", "eval", "judged_completions"),
        (way, 1),
        reads=("pairs", *_start_reads(settings), *SCORERS, JUDGED_START, f"{way}-train"),
        plan=StagePlan({"policy": f"{way}-train"}, "metrics", judged_cost(settings, settings.judged_completions)),
    )


def _select_stage(settings: RLHFSettings, place: int) -> Stage:
    def work(folder: Path, done: Done) -> Mapping[str, Any]:
        model, start = start_model(settings, done), done[JUDGED_START]
        n = int(budget_of(settings, done)["steps"][SELECT])
        rows = judge_completions(settings, folder, done, model, model, n, place, _judges(done))
        found = selected_measures(rows, _start_rows(done), _slope(done), n)
        spent = n * len(rows) * start.result["sequence"] * SELECTION.cost
        curve = {}
        size = 1
        while size <= n:
            one = selected_measures(rows, _start_rows(done), _slope(done), size)
            curve[str(size)] = one.json()
            size *= 2
        return {**_judged_result(found, rows), "spent": spent, "n": n, "curve": curve}

    about = f"{_start_words(settings)} writes n completions to each held-out prompt; the reward model chooses"
    return Stage(
        f"{SELECT}-judged",
        about,
        work,
        {**budget_settings(settings, SELECT), **depends_on(settings, "eval")},
        (SELECT, 1),
        reads=("pairs", *_start_reads(settings), *SCORERS, JUDGED_START),
        plan=StagePlan({"policy": _start_label(settings)}, "metrics", judged_cost(settings, settings.most_n)),
    )


def _judged_result(found: PolicyMeasures, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    words = [
        f"win rate {rate_text(found.win_rate)} by the judge",
        f"{rate_text(found.win_rate_reward_model)} by the reward model",
        f"KL {number(found.kl.value if found.kl else None)}",
        f"{number(found.tokens)} tokens ({number(found.start_tokens)} before)",
    ]
    return stage_result(", ".join(words), found.metrics(), eval_prompts=len(rows), measured=found.json())


def _start_rows(done: Done) -> list[dict[str, Any]]:
    return read_json_lines(done[JUDGED_START].folder / JUDGED)


def _slope(done: Done) -> float:
    return float(done[JUDGED_START].result["slope"])


def _compare_stage(settings: RLHFSettings) -> Stage:
    def work(folder: Path, done: Done) -> Mapping[str, Any]:
        return compared(settings, done)

    about = "all ways side by side: win rates, KL, length, what each spent"
    measured = [f"{way}-judged" for way in settings.compare]
    trained = [f"{way}-train" for way in settings.compare if way != SELECT]
    return Stage(
        "compare",
        about,
        work,
        {"compare": list(settings.compare)},
        reads=("pairs", JUDGED_START, *trained, *measured),
        plan=StagePlan({"judged": ", ".join(measured)}, "metrics"),
    )


def compared(settings: RLHFSettings, done: Done) -> dict[str, Any]:
    """The table, what it says in words, and completions to read."""
    start, plan = done[JUDGED_START].result, budget_of(settings, done)
    columns = {**COLUMNS, **({"accuracy": "accuracy"} if start["measured"]["accuracy"] else {})}
    table = [["", "spent", *columns.values(), "KL", "tokens", "cut off"]]
    table.append([START, "", *_cells(start["measured"], columns)])
    words, shown = [], []
    for way in settings.compare:
        result = done[f"{way}-judged"].result
        spent = result["spent"] if way == SELECT else done[f"{way}-train"].result["spent"]
        name = f"{way} (n = {result['n']})" if way == SELECT else way
        table.append([name, percent(spent / plan["budget"]), *_cells(result["measured"], columns)])
        words += optimised_words(name, result["measured"], start["measured"])
        if way != SELECT:
            rows = read_json_lines(done[f"{way}-judged"].folder / JUDGED)
            shown += [{"way": way, **each} for each in sample_pairs(rows, _start_rows(done), SAMPLES)]
    rates = {way: done[f"{way}-judged"].result["measured"]["win_rate"] for way in settings.compare}
    ranked = sorted(rates, key=lambda way: -(rates[way] or {"value": 0})["value"])
    summary = f"best by the judge: {ranked[0]}, {rate_cell(rates[ranked[0]])}"
    right = {way: done[f"{way}-judged"].result["measured"]["accuracy"] for way in settings.compare}
    if all(right.values()):
        best = max(right, key=lambda way: float(right[way]["value"]))
        summary += f"; by accuracy: {best}, {rate_cell(right[best])}"
    summary += f"; {count_of(len(words), 'warning')}" if words else "; no sign of over-optimisation"
    summary += f"; the budget is {plan['budget']:,.0f} forward tokens"
    return stage_result(summary, table=table, findings=words, samples=shown, ranked=ranked, **plan)


def _cells(measured: Mapping[str, Any], columns: Mapping[str, str]) -> list[str]:
    rates = [rate_cell(measured[key]) for key in columns]
    return [*rates, number(measured["kl"]["value"]), number(measured["tokens"]), percent(measured["truncated"])]


def optimised_words(name: str, measured: Mapping[str, Any], start: Mapping[str, Any]) -> list[str]:
    """What a win rate alone would hide: over-optimisation, length, and a truth that fell."""
    judge, own, even = (measured[key] for key in ("win_rate", "win_rate_reward_model", "win_rate_same_length"))
    found = []
    if judge and own and own["low"] > judge["high"]:
        found.append(f"{name}: over-optimised, its reward model sees {rate_cell(own)} and the judge {rate_cell(judge)}")
    if judge and even and judge["low"] > 0.5 >= even["low"]:
        found.append(f"{name}: at equal length its win rate is {rate_cell(even)}: length may be the gain")
    if judge and judge["high"] < 0.5:
        found.append(f"{name}: worse than where it started, {rate_cell(judge)}")
    before, after = start.get("accuracy"), measured.get("accuracy")
    if before and after and after["high"] < before["low"]:
        found.append(f"{name}: accuracy fell from {rate_cell(before)} to {rate_cell(after)}, whatever the judges say")
    return found


RLHF = Pipeline(
    "rlhf",
    "imitation of chosen completions, a reward model, and the policy optimised against it; several ways at equal cost",
    RLHFSettings,
    rlhf_stages,
)
