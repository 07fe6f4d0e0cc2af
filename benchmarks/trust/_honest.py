"""Real replies that nobody wrote to fool anything, by source and model: what a defence must leave alone.

They are read from the folder that the environment variable WHET_DATA names (gsm8k, math, process, preference, sft,
safety, bfcl, verifier_vectors, as gzipped JSON lines); a file that is not there gives nothing.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.trust.defence_rates import Case
from whet.reward.answer import boxed
from whet.types import Prompt

LEAST_REPLIES = 20  # of a source or model that gets a rate of its own


def data_folder() -> Path | None:
    """The folder of real data, where there is one."""
    given = os.environ.get("WHET_DATA", "")
    return Path(given) if given and Path(given).is_dir() else None


def rows(name: str) -> Iterator[dict[str, Any]]:
    folder = data_folder()
    path = folder / f"{name}.jsonl.gz" if folder else None
    if path is not None and path.is_file():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)


def honest(source: str, question: str, completion: str, answer: str | None = None) -> Case:
    return Case(Prompt(source, (), text=question, answer=answer), completion, False, source)


def solutions() -> Iterator[Case]:
    """Mathematics, worked out by people and by models; of models, what annotators found right throughout."""
    for row in rows("gsm8k/train"):
        worked, _, answer = row["answer"].rpartition("####")
        worked, answer = re.sub("<<.*?>>", "", worked).strip(), answer.strip()
        yield honest("gsm8k", row["question"], row["answer"], answer)
        thought = f"<think>{worked}</think>\nThe answer is \\boxed{{{answer}}}."
        yield honest("gsm8k, thought", row["question"], thought, answer)
    for source in ("gsm8k", "math", "olympiadbench"):
        for row in rows(f"process/processbench_{source}"):
            if row["label"] == -1 and row["final_answer_correct"]:
                yield honest(f"{row['generator']}", row["problem"], "\n\n".join(row["steps"]))
    for row in rows("process/prmbench_subset400"):
        yield honest("prm800k", row["original_question"], "\n".join(row["original_process"]))
    for row in rows("math/math_train"):
        answers = [answer for answer in boxed(row["solution"]) if answer]
        yield honest("math", row["problem"], row["solution"], answers[-1] if answers else None)
    for row in rows("verifier_vectors/tora70b_gsm8k_preds"):
        yield honest("tora", row["question"], row["code"])


def instructions() -> Iterator[Case]:
    for source in ("alpaca_en_demo", "rasbt_instruction_data"):
        for row in rows(f"sft/{source}"):
            yield honest(source, f"{row['instruction']}\n{row['input']}", row["output"])
    for row in rows("sft/dolly_qa_sample"):
        yield honest("dolly", row["prompt"], row["answer"])


def conversations() -> Iterator[Case]:
    """Replies that people preferred, and replies of five models that people labelled."""
    for row in rows("preference/human_pairs_unified"):
        messages = row.get("messages")
        question = row["prompt"] if messages is None else "\n".join(str(each["content"]) for each in messages)
        yield honest(row["source"], question, row["chosen"])
    for row in rows("safety/xstest_v2_completions_labelled"):
        yield honest(f"xstest {row['model']}", row["prompt"], row["completion"])
    for row in rows("preference/dpo_en_demo"):
        yield honest("dpo_en", row["conversations"][-1]["value"], row["chosen"]["value"])
    for row in rows("bfcl/glaive_toolcall_en_demo"):
        turns = row["conversations"]
        written = [
            f"<tool_call>{turn['value']}</tool_call>" if turn["from"] == "function_call" else turn["value"]
            for turn in turns[1:]
            if turn["from"] in ("gpt", "function_call")
        ]
        yield honest("tool calls", turns[0]["value"], "\n".join(written))


def honest_replies() -> list[Case]:
    """All of them; nothing where the data folder is absent."""
    found = [*solutions(), *instructions(), *conversations()]
    return [case for case in found if isinstance(case.completion, str) and case.completion.strip()]
