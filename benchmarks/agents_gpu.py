"""Conversations of four turns on one GPU, beside single completions of the same lengths: tokens per second of both.

    python benchmarks/agents.py --gpu --results            # results/agents_gpu.json
    python benchmarks/agents.py --gpu --model 135m --kinds multi,ragged
    python benchmarks/agents.py --gpu --tiny               # the same code on a CPU in seconds: does it run?

256 conversations in groups of 8 on one prompt each. A conversation is a prompt and four turns of the policy with an
answer of the environment behind each but the last: 1,024 tokens in all. The rate counts only what the policy writes;
reading the prompt and the answers, and all that happens between two turns, is in the time.

    multi         the engine's session, every turn answered at once
    ragged        the same with turns of random length, of the same mean: they end at different times
    episodes      the loop's own way: an environment object per conversation answers in text, which the chat template
                  frames; no two answers are equal
    tools         the same with tools: every turn is taken for a call, the tool's result is the answer
    single        as many tokens in one turn, to prompts that are as much longer as the answers are long
    single_short  the same without the answers: a shorter context

Weights are random, of a real model's shape, and no token ends a turn. The median of a kind's rounds counts. A `share`
is the rate over that of `single`, both of this run. Garbage is collected as seldom as in a run of `whet train`.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bench_models import SHAPES
from gpu_step import machine_for, told
from results_file import add_results_flag, write_results

from whet.api.training_session import gc_seldom
from whet.data.call_formats import Calls
from whet.data.chat import prompt_tokens
from whet.data.tool_syntax import ToolCall
from whet.envs.tools.find import find_tools
from whet.envs.tools.tool import ToolLimits
from whet.envs.tools.tool_environment import CallFormat, ToolEnvironment
from whet.protocols import Environment
from whet.record.speed import RolloutShape
from whet.rollout.call_pool import CallPool
from whet.rollout.episode_runner import EpisodePlan
from whet.rollout.episodes import EnvironmentRunner, EpisodeLimits
from whet.rollout.seed import request_seed
from whet.tools.bench.benchmark import begin_peak, peak_memory, random_prompts, synchronize, unending
from whet.training.assembly.runtime import Runtime
from whet.types import Completion, Prompt, Request, Sample, Sampling, SessionShape, StepResult


@dataclass(frozen=True)
class ConversationShape:
    """How many conversations are held, and how long their turns are."""

    prompts: int = 32
    group: int = 8
    prompt: int = 256  # tokens
    turns: int = 4
    turn: int = 144  # tokens of the policy
    answer: int = 64  # tokens of the environment

    @property
    def conversations(self) -> int:
        """Conversations that are held side by side."""
        return self.prompts * self.group

    @property
    def growth(self) -> int:
        """Tokens that a conversation grows by, answers of the tool included."""
        return self.turns * self.turn + (self.turns - 1) * self.answer

    def __str__(self) -> str:
        return (
            f"{self.prompts} prompts x {self.group} conversations, {self.prompt} tokens and {self.turns} turns of "
            f"{self.turn} with answers of {self.answer}: {self.prompt + self.growth}"
        )


TINY = ConversationShape(2, 4, 12, 4, 6, 9)
TEMPLATE = (
    "{% if tools %}{{ 'tools<eos>' }}{% endif %}"
    "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + '<eos>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
)
KINDS = ("multi", "ragged", "episodes", "tools", "single", "single_short")
FRAME = 4  # tokens that it writes around an answer: the end of the turn before, two roles, an end
WARM_UP = 3  # rounds of a kind that do not count
TOOLS = 2  # tokens that it writes where there are tools


@dataclass(frozen=True)
class Played:
    """What a round wrote."""

    tokens: int
    seconds: float


def session_shape(shape: ConversationShape) -> SessionShape:
    """The same sizes as the decode session takes them."""
    return SessionShape(shape.conversations, shape.prompt, shape.growth)


def turn_lengths(shape: ConversationShape, ragged: bool, seed: int) -> list[list[int]]:
    """The length of every turn of each conversation; ragged ones are between a third and five thirds of the mean."""
    stream = torch.Generator().manual_seed(seed)
    episodes = []
    for _ in range(shape.conversations):
        share = torch.rand(shape.turns, generator=stream) * 4 / 3 + 1 / 3
        whole = shape.turns * shape.turn
        lengths = (share / share.sum() * whole).floor().long().clamp(min=1).tolist()
        lengths[-1] += whole - sum(lengths)
        episodes.append(lengths if ragged else [shape.turn] * shape.turns)
    return episodes


def play(machine: Runtime, engine: Any, shape: ConversationShape, seed: int, ragged: bool) -> Played:
    """Conversations to their end; whoever has finished a turn is answered at once."""
    prompts = random_prompts(machine, RolloutShape(shape.prompts, shape.group, shape.prompt, shape.growth), seed)
    lengths = turn_lengths(shape, ragged, seed)
    stream = torch.Generator().manual_seed(seed)
    answers = torch.randint(5, machine.policy.vocabulary - 5, (shape.turns, shape.answer), generator=stream).tolist()
    sampling = Sampling(max(max(length) for length in lengths))
    written = number = 0
    asked: dict[int, tuple[int, int]] = {}  # conversation and turn of each request
    start = begun(machine)
    with engine.session(sampling, session_shape(shape)) as session:
        for conversation in range(shape.conversations):
            tokens = prompts[conversation // shape.group]
            session.add(number, Request(tokens, request_seed(seed, conversation, 0), lengths[conversation][0]))
            asked[number] = (conversation, 0)
            number += 1
        while not session.is_idle:
            for done, sample in session.advance():
                conversation, turn = asked.pop(done)
                written += sample.num_actions
                if turn + 1 == shape.turns:
                    session.release(done)
                    continue
                tokens = (*sample.tokens.tolist(), *answers[turn])
                seed_of_turn = request_seed(seed, conversation, turn + 1)
                session.add(number, Request(tokens, seed_of_turn, lengths[conversation][turn + 1], continues=done))
                asked[number] = (conversation, turn + 1)
                number += 1
    synchronize(machine.policy.device)
    return Played(written, time.perf_counter() - start)


class Answering:
    """An environment that answers every turn but the last."""

    def __init__(self, say: Callable[[], str], turns: int) -> None:
        self._say, self._turns = say, turns

    def start(self, prompt: Prompt) -> None:
        return None

    def step(self, completion: Completion) -> StepResult:
        self._turns -= 1
        if not self._turns:
            return StepResult(reward=0.0, done=True)
        return StepResult(({"role": "user", "content": self._say()},), 0.0)


def answering(shape: ConversationShape) -> Callable[[], Environment]:
    """Environments that answer every turn with a text of the shape's length."""
    say = texts_of(shape)
    return lambda: Answering(say, shape.turns)


def calling(shape: ConversationShape) -> Callable[[], Environment]:
    """Environments with one tool; whatever the policy writes is read as a call of it."""
    say = texts_of(shape)

    def look_up(number: int) -> str:
        """Look something up.

        Args:
            number: Which entry.
        """
        return say()

    def read(completion: Completion) -> Calls:
        return Calls((ToolCall("look_up", {"number": len(completion)}),), (), "")

    pools = {True: CallPool(), False: CallPool()}
    sources = [find_tools(look_up)]
    return lambda: ToolEnvironment(sources, CallFormat(lambda _: read, "anything"), ToolLimits(), 1, pools)


def texts_of(shape: ConversationShape) -> Callable[[], str]:
    """Another text with every call; with what the chat template writes around it, each has the answer's length."""
    number, length = count(), shape.answer - FRAME

    def say() -> str:
        first = next(number)
        return " ".join(f"w{5 + (31 * first + offset * (1 + first % 97)) % 400}" for offset in range(length))

    return say


def chat_prompts(
    tokenizer: Any, shape: ConversationShape, seed: int, spare: int
) -> tuple[list[Prompt], list[tuple[int, ...]]]:
    """Conversations that begin with random words, and their tokens: `spare` fewer than the shape has."""
    stream = torch.Generator().manual_seed(seed)
    words = torch.randint(
        5, len(tokenizer) - 5, (shape.prompts, shape.prompt - FRAME + 1 - spare), generator=stream
    ).tolist()
    texts = [" ".join(f"w{word}" for word in row) for row in words]
    prompts = [Prompt(str(row), ({"role": "user", "content": text},)) for row, text in enumerate(texts)]
    return prompts, [prompt_tokens(tokenizer, prompt) for prompt in prompts]


def play_episodes(
    machine: Runtime,
    engine: Any,
    shape: ConversationShape,
    seed: int,
    environments: Callable[[], Environment],
    spare: int = 0,
) -> Played:
    """The same conversations by the runner of the training loop; `spare` tokens come from the environment."""
    tokenizer = machine.loaded.tokenizer
    tokenizer.chat_template = TEMPLATE
    prompts, tokens = chat_prompts(tokenizer, shape, seed, spare)
    limits = EpisodeLimits(shape.turns, shape.growth + spare)
    runner = EnvironmentRunner(engine, tokenizer, environments, limits, machine.loaded.context)
    start = begun(machine)
    groups = runner.play(EpisodePlan(prompts, tokens, shape.group, Sampling(shape.turn), (seed,)))
    synchronize(machine.policy.device)
    seconds = time.perf_counter() - start
    samples = [sample for group in groups for sample in group]
    lengths = {len(sample.tokens) for sample in samples}
    assert lengths == {shape.prompt + shape.growth}, f"conversations of {lengths} tokens; {runner.take_notes()}"
    return Played(sum(sample.num_actions for sample in samples), seconds)


def complete(machine: Runtime, engine: Any, shape: ConversationShape, prompt: int, seed: int) -> Played:
    """As many tokens in a single turn behind prompts of this length."""
    budget = shape.turns * shape.turn
    prompts = random_prompts(machine, RolloutShape(shape.prompts, shape.group, prompt, budget), seed)
    requests = [
        Request(tokens, request_seed(seed, row, copy))
        for row, tokens in enumerate(prompts)
        for copy in range(shape.group)
    ]
    start = begun(machine)
    samples: list[Sample] = engine.generate(requests, Sampling(budget))
    synchronize(machine.policy.device)
    return Played(sum(sample.num_actions for sample in samples), time.perf_counter() - start)


def begun(machine: Runtime) -> float:
    """The time, once the device has nothing left to do."""
    synchronize(machine.policy.device)
    return time.perf_counter()


def kinds_of(machine: Runtime, engine: Any, shape: ConversationShape) -> dict[str, Callable[[int], Played]]:
    """Ways to write the same number of tokens, each a round for a seed."""
    observed = (shape.turns - 1) * shape.answer
    return {
        "multi": lambda seed: play(machine, engine, shape, seed, False),
        "ragged": lambda seed: play(machine, engine, shape, seed, True),
        "episodes": lambda seed: play_episodes(machine, engine, shape, seed, answering(shape)),
        "tools": lambda seed: play_episodes(machine, engine, shape, seed, calling(shape), spare=TOOLS),
        "single": lambda seed: complete(machine, engine, shape, shape.prompt + observed, seed),
        "single_short": lambda seed: complete(machine, engine, shape, shape.prompt, seed),
    }


def measured(machine: Runtime, shape: ConversationShape, rounds: int, chosen: Sequence[str]) -> dict[str, Any]:
    """Tokens per second of every way to play the conversations, medians over the rounds."""
    engine = unending(machine).engine
    every = kinds_of(machine, engine, shape)
    kinds = {kind: every[kind] for kind in every if kind in chosen or kind == "single"}
    # one kind after the other, as a run has the same kind in every step: buffers and graphs stay those of the last
    # round where they fit it, and every other shape makes them anew
    played_by_kind: dict[str, list[Played]] = {}
    begin_peak(machine.policy.device)
    for kind, run in kinds.items():
        for _ in range(WARM_UP):  # kernels are compiled, buffers grow, and graphs are made on the last ones
            run(1)
        played_by_kind[kind] = [run(100 + number) for number in range(rounds)]
    plain = Sampling(shape.turn)
    rates = {
        kind: median(episode.tokens / episode.seconds for episode in played) for kind, played in played_by_kind.items()
    }
    return {
        "shape": str(shape),
        "rounds": rounds,
        **{f"{kind}_tokens_per_s": rate for kind, rate in rates.items()},
        **{f"{kind}_s": median(episode.seconds for episode in played) for kind, played in played_by_kind.items()},
        **{f"{kind}_share": rate / rates["single"] for kind, rate in rates.items() if not kind.startswith("single")},
        "peak_GiB": peak_memory(machine.policy.device) / 2**30,
        "decode path": str(engine.session_path(plain, session_shape(shape))),
        "decode path with a stop": str(
            engine.session_path(replace(plain, stop=("</tool_call>",)), session_shape(shape))
        ),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="135m,1.5b", help=f"some of {', '.join(SHAPES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of them; `single` is always there")
    parser.add_argument("--tiny", action="store_true", help="small shapes, on the CPU where there is no GPU")
    add_results_flag(parser, "agents_gpu")
    chosen = parser.parse_args(arguments)
    kinds = chosen.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise SystemExit(f"--kinds {unknown[0]}: there is {', '.join(KINDS)}")
    chosen.precision = chosen.recompute = "auto"
    if not torch.cuda.is_available() and not chosen.tiny:
        raise SystemExit("no CUDA device is here; --tiny shows on a CPU that the script runs")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    results = {}
    for name in chosen.model.split(","):
        begin = time.perf_counter()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        machine = machine_for(name, device, chosen)
        record = {"model": machine.facts["model"], "dtype": machine.facts["dtype"]}
        gc.freeze()
        with gc_seldom():
            record.update(measured(machine, TINY if chosen.tiny else ConversationShape(), chosen.rounds, kinds))
        print("\n".join([name, *told(record)]), flush=True)
        print(f"  took {time.perf_counter() - begin:.0f} s with building the model", flush=True)
        results[name] = record
        if chosen.results:
            write_results(chosen.results, results)
        del machine


if __name__ == "__main__":
    main()
