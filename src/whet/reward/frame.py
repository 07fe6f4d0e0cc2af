"""The same answer in other frames: what must not change a score, and whether it does.

A reward that checks an answer gives the same score whatever stands around that answer: more text, other marks, nothing
behind it. One that does not is paid by the frame, and a policy learns to write the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from whet.data.gold import boxed
from whet.reward.answer import final_answer, final_part, tagged
from whet.types import Prompt, Sample

MOVED = 0.01  # of a score: less is rounding

Scores = Callable[[Sequence[Prompt], Sequence[Sample]], Sequence[float | None]]


@dataclass(frozen=True)
class FrameMove:
    """One completion whose score depends on its frame."""

    place: int  # among the completions
    frame: str
    score: float
    framed_score: float


def frames(completion: str) -> dict[str, str]:
    """Name to text: the completion's own answer in other frames; none where it marks no answer."""
    answer = final_answer(completion)
    if answer is None or "<" in answer:
        return {}
    rest = final_part(completion)
    tag, box = f"<answer>{answer}</answer>", f"\\boxed{{{answer}}}"
    mark, other = (tag, box) if answer in tagged(rest) and answer not in boxed(rest) else (box, tag)
    thought = completion[: len(completion) - len(rest)] if completion.endswith(rest) else ""
    return {
        "the answer alone": mark,
        "a plain sentence": f"This is what I found: {mark}",
        "nothing around the answer": f"{thought}\n{mark}".lstrip(),
        "another mark": f"{thought}\n{other}".lstrip(),
    }


def frame_moves(prompts: Sequence[Prompt], samples: Sequence[Sample], scores: Scores) -> tuple[list[FrameMove], int]:
    """Every completion whose score differs in another frame, by frame, and how many completions had an answer."""
    framed = [
        (index, name, text) for index, sample in enumerate(samples) for name, text in frames(sample.completion).items()
    ]
    if not framed:
        return [], 0
    asked = [prompts[index] for index, *_ in framed]
    written = [replace(samples[index], completion=text) for index, _, text in framed]
    every_score = scores([*prompts, *asked], [*samples, *written])
    first, again = every_score[: len(samples)], every_score[len(samples) :]
    moves = []
    for (index, name, _), framed_score in zip(framed, again, strict=True):
        score = first[index]
        if score is not None and framed_score is not None and abs(score - framed_score) > MOVED:
            moves.append(FrameMove(index, name, score, framed_score))
    return moves, len({index for index, *_ in framed})
