"""The engine's side of the endpoint: requests that other threads hand in are written in the engine's own thread.

Templates, tokens and records are touched by that thread alone; the server's threads hand in a request and wait for its
future. Requests with the same sampling share a session of the engine, in which a conversation keeps its keys and
values from call to call.
"""

from __future__ import annotations

import json
import queue
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

from whet.data.call_formats import chosen_format
from whet.data.chat import prompt_tokens
from whet.data.turns import TurnRenderer, turn_renderer, without_control_tokens
from whet.envs.serve.call_tree import CallRecord, ModelCall
from whet.envs.serve.constraints import Grammars
from whet.envs.serve.wire import BadCall, CalledTool, CallRequest, Choice, ScoreRequest, ServedCompletions
from whet.envs.tools.formats import call_format_of
from whet.envs.tools.tool_environment import CallFormat
from whet.protocols import Engine, Session
from whet.rollout.seed import request_seed
from whet.rollout.session import open_session
from whet.types import Completion, Message, Prompt, Request, Sample, Sampling, SessionShape, StopReason, Turn, WhetError

Made = TypeVar("Made")
MOST_TOOL_LISTS = 64  # whose formats are remembered
MOST_WAITING = 256  # requests, before more are sent away
MANY_TURNS = 2**31
MOST_ROWS = 128  # of a session whose requests ask for several completions
LEAST_PROMPT = 256  # tokens that a session has room for before the first completion


TextListener = Callable[[int, str], None]
"""Is told (choice, new text) while a completion is written, on the engine's thread."""


@dataclass(eq=False)
class Job:
    """A request on its way through the engine."""

    record: CallRecord
    request: CallRequest
    on_text: TextListener | None = None
    future: Future[ServedCompletions] = field(default_factory=Future)
    is_gone: bool = False  # its client went away
    calls: list[ModelCall] = field(default_factory=list)
    left: int = 0  # completions still to be written
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))
    grammar: str = ""  # that each completion must follow
    streamed: dict[int, int] = field(default_factory=dict)  # characters of each choice that it was sent
    sampling: Sampling | None = None
    prompted: ModelCall | None = None  # its tokens, once they are known
    budget: int = 0  # of each completion

    def mark_delivered(self, delivered: bool = True) -> None:
        """Note whether the client got its response; a call nobody received becomes no sample of its own."""
        for call in self.calls:
            call.is_delivered = delivered


TokenScorer = Callable[[Sequence[int], int], list[dict[int, float]]]
"""(tokens, likeliest) -> of every token but the first its log-probability and those of the likeliest, by id."""


@dataclass(eq=False)
class ScoreJob:
    """Tokens on their way to be scored."""

    request: ScoreRequest
    future: Future[list[dict[int, tuple[float, str]]]] = field(default_factory=Future)


@dataclass(eq=False)
class _OpenSession:
    """A session of the engine, the jobs it writes for, and the calls whose keys and values it keeps."""

    number: int
    sampling: Sampling
    shape: SessionShape
    session: Session
    closing: ExitStack
    writing: dict[int, tuple[Job, ModelCall]] = field(default_factory=dict)
    held: OrderedDict[int, ModelCall] = field(default_factory=OrderedDict)  # by request, the longest unused first


class RequestQueue:
    """Takes requests from any thread and has them written by the engine, in the thread that calls `work`."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        *,
        end_tokens: Sequence[int] = (),
        context: int = 0,  # most tokens of a conversation; 0: not known
        rows: int = 16,  # conversations at once
        history: str = "template",
        call_format: str = "auto",
        scorer: TokenScorer | None = None,  # of given tokens; None: none are scored
    ) -> None:
        self._engine, self._tokenizer = engine, tokenizer
        self._scorer, self._to_score = scorer, queue.SimpleQueue[ScoreJob]()
        self._ends, self.context, self._rows = frozenset(end_tokens), context, rows
        self._most_asked = 1  # completions of one request so far: a session has rows for them
        self._has_constrained = False  # somebody asked for JSON, or forced a call
        self._history, self._call_format = history, call_format
        self._sampling, self._is_fixed = Sampling(), False
        self._queue: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._num_queued = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self.waiting: list[Job] = []
        self._opened: _OpenSession | None = None
        self._num_sessions, self._num_requests = 0, 0
        self._renderers: dict[str, TurnRenderer | str] = {}
        self._formats: dict[str, CallFormat | str] = {}
        self._grammars = Grammars(tokenizer, end_tokens)
        self.is_open = False
        self.counts: Counter[str] = Counter()

    # ---- any thread

    def submit(self, record: CallRecord, request: CallRequest, on_text: TextListener | None = None) -> Job:
        """Hand a request in; its future gets the result, or a `BadCall`, and `on_text` what is written before."""
        with self._lock:
            if not self.is_open:
                raise BadCall("nobody writes completions at the moment", status=503, code="not_ready")
            if self._num_queued >= MOST_WAITING:
                self.counts["refused_busy"] += 1
                raise BadCall(f"{MOST_WAITING} requests are waiting already", status=429, code="too_many_requests")
            self._num_queued += 1
            job = Job(record, request, on_text)
            self._queue.put(job)
        self._wake.set()
        return job

    def submit_score(self, request: ScoreRequest) -> ScoreJob:
        """Hand tokens in to be scored; the future gets their log-probabilities, or a `BadCall`."""
        if self._scorer is None:
            raise BadCall("no tokens are scored here", status=404, code="not_served")
        known = len(self._tokenizer)
        if any(token >= known for token in request.tokens):
            raise BadCall(f"prompt holds a token id beyond the vocabulary of {known}", param="prompt")
        if self.context and len(request.tokens) > self.context:
            raise BadCall(
                f"prompt has {len(request.tokens)} tokens and the model's context {self.context}",
                code="context_length_exceeded",
                param="prompt",
            )
        job = ScoreJob(request)
        with self._lock:
            if not self.is_open:
                raise BadCall("nobody scores tokens at the moment", status=503, code="not_ready")
            self._to_score.put(job)
        self._wake.set()
        return job

    def wake(self) -> None:
        """End the engine thread's `wait` early; may be called from any thread."""
        self._wake.set()

    # ---- the engine's thread

    def open(self, sampling: Sampling, *, fixed: bool) -> None:
        """Begin to take requests. `fixed`: clients cannot change how tokens are drawn, because they are trained on."""
        self._sampling, self._is_fixed = sampling, fixed
        self.is_open = True

    def close(self) -> None:
        """Refuse the requests that still wait, and end the sessions."""
        with self._lock:
            self.is_open = False
        self.take()
        with suppress(queue.Empty):
            while True:
                stopped = BadCall("the server stopped scoring tokens", status=503, code="not_ready")
                self._to_score.get_nowait().future.set_exception(stopped)
        for job in [*self.waiting, *(job for job, _ in self._writing)]:
            self._refuse(job, BadCall("the server stopped writing completions", status=503, code="not_ready"))
        with self._lock:
            self._num_queued = 0
        self.waiting.clear()
        self._end_session()

    @property
    def is_idle(self) -> bool:
        """True when nothing is being written."""
        return not self._writing

    @property
    def _writing(self) -> list[tuple[Job, ModelCall]]:
        return [] if self._opened is None else list(self._opened.writing.values())

    def wait(self, seconds: float) -> None:
        """Wait until somebody hands in a request or calls `wake`, at most so many seconds."""
        self._wake.wait(seconds)
        self._wake.clear()

    def take(self) -> None:
        """Move the requests that have arrived to those that wait."""
        while True:
            try:
                self.waiting.append(self._queue.get_nowait())
            except queue.Empty:
                return

    def work(self) -> None:
        """Score what is to be scored, admit what waits, as far as there is room, and write on for a moment."""
        with suppress(queue.Empty):
            while True:
                self._score(self._to_score.get_nowait())
        self.take()
        self.waiting.sort(key=lambda job: job.record.number)  # stable: each one's calls in the order they came
        while self.waiting and self._admit(self.waiting[0]):
            self._forget(self.waiting.pop(0))
        opened = self._opened
        if opened is not None and not opened.session.is_idle:
            for number, sample in opened.session.advance():
                job, call = opened.writing.pop(number)
                self._written(opened, number, job, call, sample)
            self._tell(opened)

    def _tell(self, opened: _OpenSession) -> None:
        """What is written so far, to those who follow it. Calls of tools are read when they are whole."""
        following = {
            number: (job, call)
            for number, (job, call) in opened.writing.items()
            if job.on_text is not None and not job.is_gone
        }
        progress: Callable[[], Mapping[int, list[int]]] | None = getattr(opened.session, "progress", None)
        if not following or progress is None:
            return
        for number, tokens in progress().items():
            if number in following:
                self._tell_one(*following[number], tokens)

    def _tell_one(self, job: Job, call: ModelCall, tokens: list[int]) -> None:
        choice = next(number for number, known in enumerate(job.calls) if known is call)
        text = str(self._tokenizer.decode(tokens, skip_special_tokens=True))
        # what may yet turn out to be part of a character, or of a text to stop at, which no client reads
        held = max((len(stop) for stop in job.request.wishes.stop), default=1) - 1
        text = text.rstrip("\ufffd")
        text = text[: len(text) - held] if held else text
        if job.request.tools:
            text = self._format(job.request.tools).said(text)
        before = job.streamed.get(choice, 0)
        if len(text) > before and job.on_text is not None:
            job.streamed[choice] = len(text)
            job.on_text(choice, text[before:])

    def _score(self, job: ScoreJob) -> None:
        assert self._scorer is not None
        if not job.future.set_running_or_notify_cancel():
            return
        self.counts["scored_rows"] += 1
        try:
            tables = self._scorer(job.request.tokens, job.request.top)
        except Exception as error:
            job.future.set_exception(BadCall(f"the tokens could not be scored: {error}", status=500, code="failed"))
            return
        text = {token: self._tokenizer.decode([token]) for table in tables for token in table}
        job.future.set_result([{token: (logp, text[token]) for token, logp in table.items()} for table in tables])

    def pending(self, record: CallRecord) -> bool:
        """True while a request of the record waits or is being written."""
        return any(job.record is record for job in (*self.waiting, *(job for job, _ in self._writing)))

    def drop(self, record: CallRecord) -> None:
        """Refuse the requests of an episode that is over, and free its rows."""
        record.is_open = False
        self.take()
        for job in [waiting_job for waiting_job in self.waiting if waiting_job.record is record]:
            self.waiting.remove(job)
            self._forget(job)
            self._refuse(job, BadCall("the episode is over", status=409, code="episode_over"))
        opened, own = self._opened, set(record.calls)
        if opened is not None:
            for number in [number for number, call in opened.held.items() if call in own]:
                opened.session.release(number)
                del opened.held[number]

    def _forget(self, job: Job) -> None:
        with self._lock:
            self._num_queued -= 1

    def _refuse(self, job: Job, error: BadCall) -> None:
        if not job.future.done():
            job.future.set_exception(error)

    def _admit(self, job: Job) -> bool:
        """Hand a job to a session; False where there is no room yet. One that cannot be served is answered."""
        record, request = job.record, job.request
        if job.is_gone:
            record.counts["disconnected_calls"] += 1
            return True
        try:
            if not record.is_open:
                raise BadCall("the episode is over", status=409, code="episode_over")
            if job.prompted is None:
                self._prepare(job)
            opened = self._session(job)
            if opened is None:
                return False
        except BadCall as error:
            record.counts["refused_calls"] += 1
            self._refuse(job, error)
            return True
        if job.grammar:
            record.counts["constrained_calls"] += request.count
        assert job.prompted is not None
        job.left = request.count
        for choice in range(request.count):
            call = job.prompted if not choice else replace(job.prompted)
            job.calls.append(call)
            record.add(call)
            self._ask(opened, job, call, choice)
        return True

    def _prepare(self, job: Job) -> None:
        """The tokens of a job, how it is sampled and how long it may become; a `BadCall` where it is refused."""
        record, request = job.record, job.request
        if record.most_calls and record.num_calls + request.count > record.most_calls:
            record.ended_by = record.ended_by or StopReason.TURNS
            raise BadCall(f"the episode has had its {record.most_calls} calls", code="episode_limit")
        self._most_asked = max(self._most_asked, request.count)
        job.grammar = self._grammar(request, record)
        job.sampling = self._sampling_of(request, record, bool(job.grammar))
        if request.top_logprobs and self._scorer is None:
            raise BadCall("top_logprobs is served by `whet serve` alone; give 0", param="top_logprobs")
        self._refuse_endless(record, request)
        call = self._prompted(record, request)
        call.is_constrained = bool(job.grammar)
        call.role = request.role or ("" if call.parent is None else call.parent.role)
        room = record.room(call, self.context)
        if room < 1:
            record.ended_by = record.ended_by or StopReason.TOKENS
            raise BadCall(
                f"the maximum context length is {self.context} tokens and the conversation has {len(call.prompt)}, "
                f"which leaves no room for a completion; the episode's budget is {record.most_tokens or 'the same'}",
                code="context_length_exceeded",
                param="messages",
            )
        job.prompted = call
        job.budget = min(room, self._sampling.max_new_tokens, request.wishes.max_tokens or room)

    def _refuse_endless(self, record: CallRecord, request: CallRequest) -> None:
        """Refuse texts that no tokens could fit into the context, before the seconds that tokenizing them takes.

        Everybody else's completions wait for those. What the policy said is not counted: a template may shorten it.
        """
        heard = (str(message["content"]) for message in request.messages if message["role"] != "assistant")
        length = len(request.text or "") + sum(map(len, heard))
        if self.context and length > self.context and length > self.context * self._longest_token:
            record.ended_by = record.ended_by or StopReason.TOKENS
            raise BadCall(
                f"the maximum context length is {self.context} tokens, and no {self.context} tokens hold the "
                f"{length:,} characters of the texts",
                code="context_length_exceeded",
                param="messages" if request.messages else "prompt",
            )

    @cached_property
    def _longest_token(self) -> int:
        """The most characters that a token stands for, as the vocabulary spells it: with one sign or more for each."""
        return max(map(len, self._tokenizer.get_vocab()))

    def _ask(self, opened: _OpenSession, job: Job, call: ModelCall, choice: int) -> None:
        record, wished = job.record, job.request.wishes.seed
        seed = record.call_seed(call.prompt)
        if wished is not None and not self._is_fixed:
            seed = ("client", wished, choice)
        continues = None
        parent = call.parent
        if parent is not None and parent.request is not None and parent.request[0] == opened.number:
            # one that goes on alone takes over the keys and values; several are rows behind one prompt, which begins
            # with a copy of them, as does whoever comes later
            held = parent.request[1]
            if held in opened.held and job.request.count > 1 and len(call.prompt) <= opened.shape.prompt_tokens:
                opened.held.move_to_end(held)
            elif held in opened.held:
                continues = held
                del opened.held[continues]
                parent.request = None
        while opened.held and len(opened.held) + len(opened.writing) >= opened.shape.conversations:
            number, _ = opened.held.popitem(last=False)
            opened.session.release(number)
        number, self._num_requests = self._num_requests, self._num_requests + 1
        opened.writing[number] = (job, call)
        limited = None if job.budget == self._sampling.max_new_tokens else job.budget
        stop, stop_tokens = self._stops(job.request)
        constraint = self._grammars.constraint(job.grammar) if job.grammar else None
        opened.session.add(
            number,
            Request(
                *(call.prompt, request_seed(*seed), limited, continues),
                stop=stop,
                stop_tokens=stop_tokens,
                constraint=constraint,
            ),
        )

    def _session(self, job: Job) -> _OpenSession | None:
        """The session that a job fits into; None while another one, or a full one, is busy.

        There is one at a time: engines keep one set of buffers.
        """
        assert job.sampling is not None and job.prompted is not None
        opened, length, sampling = self._opened, len(job.prompted.prompt), self._session_sampling(job.sampling)
        if opened is not None and (opened.sampling != sampling or not _fits(opened.shape, length, job.budget)):
            if opened.writing:
                return None
            self._end_session()
            opened = None
        if opened is None:
            opened = self._open_session(sampling, length, job.record.most_tokens)
        if opened.writing and len(opened.writing) + job.request.count > opened.shape.conversations:
            return None
        return opened

    def _session_sampling(self, sampling: Sampling) -> Sampling:
        """A session in which requests may be constrained serves free ones too, where it writes them as another would:
        programs that alternate would lose their keys and values with every change."""
        self._has_constrained = self._has_constrained or sampling.constrained
        path: Callable[[Sampling, SessionShape], object] | None = getattr(self._engine, "session_path", None)
        if not self._has_constrained or sampling.constrained or path is None:
            return sampling
        either, shape = replace(sampling, constrained=True), SessionShape(self._rows, LEAST_PROMPT, LEAST_PROMPT)
        return either if str(path(either, shape)) == str(path(sampling, shape)) else sampling

    def _open_session(self, sampling: Sampling, length: int, most_tokens: int) -> _OpenSession:
        """Room for the longest prompt that waits and a half more, and for what a conversation may grow by."""
        waiting = [len(job.prompted.prompt) for job in self.waiting if job.prompted is not None]
        longest = 3 * max(LEAST_PROMPT, length, *waiting) // 2
        growth = most_tokens or 4 * sampling.max_new_tokens
        if self.context:
            longest, growth = min(longest, self.context), min(growth, self.context)
        rows = max(self._rows, min(self._rows * self._most_asked, MOST_ROWS))
        shape = SessionShape(rows, longest, max(growth, sampling.max_new_tokens))
        closing = ExitStack()
        session = closing.enter_context(open_session(self._engine, sampling, shape, MANY_TURNS))
        self._num_sessions += 1
        self._opened = _OpenSession(self._num_sessions, sampling, shape, session, closing)
        return self._opened

    def _end_session(self) -> None:
        if self._opened is not None:
            self._opened.closing.close()
            self._opened = None

    def _grammar(self, request: CallRequest, record: CallRecord) -> str:
        """What the completions of a request must follow; empty: nothing. A program that is trained goes on without."""
        if request.form is None and not request.called:
            return ""
        try:
            if not getattr(self._engine, "constrains", False):
                what = "tool_choice" if request.called else "response_format"
                raise BadCall(f"{what} cannot be enforced by this engine; leave it away", param=what)
            if request.form is not None:
                return self._grammars.of_answer(request.form or None)
            self._format(request.tools)  # a template that shows no tools is refused
            form = chosen_format(self._call_format, self._tokenizer, request.tools)
            return self._grammars.of_calls(form, request.tools, request.called)
        except BadCall:
            if not self._is_fixed or request.form is not None:
                raise
            record.counts["ignored_tool_choice"] += 1
            return ""

    def _stops(self, request: CallRequest) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
        """What ends the completions of a request, besides what ends all: its session need not be its own for that."""
        behind_calls = self._format(request.tools).stops if request.tools and self._tokenizer.chat_template else ()
        wishes = request.wishes
        tokens = tuple((token,) for token in wishes.stop_tokens if token not in self._ends)
        return tuple(dict.fromkeys((*behind_calls, *wishes.stop))), tokens

    def _sampling_of(self, request: CallRequest, record: CallRecord, constrained: bool = False) -> Sampling:
        """How a request is sampled. What is trained on is drawn as the run says."""
        own, wishes = self._sampling, request.wishes
        if request.tools and self._tokenizer.chat_template:
            self._format(request.tools)  # tools that cannot be shown are refused before anything is written
        names = ("temperature", "top_p", "top_k", "min_p")
        wanted: dict[str, Any] = {name: value for name in names if (value := getattr(wishes, name)) is not None}
        if self._is_fixed:
            if wishes.penalties or any(value != getattr(own, name) for name, value in wanted.items()):
                record.counts["overridden_samplings"] += 1
            wanted = {}
        elif wishes.penalties:
            raise BadCall(f"{wishes.penalties[0]} is not served; leave it away", param=wishes.penalties[0])
        try:
            return replace(own, **wanted, constrained=constrained)
        except WhetError as error:
            raise BadCall(str(error)) from error

    def _prompted(self, record: CallRecord, request: CallRequest) -> ModelCall:
        """The tokens of a request; those that were sampled earlier are reused, not tokenized again."""
        if request.tokens is not None:
            size = len(self._tokenizer)
            if max(request.tokens) >= size:
                raise BadCall(f"token_ids holds {max(request.tokens)}; the vocabulary has {size}", param="token_ids")
            return self._linked(record, request.tokens)
        if request.text is not None:
            return self._linked(record, prompt_tokens(self._tokenizer, Prompt("text", (), request.text)))
        known_prefix = record.find(request.messages, request.tools)
        if known_prefix is not None:
            call = self._continued(record, request, *known_prefix)
            if call is not None:
                return call
        try:
            tokens = self._rendered(record, request)
        except WhetError as error:
            raise BadCall(str(error), param="messages") from error
        return self._linked(record, tokens)

    def _linked(self, record: CallRecord, tokens: tuple[int, ...]) -> ModelCall:
        """A prompt that begins with all of an earlier call, token for token, goes on from it."""
        parent = record.longest_prefix(tokens)
        if parent is None:
            return ModelCall(tokens, ())
        start = len(parent.tokens)
        text = str(self._tokenizer.decode(list(tokens[start:]), skip_special_tokens=False))
        return ModelCall(tokens, (Turn("context", text, start, len(tokens)),), parent)

    def _heard(self, record: CallRecord, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages; what answers a completion can neither end a turn nor speak as somebody else."""
        heard: list[Message] = []
        has_spoken = False
        for message in messages:
            has_spoken = has_spoken or message["role"] == "assistant"
            if message["role"] == "tool" or (has_spoken and message["role"] == "user"):
                content, count = without_control_tokens(self._tokenizer, str(message["content"]))
                record.counts["defused_texts"] += count
                message = {**message, "content": content}
            heard.append(message)
        return tuple(heard)

    def _rendered(self, record: CallRecord, request: CallRequest) -> tuple[int, ...]:
        """A conversation that nothing is known of, as the template writes it; its texts, where there is no template."""
        if self._tokenizer.chat_template:
            messages, tools = self._heard(record, request.messages), request.tools
            if tools:
                messages, tools = self._format(tools).conversation(messages, tools)
            return prompt_tokens(self._tokenizer, Prompt("messages", messages, tools=tools))
        if request.tools:
            raise BadCall("the model has no chat template that could show it tools; leave them away", param="tools")
        text = "".join(str(message["content"]) for message in request.messages)
        return prompt_tokens(self._tokenizer, Prompt("messages", (), text))

    def _continued(self, record: CallRecord, request: CallRequest, parent: ModelCall, covered: int) -> ModelCall | None:
        """The prompt of a call that goes on from another; None where the template cannot be applied so."""
        assert parent.sample is not None
        before, new, tools = request.messages[:covered], request.messages[covered:], request.tools
        if tools:
            form = self._format(tools)
            before, new = tuple(map(form.plain, before)), tuple(map(form.plain, new))
            tools = tools if form.instructions is None else ()
        renderer = self._renderer(tools)
        if isinstance(renderer, str) or any(message["role"] == "assistant" for message in new):
            record.counts["rewritten_histories"] += 1
            return None
        tokens = parent.tokens
        try:
            answer = renderer.answer(
                [*before[:-1], {"role": "assistant", "content": parent.text}],
                new,
                ended=tokens[-1] in renderer.end_tokens,
                last_token=tokens[-1],
            )
        except WhetError:
            record.counts["rewritten_histories"] += 1
            return None
        if answer.defused:
            record.counts["defused_texts"] += answer.defused
        base = len(tokens)
        observed = tuple(
            Turn(str(message["role"]), str(message.get("content") or ""), base + start, base + stop)
            for message, (start, stop) in zip(new, answer.spans, strict=True)
        )
        return ModelCall((*tokens, *answer.tokens), observed, parent)

    def _format(self, tools: Sequence[Mapping[str, Any]]) -> CallFormat:
        """How these tools are shown and called; a `BadCall` where the template cannot do it."""

        def make() -> CallFormat:
            # a template that rewrites history is given the whole of it for every call, and that is counted
            try:
                return call_format_of(self._call_format, tools, self._tokenizer, self._history)
            except WhetError:
                return call_format_of(self._call_format, tools, self._tokenizer, "sampled")

        call_format = _remembered(self._formats, tools, make)
        if isinstance(call_format, str):
            raise BadCall(call_format, param="tools")
        return call_format

    def _renderer(self, tools: Sequence[Mapping[str, Any]]) -> TurnRenderer | str:
        """What writes answers after a sampled turn, or why the template cannot be applied so."""
        chat = bool(self._tokenizer.chat_template)
        make = partial(turn_renderer, self._tokenizer, chat=chat, tools=tools, history=self._history)
        return _remembered(self._renderers, tools, make)

    def _written(self, opened: _OpenSession, number: int, job: Job, call: ModelCall, sample: Sample) -> None:
        """A completion is done; with the last one of its job, the client gets them."""
        call.sample, call.text = sample, sample.completion
        job.left -= 1
        if job.is_gone or not job.record.is_open or not job.request.messages:
            opened.session.release(number)
        else:
            opened.held[number], call.request = call, (opened.number, number)
        if job.left:
            return
        if job.is_gone:
            job.record.counts["disconnected_calls"] += 1
            return
        choices = [self._choice(job, written_call) for written_call in job.calls]
        result = ServedCompletions(job.id, job.created, job.calls[0].prompt, tuple(choices))
        if not job.future.done():
            job.future.set_result(result)

    def _choice(self, job: Job, call: ModelCall) -> Choice:
        sample, request = call.sample, job.request
        assert sample is not None
        start = len(call.prompt)
        tokens = sample.tokens[start:].tolist()
        pieces: tuple[str, ...] = ()
        if request.logprobs and not request.tokens_as_ids:
            pieces = tuple(str(self._tokenizer.decode([token])) for token in tokens)
        content: str = call.text
        tool_calls: tuple[CalledTool, ...] = ()
        if request.tools:
            content, tool_calls = self._tool_calls(call, tokens, request.tools)
            sent = call.text[: job.streamed.get(job.calls.index(call), 0)]
            content = content if content.startswith(sent) else sent  # what the client has read, it will send back
        for stop in request.wishes.stop:  # of the tokens it is a part, as it was sampled; of what a client reads, none
            content = content.partition(stop)[0]
        if request.messages:
            job.record.remember(call, request.messages, request.tools, _answer(content, tool_calls))
        likeliest: tuple[tuple[tuple[str, float], ...], ...] = ()
        if request.top_logprobs and self._scorer is not None:
            tables = self._scorer(sample.tokens.tolist(), request.top_logprobs)[start - 1 :]
            likeliest = tuple(
                tuple(
                    (str(self._tokenizer.decode([token])), logp)
                    for token, logp in sorted(table.items(), key=lambda entry: -entry[1])[: request.top_logprobs]
                )
                for table in tables
            )
        finish = "length" if sample.stop is StopReason.LENGTH else "tool_calls" if tool_calls else "stop"
        logp = tuple(sample.behavior_logp[start:].tolist())
        return Choice(tuple(tokens), logp, pieces, content, tool_calls, finish, likeliest)

    def _tool_calls(
        self, call: ModelCall, tokens: list[int], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, tuple[CalledTool, ...]]:
        """The text before the calls, and the calls; what cannot be read as one stays text, and is counted."""
        raw = str(self._tokenizer.decode(tokens, skip_special_tokens=False))
        parsed = self._format(tools).reader(tools)(Completion(call.text, tokens, raw))
        call.calls_tools, call.malformed = len(parsed.calls), len(parsed.malformed)
        if call.malformed or not parsed.calls:
            return call.text, ()
        return parsed.text, tuple(
            CalledTool(f"call_{secrets.token_hex(8)}", tool_call.name, json.dumps(dict(tool_call.arguments)))
            for tool_call in parsed.calls
        )


def _remembered(
    known: dict[str, Made | str], tools: Sequence[Mapping[str, Any]], make: Callable[[], Made]
) -> Made | str:
    """What was made for these tools, or why it cannot be."""
    key = json.dumps(list(tools), sort_keys=True)
    if key not in known:
        if len(known) >= MOST_TOOL_LISTS:
            known.clear()
        try:
            known[key] = make()
        except WhetError as error:
            known[key] = str(error)
    return known[key]


def _fits(shape: SessionShape, length: int, budget: int) -> bool:
    """Whether the request fits: its budget must find room after the room for prompts."""
    return max(0, length - shape.prompt_tokens) + budget <= shape.growth


def _answer(content: str, tool_calls: Sequence[CalledTool]) -> Message:
    """A completion as the client will send it back."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if tool_calls:
        message["tool_calls"] = [
            {"function": {"name": tool_call.name, "arguments": json.loads(tool_call.arguments)}}
            for tool_call in tool_calls
        ]
    return message
