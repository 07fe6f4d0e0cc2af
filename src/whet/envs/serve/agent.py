"""The runner that starts a program per episode: it speaks to an OpenAI-compatible endpoint, and its calls are trained.

The program is given the endpoint and its own token (`OPENAI_BASE_URL`, `OPENAI_API_KEY`) and the row it works on
(`WHET_PROMPT`, and standard input). It reports its reward as the last line it prints, `{"reward": 0.5}`, or by a POST.
An async function of this process may take its place (`whet.envs.serve.programs`).
"""

from __future__ import annotations

import json
import secrets
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from whet.envs.serve import wire
from whet.envs.serve.call_tree import CallRecord
from whet.envs.serve.endpoint import HttpEndpoint, require_server
from whet.envs.serve.programs import (
    PATIENCE,
    AgentProgram,
    FunctionEpisode,
    FunctionLoop,
    ProgramGuard,
    agent_function,
    end_all,
    is_function,
    program_arguments,
)
from whet.envs.serve.request_queue import RequestQueue
from whet.protocols import Engine
from whet.rollout.episode_runner import MOST_FAILURES, EpisodeEnded, EpisodePlan, PlayNotes
from whet.types import Prompt, Sample, StopReason, WhetError

AT_ONCE = 16  # programs
GRACE = 1.0  # seconds that the engine waits for a program never found slow, between two calls
MOST_WAITED, WAITED_SHARE = 2.0, 0.1  # seconds, and of the time spent writing: what waiting may cost in all
FIRST_GRACE = 30.0  # and before its first call: it has to be started
HOPELESS = 8  # programs that fail before one has worked: the command is wrong
REPORT = 'print {"reward": 0.5} as the last line of its output, or {"reward": null} for an episode without one'
LONGEST_VARIABLE = 100_000  # bytes; the system refuses longer ones


@dataclass(frozen=True)
class AgentLimits:
    """The limits that end an episode whose program does not end by itself."""

    calls: int = 64  # of an episode
    tokens: int = 0  # after the first prompt of a conversation; 0: what the context leaves
    seconds: float = 600.0
    at_once: int = AT_ONCE  # programs that run side by side


@dataclass(eq=False)
class _AgentEpisode:
    """An episode that a program is playing."""

    record: CallRecord
    prompt: Prompt
    tokens: tuple[int, ...]
    token: str
    program: AgentProgram | FunctionEpisode | None = None
    began: float = 0.0
    quiet_since: float = 0.0  # since when it has not asked for anything
    was_pending: bool = False
    has_called: bool = False
    late_since: float | None = None  # when its time was over, and it was asked to end
    samples: list[Sample] | None = None


class AgentRunner:
    """Plays episodes by running a command, once per episode."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        command: str,
        limits: AgentLimits | None = None,
        *,
        context: int = 0,  # tokens that a conversation may have, the model's limit; 0: not known
        end_tokens: Sequence[int] = (),
        history: str = "template",
        call_format: str = "auto",
        model: str = "policy",  # the name it has for the program
        settings: Mapping[str, Any] | None = None,  # of an environment that plays by itself
        must_report: bool = True,  # programs report the reward: nothing else scores an episode
    ) -> None:
        require_server()
        self._agents = FunctionLoop(agent_function(command, settings)) if is_function(command) else None
        self._arguments = program_arguments(command) if self._agents is None else []
        self._limits, self._tokenizer = limits or AgentLimits(), tokenizer
        self._queue = RequestQueue(
            engine,
            tokenizer,
            end_tokens=end_tokens,
            context=context,
            rows=max(self._limits.at_once, 1),
            history=history,
            call_format=call_format,
        )
        self._model, self._must_report = model, must_report
        self._endpoint: HttpEndpoint | None = None
        self._stopping: weakref.finalize[..., AgentRunner] | None = None
        self._guard = ProgramGuard()
        self._has_worked, self._num_failed = False, 0
        self._is_slow, self._is_slow_to_start = False, False
        self._counts: Counter[str] = Counter()
        self._failures: list[str] = []
        self._waited = 0.0
        self._held_up, self._wrote = 0.0, 0.0  # seconds of the run: waiting while somebody could write, and writing

    def play(self, plan: EpisodePlan, ended: EpisodeEnded | None = None) -> list[list[Sample]]:
        """The samples of the episodes to each prompt; an episode leaves one for each leaf of its calls."""
        episodes = [self._episode(plan, number, seed) for number, seed in enumerate(plan.seeds())]
        if not episodes:
            return []
        endpoint = self._started()
        self._queue.open(plan.sampling, fixed=True)
        try:
            self._run(episodes, endpoint, ended)
        finally:
            for episode in episodes:
                endpoint.forget(episode.token)
            self._queue.close()
            end_all(
                [played.program for played in episodes if played.program is not None and not played.program.has_ended]
            )
        per_prompt = [episodes[start : start + plan.count] for start in range(0, len(episodes), plan.count)]
        return [[sample for played in group for sample in played.samples or ()] for group in per_prompt]

    def take_notes(self) -> PlayNotes:
        """What happened since the last time."""
        self._counts.update(self._queue.counts)
        self._queue.counts.clear()
        counts = {name: number for name, number in sorted(self._counts.items()) if number}
        notes = PlayNotes({"agent": self._waited} if self._waited else {}, tuple(self._failures), counts)
        self._counts, self._failures, self._waited = Counter(), [], 0.0
        return notes

    def close(self) -> None:
        """End the endpoint; without a call, it ends with the runner."""
        if self._stopping is not None:
            self._stopping()
        self._endpoint = self._stopping = None
        if self._agents is not None:
            self._agents.close()
        self._guard.close()

    def _started(self) -> HttpEndpoint:
        if self._endpoint is None:
            self._endpoint = HttpEndpoint(self._queue, self._model, any_model=True)
            self._endpoint.start()
            self._stopping = weakref.finalize(self, HttpEndpoint.stop, self._endpoint)
        return self._endpoint

    def _episode(self, plan: EpisodePlan, number: int, seed: tuple[int, ...]) -> _AgentEpisode:
        row, index = divmod(number, plan.count)
        prompt, limits = plan.prompts[row], self._limits
        record = CallRecord(f"{prompt.id}#{index}", number, seed, most_calls=limits.calls, most_tokens=limits.tokens)
        return _AgentEpisode(record, prompt, plan.prompt_tokens[row], secrets.token_urlsafe(24))

    def _run(
        self, episodes: Sequence[_AgentEpisode], endpoint: HttpEndpoint, ended: EpisodeEnded | None = None
    ) -> None:
        waiting = list(episodes)
        running: list[_AgentEpisode] = []
        tell = ended or (lambda number, samples: None)
        while waiting or running:
            while waiting and len(running) < self._limits.at_once:
                episode = waiting.pop(0)
                self._begin(episode, endpoint)
                if episode.program is not None:
                    running.append(episode)
                else:
                    tell(episode.record.number, episode.samples or ())
            self._queue.take()
            for episode in list(running):
                if self._is_over(episode):
                    running.remove(episode)
                    self._finish(episode, endpoint)
                    tell(episode.record.number, episode.samples or ())
            patience = self._patience(running)
            if patience > 0 and running:
                started = time.monotonic()
                self._queue.wait(min(patience, self._time_left(running)))
                waited = time.monotonic() - started
                self._waited += waited
                if self._queue.waiting or not self._queue.is_idle:
                    self._held_up += waited
                continue
            started = time.monotonic()
            self._queue.work()
            self._wrote += time.monotonic() - started

    def _begin(self, episode: _AgentEpisode, endpoint: HttpEndpoint) -> None:
        record, prompt = episode.record, episode.prompt
        endpoint.allow(episode.token, record)
        values = {
            "id": prompt.id,
            "messages": [dict(message) for message in prompt.messages] or None,
            "text": prompt.text,
            "answer": prompt.answer,
            **({"tools": [dict(tool) for tool in prompt.tools]} if prompt.tools else {}),
            "meta": dict(prompt.meta),
        }
        episode.began = episode.quiet_since = time.monotonic()
        if self._agents is not None:
            address = f"{endpoint.address}/v1"
            episode.program = FunctionEpisode(self._agents, address, episode.token, values, self._queue.wake)
            return
        row = json.dumps(values, default=str)
        host = "127.0.0.1,localhost"
        environment = {
            "OPENAI_BASE_URL": f"{endpoint.address}/v1",
            "OPENAI_API_KEY": episode.token,
            "WHET_EPISODE": record.name,
            "WHET_MODEL": self._model,
            # a proxy of the user's must not carry what stays on this machine
            "NO_PROXY": host,
            "no_proxy": host,
            **({"WHET_PROMPT": row} if len(row.encode()) <= LONGEST_VARIABLE else {}),
        }
        try:
            episode.program = AgentProgram(self._arguments, environment, row, self._queue.wake, self._guard)
        except (OSError, ValueError) as error:
            self._fail(episode, f"its program could not be started: {error}")
            episode.samples = record.samples(self._decode, episode.tokens, failed=True)
            endpoint.forget(episode.token)

    def _is_over(self, episode: _AgentEpisode) -> bool:
        """True when its program has ended. One whose time is over is asked to end, then killed, and waited for."""
        assert episode.program is not None
        if episode.program.has_ended:
            return True
        now = time.monotonic()
        if episode.late_since is None:
            if now - episode.began >= self._limits.seconds:
                episode.late_since = now
                episode.program.ask_to_end()
            return False
        if now - episode.late_since >= PATIENCE:
            episode.program.kill()
        return now - episode.late_since >= 2 * PATIENCE

    def _patience(self, running: Sequence[_AgentEpisode]) -> float:
        """Seconds to wait for programs to ask for something, before the engine writes on; 0: write now."""
        now, most = time.monotonic(), 0.0
        if not self._is_slow and self._held_up > MOST_WAITED + WAITED_SHARE * self._wrote:
            self._is_slow = True
            self._counts["slow_programs"] += 1
        for episode in running:
            pending = self._queue.pending(episode.record)
            if pending:
                episode.has_called = episode.was_pending = True
                continue
            if episode.was_pending:
                episode.was_pending, episode.quiet_since = False, now
            # those who wait for it must not run out of their own time
            grace = min(GRACE if episode.has_called else FIRST_GRACE, self._limits.seconds / 4)
            if self._is_slow if episode.has_called else self._is_slow_to_start:
                continue
            left = episode.quiet_since + grace - now
            if left > 0:
                most = max(most, left)
            elif episode.has_called:
                self._is_slow = True
                self._counts["slow_programs"] += 1
            else:
                self._is_slow_to_start = True
                self._counts["slow_starts"] += 1
        if most or not self._queue.is_idle or self._queue.waiting:
            return most
        return 60.0  # nothing to write: until somebody asks, or ends

    def _time_left(self, running: Sequence[_AgentEpisode]) -> float:
        limit = self._limits.seconds
        due = (
            episode.began + limit if episode.late_since is None else episode.late_since + PATIENCE
            for episode in running
        )
        return max(0.01, min(due) - time.monotonic())

    def _finish(self, episode: _AgentEpisode, endpoint: HttpEndpoint) -> None:
        """The program has ended: what it reported, and what it called."""
        record, program = episode.record, episode.program
        assert program is not None
        endpoint.forget(episode.token)
        self._queue.drop(record)
        if episode.late_since is not None:
            record.ended_by = StopReason.SECONDS
        failed = self._judge(episode, program)
        episode.samples = record.samples(self._decode, episode.tokens, failed)
        if len(episode.samples) > 1:
            self._counts["branches"] += len(episode.samples)
        self._counts.update(record.counts)

    def _judge(self, episode: _AgentEpisode, program: AgentProgram | FunctionEpisode) -> bool:
        """Take the reward that the program reported; True where its episode failed."""
        record = episode.record
        self._counts["agent_calls"] += record.num_calls
        if not record.is_scored:
            self._read_report(episode, program.output)
        if record.ended_by is not None:
            return False
        if program.exit_code:
            complaint = f": {program.complaint}" if program.complaint else ""
            self._counts["failed_programs"] += 1
            code = program.exit_code
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            how = f"its program {how}" if self._agents is None else "its function raised"
            return self._fail(episode, f"{how}{complaint}")
        if not record.num_calls:
            self._counts["silent_programs"] += 1
            silent = "its program made no call to the endpoint in OPENAI_BASE_URL"
            return self._fail(episode, silent if self._agents is None else "its function made no call with its client")
        self._has_worked = True
        if not record.is_scored:
            self._counts["unreported_rewards"] += 1
            if self._must_report and self._counts["unreported_rewards"] == 1 and not self._counts["bad_reports"]:
                self._note(f"episode {record.name}: its program reported no reward; {REPORT}")
        return False

    def _read_report(self, episode: _AgentEpisode, output: str) -> None:
        """The last line that the program printed, where it is a report."""
        lines = output.strip().splitlines()
        line = lines[-1].strip() if lines else ""
        if not line.startswith("{"):
            return
        try:
            value = wire.parse_body(line.encode())
        except wire.BadCall as error:
            if '"reward"' in line:
                self._note_bad_report(episode, f"its report {line[:60]!r} cannot be read: {error}")
            return
        if "reward" not in value:
            return
        report = wire.reported_reward(value, partial(self._note_bad_report, episode))
        if report is not None:
            episode.record.score(*report)

    def _note_bad_report(self, episode: _AgentEpisode, what: str) -> None:
        self._counts["bad_reports"] += 1
        self._note(f"episode {episode.record.name}: {what}")

    def _fail(self, episode: _AgentEpisode, what: str) -> bool:
        self._counts["failed_episodes"] += 1
        self._note(f"episode {episode.record.name}: {what}")
        self._num_failed += 1
        if not self._has_worked and self._num_failed >= HOPELESS:
            raise WhetError(
                f"the first {HOPELESS} programs of env.agent all failed; {self._failures[-1]}; run one by hand against "
                "`whet serve`, then try again"
            )
        return True

    def _note(self, line: str) -> None:
        if len(self._failures) < MOST_FAILURES:
            self._failures.append(line)

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))


def check_agent(command: str, settings: Mapping[str, Any] | None = None) -> None:
    """Raise, before a model is read, where the command cannot be started."""
    require_server()
    if is_function(command):
        agent_function(command, settings)
    else:
        program_arguments(command)
