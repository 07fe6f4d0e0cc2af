"""From a config to the parts of a run: model, data, rewards, trainer. The only place that knows them all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from whet.build.adapters import adapters_fact, first_policy
from whet.config.config import (
    Config,
    EvaluationConfig,
    PolicyConfig,
    PreferenceConfig,
    RewardModelConfig,
    SFTConfig,
    flattened,
)
from whet.data import check_context, demonstration_tokens, demonstrations_from, prompt_tokens, prompts_from
from whet.data.source import EVAL, TRAIN
from whet.data.tasks import Task, demonstrations
from whet.model import LoadedModel, device_choice, dtype_choice, load_model
from whet.model.critic import critic_on
from whet.model.fused_trunk import fused_works
from whet.model.reference import ReferencePolicy, ReloadedReference
from whet.model.causal_lm import Recompute, CausalLM, causal_lm
from whet.objective import Objective, RunSetting, check_setting, description, preset_named, title, with_changes
from whet.build.preference import (
    preference_trainer,
    preference_words,
    reward_model_trainer,
    reward_model_words,
)
from whet.reward import Failures, RewardPart, step_scorer, with_steps
from whet.reward.steps import StepScorer
from whet.build.rewards import (
    bind_judges,
    check_rewards,
    failure_policy,
    build_reward_parts,
    sandbox_summary,
    build_scorer,
    build_scorer_at,
    take_notes,
    reward_summary,
    part_weights_at,
)
from whet.rollout.collect import Score
from whet.rollout.torch_engine import TorchEngine
from whet.build.rows import left_out_phrases, read_usable
from whet.config.sections import SamplingSection
from whet.train.evaluate import Evaluator
from whet.train.online_preference import Asking, OnlinePreferenceTrainer
from whet.train.optimizer import OptimizerSettings
from whet.train.preference import PreferenceTrainer
from whet.train.rl import RLModels, RewardContext, PromptDataset, RLTrainer, RLSettings
from whet.train.run import Trainer
from whet.train.sft import SFTTrainer, SFTSettings
from whet.types import Demonstration, Prompt, Sample, Sampling, WhetError

SMALL_MODEL = 2_000_000  # weights


@dataclass(frozen=True)
class Runtime:
    """The model on its device, and what was chosen for it."""

    loaded: LoadedModel
    policy: CausalLM
    engine: TorchEngine
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Assembly:
    """A run ready to start."""

    trainer: Trainer
    title: str
    objective: list[str]  # in words and symbols
    facts: Mapping[str, str]
    precision: str
    parts: tuple[RewardPart, ...] = ()


def assemble(config: Config, rewards: Sequence[RewardPart] | None = None) -> Assembly:
    """Build everything; every mistake in the config or the data surfaces here, before the first step."""
    is_policy = isinstance(config, PolicyConfig)
    is_asked = is_policy or (isinstance(config, PreferenceConfig) and config.preference.online > 0)
    scores_completions = not isinstance(config, RewardModelConfig)
    parts = build_reward_parts(config, is_asked, rewards) if scores_completions else []
    objective = build_objective(config, parts) if isinstance(config, PolicyConfig) else None
    task_prompts = load_prompts(config, held_out=False) if is_asked else []
    has_exam = scores_completions and (not isinstance(config, PreferenceConfig) or config.data.parsed_source.is_task)
    held_out = load_prompts(config, held_out=True) if config.eval.prompts and has_exam else []
    machine = load_runtime(config)
    sampling = sampling_from(config.sampling)
    parts = bind_judges(parts, machine.engine, machine.loaded.tokenizer)
    failures = failure_policy(config)
    judge = build_scorer(config, parts, failures)
    exam = build_evaluator(machine, held_out[: config.eval.prompts], sampling, judge) if held_out and parts else None
    facts = {**machine.facts, "data": data_summary(config, task_prompts, held_out)}
    if isinstance(config, PolicyConfig) and objective is not None:
        check_rewards(objective, parts)
        judging = _judging(config, parts, failures, objective, machine)
        tokens = encode_prompts(machine, task_prompts, sampling)
        trainer: Trainer = build_rl_trainer(
            config, objective, machine, PromptDataset(task_prompts, tokens, judging), exam
        )
        updates = config.batch.updates_per_step * config.batch.epochs_per_batch
        lines, name = description(objective, updates), title(objective)
        facts["reward"] = reward_summary(parts)
        facts.update(sandbox_summary(parts))
    elif isinstance(config, PreferenceConfig):
        asked = None if exam is None else (machine.engine, exam)
        trainer, facts["data"] = preference_trainer(config, machine.policy, machine.loaded, asked)
        if config.preference.online:
            trainer = online_trainer(config, trainer, machine, judge, task_prompts)
            facts.update({"data": data_summary(config, task_prompts, held_out), "reward": reward_summary(parts)})
        name, lines = preference_words(config)
    elif isinstance(config, RewardModelConfig):
        trainer, facts["data"] = reward_model_trainer(config, machine.policy, machine.loaded)
        name, lines = reward_model_words(config)
    else:
        assert isinstance(config, SFTConfig)
        shown = load_demonstrations(config)
        trainer = sft_trainer(config, machine, exam, shown)
        facts["data"] += "".join(f", {each}" for each in left_out_phrases(*shown))
        lines = [
            "Supervised fine-tuning",
            "  J = 1/M SUM log pi(completion token)",
            "  - every completion token counts the same",
        ]
        name = "SFT"
    return Assembly(trainer, name, lines, facts, str(machine.policy.dtype), tuple(parts))


def online_trainer(
    config: PreferenceConfig, trainer: PreferenceTrainer, machine: Runtime, judge: Score, chosen: Sequence[Prompt]
) -> OnlinePreferenceTrainer:
    """The trainer on completions of its own."""
    if config.preference.online < 2:
        raise WhetError(
            "preference.online is 1: a pair needs two completions; give 2 or more, or 0 to learn from the data"
        )
    sampling = sampling_from(config.sampling)
    return OnlinePreferenceTrainer(
        trainer,
        Asking(
            chosen,
            encode_prompts(machine, chosen, sampling),
            machine.engine,
            judge,
            sampling,
            config.preference.online,
            config.batch.rows_per_step,
            config.seed,
        ),
    )


def _judging(
    config: PolicyConfig, parts: Sequence[RewardPart], failures: Failures, objective: Objective, machine: Runtime
) -> Callable[[float], RewardContext]:
    """share of the training done -> how completions are judged then."""
    steps_scorer = step_scorer(parts)
    at = build_scorer_at(config, parts, failures)

    def judging(progress: float) -> RewardContext:
        judge = at(progress)
        if steps_scorer is not None and "step_reward" in objective.needs():
            judge = partial(judged_steps, judge=judge, scorer=steps_scorer, tokenizer=machine.loaded.tokenizer)
        return RewardContext(judge, part_weights_at(config, parts, progress), partial(take_notes, parts))

    return judging


def build_objective(config: PolicyConfig, parts: Sequence[RewardPart] = ()) -> Objective:
    """The method's row with the config's changes, checked against the rest of the config and its rewards."""
    changes = flattened(config.objective)
    objective = with_changes(preset_named(config.method).objective, changes)
    batch = config.batch
    setting = RunSetting(
        batch.group_size,
        batch.updates_per_step * batch.epochs_per_batch,
        len(parts),
        batch.staleness,
        step_scorer(parts) is not None,
        config.steps,
    )
    check_setting(objective, setting, changes)
    if config.model.reference == "reload" and objective.reference.name != "frozen":
        raise WhetError(
            f"model.reference=reload reads the first policy anew, but objective.reference={objective.reference.name} "
            "moves the reference; give model.reference=memory"
        )
    return objective


def load_prompts(config: Config | EvaluationConfig, held_out: bool) -> list[Prompt]:
    data = config.data
    if data.parsed_source.is_generated:
        split, count = (EVAL, config.eval.prompts) if held_out else (TRAIN, data.count)
        return data.parsed_source.prompts(split, count, config.seed, data.difficulty, data.settings)
    source = config.eval.source if held_out else data.source
    return read_usable(data, source, lambda _: prompts_from, data.limit) if source else []


def load_demonstrations(config: SFTConfig) -> tuple[list[Demonstration], list[Demonstration]]:
    """Rows to learn from, and held-out rows to measure the loss on."""
    data = config.data
    data.parsed_source.require_completions(config.method)
    if not data.parsed_source.is_task:
        read = partial(read_usable, data, reader=lambda _: demonstrations_from)
        return read(source=data.source, limit=data.limit), read(source=config.eval.source) if config.eval.source else []

    def draw(task: Task, count: int, difficulty: int) -> list[Demonstration]:
        return demonstrations(task, count, config.seed, difficulty, data.share_worked)

    return data.parsed_source.from_tasks(draw, data.count, data.difficulty), []


def load_runtime(config: Config | EvaluationConfig) -> Runtime:
    device = device_choice(config.model.device)
    dtype, why = dtype_choice(config.model.precision, device)
    loaded = load_model(config.model.name, torch.float32, str(device))
    size = sum(parameter.numel() for parameter in loaded.model.parameters())
    adapters = {} if isinstance(config, EvaluationConfig) else adapters_fact(config, loaded.model)
    policy = build_policy(loaded.model, dtype, recompute_choice(config.model.recompute, device))
    engine = TorchEngine(policy, loaded.tokenizer, loaded.end_tokens, context=loaded.context)
    threads, threads_why = thread_choice(config.model.threads, size)
    torch.set_num_threads(threads)
    facts = {
        "model": f"{config.model.name} ({size / 1e6:.1f}M weights)",
        **adapters,
        "device": f"{device}, {threads} thread{'s' if threads > 1 else ''} ({threads_why})",
        **({} if policy.recompute == "none" else {"recompute": policy.recompute}),
        "dtype": f"{str(dtype).removeprefix('torch.')} ({why})",
    }
    return Runtime(loaded, policy, engine, facts)


def recompute_choice(asked: str, device: torch.device) -> Recompute:
    """What is computed again in the backward pass. On a GPU the MLP's wide rows, by default: half the memory of a pass
    for a twentieth of its time."""
    if asked == "auto":
        return "wide" if device.type == "cuda" else "none"
    return asked  # type: ignore[return-value]


def build_policy(model: Any, dtype: torch.dtype, recompute: Recompute) -> CausalLM:
    """A model to train; one that whet has not written out recomputes its layers itself."""
    policy = causal_lm(model, dtype, recompute)
    if recompute == "layers" and not fused_works(policy):
        if not getattr(model, "supports_gradient_checkpointing", False):
            raise WhetError(
                f"model.recompute=layers: {type(model).__name__} cannot compute its layers again; "
                "leave it away, or lower batch.micro_batch_tokens"
            )
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return policy


def thread_choice(asked: int, num_weights: int) -> tuple[int, str]:
    """CPU threads and why. Every usable core, but one for a small model: waiting for the others would cost more."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if asked:
        return asked, f"model.threads={asked}; {cores} usable cores"
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return int(os.environ["OMP_NUM_THREADS"]), f"OMP_NUM_THREADS; {cores} usable cores"
    if num_weights < SMALL_MODEL:
        return 1, f"a model this small gains little from more; {cores} usable cores"
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    busy = f"; other jobs keep {load:.1f} busy, model.threads=1 may be faster" if load > 0.5 * cores > 0.5 else ""
    return cores, f"every usable core{busy}"


def sampling_from(section: SamplingSection) -> Sampling:
    return Sampling(
        section.max_new_tokens, section.temperature, section.top_p, section.top_k, section.min_p, tuple(section.stop)
    )


def encode_prompts(machine: Runtime, chosen: Sequence[Prompt], sampling: Sampling) -> list[tuple[int, ...]]:
    """Tokens of each prompt; one that cannot fit with its completion is an error."""
    tokens = [prompt_tokens(machine.loaded.tokenizer, prompt) for prompt in chosen]
    lengths = [len(each) for each in tokens]
    check_context(chosen, lengths, max_new_tokens=sampling.max_new_tokens, context=machine.loaded.context)
    return tokens


def build_evaluator(machine: Runtime, chosen: Sequence[Prompt], sampling: Sampling, judge: Score) -> Evaluator:
    return Evaluator(chosen, encode_prompts(machine, chosen, sampling), sampling, judge)


def judged_steps(
    prompts: Sequence[Prompt], samples: Sequence[Sample], *, judge: Score, scorer: StepScorer, tokenizer: Any
) -> list[Sample]:
    """Scored samples, with the scores of their steps on the tokens that end them."""
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    return with_steps(prompts, judge(prompts, samples), scorer, decode)


def build_rl_trainer(
    config: PolicyConfig, objective: Objective, machine: Runtime, questions: PromptDataset, exam: Evaluator | None
) -> RLTrainer:
    batch, needs = config.batch, objective.needs()
    critic = None
    if "value" in needs:
        shared, start = config.critic.trunk == "shared", config.critic.start
        critic = critic_on(machine.policy, shared=shared, start=start, tokenizer=machine.loaded.tokenizer)
    cast = RLModels(
        machine.policy,
        machine.loaded.tokenizer,
        machine.engine,
        reference_of(config, machine, objective) if "ref_logp" in needs else None,
        critic,
        config.critic.learning_rate,
    )
    settings = RLSettings(
        config.steps,
        batch.prompts_per_step,
        batch.group_size,
        batch.updates_per_step,
        batch.micro_batch_tokens,
        sampling_from(config.sampling),
        config.seed,
        batch.epochs_per_batch,
        batch.staleness,
        config.data.order == "by_difficulty",
    )
    return RLTrainer(cast, objective, questions, settings, optimizer_settings(config), exam)


def reference_of(config: PolicyConfig, machine: Runtime, objective: Objective) -> ReferencePolicy:
    """The policy before the first step: a copy in memory, what adapters stand on, or its source to read again."""
    if config.model.reference == "memory":
        return first_policy(config, machine.policy, objective.reference.name, objective.needs())
    device = machine.policy.device

    def load() -> CausalLM:
        return causal_lm(load_model(config.model.name, torch.float32, str(device)).model, machine.policy.dtype)

    return ReloadedReference(load)


def sft_trainer(
    config: SFTConfig,
    machine: Runtime,
    exam: Evaluator | None,
    shown: tuple[list[Demonstration], list[Demonstration]],
) -> SFTTrainer:
    rows, held_out = shown
    encode = partial(demonstration_tokens, machine.loaded.tokenizer, every_completion=config.data.every_completion)
    encoded = [encode(row) for row in (*rows, *held_out)]
    check_context(
        [row.prompt for row in (*rows, *held_out)],
        [len(row.tokens) for row in encoded],
        max_new_tokens=0,
        context=machine.loaded.context,
    )
    settings = SFTSettings(
        config.steps, config.batch.rows_per_step, config.batch.micro_batch_tokens, config.batch.packed, config.seed
    )
    return SFTTrainer(
        machine.policy,
        machine.loaded.tokenizer,
        encoded[: len(rows)],
        settings,
        optimizer_settings(config),
        encoded[len(rows) :],
        None if exam is None else (machine.engine, exam),
    )


def optimizer_settings(config: Config) -> OptimizerSettings:
    return OptimizerSettings(**config.optimizer.model_dump())


def data_summary(config: Config, chosen: Sequence[Prompt], held_out: Sequence[Prompt]) -> str:
    data = config.data
    about = f" difficulty {', '.join(map(str, data.difficulty))}" if data.parsed_source.is_task else ""
    numbers = [f"{len(chosen)} prompts"] if chosen else []
    numbers += [f"{len(held_out)} held out"] if held_out else []
    numbers += left_out_phrases(chosen, held_out)
    return f"{data.source}{about} ({', '.join(numbers) or 'demonstrations'})"
