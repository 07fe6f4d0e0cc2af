"""Verifications per second of `math_answer`, on one core and on all, beside math-verify on the same pairs.

    python benchmarks/math_verification.py                       # pairs that this script writes
    python benchmarks/math_verification.py --data FOLDER         # and real ones: the folder with gsm8k, math, ...
    python benchmarks/math_verification.py --data FOLDER --results
    python benchmarks/math_verification.py --data FOLDER --steps 12   # what the steps of a training wait for

A pair is a prompt with its gold answer and one completion, scored from the text: finding the answer, reading both
sides, comparing. No pair repeats, so no cache helps but that of the gold answers, which a training has too.

With --steps, completions to GSM8K end over a second, 256 a step, and are scored as they end; those that are cut, 8%
of them, end last and have no marked answer. `waits` is from there to the scores of all.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from results_file import add_results_flag, write_results

from whet.reward.combine import RewardPart
from whet.reward.find import find_reward
from whet.reward.mathematics import math_answer
from whet.reward.mathematics.math_answer import math_answers
from whet.reward.mathematics.verifier import MathJob, MathPool
from whet.reward.score import Failures, Scorer, judged_ahead
from whet.threads import num_cores
from whet.types import Prompt, Sample, StopReason

Pair = tuple[str, str]  # gold answer, completion


def written_pairs(count: int, seed: int = 0) -> list[Pair]:
    """Golds and answers of the kinds that MATH and GSM8K have, half of them wrong."""
    dice = random.Random(seed)
    pairs = []
    for _ in range(count):
        a, b, c = dice.randint(2, 999), dice.randint(2, 99), dice.randint(2, 30)
        wrong = dice.random() < 0.5
        shift = dice.randint(1, 5) if wrong else 0
        kinds = [
            (f"{a * b}", f"{a * b + shift:,}"),
            (f"{a}", f"{a + shift}.0"),
            (rf"\frac{{{a}}}{{{b}}}", f"{a * c + shift}/{b * c}"),
            (rf"{b}\sqrt{{{c}}}", rf"\sqrt{{{b * b * c + shift}}}"),
            (rf"[{-a}, {b})", rf"{-a} \le x < {b + shift}"),
            (rf"({a}, {b})", rf"\left({a}, {b + shift}\right)"),
            (rf"(x+{b})(x-{c})", rf"x^2 + {b - c}x - {b * c + shift}"),
            (rf"\frac{{{a}\pi}}{{{b}}}", rf"\frac{{{a + shift}}}{{{b}}}\pi"),
            (rf"{a}, {b}", rf"{b}, {a + shift}"),
            (
                rf"\begin{{pmatrix}} {a} \\ {b} \end{{pmatrix}}",
                rf"\begin{{pmatrix}} {a} \\ {b + shift} \end{{pmatrix}}",
            ),
            (f"{a}^\\circ", f"{a + shift} degrees"),
            (rf"{a}\%", f"{(a + shift) / 100}"),
        ]
        weights = [6, 3, 3, 1.5, 1, 2, 2, 1, 1, 0.7, 0.6, 0.4]
        gold, answer = dice.choices(kinds, weights)[0]
        pairs.append((gold, f"We add up and simplify, which gives the result below.\n\nSo it is \\boxed{{{answer}}}."))
    return pairs


def real_pairs(folder: Path) -> dict[str, list[Pair]]:
    """Completions of real models with the gold answers of their questions."""

    def rows(name: str) -> list[dict[str, Any]]:
        with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    word_problems = []
    for row in rows("gsm8k/example_model_solutions"):
        gold = row["ground_truth"].split("A:")[-1].strip()
        texts = [answer["solution"] for answer in row.values() if isinstance(answer, dict)]
        word_problems += [(gold, "Answer:".join(text.rsplit("A:", 1))) for text in texts]
    answers = [
        (row["answer"], f"Hence the answer is as follows. {row['prediction']}")
        for name in ("qwen3", "gpt")
        for row in rows(f"verifier_vectors/rasbt_math500_{name}_answers")
    ]
    from whet.data.gold import boxed

    solutions = []
    golds = [(row, boxed(row["solution"])) for row in rows("math/math_test")]
    readable = [(frames[-1], row["solution"]) for row, frames in golds if len(frames) == 1 and frames[-1]]
    dice = random.Random(0)
    for gold, solution in readable:
        solutions.append((gold, solution if dice.random() < 0.5 else dice.choice(readable)[1]))
    return {"gsm8k, 4 models": word_problems, "math500, 2 models": answers, "math, solutions": solutions}


def ours(pairs: list[Pair]) -> list[float | None]:
    """whet's verdicts."""
    return math_answers([Prompt("p", (), text="q", answer=gold) for gold, _ in pairs], [text for _, text in pairs])


def theirs(pairs: list[Pair]) -> list[bool]:
    """math-verify's verdicts."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    golds: dict[str, Any] = {}
    answers = []
    for gold, text in pairs:
        if gold not in golds:
            golds[gold] = parse(f"\\boxed{{{gold}}}", parsing_timeout=None)
        answers.append(verify(golds[gold], parse(text, parsing_timeout=None), timeout_seconds=None))
    return answers


@contextmanager
def pool_of(cores: int) -> Iterator[None]:
    """That many processes run math-verify; everything else is done by the trainer's."""
    pool, math_answer.POOL = math_answer.POOL, MathPool(cores)
    try:
        yield
    finally:
        math_answer.POOL.close()
        math_answer.POOL = pool


def rate(pairs: list[Pair], cores: int) -> float:
    """Pairs per second, once every process stands: a training starts them once."""
    with pool_of(cores):
        math_answer.POOL.sandbox.start()
        math_answer.POOL.run([MathJob("read", (r"\frac{1}{2}",))] * 4 * cores)
        started = time.perf_counter()
        ours(pairs)
        return len(pairs) / (time.perf_counter() - started)


def gsm8k_step(rows: list[dict[str, Any]], dice: random.Random) -> tuple[list[Prompt], list[Sample]]:
    """Eight worked answers to each question, the prompts as often; half of the answers are right."""
    prompts: list[Prompt] = []
    samples: list[Sample] = []
    for number, row in enumerate(rows):
        work, gold = (part.strip() for part in row["answer"].split("####"))
        lines = [
            re.sub(r"<<(.*?)=(.*?)>>.*", r"\n\\[\n\\text{so we have } \1 = \2\n\\]\n", line)
            for line in work.splitlines()
        ]
        for _ in range(8):
            text = "To solve this, we go step by step.\n\n" + "\n".join(lines)
            answer = gold if dice.random() < 0.5 else str(dice.randint(1, 200))
            is_cut = dice.random() < 0.08
            text = (
                text[: int(len(text) * dice.uniform(0.5, 1))]
                if is_cut
                else f"{text}\nSo it is \\(\\boxed{{{answer}}}\\)."
            )
            stop = StopReason.LENGTH if is_cut else StopReason.END
            nothing = torch.zeros(1)
            samples.append(Sample(nothing.long(), nothing == 0, nothing, (0, 0), stop, text))
            prompts.append(Prompt(f"p{number}", (), text=row["question"], answer=gold))
    return prompts, samples


def waits(rows: list[dict[str, Any]], steps: int) -> list[float]:
    """Seconds of each step from the end of its last completion to the scores of all."""
    parts = [RewardPart("math_answer").resolved(find_reward)]
    ahead, dice, waited = judged_ahead(parts, 5.0, "tolerate"), random.Random(0), []
    scorer = Scorer(parts, 5.0, Failures(), ahead=ahead)
    for _ in range(steps):
        prompts, samples = gsm8k_step(dice.sample(rows, 32), dice)
        ends = [1.0 if sample.stop is StopReason.LENGTH else dice.uniform(0.3, 1.0) for sample in samples]
        hear, begun = ahead.begin(prompts), time.perf_counter()
        for number in sorted(range(len(samples)), key=ends.__getitem__):
            time.sleep(max(0.0, begun + ends[number] - time.perf_counter()))
            hear(number, [samples[number]])
        ended = time.perf_counter()
        scorer(prompts, samples)
        waited.append(time.perf_counter() - ended)
    return waited


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("WHET_DATA"), help="folder of real data")
    parser.add_argument("--pairs", type=int, default=4000, help="of each kind, at most")
    parser.add_argument("--peer-pairs", type=int, default=500, help="of each kind, for math-verify")
    parser.add_argument("--steps", type=int, default=0, help="of a training, and nothing else")
    add_results_flag(parser, "math_verification")
    chosen = parser.parse_args()
    if chosen.steps:
        if not chosen.data:
            parser.error("--steps needs --data FOLDER, with gsm8k in it")
        with gzip.open(Path(chosen.data) / "gsm8k" / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
            took = waits([json.loads(line) for line in lines], chosen.steps)
        print("each step waits, ms:", *(f"{1000 * seconds:.0f}" for seconds in took))
        print(f"median {1000 * median(took):.0f} ms, mean {1000 * fmean(took):.0f} ms")
        return
    kinds = {"written here": written_pairs(chosen.pairs)}
    if chosen.data and Path(chosen.data).is_dir():
        kinds |= real_pairs(Path(chosen.data))
    values: dict[str, Any] = {"cores": num_cores(), "kinds": {}}
    ours([*kinds["written here"][:1], ("5", "five pears and $5$ more")])  # start the worker, import what is needed
    theirs([("1", r"\boxed{1}")])
    mixed: list[Pair] = []
    for name, pairs in kinds.items():
        pairs = random.Random(1).sample(pairs, min(chosen.pairs, len(pairs)))
        mixed += pairs
        few = pairs[: chosen.peer_pairs]
        with pool_of(1):
            math_answer.POOL.run([MathJob("read", (r"\frac{1}{2}",))])  # start the process
            started = time.perf_counter()
            scores = ours(few)
            mine = len(few) / (time.perf_counter() - started)
        started = time.perf_counter()
        verdicts = theirs(few)
        peer = len(few) / (time.perf_counter() - started)
        same = sum((score == 1.0) == verdict for score, verdict in zip(scores, verdicts, strict=True))
        values["kinds"][name] = {"pairs": len(few), "per_s": mine, "math_verify_per_s": peer, "same_verdict": same}
        print(
            f"{name:20} {mine:9,.0f} per s on one core, math-verify {peer:7,.0f}: {mine / peer:.1f}x; "
            f"{same} of {len(few)} verdicts the same",
            flush=True,
        )
    random.Random(2).shuffle(mixed)
    half = len(mixed) // 2
    values["one_core_per_s"] = rate(mixed[:half], 1)
    values["all_cores_per_s"] = rate(mixed[half:], num_cores())
    values["speedup"] = min(kind["per_s"] / kind["math_verify_per_s"] for kind in values["kinds"].values())
    print(
        f"all kinds mixed: {values['one_core_per_s']:,.0f} per s in one process, "
        f"{values['all_cores_per_s']:,.0f} per s on {num_cores()} cores"
    )
    if chosen.results:
        write_results(chosen.results, values, measured=("reward", "data"))


if __name__ == "__main__":
    main()
