"""The words that models are asked with: published numbers depend on every byte of them."""

import hashlib
import json
from dataclasses import astuple

from whet.data.tasks import TASKS
from whet.data.tasks.contrast import reviewed_completions
from whet.tools.pipelines.library.constitution import (
    GENERAL,
    NOTHING_WRONG,
    TASK_PRINCIPLES,
    WHICH,
    critique_request,
    preference_request,
    revision_request,
)
from whet.tools.pipelines.library.judging import short_question
from whet.tools.pipelines.library.self_judging import judge_example, rubric_question, short_score_question
from whet.types import Prompt

PROMPT = Prompt("q", ({"role": "user", "content": "1+1?"},))


def digest(value) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()[:16]


def test_what_a_task_teaches_a_small_model():
    (principle,) = TASK_PRINCIPLES
    assert astuple(principle) == ("right steps", "Check each step.", "Mend it.", "?")
    assert preference_request(PROMPT, "2", "3", principle)[-1]["content"] == "1+1?\nA:2\nB:3\n?"
    assert [message["content"] for message in revision_request(PROMPT, "3", principle, "wrong")] == [
        "1+1?", "3", "Check each step.", "wrong", "Mend it.",
    ]  # fmt: skip
    assert short_question(PROMPT, "2", "3")[-1]["content"] == "1+1?\nA:2\nB:3\n?"
    assert short_score_question(PROMPT, "2")[-1]["content"] == "1+1?\n2\nScore?"
    assert judge_example(PROMPT, "2", 0.5, "so.")["completion"] == "so. Score: 3"
    assert NOTHING_WRONG == "all right"
    rows = reviewed_completions(TASKS["arithmetic"], "train", 2, 0, 3)
    assert digest([[each.completion, each.fault, each.reason, each.right] for each in rows]) == REVIEWED


def test_what_a_large_model_is_asked():
    assert digest([astuple(each) for each in GENERAL]) == PRINCIPLES
    assert digest(rubric_question(PROMPT, "2")) == RUBRIC
    assert digest(preference_request(PROMPT, "2", "3", GENERAL[0])) == PREFERENCE
    assert critique_request(PROMPT, "3", GENERAL[0])[-1]["content"] == GENERAL[0].critique
    assert WHICH["content"] == "So which one? Answer with A or B."


REVIEWED, PRINCIPLES, RUBRIC, PREFERENCE = (
    "1c6b478fbec86f90",
    "d6c369323f1f0104",
    "7860854acad0ea50",
    "0ffb2f5b23819772",
)
