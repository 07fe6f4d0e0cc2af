"""Checks of a reward while it trains: a stricter verifier and other frames, on a sample of what was rewarded.

They change no score. What they find are metrics of the step: `held_out_disagreement` is the share of checked rewarded
completions that the held-out reward does not accept, `frame_moves` the share whose score depends on their frame,
`frame_pays` by how much the frame raised the score on average, `checks_scored` how many completions were scored for it
(its time counts as the reward's). A reward that is being gamed shows here first: the policy has no reason to please a
verifier that never pays it.

The same answer in other frames: what must not change a score, and whether it does.

A reward that checks an answer gives the same score whatever stands around that answer: more text, other marks, nothing
after it. One that does not is paid by the frame, and a policy learns to write the frame.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from whet.data.gold import boxed
from whet.protocols import Reward
from whet.reward.answer import final_answer, final_part, tagged
from whet.reward.combine import RewardPart
from whet.reward.score import score
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


ACCEPTED = 0.5  # a score of the held-out reward from here on agrees that a completion is right
REWARDED = 0.5  # and one of the first part says so


@dataclass
class RewardChecks:
    """Looks at a share of the rewarded completions of every step; `take_notes` gives what it found and forgets it."""

    first: Reward  # the part that says whether a completion is right
    share: float
    timeout: float
    held_out: Reward | None = None
    in_frames: bool = False
    _found: dict[str, list[float]] = field(default_factory=dict)

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> None:
        """Check some of these scored samples. Which ones depends on their text alone, so a resumed run agrees."""
        chosen = [
            (prompt, sample)
            for prompt, sample in zip(prompts, samples, strict=True)
            if sample.parts.get(self.first.name, 0.0) >= REWARDED and self.is_drawn(prompt, sample)
        ]
        if not chosen:
            return
        asked, written = [prompt for prompt, _ in chosen], [sample for _, sample in chosen]
        if self.held_out is not None:
            judged = [value for value in self._scores(self.held_out, asked, written) if value is not None]
            self._note("held_out_disagreement", [float(value < ACCEPTED) for value in judged])
            self._note("checks_scored", [float(len(written))])
        if self.in_frames:
            moves, framed = frame_moves(asked, written, lambda a, b: self._scores(self.first, a, b))
            moved = {move.place for move in moves}
            pays = {row: max(m.score - m.framed_score for m in moves if m.place == row) for row in moved}
            self._note("frame_moves", [1.0] * len(moved) + [0.0] * (framed - len(moved)))
            self._note("frame_pays", [*pays.values(), *[0.0] * (framed - len(moved))])
            self._note(
                "checks_scored", [float(len(written) + sum(len(frames(sample.completion)) for sample in written))]
            )

    def is_drawn(self, prompt: Prompt, sample: Sample) -> bool:
        """Whether this sample is among the share that is checked, decided by its text alone."""
        digest = hashlib.sha256(f"{prompt.id}\n{sample.completion}".encode(errors="replace")).digest()
        return int.from_bytes(digest[:4], "big") < self.share * 2**32

    def take_notes(self) -> dict[str, float]:
        """Means since the last time; of what was scored, the sum."""
        notes = {
            name: sum(values) / (1 if name == "checks_scored" else len(values)) for name, values in self._found.items()
        }
        self._found = {}
        return notes

    def _note(self, name: str, values: list[float]) -> None:
        if values:
            self._found.setdefault(name, []).extend(values)

    def _scores(self, reward: Reward, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        """Failures of a check are no failures of the run: such samples are not counted."""
        bare = [sample.scored({}, None) for sample in samples]
        scored = score(prompts, bare, [RewardPart(reward)], self.timeout, "exclude")
        return [sample.parts.get(reward.name) for sample in scored]
