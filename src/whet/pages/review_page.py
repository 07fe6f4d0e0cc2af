"""review.html: completions with buttons to mark them. Its one script is its own; the content policy admits no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whet.pages.render import TEMPLATES, render, script_policy
from whet.pages.run_report import sample_card

ENDS = (("high", "Highest rewards"), ("low", "Lowest rewards"))


def review_policy() -> str:
    """The content policy that admits the page's own script and no other."""
    return script_policy((TEMPLATES / "review.js").read_text(encoding="utf-8"))


def review_page(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The whole page, the newest step first."""
    steps = [
        (
            step,
            [
                (name, [sample_card("", row) for row in rows if int(row["step"]) == step and row["end"] == end])
                for end, name in ENDS
            ],
        )
        for step in sorted({int(row["step"]) for row in rows}, reverse=True)
    ]
    return render(
        "review.html",
        policy=review_policy(),
        title=f"Review of {title}",
        heading=title,
        eyebrow="whet review",
        about=(f"{len(rows)} completions",),
        steps=steps,
        rows=[dict(row) for row in rows],
    )
