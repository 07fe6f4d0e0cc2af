"""What `whet eval` shows: marks, and with --rerank what every way of choosing among the completions is worth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer


@dataclass(frozen=True)
class Asked:
    """The words of the command line."""

    model: str
    data: str | None
    samples: int
    rewards: Sequence[str]
    settings: Sequence[str]
    scorers: Sequence[str]
    search: str | None
    page: str | None
    as_json: bool

    def values(self) -> dict[str, Any]:
        """All of it as settings."""
        from whet.config.config import from_settings, merged

        values = from_settings(self.settings)
        if self.rewards:
            values = merged(values, {"reward": {"parts": [{"reward": each} for each in self.rewards]}})
        choice: dict[str, Any] = {"scorers": [{"reward": each} for each in self.scorers]} if self.scorers else {}
        choice |= {"search": self.search} if self.search is not None else {}
        return merged(values, {"rerank": choice} if choice else {})


def tell_evaluation(asked: Asked) -> None:
    from whet import api

    values = asked.values()
    if "rerank" in values or asked.page is not None:
        _tell_reranking(asked, values)
        return
    found = api.evaluate(asked.model, data=asked.data, samples=asked.samples, settings=values).metrics
    if asked.as_json:
        typer.echo(json.dumps(dict(found), indent=2))
        return
    _tell(found)


def _tell(marks: Mapping[str, float]) -> None:
    for name, value in marks.items():
        typer.echo(f"{name:14} {value:.4g}")


def _tell_reranking(asked: Asked, values: dict[str, Any]) -> None:
    """Print the marks and the curves over n, and write the page."""
    from whet import api
    from whet.evaluate.reranking import reranked
    from whet.report.rerank import reranking_record, reranking_text
    from whet.report.rerank_page import reranking_page
    from whet.types import WhetError

    place = Path(asked.page) if asked.page else None
    if place is not None and not place.parent.is_dir():
        raise WhetError(f"--html {place}: there is no folder {place.parent}; make it, or give another path")
    marks, found = reranked(api.evaluation_config(asked.model, asked.data, values), asked.samples)
    if place is not None:
        place.write_text(reranking_page(found), encoding="utf-8")
    if asked.as_json:
        typer.echo(json.dumps({**marks, "rerank": reranking_record(found)}, indent=2))
        return
    _tell(marks)
    typer.echo("\n" + reranking_text(found))
    if place is not None:
        typer.echo(f"\npage: {place}")
