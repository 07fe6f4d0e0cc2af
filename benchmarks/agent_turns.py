"""What turns cost besides their tokens, on the CPU: reading answers in batches, and waiting for slow environments.

    python benchmarks/agent_turns.py --results                       # results/agent_turns.json
    python benchmarks/agent_turns.py --parts reading --before ../whet-before    # another version beside this one
    python benchmarks/agent_turns.py --tiny

The built-in model plays episodes of eight turns; its turns end where it ends them, so answers do not come together.

`reading`: seconds of the writing thread's own processor time, and how many answers one pass over answers reads.
`waiting`: 16 episodes whose environment sleeps before it answers. Nothing can be faster than the turns of one episode,
each with its wait, and the writing that is left without any wait: `ideal_s`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from results_file import ROOT, add_results_flag, write_results

TURNS, GROUP, TURN_TOKENS = 8, 8, 48
EPISODES = (8, 16, 32, 64)
LATENCIES = (0.0, 0.2, 0.4, 0.8, 1.2)
WAITING = 16  # episodes
ANSWER = "no, try again: 7 + 12 = 20 - 1"


def played(episodes: int, turns: int, latency: float) -> dict[str, float]:
    """One batch of episodes, in this process."""
    import torch

    from whet.model.causal_lm import causal_lm
    from whet.model.load import load_model
    from whet.rollout.buffer_decode import BufferBackend
    from whet.rollout.episodes import EnvironmentRunner, EpisodeLimits
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Completion, Prompt, Sampling, StepResult

    class Slow:
        """Answers so many turns, each after a wait."""

        def __init__(self) -> None:
            self.turn = 0

        def start(self, prompt: Prompt) -> None:
            return None

        def step(self, completion: Completion) -> StepResult | float:
            time.sleep(latency)
            self.turn += 1
            return 1.0 if self.turn == turns else StepResult(({"role": "user", "content": ANSWER},))

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
    runner = EnvironmentRunner(engine, loaded.tokenizer, Slow, EpisodeLimits(max_turns=turns, max_tokens=4000), 4096)
    processor, wall = time.thread_time(), time.monotonic()
    samples = runner.play(prompts, tokens, GROUP, Sampling(TURN_TOKENS), (0,))
    processor, wall = time.thread_time() - processor, time.monotonic() - wall
    written = sum(int(sample.action.sum()) for group in samples for sample in group)
    return {
        "writing_cpu_s": processor,
        "wall_s": wall,
        "waited_s": runner.take_notes().seconds.get("environment", 0.0),
        "answers_per_pass": answers / max(1, passes),
        "tokens_per_turn": written / (episodes * turns),
    }


def of_tree(tree: Path, repeats: int, *case: float) -> dict[str, float]:
    """The median of a few goes, each in a process of its own, with the whet of this folder."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--case", ",".join(map(str, case))]
    goes = [json.loads(subprocess.check_output(command, env=environment, text=True)) for _ in range(repeats)]
    return {key: median(go[key] for go in goes) for key in goes[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="reading,waiting", help="reading, waiting or both")
    parser.add_argument(
        "--before", type=Path, help="a folder with another version of whet, to read with beside this one"
    )
    parser.add_argument("--repeats", type=int, default=3, help="goes of a case of `reading`")
    parser.add_argument("--tiny", action="store_true", help="8 episodes of 2 turns: does it run?")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    add_results_flag(parser, "agent_turns")
    chosen = parser.parse_args()
    if chosen.case:
        episodes, turns, latency = chosen.case.split(",")
        print(json.dumps(played(int(episodes), int(turns), float(latency))))
        return
    here, turns = ROOT, 2 if chosen.tiny else TURNS
    values: dict[str, Any] = {"turns": turns}
    for part in chosen.parts.split(","):
        values[part] = {}
        if part == "reading":
            for episodes in EPISODES[:1] if chosen.tiny else EPISODES:
                trees = {"now": here} | ({"before": chosen.before.resolve()} if chosen.before else {})
                sides = {name: of_tree(tree, chosen.repeats, episodes, turns, 0.0) for name, tree in trees.items()}
                values[part][str(episodes)] = sides
                for name, side in sides.items():
                    print(
                        f"{episodes:3} episodes, {name:7}{side['writing_cpu_s']:7.2f} s of writing, "
                        f"{side['answers_per_pass']:5.1f} answers per pass",
                        flush=True,
                    )
            continue
        for latency in LATENCIES[:2] if chosen.tiny else LATENCIES:
            go = of_tree(here, 1, WAITING, turns, latency)
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
