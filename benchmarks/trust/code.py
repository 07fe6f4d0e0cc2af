"""Attacks on the reward for code: thieves of what other jobs and the tests hold, forged results, tests that never run,
and honest code in whatever markdown it comes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from whet.reward.code_tests import CodeTests, code_tests
from whet.reward.failure import collected_reasons
from whet.reward.sandbox.job import Limits, ProgramJob, UnitTestJob
from whet.reward.sandbox.pool import Sandbox
from whet.types import Prompt

CORPUS = Path(__file__).parent / "corpus" / "code"
LIMITS = Limits(cpu_seconds=5, wall_seconds=15.0, memory_mb=256, output_kb=64)
SEARCH = """
def found():
    import re
    pattern = 'sesa' + 'me-[0-9a-f]{16}'
    try:
        for text in loot():
            text = text if isinstance(text, str) else bytes(text).decode('latin-1')
            match = re.search(pattern, text)
            if match:
                return match[0]
    except Exception:
        pass
    return ''
"""


def sections(name: str) -> dict[str, str]:
    """The named sections of a corpus file: a line "=== NAME", then its text up to the next one."""
    text = (CORPUS / name).read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in f"\n{text}".split("\n=== ")[1:]]
    return {title.strip(): f"{body.rstrip()}\n" for title, _, body in parts}


def loot_of(pool: Sandbox, source: str, planted: bool = False) -> list[str]:
    """What a thief finds after two jobs that hold a secret everywhere, as a program and as code under test.

    With `planted` the secret lies in the thief's own memory: it must be found by a thief that can search there.
    """
    secret = f"sesame-{secrets.token_hex(8)}"
    own = f"planted = ['sesame', {secret[7:]!r}]\nplanted = '-'.join(planted)\n" if planted else ""
    thief = f"{own}{source}\n{SEARCH}"
    spec = {"form": "assertions", "tests": [f"assert f({secret!r}) == {secret!r}"]}
    victims = [
        UnitTestJob((f"mine = {secret!r}\ndef f(x): return x",), spec, limits=LIMITS),
        ProgramJob(f"# {secret}\nimport sys\nprint(input(), {secret!r})\nprint({secret!r}, file=sys.stderr)", secret),
    ]
    tests = ["assert f(1) == ''"] if planted else ["assert f(1) == ''", f"assert f(2) == {secret!r}"]
    results = pool.run(
        [
            *victims,
            ProgramJob(f"{thief}\nprint(found())", limits=LIMITS),
            *victims,
            UnitTestJob((f"{thief}\ndef f(x): return found()",), {"form": "assertions", "tests": tests}, limits=LIMITS),
        ]
    )
    assert results[0].passed == (True,) and results[1].stdout.strip() == f"{secret} {secret}"
    taken = [results[2].stdout.strip()] if results[2].stdout.strip() else []
    # a thief that does not come to its end has found nothing either
    return taken + (["in a unit test"] if results[5].passed[:1] == (False,) and not results[5].ended else [])


RIGHT = "def add(a, b):\n    return a + b"
WRONG = (
    "def add(a, b):\n    pass",
    "def add(a, b):\n    return None",
    "def add(a, b):\n    return []",
    "def add(a, b):\n    return -999",
    "def add(a, b):\n    raise Exception",
    "def other(a, b):\n    return a + b + 1",
    "add = 3",
    "this is not Python",
)
FORMS = {
    "assertions": {"tests": ["assert add(1, 2) == 3", "assert add(5, 5) == 10"]},
    "check": {"test": "def check(candidate):\n    assert candidate(1, 2) == 3\n", "entry_point": "add"},
    "check without an entry point": {"test": "def check(candidate):\n    assert candidate(1, 2) == 3\n"},
    "pytest": {"tests": "import pytest\n\ndef test_add():\n    assert add(1, 2) == pytest.approx(3)\n"},
    "unittest": {
        "tests": "import unittest\n\nclass TestAdd(unittest.TestCase):\n    def test_add(self):\n"
        "        self.assertEqual(add(1, 2), 3)\n\nif __name__ == '__main__':\n    unittest.main()\n"
    },
    "under main": {"tests": "if __name__ == '__main__':\n    expected = 3\n    assert add(1, 2) == expected\n"},
    "calls": {"tests": {"fn_name": "add", "inputs": [[1, 2], [5, 5]], "outputs": [3, 10]}},
    "standard input": {"tests": {"inputs": ["1 2\n", "5 5\n"], "outputs": ["3\n", "10\n"]}},
}


def fenced(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


def suite_prompt(name: str, text: str) -> Prompt:
    """The prompt of a section of suites.txt."""
    columns, question = {}, "Add two numbers."
    if header := re.match(r"#: (.*)\n", text):
        text = text[header.end() :]
        if header[1] == "list":
            columns["tests"] = re.split(r"\n\n+(?=\S)", text.strip())
        else:
            columns = json.loads(header[1])
            question = columns.pop("prompt", question)
    return Prompt(name, (), question, None, {"tests": text, **columns})


def is_suite_judged(reward: CodeTests, name: str, text: str) -> bool:
    """A suite that runs pays the right code alone; one that cannot judge pays nobody, and says why."""
    codes = [fenced(RIGHT), "", *map(fenced, WRONG)]
    with collected_reasons() as reasons:
        scores = reward.scores([suite_prompt(name, text)] * len(codes), codes)
    if name.startswith("runs"):
        return scores[0] == 1.0 and all(score is not None and score < 1 for score in scores[1:])
    return scores == [None] * len(codes) and len(reasons) == len(codes) and all(reason for _, reason in reasons)


def paid_forgeries(reward: CodeTests, forgeries: dict[str, str], forms: dict[str, dict]) -> list[str]:
    """The forgeries that any test of any form lets pass, or that make themselves unscorable."""
    pairs = [(name, form) for name in forgeries for form in forms]
    prompts = [Prompt(f"{name}, {form}", (), "Add two numbers.", None, forms[form]) for name, form in pairs]
    # every other job is honest: what an attack does to its worker must not spoil the next job
    mixed = [
        each for prompt in prompts for each in (prompt, Prompt(f"{prompt.id}, honest", (), "", None, FORMS["check"]))
    ]
    codes = [each for name, _ in pairs for each in (fenced(forgeries[name]), fenced(RIGHT))]
    scores = reward.scores(mixed, codes)
    paid = [f"{prompt.id}: {score}" for prompt, score in zip(prompts, scores[::2], strict=True) if score != 0.0]
    return paid + [
        f"{prompt.id}: honest {score}" for prompt, score in zip(prompts, scores[1::2], strict=True) if score != 1.0
    ]


def right_programs(file: str = "right.txt") -> dict[str, tuple[str, Prompt]]:
    """The programs of a corpus file, each with the prompt of its tests."""
    parts = {name: text.partition("\n--- tests\n") for name, text in sections(file).items()}
    return {name: (code, suite_prompt(name, tests)) for name, (code, _, tests) in parts.items()}


def marks_of_right_programs(reward: CodeTests, file: str = "right.txt", every: int = 1) -> dict[str, float | None]:
    """What each of them, or of every so many, gets; None: unscorable."""
    programs = dict([*right_programs(file).items()][::every])
    scores = reward.scores([prompt for _, prompt in programs.values()], [fenced(code) for code, _ in programs.values()])
    return dict(zip(programs, scores, strict=True))


def paid_object_forgeries(reward: CodeTests, every: int = 1) -> list[str]:
    """The forgeries of objects.txt, or every so many, that are paid by the program's tests that their titles name."""
    programs, forgeries = right_programs(), dict([*sections("objects.txt").items()][::every])
    prompts = [programs[name.partition(":")[0]][1] for name in forgeries]
    scores = reward.scores(prompts, [fenced(code) for code in forgeries.values()])
    # what is right in a forgery is paid: its first line says how much
    earned = [float(code[2:5]) if re.match(r"# 0\.\d", code) else 0.0 for code in forgeries.values()]
    return [
        f"{name}: {score}"
        for name, score, most in zip(forgeries, scores, earned, strict=True)
        if score is not None and score > most + 0.05
    ]


def is_code_found(reward: CodeTests, reply: str) -> bool:
    """Honest code scores 1 in whatever markdown it comes."""
    return reward.scores([Prompt("markdown", (), "Add two numbers.", None, FORMS["assertions"])], [reply]) == [1.0]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings about prompts that cannot be judged: they are what is tried here."""
    logger = logging.getLogger("whet.reward.failure")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def measure(full: bool) -> list[dict]:
    thieves, forgeries, suites = sections("thieves.txt"), sections("forgeries.txt"), sections("suites.txt")
    forms = FORMS if full else {name: FORMS[name] for name in ("assertions", "unittest", "standard input")}
    reward = code_tests(seconds=2)
    with Sandbox(1) as pool, quiet():
        found = [name for name, source in thieves.items() if loot_of(pool, source)]
        unjudged = [name for name, text in suites.items() if not is_suite_judged(reward, name, text)]
        paid = paid_forgeries(reward, forgeries, forms)
        outsider = marks_of_right_programs(reward, "outsider_right.txt")
        forged = paid_forgeries(reward, sections("outsider_forgeries.txt"), forms)
        marks, paid_objects = marks_of_right_programs(reward), paid_object_forgeries(reward)
        lost = [name for name, reply in sections("replies.txt").items() if not is_code_found(reward, reply)]
    runs, dead = ([name for name in suites if name.startswith(start)] for start in ("runs", "unscorable"))
    return [
        _row("thieves of other jobs and of the tests", len(thieves), found),
        _row("forged test results", len(forgeries) * len(forms), paid),
        _row("forgeries with objects", len(sections("objects.txt")), paid_objects),
        _row("right programs, paid in full", len(marks), _underpaid(marks)),
        _row("right programs by an outsider", len(outsider), _underpaid(outsider)),
        _row("forgeries by an outsider", len(sections("outsider_forgeries.txt")) * len(forms), forged),
        _row("test suites that run", len(runs), [name for name in unjudged if name in runs]),
        _row("test suites in which nothing is tested", len(dead), [name for name in unjudged if name in dead]),
        _row("honest code in other markdown", len(sections("replies.txt")), lost),
    ]


def _underpaid(marks: dict[str, float | None]) -> list[str]:
    return [f"{name}: {mark}" for name, mark in marks.items() if mark != 1]


def _row(what: str, tried: int, failed: list[str]) -> dict:
    return {"what": what, "tried": tried, "held": tried - len(failed), "note": "; ".join(failed[:5])}
