"""Prompts and demonstrations become tokens. No other file calls a chat template.

A completion is trained with the token that ends it, and with nothing the template writes after that token: what a
sampler would have produced. The tokens of a prompt are always the ones `prompt_tokens` gives, also in a demonstration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from whet.data.rows import BadRow, first_line, value_text
from whet.types import Demonstration, Encoded, Message, Prompt, WhetError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_TURNS = 8  # named in an error line
ROWS_TOGETHER = 256  # tokenized in one call: more are hardly faster, and their texts are held until it ends
# a placeholder for any completion, to see what a template writes after one
PROBE = "probe0completion"
THOUGHT_ENDS = ("</think>", "[/THINK]")  # what models write after their thoughts


class _Frame(NamedTuple):
    """What the template writes around any completion of a conversation."""

    opening: str  # everything before it, generation prompt included
    closing: str | None  # everything after it; None where the template did not write the completion


class _WrittenTurn(NamedTuple):
    """One completion as the template writes it."""

    opening: str  # everything before it, generation prompt included
    completion: str  # up to and with the token that ends the turn
    ended: bool  # False when the template writes no such token


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> tuple[int, ...]:
    """[prompt length]: what the model sees before its completion."""
    if prompt.text is None:
        return _known(tokenizer, tuple(_opened(tokenizer, prompt, tokenize=True)), prompt)
    tokens = tuple(tokenizer(prompt.text)["input_ids"])
    tokens = _known(tokenizer, tokens, prompt) if prompt.text else tokens
    # some tokenizers close every text; a prompt has to stay open
    closed = (*text_tokens(tokenizer, prompt.text), tokenizer.eos_token_id)
    return tokens[:-1] if tokens[-len(closed) :] == closed else tokens


def tokens_of_prompts(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """`prompt_tokens` of each. Conversations are written one by one and tokenized together, on all cores."""
    conversations = [prompt for prompt in prompts if prompt.text is None]
    if len(conversations) < 2 or not _writes_text(tokenizer):
        return [prompt_tokens(tokenizer, prompt) for prompt in prompts]
    texts = [_opened(tokenizer, prompt, tokenize=False) for prompt in conversations]
    rows = iter(tokenizer(texts, add_special_tokens=False)["input_ids"])
    return [
        prompt_tokens(tokenizer, prompt) if prompt.text is not None else _known(tokenizer, tuple(next(rows)), prompt)
        for prompt in prompts
    ]


def _writes_text(tokenizer: PreTrainedTokenizerBase) -> bool:
    """A tokenizer with a way of its own to write conversations may have no text for them."""
    writer = next((kind for kind in type(tokenizer).__mro__ if "apply_chat_template" in vars(kind)), object)
    return writer.__name__ == "PreTrainedTokenizerBase"


def _opened(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, *, tokenize: bool) -> Any:
    """A conversation up to where the completion begins, as text or tokens."""
    _require_written(tokenizer, prompt)
    return templated(tokenizer, prompt.messages, prompt.id, open_completion=True, tokenize=tokenize, tools=prompt.tools)


def demonstration_tokens(
    tokenizer: PreTrainedTokenizerBase, demonstration: Demonstration, *, every_completion: bool = False
) -> Encoded:
    """The prompt's tokens, then the completion's, which carry the loss.

    `every_completion` trains the earlier assistant turns too, except one that opens the conversation: it answers
    nothing.
    """
    prompt = demonstration.prompt
    before = prompt_tokens(tokenizer, prompt)
    if prompt.text is not None:
        completion = (*text_tokens(tokenizer, demonstration.completion), _end_token(tokenizer, prompt.id))
        # of a text without a prompt and without a token that opens it, nothing predicts the first token
        unlearnt = len(before) or 1
        whole = before + completion
        return Encoded(whole, (False,) * unlearnt + (True,) * (len(whole) - unlearnt))
    frame = _frame(tokenizer, prompt.messages, prompt.id, prompt.tools)
    last = _last_turn(tokenizer, demonstration, frame)
    whole = text_tokens(tokenizer, last.opening + last.completion)
    return _demonstrated(tokenizer, prompt, before, last, whole, every_completion)


def tokens_of_demonstrations(
    tokenizer: PreTrainedTokenizerBase, demonstrations: Iterable[Demonstration], *, every_completion: bool = False
) -> list[Encoded]:
    """`demonstration_tokens` of each. A few hundred conversations at a time are tokenized together, on all cores, and
    those that share a prompt have it written once."""
    left, rows = iter(demonstrations), list[Encoded]()
    while some := list(islice(left, ROWS_TOGETHER)):
        try:
            rows += _demonstrated_together(tokenizer, some, every_completion)
        except WhetError:  # one by one, it is said of the first row that cannot be used
            rows += [demonstration_tokens(tokenizer, row, every_completion=every_completion) for row in some]
    return rows


def _demonstrated_together(
    tokenizer: PreTrainedTokenizerBase, demonstrations: Sequence[Demonstration], every_completion: bool
) -> list[Encoded]:
    conversations = [row for row in demonstrations if row.prompt.text is None]
    if len(conversations) < 2 or not _writes_text(tokenizer):
        return [demonstration_tokens(tokenizer, row, every_completion=every_completion) for row in demonstrations]
    prompts = {id(row.prompt): row.prompt for row in conversations}
    for prompt in prompts.values():
        _require_written(tokenizer, prompt)
    frames = {key: _frame(tokenizer, prompt.messages, prompt.id, prompt.tools) for key, prompt in prompts.items()}
    turns = [_last_turn(tokenizer, row, frames[id(row.prompt)]) for row in conversations]
    texts = [frame.opening for frame in frames.values()] + [turn.opening + turn.completion for turn in turns]
    tokens = map(tuple, tokenizer(texts, add_special_tokens=False)["input_ids"])
    befores = {key: _known(tokenizer, next(tokens), prompt) for key, prompt in prompts.items()}
    written = iter(zip(turns, tokens, strict=True))
    rows = []
    for row in demonstrations:
        if row.prompt.text is not None:
            rows.append(demonstration_tokens(tokenizer, row))
            continue
        turn, whole = next(written)
        whole = _embedded(tokenizer, whole, f"prompt {row.prompt.id!r}")
        rows.append(_demonstrated(tokenizer, row.prompt, befores[id(row.prompt)], turn, whole, every_completion))
    return rows


def _last_turn(tokenizer: PreTrainedTokenizerBase, demonstration: Demonstration, frame: _Frame) -> _WrittenTurn:
    """The turn that a demonstration shows."""
    prompt = demonstration.prompt
    answer: Message = {"role": "assistant", "content": demonstration.completion}
    if demonstration.tool_calls:
        answer = {**answer, "tool_calls": list(demonstration.tool_calls)}
    messages = (*prompt.messages, answer)
    _require_tool_support(tokenizer, messages, prompt)
    return _turn(tokenizer, messages, frame, prompt.id, prompt.tools)


def _demonstrated(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    before: tuple[int, ...],
    last: _WrittenTurn,
    whole: tuple[int, ...],
    every_completion: bool,
) -> Encoded:
    """A conversation of which `before` are the prompt's tokens and `whole` those of the text with its last turn."""
    if whole[: len(before)] != before:
        # a merge runs across the boundary; a sampler starts from the prompt's own tokens, so training does too
        whole = before + text_tokens(tokenizer, last.completion)
    if not last.ended:
        whole = (*whole, _end_token(tokenizer, prompt.id))
    action = [False] * len(before) + [True] * (len(whole) - len(before))
    if every_completion:
        for start, stop in _earlier_completions(tokenizer, prompt, last.opening, before):
            action[start:stop] = [True] * (stop - start)
    return Encoded(whole, tuple(action))


def check_context(
    prompts: Sequence[Prompt], lengths: Sequence[int], *, max_new_tokens: int, context: int, reason: str = ""
) -> None:
    """Raise unless every prompt of `lengths` tokens leaves room for its completion in the model's context.

    With `max_new_tokens` 0 the lengths are those of whole rows, completions included. `reason` says why the context is
    what it is, where that is not obvious.
    """
    room = context - max_new_tokens
    too_long = [(length, prompt) for prompt, length in zip(prompts, lengths, strict=True) if length > room]
    if not too_long:
        return
    length, prompt = max(too_long, key=lambda pair: pair[0])
    others = f" (and {len(too_long) - 1} more)" if len(too_long) > 1 else ""
    expected = f"expected at most the model's context of {context}" + (f" ({reason})" if reason else "")
    if not max_new_tokens:
        raise WhetError(
            f"row {prompt.id!r}{others}: has {length} tokens; {expected}; "
            "shorten the row, leave such rows out with data.unusable=drop, or use a model with a longer context"
        )
    fix = "shorten the prompt, leave such rows out with data.unusable=drop, or use a model with a longer context"
    if length < context:
        fix = f"give sampling.max_new_tokens={context - length}, {fix}"
    raise WhetError(
        f"prompt {prompt.id!r}{others}: {length} tokens and max_new_tokens {max_new_tokens} make "
        f"{length + max_new_tokens}; {expected}; {fix}"
    )


def _earlier_completions(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, written: str, tokens: tuple[int, ...]
) -> list[tuple[int, int]]:
    """(start, stop) of each earlier completion in the prompt's tokens; `written` is the prompt as text."""
    spans = []
    for index, message in enumerate(prompt.messages):
        if message["role"] != "assistant" or index == 0:
            continue
        frame = _frame(tokenizer, prompt.messages[:index], prompt.id, prompt.tools)
        turn = _turn(tokenizer, prompt.messages[: index + 1], frame, prompt.id, prompt.tools)
        through = turn.opening + turn.completion
        if not written.startswith(through):
            raise WhetError(
                f"prompt {prompt.id!r}: the chat template writes messages[{index}] differently once turns follow it; "
                "expected a template that keeps its history; give data.every_completion=false, or a row per completion"
            )
        start = shared_length(text_tokens(tokenizer, turn.opening), tokens)
        spans.append((start, shared_length(text_tokens(tokenizer, through), tokens)))
    return spans


def _require_written(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> None:
    """Refuse a template that would drop in silence what stands before a completion: what somebody says, or tools."""
    roles = tuple(message["role"] for message in prompt.messages)
    if "tool" not in roles and _writes_text(tokenizer):
        for role in _unheard(tokenizer, str(tokenizer.chat_template), roles):
            raise BadRow(
                f"prompt {prompt.id!r}: the chat template does not write what {role!r} says; expected one that writes "
                "every turn; give one with model.chat_template=FILE, or put the words into another turn",
                f"the chat template does not write what {role!r} says",
            )
    if prompt.tools or any(message["role"] == "tool" or message.get("tool_calls") for message in prompt.messages):
        _require_tool_support(tokenizer, prompt.messages, prompt)


def _require_tool_support(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], prompt: Prompt) -> None:
    """Refuse a template that would drop tools, calls or results in silence."""
    write = partial(templated, tokenizer, prompt_id=prompt.id)
    without_calls = [{key: value for key, value in message.items() if key != "tool_calls"} for message in messages]
    without_results = [message for message in messages if message["role"] != "tool"]
    checks = (
        ("the column 'tools'", bool(prompt.tools), lambda: write(messages)),
        ("tool_calls", without_calls != list(messages), lambda: write(without_calls, tools=prompt.tools)),
        ("tool results", len(without_results) < len(messages), lambda: write(without_results, tools=prompt.tools)),
    )
    for name, is_used, without in checks:
        if is_used and write(messages, tools=prompt.tools) == without():
            raise BadRow(
                f"prompt {prompt.id!r}: the chat template does not write {name}; expected one with tool support; "
                "use a model that was trained with tools, or give one with model.chat_template=FILE",
                f"the chat template does not write {name}",
            )


@lru_cache(maxsize=64)
def _unheard(tokenizer: PreTrainedTokenizerBase, template: str, roles: tuple[str, ...]) -> tuple[str, ...]:
    """Those of system, developer and user whose words the template leaves out; `template` and roles decide."""
    words = [f"{PROBE}{place}end" for place in range(len(roles))]
    try:
        messages = [{"role": role, "content": text} for role, text in zip(roles, words, strict=True)]
        written = templated(tokenizer, messages, "")
    except WhetError:  # the conversation itself is refused, in its own words
        return ()
    missing = (role for role, text in zip(roles, words, strict=True) if text not in written)
    return tuple(role for role in missing if role != "assistant")


def _frame(
    tokenizer: PreTrainedTokenizerBase,
    before: Sequence[Message],
    prompt_id: str,
    tools: Sequence[Mapping[str, Any]] = (),
) -> _Frame:
    """What the template writes around an assistant turn after these messages."""
    opening: str = templated(tokenizer, before, prompt_id, open_completion=True, tools=tools)
    probe: str = templated(tokenizer, (*before, {"role": "assistant", "content": PROBE}), prompt_id, tools=tools)
    _, turn, closing = probe.rpartition(PROBE)
    return _Frame(opening, closing if turn else None)


def _turn(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    frame: _Frame,
    prompt_id: str,
    tools: Sequence[Mapping[str, Any]] = (),
) -> _WrittenTurn:
    """The last of `messages`, an assistant turn, as the template writes it inside its frame."""
    opening, closing = frame
    whole: str = templated(tokenizer, messages, prompt_id, tools=tools)
    if closing is None or not (whole.startswith(opening) and whole.endswith(closing)):
        raise WhetError(
            f"prompt {prompt_id!r}: the chat template rewrites the prompt once the completion is there, so the "
            "prompt's tokens do not begin the demonstration; expected a template that only appends; "
            "give the tokenizer a chat_template that writes the same text before a completion as its generation prompt"
        )
    body = whole[len(opening) : len(whole) - len(closing)]
    end = _end_of_turn(tokenizer, closing)
    return _WrittenTurn(opening, body + closing[:end], end > 0)


def _end_of_turn(tokenizer: PreTrainedTokenizerBase, closing: str) -> int:
    """Where the first control token of `closing` stops, 0 when it holds none."""
    closing_tokens = [token for token in control_tokens(tokenizer) if token in closing]
    if not closing_tokens:
        return 0
    first = min(closing_tokens, key=lambda token: (closing.index(token), -len(token)))
    return closing.index(first) + len(first)


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """The added tokens of a tokenizer, special or not."""
    # tokenizers also add runs of blanks, which end nothing
    candidates = (*_added_tokens(tokenizer, len(tokenizer)), *tokenizer.all_special_tokens)
    return tuple(token for token in dict.fromkeys(candidates) if token.strip())


@lru_cache(maxsize=2)
def _added_tokens(tokenizer: PreTrainedTokenizerBase, num_tokens: int) -> tuple[str, ...]:
    # thousands in some vocabularies, asked for with every row; a new token changes num_tokens, hence the answer
    return tuple(str(token) for token in tokenizer.added_tokens_decoder.values())


def templated(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    prompt_id: str,
    *,
    open_completion: bool = False,
    tokenize: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
) -> Any:
    """The conversation as the template writes it: text, or tokens; `open_completion` adds the start of a completion."""
    import jinja2

    if not tokenizer.chat_template:
        raise WhetError(
            f"prompt {prompt_id!r}: is a conversation but the tokenizer has no chat template; "
            "use plain text prompts, or give one with model.chat_template=FILE"
        )
    try:
        return tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            add_generation_prompt=open_completion,
            tokenize=tokenize,
            return_dict=False,
            tools=[dict(tool) for tool in tools] or None,
        )
    except (jinja2.TemplateSyntaxError, OverflowError, RecursionError, MemoryError) as error:
        raise WhetError(
            f"prompt {prompt_id!r}: the chat template cannot be run ({first_line(error)}); expected a Jinja template "
            "that ends; correct the tokenizer's chat_template"
        ) from error
    except Exception as error:  # whatever a template of somebody else's raises
        turns = [message["role"] for message in messages]
        roles = ", ".join(turns if len(turns) <= MOST_TURNS else [*turns[:MOST_TURNS], "..."])
        raise BadRow(
            f"prompt {prompt_id!r}: the chat template refuses the turns {roles} ({first_line(error)}); "
            "expected a conversation it can write; change the turns or the tokenizer's chat_template",
            "the chat template refuses the turns",
        ) from error


def _end_token(tokenizer: PreTrainedTokenizerBase, prompt_id: str) -> int:
    if tokenizer.eos_token_id is None:
        raise WhetError(
            f"prompt {prompt_id!r}: the tokenizer has no eos_token to end the completion; expected one; "
            "set tokenizer.eos_token"
        )
    return int(tokenizer.eos_token_id)


def text_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """Token ids of plain text, without special tokens; raises `BadRow` for an id outside the model's embedding."""
    tokens = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    return _embedded(tokenizer, tokens, f"the text {value_text(text)}") if _rows(tokenizer) is not None else tokens


def tokens_of_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """`text_tokens` of each, tokenized together, on all cores."""
    rows = tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
    return [
        _embedded(tokenizer, tuple(tokens), f"the text {value_text(text)}")
        for text, tokens in zip(texts, rows, strict=True)
    ]


def _rows(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """How many tokens the model knows, where the tokenizer knows more; `whet.model.load` notes it."""
    return getattr(tokenizer, "embedding_rows", None)


def _known(tokenizer: PreTrainedTokenizerBase, tokens: tuple[int, ...], prompt: Prompt) -> tuple[int, ...]:
    """The tokens of a prompt: at least one, and none beyond the model's embedding."""
    if not tokens:
        raise BadRow(
            f"prompt {prompt.id!r}: the tokenizer makes no token of {value_text(prompt.question())}; expected at least "
            "one; write it otherwise, or use another model",
            "the tokenizer makes no token of the prompt",
        )
    return _embedded(tokenizer, tokens, f"prompt {prompt.id!r}")


def _embedded(tokenizer: PreTrainedTokenizerBase, tokens: tuple[int, ...], shown: str) -> tuple[int, ...]:
    rows = _rows(tokenizer)
    if rows is not None and tokens and max(tokens) >= rows:
        beyond = max(tokens)
        raise BadRow(
            f"{shown}: holds token {beyond} ({tokenizer.convert_ids_to_tokens(beyond)!r}), but the model's embedding "
            f"has {rows} rows; expected tokens that the model knows; take tokenizer and model from the same place",
            "tokens that the model does not have",
        )
    return tokens


def shared_length(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How many leading tokens, or characters, the two have in common."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
