"""From a config to who plays its episodes: single completions, an environment, tools, or an agent's program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from whet.data.source import SourceKind
from whet.envs.sections import OWN_TASKS, EnvSection
from whet.model.load import LoadedModel
from whet.protocols import Engine, Environment
from whet.rollout.branching import Branching, why_not
from whet.rollout.episode_runner import EpisodeRunner
from whet.rollout.episodes import EnvironmentRunner, EpisodeLimits
from whet.training.config import Config, EvaluationConfig
from whet.training.sections import BatchSection
from whet.types import WhetError

GYM_REWARD = "gym_answer"


def check_environment(config: Config | EvaluationConfig) -> None:
    """Refuse an environment that cannot be made, before a model is read."""
    if config.env.player:
        from whet.envs.serve.agent import check_agent

        check_agent(config.env.player, config.env.settings)
        if config.env.name:
            _check_tasks(config)
    elif config.env.name:
        _named_environment(config, tokenizer=None)
        if config.env.name in OWN_TASKS and config.data.parsed_source.is_task:
            raise WhetError(
                f"the environment {config.env.name!r} has tasks of its own, and data.source={config.data.source} other "
                "ones; give seeds, such as data.source=seeds:1000"
            )
        judge = config.env.settings.get("reward", GYM_REWARD)
        if config.env.name == "reasoning_gym" and judge == GYM_REWARD and config.data.parsed_source.is_task:
            raise WhetError(
                f"the environment 'reasoning_gym' judges with {GYM_REWARD} the answers of gym:NAME, and data.source is "
                f"{config.data.source}; give the data gym:basic_arithmetic, or env.settings.reward=math_answer"
            )
    if config.env.branching != "none" and isinstance(config, Config):
        _check_branching(config)


def _check_branching(config: Config) -> None:
    """Refuse environments of which no twin can be had, before a model is read."""
    section = config.env
    if section.is_single:
        raise WhetError(
            "config: env: branching has no effect without an environment; give env.name, env.tools or env.agent"
        )
    if section.max_turns == 1:
        raise WhetError(
            f"env.branching={section.branching} has no effect with env.max_turns=1: nothing branches behind a last "
            "turn; give more turns, or env.branching=none"
        )
    if why := why_not(_maker(config, tokenizer=None)()):
        raise WhetError(f"env.branching={section.branching}: {_environment_name(section)} cannot branch: {why}")


def _check_tasks(config: Config | EvaluationConfig) -> None:
    """Refuse rows that name no task of an environment of verifiers, or one task under several numbers."""
    from whet.envs.adapters.verifiers import num_tasks

    source, tasks = config.data.parsed_source, num_tasks(config.env.name, config.env.settings)
    if source.kind is not SourceKind.SEEDS or not source.name.isdecimal() or int(source.name) > tasks:
        raise WhetError(
            f"the environment {config.env.name!r} has {tasks} tasks of its own, and data.source is "
            f"{config.data.source}; give their numbers, data.source=seeds:{tasks}"
        )


def require_own_reward(config: Config | EvaluationConfig) -> None:
    """Refuse an environment that pays nothing, where it is the only one to pay."""
    if not config.env.name or config.env.player:
        return
    make = _named_environment(config, tokenizer=None)
    if not getattr(make(), "scores", True):
        raise WhetError(
            f"the environment {config.env.name!r} has no get_reward, and no other reward is given; add a reward, "
            "or get_reward(self) -> float to the class"
        )


def adds_own_reward(config: Config | EvaluationConfig) -> bool:
    """Whether what the environment pays is added to other rewards: TRL's `get_reward` is."""
    if not config.env.name or config.env.player:
        return False
    return bool(getattr(_named_environment(config, tokenizer=None)(), "adds_reward", False))


def build_episode_runner(
    config: Config | EvaluationConfig, engine: Engine, loaded: LoadedModel
) -> tuple[EpisodeRunner, dict[str, str]]:
    """The runner, and what the run's facts say about it."""
    section = config.env
    if section.is_single:
        return EnvironmentRunner(engine, loaded.tokenizer, context=loaded.context), {}
    if section.player:
        return _agent_runner(config, engine, loaded)
    make = _maker(config, loaded.tokenizer)
    most = section.most_tokens(config.sampling.max_new_tokens)
    limits = EpisodeLimits(section.max_turns, most, section.step_seconds, section.seconds)
    branching = None if isinstance(config, EvaluationConfig) else branching_of(section)
    runner = EnvironmentRunner(engine, loaded.tokenizer, make, limits, loaded.context, section.history, branching)
    what = _environment_name(section)
    turns = f"up to {limits.max_turns} turns and {limits.max_tokens} tokens behind the prompt"
    facts = {"environment": f"{what}; {turns}"}
    if branching is not None:
        where = {"turns": "turns", "tool_calls": "turns that call tools", "entropy": "uncertain turns"}[branching.at]
        facts["branching"] = f"behind {where}, {branching.width} ways, up to {branching.leaves} leaves per episode"
    return runner, facts


def branching_of(section: EnvSection) -> Branching | None:
    """How episodes branch, from the section; None: an episode is one sample."""
    if section.branching == "none":
        return None
    return Branching(
        section.branching, section.leaves, section.branch_width, section.branch_chance, section.branch_entropy
    )


def _environment_name(section: EnvSection) -> str:
    """The environment's name in the run's facts: `textarena id=Sudoku-v0`, or its tools."""
    if not section.name:
        return f"tools {', '.join(section.tools)}"
    settings = [f"{key}={value}" for key, value in section.settings.items()]
    beside = [f"with the tools {', '.join(section.tools)}"] if section.tools else []
    return " ".join([section.name, *settings, *beside])


def _agent_runner(
    config: Config | EvaluationConfig, engine: Engine, loaded: LoadedModel
) -> tuple[EpisodeRunner, dict[str, str]]:
    from whet.envs.serve.agent import AgentLimits, AgentRunner

    section = config.env
    most = section.most_tokens(config.sampling.max_new_tokens)
    limits = AgentLimits(section.max_turns, most, section.seconds, section.at_once)
    rewards = config.reward.template or [part.reward for part in config.reward.parts]
    runner = AgentRunner(
        engine,
        loaded.tokenizer,
        section.player,
        limits,
        context=loaded.context,
        end_tokens=loaded.end_tokens,
        history=section.history,
        call_format=section.call_format,
        model=Path(config.model.name).name,
        settings=section.settings,
        must_report=not rewards or "environment" in rewards,
    )
    bounds = f"up to {limits.calls} calls and {limits.tokens} tokens behind a conversation's first prompt"
    return runner, {"agent": f"{section.player}; {bounds}, {limits.at_once} programs at once"}


def _maker(config: Config | EvaluationConfig, tokenizer: Any) -> Callable[[], Environment]:
    """What makes the environment of an episode; without a tokenizer it is only looked at, and nothing is made ready."""
    section = config.env
    if section.name:
        return _named_environment(config, tokenizer)
    from whet.envs.tools.find import tool_environment
    from whet.reward.sandbox.requirement import require_isolation

    require_isolation(config.sandbox.require)
    batch = None if tokenizer is None else getattr(config, "batch", None)
    return tool_environment(
        section.tools,
        sandboxed=section.sandboxed,
        call_format=section.call_format,
        tool_seconds=section.tool_seconds,
        settings=section.tool_settings,
        tokenizer=tokenizer,
        history=section.history,
        instructions=section.instructions,
        episodes=batch.prompts_per_step * batch.group_size if isinstance(batch, BatchSection) else 0,
    )


def _named_environment(config: Config | EvaluationConfig, tokenizer: Any) -> Callable[[], Environment]:
    """What makes the environment of an episode; without a tokenizer, no template is asked how calls are written."""
    from whet.envs.find import find_environment
    from whet.envs.tools.formats import Calling

    section = config.env
    for key in ("sandboxed", "tool_settings"):
        if getattr(section, key):
            raise WhetError(f"env.{key} is for tools alone; drop it, or the environment {section.name!r}")
    calling = Calling(
        section.tools, section.call_format, section.tool_seconds, tokenizer, section.history, section.instructions
    )
    return find_environment(section.name, section.settings, calling)
