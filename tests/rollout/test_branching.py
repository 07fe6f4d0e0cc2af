"""Episodes that branch: where, how far, and what the branches have in common."""

import json
import random
import re

import pytest
import torch

from tests.rollout.test_episodes import PROMPT, Counting, opened
from tests.support.scripted import ScriptedEngine, tool_tokenizer
from whet.envs.find import as_environment
from whet.envs.tools.find import tool_environment
from whet.model.causal_lm import causal_lm
from whet.model.load import load_model
from whet.rollout.branching import Branching, shared_out, why_not
from whet.rollout.episode_runner import EpisodePlan
from whet.rollout.episodes import EnvironmentRunner, EpisodeLimits
from whet.rollout.torch_engine import TorchEngine
from whet.types import Sampling, StepResult, WhetError


@pytest.fixture(scope="module")
def tokenizer():
    return tool_tokenizer()


def word(text, request):
    return "abcdefgh"[request.seed % 8]


def play(tokenizer, environment, branching, script=word, count=1, temperature=1.0, budget=16, **limits):
    engine = ScriptedEngine(tokenizer, script)
    limits = EpisodeLimits(**limits)
    runner = EnvironmentRunner(engine, tokenizer, environment, limits, 4096, branching=branching)
    ended = {}

    def hear(number, samples):
        assert number not in ended
        ended[number] = samples

    sampling = Sampling(budget, temperature=temperature)
    [samples] = runner.play(EpisodePlan([PROMPT], [opened(tokenizer, PROMPT)], count, sampling, (0,)), ended=hear)
    assert [sample for number in sorted(ended) for sample in ended[number]] == samples
    return samples, runner.take_notes(), engine


def nodes(sample):
    return [turn.node for turn in sample.turns if turn.role == "assistant"]


def said(sample):
    return [turn.text for turn in sample.turns if turn.role == "assistant"]


def test_how_many_turns_are_drawn_from_a_state():
    turns, calls, entropy = (Branching(at, leaves=5, width=3) for at in ("turns", "tool_calls", "entropy"))
    assert [turns.num_draws(left, 0, 0.0, (0,)) for left in (1, 2, 3, 5)] == [1, 2, 3, 3]
    assert [calls.num_draws(5, num, 0.0, (0,)) for num in (0, 1, 2)] == [1, 3, 3]
    for rise, least, most in ((0.0, 0.46, 0.54), (1.0, 0.66, 0.74), (-1.0, 0.26, 0.34), (9.0, 1, 1)):
        share = sum(entropy.num_draws(5, 0, rise, ("coin", number)) > 1 for number in range(2000)) / 2000
        assert least <= share <= most
    assert [shared_out(5, count) for count in (1, 2, 3)] == [[5], [3, 2], [2, 2, 1]]


def test_branches_share_what_was_drawn_once_and_go_on_by_themselves(tokenizer):
    samples, _, engine = play(tokenizer, Counting, Branching("turns", leaves=3), count=2)
    for tree in (samples[:3], samples[3:]):
        assert len({sample.episode for sample in tree}) == 1
        assert [nodes(sample) for sample in tree] == [[0, 1, 2], [0, 1, 3], [0, 4, 5]]
        texts = [said(sample) for sample in tree]
        assert texts[0][:2] == texts[1][:2] and texts[0][:1] == texts[2][:1]
        for sample in tree:  # each has an environment of its own, in the state that it branched from
            assert sample.returned == 1.5 and [turn.text for turn in sample.turns if turn.role == "user"] == [
                "answer 1",
                "answer 2",
            ]
        first = tree[0].turns[1].stop
        for sample in tree[1:]:
            assert torch.equal(sample.tokens[:first], tree[0].tokens[:first])
            assert torch.equal(sample.behavior_logp[:first], tree[0].behavior_logp[:first])
    # a draw is asked for once: 6 of them in each tree, where separate episodes would need 9
    assert len(engine.requests) == len({request.seed for request in engine.requests}) == 12
    assert len({tuple(said(sample)) for sample in samples}) > 4


def test_a_branch_that_ends_leaves_its_share_to_nobody(tokenizer):
    class Short(Counting):
        def step(self, completion):
            return 0.0 if completion in "abcd" else super().step(completion)

    samples, *_ = play(tokenizer, Short, Branching("turns", leaves=4), count=40)
    sizes = {}
    for sample in samples:
        sizes[sample.episode] = sizes.get(sample.episode, 0) + 1
    assert set(sizes.values()) == {1, 2, 3, 4}
    alone = [sample for sample in samples if sizes[sample.episode] == 1]
    assert all(nodes(sample) == [0] and sample.returned == 0 for sample in alone)


def test_greedy_episodes_do_not_branch_and_neither_do_those_without_the_rule(tokenizer):
    for branching, temperature in ((Branching("turns"), 0.0), (None, 1.0)):
        samples, *_ = play(tokenizer, Counting, branching, count=2, temperature=temperature)
        assert len(samples) == 2 and nodes(samples[0]) == [None] * 3


def test_calls_of_tools_decide_where_told_so(tokenizer):
    class Calling(Counting):
        turns = 4

        def step(self, completion):
            result = super().step(completion)
            counts = {"tool_calls": 1} if self.count == 2 else {}
            return result if self.count == self.turns else StepResult(result.messages, counts=counts)

    samples, *_ = play(tokenizer, Calling, Branching("tool_calls", leaves=8))
    assert [nodes(sample) for sample in samples] == [[0, 1, 2, 3], [0, 1, 4, 5]]


class Replayed(Counting):
    """Cannot be copied, and answers by what it was told."""

    replays = True

    def __init__(self):
        super().__init__()
        self.words = ""
        self.generator = (number for number in range(9))

    def step(self, completion):
        self.words += completion
        super().step(completion)
        if self.count == self.turns:
            return float(len(set(self.words)))
        return StepResult(({"role": "user", "content": f"so far {self.words}"},), reward=0.25)


class ReplayedAsync(Replayed):
    async def start(self, prompt):
        return super().start(prompt)

    async def step(self, completion):
        return super().step(completion)


@pytest.mark.parametrize("kind", [Replayed, ReplayedAsync])
def test_an_environment_that_cannot_be_copied_is_given_the_same_turns_again(tokenizer, kind):
    assert not why_not(kind())
    samples, *_ = play(tokenizer, kind, Branching("turns", leaves=3), count=3)
    assert len(samples) == 9
    for sample in samples:
        words = said(sample)
        told = [turn.text for turn in sample.turns if turn.role == "user"]
        assert told == [f"so far {words[0]}", f"so far {words[0]}{words[1]}"]
        assert sample.returned == 0.5 + len(set("".join(words)))


def test_a_gymnasium_environment_is_replayed_from_its_seed(tokenizer):
    class Walk:
        """Ends three steps from where the seed puts it; the generator is part of its state."""

        def reset(self, seed=None):
            self.random, self.steps = random.Random(seed), (step for step in range(3))
            return f"at {self.random.random()}", {}

        def step(self, action):
            number = next(self.steps)
            return f"{action} to {self.random.random()}", float(number), number == 2, False, {}

    make = as_environment(Walk, {"action": lambda text: text[0]})
    samples, *_ = play(tokenizer, make, Branching("turns", leaves=3), count=2)
    assert len(samples) == 6
    for sample in samples:
        seen = [turn.text for turn in sample.turns if turn.role == "user"]
        assert [text.split(" to ")[0] for text in seen] == said(sample)
        # the world goes on alike, whoever walks in it
        assert [text.split(" to ")[1] for text in seen[:2]] == [
            turn.text.split(" to ")[1] for turn in samples[0].turns if turn.role == "user"
        ][:2]


def test_tools_branch_where_their_calls_leave_nothing(tokenizer):
    def add(a: int, b: int) -> int:
        """Add.

        Args:
            a: One.
            b: The other.
        """
        return a + b

    make = tool_environment([add], call_format="json", tokenizer=tokenizer)
    assert not why_not(make())

    def script(text, request):
        if text.count("<|assistant|>") < 3:
            numbers = {"a": request.seed % 5, "b": 1}
            return f'<tool_call>{{"name": "add", "arguments": {json.dumps(numbers)}}}</tool_call>'
        return "done"

    samples, *_ = play(tokenizer, make, Branching("tool_calls", leaves=4), script=script, budget=99)
    assert [nodes(sample) for sample in samples] == [[0, 1, 2], [0, 1, 3], [0, 4, 5], [0, 4, 6]]
    for sample in samples:  # every branch can call
        asked = [int(re.search(r'"a": (\d)', text)[1]) for text in said(sample)[:2]]
        assert [turn.text for turn in sample.turns if turn.role == "tool"] == [str(number + 1) for number in asked]

    class Notes:
        def note(self, text: str) -> str:
            """Note.

            Args:
                text: What.
            """
            return text

    keeping = tool_environment([add, Notes], call_format="json", tokenizer=tokenizer)()
    assert why_not(keeping) == "the tool Notes may keep what its calls leave; plain functions can branch"


def test_a_branch_copies_the_keys_and_values_of_the_row_it_leaves():
    loaded = load_model("whetstone", torch.float32, "cpu")
    engine = TorchEngine(causal_lm(loaded.model, torch.float32), loaded.tokenizer, loaded.end_tokens, context=512)
    sessions, opens = [], engine.session
    engine.session = lambda sampling, shape: sessions.append(opens(sampling, shape)) or sessions[-1]
    branching = Branching("turns", leaves=4)
    runner = EnvironmentRunner(engine, loaded.tokenizer, Counting, EpisodeLimits(), 512, branching=branching)
    samples = runner.play(EpisodePlan([PROMPT], [opened(loaded.tokenizer, PROMPT)], 2, Sampling(8), (0,)))[0]
    assert len(samples) == 8 and sessions[0].counts.forked > 0
    policy = causal_lm(loaded.model, torch.float32)
    for sample in samples:
        logits = policy.logits(policy.hidden(sample.tokens[None])).float()[0, :-1]
        logp = logits.log_softmax(-1).gather(1, sample.tokens[1:, None])[:, 0]
        gap = (logp - sample.behavior_logp[1:])[sample.action[1:]].abs().max()
        assert gap < 1e-4


def test_an_environment_that_answers_otherwise_is_told_in_one_line(tokenizer):
    made = []

    class Moody(Replayed):
        def start(self, prompt):
            made.append(self)

        def step(self, completion):
            result = super().step(completion)
            if isinstance(result, float):
                return result
            return StepResult(({"role": "user", "content": f"number {made.index(self)}"},), reward=0.25)

    with pytest.raises(WhetError, match="Moody has replays = True and answered the same turns otherwise"):
        play(tokenizer, Moody, Branching("turns"))


def test_what_cannot_branch_says_so(tokenizer):
    class Streaming(Counting):
        def __init__(self):
            super().__init__()
            self.lines = (line for line in ())

    assert re.match(r"it cannot be copied \(.*generator.*\); give its class fork\(self\)", why_not(Streaming()))
    assert not why_not(Counting())

    class Forking(Streaming):
        def fork(self):
            twin = Forking()
            twin.count = self.count
            return twin

    assert not why_not(Forking())
    samples, notes, _ = play(tokenizer, Forking, Branching("turns", leaves=2))
    assert [nodes(sample) for sample in samples] == [[0, 1, 2], [0, 3, 4]] and not notes.failures


def test_a_state_without_a_twin_goes_on_alone_and_is_counted(tokenizer):
    class Locked(Counting):
        def fork(self):
            if self.count == 1:
                raise RuntimeError("not now")
            twin = Locked()
            twin.count = self.count
            return twin

    samples, notes, _ = play(tokenizer, Locked, Branching("turns", leaves=2))
    assert [nodes(sample) for sample in samples] == [[0, 1, 2], [0, 1, 3]]
    assert notes.counts["failed_branches"] == 1 and "p#0: no branch: RuntimeError: not now" in notes.failures[0]


@pytest.mark.parametrize(
    ("fork", "said"), [(lambda self: self, "itself"), (lambda self: None, "None"), (lambda self: 7, "7")]
)
def test_a_fork_that_is_no_other_environment_is_told_in_one_line(tokenizer, fork, said):
    """Branches that share one would both move it; one without any would end with its next turn."""
    kind = type("Forking", (Counting,), {"fork": fork})
    with pytest.raises(WhetError, match=f"Forking: its fork returned {said}; expected another Forking in the same"):
        play(tokenizer, kind, Branching("turns", leaves=2))


def test_a_fork_that_is_async_is_refused_before_training():
    class Awaited(Counting):
        async def fork(self): ...

    assert "its fork is async; write it without async" in why_not(Awaited())


def test_a_branch_that_fails_costs_itself_alone(tokenizer):
    class Fragile(Counting):
        def step(self, completion):
            if self.count and completion in "abcd":
                raise ValueError("broken")
            return super().step(completion)

    samples, notes, _ = play(tokenizer, Fragile, Branching("turns", leaves=2), count=12)
    assert len(samples) == 24 and 0 < notes.counts["failed_episodes"] < 24
    assert sum(sample.returned is None for sample in samples) == notes.counts["failed_episodes"]
