"""The pieces of the benchmark of episodes; the duel itself runs in processes of its own."""

import argparse
import json
from pathlib import Path

import agents
import agents_gpu
import pytest
import torch
from bench_models import tokenizer_of
from look_up import WORDS, LookUp

from whet.envs.adapters.trl import trl_environment
from whet.envs.tools.formats import Calling
from whet.rollout.episode_runner import EpisodePlan
from whet.rollout.episodes import EnvironmentRunner, EpisodeLimits
from whet.types import Completion, Prompt, Sample, Sampling, StopReason


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return agents.made_model("tiny", tmp_path_factory.mktemp("models") / "agents-tiny", 0, agents.TINY)


def test_an_answer_has_always_the_same_length_and_is_another_one_for_another_call():
    first, second = LookUp().look_up("w1 w2"), LookUp().look_up("w1 w3")
    assert first != second and len(first.split()) == len(second.split()) == WORDS
    played = LookUp()
    before = played.get_reward()
    played.look_up("w7")
    assert played.get_reward() != before
    played.reset(prompt=[])
    assert played.get_reward() == before


class Writing:
    """An engine whose turns are random words, each as long as it may be."""

    def generate(self, requests, sampling):
        samples = []
        for request in requests:
            budget = request.max_new_tokens or sampling.max_new_tokens
            drawn = torch.randint(5, 400, (budget,), generator=torch.Generator().manual_seed(request.seed % 2**31))
            tokens = torch.cat([torch.tensor(request.tokens), drawn])
            action = torch.arange(len(tokens)) >= len(request.tokens)
            text = " ".join(f"w{each}" for each in drawn.tolist())
            samples.append(Sample(tokens, action, action * -0.5, (0, 0), StopReason.LENGTH, text))
        return samples


def test_whatever_the_policy_writes_is_a_call_and_an_episode_has_the_length_that_is_told(made):
    from transformers import AutoTokenizer

    tokenizer, shape = AutoTokenizer.from_pretrained(made["folder"]), agents.TINY
    make = trl_environment(LookUp, Calling(call_format="template", tokenizer=tokenizer))
    prompt = Prompt("0", ({"role": "user", "content": made["texts"][0]},))
    limits = EpisodeLimits(shape.turns, made["context"] - shape.prompt)
    runner = EnvironmentRunner(Writing(), tokenizer, make, limits, 4096)
    samples = runner.play(EpisodePlan([prompt], [(1, 2, 3)], 2, Sampling(shape.turn), (0,)))[0]
    for sample in samples:
        assert len(sample.tokens) == made["context"] and sample.num_actions == shape.turns * shape.turn
        assert sample.turns[0].role == "prompt" and sample.turns[0].stop == shape.prompt
        assert sum(turn.counts.get("tool_calls", 0) for turn in sample.turns) == shape.turns
        assert sample.returned is not None and sample.stop is StopReason.TURNS


def test_the_job_of_both_sides_fits_the_model(made):
    chosen = argparse.Namespace(batch_rows=8, steps=1, most=2, warm_up=1, threads=1, seed=0, precision="fp32")
    job = json.loads(json.dumps(agents.job_of(chosen, made, agents.TINY)))
    assert job["batch_rows"] == 2 and job["growth"] == made["context"] - agents.TINY.prompt
    assert Path(job["environment"]).name == "look_up.py" and len(job["texts"]) == agents.TINY.prompts
    assert agents.FULL.context(64) == 1024


def test_what_was_read_is_told_for_each_side():
    ours = {"prefilled": 10, "extended": 6, "stepped": 5, "recomputed": 0, "context": 30, "trained": 12}
    sides = {
        "whet": {"runs": [{"steps": [{"counts": ours}], "path": "fused decoder", "path_with_stop": "fused decoder"}]},
        "trl": {"runs": [{"steps": [{"counts": {"prefilled": 70, "context": 29, "trained": 12}}]}]},
    }
    found = agents.computed(sides)
    assert found["whet"]["read"] == 16 and found["trl"]["read"] == 70 and found["whet"]["stepped"] == 5
    assert found["whet"]["path"] == found["whet"]["path_with_stop"] == "fused decoder"
    assert "path" not in found["trl"]


def test_the_answers_of_the_gpu_part_differ_and_fill_their_frame():
    shape, tokenizer = agents_gpu.TINY, tokenizer_of(512)
    tokenizer.chat_template = agents_gpu.TEMPLATE
    say = agents_gpu.texts_of(agents_gpu.ConversationShape())
    assert len({say() for _ in range(1024)}) == 1024
    prompts, tokens = agents_gpu.chat_prompts(tokenizer, shape, 0, spare=0)
    assert len(prompts) == shape.prompts and {len(each) for each in tokens} == {shape.prompt}
    environment = agents_gpu.answering(shape)()
    results = [environment.step(Completion("w5")) for _ in range(shape.turns)]
    assert [each.done for each in results] == [False] * (shape.turns - 1) + [True]


@pytest.mark.parametrize("kind", ["multi", "ragged", "episodes", "tools", "single", "single_short"])
def test_every_kind_of_the_gpu_part_writes_as_many_tokens(tiny_machine, kind):
    machine, engine = tiny_machine
    shape = agents_gpu.TINY
    played = agents_gpu.kinds_of(machine, engine, shape)[kind](1)
    assert played.tokens == shape.conversations * shape.turns * shape.turn and played.seconds > 0


@pytest.fixture(scope="module")
def tiny_machine():
    from bench_models import SHAPES, random_machine

    from whet.tools.bench.benchmark import unending

    machine = random_machine(*SHAPES["tiny"], torch.device("cpu"), "auto")
    return machine, unending(machine).engine
