"""Functions of every accepted form become rewards; everything else is refused in one line."""

from __future__ import annotations

import fractions
import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy
import pytest
import torch

from tests.support.for_every import for_every
from whet.protocols import Reward
from whet.reward.call import Batched, RewardCall, as_reward, require_columns
from whet.reward.failure import RewardFailure
from whet.reward.find import BUILTIN, find_reward
from whet.types import Prompt, Sample, StopReason, WhetError


def chat(answer: Any = "7", **meta: Any) -> Prompt:
    return Prompt("p1", ({"role": "user", "content": "3+4?"},), answer=answer, meta=meta)


def plain(answer: Any = "7", **meta: Any) -> Prompt:
    return Prompt("p2", (), text="3+4=", answer=answer, meta=meta)


def sample(completion: str) -> Sample:
    tokens = torch.tensor([5, 6, 7, 8])
    action = torch.tensor([False, False, True, True])
    return Sample(tokens, action, torch.zeros(4), (0, 0), StopReason.END, completion)


def one(function: Any, prompt: Prompt | None = None, completion: str = "seven", name: str | None = None) -> Any:
    return as_reward(function, name)([prompt or chat()], [sample(completion)])[0]


def test_prompt_text_and_completion() -> None:
    def length(prompt, completion):  # type: ignore[no-untyped-def]
        assert (prompt, completion) == ("3+4?", "seven")
        return len(completion)

    reward = as_reward(length)
    assert isinstance(reward, Reward) and reward.name == "length"
    assert reward([chat()] * 2, [sample("seven")] * 2) == [5.0, 5.0]
    assert as_reward(length, "size").name == "size"


def test_an_annotated_parameter_receives_the_prompt_object() -> None:
    def by_class(row: Prompt, completion: str) -> float:
        return float(row.id == "p1")

    namespace: dict[str, Any] = {}
    exec("def by_text(prompt: 'Prompt', completion: str): return float(prompt.id == 'p1')", namespace)
    assert one(by_class) == 1.0
    assert one(namespace["by_text"]) == 1.0


def test_columns_by_name_with_defaults_and_the_rest() -> None:
    def f(completion: str, answer: str, level: int, scale: float = 2.0, **rest: Any) -> float:
        assert rest == {"prompt": "3+4?", "subject": "sums"}
        return level * scale + float(answer)

    assert one(f, chat(level=3, subject="sums")) == 13.0
    assert one(f, chat(level=3, subject="sums", scale=10.0)) == 37.0


def test_positional_only_partial_method_and_callable_object() -> None:
    def f(prompt, completion, /, answer="no"):  # type: ignore[no-untyped-def]
        return float(prompt == "3+4?" and completion == "seven" and answer == "7")

    class Judge:
        def __call__(self, completion: str) -> float:
            return 0.5

        def method(self, completion: str) -> float:
            return 0.25

    def weighted(completion: str, weight: float) -> float:
        return weight

    assert one(f) == 1.0
    assert one(Judge()) == 0.5 and as_reward(Judge()).name == "Judge"
    assert one(Judge().method) == 0.25
    assert one(functools.partial(weighted, weight=3.0)) == 3.0
    assert as_reward(functools.partial(weighted, weight=3.0)).name == "weighted"


def test_a_reward_is_returned_as_it_is() -> None:
    class Own:
        name = "own"

        def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
            return [1.0 for _ in samples]

    own = Own()
    assert as_reward(own) is own and as_reward(own, "own") is own
    with pytest.raises(WhetError, match="'own' cannot be called 'other'"):
        as_reward(own, "other")
    with pytest.raises(WhetError, match=r"Own is a class.*Own\(\)"):
        as_reward(Own)


def test_batched_form_in_trl_shapes() -> None:
    seen: dict[str, Any] = {}

    def batched(completions, prompts, **columns):  # type: ignore[no-untyped-def]
        seen.update(columns, completions=completions, prompts=prompts)
        return [1, None]

    scores = as_reward(batched)([chat(level=3), plain(answer="8")], [sample("a"), sample("b")])
    assert scores == [1.0, None]
    assert seen["prompts"] == [[{"role": "user", "content": "3+4?"}], "3+4="]
    assert seen["completions"] == [[{"role": "assistant", "content": "a"}], "b"]
    assert seen["completion_ids"] == [[7, 8], [7, 8]]
    assert isinstance(as_reward(lambda completion_ids, **kwargs: [1.0 for _ in completion_ids], "lengths"), Batched)
    assert seen["answer"] == ["7", "8"] and seen["level"] == [3, None]


def test_batched_form_receives_only_what_it_takes() -> None:
    def batched(completions: list[str], answer: list[str], extra: str = "none") -> list[float]:
        return [
            float(completion == gold) + (extra == "none") for completion, gold in zip(completions, answer, strict=True)
        ]

    assert as_reward(batched)([plain(level=3)] * 2, [sample("7"), sample("8")]) == [2.0, 1.0]
    with pytest.raises(WhetError, match=r"'batched' asks for the column 'answer'.*'p2', completion '8'"):
        as_reward(batched)([plain(), plain(answer=None)], [sample("7"), sample("8")])


def test_compute_score_of_verl() -> None:
    def compute_score(data_source, solution_str, ground_truth, extra_info=None):  # type: ignore[no-untyped-def]
        assert (data_source, extra_info["index"], extra_info["num_turns"]) == ("openai/gsm8k", 3, 1)
        return {"score": float(solution_str == ground_truth), "pred": solution_str}

    prompt = chat(data_source="openai/gsm8k", extra_info={"index": 3})
    reward = as_reward(compute_score)
    call = RewardCall()
    assert reward.called(call, [prompt] * 2, [sample("7"), sample("8")]) == [1.0, 0.0]
    assert call.columns == {"pred": ["7", "8"]}
    assert one(lambda solution_str, ground_truth: 2.0, name="own") == 2.0
    require_columns(reward, chat())  # it asks for no column that the row must have


def test_reward_func_of_openrlhf() -> None:
    def reward_func(queries, prompts, labels, **kwargs):  # type: ignore[no-untyped-def]
        assert queries == ["3+4?7", "3+4=8"] and prompts == ["3+4?", "3+4="]
        right = torch.tensor([float(query.endswith(gold)) for query, gold in zip(queries, labels, strict=True)])
        return {"rewards": right, "scores": right, "extra_logs": {"right": right}}

    reward, call = as_reward(reward_func), RewardCall()
    assert reward.called(call, [chat(), plain()], [sample("7"), sample("8")]) == [1.0, 0.0]
    assert call.columns == {"right": [1.0, 0.0]}


@pytest.mark.parametrize(
    "value",
    [numpy.float32(0.5), torch.tensor(0.5), fractions.Fraction(1, 2), 0.5],
    ids=["numpy", "torch", "fraction", "float"],
)
def test_numbers_of_other_libraries(value: Any) -> None:
    score = one(lambda completion: value, name="half")
    assert score == 0.5 and type(score) is float


def test_true_is_one_and_none_is_unscorable() -> None:
    assert one(lambda completion: True, name="yes") == 1.0
    assert one(lambda completion: numpy.True_, name="yes") == 1.0
    assert one(lambda completion: None, name="unknown") is None
    assert as_reward(lambda completions: numpy.array([1, 2]), "many")([chat()] * 2, [sample("")] * 2) == [1, 2]


@for_every(
    [("1.0", r"'1.0' \(str\)"), (float("nan"), "nan"), (float("inf"), "inf"), (10**5000, "inf"), ([1], r"\[1\]")]
)
def test_wrong_returns_name_reward_and_sample(value: Any, shown: str) -> None:
    with pytest.raises(RewardFailure, match=f"reward 'odd' returned {shown}.*prompt 'p1'.*finite") as caught:
        one(lambda completion: value, completion="x" * 200 + "END\n", name="odd")
    assert "x" * 200 in str(caught.value) and "END" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_lists() -> None:
    two = ([chat()] * 2, [sample("a"), sample("b")])
    with pytest.raises(WhetError, match=r"returned 1 scores for 2 samples.*'p1', completion 'a'"):
        as_reward(lambda completions: [1.0], "short")(*two)
    with pytest.raises(WhetError, match=r"returned a float for one call on 2 samples.*one number per sample"):
        as_reward(lambda completions: 1.0, "single")(*two)
    with pytest.raises(RewardFailure, match=r"returned nan.*completion 'b'"):
        as_reward(lambda completions: [1.0, float("nan")], "half")(*two)


def test_a_missing_column_is_named_with_what_exists() -> None:
    def f(completion: str, target: int) -> float:
        return 1.0

    with pytest.raises(WhetError, match=r"'f' asks for the column 'target'.*'p1', completion 'seven'.*numbers"):
        one(f, chat(numbers=[1]))
    with pytest.raises(WhetError, match="column 'answer'"):
        one(lambda completion, answer: 1.0, chat(answer=None), name="g")


def test_functions_that_cannot_be_rewards() -> None:
    with pytest.raises(WhetError, match=r"'f' takes \(p, r\) and so never sees the completion"):
        as_reward(lambda p, r: 1.0, "f")
    with pytest.raises(WhetError, match="a lambda has no name"):
        as_reward(lambda prompt, completion: 1.0)
    with pytest.raises(WhetError, match="3 is not a reward"):
        as_reward(3)  # type: ignore[arg-type]


# these start workers, ask servers, load models or need an extra: their own tests find them
ELSEWHERE = ("code_tests", "gym_answer", "judge", "learned", "learned_steps")


def test_find_built_in() -> None:
    assert {"exact_answer", "think_format", "countdown", "math_answer", "working_steps"} < set(BUILTIN)
    needed = {"soft_overlong": 8, "length_cost": 8, "cosine_length": 8}
    for name in BUILTIN:
        if name not in ELSEWHERE:
            settings = {"max_tokens": needed[name]} if name in needed else {}
            assert find_reward(name, settings).name == name
    assert find_reward("exact_answer")([chat()], [sample("#### 7")]) == [1.0]
    with pytest.raises(WhetError, match=r"'exact_anser' \(did you mean 'exact_answer'\?\).*countdown"):
        find_reward("exact_anser")
    with pytest.raises(KeyError):
        BUILTIN["exact_anser"]


def test_settings_are_bound_and_columns_do_not_replace_them() -> None:
    near = find_reward("math_answer", {"tolerance": 0.01})
    rows = [chat("78.54"), chat("78.54", tolerance=0.5)]
    assert near(rows, [sample("#### 78.5"), sample("#### 70")]) == [1.0, 0.0]
    assert find_reward("math_answer")(rows, [sample("#### 78.5")] * 2) == [0.0, 0.0]
    assert near.name == "math_answer" and near.prepare is not None
    assert find_reward("math_answer", {"tolerance": "0.01"})(rows[:1], [sample("#### 78.5")]) == [1.0]


@for_every(
    [
        ("math_answer", {"tolerence": 1}, r"no setting 'tolerence' \(did you mean 'tolerance'\?\); it has: tolerance"),
        ("math_answer", {"tolerance": "much"}, r"'tolerance' of reward 'math_answer' is 'much' \(str\); give a number"),
        ("math_answer", {"tolerance": True}, "give a number"),
        ("math_answer", {"tolerance": float("nan")}, "give a number"),
        ("math_answer", {"judged": "first"}, "give one of 'all', 'last'"),
        ("countdown", {"x": 1}, "no setting 'x'; it has none; drop it"),
        ("soft_overlong", {}, r"needs the setting 'max_tokens' \(a whole number\)"),
        ("cosine_length", {}, r"needs the setting 'max_tokens' \(a whole number\)"),
        ("cosine_length", {"max_tokens": 5, "rigth": 1}, r"'rigth' \(did you mean 'right'\?\)"),
        ("cosine_length", {"max_tokens": 5, "right": "x"}, r"give a list \(a number\)"),
        ("math_answer", {"completion": "x"}, "no setting 'completion'"),
    ]
)
def test_settings_that_do_not_fit(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(WhetError, match=message):
        find_reward(name, settings)


def test_settings_of_functions_makers_and_classes_in_a_file(tmp_path: Any) -> None:
    file = tmp_path / "with_settings.py"
    file.write_text(
        "from dataclasses import dataclass\n\n"
        "def far(completion, goal, *, most: float = 1.0, words: tuple[str, ...] = ()):\n"
        "    return min(most, goal) + len(words)\n\n"
        "def made(*, size: int = 1):\n    return Own(size)\n\n"
        "def unmade(*, size: int = 1):\n    return size\n\n"
        "@dataclass\nclass Own:\n    size: int = 0\n    name = 'own'\n\n"
        "    def __call__(self, prompts, samples):\n        return [float(self.size) for _ in samples]\n\n"
        "instance = Own(9)\n"
    )
    rows, samples = [chat(goal=5.0, most=100.0)], [sample("x")]
    assert find_reward(f"{file}:far")(rows, samples) == [1.0]
    assert find_reward(f"{file}:far", {"most": 4, "words": ["a", "b"]})(rows, samples) == [6.0]
    assert find_reward(f"{file}:made", {"size": 3})(rows, samples) == [3.0]
    assert find_reward(f"{file}:Own", {"size": 4})(rows, samples) == [4.0]
    assert find_reward(f"{file}:instance")(rows, samples) == [9.0]
    with pytest.raises(WhetError, match=r"'Own' has no setting 'sise' .*'size'"):
        find_reward(f"{file}:Own", {"sise": 1})
    with pytest.raises(WhetError, match="'unmade' takes settings only and so must return a reward, not 1"):
        find_reward(f"{file}:unmade")
    with pytest.raises(WhetError, match="has no setting 'size'; it has none"):
        find_reward(f"{file}:instance", {"size": 1})


def test_token_count_and_ending_by_name() -> None:
    def spent(num_tokens: int, finished: bool) -> float:
        return num_tokens + 10.0 * finished

    def batched(completions: Any, num_tokens: list[int], finished: list[bool]) -> list[float]:
        return [count + 10.0 * done for count, done in zip(num_tokens, finished, strict=True)]

    cut = Sample(
        torch.tensor([1, 2, 3]), torch.tensor([False, True, True]), torch.zeros(3), (0, 0), StopReason.LENGTH, "x"
    )
    for function in (spent, batched):
        assert as_reward(function)([chat(num_tokens=99)] * 2, [sample("x"), cut]) == [12.0, 2.0]


def test_a_reward_says_whether_it_is_deterministic() -> None:
    def dice(completion: str, *, sides: int = 6) -> float:
        return 0.0

    dice.deterministic = False  # type: ignore[attr-defined]
    assert not as_reward(dice).deterministic and not as_reward(functools.partial(dice, sides=4)).deterministic
    assert find_reward("math_answer").deterministic


def test_find_in_a_file(tmp_path: Any) -> None:
    (tmp_path / "neighbour_of_mine.py").write_text("bonus = 2.0\n")
    file = tmp_path / "mine.py"
    file.write_text(
        "from json import dumps\nfrom neighbour_of_mine import bonus\n\n"
        "def shorter(prompt, completion):\n    return bonus - len(completion)\n"
    )
    reward = find_reward(f"{file}:shorter")
    assert reward.name == "shorter" and reward([chat()], [sample("abc")]) == [-1.0]
    with pytest.raises(WhetError, match=r"has no 'shortr' \(did you mean 'shorter'\?\); it has: shorter$"):
        find_reward(f"{file}:shortr")
    with pytest.raises(WhetError, match="names a file but no function"):
        find_reward(str(file))
    with pytest.raises(WhetError, match=r"no reward file .*min.py \(did you mean 'mine.py'\?\)"):
        find_reward(f"{tmp_path / 'min.py'}:shorter")


def test_find_in_a_module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "rewards_here.py").write_text("def two(completion):\n    return 2\n")
    assert find_reward("rewards_here:two")([chat()], [sample("")]) == [2.0]
    with pytest.raises(WhetError, match="no module 'no_such_module_here'"):
        find_reward("no_such_module_here:two")


def test_a_file_that_fails_when_imported_is_named_with_its_line(tmp_path: Any) -> None:
    file = tmp_path / "broken.py"
    file.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(WhetError, match=r"broken\.py:2: ZeroDivisionError: division by zero"):
        find_reward(f"{file}:f")
    file.write_text("x = 1\ndef f(:\n")
    with pytest.raises(WhetError, match=r"broken\.py:2: SyntaxError"):
        find_reward(f"{file}:f")


def test_the_name_of_0_1_is_refused_with_the_new_one() -> None:
    def old(prompt: str, reply: str) -> float:
        return 1.0

    with pytest.raises(WhetError, match=r"^reward .old. takes `reply`, which is called `completion` since 0\.2"):
        as_reward(old)


def trl_format_reward(completions, **kwargs):  # type: ignore[no-untyped-def]
    """As TRL's documentation writes it, conversational completions."""
    import re

    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(pattern, content) else 0.0 for content in contents]


def trl_accuracy_reward(prompts, completions, ground_truth, completion_ids, trainer_state=None, **kwargs):  # type: ignore[no-untyped-def]
    """With TRL's optional arguments and a column of the data set; None where it does not apply."""
    assert len(prompts) == len(completions) == len(completion_ids) and trainer_state.global_step == 0
    assert prompts[0][-1] == {"role": "user", "content": "What is 2+2?"}
    return [
        None if truth is None else float(truth in completion[-1]["content"])
        for completion, truth in zip(completions, ground_truth, strict=True)
    ]


def test_rewards_written_for_trl_run_unchanged() -> None:
    messages = ({"role": "user", "content": "What is 2+2?"},)
    prompts = [Prompt("a", messages, meta={"ground_truth": "4"}), Prompt("b", messages, meta={"ground_truth": None})]
    samples = [sample("<think>2+2</think><answer>4</answer>"), sample("4")]
    assert as_reward(trl_format_reward)(prompts, samples) == [1.0, 0.0]
    assert as_reward(trl_accuracy_reward)(prompts, samples) == [1.0, None]
