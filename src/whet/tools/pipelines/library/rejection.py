"""Which completions become demonstrations. Pure: rows of completions in, demonstrations and what was dropped out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.reward.language import language
from whet.types import Prompt

RUN = 3  # words of a run, when two completions are compared
MOSTLY = 0.9  # share of a completion's letters that must be in the language


@dataclass(frozen=True)
class KeepRule:
    """What a completion must be to be learned from."""

    most_per_prompt: int = 1
    least_score: float = 1.0
    least_tokens: int = 1
    most_tokens: int = 0  # 0: any that ended
    language: str = ""  # a code, "prompt", or "" for any
    near: float = 0.9  # share of word runs that two kept completions of a prompt may have in common
    skip_solved: bool = False  # prompts whose completions are all right teach nothing new


def kept_rows(rows: Sequence[Mapping[str, Any]], rule: KeepRule) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Demonstrations, and how many completions went for which reason; every completion is counted once."""
    names = ("completions", "kept", "wrong", "unscorable", "cut_off", "too_short", "too_long", "other_language")
    counts = dict.fromkeys((*names, "equal", "near_equal", "over_the_limit", "of_solved_prompts", "hinted"), 0)
    chosen_rows: list[dict[str, Any]] = []
    for row in rows:
        counts["completions"] += len(row["completions"])
        chosen = _chosen(row, rule, counts)
        hinted = row.get("hinted")
        if hinted and not chosen:
            counts["hinted"] += 1
            chosen = [hinted]
        counts["kept"] += len(chosen)
        chosen_rows += [
            {"id": f"{row['id']}#{index}" if index else row["id"], "prompt": row["prompt"], "completion": text}
            for index, text in enumerate(chosen)
        ]
    return chosen_rows, counts


def _chosen(row: Mapping[str, Any], rule: KeepRule, counts: dict[str, int]) -> list[str]:
    whole = list(zip(row["completions"], row["scores"], row["finished"], row["tokens"], strict=True))
    if rule.skip_solved and all(score is not None and score >= rule.least_score for _, score, _, _ in whole):
        counts["of_solved_prompts"] += len(whole)
        return []
    fitting: list[str] = []
    for text, score, finished, tokens in whole:
        reason = _refusal(row, text, score, finished, tokens, rule)
        if reason:
            counts[reason] += 1
        else:
            fitting.append(text)
    chosen: list[str] = []
    # in the order they were drawn: the shortest right completion is often a lucky guess without its working
    for text in fitting:
        plain = " ".join(text.split())
        if any(plain == " ".join(other.split()) for other in chosen):
            counts["equal"] += 1
        elif any(shared_runs(text, other) > rule.near for other in chosen):
            counts["near_equal"] += 1
        elif len(chosen) == rule.most_per_prompt:
            counts["over_the_limit"] += 1
        else:
            chosen.append(text)
    return chosen


def _refusal(
    row: Mapping[str, Any], text: str, score: float | None, finished: bool, tokens: int, rule: KeepRule
) -> str:
    """Why a completion is not learned from, "" where it is."""
    if score is None:
        return "unscorable"
    if score < rule.least_score:
        return "wrong"
    if not finished:
        return "cut_off"
    if tokens < rule.least_tokens:
        return "too_short"
    if rule.most_tokens and tokens > rule.most_tokens:
        return "too_long"
    if rule.language and not _is_in_language(row, text, rule.language):
        return "other_language"
    return ""


def _is_in_language(row: Mapping[str, Any], text: str, expected: str) -> bool:
    content = row["prompt"]
    prompt = Prompt(str(row["id"]), (), content) if isinstance(content, str) else Prompt(str(row["id"]), tuple(content))
    share = language(prompt, text, expected=expected)
    return share is None or share >= MOSTLY


def shared_runs(one: str, other: str) -> float:
    """|A and B| / |A or B| of the runs of three words of two texts; 1 where both have the same."""
    first, second = _runs(one), _runs(other)
    return len(first & second) / len(first | second) if first | second else 1.0


def _runs(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[at : at + RUN]) for at in range(max(1, len(words) - RUN + 1))} if words else set()
