"""What follows a sampled turn, as tokens: the chat template, applied incrementally.

What the policy sampled is never tokenised again. The model's own template writes an environment's answer after a
placeholder for the sampled turn, and only the text after that turn's end becomes tokens. When a renderer is made,
probe conversations show whether those pieces, put together, are what the template writes for the whole conversation.
Where a template rewrites its history they are not, and the renderer refuses with the reason.

What an environment says can neither end a turn nor speak as somebody else: strings that the tokenizer would read as
added tokens are tokenised as ordinary text, and markers that the template writes as plain text are broken up.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import string
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from whet.data.chat import THOUGHT_ENDS, control_tokens, shared_length, templated
from whet.types import Message, WhetError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# placeholders: letters and digits only, so that no template escapes, trims or parses them
SAMPLED = "probe0sampled"
THOUGHT = "probe0thought"
CALL_ID = "probe0000"  # nine letters and digits, as Mistral's templates demand
HISTORIES = ("template", "sampled")
MOST_RENDERED = 4096  # answers that are kept as tokens
MARKS = r""".,:;!?'"()+*/=%$#@&~^_-"""
# letters, digits and marks; brackets as JSON has them, and not as tags like [INST] or [/THINK] do
_PLAIN = rf"[0-9A-Za-z \n{re.escape(MARKS)}{{}}\]]*"
PLAIN = re.compile(rf"(?=\S){_PLAIN}(?:\[(?![A-Z/]){_PLAIN})*(?<=\S)")
ALL_PLAIN = f"{MARKS}\n\n {string.ascii_letters}  {string.digits} \n{MARKS}"
IN_BRACKETS = tuple(f"{first}{ALL_PLAIN} [{{}}, []] {last}" for first, last in ("{}", "[]"))
# what a template writes as plain text to say who speaks: tags, [INST], "### Heading", "User:"
MARKER = re.compile(
    r"</?[\w|:.-]{2,40}>|<<[^<>\s]{1,40}>>|\[/?[A-Z_]{2,40}\]|^#{1,4} ?[A-Za-z]\w*:?|^[A-Za-z]\w{1,20}:", re.MULTILINE
)


@dataclass(frozen=True)
class RenderedAnswer:
    """The tokens after a sampled turn, up to and with the start of the policy's next turn."""

    tokens: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]  # of each message in `tokens`, with what the template writes around it
    defused: int  # places in the messages that would have read as control tokens or as the template's own markers


class TurnRenderer(Protocol):
    """Writes an environment's answers as tokens, in the form of the chat template."""

    end_tokens: frozenset[int]  # a sampled turn that ends with one of these has ended as the template ends it

    def answer(
        self,
        conversation: Sequence[Message],
        messages: Sequence[Message],
        *,
        ended: bool,
        last_token: int | None = None,
    ) -> RenderedAnswer:
        """The tokens that follow the policy's last turn; with `ended` False, they close that turn first.

        `conversation` is everything so far, the policy's last turn included. `last_token`, the last one sampled, says
        more than `ended` where a turn ends with one token before a tool's result and with another before a user.
        """
        ...

    def expect(self, answers: Sequence[Sequence[Message]]) -> None:
        """Announce the answers that will be asked for next: they are tokenized together, on all cores."""
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
        renderer.require(role)
    return renderer


class _PlainTurns:
    """Answers to plain-text prompts: the contents, one after another."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._encoder = _TextEncoder(tokenizer, control_tokens(tokenizer))
        self._rendered: dict[tuple[str, ...], RenderedAnswer] = {}
        eos = tokenizer.eos_token_id
        self.end_tokens: frozenset[int] = frozenset() if eos is None else frozenset((int(eos),))

    def answer(
        self,
        conversation: Sequence[Message],
        messages: Sequence[Message],
        *,
        ended: bool,
        last_token: int | None = None,
    ) -> RenderedAnswer:
        contents = tuple(_content(message) for message in messages)
        if contents not in self._rendered:
            _make_place(self._rendered)
            text = "".join(contents)
            encoded = self._encoder.encoded(text, [(0, len(text))])
            places = [encoded.place(sum(map(len, contents[:count]))) for count in range(len(contents) + 1)]
            self._rendered[contents] = RenderedAnswer(encoded.tokens, _pairs(places), encoded.split)
        return self._rendered[contents]

    def expect(self, answers: Sequence[Sequence[Message]]) -> None:
        self._encoder.expect(["".join(map(_content, messages)) for messages in answers])


class _Refused(Exception):
    """Why a template cannot be applied incrementally."""


class _TemplateTurns:
    """Answers in a conversation, as the chat template writes them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]], history: str) -> None:
        self._tokenizer, self._history = tokenizer, history
        self._tools = _telling_tools(tokenizer, tuple(tools))
        self._control = control_tokens(tokenizer)
        self._encoder = _TextEncoder(tokenizer, self._control)
        special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        # Qwen's and GLM's </tool_call> is an added token too, but no special one: it ends no turn
        self._enders = tuple(token for token in self._control if token in special) or self._control
        self._calls = self._writes_calls([_RESULT])
        self._parallel = self._calls and self._writes_calls([_RESULT, _RESULT])
        self._ends: dict[str, _End] = {}
        self._unwritten: dict[str, str] = {}
        self._reasons: dict[_Asked, str] = {}
        self._allowed: set[tuple[tuple[str, ...], bool, bool, bool]] = set()  # what passed `_require_all`
        self._frames: dict[str, _AnswerFrame] = {}
        self._verbatim: dict[tuple[Any, str], bool] = {}  # by kind of text and of message
        self._rendered: dict[tuple[str, bool, int | None], RenderedAnswer] = {}
        self._expected: dict[str, tuple[int, list[dict[str, Any]], _Written]] = {}  # by messages
        for kind in ("user", "tool"):
            try:
                self._ends[kind] = self._end(kind)
            except (_Refused, WhetError) as error:
                self._unwritten[kind] = _why(error)
        if all(self._reason(_Asked(kind, thinks)) for kind in ("user", "tool") for thinks in (False, True)):
            self.require("user")
        self._markers = self._plain_markers()
        self.end_tokens = frozenset[int]().union(*(end.ids for end in self._ends.values()))

    def answer(
        self,
        conversation: Sequence[Message],
        messages: Sequence[Message],
        *,
        ended: bool,
        last_token: int | None = None,
    ) -> RenderedAnswer:
        if not messages:
            raise WhetError("an environment answered a turn without a message; expected at least one, or done=True")
        self._require_all(conversation, messages)
        # what a group is told is often the same
        written = repr(messages)
        key = (written, ended, last_token)
        if key not in self._rendered:
            _make_place(self._rendered)
            expected = self._expected.get(written) or self._unencoded(messages)
            self._rendered[key] = self._render(*expected, ended, last_token)
        return self._rendered[key]

    def expect(self, answers: Sequence[Sequence[Message]]) -> None:
        self._expected.clear()
        if len(answers) < 2:
            return
        for messages in answers:
            key = repr(messages)
            # what cannot be written is said when it is asked for
            with contextlib.suppress(WhetError):
                self._expected[key] = self._expected.get(key) or self._unencoded(messages)
        safe_and_written = [(safe, written) for _, safe, written in self._expected.values()]
        self._encoder.expect([self._ends[_kind(safe)].token + written.text for safe, written in safe_and_written])

    def _render(
        self, broken: int, safe: Sequence[Message], written: _Written, ended: bool, last_token: int | None
    ) -> RenderedAnswer:
        end = self._ends[_kind(safe)]
        if last_token is not None:
            ended = last_token in end.ids
        # the end token is a border of the tokenizer's own: what stands before it does not reach what follows
        anchor = len(end.token)
        contents = [(start + anchor, stop + anchor) for start, stop in written.contents]
        encoded = self._encoder.encoded(end.token + written.text, contents)
        tokens, skipped = encoded.tokens, 0
        if ended:
            skipped = encoded.place(anchor)
            tokens = tokens[skipped:]
        elif end.before:
            lead = self._encoder.encoded(end.before, []).tokens
            tokens, skipped = lead + tokens, -len(lead)
        places = [encoded.place(border + anchor) - skipped for border in written.borders]
        return RenderedAnswer(tokens, _pairs(places), broken + encoded.split)

    def _unencoded(self, messages: Sequence[Message]) -> tuple[int, list[dict[str, Any]], _Written]:
        """How many markers were broken up in the messages, the messages without them, and what the template writes."""
        broken, safe = 0, []
        for index, message in enumerate(messages):
            content, count = _break_up(_content(message), self._markers)
            broken += count
            safe.append(_bare(message, index) | {"content": content})
        try:
            return broken, safe, self._written_with_ids(safe)
        except (_Refused, WhetError) as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            raise WhetError(
                f"the chat template cannot write an answer of {roles}: {_why(error)}; expected a template that appends "
                "it as it is; let the environment answer as another role, or use another chat template"
            ) from error

    def require(self, role: str) -> None:
        """Raise unless the template can be applied incrementally where `role` answers turns; where the template knows
        thoughts, turns with thoughts: the policy will write them."""
        kind = "tool" if role == "tool" else "user"
        knows = any(end in str(self._tokenizer.chat_template) for end in THOUGHT_ENDS)
        self._require(role, [_Asked(kind, thinks, system=False) for thinks in ((True,) if knows else (False, True))])

    def _require_all(self, conversation: Sequence[Message], messages: Sequence[Message]) -> None:
        """Raise unless the template can be applied incrementally to this answer in this conversation."""
        # a turn without thoughts passes where one with thoughts would: the policy left out what the template expects
        tagged = [said for message in conversation if (said := _thinking(message))]
        thinks = any(map(_thinks, tagged)) or (
            any(THOUGHT_ENDS[0] in said for said in tagged) and self._drops_empty_thoughts
        )
        roles = tuple(str(message["role"]) for message in messages)
        earlier = {message["role"] for message in conversation}
        system = bool(conversation) and conversation[0]["role"] == "system"
        key = (roles, "tool" in earlier, system, thinks)
        if key in self._allowed:
            return
        other = next((role for role in roles if role != "tool"), "")
        kinds = {"user": other} if other else {}
        if "tool" in roles:
            kinds["tool"] = "tool"
        if roles.count("tool") > 1:
            kinds["tools"] = "tool"
        if other and "tool" in (*roles, *earlier):
            kinds["mixed"] = other
        thoughts = (True,) if thinks else (False, True)
        for kind, role in kinds.items():
            self._require(role, [_Asked(kind, thinks, system) for thinks in thoughts])
        self._allowed.add(key)

    @functools.cached_property
    def _drops_empty_thoughts(self) -> bool:
        """True where a turn with empty tags of thoughts loses them once a user has answered it."""
        thought = f"<think>\n\n{THOUGHT_ENDS[0]}\n\n{THOUGHT}"
        question: Message = {"role": "user", "content": "?"}
        try:
            turn: Message = {"role": "assistant", "content": thought}
            whole: str = templated(self._tokenizer, [question, turn, question], "turns", tools=self._tools)
        except WhetError:
            return False
        return THOUGHT_ENDS[0] not in whole.partition(THOUGHT)[0]

    def _require(self, role: str, asked: Sequence[_Asked]) -> None:
        if any(not self._reason(request) for request in asked):
            return
        way_out = "use another chat template, or let the environment answer as another role"
        if self._history == "template" and ("tool" if role == "tool" else "user") in self._ends:
            way_out = f"give env.history=sampled to let the policy go on seeing what it wrote, or {way_out}"
        raise WhetError(
            f"the chat template cannot be applied turn by turn where {role!r} answers"
            f"{' a turn with thoughts' if asked[0].thinks else ''}: {self._reason(asked[0])}; "
            f"expected a template that only appends; {way_out}"
        )

    def _reason(self, asked: _Asked) -> str:
        """Why the pieces of such a conversation are not what the template writes of the whole; "" where they are."""
        if asked not in self._reasons:
            self._reasons[asked] = self._found_reason(asked)
        return self._reasons[asked]

    def _found_reason(self, asked: _Asked) -> str:
        for kind in {"user": ("user",), "mixed": ("user", "tool")}.get(asked.kind, ("tool",)):
            if kind in self._unwritten:
                return self._unwritten[kind]
        if self._history == "sampled":
            return ""
        reasons = []
        for spelling in self._spellings(asked):
            try:
                self._check(asked, spelling)
            except (_Refused, WhetError) as error:
                reasons.append(_why(error))
            else:
                return ""
        return reasons[0]

    def _spellings(self, asked: _Asked) -> list[tuple[bool, str]]:
        """Ways to hand a sampled turn to the template: with its calls apart or not, with its thoughts apart or not."""
        calls = [True, False] if self._calls and asked.kind != "user" else [False]
        thoughts = ["content", "reasoning_content", "thinking"] if asked.thinks else ["content"]
        return [(call, thought) for thought in thoughts for call in calls]

    def _write(self, messages: Sequence[Message], *, opens: bool = True) -> str:
        written: str = templated(self._tokenizer, messages, "turns", open_completion=opens, tools=self._tools)
        return written

    def _writes_calls(self, results: Sequence[Message]) -> bool:
        """True when the template writes the calls of an assistant turn."""
        try:
            return SAMPLED in self._write((_QUESTION, _calling(results), *results))
        except WhetError:
            return False

    def _sampled(self, messages: Sequence[Message]) -> dict[str, Any]:
        """A placeholder for the turn that `messages` answer."""
        if _kind(messages) == "tool" and self._calls:
            results = [message for message in messages if message["role"] == "tool"]
            return _calling(results if self._parallel else results[:1])
        return {"role": "assistant", "content": SAMPLED}

    def _tail(self, messages: Sequence[Message], of: Sequence[Message], *, opens: bool) -> str:
        """What the template writes after the placeholder of the sampled turn that `of` answers."""
        written = self._write((_QUESTION, self._sampled(of), *messages), opens=opens)
        _, marker, tail = written.partition(SAMPLED)
        if not marker:
            raise _Refused("it leaves out what the assistant wrote")
        return tail

    def _end(self, kind: str) -> _End:
        """How the template ends a turn that is answered so."""
        following = _RESULT if kind == "tool" else _REMARK
        until, following_text, _ = self._tail([following], [following], opens=True).partition(following["content"])
        if not following_text:
            raise _Refused(f"it does not write what {kind!r} says")
        try:
            alone = self._tail([], [following], opens=False)
        except WhetError:
            alone = ""
        by_call = kind == "tool" and self._calls
        # a call is followed by its own closing tokens; the last one that is there without an answer ends the turn
        own = until[: shared_length(until, alone)]
        before_answer = list(_occurrences(until, self._enders))
        known = [self._tokenizer.eos_token, self._ends["user"].token if by_call and "user" in self._ends else ""]
        places = [(offset, token) for name in known for offset, token in before_answer if token == name]
        if by_call:
            places += list(_occurrences(own, self._enders))[-1:]
        places += before_answer
        if not places:
            raise _Refused("it writes no token of the tokenizer at the end of a turn")
        position, token = places[0]
        lasts = [
            occurrence
            for occurrence in _occurrences(alone[position:], self._enders)
            if alone[:position] == until[:position]
        ]
        last = lasts[0][1] if lasts and lasts[0][0] == 0 else token
        ids = frozenset(_token_id(self._tokenizer, each) for each in (token, last))
        return _End("" if by_call else until[:position], until[:position], token, last, ids)

    def _behind(self, messages: Sequence[Message], of: Sequence[Message], *, opens: bool = True) -> str:
        """What the template writes after the token that ends the sampled turn."""
        end = self._ends[_kind(of)]
        tail = self._tail(messages, of, opens=opens)
        if end.before != end.closing:
            # after a call: what closes it depends on the call, its id for one
            pieces = tail.split(end.token, end.closing.count(end.token) + 1)
            if len(pieces) == end.closing.count(end.token) + 2:
                return pieces[-1]
        elif tail.startswith(end.before + end.token):
            return tail[len(end.before + end.token) :]
        raise _Refused("it ends a turn in more than one way")

    def _written_with_ids(self, messages: Sequence[dict[str, Any]]) -> _Written:
        try:
            return self._written(messages)
        except WhetError:
            # Mistral's templates take ids of nine letters and digits only
            numbered = [
                {**message, "tool_call_id": f"call{index:05d}"} if message["role"] == "tool" else message
                for index, message in enumerate(messages)
            ]
            return self._written(numbered)

    def _framed(self, marks: Sequence[Message]) -> _AnswerFrame:
        """What the template writes around messages of these kinds: the same whatever they say, so it is kept."""
        key = repr(marks)
        if key not in self._frames:
            frame = self._behind(marks, marks)
            pieces = _split(frame, [str(mark["content"]) for mark in marks])
            if pieces is None:
                raise _Refused("it does not write every message once and in order")
            shared = []
            for count in range(len(marks) + 1):
                try:
                    shared.append(shared_length(frame, self._behind(marks[:count], marks, opens=False)))
                except (_Refused, WhetError):
                    shared.append(0)
            self._frames[key] = _AnswerFrame(tuple(pieces), tuple(shared))
        return self._frames[key]

    def _is_verbatim(self, message: Message, mark: Message) -> bool:
        """Whether the template writes this message unchanged, found without rendering it.

        Of plain text that holds for every text where it holds for one with all of its characters, and so for JSON.
        Angle brackets and bars are not plain: templates look for the tags they begin.
        """
        content = str(message["content"])
        if PLAIN.fullmatch(content) is None:
            return False
        probes = IN_BRACKETS if "{" in content or "[" in content or "]" in content or "}" in content else (ALL_PLAIN,)
        key = (probes, repr({**mark, "content": ""}))
        if key not in self._verbatim:
            left, right = self._framed([mark]).pieces
            try:
                self._verbatim[key] = all(
                    self._behind([{**mark, "content": probe}], [mark]) == left + probe + right for probe in probes
                )
            except (_Refused, WhetError):
                self._verbatim[key] = False
        return self._verbatim[key]

    def _written(self, messages: Sequence[Message]) -> _Written:
        marks = [{**message, "content": f"probe0content{index}x"} for index, message in enumerate(messages)]
        framed = self._framed(marks)
        pieces, contents = framed.pieces, []
        for index, message in enumerate(messages):
            if self._is_verbatim(message, marks[index]):
                contents.append(str(message["content"]))
                continue
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
        for count, shared in enumerate(framed.shared):
            if count:
                grown += len(contents[count - 1]) - len(marks[count - 1]["content"])
            least = spans[count - 1][1] if count else 0
            most = spans[count][0] if count < len(spans) else len(text)
            borders.append(min(max(shared + grown, least), most))
        return _Written(text, tuple(spans), tuple(borders))

    def _check(self, asked: _Asked, spelling: tuple[bool, str]) -> None:
        """Raise `_Refused` unless the pieces of a conversation are what the template writes of it."""
        course, thinks = _COURSES[asked.kind], asked.thinks
        prompt = [_SYSTEM, _QUESTION] if asked.system else [_QUESTION]
        calls, field = spelling
        conversation: list[Message] = list(prompt)
        for number, following in enumerate(course):
            turn = self._sampled(following) if calls else {"role": "assistant", "content": SAMPLED}
            thought = f"{THOUGHT}{number}"
            if thinks and field == "content":
                turn["content"] = f"<think>\n{thought}\n</think>\n\n{turn['content']}"
            elif thinks:
                turn[field] = thought
            conversation += [turn, *following]
        whole, opened = self._write(conversation), self._write(prompt)
        if not whole.startswith(opened):
            is_prefix = whole.startswith(self._write(prompt, opens=False))
            raise _Refused(
                "it opens a turn to be sampled otherwise than it writes an earlier one"
                if is_prefix
                else "it rewrites the prompt once turns follow it"
            )
        at = len(opened)
        for number, following in enumerate(course):
            end = self._ends[_kind(following)]
            position = whole.find(SAMPLED, at)
            if position < 0:
                raise _Refused("it leaves out what the assistant wrote")
            if thinks and f"{THOUGHT}{number}" not in whole[at:position]:
                raise _Refused("it drops the thoughts of earlier turns")
            if end.last != end.token:
                raise _Refused(f"it ends a turn with {end.last} and rewrites that to {end.token} once turns follow")
            at = whole.find(end.token, position)
            behind = end.token + self._behind(following, following)
            if at < 0 or not whole.startswith(behind, at):
                raise _Refused("it writes an answer otherwise once more turns follow it")
            at += len(behind)
        if at != len(whole):
            raise _Refused("it writes more than the turns")

    def _plain_markers(self) -> re.Pattern[str] | None:
        """The markers that the template writes as plain text around what others say, as one pattern."""
        frame_markers: set[str] = set()
        for kind in self._ends:
            following = _RESULT if kind == "tool" else _REMARK
            for answers in ([following], [following, following]):
                try:
                    frame = self._behind(answers, answers, opens=False)
                except (_Refused, WhetError):
                    continue
                for known in (following["content"], *self._control):
                    frame = frame.replace(known, "\n")
                frame_markers.update(MARKER.findall(frame))
        if not frame_markers:
            return None
        parts = [
            re.escape(marker) if marker[0] in "<[" else f"^{re.escape(marker)}" for marker in sorted(frame_markers)
        ]
        return re.compile("|".join(parts), re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class _AnswerFrame:
    """What stands around the contents of an answer."""

    pieces: tuple[str, ...]
    shared: tuple[int, ...]  # how far it is the same without the messages from each on


@dataclass(frozen=True)
class _Asked:
    """A conversation as far as a template may care."""

    kind: str  # which of `_COURSES` it takes
    thinks: bool  # some sampled turn has thoughts
    system: bool = False  # it begins with a system message


@dataclass(frozen=True)
class _End:
    """How the template ends a sampled turn."""

    before: str  # what closes a turn before its end token
    closing: str  # what the template writes between the placeholder and the token
    token: str
    last: str  # the same token; gpt-oss ends a turn that nothing follows with another
    ids: frozenset[int]  # of both


class _Written(NamedTuple):
    """An answer as text."""

    text: str  # after the token that ends the sampled turn
    contents: tuple[tuple[int, int], ...]  # where each message's content stands
    borders: tuple[int, ...]  # where each message begins, and where the last one ends


_SYSTEM: dict[str, Any] = {"role": "system", "content": "probe0system"}
_QUESTION: dict[str, Any] = {"role": "user", "content": "probe0question"}
_REMARK: dict[str, Any] = {"role": "user", "content": "probe0remark"}
_RESULT: dict[str, Any] = {"role": "tool", "content": "probe0result", "name": "probe", "tool_call_id": CALL_ID}
# answers to one turn after another, to see what a template makes of them
_COURSES: dict[str, tuple[tuple[Message, ...], ...]] = {
    "user": ((_REMARK,), (_REMARK,), (_REMARK,)),
    "tool": ((_RESULT,), (_RESULT,), (_RESULT,)),
    "tools": ((_RESULT, _RESULT), (_RESULT, _RESULT), (_RESULT,)),
    "mixed": ((_RESULT,), (_REMARK,), (_RESULT,), (_REMARK,)),
}


def _telling_tools(
    tokenizer: PreTrainedTokenizerBase, tools: tuple[Mapping[str, Any], ...]
) -> tuple[Mapping[str, Any], ...]:
    """The first tool alone, where the template writes the same after a turn with it as with all of them.

    A list of tools may be thousands of tokens long, and would be written again with every answer.
    """

    def behind(shown: tuple[Mapping[str, Any], ...], conversation: Sequence[Message]) -> str:
        try:
            written: str = templated(tokenizer, conversation, "turns", open_completion=True, tools=shown)
        except WhetError as error:
            return str(error)
        return written.partition(SAMPLED)[2]

    turn: Message = {"role": "assistant", "content": SAMPLED}
    probes = ((_QUESTION, _calling([_RESULT]), _RESULT, turn, _REMARK), (_QUESTION, turn, _REMARK, turn, _RESULT))
    return tools[:1] if all(behind(tools[:1], probe) == behind(tools, probe) for probe in probes) else tools


def _kind(messages: Sequence[Message]) -> str:
    return "tool" if messages and messages[0]["role"] == "tool" else "user"


def _why(error: Exception) -> str:
    """The reason alone, of the line that `templated` raises."""
    line = str(error)
    return line.removeprefix("prompt 'turns': ").partition("; expected")[0] if isinstance(error, WhetError) else line


def _calling(results: Sequence[Message]) -> dict[str, Any]:
    """An assistant turn with the calls that `results` answer; the placeholder is the last one's argument."""
    values = ["probe"] * (len(results) - 1) + [SAMPLED]
    calls = [
        {
            "type": "function",
            "id": result["tool_call_id"],
            "function": {"name": result["name"], "arguments": {"x": value}},
        }
        for result, value in zip(results, values, strict=True)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _bare(message: Message, index: int) -> dict[str, Any]:
    """The speaker of a message; only letters and digits are kept, since its name may be a stranger's words."""
    if message["role"] != "tool":
        return {"role": message["role"]}
    name = re.sub(r"[^\w.-]", "_", str(message.get("name") or "tool"))[:64]
    call_id = re.sub(r"[^\w.:-]", "", str(message.get("tool_call_id") or ""))[:64]
    return {"role": "tool", "name": name, "tool_call_id": call_id or f"call{index:05d}"}


def _content(message: Message) -> str:
    """A message's content as text: a string, or the texts of its parts."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list | tuple):
        return "".join(str(part.get("text", "")) if isinstance(part, Mapping) else str(part) for part in content)
    return json.dumps(content, ensure_ascii=False, default=str)


def _thinking(message: Message) -> str:
    """What a turn of the policy says where it has thinking tags, even empty ones; else nothing."""
    content = _content(message) if message["role"] == "assistant" else ""
    return content if any(end in content for end in THOUGHT_ENDS) else ""


def _thinks(content: str) -> bool:
    thoughts = [content.rpartition(end)[0] for end in THOUGHT_ENDS]
    return any(re.sub(r"<think>|\[THINK\]|</think>", "", thought).strip() for thought in thoughts)


def _break_up(content: str, markers: re.Pattern[str] | None) -> tuple[str, int]:
    """The content with a space after the first character of each marker, and how many there were."""
    count = 0
    while markers is not None and (num_markers := len(markers.findall(content))):
        content = markers.sub(lambda match: f"{match[0][0]} {match[0][1:]}", content)
        count += num_markers
    return content, count


def without_control_tokens(tokenizer: PreTrainedTokenizerBase, content: str) -> tuple[str, int]:
    """The content with every string broken up that would read as an added token, and how many there were.

    For a conversation that is written as a whole, where contents cannot be told from what the template writes.
    """
    return _break_up(content, _control_pattern(tokenizer, len(tokenizer)))


@lru_cache(maxsize=2)
def _control_pattern(tokenizer: PreTrainedTokenizerBase, num_tokens: int) -> re.Pattern[str] | None:
    """Longest first; a token of one character cannot be broken up."""
    names = sorted((token for token in control_tokens(tokenizer) if len(token) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names))) if names else None


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
    number: Any = tokenizer.convert_tokens_to_ids(token)
    return int(number)


def _make_place(rendered: dict[Any, RenderedAnswer]) -> None:
    """Make room in the cache for one more conversation."""
    if len(rendered) >= MOST_RENDERED:
        rendered.clear()


def _pairs(places: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(pairwise(places))


class _EncodedText(NamedTuple):
    tokens: tuple[int, ...]
    pieces: tuple[tuple[int, Any], ...]  # encodings of the tokenizers library, with the character each begins at
    split: int  # strings in the contents that the tokenizer would have read as added tokens

    def place(self, character: int) -> int:
        """The first token that begins at this character or after it."""
        before = 0
        for begin, encoding in self.pieces:
            place = _first_from(encoding, character - begin)
            before += place
            if place < len(encoding):
                break
        return before


def _first_from(encoding: Any, character: int) -> int:
    """The first token that begins at this character or after it."""

    def start(index: int) -> int:
        return int(encoding.token_to_chars(index)[0])

    index = encoding.char_to_token(character)
    if index and start(index - 1) < character == start(index):
        return int(index)
    return bisect_left(range(len(encoding)), character, key=start)


class _TextEncoder:
    """Makes tokens of text, as the tokenizer does; no part of what others say becomes a control token."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, control: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._controls = {_token_id(tokenizer, token) for token in control if len(token) > 1}
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._is_tried = False
        self._expected: dict[str, Any] = {}

    def expect(self, texts: Sequence[str]) -> None:
        """Announce the texts that will be asked for next."""
        self._expected.clear()
        texts = list(dict.fromkeys(texts))
        if self._is_tried and self._is_plain and len(texts) > 1:
            self._expected = dict(zip(texts, self._backend.encode_batch(texts, add_special_tokens=False), strict=True))

    @property
    def _is_plain(self) -> bool:
        """Whether the tokenizer is set to truncate and pad nothing: other code may have left such settings."""
        backend = self._backend
        return backend is not None and backend.truncation is None and backend.padding is None

    def encoded(self, text: str, contents: Sequence[tuple[int, int]]) -> _EncodedText:
        """The tokens of `text`. Where one of `contents` would become a control token, the text is cut inside it, and
        the pieces are tokenised on their own."""
        controls = self._controls if contents else frozenset()
        cuts: set[int] = set()
        while True:
            borders = (0, *sorted(cuts), len(text))
            pieces = [(begin, self._encode(text[begin:finish])) for begin, finish in pairwise(borders)]
            tokens: list[int] = []
            forged: list[int] = []
            for begin, encoding in pieces:
                ids = encoding.ids
                tokens += ids
                for index in [index for index, token in enumerate(ids) if token in controls]:
                    start, stop = encoding.token_to_chars(index)
                    forged += _cut(text, begin + start, begin + stop, contents)
            if not forged:
                return _EncodedText(tuple(tokens), tuple(pieces), len(cuts))
            cuts.update(forged)

    def _encode(self, text: str) -> Any:
        """Tokens and their places; by the tokenizers library itself where that gives the same: a third of the time."""
        if text in self._expected:
            return self._expected[text]
        backend, is_plain = self._backend, self._is_plain
        if self._is_tried and is_plain:
            return backend.encode(text, add_special_tokens=False)
        (encoded,) = self._tokenizer(text, add_special_tokens=False).encodings
        if is_plain and text:
            encoding = backend.encode(text, add_special_tokens=False)
            self._is_tried = (encoding.ids, encoding.offsets) == (encoded.ids, encoded.offsets)
            self._backend = backend if self._is_tried else None
        return encoded


def _cut(text: str, start: int, stop: int, contents: Sequence[tuple[int, int]]) -> list[int]:
    """Where to cut the text of a control token that stands in a content; some also take up the blanks around them."""
    if stop <= contents[0][0] or start >= contents[-1][1]:
        return []
    matched = text[start:stop]
    first = start + len(matched) - len(matched.lstrip())
    last = start + len(matched.rstrip())
    inside = any(first < content_stop and last > content_start for content_start, content_stop in contents)
    return [first + 1] if inside and last - first > 1 else []
