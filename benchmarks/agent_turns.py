"""What turns cost besides their tokens, on the CPU: reading answers in batches, and waiting for slow environments.

    python benchmarks/agent_turns.py --results                       # results/agent_turns.json
    python benchmarks/agent_turns.py --parts reading --before ../whet-before    # another version beside this one
    python benchmarks/agent_turns.py --parts host --before ../whet-before --results agent_host
    python benchmarks/agent_turns.py --tiny

The built-in model plays episodes of eight turns; its turns end where it ends them, so answers do not come together.

`reading`: seconds of the writing thread's own processor time, and how many answers one pass over answers reads.
`waiting`: 16 episodes whose environment sleeps before it answers. Nothing can be faster than the turns of one episode,
each with its wait, and the writing that is left without any wait: `ideal_s`.
`host`: what a turn costs when the model costs nothing: 256 episodes of four turns, written at once, 32 at a time, with
the built-in tokenizer. An environment answers in text (`text`), or a tool with JSON (`tools`). Milliseconds, the least
of a few goes of a few processes; with `--before` the two versions by turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from results_file import ROOT, add_results_flag, write_results

from whet.rollout.episode_runner import EpisodePlan

TURNS, GROUP, TURN_TOKENS = 8, 8, 48
EPISODES = (8, 16, 32, 64)
LATENCIES = (0.0, 0.2, 0.4, 0.8, 1.2)
WAITING = 16  # episodes
KINDS = ("text", "tools")
HOSTED, TOGETHER, GOES = 256, 32, 6  # episodes, those that are written at once, and goes, of which the first warms up
ANSWER = "no, try again: 7 + 12 = 20 - 1"


def played(episodes: int, turns: int, latency: float) -> dict[str, float]:
    """One batch of episodes, in this process."""
    import torch

    sys.path.insert(0, str(ROOT / "benchmarks" / "sides"))
    from slow_environment import SlowEnvironment

    from whet.model.causal_lm import causal_lm
    from whet.model.load import load_model
    from whet.rollout.buffer_decode import BufferBackend
    from whet.rollout.episodes import EnvironmentRunner, EpisodeLimits
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Prompt, Sampling

    torch.set_num_threads(1)
    loaded = load_model("whetstone", torch.float32, "cpu")
    lm = causal_lm(loaded.model)
    engine = TorchEngine(lm, loaded.tokenizer, loaded.end_tokens, context=4096)
    passes, answers = 0, 0
    extend = BufferBackend.extend

    def counted(self: Any, rows: Any, *rest: Any) -> Any:
        nonlocal passes, answers
        passes, answers = passes + 1, answers + len(rows)
        return extend(self, rows, *rest)

    BufferBackend.extend = counted  # type: ignore[method-assign]
    questions = [f"What is {number} + {7 * number}?" for number in range(episodes // GROUP)]
    prompts = [Prompt(question, ({"role": "user", "content": question},)) for question in questions]
    tokens = [
        tuple(
            loaded.tokenizer.apply_chat_template(list(prompt.messages), add_generation_prompt=True, return_dict=False)
        )
        for prompt in prompts
    ]
    make = partial(SlowEnvironment, latency, turns)
    runner = EnvironmentRunner(engine, loaded.tokenizer, make, EpisodeLimits(max_turns=turns, max_tokens=4000), 4096)
    processor, wall = time.thread_time(), time.monotonic()
    samples = runner.play(EpisodePlan(prompts, tokens, GROUP, Sampling(TURN_TOKENS), (0,)))
    processor, wall = time.thread_time() - processor, time.monotonic() - wall
    written = sum(int(sample.action.sum()) for group in samples for sample in group)
    return {
        "writing_cpu_s": processor,
        "wall_s": wall,
        "waited_s": runner.take_notes().seconds.get("environment", 0.0),
        "answers_per_pass": answers / max(1, passes),
        "tokens_per_turn": written / (episodes * turns),
    }


class WrittenAtOnce:
    """An engine, and its own session, that write the same turn for everybody, a batch at a time."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        self._text = text
        self._tokens = (*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
        self._waiting: dict[int, Any] = {}
        self.seconds = 0.0  # of processor time, spent here

    def session(self, *_: Any) -> WrittenAtOnce:
        return self

    def add(self, number: int, request: Any) -> None:
        self._waiting[number] = request

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def advance(self) -> list[tuple[int, Any]]:
        import numpy as np
        import torch

        from whet.types import Sample, StopReason

        started, written = time.thread_time(), []
        for number in list(self._waiting)[:TOGETHER]:
            tokens = torch.from_numpy(np.array((*self._waiting.pop(number).tokens, *self._tokens)))
            action = torch.arange(len(tokens)) >= len(tokens) - len(self._tokens)
            logp = torch.zeros(len(tokens))
            written.append((number, Sample(tokens, action, logp, (0, 0), StopReason.END, self._text)))
        self.seconds += time.thread_time() - started
        return written

    def release(self, number: int) -> None: ...

    def close(self) -> None: ...


def hosted(kind: str) -> dict[str, float]:
    """Milliseconds of a turn, the model's own apart: of the clock, of all threads, and of the thread that writes."""
    import torch

    from whet.data.chat import prompt_tokens
    from whet.envs.tools.find import tool_environment
    from whet.model.load import load_model
    from whet.rollout.episodes import EnvironmentRunner, EpisodeLimits
    from whet.types import Completion, Prompt, Sampling, StepResult

    torch.set_num_threads(1)
    tokenizer, number = load_model("whetstone", torch.float32, "cpu").tokenizer, count()

    def says() -> dict[str, Any]:
        return {"entry": next(number), "text": "what is known about it, in a few words", "see": [3, 5, 8]}

    class Talking:
        def start(self, prompt: Prompt) -> None:
            return None

        def step(self, completion: Completion) -> StepResult:
            return StepResult(({"role": "user", "content": json.dumps(says())},))

    def look_up(entry: int) -> dict[str, Any]:
        """Look something up.

        Args:
            entry: Which entry.
        """
        return says()

    make = Talking if kind == "text" else tool_environment([look_up], call_format="json", tokenizer=tokenizer)
    call = '<tool_call>{"name": "look_up", "arguments": {"entry": 7}}</tool_call>'
    prompts = [Prompt(str(row), ({"role": "user", "content": f"Look up {row}."},)) for row in range(HOSTED // GROUP)]
    tokens, goes = [prompt_tokens(tokenizer, prompt) for prompt in prompts], []
    for go in range(GOES):
        engine = WrittenAtOnce(tokenizer, call)
        runner = EnvironmentRunner(engine, tokenizer, make, EpisodeLimits(max_turns=4, max_tokens=4000), 1 << 15)
        began = time.perf_counter(), time.process_time(), time.thread_time()
        played = runner.play(EpisodePlan(prompts, tokens, GROUP, Sampling(TURN_TOKENS), (go,)))
        ended = time.perf_counter(), time.process_time(), time.thread_time()
        assert not runner.take_notes().failures
        turns = sum(turn.role == "assistant" for group in played for sample in group for turn in sample.turns)
        goes.append([1e3 * (end - begin - engine.seconds) / turns for begin, end in zip(began, ended, strict=True)])
    keys = ("wall_ms", "cpu_ms", "writing_thread_ms")
    return {key: min(values) for key, values in zip(keys, zip(*goes[1:], strict=True), strict=True)}


def gone(tree: Path, *case: float | str) -> dict[str, float]:
    """A go in a process of its own, with the whet of this folder."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--case", ",".join(map(str, case))]
    return dict(json.loads(subprocess.check_output(command, env=environment, text=True)))


def side_by_side(
    trees: Mapping[str, Path], repeats: int, of: Callable[[Iterable[float]], float], *case: float | str
) -> dict[str, dict[str, float]]:
    """The median or least of a few goes of each tree, by turns: what else the machine does hits all alike."""
    goes = [{name: gone(tree, *case) for name, tree in trees.items()} for _ in range(repeats)]
    return {name: {key: of(go[name][key] for go in goes) for key in goes[0][name]} for name in trees}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="reading,waiting", help="some of reading, waiting and host")
    parser.add_argument(
        "--before", type=Path, help="a folder with another version of whet, to read with beside this one"
    )
    parser.add_argument("--repeats", type=int, default=3, help="goes of a case of `reading` and `host`")
    parser.add_argument("--tiny", action="store_true", help="8 episodes of 2 turns: does it run?")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    add_results_flag(parser, "agent_turns")
    chosen = parser.parse_args()
    if chosen.case in KINDS:
        print(json.dumps(hosted(chosen.case)))
        return
    if chosen.case:
        episodes, turns, latency = chosen.case.split(",")
        print(json.dumps(played(int(episodes), int(turns), float(latency))))
        return
    here, turns = ROOT, 2 if chosen.tiny else TURNS
    values: dict[str, Any] = {"turns": turns}
    trees = {"now": here} | ({"before": chosen.before.resolve()} if chosen.before else {})
    for part in chosen.parts.split(","):
        values[part] = {}
        for kind in KINDS if part == "host" else ():
            values[part][kind] = side_by_side(trees, chosen.repeats, min, kind)
            for name, side in values[part][kind].items():
                print(
                    f"{kind:11}{name:7}" + "  ".join(f"{key} {number:.3f}" for key, number in side.items()), flush=True
                )
        if part == "host":
            continue
        if part == "reading":
            for episodes in EPISODES[:1] if chosen.tiny else EPISODES:
                sides = side_by_side(trees, chosen.repeats, median, episodes, turns, 0.0)
                values[part][str(episodes)] = sides
                for name, side in sides.items():
                    print(
                        f"{episodes:3} episodes, {name:7}{side['writing_cpu_s']:7.2f} s of writing, "
                        f"{side['answers_per_pass']:5.1f} answers per pass",
                        flush=True,
                    )
            continue
        for latency in LATENCIES[:2] if chosen.tiny else LATENCIES:
            go = gone(here, WAITING, turns, latency)
            if not latency:
                values["without_wait_s"] = go["wall_s"]
            go["ideal_s"] = turns * latency + values["without_wait_s"]
            values[part][f"{latency:g}"] = go
            print(
                f"{latency:g} s an answer: {go['wall_s']:6.1f} s in all, {go['waited_s']:6.1f} s waited; "
                f"ideal {go['ideal_s']:5.1f} s",
                flush=True,
            )
    if chosen.results:
        write_results(chosen.results, values)


if __name__ == "__main__":
    main()
