"""What became of the tokens of recorded samples: one line of `tokens.jsonl` per line of `samples.jsonl`.

A line has the tokens from the first that the policy chose to the last one, as ids and as pieces of text, and values of
the chosen ones: `advantage`, `weight` (the factor in front of A grad logp, in the last update that the sample was part
of), `logp` (of the sampler, as drawn) and `gap` (what the trainer's is above it). A value that all of them share is
written once. `action` counts tokens in turns: so many chosen, so many read, so many chosen. `turns` are the places of a
trajectory's turns. Of a long step the samples get equal shares of the room, and `left_out` says what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from whet.types import Sample

DIGITS, DECIMALS = 4, 6  # significant ones, and after the point: below that is the noise of float32
SMALL = 10.0 ** (DIGITS - DECIMALS - 1)  # from here on a number of so few digits has no more decimals
VALUES = ("advantage", "weight", "logp", "gap")


@dataclass(frozen=True)
class TokenSettings:
    """How much of a step is recorded, and how tokens are turned into text."""

    most: int  # tokens per step
    pieces: Callable[[Sequence[int]], list[str]]


@dataclass(frozen=True)
class RecordedToken:
    """A token of `tokens.jsonl`; None for what nobody computed, and everywhere but on tokens that the policy chose."""

    piece: str
    is_action: bool
    advantage: float | None
    weight: float | None
    logp: float | None  # of the sampler
    gap: float | None  # the trainer's minus the sampler's


def token_lines(step: int, samples: Sequence[Sample], settings: TokenSettings) -> list[dict[str, Any]]:
    """A line for each recorded sample of a step, in order; none for those that say nothing of their training."""
    firsts = [_first_action(sample) if sample.trace is not None else None for sample in samples]
    traced = [index for index, first in enumerate(firsts) if first is not None]
    lengths = [len(samples[index].tokens) - (firsts[index] or 0) for index in traced]
    return [
        _token_line(step, index, samples[index], firsts[index] or 0, share, settings)
        for index, share in zip(traced, equal_shares(lengths, settings.most), strict=True)
    ]


def equal_shares(wanted: Sequence[int], most: int) -> list[int]:
    """Shares of at most `most` together: each gets what it wants, or as much as any other that is cut short."""
    shares = [0] * len(wanted)
    left, open_places = most, [index for index, want in enumerate(wanted) if want > 0]
    while open_places and left >= len(open_places):
        share = left // len(open_places)
        for index in open_places:
            more = min(share, wanted[index] - shares[index])
            shares[index] += more
            left -= more
        open_places = [index for index in open_places if shares[index] < wanted[index]]
    return shares


def _first_action(sample: Sample) -> int | None:
    places = sample.action.nonzero()
    return int(places[0]) if len(places) else None


def _token_line(
    step: int, index: int, sample: Sample, first: int, count: int, settings: TokenSettings
) -> dict[str, Any]:
    trace = sample.trace
    assert trace is not None
    end = first + count
    action = sample.action[first:end]
    chosen = slice(None) if bool(action.all()) else action
    logp = sample.behavior_logp[first:end][chosen]
    known = {
        "advantage": trace.advantage[first:end][chosen],
        "weight": trace.weight[first:end][chosen],
        "logp": logp,
        "gap": trace.logp[first:end][chosen] - logp,
    }
    line: dict[str, Any] = {
        "step": int(step),
        "place": index,
        "ids": (ids := sample.tokens[first:end].tolist()),
        "pieces": settings.pieces(ids),
        "action": [len(list(run)) for _, run in groupby(action.tolist())],
        **{name: _compact(values.tolist()) for name, values in known.items()},
    }
    if sample.turns:
        line["turns"] = [[min(max(at - first, 0), count) for at in (turn.start, turn.stop)] for turn in sample.turns]
    left_out = len(sample.tokens) - end
    return {**line, "left_out": left_out} if left_out else line


def recorded_tokens(line: Mapping[str, Any]) -> list[RecordedToken]:
    """The tokens of a line of tokens.jsonl."""
    is_action = [number % 2 == 0 for number, count in enumerate(line["action"]) for _ in range(count)]
    values = {name: iter(_spread(line.get(name), sum(is_action))) for name in VALUES}
    return [
        RecordedToken(piece, acts, *(next(values[name]) if acts else None for name in VALUES))
        for piece, acts in zip(line["pieces"], is_action, strict=True)
    ]


def _compact(values: Sequence[float]) -> float | list[float | None] | None:
    """The values to as many digits as are recorded, None for what is not finite; one where all are the same."""
    different = set(values)
    values = values if len(different) > 1 else list(different)
    texts = (f"%.{DIGITS}g " * len(values) % tuple(values)).split()  # in one go: half the time
    rounded = [n if SMALL <= n < math.inf or -math.inf < n <= -SMALL else _small(n) for n in map(float, texts)]
    return rounded[0] if len(set(rounded)) == 1 else rounded


def _small(number: float) -> float | None:
    return round(number, DECIMALS) + 0.0 if math.isfinite(number) else None


def _spread(values: float | list[float | None] | None, count: int) -> list[float | None]:
    return values if isinstance(values, list) else [values] * count
