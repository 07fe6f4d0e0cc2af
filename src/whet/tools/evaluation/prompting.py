"""How a question is put: as a conversation or as plain text, with worked examples before it or without."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from whet.data import demonstrations_from, prompts_from
from whet.data.benchmarks import bare_question
from whet.data.source import TRAIN, parse_source, read_rows
from whet.data.tasks import demonstrations
from whet.training.assembly.forms import PromptForm, prompt_form
from whet.training.config import EvaluationConfig
from whet.types import Demonstration, Message, Prompt, WhetError

QUESTION, ANSWER = "Question:", "Answer:"
STOP = f"\n{QUESTION}"  # a model that goes on after its answer writes the next example
SPARE = 4  # examples that are read for each one that is shown: some may be test prompts
MOST_READ = 10_000


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
    """A conversation without its template: what was said, an empty line between two turns."""
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
