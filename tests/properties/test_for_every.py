"""A test over many cases fails when one of them does, and names every one."""

import pytest

from tests.support.for_every import for_every


def test_every_failing_case_is_listed():
    seen = []

    @for_every(["grpo", "dapo", "ppo"], [1, (2, "episodes")])
    def check(name, seed, kind="completions"):
        seen.append((name, seed, kind))
        assert name == "dapo" or seed == 1, f"{name} is off by 0.5"

    with pytest.raises(AssertionError) as failure:
        check()
    assert len(seen) == 6 and ("ppo", 2, "episodes") in seen
    said = str(failure.value).splitlines()
    assert said[0] == "2 of 6 fail" and len([line for line in said if " is off by 0.5" in line]) == 2
    assert said[1].startswith("grpo, 2, episodes: AssertionError: grpo is off by 0.5")


def test_nothing_to_check_is_a_failure():
    @for_every([])
    def check(name):
        """Never called."""

    with pytest.raises(AssertionError, match="there is nothing to check"):
        check()
