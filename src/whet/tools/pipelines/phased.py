"""Two phases: a policy learns preferences, then verifiable rewards on top, or the other way round.

After each phase both are measured, so that what the second takes away from the first is a number with an interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

from pydantic import Field

from whet.objective.presets import PLAIN_GROUP_METHOD, PRESETS
from whet.objective.presets.preference import PAIR_PRESETS
from whet.record.metrics.intervals import share_interval
from whet.record.metrics.significance import shares_apart
from whet.record.metrics.win_rate import WinRate, change_with_interval, mean_with_interval, win_shares
from whet.record.text import headline, number, percent
from whet.reward.sections import RewardSection
from whet.settings.bounds import MOST_STEPS
from whet.settings.layers import merged
from whet.settings.sections import Table
from whet.tools.pipelines.evaluation import evaluate_model, evaluation_config, has_eval
from whet.tools.pipelines.generation import ModelSampler, write_rows
from whet.tools.pipelines.judged_policies import (
    JUDGE,
    JUDGED,
    MICRO_BATCH_TOKENS,
    length_slope,
    measures,
    rate_cell,
    rate_text,
    sample_pairs,
    with_known_scores,
)
from whet.tools.pipelines.library.entry import StageInput
from whet.tools.pipelines.library.trainings import rl_inputs, trained_result
from whet.tools.pipelines.preference_stages import (
    HELD_OUT,
    JUDGE_SEED,
    OTHER_HALF,
    OWN,
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
from whet.tools.pipelines.training import check_training, steps_for, train_run, trained_model, training_config
from whet.training.config import PolicyConfig, PreferenceConfig, config_kind
from whet.types import WhetError

PAIR_WINS = "pair_wins.jsonl"
ALIGN, LEARN = "preference", "rl"
UNGUARDED, REPLAY = "rl-unguarded", "replay"
NOISE = 2.0  # standard errors
SAMPLES = 6


class PhasedSettings(PairSettings):
    """Preferences and verifiable rewards, one after the other."""

    order: Literal["preference_first", "rl_first"] = Field("preference_first", description="which phase comes first")
    method: str = Field(next(iter(PAIR_PRESETS)), description="of the phase on pairs: a preference method")
    epochs: float = Field(2.0, ge=1e-6, le=1000, description="passes over the pairs of its half")
    preference: Table = Field({}, description=f"of the phase on pairs: {TRAIN_KEYS}")
    rl_method: str = Field(PLAIN_GROUP_METHOD, description="of the phase on rewards: a policy method with a KL term")
    steps: int = Field(100, ge=1, le=MOST_STEPS, description="of the phase on rewards")
    reward: RewardSection = Field(
        RewardSection(), description="of the phase on rewards, on the prompts of data; empty: the task's own"
    )
    train: Table = Field({}, description=f"of the phase on rewards: {TRAIN_KEYS}")
    guard_kl: float = Field(
        0.04, ge=0, le=1000, description="KL penalty to the policy of the first phase while rewards are learnt; 0: none"
    )
    compare_unguarded: bool = Field(True, description="learn rewards also without the guard, to see what it does")
    replay_epochs: float = Field(
        0.0, ge=0, le=1000, description="passes over the pairs again after the phase on rewards; 0: none"
    )
    tolerance: float = Field(0.05, ge=0, lt=1, description="of the first phase's metric that may be lost")

    small_run: ClassVar[Mapping[str, Any]] = {
        "pairs": "task:lists",
        "prompts": 1024,
        "steps": 15,
        "sampling": {"max_new_tokens": 64},
        "preference": {"batch": {"rows_per_step": 32}},
        "reward_model": {"batch": {"rows_per_step": 32}},
        "judged_prompts": 100,
    }

    @property
    def is_guarded(self) -> bool:
        return self.guard_kl > 0 and self.order == "preference_first"

    def idle(self) -> dict[str, str]:
        idle = super().idle()
        if self.order == "rl_first":
            reason = "has no effect: order=rl_first ends with the phase on pairs, which has its own reference; drop it"
            idle |= dict.fromkeys(("guard_kl", "compare_unguarded", "replay_epochs"), reason)
        elif not self.guard_kl:
            idle["compare_unguarded"] = "has no effect: guard_kl is 0; drop it"
        return idle


@dataclass(frozen=True)
class Phase:
    """One training: what it does, and the one that it starts from."""

    name: str
    kind: str  # ALIGN or LEARN
    start: str = ""  # the phase before; empty: the first policy
    guard: float = 0.0


def phases(settings: PhasedSettings) -> list[Phase]:
    if settings.order == "rl_first":
        return [Phase(LEARN, LEARN), Phase(ALIGN, ALIGN, LEARN)]
    found = [Phase(ALIGN, ALIGN), Phase(LEARN, LEARN, ALIGN, settings.guard_kl)]
    if settings.replay_epochs:
        found.append(Phase(REPLAY, ALIGN, LEARN))
    if settings.is_guarded and settings.compare_unguarded:
        found.append(Phase(UNGUARDED, LEARN, ALIGN))
    return found


def phased_stages(settings: PhasedSettings) -> list[Stage]:
    check_pairs(settings)
    check_phases(settings)
    stages = [
        pairs_stage(settings),
        reward_model_stage(
            settings,
            "judge-model",
            f"{RANKER} on the half of the pairs that no policy learns from; nothing is trained against it",
            OTHER_HALF,
            lambda done: settings.model.name,
            settings.seed + JUDGE_SEED,
        ),
        _measure_stage(settings, "", 0),
    ]
    for place, phase in enumerate(phases(settings), 1):
        stages += [_phase_stage(settings, phase), _measure_stage(settings, phase.name, place)]
    return [*stages, _check_stage(settings)]


def check_phases(settings: PhasedSettings) -> None:
    """Refuse phases that could not work, before the first stage."""
    if config_kind(settings.method) is not PreferenceConfig:
        raise WhetError(f"method is {settings.method!r}, which does not learn from pairs; see `whet algorithms`")
    if config_kind(settings.rl_method) is not PolicyConfig:
        raise WhetError(f"rl_method is {settings.rl_method!r}, which draws no completions; see `whet algorithms`")
    if not has_eval(settings):
        raise WhetError(
            "phased measures what rewards teach on held-out prompts: give eval.source and eval.reward.parts, or a task "
            "as data"
        )
    for phase in phases(settings):
        if phase.kind == ALIGN:
            config = check_training(settings.method, _pair_config(settings, "model", "pairs.jsonl", 1), "preference")
            if config.preference.online or config.preference.labels:
                raise WhetError("preference.preference: it learns from the pairs; drop online and labels")
        else:
            check_training(settings.rl_method, _rl_config(settings, settings.model.name, phase.guard))
    check_training(
        RANKER, reward_model_config(settings, settings.model.name, "p.jsonl", "h.jsonl", 1, 0), "reward_model"
    )


def _pair_config(settings: PhasedSettings, model: str, pairs: str, steps: int) -> dict[str, Any]:
    own = {"data": {"source": pairs}, "steps": steps}
    return training_config(settings, model, own, settings.preference, "preference")


def _rl_config(settings: PhasedSettings, model: str, guard: float) -> dict[str, Any]:
    """The guard is the coefficient of the KL to the policy that the phase starts from."""
    if isinstance(settings.train.get("objective"), Mapping) and "kl" in settings.train["objective"]:
        raise WhetError("train.objective.kl is set by the pipeline; set guard_kl instead")
    own_kl = PRESETS[settings.rl_method].objective.kl.name
    kind = own_kl if own_kl != "none" else "k3"
    kl: dict[str, Any] = {"kind": kind, "beta": guard} if guard else {"kind": "none"}
    own: dict[str, Any] = {
        "data": settings.data.model_dump(exclude_defaults=True),
        "reward": settings.reward.model_dump(mode="json", exclude_defaults=True),
        "sampling": settings.sampling.model_dump(),
        "sandbox": settings.sandbox.model_dump(),
        "eval": {"prompts": 0, "every": 0},
        "steps": settings.steps,
    }
    asked = merged(settings.train, {"objective": {"kl": kl}})
    return training_config(settings, model, own, asked, "train")


def _start(settings: PhasedSettings, phase: Phase, done: Done) -> str:
    return trained_model(done[phase.start]) if phase.start else settings.model.name


def _phase_stage(settings: PhasedSettings, phase: Phase) -> Stage:
    def align(folder: Path, done: Done) -> Mapping[str, Any]:
        rows, start = str((done["pairs"].folder / OWN).resolve()), _start(settings, phase, done)
        config = check_training(settings.method, _pair_config(settings, start, rows, 1), "preference")
        epochs = settings.replay_epochs if phase.name == REPLAY else settings.epochs
        count = done["pairs"].result["counts"]["own_pairs"]
        steps = steps_for(count, epochs, config.batch.rows_per_step)
        train_run(folder, settings.method, _pair_config(settings, start, rows, steps))
        return trained_result(folder, steps=steps)

    def learn(folder: Path, done: Done) -> Mapping[str, Any]:
        train_run(folder, settings.rl_method, _rl_config(settings, _start(settings, phase, done), phase.guard))
        return trained_result(folder, steps=settings.steps)

    start = f"the policy of {phase.start}" if phase.start else "the first policy"
    if phase.kind == ALIGN:
        about = f"{settings.method} on its half of the pairs; starts from {start}, which is its reference"
        epochs = settings.replay_epochs if phase.name == REPLAY else settings.epochs
        cost = StageCost(note=f"as many updates as {epochs:g} passes over its half of the pairs take")
        return Stage(
            phase.name,
            about,
            align,
            {"epochs": epochs, **depends_on(settings, "method", "preference")},
            reads=("pairs", *_reads(phase)),
            inputs=no_inputs if phase.start else first_model(settings),
            plan=StagePlan({"pairs": OWN, "start": phase.start or settings.model.name}, "model", cost),
        )
    tied = f"tied to it by a KL of {phase.guard:g}" if phase.guard else "not tied to it"
    about = f"{settings.rl_method} on {settings.data.source}, {settings.steps} steps; starts from {start}, {tied}"
    keys = ("rl_method", "steps", "data", "reward", "sampling", "train")
    config = check_training(settings.rl_method, _rl_config(settings, settings.model.name, phase.guard))
    count = settings.steps * config.batch.prompts_per_step * config.batch.group_size
    updates = settings.steps * config.batch.updates_per_step * config.batch.epochs_per_batch
    return Stage(
        phase.name,
        about,
        learn,
        {"guard": phase.guard, **depends_on(settings, *keys)},
        reads=_reads(phase),
        inputs=rl_inputs(
            [StageInput(source=settings.data.source)],
            [] if phase.start else [StageInput(source=settings.model.name)],
            [settings.reward],
        ),
        plan=StagePlan(
            {"prompts": settings.data.source, "start": phase.start or settings.model.name},
            "model",
            StageCost(updates, count, count, count * settings.sampling.max_new_tokens),
        ),
    )


def _reads(phase: Phase) -> tuple[str, ...]:
    return (phase.start,) if phase.start else ()


def _measure_stage(settings: PhasedSettings, name: str, place: int) -> Stage:
    """Both metrics of a policy: preferences and verifiable rewards."""

    def work(folder: Path, done: Done) -> Mapping[str, Any]:
        model = trained_model(done[name]) if name else settings.model.name
        judges = {JUDGE: newest(done["judge-model"])}
        count = settings.judged_completions
        rows = judge_completions(settings, folder, done, model, settings.model.name, count, place, judges)
        wins = pair_wins(settings, model, read_json_lines(done["pairs"].folder / HELD_OUT))
        write_rows(folder / PAIR_WINS, [{"win": win} for win in wins])
        start = rows if not name else read_json_lines(done[stage_name("")].folder / JUDGED)
        found = measures(rows, start, length_slope(start))
        scored = evaluate_model(settings, model)
        task = {each: value for each, value in scored["metrics"].items() if each not in found.metrics()}
        preferred = mean_with_interval(wins)
        metrics = {**task, **found.metrics(), "pair_accuracy": fmean(wins)}
        words = [scored["summary"], f"pair accuracy {rate_text(preferred)}"]
        words += [
            f"win rate {rate_text(found.win_rate)} by the judge, KL {number(found.kl.value if found.kl else None)}"
        ]
        main = headline(scored["metrics"]) or ""
        return stage_result(
            "; ".join(words),
            metrics,
            eval_prompts=scored["eval_prompts"],
            measured={**found.json(), "pair_accuracy": vars(preferred) if preferred else None},
            task_metric=main,
            task_value=scored["metrics"].get(main),
        )

    about = f"the policy {'of ' + name if name else 'to begin with'}: pairs, the judge and the reward"
    keys = ("sampling", "data", "eval", "judged_completions", "judged_prompts")
    evals = [StageInput(source=each) for each in (settings.data.source, settings.eval.source) if each]
    return Stage(
        stage_name(name),
        about,
        work,
        depends_on(settings, *keys),
        (name or "the first policy", place),
        reads=("pairs", "judge-model", *((stage_name(""), name) if name else ())),
        inputs=rl_inputs(evals, [StageInput(source=settings.model.name)], [settings.eval.reward]),
        plan=StagePlan(
            {"policy": name or settings.model.name}, "metrics", judged_cost(settings, settings.judged_completions)
        ),
    )


def stage_name(phase: str) -> str:
    return f"{phase or 'start'}-measured"


def pair_wins(settings: PhasedSettings, model: str, rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Of each held-out pair: does the policy, more than the first one did, prefer the chosen completion? Ties are 1/2.

    (log pi(chosen) - log pi(rejected)) - the same of the first policy > 0: the implicit reward of preference methods.
    """
    if model == settings.model.name:
        return [0.5] * len(rows)
    now, first = (_margins(settings, each, rows) for each in (model, settings.model.name))
    return [0.5 if one == two else float(one > two) for one, two in zip(now, first, strict=True)]


def _margins(settings: PhasedSettings, model: str, rows: Sequence[Mapping[str, Any]]) -> list[float]:
    from whet.data.families import completion_family
    from whet.tools.pipelines.pairs import row_prompt
    from whet.training.completion_logp import families_logp

    runtime = ModelSampler(evaluation_config(settings, model)).runtime
    tokenizer = runtime.loaded.tokenizer
    families = [completion_family(tokenizer, row_prompt(row), (row["chosen"], row["rejected"])) for row in rows]
    logp = families_logp(runtime.policy, families, MICRO_BATCH_TOKENS, packed=True)
    return [float(chosen.double().sum() - rejected.double().sum()) for chosen, rejected in logp]


@dataclass(frozen=True)
class KeptVerdict:
    """Whether a phase kept what the one before it had taught."""

    is_kept: bool
    is_lost: bool
    words: str


def kept_verdict(what: str, before: float, after: float, change: WinRate, tolerance: float) -> KeptVerdict:
    """Kept: the loss is within the tolerance for sure. Lost: it is a loss for sure, and may be beyond the tolerance."""
    words = (
        f"{what} {percent(before)} to {percent(after)}, a change of {100 * change.value:+.1f} points "
        f"({100 * change.low:+.1f} to {100 * change.high:+.1f})"
    )
    if change.low >= -tolerance:
        return KeptVerdict(True, False, f"kept: {words}")
    if change.high < 0:
        return KeptVerdict(False, True, f"LOST: {words}")
    return KeptVerdict(False, False, f"cannot be told: {words}, on {change.prompts}; measure on more")


def _check_stage(settings: PhasedSettings) -> Stage:
    def work(folder: Path, done: Done) -> Mapping[str, Any]:
        return checked(settings, done)

    about = "what each phase left of the one before it, with intervals"
    measured = tuple(stage_name(name) for name in ("", *(phase.name for phase in phases(settings))))
    return Stage(
        "check",
        about,
        work,
        {"tolerance": settings.tolerance, "order": settings.order},
        reads=measured,
        plan=StagePlan({"measured": ", ".join(measured)}, "metrics"),
    )


def checked(settings: PhasedSettings, done: Done) -> dict[str, Any]:
    """The verdict of the second phase over the first, and of what is measured beside it."""
    first, *later = phases(settings)
    table = [["", "pair accuracy", "win rate by the judge", "KL", done[stage_name("")].result["task_metric"]]]
    for name in ("", first.name, *(phase.name for phase in later)):
        result = done[stage_name(name)].result
        measured = result["measured"]
        cells = [rate_cell(measured[key]) for key in ("pair_accuracy", "win_rate")]
        value, count = result["task_value"], result["eval_prompts"]
        low, high = share_interval(value, count)
        task = f"{percent(value)} ({100 * low:.1f} to {100 * high:.1f})"
        table.append([name or "the first policy", *cells, number(measured["kl"]["value"]), task])
    verdicts = {phase.name: _verdicts(settings, first, phase, done) for phase in later}
    words = [f"{name}: {each.words}" for name, found in verdicts.items() for each in found]
    summary = f"what {first.name} taught, after {later[0].name}: "
    summary += "; ".join(each.words for each in verdicts[later[0].name])
    shown = sample_pairs(_rows(done, later[0].name), _rows(done, ""), SAMPLES)
    return stage_result(
        summary, table=table, findings=words, samples=[{"way": later[0].name, **each} for each in shown]
    )


def _verdicts(settings: PhasedSettings, first: Phase, phase: Phase, done: Done) -> list[KeptVerdict]:
    before, after = done[stage_name(first.name)], done[stage_name(phase.name)]
    if first.kind == ALIGN:
        found = []
        wins = [[row["win"] for row in read_json_lines(each.folder / PAIR_WINS)] for each in (before, after)]
        change = change_with_interval(*wins)
        if change is not None:
            found.append(kept_verdict("pair accuracy", fmean(wins[0]), fmean(wins[1]), change, settings.tolerance))
        start = _rows(done, "")
        shares = [_shares(_rows(done, each.name), start) for each in (first, phase)]
        change = change_with_interval(*shares)
        means = [mean_with_interval(each) for each in shares]
        if change is not None and means[0] is not None and means[1] is not None:
            rates = (means[0].value, means[1].value)
            found.append(kept_verdict("win rate by the judge", *rates, change, settings.tolerance))
        return found
    one, two, count = before.result["task_value"], after.result["task_value"], after.result["eval_prompts"]
    error = abs(two - one) / abs(shares_apart(two, one, count)) if two != one else 0.0
    change = WinRate(two - one, two - one - NOISE * error, two - one + NOISE * error, count)
    return [kept_verdict(str(after.result["task_metric"]), one, two, change, settings.tolerance)]


def _rows(done: Done, name: str) -> list[dict[str, Any]]:
    return read_json_lines(done[stage_name(name)].folder / JUDGED)


def _shares(rows: Sequence[dict[str, Any]], start: Sequence[dict[str, Any]]) -> list[float | None]:
    start = with_known_scores(start, start)
    known = with_known_scores(rows, start)
    return win_shares([row[JUDGE] for row in known], [row[JUDGE] for row in start])


PHASED = Pipeline(
    "phased",
    "preferences, then verifiable rewards on top, or the other way round, with a check that the first is not lost",
    PhasedSettings,
    phased_stages,
)
