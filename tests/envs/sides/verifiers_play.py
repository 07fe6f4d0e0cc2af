"""Runs where verifiers is installed beside whet: plays episodes of one environment with a scripted policy.

Arguments: the environment, its settings as JSON, the name of its tool. Prints one line of JSON.
"""

import json
import sys

from tests.support.scripted import ScriptedEngine, tool_tokenizer
from whet.data.seeds import SEED
from whet.envs.adapters.verifiers import num_tasks
from whet.envs.serve.agent import AgentLimits, AgentRunner
from whet.rollout.episode_runner import EpisodePlan
from whet.types import Prompt, Sampling


def main(name: str, settings: str, tool: str = "") -> None:
    def script(prompt: str, request: object) -> str:
        if tool and "<|tool|>" not in prompt:
            return f'<tool_call>{{"name": "{tool}", "arguments": {{"a": 3, "b": 3}}}}</tool_call>'
        return "<answer>6</answer>"

    tokenizer, given = tool_tokenizer(), json.loads(settings)
    engine = ScriptedEngine(tokenizer, script)
    limits = AgentLimits(seconds=500)
    runner = AgentRunner(
        engine, tokenizer, name, limits, context=8192, end_tokens=(tokenizer.eos_token_id,), settings=given
    )
    prompts = [Prompt(f"seed-{seed}", (), "", meta={SEED: seed}) for seed in (3, 4)]
    try:
        groups = runner.play(EpisodePlan(prompts, [(1,)] * len(prompts), 1, Sampling(200), (1,)))
        failures = runner.take_notes().failures
    finally:
        runner.close()
    written = [sample.tokens.tolist() for sample in engine.samples]
    episodes = [
        {
            "returned": sample.returned,
            "metrics": dict(sample.metrics),
            "turns": [turn.role for turn in sample.turns],
            "texts": [turn.text for turn in sample.turns if turn.role in ("user", "tool")],
            "exact": sample.tokens.tolist() in written,
        }
        for group in groups
        for sample in group
    ]
    print(json.dumps({"tasks": num_tasks(name, given), "failures": failures, "episodes": episodes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
