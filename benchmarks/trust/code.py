"""Attacks on the reward for code: thieves of what other jobs and the tests hold."""

from __future__ import annotations

import secrets
from pathlib import Path

from whet.sandbox import Limits, ProgramJob, Sandbox, UnitTestJob

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


def measure(full: bool) -> list[dict]:
    thieves = sections("thieves.txt")
    caught = []
    with Sandbox(1) as pool:
        for name, source in thieves.items():
            if loot_of(pool, source):
                caught.append(name)
    return [{"what": "thieves", "tried": len(thieves), "held": len(thieves) - len(caught), "note": ", ".join(caught)}]
