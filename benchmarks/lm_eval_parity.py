"""whet's verdicts against lm-eval's own task code on the same completions of GSM8K and MATH-500.

    python benchmarks/lm_eval_parity.py $WHET_DATA              # everything: some minutes
    python benchmarks/lm_eval_parity.py $WHET_DATA --limit 20   # a trial
    python benchmarks/lm_eval_parity.py $WHET_DATA --results

The folder holds gsm8k/test.jsonl.gz and example_model_solutions.jsonl.gz (four models' solutions per question),
math/math500.jsonl.gz and verifier_vectors/ (two models' answers to MATH-500). lm-eval is installed once by pip, in a
folder of its own (tests/peers/peer.py), and runs its filters, its metric and its process_results there. Completions:

    gsm8k_marked      the models' solutions, the answer after ####, as GSM8K's authors write it
    gsm8k_unmarked    the same with "A: 42" at the end, as the models wrote it
    math500_reference the reference solutions, and the same with the answer of the next problem in the box
    math500_models    the answers of two models
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "peers"), str(ROOT / "benchmarks")]

from peer import PACKAGES, install  # noqa: E402
from results_file import add_results_flag, write_results  # noqa: E402

from whet.data.gold import boxed  # noqa: E402
from whet.data.prompts import prompts_from  # noqa: E402
from whet.data.source import read_rows  # noqa: E402
from whet.reward.mathematics.math_answer import math_answers  # noqa: E402
from whet.types import Prompt  # noqa: E402

SHOWN = 12  # differences of each kind that are kept
MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")


@dataclass(frozen=True)
class Case:
    """One completion, what whet judges it by, and what lm-eval does."""

    group: str
    task: str
    prompt: Prompt
    gold: str  # as lm-eval's task has it
    completion: str


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a gzipped JSONL file."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def gsm8k_cases(data: Path, limit: int | None) -> list[Case]:
    """Test questions of GSM8K with completions."""
    prompts = prompts_from(read_rows(f"gsm8k:{data / 'gsm8k' / 'test.jsonl.gz'}"))
    golds = rows_of(data / "gsm8k" / "test.jsonl.gz")
    solved = {row["question"]: row for row in rows_of(data / "gsm8k" / "example_model_solutions.jsonl.gz")}
    cases = []
    for prompt, gold in list(zip(prompts, golds, strict=True))[:limit]:
        for model in MODELS:
            text = solved[gold["question"]][model]["solution"]
            marked = "\n#### ".join(text.rsplit("\nA: ", 1))
            cases.append(Case("gsm8k_marked", "gsm8k", prompt, gold["answer"], marked))
            cases.append(Case("gsm8k_unmarked", "gsm8k", prompt, gold["answer"], text))
    return cases


def math500_cases(data: Path, limit: int | None) -> list[Case]:
    """Questions of MATH-500 with completions."""
    path = data / "math" / "math500.jsonl.gz"
    prompts, rows = prompts_from(read_rows(f"math:{path}")), rows_of(path)
    vectors = data / "verifier_vectors"
    told = [rows_of(vectors / f"rasbt_math500_{name}_answers.jsonl.gz") for name in ("qwen3", "gpt")]
    cases = []
    for number, (prompt, row) in enumerate(list(zip(prompts, rows, strict=True))[:limit]):
        right, wrong = row["solution"], rows[(number + 1) % len(rows)]["answer"]
        box = boxed(right)[-1]
        swapped = f"\\boxed{{{wrong}}}".join(right.rsplit(f"\\boxed{{{box}}}", 1))
        assert swapped != right or wrong == box, f"the box of {prompt.id} is written in another way"
        for text, answer in ((right, box), (swapped, wrong)):
            cases.append(Case("math500_reference", "math500", prompt, right, closed(text, answer)))
        for answers in told:
            said = answers[number]["prediction"]
            inner = boxed(said)[-1] if boxed(said) else said
            cases.append(
                Case("math500_models", "math500", prompt, right, closed(f"So it is $\\boxed{{{inner}}}$.", inner))
            )
    return cases


def closed(text: str, answer: str) -> str:
    """With the last sentence that lm-eval's minerva tasks look for."""
    return f"{text}\nFinal Answer: The final answer is ${answer}$. I hope it is correct."


def peer_verdicts(cases: Sequence[Case]) -> list[dict[str, int]]:
    """lm-eval's verdict on each case, in a process of its own."""
    package = PACKAGES["lm_eval"]
    lines = [
        {"task": case.task, "question": case.prompt.question(), "gold": case.gold, "completion": case.completion}
        for case in cases
    ]
    environment = {**os.environ, "PYTHONPATH": str(install(package)), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "peers" / package.script)],
        input="".join(json.dumps(line) + "\n" for line in lines),
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"lm-eval failed: {done.stderr[-800:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def compared(cases: Sequence[Case]) -> dict[str, Any]:
    """By group and by lm-eval's score: how often both say the same, both accuracies, and where they differ."""
    theirs = peer_verdicts(cases)
    ours = math_answers([case.prompt for case in cases], [case.completion for case in cases])
    groups: dict[str, dict[str, Any]] = {}
    for case, own, verdicts in zip(cases, ours, theirs, strict=True):
        group = groups.setdefault(case.group, {"completions": 0, "whet_right": 0, "scores": {}})
        group["completions"] += 1
        group["whet_right"] += own == 1.0
        for name, verdict in verdicts.items():
            score = group["scores"].setdefault(
                name, {"right": 0, "agree": 0, "only_whet": 0, "only_peer": 0, "shown": []}
            )
            score["right"] += verdict
            if (own == 1.0) == bool(verdict):
                score["agree"] += 1
                continue
            side = "only_whet" if own == 1.0 else "only_peer"
            score[side] += 1
            if sum(shown["right"] == side for shown in score["shown"]) < SHOWN:
                gold = str(case.prompt.answer)
                shown = {"right": side, "prompt": case.prompt.id, "gold": gold, "end": case.completion[-160:]}
                score["shown"].append(shown)
    for group in groups.values():
        count = group["completions"]
        group["whet_accuracy"] = round(group["whet_right"] / count, 4)
        for score in group["scores"].values():
            score["accuracy"] = round(score["right"] / count, 4)
            score["agreement"] = round(score["agree"] / count, 4)
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with gsm8k/, math/ and verifier_vectors/")
    parser.add_argument("--limit", type=int, default=0, help="questions of each benchmark; 0 is all")
    add_results_flag(parser, "lm_eval_parity")
    chosen = parser.parse_args()
    limit = chosen.limit or None
    cases = [*gsm8k_cases(chosen.data, limit), *math500_cases(chosen.data, limit)]
    comparison = compared(cases)
    for name, group in comparison.items():
        print(f"{name}: {group['completions']} completions, whet {group['whet_accuracy']:.4f}")
        for score, values in group["scores"].items():
            kinds = Counter({side: values[side] for side in ("only_whet", "only_peer")})
            print(f"  {score:24} {values['accuracy']:.4f}  agree {values['agreement']:.4f}  {dict(kinds)}")
    if chosen.results:
        write_results(
            chosen.results,
            {"lm_eval": PACKAGES["lm_eval"].version, "groups": comparison},
            measured=("reward", "data"),
        )


if __name__ == "__main__":
    main()
