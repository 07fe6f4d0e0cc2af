"""Episodes: who speaks when, which tokens learn, what ends them, and what a bad environment costs."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from concurrent.futures import Future

import pytest
import torch

from whet.model.causal_lm import causal_lm
from whet.model.load import load_model
from whet.rollout.episode_runner import EpisodePlan
from whet.rollout.episodes import EnvironmentRunner, EpisodeLimits
from whet.rollout.session import BatchSession
from whet.rollout.torch_engine import TorchEngine
from whet.types import InitialObservation, Prompt, Sample, Sampling, StepResult, StopReason, WhetError


@pytest.fixture(scope="module")
def loaded():
    return load_model("whetstone", torch.float32, "cpu")


class ScriptedEngine:
    """Writes what the script says: the completion of turn t of the conversation, by how many turns it has seen."""

    def __init__(self, tokenizer, script):
        self.tokenizer, self.script, self.seen, self.seeds = tokenizer, script, [], []

    def generate(self, requests, sampling):
        self.seen.append([request.tokens for request in requests])
        self.seeds += [request.seed for request in requests]
        samples = []
        for request in requests:
            text = self.script(self.tokenizer.decode(list(request.tokens), skip_special_tokens=False))
            tokens = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], 1]
            stop = StopReason.END
            if len(tokens) > (request.max_new_tokens or sampling.max_new_tokens):
                tokens, stop = tokens[: request.max_new_tokens or sampling.max_new_tokens], StopReason.LENGTH
            whole = torch.tensor([*request.tokens, *tokens])
            action = torch.arange(len(whole)) >= len(request.tokens)
            logp = torch.where(action, -0.5, 0.0)
            text = self.tokenizer.decode(tokens, skip_special_tokens=True)
            samples.append(Sample(whole, action, logp, (0, 0), stop, text))
        return samples

    def load(self, weights, version): ...


class Counting:
    """Answers each turn with its number, and ends after `turns` of them with reward 1."""

    turns = 3

    def __init__(self):
        self.count = 0

    def start(self, prompt):
        return None

    def step(self, completion):
        self.count += 1
        if self.count == self.turns:
            return 1.0
        message = {"role": "user", "content": f"answer {self.count}"}
        return StepResult((message,), reward=0.25, state=f"s{self.count}", counts={"tool_calls": 1})


PROMPT = Prompt("p", ({"role": "user", "content": "begin"},))


def opened(tokenizer, prompt):
    return tuple(tokenizer.apply_chat_template(list(prompt.messages), add_generation_prompt=True, return_dict=False))


def play(
    loaded, environment, script=lambda text: "go", prompts=(PROMPT,), count=1, max_new_tokens=16, context=512, **limits
):
    engine = ScriptedEngine(loaded.tokenizer, script)
    runner = EnvironmentRunner(engine, loaded.tokenizer, environment, EpisodeLimits(**limits), context)
    tokens = [opened(loaded.tokenizer, prompt) for prompt in prompts]
    played = runner.play(EpisodePlan(prompts, tokens, count, Sampling(max_new_tokens), (0,)))
    return played, runner.take_notes(), engine


def test_what_was_sampled_is_trained_and_what_was_answered_is_not(loaded):
    [[sample]], _, _ = play(loaded, Counting)
    decode = loaded.tokenizer.decode
    assert decode(sample.tokens.tolist(), skip_special_tokens=False) == (
        "<|user|>begin<|end|><|assistant|>go<|end|><|user|>answer 1<|end|><|assistant|>go<|end|>"
        "<|user|>answer 2<|end|><|assistant|>go<|end|>"
    )
    assert decode(sample.tokens[sample.action].tolist(), skip_special_tokens=False) == "go<|end|>" * 3
    assert (sample.behavior_logp[sample.action] == -0.5).all() and (sample.behavior_logp[~sample.action] == 0).all()
    assert [turn.role for turn in sample.turns] == ["assistant", "user", "assistant", "user", "assistant"]
    for turn in sample.turns:
        assert sample.action[turn.start : turn.stop].all() == (turn.role == "assistant")
        assert turn.text in decode(sample.tokens[turn.start : turn.stop].tolist())


@pytest.mark.parametrize("limits", [{}, {"max_turns": 2}, {"max_tokens": 12}])
def test_the_session_keeps_nothing_of_an_episode_that_ended(loaded, limits):
    kept = set()

    class Watched(ScriptedEngine):
        def session(self, sampling, shape):
            session = BatchSession(self, sampling)
            add = session.add

            def added(number, request):
                kept.discard(request.continues)
                kept.add(number)
                add(number, request)

            session.add, session.release = added, kept.remove
            return session

    runner = EnvironmentRunner(
        Watched(loaded.tokenizer, lambda text: "go"), loaded.tokenizer, Counting, EpisodeLimits(**limits), 512
    )
    [samples] = runner.play(EpisodePlan([PROMPT], [opened(loaded.tokenizer, PROMPT)], 3, Sampling(16), (0,)))
    assert len(samples) == 3 and not kept


def test_a_large_batch_is_answered_piece_by_piece(loaded, monkeypatch):
    """With the same episodes; the device is let read between two pieces, and a slow piece does not hold up the next."""
    [whole], _, _ = play(loaded, Counting, count=5)
    reads, meeting = [], threading.Barrier(5)
    monkeypatch.setattr("whet.rollout.episodes.PIECE", 2)
    monkeypatch.setattr("whet.rollout.session.LateSession.read_ahead", lambda session: reads.append(session))
    [pieces], notes, _ = play(loaded, Counting, count=5)
    assert [sample.tokens.tolist() for sample in pieces] == [sample.tokens.tolist() for sample in whole]
    assert len(reads) == 2 * Counting.turns and not notes.failures

    class Meeting(Counting):
        def step(self, completion):
            meeting.wait(timeout=5)  # until all of them are asked
            return super().step(completion)

    [met], notes, _ = play(loaded, Meeting, count=5)
    assert not notes.failures and [sample.num_actions for sample in met] == [sample.num_actions for sample in whole]


class Partner(Counting):
    """Answers as an assistant: another model speaks, or an example is shown."""

    turns = 2

    def step(self, completion):
        self.count += 1
        said = ({"role": "assistant", "content": "not mine"}, {"role": "user", "content": "go on"})
        return StepResult(said, reward=1.0, done=self.count == self.turns)


def test_what_an_environment_says_as_an_assistant_is_not_the_policys_own(loaded):
    [[sample]], _, _ = play(loaded, Partner)
    decode = loaded.tokenizer.decode
    assert "<|assistant|>not mine<|end|><|user|>go on" in decode(sample.tokens.tolist(), skip_special_tokens=False)
    assert decode(sample.tokens[sample.action].tolist(), skip_special_tokens=False) == "go<|end|>" * 2
    assert (sample.behavior_logp[~sample.action] == 0).all() and sample.completion == "go"
    # told behind the last turn too, where it must not pass for the completion either
    assert [turn.role for turn in sample.turns] == ["assistant", "environment", "user"] * 2
    assert sample.steps == tuple((turn.stop - 1, 1.0) for turn in sample.turns if turn.role == "assistant")
    assert sample.tokens.shape == sample.action.shape == sample.behavior_logp.shape


def test_rewards_states_and_counts_of_turns(loaded):
    [[sample]], _, _ = play(loaded, Counting)
    policy = [turn for turn in sample.turns if turn.role == "assistant"]
    assert [turn.reward for turn in policy] == [0.25, 0.25, 1.0]
    assert [turn.state for turn in policy] == [None, "s1", "s2"]
    assert sample.returned == 1.5 and sample.stop is StopReason.END
    assert sample.steps == tuple((turn.stop - 1, turn.reward) for turn in policy)
    assert [dict(turn.counts) for turn in policy] == [{"tool_calls": 1}, {"tool_calls": 1}, {}]


def test_a_turn_ends_behind_a_text_that_the_environment_names(loaded):
    class Ending(Counting):
        stops = ("1",)

    engine = TorchEngine(causal_lm(loaded.model, torch.float32), loaded.tokenizer, loaded.end_tokens, context=512)
    runner = EnvironmentRunner(engine, loaded.tokenizer, Ending, EpisodeLimits(), 512)
    prompt = Prompt("p", ({"role": "user", "content": "Left to right mod 10: 1+1+1"},))
    [samples] = runner.play(EpisodePlan([prompt], [opened(loaded.tokenizer, prompt)], 8, Sampling(12), (0,)))
    ended = [turn for sample in samples for turn in sample.turns if turn.ended is StopReason.TEXT]
    assert ended and all(turn.text.endswith("1") and turn.text.count("1") == 1 for turn in ended)
    following = [sample.tokens[turn.stop].item() for sample in samples for turn in sample.turns[:-1] if turn in ended]
    # the template's end of a turn follows, and was not sampled
    assert following and set(following) == {1}


def test_a_single_completion_is_the_episode_without_an_environment(loaded):
    [[sample]], _, engine = play(loaded, None)
    assert sample.turns == () and sample.completion == "go" and len(engine.seen) == 1


@pytest.mark.parametrize(
    ("limits", "reason", "turns"),
    [
        ({"max_turns": 2}, StopReason.TURNS, 2),
        ({"max_tokens": 15}, StopReason.TOKENS, 2),
        ({"context": 22}, StopReason.TOKENS, 2),
    ],
)
def test_each_limit_has_its_own_reason(loaded, limits, reason, turns):
    [[sample]], _, _ = play(loaded, Counting, **limits)
    assert sample.stop is reason and sample.stop.is_limit
    assert sum(turn.role == "assistant" for turn in sample.turns) == turns
    assert sample.returned == 0.25 * turns
    assert bool(sample.action[-1])  # nothing stands behind the last turn of the policy


@pytest.mark.parametrize(("limits", "reason"), [({"max_turns": 2}, "turns"), ({"max_tokens": 10}, "tokens")])
def test_an_environment_that_scores_at_the_end_is_asked_when_a_limit_comes_first(loaded, limits, reason):
    class Scoring(Counting):
        async def cut_off(self, why):
            assert why == reason
            return 0.5 * self.count

    [[cut]], _, _ = play(loaded, Scoring, **limits)
    [[plain]], _, _ = play(loaded, Counting, **limits)
    assert cut.stop == plain.stop == reason
    assert cut.returned == plain.returned + 0.5 * len(plain.steps)
    assert cut.steps[-1][1] == 0.25 + 0.5 * len(plain.steps) and cut.steps[:-1] == plain.steps[:-1]
    assert torch.equal(cut.tokens, plain.tokens)


def test_what_a_limit_asks_may_fail_or_hang(loaded):
    class Failing(Counting):
        def cut_off(self, why):
            raise KeyError("score")

    class Hanging(Counting):
        def cut_off(self, why):
            time.sleep(1)

    [[sample]], notes, _ = play(loaded, Failing, max_turns=1)
    assert sample.stop is StopReason.FAILED and notes.failures == ("episode p#0: its cut_off raised KeyError: 'score'",)
    [[sample]], _, _ = play(loaded, Hanging, max_turns=1, step_seconds=0.2)
    assert sample.stop is StopReason.TURNS and sample.returned == 0.25
    [[sample]], notes, _ = play(loaded, lambda: _With(cut_off=lambda why: float("nan")), max_turns=1)
    assert sample.stop is StopReason.FAILED and "its reward is nan" in notes.failures[0]


class _With(Counting):
    def __init__(self, **methods):
        super().__init__()
        self.__dict__ |= methods


class Sleeping:
    seconds = 5.0

    def start(self, prompt):
        return None

    def step(self, completion):
        time.sleep(self.seconds)
        return 1.0


def test_an_answer_that_takes_too_long_ends_the_episode(loaded):
    [[sample]], _, _ = play(loaded, Sleeping, step_seconds=0.2)
    assert sample.stop is StopReason.STEP_SECONDS and sample.returned is None


def test_an_episode_that_takes_too_long_ends(loaded):
    class Slow(Counting):
        def step(self, completion):
            time.sleep(0.15)
            return super().step(completion)

    [[sample]], _, _ = play(loaded, Slow, seconds=0.2)
    assert sample.stop is StopReason.SECONDS


def test_a_truncated_turn_is_handed_on_and_marked(loaded):
    heard = []

    class Listening(Counting):
        turns = 1

        def step(self, completion):
            heard.append((str(completion), completion.stop, completion.raw))
            return super().step(completion)

    [[sample]], _, _ = play(loaded, Listening, lambda text: "a long story", max_new_tokens=4)
    assert heard == [("a lo", StopReason.LENGTH, "a lo")]
    assert sample.stop is StopReason.LENGTH and sample.returned == 1.0
    assert sample.turns[0].ended is StopReason.LENGTH


def test_a_turn_without_its_end_token_is_closed_by_the_template(loaded):
    [[sample]], _, _ = play(loaded, Counting, lambda text: "a long story", max_new_tokens=4)
    text = loaded.tokenizer.decode(sample.tokens.tolist(), skip_special_tokens=False)
    assert "<|assistant|>a lo<|end|><|user|>answer 1<|end|>" in text
    assert int(sample.action.sum()) == 3 * 4


class SimulatedTime:
    """Environments and an engine that take time on a clock of their own: stands for `time`, `queue` and the pool."""

    Empty = queue.Empty

    def __init__(self, monkeypatch, tokenizer, seconds_of):
        """`seconds_of` is what an environment takes to answer."""
        self.now, self.waited, self.wrote, self.looks = 0.0, 0.0, 0.0, []
        self._tokenizer, self._seconds_of = tokenizer, seconds_of
        self._due, self._answers, self._writing = [], [], {}
        self.SimpleQueue = lambda: self
        monkeypatch.setattr("whet.rollout.episodes.time", self)
        monkeypatch.setattr("whet.rollout.episodes.queue", self)
        monkeypatch.setattr("whet.rollout.episodes.CallPool", lambda: self)

    def monotonic(self):
        return self.now

    def _pass(self, seconds):
        self.now += seconds
        for call in sorted((call for call in self._due if call[0] <= self.now), key=lambda call: call[0]):
            self._due.remove(call)
            call[1].set_result(call[2](*call[3]))

    # the pool of calls
    def submit(self, function, *arguments):
        future = Future()
        self._due.append((self.now + self._seconds_of(function), future, function, arguments))
        return future

    # the queue of answers
    def put(self, answer):
        self._answers.append(answer)

    def empty(self):
        self._pass(0)
        return not self._answers

    def get(self, timeout=0.0):
        if self.empty():
            wait = min(timeout, min((due for due, *_ in self._due), default=self.now + timeout) - self.now)
            self.waited += 0.0 if self.is_idle else wait  # while somebody could write
            self._pass(wait)
        if not self._answers:
            raise queue.Empty
        return self._answers.pop(0)

    # the engine and its session: a completion takes one to seven looks of 0.05 s
    def session(self, sampling, shape):
        return self

    def add(self, number, request):
        self._writing[number] = [1 + number % 7, request]

    def advance(self):
        self.looks.append(sorted(self._writing))
        self.wrote += 0.05
        self._pass(0.05)
        for row in self._writing.values():
            row[0] -= 1
        written = {number: row[1] for number, row in self._writing.items() if not row[0]}
        self._writing = {number: row for number, row in self._writing.items() if row[0]}
        samples = ScriptedEngine(self._tokenizer, lambda text: "go").generate(list(written.values()), Sampling(16))
        return list(zip(written, samples, strict=True))

    @property
    def is_idle(self):
        return not self._writing

    def release(self, number): ...

    def close(self): ...


def simulated(monkeypatch, loaded, seconds_of):
    prompts = [Prompt(str(number), PROMPT.messages) for number in range(16)]
    clock = SimulatedTime(monkeypatch, loaded.tokenizer, seconds_of)
    runner = EnvironmentRunner(clock, loaded.tokenizer, Counting, EpisodeLimits(), 512)
    tokens = [opened(loaded.tokenizer, prompt) for prompt in prompts]
    played = runner.play(EpisodePlan(prompts, tokens, 2, Sampling(16), (0,)))
    assert all(sample.returned == 1.5 for samples in played for sample in samples)
    return clock


@pytest.mark.parametrize("seconds", [0.8, 1.2])
def test_the_engine_writes_on_while_answers_are_pending(monkeypatch, loaded, seconds):
    clock = simulated(monkeypatch, loaded, lambda function: seconds)
    assert clock.waited <= 0.25 + 0.05 * clock.wrote
    assert clock.now < 4 * seconds + 2 * clock.wrote  # its own four calls and turns, and nobody else's


def test_quick_environments_are_waited_for_so_that_batches_are_the_same_in_every_run(monkeypatch, loaded):
    at_once = simulated(monkeypatch, loaded, lambda function: 0.0)
    quick = simulated(monkeypatch, loaded, lambda function: 0.001 + 0.0005 * (id(function) % 3))
    assert quick.looks == at_once.looks and 0 < quick.waited < 0.25


class BothSides:
    """Two roles write in turn; the second loses, and only the first is told of it."""

    seats = 2

    def __init__(self):
        self.count = 0

    def start(self, prompt):
        return InitialObservation(({"role": "user", "content": "begin"},), role="first")

    def step(self, completion):
        self.count += 1
        if self.count == 5:
            return StepResult(done=True, rewards={"first": 1.0, "second": -1.0, "third": 3.0})
        message = {"role": "user", "content": f"move {self.count}"}
        return StepResult((message,), reward=0.25, role="second" if self.count % 2 else "first")


def test_both_sides_of_a_game_are_trained_each_with_its_own_return(loaded):
    (samples,), notes, engine = play(loaded, BothSides, count=2)
    assert [sample.role for sample in samples] == ["first", "second"] * 2 and not notes.failures
    first, second = (loaded.tokenizer.decode(s.tokens.tolist(), skip_special_tokens=False) for s in samples[:2])
    go = "<|assistant|>go<|end|>"
    assert first == f"<|user|>begin<|end|>{go}<|user|>move 2<|end|>{go}<|user|>move 4<|end|>{go}"
    assert second == f"<|user|>move 1<|end|>{go}<|user|>move 3<|end|>{go}"
    assert [(sample.returned, sample.episode) for sample in samples[:2]] == [(1.5, "p#0"), (-0.5, "p#0")]
    assert [int(sample.action.sum()) for sample in samples[:2]] == [9, 6]
    assert len(set(engine.seeds)) == len(engine.seeds) == 10
    (samples,), _, _ = play(loaded, BothSides, max_turns=1)  # over before the second had a turn
    assert [(sample.role, sample.stop) for sample in samples] == [("first", StopReason.TURNS)]


def test_both_sides_are_written_as_one_conversation_each_would_be(loaded):
    """Keys and values of two conversations of one episode are kept side by side."""
    engine = TorchEngine(causal_lm(loaded.model), loaded.tokenizer, loaded.end_tokens, context=512)
    runner = EnvironmentRunner(engine, loaded.tokenizer, BothSides, EpisodeLimits(), 512)
    (samples,) = runner.play(EpisodePlan([PROMPT], [opened(loaded.tokenizer, PROMPT)], 4, Sampling(12), (0,)))
    assert len(samples) == 8
    for sample in samples:
        with torch.no_grad():
            logits = causal_lm(loaded.model).model(sample.tokens[None]).logits[0]
        logp = logits[:-1].float().log_softmax(-1).gather(1, sample.tokens[1:, None])[:, 0]
        there = sample.action[1:]
        torch.testing.assert_close(sample.behavior_logp[1:][there], logp[there], atol=1e-4, rtol=1e-4)


def test_async_environments_answer_side_by_side(loaded):
    class Waiting(Counting):
        async def step(self, completion):
            waiting.append(1)
            most.append(len(waiting))
            await asyncio.sleep(0.3)
            waiting.pop()
            return super().step(completion)

    waiting, most = [], []
    played, _, _ = play(loaded, Waiting, count=8)
    assert max(most) > 4
    assert all(sample.returned == 1.5 for sample in played[0])


def test_an_opening_replaces_the_prompt(loaded):
    class Opened(Counting):
        turns = 1

        def start(self, prompt):
            return InitialObservation(({"role": "user", "content": f"{prompt.question()} again"},), state="s0")

    [[sample]], _, engine = play(loaded, Opened)
    assert (
        loaded.tokenizer.decode(engine.seen[0][0], skip_special_tokens=False)
        == "<|user|>begin again<|end|><|assistant|>"
    )
    assert sample.turns[0].role == "prompt" and sample.turns[1].state == "s0"
    assert not sample.action[: sample.turns[0].stop].any()


BAD = {
    "raises": (lambda self, completion: 1 / 0, "its step raised ZeroDivisionError"),
    "nan": (lambda self, completion: float("nan"), "its reward is nan"),
    "infinite": (lambda self, completion: StepResult(reward=float("inf"), done=True), "its reward is inf"),
    "text": (lambda self, completion: "well done", "its step returned str"),
    "nothing": (lambda self, completion: None, "its step returned NoneType"),
    "no_message": (lambda self, completion: StepResult(), "went on without a message"),
    "no_role": (lambda self, completion: [{"content": "x"}], "returned a message"),
    "exits": (lambda self, completion: exit(3), "SystemExit"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_environment_costs_its_episode_and_is_counted(loaded, kind):
    method, expected = BAD[kind]

    class Bad(Counting):
        def start(self, prompt):
            self.is_bad = prompt.id == "bad"

        def step(self, completion):
            return method(self, completion) if self.is_bad else super().step(completion)

    played, notes, _ = play(loaded, Bad, prompts=(Prompt("bad", PROMPT.messages), PROMPT))
    assert played[0][0].stop is StopReason.FAILED and played[0][0].returned is None
    assert played[1][0].returned == 1.5
    assert notes.counts["failed_episodes"] == 1
    assert (
        len(notes.failures) == 1 and notes.failures[0].startswith("episode bad#0: ") and expected in notes.failures[0]
    )


def test_a_failure_at_the_start_leaves_a_sample_without_actions(loaded):
    class Broken(Counting):
        def start(self, prompt):
            raise KeyError("corpus")

    [[sample]], notes, _ = play(loaded, Broken)
    assert sample.stop is StopReason.FAILED and sample.num_actions == 0
    assert "its start raised KeyError" in notes.failures[0]


def test_an_environment_that_never_ends_meets_its_limit(loaded):
    class Endless(Counting):
        turns = -1

    [[sample]], _, _ = play(loaded, Endless, context=100_000, max_turns=20)
    assert sample.stop is StopReason.TURNS and sample.returned == 5.0


def test_environments_are_closed_also_when_the_run_stops(loaded):
    closed = []

    class Closing(Counting):
        def close(self):
            closed.append(self)

        def step(self, completion):
            raise WhetError("every episode would fail")

    with pytest.raises(WhetError, match="every episode"):
        play(loaded, Closing, count=3)
    assert len(closed) == 3


def test_hanging_environments_end_in_one_line_when_there_are_too_many(loaded, monkeypatch):
    monkeypatch.setattr("whet.rollout.call_pool.MOST_LOST", 2)
    event = threading.Event()

    class Hanging(Counting):
        def step(self, completion):
            event.wait(20)
            return 1.0

    try:
        with pytest.raises(WhetError, match=r"3 calls of Hanging were given up.*env.sandboxed"):
            play(loaded, Hanging, count=4, step_seconds=0.1)
    finally:
        event.set()


def test_equal_runs_play_equal_episodes(loaded):
    """On the real engine: the order in which quick environments answer does not reach the samples."""
    engine = TorchEngine(causal_lm(loaded.model, torch.float32), loaded.tokenizer, loaded.end_tokens, context=512)

    def samples(jitter):
        class Jittered(Counting):
            def step(self, completion):
                time.sleep(jitter * (hash(completion) % 7))
                return super().step(completion)

        runner = EnvironmentRunner(engine, loaded.tokenizer, Jittered, EpisodeLimits(), 512)
        tokens = opened(loaded.tokenizer, PROMPT)
        return runner.play(EpisodePlan([PROMPT], [tokens], 6, Sampling(12), (3,)))[0]

    first, second = samples(0.0), samples(0.001)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.tokens, other.tokens) and torch.equal(one.behavior_logp, other.behavior_logp)
    assert len({tuple(sample.tokens.tolist()) for sample in first}) > 1


class LongOpening(Counting):
    """Puts many words before the question."""

    def start(self, prompt):
        return InitialObservation(({"role": "user", "content": "one " * 60 + prompt.question()},))


def test_an_opening_may_be_longer_than_the_prompt_and_all_growth(loaded):
    engine = TorchEngine(causal_lm(loaded.model), loaded.tokenizer, loaded.end_tokens, context=512)
    runner = EnvironmentRunner(engine, loaded.tokenizer, LongOpening, EpisodeLimits(max_turns=3, max_tokens=40), 512)
    prompt = Prompt("p", ({"role": "user", "content": "Sum?"},))
    tokens = tuple(loaded.tokenizer("Sum?")["input_ids"])
    ((sample,),) = runner.play(EpisodePlan([prompt], [tokens], 1, Sampling(max_new_tokens=4), (0,)))
    assert sample.stop is not StopReason.FAILED
    assert len(sample.turns[0].text) > 240 and len(sample.tokens) > len(tokens) + 40


class Announcing(Counting):
    """Begins with a longer prompt than the row's own."""

    def start(self, prompt):
        return InitialObservation(({"role": "user", "content": "begin with many more words than the row has"},))


def test_a_first_prompt_of_the_environment_is_computed_once_for_its_group(loaded):
    model = causal_lm(loaded.model)
    engine = TorchEngine(model, loaded.tokenizer, loaded.end_tokens, context=loaded.context)
    sessions, shapes, opens = [], [], engine.session

    def watched(sampling, shape):
        shapes.append(shape)
        sessions.append(opens(sampling, shape))
        return sessions[-1]

    engine.session = watched
    limits = EpisodeLimits(max_tokens=40)  # no more than the turns need: a longer prompt takes nothing of it
    runner = EnvironmentRunner(engine, loaded.tokenizer, Announcing, limits, loaded.context)
    samples = runner.play(EpisodePlan([PROMPT], [opened(loaded.tokenizer, PROMPT)], 4, Sampling(4), (0,)))[0]
    first = samples[0].turns[0].stop
    assert samples[0].turns[0].role == "prompt" and first > len(opened(loaded.tokenizer, PROMPT))
    assert shapes[0].prompt_tokens == first and sessions[0].counts.prefilled == first
    assert sessions[0].counts.recomputed == 0 and sessions[0].counts.continued == 8
    assert {each.stop for each in samples} <= {StopReason.END, StopReason.LENGTH}


def test_tools_need_no_event_loop_and_slow_ones_do_not_wait_for_each_other(loaded, monkeypatch):
    from whet.envs.tools.find import tool_environment

    def nap(seconds: float) -> str:
        """Sleep.

        Args:
            seconds: How long.
        """
        asleep.append(1)
        most.append(len(asleep))
        time.sleep(seconds)
        asleep.pop()
        return "done"

    asleep, most = [], []

    def calls(seconds):
        return lambda text: "fine" if "done" in text else f"<tool_call>nap({seconds})</tool_call>"

    make = tool_environment([nap], call_format="python", tokenizer=loaded.tokenizer, instructions=False)
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: pytest.fail("an event loop"))
    quick, _, _ = play(loaded, make, calls(0.0), count=8, max_new_tokens=64)
    most.clear()
    slow, _, _ = play(loaded, make, calls(0.4), count=8, max_new_tokens=64)
    assert max(most) > 4
    for group in (*quick, *slow):
        assert [[turn.text for turn in sample.turns][-2:] for sample in group] == [["done", "fine"]] * 8
