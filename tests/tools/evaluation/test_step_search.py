"""Search over steps: what goes on, what is kept and what it costs, on an engine whose every token is known."""

import random
from dataclasses import replace

import pytest
import torch

from whet.tools.evaluation.reranking import SearchPlan, search_completions
from whet.types import Prompt, Sample, Sampling, StopReason, Support

END = 0
PROMPTS = [Prompt("one", (), text="ab"), Prompt("two", (), text="c")]
TOKENS = [(97, 98), (99,)]


def decode(tokens):
    return "".join(chr(token) for token in tokens if token != END)


class Typist:
    """Writes digits, a semicolon after each, and ends after `steps` of them; remembers every request and completion."""

    def __init__(self, steps=3):
        self.steps = steps
        self.rounds = []

    def generate(self, requests, sampling):
        written = [self._sample(request, sampling) for request in requests]
        self.rounds.append((list(requests), written))
        return written

    def _sample(self, request, sampling):
        stream, new, stop = random.Random(request.seed), [], StopReason.LENGTH
        while len(new) < sampling.max_new_tokens and stop is StopReason.LENGTH:
            text = decode([*request.tokens, *new])
            if text.count(";") == self.steps:
                new.append(END)
                stop = StopReason.END
                continue
            new.append(ord(";") if text[-1].isdigit() else ord(stream.choice("123456789")))
            if any(each in decode(new) for each in sampling.stop):
                stop = StopReason.TEXT
        tokens = torch.tensor([*request.tokens, *new])
        action = torch.arange(len(tokens)) >= len(request.tokens)
        logp = torch.where(action, -tokens / 100, 0.0)
        return Sample(
            tokens, action, logp, (0, 0), stop, decode(new), Support(tokens[action].int(), action[action].int())
        )

    def load(self, weights, version):
        pass


def digits(prompts, samples):
    return [sum(int(each) for each in sample.completion if each.isdigit()) for sample in samples]


def plan(**changes):
    return replace(SearchPlan(2, 3, ";", Sampling(20, 1.0), 200), **changes)


def test_every_round_goes_on_from_the_best_by_their_own_tokens():
    engine = Typist()
    found = search_completions(engine, PROMPTS[:1], TOKENS[:1], digits, decode, plan())
    kept = []
    for number, (requests, written) in enumerate(engine.rounds):
        asked = [request.tokens for request in requests]
        if number == 0:
            assert asked == [TOKENS[0]] * 6
        else:
            assert asked == [tokens for tokens in kept for _ in range(3)]
        different = {tuple(each.tokens.tolist()): each for each in written}
        order = sorted(different, key=lambda tokens: -sum(int(each) for each in decode(tokens) if each.isdigit()))
        kept = order[:2]
    assert len(engine.rounds) == 4 and len({request.seed for rows, _ in engine.rounds for request in rows}) == 24
    assert tuple(found[0].sample.tokens.tolist()) == kept[0]
    assert found[0].score == digits([], [found[0].sample])[0] and found[0].sample.stop is StopReason.END


def test_the_completion_is_whole_and_the_bill_complete():
    engine = Typist()
    found = search_completions(engine, PROMPTS, TOKENS, digits, decode, plan())
    for place, (one, opening) in enumerate(zip(found, TOKENS, strict=True)):
        sample = one.sample
        assert sample.completion == decode(sample.tokens[len(opening) :].tolist()) and sample.completion.count(";") == 3
        assert sample.action.tolist() == [at >= len(opening) for at in range(len(sample.tokens))]
        wanted = torch.where(sample.action, -sample.tokens / 100, 0.0)
        assert torch.equal(sample.behavior_logp, wanted) and sample.support.counts.tolist() == [1] * 7
        assert sample.support.ids.tolist() == sample.tokens[sample.action].tolist()
        mine = [
            (request, each)
            for requests, written in engine.rounds
            for request, each in zip(requests, written, strict=True)
            if request.tokens[: len(opening)] == opening
        ]
        assert one.written == sum(len(each.tokens) - len(request.tokens) for request, each in mine) > 20, place
        assert one.read == sum(map(len, {tuple(each.tokens.tolist()) for _, each in mine})) > 20


def test_a_wider_search_finds_more():
    sums = {}
    for beams, branches in ((1, 1), (1, 8), (4, 4)):
        found = search_completions(Typist(), PROMPTS, TOKENS, digits, decode, plan(beams=beams, branches=branches))
        sums[beams, branches] = sum(one.score for one in found)
    assert sums[1, 1] + 5 < min(sums[1, 8], sums[4, 4])


def test_a_finished_completion_stays_while_its_score_is_among_the_best():
    def short_first(prompts, samples):
        return [9.0 if "2" in sample.completion else 1.0 for sample in samples]

    class Ending(Typist):
        def _sample(self, request, sampling):
            sample = super()._sample(request, sampling)
            done = sample.completion.startswith("2") and len(request.tokens) == 2
            return replace(sample, stop=StopReason.END) if done else sample

    engine = Ending(steps=4)
    (found,) = search_completions(engine, PROMPTS[:1], TOKENS[:1], short_first, decode, plan(beams=3, branches=8))
    assert found.sample.completion == "2;" and found.score == 9.0
    later = [request.tokens for requests, _ in engine.rounds[1:] for request in requests]
    assert later and all(tokens[2] != ord("2") for tokens in later)


def test_the_budget_is_that_of_the_whole_completion_and_of_the_context():
    found = search_completions(Typist(9), PROMPTS, TOKENS, digits, decode, plan(sampling=Sampling(5, 1.0)))
    assert [int(one.sample.action.sum()) for one in found] == [5, 5]
    assert all(one.sample.stop is StopReason.LENGTH and one.sample.completion.count(";") == 2 for one in found)
    engine = Typist(9)
    search_completions(engine, PROMPTS, TOKENS, digits, decode, plan(sampling=Sampling(5, 1.0), context=7))
    assert max(len(each.tokens) for _, written in engine.rounds for each in written) <= 7


def test_a_text_of_the_users_ends_the_completion():
    def nines(prompts, samples):
        return [float("9" in sample.completion) for sample in samples]

    until_nine = plan(branches=9, sampling=Sampling(30, 1.0, stop=("9",)))
    (found,) = search_completions(Typist(9), PROMPTS[:1], TOKENS[:1], nines, decode, until_nine)
    assert found.sample.completion.count("9") == 1 and found.sample.completion.endswith("9")


def test_the_scorer_is_shown_whole_steps_and_may_have_no_opinion():
    shown = []

    def unsure(prompts, samples):
        shown.extend(sample.completion for sample in samples)
        return [None if "1" in sample.completion else 0.5 for sample in samples]

    class Chunky(Typist):
        def _sample(self, request, sampling):
            sample = super()._sample(request, sampling)
            if sample.stop is not StopReason.TEXT:
                return sample
            tokens = torch.cat([sample.tokens, torch.tensor([ord("7")])])
            return replace(sample, tokens=tokens, behavior_logp=torch.zeros(len(tokens)))

    search_completions(Chunky(), PROMPTS, TOKENS, unsure, decode, plan())
    partial = [completion for completion in shown if completion.count(";") < 3]
    assert len(partial) > 10 and all(completion.endswith(";") for completion in partial)


def test_on_the_real_engine_a_search_of_one_is_the_greedy_completion():
    from whet.data.chat import prompt_tokens
    from whet.data.tasks import TASKS, prompts
    from whet.model.causal_lm import causal_lm
    from whet.model.load import load_model
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Request

    loaded = load_model("whetstone", torch.float32, "cpu")
    engine = TorchEngine(causal_lm(loaded.model), loaded.tokenizer, loaded.end_tokens, context=loaded.context)
    asked = prompts(TASKS["lists"], "eval", 4, 1, 3)
    tokens = [prompt_tokens(loaded.tokenizer, prompt) for prompt in asked]
    sampling = Sampling(48, 0.0)
    plain = engine.generate([Request(each, 0) for each in tokens], sampling)

    def read(ids):
        return loaded.tokenizer.decode(ids, skip_special_tokens=True)

    one = SearchPlan(1, 1, " ", sampling, loaded.context)
    found = search_completions(engine, asked, tokens, lambda prompts, samples: [0.0] * len(samples), read, one)
    assert any(sample.completion.count(" ") > 2 for sample in plain)
    for single, sample in zip(found, plain, strict=True):
        assert single.sample.tokens.tolist() == sample.tokens.tolist() and single.sample.completion == sample.completion
        torch.testing.assert_close(single.sample.behavior_logp, sample.behavior_logp, rtol=0, atol=1e-4)
        assert single.written == sample.num_actions


@pytest.mark.parametrize("seed", [0, 1])
def test_equal_seeds_search_alike(seed):
    first, again = (
        search_completions(Typist(), PROMPTS, TOKENS, digits, decode, plan(seed=seed))[1].sample.completion
        for _ in range(2)
    )
    assert first == again and first.count(";") == 3
