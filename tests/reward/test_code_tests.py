"""The code reward: every form of tests, extraction of the code, partial credit; and real reference solutions."""

from __future__ import annotations

import json
import pickle
import threading
from typing import Any

import pytest
import torch

from tests.support.real_data import data_rows
from whet.protocols import Reward
from whet.reward import code_tests as code_tests_module
from whet.reward.code_tests import FLOOR_SECONDS, CodeTests, code_of, code_tests, same_output, tests_of
from whet.reward.combine import RewardPart
from whet.reward.failure import collected_reasons
from whet.reward.find import find_reward
from whet.reward.sandbox.pool import Sandbox
from whet.reward.version import reward_hash
from whet.training.assembly.rewards import evaluation_parts
from whet.types import Prompt, Sample, StopReason, WhetError

tests_of.__test__ = False  # pytest would take it for a test
RIGHT = "def add(a, b):\n    return a + b\n"
HALF = "def add(a, b):\n    return a + b if a < 5 else 0\n"
ASSERTIONS = ["assert add(1, 2) == 3", "assert add(5, 6) == 11"]


def prompt(**columns: Any) -> Prompt:
    return Prompt(columns.pop("id", "p"), (), text=columns.pop("text", "Write add."), meta=columns)


def scored(completion: str, given: Prompt, **settings: Any) -> float | None:
    return code_tests(workers=2, **settings).scores([given], [completion])[0]


def test_it_is_a_reward_of_whole_batches():
    reward = code_tests(workers=2)
    assert isinstance(reward, Reward) and reward.name == "code_tests" and reward.deterministic
    nothing = torch.zeros(1)
    completions = [RIGHT, HALF, "no code here", ""] * 4
    samples = [
        Sample(nothing.long(), nothing.bool(), nothing, (0, 0), StopReason.END, completion)
        for completion in completions
    ]
    assert reward([prompt(tests=ASSERTIONS)] * 16, samples) == [1.0, 0.5, 0.0, 0.0] * 4
    assert reward([], []) == []


def test_assertions():
    given = prompt(test_list=ASSERTIONS, test_setup_code="", test_imports=["import math"])
    assert scored(f"Sure.\n```python\n{RIGHT}```\nDone.", given) == 1.0
    assert scored(HALF, given) == 0.5 and scored(HALF, given, partial=False) == 0.0
    assert scored(RIGHT, given, partial=False) == 1.0


def test_a_check_program():
    check = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(5, 6) == 11\n"
    given = prompt(test=check, entry_point="add", text='def add(a, b):\n    """Add."""\n')
    assert scored("    return a + b\n", given) == 1.0
    assert scored(f"```python\n{RIGHT}```", given) == 1.0
    assert scored(f"```python\nfrom __future__ import annotations\n{HALF}```", given) == 0.5
    assert scored("    import os\n    os._exit(0)\n", given) == 0.0
    assert scored("", given) == 0.0


def test_a_program_that_stops_early_never_has_the_whole_score():
    check = "def check(candidate):\n    for n in (1, 2, 3):\n        assert candidate(n) == n\n"
    given = prompt(test=check, entry_point="same")
    assert scored("def same(n): return n", given) == 1.0
    stops = "import os\ndef same(n):\n    return n if n < 3 else os._exit(0)"
    assert 0 < (scored(stops, given) or 0) < 1 and scored(stops, given, partial=False) == 0.0


def test_helpers_of_the_prompt_are_the_datas_own():
    text = 'def poly(x):\n    return x - 2\n\n\ndef zero():\n    """Where poly is 0."""\n'
    given = prompt(test="def check(candidate):\n    assert poly(candidate()) == 0\n", entry_point="zero", text=text)
    assert scored("    return 2\n", given) == 1.0
    assert scored("```python\ndef poly(x):\n    return 0\ndef zero():\n    return 7\n```", given) == 0.0


def test_standard_input():
    given = prompt(input_output=json.dumps({"inputs": ["1 2\n", "5 6\n"], "outputs": ["3\n", "11"]}))
    assert scored("```python\nprint(sum(map(int, input().split())))\n```", given) == 1.0
    assert scored("```python\nprint(3)\n```", given) == 0.5
    assert scored("```python\nprint(sum(map(int, input().split())))\nraise SystemExit(1)\n```", given) == 0.0


def test_function_calls():
    given = prompt(input_output={"fn_name": "add", "inputs": [[1, 2], [5, 6]], "outputs": [3, 11]})
    assert scored(RIGHT, given) == 1.0 and scored(HALF, given) == 0.5
    assert scored("class Solution:\n    def add(self, a, b):\n        return a + b\n", given) == 1.0
    rows = [{"input": "1\n2", "output": "3", "testtype": "functional"}, {"input": "5\n6", "output": "12"}]
    assert scored(RIGHT, prompt(tests=rows, fn_name="add")) == 0.5


def test_a_program_that_calls_the_code_itself():
    text = "def check(candidate):\n    assert candidate(a=1, b=2) == 3\n\ncheck(Solution().add)"
    completion = "class Solution:\n    def add(self, a: int, b: int) -> List[int]:\n        return a + b\n"
    given = prompt(tests={"functional": text})
    assert scored(completion, given) == 0.0 and scored(completion, given, prelude="from typing import *") == 1.0


def test_unscorable_data_and_mistakes():
    assert scored(RIGHT, prompt(tests=[])) is None
    assert scored(RIGHT, prompt(tests=ASSERTIONS, unscorable=True)) is None
    with pytest.raises(WhetError, match=r"prompt 'p' has none of the columns .*it has: level"):
        scored(RIGHT, prompt(level=3))
    with pytest.raises(WhetError, match="are not Python"):
        scored(RIGHT, prompt(tests=["assert add(1"]))
    with pytest.raises(WhetError, match="no form"):
        scored(RIGHT, prompt(tests={"inputs": ["1"], "outputs": []}))
    with pytest.raises(WhetError, match="seconds = 0"):
        code_tests(seconds=0)
    with pytest.raises(WhetError, match="tolerance = 2"):
        code_tests(tolerance=2)


WRONG = "def add(a, b):\n    return None"
NEVER_RUN = {
    "pytest functions": "def test_add():\n    assert add(1, 2) == 3\n",
    "a unittest class": "import unittest\nclass TestAdd(unittest.TestCase):\n"
    "    def setUp(self):\n        self.two = 2\n"
    "    def test_add(self):\n        self.assertEqual(add(1, self.two), 3)\n",
    "check without entry_point": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    "under main": "if __name__ == '__main__':\n    assert add(1, 2) == 3\n",
}


@pytest.mark.parametrize("form", NEVER_RUN)
def test_tests_that_nothing_calls_are_run(form):
    for tests in (NEVER_RUN[form], [NEVER_RUN[form]]):
        assert [scored(code, prompt(tests=tests)) for code in (RIGHT, WRONG)] == [1.0, 0.0]


PYTEST = """
import logging
import pytest

STARTED = []

@pytest.fixture(autouse=True)
def started():
    STARTED.append(2)
    yield
    STARTED.clear()

@pytest.fixture
def test_number(request):
    return request.param + 1

@pytest.mark.parametrize("test_number", [0, 1], indirect=True)
def test_add(test_number, caplog):
    logging.warning(add(test_number, *STARTED))
    assert caplog.messages == [str(test_number + 2)]

def test_later():
    pass

@pytest.mark.xfail
def test_wish():
    assert add(1, 2) == 4
"""
# a folder that pytest would read, and an error that is nothing when asked
HOSTILE = """
hook = "import pytest\\n@pytest.hookimpl(tryfirst=True)\\ndef pytest_pyfunc_call(pyfuncitem): return True"
for name, text in {"conftest.py": hook, "pytest.ini": "[pytest]\\naddopts = --collect-only", "pytest.py": ""}.items():
    open(name, "w").write(text)
class Nothing(Exception):
    __bool__ = lambda self: False
def add(a, b): raise Nothing
"""


def test_what_needs_pytest_is_run_by_pytest_and_no_code_can_talk_to_it():
    given = prompt(tests=PYTEST)
    assert [scored(code, given) for code in (RIGHT, HOSTILE, "def add(a, b): return 3")] == [1.0, 0.0, 0.5]


def test_one_test_function_is_one_test():
    tests = "def test_one():\n    assert add(1, 2) == 3\n    assert add(1, 2) == 3\n"
    tests += "def test_two():\n    assert add(5, 5) == 10\n"
    assert scored("def add(a, b): return 3", prompt(tests=tests)) == 0.5
    # what hangs in the first has not passed the second
    assert scored("def add(a, b):\n    while a == 1: pass\n    return 10", prompt(tests=tests), seconds=1) == 0.0


UNASSERTED = {
    "if": "def test_if():\n    r = add(1, 2)\n    if r:\n        assert r == 3\n",
    "loop": "def test_loop():\n    for r in [add(1, 2)] * bool(add(1, 2)):\n        assert r == 3\n",
    "try": "def test_try():\n    try:\n        assert add(1, 2) == 3\n    except Exception:\n        pass\n",
    "return": "def test_return():\n    if not add(1, 2):\n        return\n    assert add(1, 2) == 3\n",
    "method": "class TestAdd:\n    def test_if(self):\n        if add(1, 2):\n            assert add(1, 2) == 3\n",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test_if(self):\n        r = add(1, 2)\n"
    "        if r:\n            self.assertEqual(r, 3)\n",
    "unittest in try": "import unittest\nclass T(unittest.TestCase):\n    def test_if(self):\n        try:\n"
    "            self.assertEqual(add(1, 2), 3)\n        except Exception:\n            pass\n",
}


@pytest.mark.parametrize("beside", ["", "def test_beside():\n    assert add(0, 0) != 1\n"])
def test_a_test_function_that_asserts_nothing_counts_as_not_run(beside):
    wrong = "def add(a, b):\n    return None\n"
    scores = {
        name: (scored(RIGHT, prompt(tests=t + beside)), scored(wrong, prompt(tests=t + beside)))
        for name, t in UNASSERTED.items()
    }
    assert scores == dict.fromkeys(UNASSERTED, (1.0, 0.5 if beside else 0.0))


def test_a_test_that_passes_by_not_reaching_a_line_is_run():
    raising = "def add(a, b):\n    if b is None:\n        raise ValueError\n    return a + b\n"
    must_raise = (
        "def test_raises():\n    try:\n        add(1, None)\n        assert False\n    except {}:\n        pass\n"
    )
    either = (
        "def test_one():\n    try:\n        assert add(1, 2) == 4\n"
        "    except AssertionError:\n        assert add(1, 2) == 3\n"
    )
    no_check = "def test_smoke():\n    add(1, 2)\ndef test_sum():\n    assert add(1, 2) == 3\n"
    lenient = "def add(a, b):\n    return a + (b or 0)\n"
    for kind in ("ValueError", "Exception"):
        given = prompt(tests=must_raise.format(kind))
        assert (scored(raising, given), scored(lenient, given)) == (1.0, 0.0)
    assert scored(RIGHT, prompt(tests=either)) == scored(RIGHT, prompt(tests=no_check)) == 1.0


def test_an_early_error_leaves_the_other_assertions_failed():
    tests = (
        "def check(candidate):\n    assert candidate(1, 2) == 3\n    x = candidate(2, 2)\n" + "    assert x == 4\n" * 8
    )
    code = "def add(a, b):\n    return 3 if a == 1 else 1 / 0"
    assert scored(code, prompt(test=tests, entry_point="add")) == pytest.approx(1 / 9)


def test_unscorable_tests_have_a_reason(caplog, monkeypatch):
    monkeypatch.setattr("whet.reward.failure._prompts", set())  # the log names the first few only
    for tests, reason in (
        ("# later", "only comments"),
        ("import math", "hold no assertion"),
        ("assert 1 + 1 == 2", "never call the code"),
        ("import nobody_has_this\nassert add(1, 2) == 3", "No module named 'nobody_has_this'"),
        (["assert (add(1, 2) == 3, 'sum')"], "hold no assertion"),
    ):
        with collected_reasons() as reasons:
            assert [scored(code, prompt(tests=tests)) for code in (RIGHT, WRONG, "")] == [None] * 3
        assert len(reasons) == 3 and all(name == "p" and reason in why for name, why in reasons)
    assert "prompt 'p' cannot be judged: the tests are only comments" in caplog.text


def test_code_cannot_make_itself_unscorable():
    for code in (
        "import os\nos._exit(0)",
        "import builtins\nbuiltins.isinstance = None",
        "raise SystemExit",
        "def add(",
        "",
    ):
        assert scored(code, prompt(tests="def test_add():\n    assert add(1, 2) == 3\n")) == 0.0
    # code that does not load has passed nothing, not even what does not call it
    assert scored("def add(", prompt(tests=["assert 1 + 1 == 2", "assert add(1, 2) == 3"])) == 0.0
    # an assertion that is not reached because of what the code returns has not passed
    assert scored("def add(a, b): return []", prompt(tests="for x in add(1, 2):\n    assert x == 3\n")) == 0.0


def test_the_function_that_is_meant():
    check = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
    helper = "def half(x):\n    return x\n\ndef add(a, b):\n    return half(a) + b\n"
    assert scored(helper, prompt(test=check)) == 1.0
    two = "def subtract(a, b):\n    return a - b\n\ndef add(a, b):\n    return a + b\n"
    assert scored(two, prompt(test=check)) == 0.0
    assert scored(two, prompt(test=check, text="def add(a, b):\n    ...")) == 1.0
    assert scored(two, prompt(test=check, canonical_solution="def add(a, b):\n    return b + a")) == 1.0


def test_the_code_of_a_completion():
    assert code_of("<think>```python\na\n```</think>text\n```python\nb\n```\nor\n```py\nc\n```\n```\nout\n```") == "c\n"
    assert code_of("```\nplain\n```\n```text\nwords\n```") == "plain\n"
    assert code_of("x = 1") == "x = 1" and code_of("") is None and code_of("<think>x = 1") is None
    assert code_of("```python\ncut off") == "cut off\n"
    assert code_of("1.\n   ```python\n   x\n     y\n   ```\n") == "x\n  y\n"
    assert code_of("```python\nx = '\x0c'\n```") == "x = '\x0c'\n"
    assert code_of("```python\ndef f(): 1\n```\n```python\nf()\n```") == "f()\n"
    assert code_of("```python\ndef f(): 1\n```\n```python\nf()\n```", {"f"}) == "def f(): 1\n"
    assert code_of("```python\n" + "x = 1\n" * 40_000 + "```") is None


def test_outputs_are_compared_word_by_word():
    assert same_output("1  2\n3 \n\n", "1 2\n3", 0) and same_output("0.3333333", "0.333333", 1e-5)
    for found, expected in (("1\n2", "1 2"), ("3.0", "3"), ("0.34", "0.33"), ("", "1"), ("x", "0.5"), ("nan", "nane")):
        assert not same_output(found, expected, 1e-5)


def misses(prompts: list[Prompt], completions: list[str], **settings: Any) -> list[str]:
    scores = code_tests(**settings).scores(prompts, completions)
    return [given.id for given, score in zip(prompts, scores, strict=True) if score != 1.0]


@pytest.mark.slow
def test_every_humaneval_solution_passes_and_no_empty_one_does():
    found = data_rows("code/humaneval")
    prompts = [prompt(id=row["task_id"], text=row["prompt"], **row) for row in found]
    assert misses(prompts, [row["canonical_solution"] for row in found]) == []
    whole = [f"```python\n{row['prompt']}{row['canonical_solution']}\n```" for row in found]
    assert misses(prompts, whole, partial=False) == []
    assert len(misses(prompts, ["    pass"] * len(found))) == len(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mbpp", "mbpp_sanitized"])
def test_every_mbpp_solution_passes_and_no_empty_one_does(name):
    found = data_rows(f"code/{name}")
    prompts = [prompt(id=str(row["task_id"]), **row) for row in found]
    # one task of the full set searches for some seconds
    assert misses(prompts, [f"```python\n{row['code']}\n```" for row in found], seconds=30) == []
    assert len(misses(prompts, ["```python\npass\n```"] * len(found))) == len(found)


ENDLESS = "def add(a, b):\n    while True: pass\n"
SLEEPER = "import time\ndef add(a, b):\n    time.sleep(60)\n"
FLOOR = 0.125  # instead of half a second: programs of these tests spend what they may
# so many seconds of processor time, whatever the machine
SLOW = (
    "import time\ndef add(a, b):\n    start = time.process_time()\n    while time.process_time() < start + {}: pass\n"
)


def test_a_gold_solution_sets_the_time_limit(monkeypatch):
    """A quick gold solution stops an endless program after half a second; a slow one gives its programs more."""
    assert FLOOR_SECONDS == 0.5
    monkeypatch.setattr("whet.reward.code_tests.FLOOR_SECONDS", FLOOR)
    reward = code_tests(workers=2, seconds=4)
    allowed: list[float] = []
    usual = CodeTests._jobs
    monkeypatch.setattr(
        CodeTests, "_jobs", lambda self, program, seconds: allowed.append(seconds) or usual(self, program, seconds)
    )
    quick = prompt(id="quick", tests=ASSERTIONS[:1], code=RIGHT)
    slow = prompt(id="slow", tests=ASSERTIONS[:1], solution=f"```python\n{SLOW.format(0.15)}    return a + b\n```")
    wrong = prompt(id="wrong", tests=ASSERTIONS[:1], code="def add(a, b): return 0")
    bare = prompt(id="bare", tests=ASSERTIONS[:1])
    late = f"{SLOW.format(0.2)}    return a + b\n"
    # no program of `quick` is late here, so its gold solution is not run
    assert reward.scores([quick, slow, bare], [RIGHT, late, RIGHT]) == [1.0, 1.0, 1.0]
    assert allowed == [FLOOR, FLOOR, 4, 4, 2] and reward.take_notes() == {}
    allowed.clear()
    # known by now: 2 seconds from the first run on, and the slow prompt goes first
    assert reward.scores([quick, slow], [ENDLESS, late]) == [0.0, 1.0]
    assert allowed == [2, FLOOR, 4] and reward.take_notes() == {"code_timeouts": 1.0, "code_timeout_seconds": FLOOR}
    allowed.clear()
    # a gold solution that fails says nothing
    assert reward.scores([wrong], [late]) == [1.0] and allowed == [FLOOR, 4, 4]


def test_equal_programs_of_a_prompt_run_once_and_time_limits_are_counted(monkeypatch, caplog):
    ran: list[int] = []
    usual = Sandbox.submit
    monkeypatch.setattr(Sandbox, "submit", lambda self, jobs: ran.append(len(jobs)) or usual(self, jobs))
    reward = code_tests(workers=2, seconds=1)
    given, other = prompt(tests=ASSERTIONS, id="given"), prompt(tests=ASSERTIONS, id="other")
    completions = [RIGHT, f"Here:\n```python\n{RIGHT}```", SLEEPER, HALF, SLEEPER, "", RIGHT]
    with caplog.at_level("WARNING"):
        scores = reward.scores([given] * 6 + [other], completions)
    assert scores == [1.0, 1.0, 0.0, 0.5, 0.0, 0.0, 1.0] and ran == [5]
    assert "2 of 7 programs so far ran into their time limit" in caplog.text and "given (6 s)" in caplog.text
    seconds = reward.take_seconds()
    assert len(seconds) == 7 and seconds[2] == seconds[4] == max(seconds) > 2 and max(seconds[:2]) < 2
    # the completions of a step may come in several calls: who ran a program first must not change what is counted
    assert reward.scores([given, given], [SLEEPER, HALF]) == [0.0, 0.5] and sum(ran) == 5
    assert reward.take_notes() == {"code_timeouts": 3.0, "code_timeout_seconds": 9.0} and reward.take_notes() == {}
    assert reward.scores([given], [HALF]) == [0.5] and sum(ran) == 6  # another step


def test_an_evaluation_remembers_its_programs_and_counts_for_no_step(monkeypatch):
    ran: list[int] = []
    usual = Sandbox.submit
    monkeypatch.setattr(Sandbox, "submit", lambda self, jobs: ran.append(len(jobs)) or usual(self, jobs))
    reward = code_tests(workers=2, seconds=1)
    (part,) = evaluation_parts([RewardPart(reward)])
    apart, given = part.resolved_reward, prompt(tests=ASSERTIONS)
    assert isinstance(apart, CodeTests) and apart == reward
    assert apart.scores([given, given], [ENDLESS, HALF]) == [0.0, 0.5] and sum(ran) == 2
    assert reward.take_notes() == {}  # of the step that is trained on
    assert apart.scores([given] * 3, [HALF, RIGHT, ENDLESS]) == [0.5, 1.0, 0.0] and sum(ran) == 3
    monkeypatch.setattr(code_tests_module, "MOST_PROGRAMS", 1)
    assert apart.scores([given], [HALF]) == [0.5] and len(apart._memory.programs) == 1
    other = RewardPart(find_reward("exact_answer"))
    assert evaluation_parts([other]) == [other]


def test_a_slow_gold_solution_is_timed_before_it_is_waited_for(monkeypatch):
    monkeypatch.setattr("whet.reward.code_tests.FLOOR_SECONDS", FLOOR)
    reward = code_tests(workers=2, seconds=4)
    slow = prompt(id="slow", tests=ASSERTIONS[:1], code=f"{SLOW.format(0.2)}    return a + b\n")
    quick, bare = prompt(id="quick", tests=ASSERTIONS[:1], code=RIGHT), prompt(id="bare", tests=ASSERTIONS[:1])
    reward.begin_timing_golds([slow, quick, bare])
    (timing,) = [thread for thread in threading.enumerate() if thread.name == "whet-golds"]
    timing.join()
    allowed: list[float] = []
    usual = CodeTests._jobs
    monkeypatch.setattr(
        CodeTests, "_jobs", lambda self, program, seconds: allowed.append(seconds) or usual(self, program, seconds)
    )
    late = f"{SLOW.format(0.25)}    return a + b\n"
    assert reward.apart().scores([slow, quick], [late, RIGHT]) == [1.0, 1.0] and allowed == [4, FLOOR]


def test_the_time_limit_is_no_part_of_what_a_reward_is():
    reward = code_tests(workers=2)
    before = reward_hash(reward)
    reward.scores([prompt(tests=ASSERTIONS, code=RIGHT)], [ENDLESS])
    assert reward_hash(reward) == before and pickle.loads(pickle.dumps(reward)) == reward
