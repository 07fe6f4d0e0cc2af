"""The package `renderers` beside our own incremental rendering, on the families that it has written by hand.

Each case is one answer of an environment behind a turn as the template writes it; right is what the template itself
writes for the whole conversation.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.data.test_turns import COURSES, TOOLS, conversed, made, written
from tests.envs.test_serve_packages import VERIFIERS, python_with
from whet.types import WhetError

pytestmark = pytest.mark.peers
BY_HAND = {  # gpt-oss too, but it downloads its vocabulary
    "qwen3": "qwen3",
    "glm4.5": "glm-4.5",
    "kimi-k2": "kimi-k2",
    "llama3.1": "llama-3",
    "llama3.2": "llama-3",
    "nemotron3-nano": "nemotron-3",
    "deepseek-r1": "deepseek-r1",
}


def cases_of(family: str) -> list[dict[str, Any]]:
    """What follows each turn of the conversations in which it follows at all: a rewritten history has no next turn."""
    cases = []
    for course, thinks, tools, system in product(COURSES, (False, True), ((), TOOLS), (False, True)):
        tokenizer, renderer = made(family, bool(tools))
        _, conversation, answers = conversed(family, course, thinks=thinks, system=system)
        for number, (count, answer) in enumerate(answers):
            prompt = written(tokenizer, conversation[: count - 1], tools)
            whole = written(tokenizer, conversation[: count + len(answer)], tools)
            if whole[: len(prompt)] != prompt:
                continue
            ends = [place + 1 for place in range(len(prompt), len(whole)) if whole[place] in renderer.end_tokens]
            said = [end for end in ends if f"turn{number}text" in tokenizer.decode(whole[len(prompt) : end])]
            if not said:
                continue
            sampled = whole[len(prompt) : said[0]]
            heard = [*conversation[: count - 1], {"role": "assistant", "content": tokenizer.decode(sampled)}]
            try:
                ours = renderer.answer(heard, answer, ended=True, last_token=sampled[-1]).tokens
            except WhetError:
                ours = None
            cases.append(
                {
                    "family": family,
                    "renderer": BY_HAND[family],
                    "what": f"{course}, turn {number}, thinks={thinks}, tools={bool(tools)}, system={system}",
                    "prompt": prompt,
                    "sampled": sampled,
                    "answer": answer,
                    "tools": tools,
                    "whole": whole,
                    "ours": None if ours is None else (*prompt, *sampled, *ours),
                }
            )
    return cases


def verdict(tokens: Any, whole: Any) -> str:
    assert not isinstance(tokens, str), tokens
    return "declined" if tokens is None else "right" if [*tokens] == [*whole] else "wrong"


def test_the_package_is_right_nowhere_that_we_are_not(tmp_path: Path) -> None:
    python = python_with(*VERIFIERS)
    cases = [case for family in BY_HAND for case in cases_of(family)]
    for family in BY_HAND:
        made(family, False)[0].save_pretrained(tmp_path / family)
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    side = Path(__file__).parent / "sides" / "renderers_side.py"
    done = subprocess.run(
        [python, side, tmp_path, tmp_path / "cases.json"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    table: dict[str, Counter[tuple[str, str]]] = {family: Counter() for family in BY_HAND}
    better = []
    for case, tokens in zip(cases, theirs, strict=True):
        pair = verdict(case["ours"], case["whole"]), verdict(tokens, case["whole"])
        table[case["family"]][pair] += 1
        if pair[0] != "right" and pair[1] == "right":
            better.append(f"{case['family']}: {case['what']}")
    assert not better
    assert not [family for family, counts in table.items() if any(ours == "wrong" for ours, _ in counts)]
    assert sum(counts["right", "right"] for counts in table.values()) > 300
    # it declines turns that can be written, and never the other way round
    assert all(counts["right", "declined"] for counts in (table["qwen3"], table["glm4.5"], table["deepseek-r1"]))
