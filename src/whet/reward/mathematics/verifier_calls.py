"""What math-verify is asked, in a session of the sandbox: whet does not exist there."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
from typing import Any

LONGEST_EXTRACT = 300  # characters of an answer found in running text


def answer(name: str, arguments: list[Any]) -> list[Any]:
    """What a function below returns, in a list: a text by itself would not travel as JSON. Nothing is printed."""
    sys.setrecursionlimit(2000)
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return [globals()[name](*arguments)]


def read(text: str) -> bool:
    """True where math-verify reads the whole text."""
    return parsed(text) is not None


def compare(gold: str, other: str, relations_as_sets: bool) -> bool | None:
    """Whether math-verify takes two texts, each read as a whole, for the same; None where the gold one is not read."""
    from math_verify import verify

    wanted = parsed(gold)
    if wanted is None:
        return None
    value = parsed(other)
    return value is not None and bool(
        verify(wanted, value, timeout_seconds=None, allow_set_relation_comp=relations_as_sets)
    )


def extract(text: str) -> str | None:
    """The answer that math-verify finds in running text, as text; units and words around it stay.

    It is the text of the first match in the library's order. The library would also have sympy read matches until one
    is a value, which takes many times as long and changes the text of none.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig
    from math_verify.parser import get_extraction_regexes

    targets = (LatexExtractionConfig(normalization_config=_normalization()), ExprExtractionConfig())
    patterns = [
        (priority, pattern, target) for own, target in get_extraction_regexes(targets) for pattern, priority in own
    ]
    for rank in sorted({priority for priority, _, _ in patterns}):
        matches = [
            (match, target)
            for priority, pattern, target in patterns
            if priority == rank
            for match in pattern.finditer(text)
        ]
        for match, target in sorted(matches, key=lambda found: (-found[0].end(), found[0].start())):
            if found := _text_of(match, target):
                return found[:LONGEST_EXTRACT]
    return None


def _text_of(match: re.Match[str], target: Any) -> str:
    """The text of a match; sympy reads it only where that decides how much of it counts."""
    from latex2sympy2_extended.latex2sympy2 import normalize_latex
    from math_verify.parser import extract_match

    named = {name: value for name, value in match.groupdict().items() if value}
    latex = [name for name in named if "latex" in name]
    if len(latex) == 1 and not latex[0].endswith("Boxed"):
        return str(normalize_latex(named[latex[0]], _normalization()))
    return named.get("expr") or str(extract_match(match, target)[1])


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
