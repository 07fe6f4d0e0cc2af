"""From the reward section of a config to parts that score: names, templates, defences, the task's own, and judges."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from whet.data.chat import prompt_tokens
from whet.data.sections import DataSection
from whet.data.source import DATA_SOURCE, parse_source
from whet.data.tasks import TASKS
from whet.data.usable import without
from whet.objective import Objective
from whet.protocols import Engine, Reward
from whet.reward.ahead import ScoreAhead
from whet.reward.call import as_reward
from whet.reward.checks import RewardChecks
from whet.reward.combine import ROW_KINDS, Gate, RewardPart, Schedule, check_company, check_parts, in_shares, weights_at
from whet.reward.find import BUILTIN, RETIRED, ROWS, find_reward
from whet.reward.score import Failures, Scorer, Share, judged_ahead
from whet.reward.sections import RewardPartSection, RewardSection, SandboxSection
from whet.reward.templates import defended, format_first, template
from whet.rollout.collect import Score
from whet.threads import in_threads
from whet.training.assembly.episode_runner import adds_own_reward, require_own_reward
from whet.training.config import FROM_PYTHON, Config, EvaluationConfig
from whet.training.distributed.ranks import ALONE, Ranks
from whet.training.distributed.shared_rollout import shared_work
from whet.types import Prompt, Sample, Sampling, WhetError, did_you_mean

if TYPE_CHECKING:
    from whet.reward.code_tests import CodeTests

SANDBOX, CODE_TESTS = "whet.reward.sandbox", "whet.reward.code_tests"  # loaded where a reward runs code
USUAL_ISOLATION = SandboxSection().require
DEFENCES = (*ROWS["defences"], *ROWS["defences.suspicion"])


def build_reward_parts(
    config: Config | EvaluationConfig, wanted: bool, provided: Sequence[RewardPart] | None = None
) -> list[RewardPart]:
    """The config's rewards, its template's, or the task's own; `provided`, made in Python, replace the config's.

    Defences and checks are the same for all of them.
    """
    section, source = config.reward, config.data.parsed_source
    if (section.parts or provided) and section.template:
        raise WhetError("reward.template and reward.parts both name the rewards; give one of them")
    if section.template:
        named = template(section.template)
        if section.format_first:
            named = format_first(named, until=section.format_first)
    elif provided is not None:
        named = tuple(provided)
    elif section.parts:
        named = tuple(_part_of(part) for part in section.parts)
    elif config.env.name or config.env.agent:
        require_own_reward(config)
        named = (RewardPart(OWN_REWARD),)
    elif source.is_task:
        names = {task.reward for task in source.tasks()}
        named = (RewardPart(names.pop() if len(names) == 1 else TASK_ANSWER),)
    elif source.is_gym:
        named = (RewardPart("gym_answer"),)
    elif source.benchmark is not None:
        named = (RewardPart(source.benchmark.reward, settings=source.benchmark.settings),)
    elif source.parts and all(parse_source(part).benchmark for part, _ in source.parts):
        forms = [(part, parse_source(part).benchmark) for part, _ in source.parts]
        named = tuple(RewardPart(form.reward, settings=form.settings, rows=part) for part, form in forms if form)
    elif wanted:
        raise WhetError(
            "no reward: data from a file or the hub needs one; give one: exact_answer, math_answer, ..., or "
            "file.py:function"
        )
    else:
        return []
    paid = [getattr(part.reward, "name", part.reward) for part in named]
    if (section.parts or provided) and OWN_REWARD not in paid and adds_own_reward(config):
        named = (*named, RewardPart(OWN_REWARD))
    if section.format_first and not section.template:
        raise WhetError("reward.format_first changes the weights of a template; give reward.template, or drop it")
    _check_defences(section)
    defences = tuple(dict.fromkeys(RETIRED.get(name, name) for name in section.defences))
    named = defended(named, defences, section.defence_weight, section.defences_as_gates)
    parts = [part.resolved(_find) for part in named]
    check_parts(parts)
    check_company([part.resolved_reward for part in parts if any(part.weights)])
    start_sandbox(parts, config.sandbox.require)
    return parts


TASK_ANSWER = "task_answer"
OWN_REWARD = "environment"  # what the environment pays


def _check_defences(section: RewardSection) -> None:
    """Refuse what is no defence, and settings of defences where there are none: the user believes in them."""
    for name in section.defences:
        if name not in (*DEFENCES, *RETIRED) and ":" not in name:
            raise WhetError(
                f"reward.defences: {name!r} is no defence{did_you_mean(name, DEFENCES, cutoff=0.7)}; there are "
                f"{', '.join(DEFENCES)}; your own: path/to/file.py:function"
            )
    plain = RewardSection()
    for key in ("defence_weight", "defences_as_gates"):
        if not section.defences and getattr(section, key) != getattr(plain, key):
            raise WhetError(f"reward.{key} has no effect without reward.defences; name some, or drop it")
    if section.defences_as_gates and section.defence_weight != plain.defence_weight:
        raise WhetError("reward.defence_weight has no effect on gates; drop it, or reward.defences_as_gates")


def _find(name: str, settings: Mapping[str, Any]) -> Reward:
    return as_reward(task_answer) if name == TASK_ANSWER else find_reward(name, settings)


def _part_of(part: RewardPartSection) -> RewardPart:
    if part.reward.startswith(FROM_PYTHON):
        raise WhetError(
            f"the reward {part.reward.removeprefix(FROM_PYTHON)!r} of this run was given from Python and is in "
            "no file; give another reward"
        )
    if part.cap and len(part.cap) != 2:
        raise WhetError(f"reward {part.reward!r}: cap is {list(part.cap)}; give two numbers, the least and the most")
    if not part.gate and (part.gate_least, part.gate_otherwise) != (1.0, 0.0):
        raise WhetError(
            f"reward {part.reward!r}: gate_least and gate_otherwise have no effect without gate; name a part"
        )
    if isinstance(part.weight, float | int) and part.over == "steps":
        raise WhetError(
            f"reward {part.reward!r}: over='steps' has no effect on a constant weight; give weight points "
            "[step, weight], or drop it"
        )
    weight = part.weight if isinstance(part.weight, float | int) else Schedule(part.weight, part.over)
    return RewardPart(
        reward=part.reward,
        weight=weight,
        gate=Gate(part.gate, part.gate_least, part.gate_otherwise) if part.gate else None,
        cap=(part.cap[0], part.cap[1]) if part.cap else None,
        normalise=part.normalise,
        penalty=part.penalty,
        settings=part.settings,
        rows=part.rows,
    )


def task_answer(prompt: Prompt, completion: str) -> float:
    """The reward of whichever built-in task the prompt comes from."""
    task = TASKS[prompt.id.split("/")[0]]
    return float(BUILTIN[task.reward](prompt, completion))


def bind_judges(parts: Sequence[RewardPart], engine: Engine, tokenizer: Any) -> list[RewardPart]:
    """Judges that name no server ask the engine of the policy; learned rewards are read now: a bad folder is told."""

    def encode(messages: Sequence[Any]) -> tuple[int, ...]:
        return prompt_tokens(tokenizer, Prompt("judge", tuple(dict(message) for message in messages)))

    def settled(reward: Reward) -> Reward:
        judge: Any = reward
        if getattr(judge, "is_read_early", False):
            judge.prepare()
        if not getattr(judge, "needs_ask", False):
            return reward
        from whet.reward.judge.ask import engine_ask

        sampling = Sampling(max_new_tokens=judge.settings.max_new_tokens, temperature=judge.settings.temperature)
        engine_judge: Reward = judge.asking(engine_ask(engine, encode, sampling))
        return engine_judge

    return [replace(part, reward=settled(part.resolved_reward)) for part in parts]


def check_sources(prompts: Sequence[Prompt], parts: Sequence[RewardPart]) -> None:
    """Refuse a reward for the rows of a source that no training row is from."""
    for part in parts:
        if part.rows not in ROW_KINDS and prompts and not any(map(part.scores_row, prompts)):
            known = sorted({str(prompt.meta[DATA_SOURCE]) for prompt in prompts if DATA_SOURCE in prompt.meta})
            raise WhetError(
                f"reward {part.name!r} is for the rows of {part.rows!r}, and none is from there; give one of "
                f"{', '.join((*ROW_KINDS, *known))}"
            )


def scorable_prompts(prompts: Sequence[Prompt], parts: Sequence[RewardPart], data: DataSection) -> Sequence[Prompt]:
    """The prompts that every reward can read: the first other one is an error, or all are left out and counted."""
    if not data.parsed_source.is_stored or not parts:
        return prompts
    from whet.reward.row_check import Unscorable, require_scorable

    refused: dict[int, Unscorable] = {}
    for number, prompt in enumerate(prompts):
        try:
            require_scorable(parts, prompt)
        except Unscorable as error:
            refused[number] = error
    if not refused:
        return prompts
    first, total = next(iter(refused.values())), f"{len(refused)} of {len(prompts)} rows"
    if data.unusable == "stop":
        several = f"; or leave out the {total} that cannot be scored: data.unusable=drop"
        raise WhetError(f"{first}{several if 2 * len(refused) <= len(prompts) else f' ({total})'}")
    if 2 * len(refused) > len(prompts):
        raise WhetError(f"{first}; {total} cannot be scored, and data.unusable=drop leaves out at most half")
    usable = [number for number in range(len(prompts)) if number not in refused]
    return without(prompts, usable, Counter(error.reason for error in refused.values()))


def build_scorer(
    config: Config | EvaluationConfig,
    parts: Sequence[RewardPart],
    failures: Failures | None = None,
    ranks: Ranks = ALONE,
) -> Scorer:
    """Scores as they stand at the end of training. Nothing is normalised: an exam's completions have no company."""
    alone = [replace(part, normalise="off") for part in in_shares(parts, _steps(config))]
    policy, share = failures or failure_policy(config), work_share(ranks)
    return Scorer(alone, config.reward.timeout, policy, share=share, ahead=score_ahead(config, alone, policy, ranks))


def evaluation_parts(parts: Sequence[RewardPart]) -> list[RewardPart]:
    """The parts for an evaluation: a reward that keeps notes of steps has one `apart` for it."""
    rewards = [getattr(part.resolved_reward, "apart", None) for part in parts]
    return [
        part if apart is None else replace(part, reward=apart()) for part, apart in zip(parts, rewards, strict=True)
    ]


def score_ahead(
    config: Config | EvaluationConfig, parts: Sequence[RewardPart], failures: Failures, ranks: Ranks
) -> ScoreAhead[Any] | None:
    """What judges completions while others are written; several ranks share out the work when all are there."""
    return judged_ahead(parts, config.reward.timeout, failures.on_error) if ranks.size == 1 and parts else None


def work_share(ranks: Ranks) -> Share | None:
    """How the ranks share the judging of samples; None: this process judges all."""
    return None if ranks.size == 1 else shared_work(ranks)


def build_scorer_at(
    config: Config, parts: Sequence[RewardPart], failures: Failures, ranks: Ranks = ALONE
) -> Callable[[float], Scorer]:
    """share of the training done -> how completions are scored then."""
    shared = in_shares(parts, _steps(config))
    final = Scorer(
        shared,
        config.reward.timeout,
        failures,
        steps=_steps(config),
        share=work_share(ranks),
        ahead=score_ahead(config, shared, failures, ranks),
    )
    return lambda progress: replace(final, progress=progress)


def part_weights_at(config: Config, parts: Sequence[RewardPart], progress: float) -> dict[str, float]:
    """The weight of each reward part when the given share of the run is done."""
    return weights_at(in_shares(parts, _steps(config)), progress)


def build_checks(config: Config, parts: Sequence[RewardPart]) -> RewardChecks | None:
    """What looks at a sample of the rewarded completions, where the config asks for it."""
    section = config.reward
    default = RewardSection()
    if not section.held_out and not section.frame_check:
        for key in ("check_share", "held_out_settings"):
            if getattr(section, key) != getattr(default, key):
                raise WhetError(f"reward.{key} has no effect without reward.held_out or reward.frame_check; drop it")
        return None
    if section.held_out_settings and not section.held_out:
        raise WhetError("reward.held_out_settings has no effect without reward.held_out; name a reward, or drop it")
    held_out = find_reward(section.held_out, section.held_out_settings) if section.held_out else None
    first = parts[0].resolved_reward
    if held_out is not None and held_out.name == first.name and not section.held_out_settings:
        raise WhetError(
            f"reward.held_out is {section.held_out!r}, which is the first part itself; name a stricter reward"
        )
    return RewardChecks(first, section.check_share, section.timeout, held_out, section.frame_check)


def score_and_check(
    prompts: Sequence[Prompt], samples: Sequence[Sample], *, score: Score, checks: RewardChecks, ranks: Ranks = ALONE
) -> list[Sample]:
    """Scored samples; the checks look at some of them and change none."""
    scored = score(prompts, samples)
    ranks.first(lambda: checks(prompts, scored))
    return scored


def take_notes(
    parts: Sequence[RewardPart],
    checks: RewardChecks | None = None,
    ranks: Ranks = ALONE,
    failures: Failures | None = None,
) -> dict[str, float]:
    """What rewards and their checks noticed since they were last asked, such as how far members were apart."""
    return ranks.first(lambda: _own_notes(parts, checks, failures))


def _own_notes(parts: Sequence[RewardPart], checks: RewardChecks | None, failures: Failures | None) -> dict[str, float]:
    notes: dict[str, float] = checks.take_notes() if checks is not None else {}
    notes |= failures.take_notes() if failures is not None else {}
    for part in parts:
        take: Callable[[], dict[str, float]] = getattr(part.reward, "take_notes", dict)
        notes |= take()
    return notes


def failure_policy(config: Config | EvaluationConfig) -> Failures:
    """How the run treats rewards that fail, from its config."""
    return Failures(config.reward.on_error, config.reward.most_failures)


def check_rewards(objective: Objective, parts: Sequence[RewardPart]) -> None:
    """Refuse rewards that the objective would misread."""
    names = [part.name for part in parts if not part.is_plain]
    if names and objective.baseline.needs & {"parts"}:
        raise WhetError(
            f"{objective.name} reads the raw parts, and {names[0]!r} has a schedule, gate, cap or norm; give it a "
            "plain weight, or choose another method"
        )
    normed = [part.name for part in parts if part.normalise != "off"]
    if normed and "greedy_reward" in objective.needs():
        raise WhetError(
            f"{objective.name} compares with one greedy completion, which has no company to be normalised in; drop "
            f"normalise of {normed[0]!r}, or choose another method"
        )


def _steps(config: Config | EvaluationConfig) -> int:
    return int(getattr(config, "steps", 1))


def reward_summary(parts: Sequence[RewardPart]) -> str:
    """The sum in words, for the run's facts."""

    def weight(part: RewardPart) -> str:
        return " to ".join(f"{value:g}" for value in part.weights)

    return ", ".join(f"{weight(part)} x {part.name}" + (f" if {part.gate.part}" if part.gate else "") for part in parts)


def start_sandbox(parts: Sequence[RewardPart], require: str | None = None) -> None:
    """Start a worker where a part runs code: a machine that isolates too little is refused before the first sample.

    Every run is told what is missing, also one that finds the workers of an earlier run. `require` stays in force.
    """
    rewards = code_rewards(parts)
    if require in (None, USUAL_ISOLATION) and not rewards and SANDBOX not in sys.modules:
        return  # what holds anyway, for code that nobody runs: the sandbox is not loaded
    from whet.reward.sandbox.pool import shared_sandbox
    from whet.reward.sandbox.requirement import require_isolation, tell_isolation

    if require is not None:
        require_isolation(require)
    for workers in sorted({reward.workers for reward in rewards}):
        sandbox = shared_sandbox(workers)
        is_known = bool(sandbox.holds)
        sandbox.start(1)
        if is_known:
            tell_isolation(sandbox.requirement, sandbox.holds, sandbox.why)


def begin_rewards(parts: Sequence[RewardPart], eval_prompts: Sequence[Prompt]) -> None:
    """Start, in the background, what rewards can prepare while a model is read."""
    for reward in code_rewards(parts):
        reward.begin_timing_golds(eval_prompts)
    for part in parts:
        start_behind = getattr(getattr(part.resolved_reward, "function", None), "start_behind", None)
        if start_behind is not None:
            start_behind()


def code_rewards(parts: Sequence[RewardPart]) -> list[CodeTests]:
    """The rewards that run model-written code, also inside of others."""
    if CODE_TESTS not in sys.modules:  # then nobody made one
        return []
    from whet.reward.code_tests import CodeTests

    def found(reward: Any) -> list[CodeTests]:
        if isinstance(reward, CodeTests):
            return [reward]
        inner = [getattr(reward, field.name) for field in fields(reward)] if is_dataclass(reward) else []
        return [code_reward for value in inner for code_reward in found(value)]

    return [reward for part in parts for reward in found(part.reward)]


def sandbox_summary(parts: Sequence[RewardPart]) -> Callable[[], dict[str, str]]:
    """What protects the machine from model-written code, where a part runs any, as a call for when it is wanted.

    Every protection is tried, which is a second of waiting: meanwhile a model can be read.
    """
    rewards = code_rewards(parts)
    if not rewards:
        return dict
    from whet.reward.sandbox.pool import shared_sandbox
    from whet.reward.sandbox.protections import active_protections
    from whet.reward.sandbox.requirement import isolation_summary

    isolation = isolation_summary(shared_sandbox(rewards[0].workers).holds)
    (tried,) = in_threads([active_protections], 1, "sandbox-trial")
    return lambda: {"sandbox": f"{isolation}\n{tried.result().summary()}"}
