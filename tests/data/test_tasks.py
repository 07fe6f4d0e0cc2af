"""The built-in tasks: every gold answer scores 1, an empty one 0, and no question is in both splits."""

from itertools import islice

import pytest

from tests.support.for_every import for_every
from whet.data.tasks import TASKS, demonstrations, gold_completion, items, prompts
from whet.data.tasks.item import as_prompt, split_of
from whet.reward.find import BUILTIN
from whet.types import WhetError

EVERY = [(task, difficulty) for task in TASKS.values() for difficulty in task.difficulties]
NAMES = [f"{task.name}-{difficulty}" for task, difficulty in EVERY]


@for_every(EVERY)
def test_gold_scores_one_and_anything_else_nothing(task, difficulty):
    judge = BUILTIN[task.reward]
    for number, item in enumerate(islice(items(task, "train", 5, difficulty), 200)):
        prompt = as_prompt(task, "train", number, item)
        assert judge(prompt, gold_completion(item)) == 1.0
        assert judge(prompt, gold_completion(item, worked=False)) == 1.0
        for wrong in (
            "",
            "<think>" + item.working,
            "<answer></answer>",
            gold_completion(item).replace("<answer>", "<answer>9"),
        ):
            assert judge(prompt, wrong) == 0.0, (item, wrong)


@for_every(EVERY)
def test_splits_are_disjoint_whatever_the_seeds(task, difficulty):
    train = {item.question for item in islice(items(task, "train", 1, difficulty), 400)}
    held_out = {item.question for item in islice(items(task, "eval", 2, difficulty), 100)}
    assert not train & held_out
    assert {split_of(question) for question in train} == {"train"}
    assert {split_of(question) for question in held_out} == {"eval"}


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_the_stream_is_seeded(task):
    first, again, other = ([p.messages for p in prompts(task, "train", 30, seed, 3)] for seed in (1, 1, 2))
    assert first == again != other
    assert len({str(messages) for messages in first}) == 30


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_difficulty_makes_longer_workings(task):
    def mean_length(difficulty):
        workings = [item.working for item in islice(items(task, "train", 0, difficulty), 100)]
        return sum(map(len, workings)) / len(workings)

    lengths = [mean_length(difficulty) for difficulty in task.difficulties]
    assert lengths[-1] > 1.5 * lengths[0]


def test_the_share_of_worked_demonstrations():
    rows = demonstrations(TASKS["arithmetic"], 2000, 0, 3, share_worked=0.35)
    share = sum("<think>" in row.completion for row in rows) / len(rows)
    assert 0.31 < share < 0.39


def test_arithmetic_is_what_it_says():
    for item in islice(items(TASKS["arithmetic"], "train", 0, 4), 50):
        total = None
        for part in item.question.split(": ")[1].replace("+", " +").replace("-", " -").replace("*", " *").split():
            total = (
                int(part)
                if total is None
                else {"+": total + int(part[1:]), "-": total - int(part[1:]), "*": total * int(part[1:])}[part[0]] % 10
            )
        assert str(total) == item.answer


def test_mistakes_name_what_exists():
    with pytest.raises(WhetError, match="train, eval"):
        next(items(TASKS["lists"], "test", 0, 1))
    with pytest.raises(WhetError, match="difficulty of lists is 9; give 1 to 5"):
        next(items(TASKS["lists"], "train", 0, 9))
    few = prompts(TASKS["countdown"], "eval", 10_000, 0, 1)
    assert 5 < len(few) < 200  # the task has no more; it does not hang


def test_there_are_evens_to_pick():
    questions = [item for item in islice(items(TASKS["lists"], "train", 0, 1), 300) if item.question[:5] == "Evens"]
    assert len(questions) > 20
    assert all(int(digit) % 2 == 0 for item in questions for digit in item.final.split())
