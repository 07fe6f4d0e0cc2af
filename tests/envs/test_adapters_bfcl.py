"""BFCL's multi-turn tasks: the gold calls are worth 1, and every verdict is that of the leaderboard's own checker."""

from __future__ import annotations

import decimal
import json
import random
import time

import pytest

from tests.support.packages import needs
from tests.support.scripted import tool_tokenizer
from whet.envs.adapters.bfcl import CATEGORIES, STEPS, FunctionCalling, tasks
from whet.envs.tools.formats import Calling
from whet.types import Completion, Prompt, WhetError

pytestmark = needs("bfcl_eval")


def prompt(task=None, seed=None):
    meta = {key: value for key, value in (("task", task), ("seed", seed)) if value is not None}
    return Prompt("row", ({"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}), meta=meta)


def written(calls):
    return "".join(f"<tool_call>{call}</tool_call>" for call in calls)


def played(category, name, turns, **settings):
    """The last answer to a list of calls per request."""
    env = FunctionCalling(category=category, **settings)
    env.start(prompt(name))
    for calls in turns:
        for text in ([written(calls)] if calls else []) + ["Done."]:
            answer = env.step(Completion(text))
            if answer.done:
                return answer
    raise AssertionError("the task did not end")


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_gold_calls_solve_every_task(category):
    known = tasks(category)
    assert len(known) == 200
    rewards = {name: played(category, name, task["ground_truth"]).reward for name, task in known.items()}
    assert [name for name, reward in rewards.items() if reward != 1.0] == []


def perturbed(turns, kind, stream):
    """The gold calls with one mistake: a call left out, a request not answered, another argument, an order changed."""
    turns = [list(calls) for calls in turns]
    filled = [place for place, calls in enumerate(turns) if calls]
    place = stream.choice(filled)
    if kind == "call left out":
        turns[place].pop(stream.randrange(len(turns[place])))
    elif kind == "request not answered":
        turns[place] = []
    elif kind == "other argument":
        number = stream.randrange(len(turns[place]))
        turns[place][number] = turns[place][number].replace("'", "'x", 1).replace("True", "False", 1)
    elif kind == "reversed":
        turns[place].reverse()
    else:
        turns[place].insert(0, turns[place][0])
    return turns


@pytest.mark.parametrize("category", CATEGORIES)
def test_verdicts_are_the_checkers_own(category):
    """Of calls with mistakes, some matter and some do not; the leaderboard's checker says which."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    stream = random.Random(category)
    kinds = ("call left out", "request not answered", "other argument", "reversed", "twice")
    verdicts = []
    for number, (name, task) in enumerate([*tasks(category).items()][::2]):
        kind = kinds[number % len(kinds)]
        turns = perturbed(task["ground_truth"], kind, stream)
        decoded = [[calls] if calls else [] for calls in turns]
        gold, entry = task["ground_truth"], {key: task[key] for key in ("id", "initial_config", "involved_classes")}
        theirs = multi_turn_checker(decoded, gold, entry, category, f"tried_{category}_{number}")["valid"]
        ours = played(category, name, turns).reward
        assert ours == float(theirs), (name, kind, turns, gold)
        verdicts.append(theirs)
    assert 10 < sum(verdicts) < 70  # the mistakes are neither all harmless nor all fatal


def test_a_task_is_shown_with_its_tools():
    opening = FunctionCalling().start(prompt("multi_turn_base_0"))
    assert [message["role"] for message in opening.messages] == ["system", "user"]
    assert opening.messages[1]["content"].startswith("Move 'final_report.pdf'")
    schemas = {schema["function"]["name"]: schema["function"] for schema in opening.tools}
    assert {"mv", "post_tweet"} <= schemas.keys()
    assert schemas["mv"]["parameters"]["type"] == "object"
    assert '"dict"' not in json.dumps([schema["parameters"] for schema in schemas.values()])


def test_calls_are_answered_by_the_simulators_in_every_syntax():
    env = FunctionCalling()
    env.start(prompt("multi_turn_base_0"))
    as_json = '<tool_call>{"name": "cd", "arguments": {"folder": "document"}}</tool_call>'
    answer = env.step(Completion(f"{as_json}<tool_call>mkdir('temp')</tool_call>"))
    assert [message["role"] for message in answer.messages] == ["tool", "tool"]
    assert [message["name"] for message in answer.messages] == ["cd", "mkdir"]
    assert answer.messages[0]["content"] == '{"current_working_directory": "document"}'
    assert answer.counts == {"tool_calls": 2} and not answer.done and answer.reward == 0.0


def test_a_call_that_cannot_be_run_is_answered_and_counted():
    env = FunctionCalling()
    env.start(prompt("multi_turn_base_0"))
    text = written(
        ["open('/etc/passwd')", "cd(folder='nowhere')", "cd(wrong=1)", "cd(", "__init__()", "_load_scenario({})"]
    )
    answer = env.step(Completion(text))
    contents = [message["content"] for message in answer.messages]
    assert contents[0] == "Error during execution: no function is called 'open'"
    assert "No such file or directory" in contents[1]
    assert contents[2].startswith("Error during execution: ") and "wrong" in contents[2]
    assert contents[3] == "Error during execution: the call cannot be read"
    assert answer.counts == {"tool_calls": 6, "unknown_tools": 3, "malformed_calls": 1}


def test_an_empty_answer_is_worth_nothing_in_every_task():
    for category in CATEGORIES:
        for name, task in tasks(category).items():
            answer = played(category, name, [[] for _ in task["ground_truth"]])
            assert answer.reward == 0.0, name


def test_a_model_without_tools_in_its_template_is_told_of_them_in_words():
    tokenizer = tool_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    env = FunctionCalling(calling=Calling(tokenizer=tokenizer))
    opening = env.start(prompt("multi_turn_base_0"))
    assert opening.tools == () and "mkdir" in opening.messages[0]["content"] and env.stops == ("</tool_call>",)
    (answer,) = env.step(Completion("<tool_call>cd(folder='document')</tool_call>")).messages
    assert "current_working_directory" in answer["content"]


def test_a_request_has_so_many_turns():
    env = FunctionCalling()
    env.start(prompt("multi_turn_base_0"))
    answers = [env.step(Completion(written(["ls()"]))) for _ in range(STEPS)]
    assert [answer.done for answer in answers] == [False] * (STEPS - 1) + [True]
    assert answers[-1].reward == 0.0 and "not done after 20 turns" in answers[-1].errors[0]


def test_late_tools_are_shown_when_they_come():
    task = tasks("miss_func")["multi_turn_miss_func_0"]
    env = FunctionCalling(category="miss_func")
    opening = env.start(prompt(task["id"]))
    assert "sort" not in [schema["function"]["name"] for schema in opening.tools]
    for calls in task["ground_truth"][:3]:
        if calls:
            env.step(Completion(written(calls)))
        answer = env.step(Completion("Done."))
    assert '"name": "sort"' in answer.messages[0]["content"]
    assert answer.messages[0]["content"].endswith("What about now?")


def test_part_of_a_task_earns_its_share():
    gold = tasks("base")["multi_turn_base_0"]["ground_truth"]
    answer = played("base", "multi_turn_base_0", [*gold[:3], []], partial=True)
    assert answer.reward == 0.75 and answer.metrics == {"requests_met": 0.75}
    assert played("base", "multi_turn_base_0", [*gold[:3], []]).reward == 0.0


def test_episodes_share_nothing():
    first, second = FunctionCalling(), FunctionCalling()
    first.start(prompt("multi_turn_base_0"))
    second.start(prompt("multi_turn_base_0"))
    first.step(Completion(written(["mkdir('only_here')"])))
    assert "only_here" not in second.step(Completion(written(["ls()"]))).messages[0]["content"]


def test_arithmetic_is_bounded_and_leaves_the_process_alone():
    import mpmath

    name = next(name for name, task in tasks("base").items() if "MathAPI" in task["involved_classes"])
    env = FunctionCalling()
    env.start(prompt(name))
    before, began = (mpmath.mp.prec, decimal.getcontext().prec), time.monotonic()
    text = written(
        [
            "power(base=10.0, exponent=10000000000)",
            "square_root(number=2, precision=10000000)",
            "power(base=2, exponent=3)",
        ]
    )
    contents = [message["content"] for message in env.step(Completion(text)).messages]
    assert "exponent=10000000000 is too large" in contents[0] and "precision=10000000 is too large" in contents[1]
    assert contents[2] == '{"result": 8}'
    env.step(
        Completion(written(["logarithm(value=10.0, base=2.0, precision=50)", "square_root(number=2, precision=50)"]))
    )
    assert (mpmath.mp.prec, decimal.getcontext().prec) == before
    assert time.monotonic() - began < 10


def test_a_seed_chooses_a_task():
    chosen = {FunctionCalling().start(prompt(seed=seed)).messages[1]["content"] for seed in (0, 1, 200)}
    assert len(chosen) == 2


def test_bad_input_is_one_line():
    with pytest.raises(WhetError, match=r"bfcl has no category 'bass' .did you mean 'base'"):
        FunctionCalling(category="bass")
    with pytest.raises(ValueError, match="bfcl's base has no task 'x'"):
        FunctionCalling().start(prompt("x"))
