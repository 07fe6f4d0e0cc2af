"""A small model as judge: the mark it would give, read from the probabilities of the first digits of its verdict.

Nothing is written out: the verdict line is begun for it, so that a mark costs one pass over the question, and one
more token to tell a 10 from a 1. Marks are kept in a file by the content of the question, so a run that was cut goes
on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from whet.data.chat import prompt_tokens
from whet.model.load import load_model
from whet.types import Prompt

Question = Sequence[Mapping[str, str]]
MARKS = range(11)


class SmallJudge:
    """Probabilities of the marks 0 to 10. The model is loaded when a question comes that the file does not hold."""

    def __init__(self, model: str, file: Path, begun: Callable[[Question], str], tokens_per_batch: int = 0) -> None:
        """`begun` gives the verdict of a question up to its mark."""
        self.model, self.file, self._begun, self._tokens_per_batch = model, file, begun, tokens_per_batch
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self._known: dict[str, list[float]] = {row["key"]: row["marks"] for row in map(json.loads, lines)}
        self._loaded: Any = None

    def marks(self, questions: Sequence[Question]) -> list[list[float]]:
        """The probability of each mark, in order."""
        keys = [hashlib.sha256(json.dumps([*map(dict, question)]).encode()).hexdigest()[:24] for question in questions]
        missing = {key: question for key, question in zip(keys, questions, strict=True) if key not in self._known}
        if missing:
            self._answer(missing)
        return [self._known[key] for key in keys]

    def _answer(self, missing: Mapping[str, Question]) -> None:
        if self._loaded is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            self._loaded = load_model(self.model, torch.bfloat16 if device == "cuda" else torch.float32, device)
        tokenizer = self._loaded.tokenizer
        rows = []
        for key, question in missing.items():
            begun = tokenizer(self._begun(question), add_special_tokens=False)["input_ids"]
            rows.append((key, [*prompt_tokens(tokenizer, Prompt("judge", tuple(map(dict, question)))), *begun]))
        rows.sort(key=lambda row: len(row[1]))
        limit = self._tokens_per_batch or (100_000 if torch.cuda.is_available() else 2_000)
        done = 0
        while done < len(rows):
            size = max(1, limit // len(rows[min(done + limit // len(rows[done][1]), len(rows) - 1)][1]))
            batch = rows[done : done + size]
            with self.file.open("a", encoding="utf-8") as file:
                for (key, _), marks in zip(batch, self._read([tokens for _, tokens in batch]), strict=True):
                    self._known[key] = marks
                    file.write(json.dumps({"key": key, "marks": [round(share, 5) for share in marks]}) + "\n")
            done += len(batch)
            print(f"{done} of {len(rows)} questions", flush=True)

    def _read(self, rows: list[list[int]]) -> list[list[float]]:
        shares, zeros = self._next(rows)
        marks = []
        for row, zero in zip(shares, zeros, strict=True):
            ten = row[1] * zero
            read = [*row[:1], row[1] - ten, *row[2:], ten]
            total = sum(read)
            marks.append([share / total for share in read])
        return marks

    def _digits(self) -> list[int]:
        return [self._loaded.tokenizer(str(digit), add_special_tokens=False)["input_ids"][-1] for digit in range(10)]

    @torch.no_grad()
    def _next(self, rows: list[list[int]]) -> tuple[list[list[float]], list[float]]:
        """Of each row the probabilities of the ten digits as its next token, and that of a 0 after a 1."""
        width, device = max(map(len, rows)), self._loaded.model.device
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        digits = self._digits()
        first = self._loaded.model(input_ids=ids, attention_mask=mask, logits_to_keep=1, use_cache=True)
        shares: list[list[float]] = first.logits[:, -1].float().softmax(-1)[:, digits].tolist()
        second = self._loaded.model(
            input_ids=torch.full_like(ids[:, :1], digits[1]),
            attention_mask=torch.cat([mask, mask[:, -1:]], 1),
            past_key_values=first.past_key_values,
        )
        return shares, second.logits[:, -1].float().softmax(-1)[:, digits[0]].tolist()


def likeliest(marks: Sequence[float]) -> float:
    """The mark it would write."""
    return float(max(MARKS, key=lambda mark: marks[mark]))


def expected(marks: Sequence[float]) -> float:
    """The mean of the marks it might write."""
    return round(sum(mark * share for mark, share in zip(MARKS, marks, strict=True)), 3)
