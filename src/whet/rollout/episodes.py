"""Episodes: the policy writes a turn, its environment answers, until one of them or a limit ends it.

A single completion is the episode without an environment. The engine writes in the calling thread, always for whoever
is ready; environments answer beside it (`whet.rollout.call_pool`). What the policy sampled is kept as it was sampled:
answers are rendered and appended as tokens (`whet.data.turns`), and nothing is tokenised again.

The engine writes whatever can be written. It waits for answers only where that costs next to nothing (`_Patience`), so
that batches are the same in every run of a quick, deterministic environment: the same bytes after a resume. An
environment that has cost more once is never waited for again while somebody can write.

An episode may branch (`whet.rollout.branching`): from then on each branch is a conversation of its own, with a twin of
the environment, and each leaves a sample.
"""

from __future__ import annotations

import copy
import inspect
import math
import queue
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from whet.data.chat import prompt_tokens
from whet.data.turns import TurnRenderer, turn_renderer
from whet.model.shared_prefix import long_tensor
from whet.protocols import Engine, Environment
from whet.registry import error_text
from whet.rollout.answers import BadAnswer, initial_observation_of, reward_of, step_result_of
from whet.rollout.branching import Branching, TurnReplay, shared_out, twin_of
from whet.rollout.call_pool import CallBundle, CallPool, DrivenCall, PoolCall
from whet.rollout.episode_runner import MOST_FAILURES, EpisodeEnded, EpisodePlan, PlayNotes
from whet.rollout.expert_log import joined_experts
from whet.rollout.scheduler import joined_support
from whet.rollout.seed import request_seed
from whet.rollout.session import LateSession
from whet.types import (
    Completion,
    InitialObservation,
    Message,
    Prompt,
    Request,
    Sample,
    Sampling,
    SessionShape,
    StepResult,
    StopReason,
    Support,
    Turn,
    WhetError,
)

WAIT_SECONDS, WAIT_SHARE = 0.25, 0.05  # waiting that is next to nothing: so much, and this share of the time written
PIECE = 128  # turns that ended together, whose answers are asked for and read before the next
SPREAD_SECONDS = 0.002  # after which environments that are asked together are asked side by side


@dataclass(frozen=True)
class EpisodeLimits:
    """The limits that end an episode which does not end by itself. A turn has the sampling's `max_new_tokens`."""

    max_turns: int = 8
    max_tokens: int = 0  # after the first prompt, completions and answers; 0: what the context leaves
    step_seconds: float = 60.0  # for one answer of the environment
    seconds: float = 600.0  # for the whole episode


@dataclass(eq=False)
class _Tree:
    """One episode: its branches, and what they left."""

    leaves: dict[tuple[int, ...], tuple[Sample, tuple[object, ...]]] = field(default_factory=dict)  # by branch
    num_open: int = 1

    def samples(self) -> tuple[Sample, ...]:
        """The samples of all branches, in an order that does not depend on time, with the draws behind their turns."""
        ordered = [self.leaves[branch] for branch in sorted(self.leaves)]
        numbers: dict[object, int] = {}
        for _, draws in ordered:
            for draw in draws:
                numbers.setdefault(draw, len(numbers))
        return tuple(_with_nodes(sample, [numbers[draw] for draw in draws]) for sample, draws in ordered)


def _with_nodes(sample: Sample, nodes: Sequence[int]) -> Sample:
    if not nodes:
        return sample
    left = iter(nodes)
    turns = [replace(turn, node=next(left)) if turn.role == "assistant" else turn for turn in sample.turns]
    return replace(sample, turns=tuple(turns))


@dataclass(eq=False)
class _Table:
    """What the conversations of one episode share: of self-play there is one for each role."""

    seats: dict[str, _Episode] = field(default_factory=dict)  # by role, the first to write in front

    @property
    def num_turns(self) -> int:
        return sum(seat.num_turns for seat in self.seats.values())


@dataclass(eq=False)
class _Episode:
    """One conversation on its way: an episode, or a branch of one."""

    number: int
    prompt: Prompt
    name: str
    seed: tuple[int | str, ...]
    environment: Environment | None
    began: float
    key: int = 0  # its own among all conversations
    tree: _Tree = field(default_factory=_Tree)
    branch: tuple[int, ...] = ()  # which turn it was of those drawn from a state, at each state that branched
    num_leaves: int = 1  # that it may still have
    draws: list[object] = field(default_factory=list)  # one for each turn of the policy, shared by branches
    first_surprise: float = 0.0  # the mean -logp of its first turn's tokens
    answered: list[tuple[Completion, StepResult]] = field(default_factory=list)  # of an environment that replays
    unmade: str = ""  # why it has no environment
    tokens: list[int] = field(default_factory=list)
    logp: list[Tensor] = field(default_factory=list)
    supports: list[tuple[Support | None, int]] = field(default_factory=list)  # with the tokens of the turn
    experts: list[Tensor | None] = field(default_factory=list)
    versions: tuple[int, int] | None = None
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    renderer: TurnRenderer | None = None
    state: str | None = None
    role: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    num_prompt: int = 0
    num_turns: int = 0
    returned: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    last: Sample | None = None
    request: int | None = None  # the newest one of the session
    table: _Table = field(default_factory=_Table)
    written: Completion | None = None  # the newest turn, of an environment that replays

    @property
    def last_turn(self) -> int:
        """The index of the policy's newest turn."""
        return max(number for number, turn in enumerate(self.turns) if turn.role == "assistant")

    def twin(self, environment: Environment, key: int, branch: int) -> _Episode:
        """Another branch from the same state, with a random stream of its own."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list | dict):  # each goes on by itself; the tree they have in common
                setattr(twin, name, copy.copy(value))
        twin.environment, twin.key, twin.branch = environment, key, (*self.branch, branch)
        twin.seed = (*self.seed, f"branch {self.num_turns}.{branch}")
        twin.table = _Table()
        twin.table.seats[twin.role] = twin
        return twin


class _EnvironmentCall(NamedTuple):
    """A call of an environment that is on its way."""

    future: Future[Any] | PoolCall | DrivenCall
    episode: _Episode
    is_start: bool
    since: float
    limit: StopReason | None = None  # that ended the episode: the call asks what it was worth
    is_replay: bool = False  # it leads a twin of an environment to a state


@dataclass
class _Patience:
    """How long the engine may still wait for answers while it could write; 0 for good once that was used up."""

    left: float = WAIT_SECONDS

    def wrote(self, seconds: float) -> None:
        if self.left:
            self.left += WAIT_SHARE * seconds

    def waited(self, seconds: float, in_vain: bool) -> None:
        self.left = 0.0 if in_vain else max(self.left - seconds, 0.0)


class EnvironmentRunner:
    """Plays episodes on one engine; with `make_environment` None every episode is one completion."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any = None,
        make_environment: Callable[[], Environment] | None = None,
        limits: EpisodeLimits | None = None,
        context: int = 0,
        history: str = "template",
        branching: Branching | None = None,
    ) -> None:
        """`context`: tokens that a conversation may have, the model's limit; 0: not known. `branching`: of drawn
        episodes, greedy ones never branch; None: one sample per episode."""
        self._engine, self._tokenizer, self._make = engine, tokenizer, make_environment
        self._limits = limits or EpisodeLimits()
        self._context, self._history, self._branching = context, history, branching
        self._pool = CallPool()
        self._renderers: dict[Any, TurnRenderer] = {}
        self._patience = _Patience()
        self._seconds: dict[str, float] = {}
        self._failures: list[str] = []
        self._counts: Counter[str] = Counter()

    def play(self, plan: EpisodePlan, ended: EpisodeEnded | None = None) -> list[list[Sample]]:
        """The samples of the episodes to each prompt, prompt by prompt."""
        if not plan.prompts:
            return []
        sampling, count = plan.sampling, plan.count
        now, branching = time.monotonic(), self._branching if sampling.temperature > 0 else None
        leaves = 1 if branching is None else branching.leaves
        each = [(prompt, f"{prompt.id}#{index}") for prompt in plan.prompts for index in range(count)]
        episodes = [
            _Episode(number, prompt, name, seed, None, now)
            for number, ((prompt, name), seed) in enumerate(zip(each, plan.seeds(), strict=True))
        ]
        turns = 1 if self._make is None else self._limits.max_turns
        for key, episode in enumerate(episodes):
            episode.key, episode.num_leaves = key, leaves
            if self._make is not None:
                self._equip(episode)
        sampling = _with_stops(sampling, [played.environment for played in episodes])
        seats = max(getattr(played.environment, "seats", 1) for played in episodes)
        if seats > 1 and branching is not None:
            raise WhetError(
                "env.branching: the policy has several seats in this environment, and a branch is of one conversation; "
                "give env.branching=none, or an opponent"
            )
        shape = self._shape(plan.prompt_tokens, count * leaves * seats, sampling, turns)
        play = _Play(self, sampling, [tokens for tokens in plan.prompt_tokens for _ in range(count)], ended, branching)
        early = None if ended is None else play.write_early
        with closing(LateSession(self._engine, sampling, shape, turns, early)) as play.session:
            try:
                play.run(episodes)
            finally:
                made = [played.environment for played in (*episodes, *play.twins)]
                self._close([environment for environment in made if environment is not None])
        samples = [play.samples[episode.number] for episode in episodes]
        whole = [samples[start : start + count] for start in range(0, len(samples), count)]
        return [[sample for leaves in group for sample in leaves] for group in whole]

    def _equip(self, episode: _Episode) -> None:
        """Give the episode an environment."""
        assert self._make is not None
        try:
            episode.environment = self._make()
        except WhetError:
            raise  # a mistake that every episode would make
        except Exception as error:
            episode.unmade = error_text(error)

    def take_notes(self) -> PlayNotes:
        """What happened since the last time."""
        notes = PlayNotes(dict(self._seconds), tuple(self._failures), dict(self._counts))
        self._seconds, self._failures, self._counts = {}, [], Counter()
        return notes

    def _note_failure(self, count: str, line: str) -> None:
        self._counts[count] += 1
        if len(self._failures) < MOST_FAILURES:
            self._failures.append(line)

    def _shape(
        self, prompt_tokens: Sequence[Sequence[int]], count: int, sampling: Sampling, turns: int
    ) -> SessionShape:
        longest = max(map(len, prompt_tokens))
        room = self._context - min(map(len, prompt_tokens)) if self._context else 0
        growth = min((limit for limit in (self._limits.max_tokens, room) if limit > 0), default=sampling.max_new_tokens)
        return SessionShape(len(prompt_tokens) * count, longest, sampling.max_new_tokens if turns == 1 else growth)

    def _close(self, environments: Sequence[Environment]) -> None:
        """Environments that want to be told that it is over; what they raise then is too late to matter."""
        closing = [environment.close for environment in environments if callable(getattr(environment, "close", None))]  # type: ignore[attr-defined]
        bundle, deadline = CallBundle(), time.monotonic() + self._limits.step_seconds
        with bundle.gathering():
            calls = [self._pool.submit(close) for close in closing]
        if not bundle.wait(SPREAD_SECONDS):
            bundle.spread()
        for call in calls:
            try:
                call.exception(timeout=max(0.0, deadline - time.monotonic()))
            except (TimeoutError, Exception):
                self._pool.give_up(call, "environment.close")

    def renderer(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]], answers_as: str = "") -> TurnRenderer:
        """The renderer of the conversation's template, shared by all episodes with the same tools.

        `answers_as`: the role that the environment says it will speak as; a template that cannot follow is refused
        before the first turn is written.
        """
        key = (prompt.text is None, repr(tools), answers_as)
        if key not in self._renderers:
            roles = (answers_as,) if answers_as else ()
            self._renderers[key] = turn_renderer(
                self._tokenizer, chat=prompt.text is None, tools=tools, history=self._history, roles=roles
            )
        return self._renderers[key]


class _Play:
    """One batch of episodes that are being played."""

    session: LateSession

    def __init__(
        self,
        runner: EnvironmentRunner,
        sampling: Sampling,
        prompt_tokens: Sequence[tuple[int, ...]],
        ended: EpisodeEnded | None,
        branching: Branching | None,
    ) -> None:
        self._runner, self._sampling, self._ended, self._branching = runner, sampling, ended, branching
        self._prompt_tokens = prompt_tokens  # by episode
        self._limits = runner._limits
        self.samples: dict[int, tuple[Sample, ...]] = {}  # of episodes that are over
        self.twins: list[_Episode] = []  # branches of episodes, the first one of each state aside
        self._num_keys = len(prompt_tokens)
        self._calls: dict[int, _EnvironmentCall] = {}  # by conversation
        self._answered: queue.SimpleQueue[_EnvironmentCall] = queue.SimpleQueue()  # calls that came back
        self._pending: set[int] = set()  # conversations whose call was not seen to come back
        self._bundles: list[CallBundle] = []  # calls that wait for one another
        self._unread: list[tuple[_Episode, StepResult]] = []  # answers that are no tokens yet
        self._writing: dict[int, _Episode] = {}  # by request
        self._num_requests = 0
        self._opened: dict[Any, tuple[tuple[int, ...], str]] = {}  # openings as tokens and text: a group has the same

    def run(self, episodes: Sequence[_Episode]) -> None:
        with self._asking():
            for episode in episodes:
                self._begin(episode)
        while self._writing or self._calls:
            self._take_answers()
            self._write()

    def _write(self) -> None:
        if self.session.is_idle:
            return
        started = time.monotonic()
        written = self.session.advance()
        self._runner._patience.wrote(time.monotonic() - started)
        for start in range(0, len(written), PIECE):
            if start and self._runner._patience.left:  # the device reads these answers while the next are asked for
                self._take_answers(must_come=False)
                self.session.read_ahead()
            with self._asking():
                for request, sample in written[start : start + PIECE]:
                    if request in self._writing:  # else it was told early
                        self._written(self._writing.pop(request), sample)

    def _asking(self) -> AbstractContextManager[None]:
        """Environments that have been quick so far are asked together; others must not wait for each other."""
        if not self._runner._patience.left:
            return nullcontext()
        self._bundles.append(CallBundle())
        return self._bundles[-1].gathering()

    def _spread(self) -> None:
        while self._bundles:
            self._bundles.pop().spread()

    def write_early(self, request: int, sample: Sample) -> None:
        """A turn that was finished while others of its batch are written: the end of an episode without environment."""
        if self._writing[request].environment is None:
            self._written(self._writing.pop(request), sample)

    def _begin(self, episode: _Episode) -> None:
        if episode.unmade:
            self._fail(episode, f"the environment could not be made: {episode.unmade}")
            return
        if episode.environment is None:
            self._open(episode, None)
            return
        self._call(episode, episode.environment.start, episode.prompt, is_start=True)

    def _call(
        self,
        episode: _Episode,
        function: Callable[..., Any],
        argument: Any,
        is_start: bool = False,
        limit: StopReason | None = None,
    ) -> None:
        # a class that is derived from such a one may wait for more
        is_driven = "waits_for_calls_only" in vars(type(episode.environment)) and inspect.iscoroutinefunction(function)
        future = DrivenCall(function(argument)) if is_driven else self._runner._pool.submit(function, argument)
        self._await(_EnvironmentCall(future, episode, is_start, time.monotonic(), limit))

    def _await(self, call: _EnvironmentCall) -> None:
        future, key = call.future, call.episode.key
        self._calls[key] = call
        if isinstance(future, DrivenCall):
            future.begin(lambda: self._answered.put(call))
        else:
            future.add_done_callback(lambda _: self._answered.put(call))
        if not (isinstance(future, DrivenCall) and future.done()):
            self._pending.add(key)

    def _take_answers(self, must_come: bool = True) -> None:
        """Take in the answers that have come, in the order of the episodes; wait for one where nobody can write, if one
        `must_come`."""
        if not self._calls:
            return
        runner, started = self._runner, time.monotonic()
        self._collect(wait_until=None)
        while must_come and not self._come and self.session.is_idle and self._calls:
            self._collect(wait_until=self._next_deadline(), any_will_do=True)
            if self._expire():
                break
        if self._pending and runner._patience.left:
            waiting = time.monotonic()
            is_all = self._collect(wait_until=waiting + runner._patience.left)
            runner._patience.waited(time.monotonic() - waiting, in_vain=not is_all)
            runner._counts["slow_environments"] += not runner._patience.left
        self._expire()
        waited = time.monotonic() - started
        runner._seconds["environment"] = runner._seconds.get("environment", 0.0) + waited
        for number in sorted(self._come):
            self._answer(self._calls.pop(number))
        self._read_answers()

    @property
    def _come(self) -> list[int]:
        return [number for number in self._calls if number not in self._pending]

    def _collect(self, wait_until: float | None, any_will_do: bool = False) -> bool:
        """Wait for calls to come back: all of them, or any; True where none is left to wait for."""
        while True:
            while not self._answered.empty():
                self._note_answer(self._answered.get())
            if not self._pending:
                self._bundles.clear()
                return True
            if any_will_do and len(self._pending) < len(self._calls):
                return False
            left = 0.0 if wait_until is None else wait_until - time.monotonic()
            if left <= 0:
                if wait_until is not None:
                    self._spread()
                return False
            if self._bundles:  # woken once for all of them: threads that take turns cost more than such calls
                if self._bundles[-1].wait(min(left, SPREAD_SECONDS)):
                    self._bundles.pop()
                elif self._answered.empty():
                    self._spread()
                continue
            with suppress(queue.Empty):
                self._note_answer(self._answered.get(timeout=left))

    def _note_answer(self, call: _EnvironmentCall) -> None:
        """An episode may have gone on without this call, and wait for another one."""
        key = call.episode.key
        if self._calls.get(key) is not call:
            return
        if isinstance(call.future, DrivenCall):
            call.future.run_on()
        if call.future.done():
            self._pending.discard(key)

    def _next_deadline(self) -> float:
        waits = [call.future.until for call in self._calls.values() if isinstance(call.future, DrivenCall)]
        return min(*waits, *(min(self._deadlines(call)) for call in self._calls.values()), math.inf)

    def _deadlines(self, call: _EnvironmentCall) -> tuple[float, float]:
        """When the call and its episode time out; infinity for an episode that a limit has already ended."""
        episode = call.episode.began + self._limits.seconds if call.limit is None else math.inf
        return call.since + self._limits.step_seconds, episode

    def _expire(self) -> bool:
        """End the episodes whose environment takes too long; True where one was ended."""
        now, late = time.monotonic(), []
        for number in sorted(self._pending):
            call = self._calls[number]
            if isinstance(call.future, DrivenCall) and now >= call.future.until:
                self._note_answer(call)
            if call.future.done():
                continue
            of_call, of_episode = self._deadlines(call)
            if now >= of_episode:
                late.append((number, StopReason.SECONDS))
            elif now >= of_call:
                late.append((number, StopReason.STEP_SECONDS))
        for number, reason in late:
            call = self._calls.pop(number)
            self._pending.discard(number)
            self._runner._pool.give_up(call.future, type(call.episode.environment).__name__)
            if call.is_start or call.is_replay:
                what = "start" if call.is_start else "replay"
                self._fail(call.episode, f"its {what} took longer than {self._limits.step_seconds:g} seconds")
            else:
                self._end(call.episode, call.limit or reason)
        return bool(late)

    def _answer(self, call: _EnvironmentCall) -> None:
        episode, seconds = call.episode, time.monotonic() - call.since
        error = call.future.exception()
        if isinstance(error, WhetError) and not isinstance(error, BadAnswer):
            raise error  # a mistake that every episode would make
        if call.is_replay and error is None:
            self._request(episode)
            return
        if error is not None:
            method = "start" if call.is_start else "step" if call.limit is None else "cut_off"
            method = "replay" if call.is_replay else method
            self._fail(episode, f"its {method} raised {error_text(error)}")
            return
        try:
            if call.is_start:
                self._open(episode, initial_observation_of(call.future.result()))
            elif call.limit is not None:
                self._earn(episode, reward_of(call.future.result()))
                self._end(episode, call.limit)
            else:
                self._go_on(episode, step_result_of(call.future.result()), seconds)
        except BadAnswer as problem:
            self._fail(episode, str(problem))

    def _open(self, episode: _Episode, opening: InitialObservation | None) -> None:
        """The first request of an episode."""
        prompt, runner = episode.prompt, self._runner
        tokens = self._prompt_tokens[episode.number]
        if opening is not None:
            # an environment that says nothing about tools leaves the row's own
            tools = opening.tools or prompt.tools
            shown = Prompt(prompt.id, opening.messages, None, prompt.answer, prompt.meta, tools)
            key = repr((opening.messages, tools))
            if key not in self._opened:
                tokens = prompt_tokens(runner._tokenizer, shown)
                text = str(runner._tokenizer.decode(list(tokens), skip_special_tokens=False))
                self._opened[key] = (tokens, text)
            tokens, text = self._opened[key]
            episode.messages, episode.state, prompt = list(opening.messages), opening.state, shown
            episode.role, episode.tools = opening.role, opening.tools
            episode.turns.append(Turn("prompt", text, 0, len(tokens)))
        elif episode.environment is not None:
            episode.messages = list(prompt.messages)
        if episode.environment is not None:
            episode.renderer = runner.renderer(prompt, prompt.tools, getattr(episode.environment, "answers_as", ""))
        episode.tokens, episode.num_prompt = list(tokens), len(tokens)
        episode.table.seats[episode.role] = episode
        if not self._request(episode):
            self._fail(episode, f"its first prompt has {len(tokens)} tokens and leaves no room for a completion")

    def _request(self, episode: _Episode) -> bool:
        """Ask for the next turn; False where there is no room for one."""
        room, budget = self._room(episode), self._sampling.max_new_tokens
        if room < 1:
            return False
        turn = episode.table.num_turns
        seed = (*episode.seed, turn) if turn else episode.seed
        limited = min(room, budget) if episode.environment is not None else budget
        request = Request(
            tuple(episode.tokens),
            request_seed(*seed),
            None if limited == budget else limited,
            episode.request if episode.num_turns else None,
        )
        number, self._num_requests = self._num_requests, self._num_requests + 1
        episode.request, self._writing[number] = number, episode
        self.session.add(number, request)
        return True

    def _room(self, episode: _Episode) -> int:
        """Tokens that the episode may still grow by."""
        context, most = self._runner._context, self._limits.max_tokens
        rooms = [context - len(episode.tokens)] if context else []
        if most and episode.environment is not None:
            rooms.append(most - (len(episode.tokens) - episode.num_prompt))
        if self.session.room is not None and episode.environment is not None:
            # of one that an environment opened late, with a longer prompt than all before it
            rooms.append(self.session.room - len(episode.tokens))
        return min(rooms, default=self._sampling.max_new_tokens)

    def _written(self, episode: _Episode, sample: Sample) -> None:
        """A turn of the policy is done: its environment is next."""
        if episode.environment is None:
            self._over(episode, sample)
            return
        start = len(episode.tokens)
        fresh = sample.tokens[start:].tolist()
        episode.tokens += fresh
        episode.logp.append(sample.behavior_logp[start:])
        episode.supports.append((sample.support, len(fresh)))
        episode.experts.append(sample.routed_experts)
        oldest, newest = episode.versions or sample.versions
        episode.versions = (min(oldest, sample.versions[0]), max(newest, sample.versions[1]))
        episode.last = sample
        episode.num_turns += 1
        episode.draws.append(object())
        episode.messages.append({"role": "assistant", "content": sample.completion})
        episode.turns.append(
            Turn("assistant", sample.completion, start, len(episode.tokens), state=episode.state, ended=sample.stop)
        )
        raw = partial(self._runner._tokenizer.decode, fresh, skip_special_tokens=False)
        completion = Completion(sample.completion, fresh, raw, sample.stop)
        if self._branching is not None and getattr(episode.environment, "replays", False):
            episode.written = completion
        self._call(episode, episode.environment.step, completion)

    def _go_on(self, episode: _Episode, result: StepResult, seconds: float) -> None:
        """Take in what the environment answered; what the policy is to read waits for the others' answers."""
        policy = episode.turns[-1]
        episode.turns[-1] = Turn(
            role=policy.role,
            text=policy.text,
            start=policy.start,
            stop=policy.stop,
            reward=result.reward,
            state=policy.state,
            ended=policy.ended,
            counts=result.counts,
            errors=result.errors,
            seconds=seconds,
        )
        if result.reward is not None:
            episode.returned = (episode.returned or 0.0) + result.reward
        seats = episode.table.seats
        for role, reward in result.rewards.items():
            if role in seats and seats[role].num_turns:  # a game may be over before somebody's first turn
                self._earn(seats[role], reward)
        for seat in seats.values():
            seat.metrics |= result.metrics
        if result.done:
            self._tell(episode, result.messages)
            self._end(episode, StopReason.END)
            return
        if episode.table.num_turns >= self._limits.max_turns:
            self._tell(episode, result.messages)
            self._cut(episode, StopReason.TURNS)
            return
        if time.monotonic() - episode.began >= self._limits.seconds:
            self._cut(episode, StopReason.SECONDS)
            return
        if result.role and result.role not in seats:
            seat = _Episode(
                episode.number, episode.prompt, episode.name, episode.seed, episode.environment, episode.began
            )
            seat.table, seat.metrics = episode.table, dict(episode.metrics)
            seat.key, self._num_keys = self._num_keys, self._num_keys + 1
            self._open(seat, InitialObservation(result.messages, episode.tools, result.state, result.role))
            return
        episode = seats[result.role or episode.role]
        episode.state = result.state
        self._unread.append((episode, result))

    def _read_answers(self) -> None:
        """Make tokens of what has been answered, all of it together, and ask for the next turns."""
        answers: dict[TurnRenderer, list[Sequence[Message]]] = {}
        for episode, result in self._unread:
            assert episode.renderer is not None
            answers.setdefault(episode.renderer, []).append(result.messages)
        for renderer, messages in answers.items():
            renderer.expect(messages)
        unread, self._unread = self._unread, []
        for episode, result in unread:
            self._read(episode, result)

    def _read(self, episode: _Episode, result: StepResult) -> None:
        assert episode.renderer is not None
        ended = episode.tokens[-1] in episode.renderer.end_tokens
        answer = episode.renderer.answer(episode.messages, result.messages, ended=ended, last_token=episode.tokens[-1])
        if self._room(episode) - len(answer.tokens) < 1:
            self._tell(episode, result.messages)
            self._cut(episode, StopReason.TOKENS)
            return
        base = len(episode.tokens)
        for message, (start, stop) in zip(result.messages, answer.spans, strict=True):
            episode.turns.append(Turn(_speaker(message), _text(message), base + start, base + stop))
        episode.messages += result.messages
        episode.tokens += answer.tokens
        episode.logp.append(torch.zeros(len(answer.tokens)))
        if answer.defused:
            self._runner._counts["defused_texts"] += answer.defused
        if episode.written is not None:
            episode.answered.append((episode.written, result))
        for branch in self._branches(episode):
            self._request(branch)

    def _branches(self, episode: _Episode) -> list[_Episode]:
        """The conversations that go on from here and can be written now; a twin that is being replayed follows."""
        if self._branching is None:
            return [episode]
        turn, logp = episode.turns[episode.last_turn], episode.logp[-2]  # of the turn; after it comes the answer's
        surprise = -float(logp.mean()) if len(logp) else 0.0
        if episode.num_turns == 1:
            episode.first_surprise = surprise
        rise = (surprise - episode.first_surprise) / math.log(max(len(self._runner._tokenizer), 2))
        coin = (*episode.seed, "coin", episode.num_turns)
        count = self._branching.num_draws(episode.num_leaves, turn.counts.get("tool_calls", 0), rise, coin)
        twins = [twin for number in range(1, count) if (twin := self._twin(episode, number)) is not None]
        branches = [episode, *twins]
        for branch, share in zip(branches, shared_out(episode.num_leaves, len(branches)), strict=True):
            branch.num_leaves = share
        if twins:
            episode.branch = (*episode.branch, 0)
            episode.tree.num_open += len(twins)
            self.twins += twins
        return [branch for branch in branches if branch.key not in self._calls]

    def _twin(self, episode: _Episode, number: int) -> _Episode | None:
        """Another branch from this state; None, counted and reported, where its environment cannot be copied."""
        runner, before = self._runner, episode.environment
        assert before is not None and runner._make is not None
        is_replay = bool(episode.answered)
        try:
            environment = runner._make() if is_replay else twin_of(before)
        except WhetError:
            raise
        except Exception as error:
            runner._note_failure("failed_branches", f"episode {episode.name}: no branch: {error_text(error)}")
            return None
        key, self._num_keys = self._num_keys, self._num_keys + 1
        twin = episode.twin(environment, key, number)
        if is_replay:
            replay = TurnReplay(environment, episode.prompt, tuple(episode.answered))
            future = runner._pool.submit(replay)
            self._await(_EnvironmentCall(future, twin, False, time.monotonic(), is_replay=True))
        return twin

    def _cut(self, episode: _Episode, limit: StopReason) -> None:
        """A limit ends the episode. An environment that scores at the end is asked what it was worth so far."""
        cut_off = getattr(episode.environment, "cut_off", None)
        if callable(cut_off):
            self._call(episode, cut_off, limit, limit=limit)
        else:
            self._end(episode, limit)

    def _earn(self, episode: _Episode, reward: float | None) -> None:
        """The reward of the episode's last turn of the policy, after the environment had answered that turn."""
        if reward is None:
            return
        last = episode.last_turn
        turn = episode.turns[last]
        episode.turns[last] = replace(turn, reward=(turn.reward or 0.0) + reward)
        episode.returned = (episode.returned or 0.0) + reward

    def _tell(self, episode: _Episode, messages: Sequence[Message]) -> None:
        """Messages that the policy never reads: they are shown, and no tokens."""
        end = len(episode.tokens)
        episode.turns += [Turn(_speaker(message), _text(message), end, end) for message in messages]

    def _fail(self, episode: _Episode, what: str) -> None:
        self._runner._note_failure("failed_episodes", f"episode {episode.name}: {what}")
        if not episode.tokens:
            episode.tokens = list(self._prompt_tokens[episode.number])
            episode.num_prompt = len(episode.tokens)
        self._end(episode, StopReason.FAILED)

    def _end(self, episode: _Episode, reason: StopReason) -> None:
        """End an episode for every role that has written in it."""
        seats = list(episode.table.seats.values()) or [episode]
        for seat in seats:
            if seat.request is not None:
                self.session.release(seat.request)
        played = [seat for seat in seats if seat.num_turns] or seats[:1]
        self._over(episode, *(self._sample(seat, _reason(seat, reason)) for seat in played))

    def _sample(self, episode: _Episode, reason: StopReason) -> Sample:
        # what follows the last turn of the policy teaches nothing
        policy = [turn for turn in episode.turns if turn.role == "assistant"]
        end = policy[-1].stop if policy else len(episode.tokens)
        logp = torch.cat([torch.zeros(episode.num_prompt), *episode.logp])[:end]
        action = np.zeros(end, dtype=np.bool_)
        for turn in policy:
            action[turn.start : turn.stop] = True
        return Sample(
            tokens=long_tensor(episode.tokens[:end]),
            action=torch.from_numpy(action),
            behavior_logp=logp,
            versions=episode.versions or (0, 0),
            stop=reason,
            completion=policy[-1].text if policy else "",
            support=joined_support(episode.supports),
            steps=tuple((turn.stop - 1, turn.reward) for turn in policy if turn.reward is not None),
            turns=tuple(episode.turns),
            returned=_returned(episode, reason),
            episode=episode.name,
            role=episode.role,
            metrics=dict(episode.metrics),
            routed_experts=joined_experts(episode.experts),
            environment=getattr(episode.environment, "foreign", None),
        )

    def _over(self, episode: _Episode, *samples: Sample) -> None:
        tree = episode.tree
        if self._branching is not None:
            (sample,) = samples
            tree.leaves[episode.branch] = (sample, tuple(episode.draws))
            tree.num_open -= 1
            if tree.num_open:
                return
            samples = tree.samples()
        self.samples[episode.number] = samples
        if self._ended is not None:
            self._ended(episode.number, samples)


def _reason(seat: _Episode, reason: StopReason) -> StopReason:
    """Why a role's conversation ended: a last turn that was cut is its own alone."""
    was_cut = seat.last is not None and seat.last.stop is StopReason.LENGTH
    return StopReason.LENGTH if reason is StopReason.END and was_cut else reason


def _with_stops(sampling: Sampling, environments: Sequence[Environment | None]) -> Sampling:
    """The sampling with the texts that the environments want to end a turn."""
    wanted = [text for environment in environments for text in getattr(environment, "stops", ())]
    new = [text for text in dict.fromkeys(wanted) if text not in sampling.stop]
    return replace(sampling, stop=(*sampling.stop, *new)) if new else sampling


def _returned(episode: _Episode, reason: StopReason) -> float | None:
    """The sum of the environment's rewards. An episode that a limit ended has earned what it had until then."""
    return None if reason is StopReason.FAILED else episode.returned


def _speaker(message: Message) -> str:
    """The role of an environment's message: `assistant` is always the policy's own."""
    role = str(message["role"])
    return "environment" if role == "assistant" else role


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else "" if content is None else str(content)
