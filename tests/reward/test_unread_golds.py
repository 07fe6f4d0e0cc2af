"""Gold answers that `math_answer` does not read in full are found with the data, before the first step."""

from __future__ import annotations

import pytest

from tests.support.for_every import for_every
from whet.data.gold import after_hashes
from whet.data.sections import DataSection
from whet.reward.combine import RewardPart
from whet.reward.find import find_reward
from whet.training.assembly.rewards import scorable_prompts
from whet.types import Prompt, WhetError

PARTS = [RewardPart("math_answer").resolved(find_reward)]
GOLDS = ["[-2,1)", "10 negative", "2t", "Saturday", r"\{x \mid x > 3\}", "5 dozen"]


def prompts() -> list[Prompt]:
    return [Prompt(f"rows.jsonl:{line}", (), text="q", answer=gold) for line, gold in enumerate(GOLDS, start=1)]


def test_the_first_one_is_named_with_what_was_not_read() -> None:
    with pytest.raises(WhetError) as error:
        scorable_prompts(prompts(), PARTS, DataSection(source="rows.jsonl"))
    assert "prompt 'rows.jsonl:2': reward 'math_answer': the gold answer '10 negative' was not read in full" in str(
        error.value
    )
    assert "the word 'negative'" in str(error.value) and "leave out the 2 of 6 rows" in str(error.value)
    assert "data.unusable=drop" in str(error.value) and "\n" not in str(error.value)


def test_they_are_left_out_on_demand() -> None:
    kept = scorable_prompts(prompts(), PARTS, DataSection(source="rows.jsonl", unusable="drop"))
    assert [prompt.answer for prompt in kept] == ["[-2,1)", "2t", r"\{x \mid x > 3\}", "5 dozen"]


@for_every(
    [
        ("#### 42", ["42"]),
        ("####\n\n7", ["7"]),
        ("#### 5\n#### 7\nthanks", ["5", "7"]),
        ("#### 42 apples\n\nI hope this helps", ["42 apples"]),
        ("#### Paris", ["Paris"]),
        ("#### Paris\n#### London", ["Paris", "London"]),
        ("#### Conclusion\nThe total is 42.", []),
        ("#### Conclusion\n\n42", ["42"]),
        ("#### Final Answer\n\n$\\frac{1}{2}$\n\nthanks", ["\\frac{1}{2}"]),
        ("#### **Final answer:** 42\nbye", ["42"]),
        ("#### Step 3: add\n3 + 4 = 7", []),
        ("#### 3. Compute\nfoo", []),
        ("#### Area for y = 3\ntext", []),
        ("##### 42", []),
        ("### 42", []),
        ("####", []),
        ("#### answer", ["answer"]),
    ]
)
def test_hashes_mark_answers_and_head_sections(text: str, marks: list[str]) -> None:
    assert after_hashes(text) == marks
