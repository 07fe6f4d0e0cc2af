"""One process that runs math-verify, for `verifier_pool`. It imports neither torch nor the rest of whet.

Each message is a JSON list, each answer a JSON value. A job has a limit of CPU time,
kept by the kernel: code that looks at no signals ends with the process, and the pool starts another. The process also
ends when the pool's end of the connection closes, which it does when the trainer dies.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import resource
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

MEMORY = 4 << 30  # bytes of address space
LONGEST_EXTRACT = 300  # characters of an answer found in running text


def main(descriptor: int) -> None:
    """A worker's whole run: jobs from the descriptor until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with contextlib.suppress(OSError, ValueError):  # not every system has such limits
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.setrecursionlimit(2000)
    logging.disable(logging.CRITICAL)
    import math_verify  # noqa: F401  the import is not a job's time

    connection: Connection[Any, Any] = Connection(descriptor)
    connection.send_bytes(b'"ready"')
    with contextlib.suppress(EOFError, OSError):  # the other end is closed
        while True:
            seconds, kind, *arguments = json.loads(connection.recv_bytes())
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                answer = JOBS[kind](*arguments)
            except MemoryError:
                answer = None
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send_bytes(json.dumps(answer).encode())


def read(text: str) -> bool | None:
    """True where math-verify reads the whole text."""
    return parsed(text) is not None


def compare(gold: str, answer: str, relations_as_sets: bool) -> bool | None:
    """Whether math-verify takes two texts, each read as a whole, for the same; None where the gold one is not read."""
    from math_verify import verify

    wanted = parsed(gold)
    if wanted is None:
        return None
    other = parsed(answer)
    return other is not None and bool(
        verify(wanted, other, timeout_seconds=None, allow_set_relation_comp=relations_as_sets)
    )


def verdicts(pairs: list[list[Any]], tolerance: float, relations_as_sets: bool) -> list[bool | None]:
    """`verdict` on each (gold, answer, question)."""
    from whet.reward.mathematics.same_value import Comparison
    from whet.reward.mathematics.verdict import verdict

    return [
        verdict(gold, answer, Comparison(tolerance, relations_as_sets, question)) for gold, answer, question in pairs
    ]


def extract(text: str) -> str | None:
    """The answer that math-verify finds in running text, as text; units and words around it stay."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    targets = (LatexExtractionConfig(normalization_config=_normalization()), ExprExtractionConfig())
    parts = parse(text, targets, fallback_mode="first_match", parsing_timeout=None)
    texts = [part for part in parts if isinstance(part, str)]
    return texts[-1][:LONGEST_EXTRACT] if texts else None


def parsed(text: str) -> Any:
    """The text as sympy has it, without the guesses of math-verify's extraction; None where it is not read."""
    from latex2sympy2_extended.latex2sympy2 import latex2sympy, normalize_latex
    from math_verify.grader import should_treat_as_complex

    latex = normalize_latex(text.strip().strip("$"), _normalization())
    # a number's subscript would be dropped, numbers side by side added
    if re.search(r"\d\s*_|\d\s+\d", latex):
        return None
    try:
        real = not should_treat_as_complex(latex)
        return latex2sympy(latex, is_real=real, convert_degrees=False, normalization_config=None)
    except Exception:  # RecursionError too
        return None


def _normalization() -> Any:
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig

    # units are no decoration: the library would take the t of 2t for one
    return NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
    )


JOBS: dict[str, Any] = {"read": read, "compare": compare, "verdicts": verdicts, "extract": extract}

if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)
