"""Programs that ask for several completions of one state: each token is computed once, as a row and as a lesson."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from tests.support.packages import needs
from tests.support.rank_cases import exact_norms
from whet.data.chat import prompt_tokens
from whet.data.packing import token_batch
from whet.data.prefix_tree import tree_order
from whet.envs.serve.agent import AgentLimits, AgentRunner
from whet.envs.serve.programs import GIVEN
from whet.model.causal_lm import causal_lm
from whet.model.load import load_model
from whet.model.shared_prefix import shared_prefix_batch
from whet.model.token_logp import Details, token_logp
from whet.rollout.episode_runner import EpisodePlan
from whet.rollout.torch_engine import TorchEngine
from whet.types import Group, Prompt, Sampling

pytestmark = needs("fastapi", "uvicorn", "openai")
SYSTEM = {"role": "system", "content": "Work slowly, and say what you do before you do it."}
ANSWERS = ("the tool says: nothing was found in the archive", "the tool says: nothing was found in the old papers")


async def search(client, row):
    """Three first turns; two of them go on with two answers of a tool each, two completions behind every one."""
    messages = [SYSTEM, *row["messages"]]

    async def asked(messages, count):
        answer = await client.chat.completions.create(model="policy", messages=messages, n=count)
        return [choice.message for choice in answer.choices]

    first = await asked(messages, 3)
    later = [[*messages, said, {"role": "user", "content": text}] for said in first[:2] for text in ANSWERS]
    await asyncio.gather(*(asked(branch, 2) for branch in later))
    return 1.0


@pytest.fixture(scope="module")
def played():
    """The policy in float64, the samples of two episodes, every sample of the engine, what its session counted."""
    loaded = load_model("whetstone", torch.float64, "cpu")
    exact_norms(loaded.model)
    lm = causal_lm(loaded.model, torch.float64)
    engine = TorchEngine(lm, loaded.tokenizer, loaded.end_tokens, context=512)
    sessions, sampled, opens = [], {}, engine.session

    def opened(sampling, shape):
        session = opens(sampling, shape)
        advance = session.advance
        session.advance = lambda: [
            sampled.setdefault((len(sessions), number), (number, drawn)) for number, drawn in advance()
        ]
        sessions.append(session)
        return session

    engine.session = opened
    GIVEN["test:search"] = search
    runner = AgentRunner(
        engine,
        loaded.tokenizer,
        "test:search",
        AgentLimits(tokens=300, at_once=32),
        context=512,
        end_tokens=loaded.end_tokens,
    )
    prompt = Prompt("p", ({"role": "user", "content": "3+4-5"},), answer="2")
    try:
        (samples,) = runner.play(
            EpisodePlan([prompt], [prompt_tokens(loaded.tokenizer, prompt)], 2, Sampling(20), (1,))
        )
        assert not runner.take_notes().failures
    finally:
        runner.close()
        del GIVEN["test:search"]
    return lm, samples, [drawn for _, drawn in sampled.values()], sessions


def test_every_leaf_is_trained_exactly_as_it_was_sampled(played):
    lm, samples, sampled, _ = played
    assert len(samples) == 2 * (8 + 1) and {sample.episode for sample in samples} == {"p#0", "p#1"}
    by_tokens = {tuple(drawn.tokens.tolist()): drawn for drawn in sampled}
    assert len(sampled) == 2 * (3 + 8)
    for sample in samples:
        spoken = [turn for turn in sample.turns if turn.role == "assistant"]
        assert len(spoken) in (1, 2) and int(sample.action.sum()) == sum(turn.stop - turn.start for turn in spoken)
        for turn in spoken:
            drawn = by_tokens[tuple(sample.tokens[: turn.stop].tolist())]
            assert sample.action[turn.start : turn.stop].all()
            # two completions of one prompt may be equal: their numbers then are, too
            assert torch.equal(sample.behavior_logp[turn.start : turn.stop], drawn.behavior_logp[turn.start :])
        with torch.no_grad():
            exact = token_logp(lm, sample.tokens[None], sample.action[None]).logp[0]
        assert (exact - sample.behavior_logp)[sample.action].abs().max() < 1e-5


def test_the_decoder_reads_each_prefix_once(played):
    _, _, sampled, (session,) = played
    asked = {tuple(drawn.tokens[: int(drawn.action.int().argmax())].tolist()) for drawn in sampled}
    drawn = sum(int(each.action.sum()) - 1 for each in sampled)  # a row's last token is read when it goes on
    width = max(map(len, asked))
    rows = np.array([(*tokens, *[0] * (width - len(tokens))) for tokens in sorted(asked)])
    once = tree_order(rows, np.array([len(tokens) for tokens in sorted(asked)])).num_tokens
    counts = session.counts
    assert counts.stepped == drawn and counts.recomputed == counts.evicted == 0
    assert counts.prefilled + counts.extended <= 1.1 * once < 0.5 * sum(map(len, asked))


def test_the_trainer_computes_each_prefix_once_with_the_gradient_of_separate_rows(played):
    lm, samples, *_ = played
    batch = token_batch([Group(Prompt("p", ()), tuple(samples))])
    tree = shared_prefix_batch(batch.tokens, batch.action, deep=True)
    assert tree is not None and tree.segments.is_deep
    lengths = np.array([len(sample.tokens) - 1 for sample in samples])
    # runs of less than 16 tokens are copied into their branches
    assert tree.size < 1.25 * tree_order(batch.tokens.numpy(), lengths).num_tokens < 0.4 * lengths.sum()
    weight = torch.linspace(-1, 2, batch.action.numel(), dtype=torch.float64).reshape(batch.action.shape)

    def gradient(packed):
        lm.model.zero_grad(set_to_none=True)
        (token_logp(lm, batch.tokens, batch.action, details=Details(packed=packed)).logp * weight).sum().backward()
        return torch.cat([each.grad.flatten() for each in lm.model.parameters() if each.grad is not None])

    shared, apart = gradient(True), gradient(False)
    assert apart.norm() > 1 and (shared - apart).norm() / apart.norm() < 1e-10
