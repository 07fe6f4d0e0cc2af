"""What follows a sampled turn, as tokens: the chat template, applied incrementally.

What the policy sampled is never tokenised again. The model's own template writes an environment's answer behind a
placeholder for the sampled turn, and only the text behind that turn's end becomes tokens. When a renderer is made,
probe conversations show whether those pieces, put together, are what the template writes for the whole conversation.
Where a template rewrites its history they are not, and the renderer refuses with the reason.

What an environment says can neither end a turn nor speak as somebody else: strings that the tokenizer would read as
added tokens are tokenised as ordinary text, and markers that the template writes as plain text are broken up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from whet.data.chat import control_tokens, shared_length, templated
from whet.types import Message, WhetError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# placeholders: letters and digits only, so that no template escapes, trims or parses them
SAMPLED = "probe0sampled"
THOUGHT = "probe0thought"
CALL_ID = "probe0000"  # nine letters and digits, as Mistral's templates demand
THINKING = (("<think>\n", "\n</think>\n\n"), ("[THINK]", "[/THINK]"))
HISTORIES = ("template", "sampled")
# what a template writes as plain text to say who speaks: tags, [INST], "### Heading", "User:"
MARKER = re.compile(
    r"</?[\w|:.-]{2,40}>|<<[^<>\s]{1,40}>>|\[/?[A-Z_]{2,40}\]|^#{1,4} ?[A-Za-z]\w*:?|^[A-Za-z]\w{1,20}:", re.MULTILINE
)


@dataclass(frozen=True)
class RenderedAnswer:
    """The tokens behind a sampled turn, up to and with the start of the policy's next turn."""

    tokens: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]  # of each message in `tokens`, with what the template writes around it
    defused: int  # places in the messages that would have read as control tokens or as the template's own markers


class TurnRenderer(Protocol):
    """Writes an environment's answers."""

    end_tokens: frozenset[int]  # a sampled turn that ends with one of these has ended as the template ends it

    def answer(self, conversation: Sequence[Message], messages: Sequence[Message], *, ended: bool) -> RenderedAnswer:
        """The tokens that follow the policy's last turn; with `ended` False, they close that turn first.

        `conversation` is everything so far, the policy's last turn included.
        """
        ...


def turn_renderer(
    tokenizer: PreTrainedTokenizerBase,
    *,
    chat: bool,
    tools: Sequence[Mapping[str, Any]] = (),
    history: str = "template",
    roles: Sequence[str] = (),
) -> TurnRenderer:
    """The renderer of a tokenizer; `chat` False: prompts are plain text, and answers are appended as they are.

    `history` "template" holds a conversation to what the template writes; "sampled" lets the policy go on seeing what
    it wrote where the template would rewrite it. `roles` are those the environment speaks as, where they are known:
    what cannot be written is then refused here and not at the first answer.
    """
    if history not in HISTORIES:
        raise WhetError(f"env.history is {history!r}; expected one of {', '.join(HISTORIES)}")
    if not getattr(tokenizer, "is_fast", False):
        raise WhetError(
            f"the tokenizer {type(tokenizer).__name__} gives no offsets, which an environment's answers need; "
            "expected one of the tokenizers library; save the model with its tokenizer.json"
        )
    if not chat:
        return _PlainTurns(tokenizer)
    renderer = _TemplateTurns(tokenizer, tools, history)
    for role in roles:
        renderer.require(role, thinks=False)
    return renderer


class _PlainTurns:
    """Answers to plain-text prompts: the contents, one after another."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        eos = tokenizer.eos_token_id
        self.end_tokens: frozenset[int] = frozenset() if eos is None else frozenset((int(eos),))

    def answer(self, conversation: Sequence[Message], messages: Sequence[Message], *, ended: bool) -> RenderedAnswer:
        contents = [_content(message) for message in messages]
        text = "".join(contents)
        encoded = _encode(self._tokenizer, text, [(0, len(text))])
        places = [encoded.place(sum(map(len, contents[:count]))) for count in range(len(contents) + 1)]
        return RenderedAnswer(encoded.tokens, _pairs(places), encoded.split)


class _Refused(Exception):
    """Why a template cannot be applied incrementally."""


class _TemplateTurns:
    """Answers in a conversation, as the chat template writes them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]], history: str) -> None:
        self._tokenizer, self._tools, self._history = tokenizer, tuple(tools), history
        self._calls = self._writes_calls()
        self._ends: dict[str, _End] = {}
        self._refusals: dict[tuple[str, bool], str] = {}
        for role in ("user", "tool"):
            try:
                self._ends[role] = self._end(role)
            except (_Refused, WhetError) as error:
                self._refusals[role, False] = self._refusals[role, True] = str(error)
                continue
            for thinks in (False, True):
                try:
                    self._check(role, thinks=thinks)
                except (_Refused, WhetError) as error:
                    self._refusals[role, thinks] = str(error)
        if not self._ends:
            raise WhetError(
                f"the chat template cannot be applied turn by turn: {self._refusals['user', False]}; expected a "
                "template that only appends; use a model with another chat template, or plain-text prompts"
            )
        self._markers = self._plain_markers()
        tokens = [end.token for end in self._ends.values()] + [self._last_token(role) for role in self._ends]
        self.end_tokens = frozenset(_token_id(tokenizer, token) for token in tokens if token)

    def answer(self, conversation: Sequence[Message], messages: Sequence[Message], *, ended: bool) -> RenderedAnswer:
        if not messages:
            raise WhetError("an environment answered a turn without a message; expected at least one, or done=True")
        thinks = any(_thinks(message) for message in conversation if message["role"] == "assistant")
        for message in messages:
            self.require(str(message["role"]), thinks=thinks)
        broken, safe = 0, []
        for index, message in enumerate(messages):
            content, count = _break_up(_content(message), self._markers)
            broken += count
            safe.append(_bare(message, index) | {"content": content})
        try:
            written = self._written(safe)
        except _Refused as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            raise WhetError(
                f"the chat template cannot write the answer of {roles}: {error}; expected a template that appends it "
                "as it is; let the environment answer as another role, or use another chat template"
            ) from error
        end = self._ends[_kind(safe)]
        # the end token is a border of the tokenizer's own: what stands before it does not reach what follows
        anchor = len(end.token)
        encoded = _encode(
            self._tokenizer,
            end.token + written.text,
            [(start + anchor, stop + anchor) for start, stop in written.contents],
        )
        tokens, skipped = encoded.tokens, 0
        if ended:
            skipped = encoded.place(anchor)
            tokens = tokens[skipped:]
        elif end.before:
            lead = _encode(self._tokenizer, end.before, []).tokens
            tokens, skipped = lead + tokens, -len(lead)
        places = [encoded.place(border + anchor) - skipped for border in written.borders]
        return RenderedAnswer(tokens, _pairs(places), broken + encoded.split)

    def require(self, role: str, *, thinks: bool) -> None:
        """Raise unless the template can be applied incrementally where `role` answers a turn."""
        asked = "tool" if role == "tool" else "user"
        # a template that opens every turn with a thought writes none without; nobody has sampled one without either
        reasons = [self._refusals.get((asked, each)) for each in ((True,) if thinks else (False, True))]
        if None in reasons:
            return
        way_out = "use another chat template, or let the environment answer as another role"
        if self._history == "template":
            way_out = f"give env.history=sampled to let the policy go on seeing what it wrote, or {way_out}"
        where = f"where {role!r} answers{' a turn with thoughts' if thinks else ''}"
        raise WhetError(
            f"the chat template cannot be applied turn by turn {where}: {reasons[0]}; "
            f"expected a template that only appends; {way_out}"
        )

    def _write(self, messages: Sequence[Message], *, opens: bool = True) -> str:
        written: str = templated(self._tokenizer, messages, "turns", open_completion=opens, tools=self._tools)
        return written

    def _writes_calls(self) -> bool:
        """True when the template writes the calls of an assistant turn."""
        try:
            return SAMPLED in self._write((_QUESTION, _calling([_RESULT]), _RESULT))
        except WhetError:
            return False

    def _sampled(self, messages: Sequence[Message]) -> Message:
        """A placeholder for the turn that `messages` answer."""
        if _kind(messages) == "tool" and self._calls:
            return _calling(messages)
        return {"role": "assistant", "content": SAMPLED}

    def _tail(self, messages: Sequence[Message], of: Sequence[Message], *, opens: bool) -> str:
        """What the template writes behind the placeholder of the sampled turn that `of` answers."""
        written = self._write((_QUESTION, self._sampled(of), *messages), opens=opens)
        _, found, tail = written.partition(SAMPLED)
        if not found:
            raise _Refused("it leaves out what the assistant wrote")
        return tail

    def _end(self, role: str) -> _End:
        """How the template ends a turn that `role` answers."""
        following = _RESULT if role == "tool" else _REMARK
        tail = self._tail([following], [following], opens=True)
        closing, found, _ = tail.partition(following["content"])
        if not found:
            raise _Refused(f"it does not write what {role!r} says")
        by_call = role == "tool" and self._calls
        if by_call:
            # behind a call stand the call's own closing tokens; the last one before the answer ends the turn
            closing = closing[: shared_length(closing, self._tail([], [following], opens=False))]
        found_tokens = list(_occurrences(closing, control_tokens(self._tokenizer)))
        if not found_tokens:
            raise _Refused("it writes no token of the tokenizer at the end of a turn")
        start, token = found_tokens[-1 if by_call else 0]
        return _End("" if by_call else closing[:start], closing[:start], token)

    def _last_token(self, role: str) -> str:
        """The token that ends a turn nothing follows: gpt-oss has one of its own."""
        following = _RESULT if role == "tool" else _REMARK
        try:
            tail = self._tail([], [following], opens=False)
        except (_Refused, WhetError):
            return ""
        closing = self._ends[role].closing
        found = list(_occurrences(tail[len(closing) :], control_tokens(self._tokenizer)))
        return found[0][1] if tail.startswith(closing) and found and found[0][0] == 0 else ""

    def _behind(self, messages: Sequence[Message], of: Sequence[Message], *, opens: bool = True) -> str:
        """What the template writes behind the token that ends the sampled turn."""
        end = self._ends[_kind(of)]
        tail, closing = self._tail(messages, of, opens=opens), end.closing + end.token
        if not tail.startswith(closing):
            raise _Refused("it ends a turn in more than one way")
        return tail[len(closing) :]

    def _written(self, messages: Sequence[Message]) -> _Written:
        marks = [{**message, "content": f"probe0content{index}x"} for index, message in enumerate(messages)]
        frame = self._behind(marks, marks)
        pieces = _split(frame, [mark["content"] for mark in marks])
        if pieces is None:
            raise _Refused("it does not write every message once and in order")
        contents = []
        for index, message in enumerate(messages):
            left, right = _joined(pieces[: index + 1], marks), _joined(pieces[index + 1 :], marks[index + 1 :])
            mixed = self._behind([*marks[:index], message, *marks[index + 1 :]], marks)
            if not (mixed.startswith(left) and mixed.endswith(right) and len(mixed) >= len(left) + len(right)):
                raise _Refused(f"what it writes around a {message['role']!r} message depends on the message")
            contents.append(mixed[len(left) : len(mixed) - len(right)])
        text, spans = pieces[0], []
        for content, piece in zip(contents, pieces[1:], strict=True):
            spans.append((len(text), len(text) + len(content)))
            text += content + piece
        # a message goes as far as the template writes the same without those that follow
        borders, grown = [], 0
        for count in range(len(marks) + 1):
            try:
                shared = shared_length(frame, self._behind(marks[:count], marks, opens=False))
            except (_Refused, WhetError):
                shared = 0
            if count:
                grown += len(contents[count - 1]) - len(marks[count - 1]["content"])
            least = spans[count - 1][1] if count else 0
            most = spans[count][0] if count < len(spans) else len(text)
            borders.append(min(max(shared + grown, least), most))
        return _Written(text, tuple(spans), tuple(borders))

    def _check(self, role: str, *, thinks: bool) -> None:
        """Raise `_Refused` unless the pieces of a conversation of three turns are what the template writes of it."""
        answers: list[list[Message]] = [[_REMARK], [_REMARK], [_REMARK]]
        if role == "tool":
            answers = [[_RESULT], [_RESULT | {"content": "probe0second"}], [_RESULT]]
        conversation: list[Message] = [_QUESTION]
        at = len(self._write(conversation))
        turns = []
        for number, following in enumerate(answers):
            turn = dict(self._sampled(following))
            if thinks:
                opening, closing = THINKING[0]
                turn["content"] = f"{opening}{THOUGHT}{number}{closing}{turn.get('content') or ''}"
            turns.append(turn)
            conversation += [turn, *following]
        whole = self._write(conversation)
        if not whole.startswith(self._write([_QUESTION])):
            if self._history == "sampled":
                return
            raise _Refused("it does not write an earlier turn as its generation prompt opens it")
        for number, following in enumerate(answers):
            end = self._ends[role]
            behind = end.closing + end.token + self._behind(following, following)
            place = whole.find(SAMPLED, at)
            if place < 0:
                raise _Refused("it leaves out what the assistant wrote")
            sampled = whole[at:place]
            if self._history == "template":
                if thinks and f"{THOUGHT}{number}" not in sampled:
                    raise _Refused(f"it drops the thoughts of earlier turns where {role!r} speaks")
                if not thinks and role == "user" and sampled:
                    raise _Refused(f"it writes {sampled!r} into earlier turns")
            at = place + len(SAMPLED)
            if not whole.startswith(behind, at):
                if self._history == "sampled" and number < len(answers) - 1:
                    at += shared_length(behind, whole[at:])
                    continue
                raise _Refused(f"it writes an answer of {role!r} otherwise once more turns follow")
            at += len(behind)
        if at != len(whole):
            raise _Refused("it writes more than the turns")

    def _plain_markers(self) -> re.Pattern[str] | None:
        """The markers that the template writes as plain text around what others say, as one pattern."""
        found: set[str] = set()
        for role in self._ends:
            following = _RESULT if role == "tool" else _REMARK
            frame = self._behind([following, following] if role == "tool" else [following], [following])
            for content in (following["content"], *control_tokens(self._tokenizer)):
                frame = frame.replace(content, "\n")
            found.update(MARKER.findall(frame))
        if not found:
            return None
        parts = [re.escape(marker) if marker[0] in "<[" else f"^{re.escape(marker)}" for marker in sorted(found)]
        return re.compile("|".join(parts), re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class _End:
    """How the template ends a sampled turn."""

    before: str  # what closes a turn before its end token
    closing: str  # what the template writes between the placeholder and the token
    token: str


@dataclass(frozen=True)
class _Written:
    """An answer as text."""

    text: str  # behind the token that ends the sampled turn
    contents: tuple[tuple[int, int], ...]  # where each message's content stands
    borders: tuple[int, ...]  # where each message begins, and where the last one ends


_QUESTION: dict[str, Any] = {"role": "user", "content": "probe0question"}
_REMARK: dict[str, Any] = {"role": "user", "content": "probe0remark"}
_RESULT: dict[str, Any] = {"role": "tool", "content": "probe0result", "name": "probe", "tool_call_id": CALL_ID}


def _kind(messages: Sequence[Message]) -> str:
    return "tool" if messages and messages[0]["role"] == "tool" else "user"


def _calling(messages: Sequence[Message]) -> Message:
    """An assistant turn with the calls that `messages` answer; the placeholder is the last one's argument."""
    results = [message for message in messages if message["role"] == "tool"]
    calls = [
        {
            "type": "function",
            "id": result["tool_call_id"],
            "function": {"name": result["name"], "arguments": {"x": "probe" if result is not results[-1] else SAMPLED}},
        }
        for result in results
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _bare(message: Message, index: int) -> dict[str, Any]:
    """Who speaks. Names and ids are words of the model's own, or of a stranger's: letters and digits are kept."""
    if message["role"] != "tool":
        return {"role": message["role"]}
    name = re.sub(r"[^\w.-]", "_", str(message.get("name") or "tool"))[:64]
    given = re.sub(r"[^A-Za-z0-9_-]", "", str(message.get("tool_call_id") or ""))[:64]
    return {"role": "tool", "name": name, "tool_call_id": given or f"call{index:05d}"}


def _content(message: Message) -> str:
    """A message's content as text: a string, or the texts of its parts."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list | tuple):
        return "".join(str(part.get("text", "")) if isinstance(part, Mapping) else str(part) for part in content)
    return json.dumps(content, ensure_ascii=False, default=str)


def _thinks(message: Message) -> bool:
    content = _content(message)
    return any(closing.strip() in content for _, closing in THINKING)


def _break_up(content: str, markers: re.Pattern[str] | None) -> tuple[str, int]:
    """The content with a space behind the first character of each marker, and how many there were."""
    count = 0
    while markers is not None and (found := len(markers.findall(content))):
        content = markers.sub(lambda match: f"{match[0][0]} {match[0][1:]}", content)
        count += found
    return content, count


def _split(text: str, marks: Sequence[str]) -> list[str] | None:
    """The pieces of `text` around the marks, each of which stands there once; else None."""
    pieces = []
    for mark in marks:
        if text.count(mark) != 1:
            return None
        piece, _, text = text.partition(mark)
        pieces.append(piece)
    return [*pieces, text]


def _joined(pieces: Sequence[str], marks: Sequence[Message]) -> str:
    """The pieces with the marks between them."""
    parts = [pieces[0]]
    for mark, piece in zip(marks, pieces[1:], strict=False):
        parts += [mark["content"], piece]
    return "".join(parts)


def _occurrences(text: str, tokens: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(place, token) of each control token in `text`, from left to right; of two at one place the longer."""
    if not tokens:
        return
    pattern = "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True))
    for match in re.finditer(pattern, text):
        yield match.start(), match[0]


def _token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    (number,) = tokenizer.convert_tokens_to_ids([token])
    return int(number)


def _pairs(places: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(pairwise(places))


@dataclass(frozen=True)
class _EncodedText:
    tokens: tuple[int, ...]
    starts: tuple[int, ...]  # the character each token begins at
    split: int  # strings in the contents that the tokenizer would have read as added tokens

    def place(self, character: int) -> int:
        """The first token that begins at this character or behind it."""
        return next((i for i, start in enumerate(self.starts) if start >= character), len(self.starts))


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, contents: Sequence[tuple[int, int]]) -> _EncodedText:
    """The tokens of `text`, as the tokenizer makes them; between the borders of `contents` none is an added token.

    Where a content would make one, the text is cut inside it and the pieces are tokenised on their own.
    """
    control = {_token_id(tokenizer, token) for token in control_tokens(tokenizer) if len(token) > 1}
    cuts: set[int] = set()
    while True:
        tokens, starts, new = [], [], []
        borders = [0, *sorted(cuts), len(text)]
        for begin, finish in pairwise(borders):
            encoded = tokenizer(text[begin:finish], add_special_tokens=False, return_offsets_mapping=True)
            for token, (start, stop) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
                tokens.append(int(token))
                starts.append(begin + start)
                if token in control and any(begin + start < last and begin + stop > first for first, last in contents):
                    inside = range(begin + start + 1, begin + stop)
                    new += [inside[0]] if inside else []
        if not new:
            return _EncodedText(tuple(tokens), tuple(starts), len(cuts))
        cuts.update(new)
