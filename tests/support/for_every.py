"""One test over many cases: it runs through all of them and lists every case that fails, with what was wrong."""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest

MOST_CHARACTERS = 400  # of what is said about one case


def for_every(*choices: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Make a test of a check: called with every combination of the choices, a tuple giving several arguments.

    The first choice varies slowest, so that what a check caches for a method is found again.
    """
    cases = list(product(*(list(choice) for choice in choices)))

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            assert cases, "there is nothing to check"
            failures = []
            for case in cases:
                arguments = [value for choice in case for value in (choice if isinstance(choice, tuple) else (choice,))]
                try:
                    check(*arguments)
                except (Exception, pytest.fail.Exception) as error:
                    said = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_CHARACTERS]
                    failures.append(f"{', '.join(map(str, arguments))}: {said}")
            assert not failures, f"{len(failures)} of {len(cases)} fail\n" + "\n".join(failures)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorate
