"""Evaluating a model: metrics on held-out prompts, and completions to look at."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from whet.data.benchmarks import bare_question
from whet.data.prompts import demonstrations_from, prompts_from
from whet.data.source import TRAIN, parse_source, read_rows
from whet.data.tasks import demonstrations
from whet.data.usable import chosen_facts, evenly, without
from whet.reward.combine import RewardPart
from whet.rollout.collect import Score
from whet.rollout.episode_runner import EpisodePlan, tell_failures
from whet.training.assembly.forms import PromptForm, form_facts, prompt_form
from whet.training.assembly.prompts import load_prompts
from whet.training.assembly.rewards import bind_judges, build_reward_parts, build_scorer, scorable_prompts
from whet.training.assembly.rows import column_facts, left_out_phrases
from whet.training.assembly.runtime import (
    Runtime,
    build_evaluator,
    decode_facts,
    encode_prompts,
    load_runtime,
    sampling_from,
)
from whet.training.config import EvaluationConfig
from whet.training.evaluator import Evaluator, eval_metrics
from whet.types import Demonstration, Group, Message, Prompt, Sample, WhetError

QUESTION, ANSWER = "Question:", "Answer:"
STOP = f"\n{QUESTION}"  # a model that goes on after its answer writes the next example
SPARE = 4  # examples that are read for each one that is shown: some may be test prompts
MOST_READ = 10_000
OnFacts = Callable[[Mapping[str, str]], None]
"""Is given how completions are written, and why not faster, before the first one."""


@dataclass(frozen=True)
class PromptStyle:
    """`shots` examples, of a file or of the task's own training questions."""

    shots: int = 0
    shots_from: str = ""
    plain: bool = False  # text without the chat template


def styled(prompts: Sequence[Prompt], examples: Sequence[Demonstration], plain: bool) -> list[Prompt]:
    """The same prompts as they are sent to the model."""
    return [_styled(prompt, examples, plain) for prompt in prompts]


def _styled(prompt: Prompt, examples: Sequence[Demonstration], plain: bool) -> Prompt:
    if plain or prompt.text is not None:
        asked = prompt.text if prompt.text is not None else conversation_text(prompt.messages)
        if not examples:
            return replace(prompt, messages=(), text=asked)
        shown = [f"{QUESTION} {_question(example.prompt)}\n{ANSWER} {example.completion}" for example in examples]
        return replace(prompt, messages=(), text="\n\n".join([*shown, f"{QUESTION} {asked}\n{ANSWER}"]))
    opening = [message for message in prompt.messages if message["role"] in ("system", "developer")]
    rest = prompt.messages[len(opening) :]
    turns: list[Message] = []
    for example in examples:
        turns.append({"role": "user", "content": _question(example.prompt)})
        turns.append({"role": "assistant", "content": example.completion})
    return replace(prompt, messages=(*opening, *turns, *rest))


def conversation_text(messages: Sequence[Message]) -> str:
    """The conversation as plain text without a template, with an empty line between two turns."""
    return "\n\n".join(str(message["content"]) for message in messages)


def _question(prompt: Prompt) -> str:
    return prompt.text if prompt.text is not None else conversation_text(prompt.messages)


def examples_for(config: EvaluationConfig, style: PromptStyle, prompts: Sequence[Prompt]) -> list[Demonstration]:
    """The same examples for every prompt, chosen by the config's seed; never a question that is asked."""
    if not style.shots:
        if style.shots_from:
            raise WhetError(
                f"--shots-from {style.shots_from} has no effect without --shots; give --shots 4, or drop it"
            )
        return []
    if not config.env.is_single:
        raise WhetError("--shots shows worked completions, and an environment opens its own conversation; drop one")
    asked = {_normal(_question(prompt)) for prompt in prompts}
    known: dict[str, Demonstration] = {}
    for demonstration in _demonstrations(config, style):
        key = _normal(_question(demonstration.prompt))
        if key not in asked:
            known.setdefault(key, demonstration)
    if len(known) < style.shots:
        raise WhetError(
            f"--shots {style.shots}: there are only {len(known)} examples that are no test prompts"
            f"{f' in {style.shots_from}' if style.shots_from else ''}; lower --shots, or give a larger --shots-from"
        )
    return random.Random(f"shots/{config.seed}").sample(list(known.values()), style.shots)


def _normal(question: str) -> str:
    return " ".join(bare_question(question).split()).casefold()


def _demonstrations(config: EvaluationConfig, style: PromptStyle) -> list[Demonstration]:
    source, data = config.data.parsed_source, config.data
    if style.shots_from:
        return file_examples(style.shots_from, prompt_form(config, style.shots_from))
    count = SPARE * style.shots
    if source.is_task:
        return source.from_tasks(
            lambda task, share, level: demonstrations(task, share, config.seed, level), count, data.difficulty
        )
    if source.is_generated:
        return [
            _answered(prompt, PromptForm())
            for prompt in source.prompts(TRAIN, count, config.seed, settings=data.settings)
        ]
    raise WhetError(
        f"--shots takes its examples from a training split, and {source} names none; give --shots-from FILE "
        "(a file of training questions with completions or answers)"
    )


def file_examples(source: str, form: PromptForm) -> list[Demonstration]:
    """Demonstrations of a file; where it has answers only, each is said in a sentence, or in the form asked for."""
    if parse_source(source).is_generated:
        raise WhetError(f"--shots-from {source}: give a file or hub:owner/name; a task's own examples need no name")
    rows = read_rows(source, MOST_READ, for_chat=form.says_answer_form)
    try:
        return demonstrations_from(rows)
    except WhetError as no_completions:
        prompts = prompts_from(rows)
        if any(prompt.answer is None for prompt in prompts):
            raise WhetError(f"--shots-from {source}: {no_completions}") from None
        return [_answered(prompt, form) for prompt in prompts]


def _answered(prompt: Prompt, form: PromptForm) -> Demonstration:
    answer = f"\\boxed{{{prompt.answer}}}" if form.says_answer_form else prompt.answer
    return Demonstration(prompt, f"The answer is {answer}.")


def evaluate_groups(
    config: EvaluationConfig,
    num_samples: int,
    on_facts: OnFacts | None = None,
    scored: bool = True,
) -> list[Group]:
    """Completions to the held-out prompts: one greedy completion each, or several drawn ones.

    A reward is needed where they must be `scored`; else they are where one is given, or the task has its own.
    """
    runtime, evaluator = eval_setup(config, scored=scored)
    if on_facts is not None:
        on_facts(eval_facts(config, runtime, evaluator))
    return run_evaluator(config, num_samples, evaluator)


def run_evaluator(config: EvaluationConfig, num_samples: int, evaluator: Evaluator) -> list[Group]:
    """One greedy completion per prompt, or `num_samples` drawn at the config's temperature."""
    check_samples(num_samples, config.sampling.temperature)
    if num_samples == 1:
        return evaluator.evaluate()
    return evaluator.evaluate(num_samples, config.sampling.temperature, config.seed)


def eval_facts(config: EvaluationConfig, runtime: Runtime, evaluator: Evaluator) -> dict[str, str]:
    """How the prompts were read and put, which are left out, and how completions are written."""
    left_out = left_out_phrases(evaluator.prompts)
    return {
        **chosen_facts(evaluator.prompts),
        **form_facts(config, config.eval.source),
        **column_facts(evaluator.prompts),
        **({"left out": left_out[0]} if left_out else {}),
        **decode_facts(runtime, evaluator.sampling, evaluator.prompt_tokens),
    }


def check_samples(num_samples: int, temperature: float) -> None:
    """Refuse a number of samples that cannot be drawn, or that would all be equal."""
    if num_samples < 1:
        raise WhetError(f"samples is {num_samples}; give 1 (greedy) or more")
    if num_samples > 1 and temperature == 0:
        raise WhetError("several samples at temperature 0 are all equal; give sampling.temperature=1.0")


def eval_setup(
    config: EvaluationConfig,
    rewards: Sequence[RewardPart] | None = None,
    scored: bool = True,
    style: PromptStyle | None = None,
    runtime: Runtime | None = None,
) -> tuple[Runtime, Evaluator]:
    """The model, and the held-out prompts with their judge, who sees them without the examples of a `style`.

    `runtime` is that of the same model on another task.
    """
    prompts = load_prompts(config, evaluation=True)
    chosen: Sequence[Prompt] = evenly(prompts, config.eval.prompts)
    if prompts and not config.eval.prompts:
        raise WhetError("eval.prompts is 0, as in a run that was trained without evaluation; give eval.prompts=200")
    if not chosen:
        raise WhetError(
            "no held-out prompts are known for this model; give --data (data= in Python): task:NAME, a file or "
            "hub:owner/name"
        )
    parts = build_reward_parts(config, wanted=scored, provided=rewards)
    chosen = scorable_prompts(chosen, parts, config.data)
    style = style or PromptStyle()
    examples = examples_for(config, style, prompts)
    runtime = runtime or load_runtime(config)
    score: Score = _unscored
    if parts:
        score = build_scorer(config, bind_judges(parts, runtime.engine, runtime.loaded.tokenizer))
    sampling = sampling_from(config.sampling)
    if not examples and not style.plain:
        return runtime, build_evaluator(runtime, chosen, sampling, score, config.data, config.eval.by)
    if examples and any(style.plain or prompt.text is not None for prompt in chosen):
        sampling = replace(sampling, stop=(*sampling.stop, STOP))
    asked = without(chosen, range(len(chosen)), {})
    asked[:] = styled(chosen, examples, style.plain)
    evaluator = build_evaluator(runtime, asked, sampling, score, config.data, config.eval.by)
    bare = {prompt.id: prompt for prompt in chosen}
    fitting = without(evaluator.prompts, range(len(evaluator.prompts)), {})
    fitting[:] = [bare[prompt.id] for prompt in fitting]
    return runtime, replace(evaluator, prompts=fitting)


def _unscored(prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[Sample]:
    return list(samples)


def group_metrics(groups: Sequence[Group], by: str) -> dict[str, float]:
    """The metrics of scored groups."""
    return {"prompts": float(len(groups)), **eval_metrics(groups, by)}


def sample_completions(
    config: EvaluationConfig,
    prompts: Sequence[Prompt],
    num_samples: int,
    scored: bool = False,
    on_facts: OnFacts | None = None,
) -> list[list[Sample]]:
    """Draw completions to the user's own prompts; `scored` by the config's rewards."""
    parts = build_reward_parts(config, wanted=True) if scored else []
    runtime = load_runtime(config)
    sampling = sampling_from(config.sampling)
    tokens = encode_prompts(runtime, prompts, sampling)
    if on_facts is not None:
        on_facts(decode_facts(runtime, sampling, tokens))
    drawn = runtime.runner.play(EpisodePlan(prompts, tokens, num_samples, sampling, (config.seed,)))
    tell_failures(runtime.runner.take_notes())
    if not scored:
        return [list(samples) for samples in drawn]
    score = build_scorer(config, bind_judges(parts, runtime.engine, runtime.loaded.tokenizer))
    return [list(score([prompt] * len(samples), samples)) for prompt, samples in zip(prompts, drawn, strict=True)]
