"""How a model is asked: by bare text, a user message, or a benchmark's question and the form its answer has."""

from __future__ import annotations

from dataclasses import dataclass

from whet.data.sections import DataSection
from whet.data.source import parse_source
from whet.model.chat_template import has_chat_template
from whet.registry import lookup
from whet.training.assembly.engines import is_server
from whet.training.config import Config, EvaluationConfig
from whet.types import WhetError

AUTO = "auto"


@dataclass(frozen=True)
class PromptForm:
    """How the text prompts of one source are sent."""

    as_chat: bool = False  # as a user message
    says_answer_form: bool = False  # a benchmark's: the message says which form the answer has
    words: str = ""  # about a benchmark, for the run's facts


def stated_form(data: DataSection) -> PromptForm:
    """What the data section says by itself, where no model is asked: auto is plain text."""
    return PromptForm(as_chat=data.as_chat is True or bool(data.system_prompt))


def prompt_form(config: Config | EvaluationConfig, source: str) -> PromptForm:
    """`data.as_chat`, or for a benchmark what the model knows. Where chat is demanded, a template must be there."""
    chosen, benchmark = config.data.as_chat, parse_source(source).benchmark
    system = config.data.system_prompt
    if system and chosen == AUTO and benchmark is None:
        chosen = True
    if chosen is False or (chosen == AUTO and benchmark is None):
        return PromptForm(words="plain text (data.as_chat=false)" if benchmark else "")
    has_template = is_served(config) or bool(config.model.chat_template) or has_chat_template(config.model.name)
    if (chosen is True or system) and has_template is False:
        asked, kind, fix = "data.as_chat=true", "user", "data.as_chat=false"
        if system:
            asked, kind, fix = "data.system_prompt", "system", "none"
        raise WhetError(
            f"{asked}: {config.model.name} has no chat template to write a {kind} message with; give {fix}, "
            "model.chat_template, or a model that was trained to chat"
        )
    if chosen is True:
        return PromptForm(
            as_chat=True, words="the bare prompt as a user message (data.as_chat=true)" if benchmark else ""
        )
    if not has_template:
        why = "the model has no chat template" if has_template is False else "the model's chat template cannot be read"
        return PromptForm(words=f"plain text ({why})")
    asked = f" that asks for {benchmark.answer_form}" if benchmark and benchmark.answer_form else ""
    why = "the model has a chat template; data.as_chat=false sends plain text"
    return PromptForm(as_chat=True, says_answer_form=True, words=f"a user message{asked} ({why})")


def form_facts(config: Config | EvaluationConfig, *sources: str) -> dict[str, str]:
    """How benchmarks are asked, for the run's facts; nothing where none of the sources is one."""
    words: dict[str, list[str]] = {}
    for source in dict.fromkeys(sources):
        if source and (benchmark := parse_source(source).benchmark):
            words.setdefault(prompt_form(config, source).words, []).append(benchmark.name)
    parts = [word if len(words) == 1 else f"{', '.join(names)}: {word}" for word, names in words.items()]
    return {"form": "; ".join(parts)} if parts else {}


def is_served(config: Config | EvaluationConfig) -> bool:
    """True where a server is asked instead of a model that runs here."""
    return is_server(lookup("engine", config.sampling.engine))  # the server writes conversations by its own template
