"""Drawings compared as a reader would: the same words and shapes, coordinates to a tenth of a pixel."""

import re

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
TEXT = re.compile(r">([^<]*)<")


def same_drawing(first, second, pixels=0.1):
    """True where two SVG texts differ in nothing but the last digits of coordinates, as two processors round them."""
    if TEXT.findall(first) != TEXT.findall(second) or NUMBER.sub("#", first) != NUMBER.sub("#", second):
        return False
    numbers = (map(float, NUMBER.findall(each)) for each in (first, second))
    return all(abs(one - other) <= pixels + 1e-9 for one, other in zip(*numbers, strict=True))
