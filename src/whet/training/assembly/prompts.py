"""From a config's data section to prompts: those to learn from, and those to evaluate on."""

from __future__ import annotations

from collections.abc import Sequence

from whet.data.prompts import prompts_from, with_system_prompt
from whet.data.source import EVAL, TRAIN
from whet.data.usable import count_words
from whet.training.assembly.forms import prompt_form
from whet.training.assembly.rows import left_out_phrases, prompt_words, read_usable
from whet.training.config import Config, EvaluationConfig, PolicyConfig
from whet.types import Prompt, WhetError


def load_prompts(config: Config | EvaluationConfig, evaluation: bool) -> list[Prompt]:
    """The training prompts of a config or, with `evaluation`, its eval prompts."""
    prompts = _read_prompts(config, evaluation)
    if evaluation:
        require_column(prompts, config.eval.by, config.eval.source or config.data.source)
    return prompts


def _read_prompts(config: Config | EvaluationConfig, evaluation: bool) -> list[Prompt]:
    data = config.data
    if data.parsed_source.is_generated:
        split, count = (EVAL, config.eval.prompts) if evaluation else (TRAIN, data.count)
        prompts = data.parsed_source.prompts(split, count, config.seed, data.difficulty, data.settings)
        return with_system_prompt(prompts, data.system_prompt) if data.system_prompt else prompts
    source = config.eval.source if evaluation else data.source
    if not source:
        return []
    limit = 0 if evaluation else data.limit
    return read_usable(data, source, lambda _: prompts_from, limit, prompt_form(config, source))


def require_column(prompts: Sequence[Prompt], by: str, source: str) -> None:
    """Raise unless every prompt has a value in the column `by`, where one is named."""
    without = next((prompt for prompt in prompts if by and prompt.meta.get(by) is None), None)
    if without is not None:
        known = ", ".join(sorted(without.meta)) or "none but those of the prompt"
        raise WhetError(
            f"eval.by={by}: row {without.id!r} of {source} has no such column; expected one of its columns ({known}), "
            "with a value in every row"
        )


def data_summary(config: Config, prompts: Sequence[Prompt], eval_prompts: Sequence[Prompt]) -> str:
    """The data of a run in one line."""
    data = config.data
    about = f" difficulty {', '.join(map(str, data.difficulty))}" if data.parsed_source.is_task else ""
    numbers = [f"{len(prompts)} prompts"] if prompts else []
    different = len({prompt_words(prompt) for prompt in prompts})
    is_game = isinstance(config, PolicyConfig) and bool(config.env.name or config.env.agent)
    numbers += [f"{different} different"] if different < len(prompts) and not is_game else []
    numbers += [f"{count_words(eval_prompts)} held out"] if eval_prompts else []
    numbers += left_out_phrases(prompts, eval_prompts)
    if any(prompt.text is not None and prompt.meta.get("tools") for prompt in (*prompts, *eval_prompts)):
        numbers.append("plain text: the column tools goes to the rewards only; data.as_chat=true shows it to the model")
    return f"{data.source}{about} ({', '.join(numbers) or 'demonstrations'})"
