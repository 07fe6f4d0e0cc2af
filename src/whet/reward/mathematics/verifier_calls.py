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
