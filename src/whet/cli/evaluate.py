"""`whet eval` and `whet sample`: what a model writes, and its worth. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.cli.options import (
    APP_SETTINGS,
    Agent,
    AsJson,
    Data,
    Environment,
    Rewards,
    Settings,
    Tools,
    environment_settings,
    print_json,
)
from whet.config.bounds import MOST_ROWS, MOST_SAMPLES

if TYPE_CHECKING:
    from whet.types import Sample

commands = typer.Typer(**APP_SETTINGS)
EVALS = "evals"  # in a run folder: the completions of its evaluations by hand


@dataclass(frozen=True)
class EvalRequest:
    """The words of the command line."""

    model: str
    data: str | None
    samples: int
    rewards: Sequence[str]
    settings: Sequence[str]
    scorers: Sequence[str]
    search: str | None
    page: str | None
    out: str | None
    as_json: bool
    env: Mapping[str, Any]

    def values(self) -> dict[str, Any]:
        """All of it as settings."""
        from whet.config.config import from_settings, merged

        values = merged(from_settings(self.settings), _reward_settings(self.rewards))
        choice: dict[str, Any] = {"scorers": [{"reward": each} for each in self.scorers]} if self.scorers else {}
        choice |= {"search": self.search} if self.search is not None else {}
        return merged(merged(values, self.env), {"rerank": choice} if choice else {})


@commands.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="Model or run folder.")] = "whetstone",
    data: Data = None,
    reward: Rewards = None,
    env: Environment = None,
    tool: Tools = None,
    agent: Agent = None,
    samples: Annotated[
        int, typer.Option("--samples", min=1, max=MOST_SAMPLES, help="Completions per prompt; 1 is greedy.")
    ] = 1,
    rerank: Annotated[list[str] | None, typer.Option(help="A reward model's run, or a reward. Repeatable.")] = None,
    search: Annotated[str | None, typer.Option(help="steps: search step by step, by the --rerank.")] = None,
    page: Annotated[str | None, typer.Option("--html", help="Write the --rerank curves as a page.")] = None,
    out: Annotated[
        str | None, typer.Option("--out", help="File of the completions; default: evals/ in the run, or eval.jsonl.")
    ] = None,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Metrics of a model on held-out prompts: accuracy, reward, completion length; pass@k with --samples.

    A run folder is measured on the held-out prompts of its own task. The completions are kept in a file. With --rerank:
    best of n and votes for every n.
    """
    played = environment_settings(env, tool, agent)
    choices = (reward or (), settings or (), rerank or (), search, page, out, as_json, played)
    run_evaluation(EvalRequest(model, data, samples, *choices))


@commands.command()
def sample(
    model: Annotated[str, typer.Argument(help="Model or run folder.")] = "whetstone",
    prompt: Annotated[str | None, typer.Argument(help="A question; without one, held-out prompts are asked.")] = None,
    number: Annotated[
        int, typer.Option("--samples", "-n", min=1, max=MOST_SAMPLES, help="Completions per prompt.")
    ] = 1,
    count: Annotated[int, typer.Option("--count", min=1, max=MOST_ROWS, help="Held-out prompts to show.")] = 5,
    plain: Annotated[
        bool, typer.Option("--plain", help="Send the prompt as it is, without the chat template.")
    ] = False,
    data: Data = None,
    reward: Rewards = None,
    env: Environment = None,
    tool: Tools = None,
    agent: Agent = None,
    settings: Settings = None,
) -> None:
    """Look at completions: to your own prompt, or to held-out prompts with their rewards. Greedy for one completion.

    With --reward the completions are scored by it, those to your own prompt too. A task scores them by its own reward;
    prompts from a file need none.
    """
    from whet import api
    from whet.config.config import from_settings, merged
    from whet.types import Prompt

    values = merged(from_settings(settings or []), _reward_settings(reward or ()))
    values = merged(values, environment_settings(env, tool, agent))
    if number == 1:
        values.setdefault("sampling", {}).setdefault("temperature", 0.0)
    if prompt is None:
        from whet.evaluate.evaluation import evaluate_groups

        values.setdefault("eval", {})["prompts"] = count
        config = api.evaluation_config(model, data, values)
        for group in evaluate_groups(config, number, on_facts=_tell_slow, scored=bool(reward)):
            gold = f"    (gold: {group.prompt.answer})" if group.prompt.answer is not None else ""
            asked = group.prompt.question() or _opening(group.samples)
            typer.echo(f"\n> {asked}{gold}")
            for each in group.samples:
                text = _written(each)
                typer.echo(f"  [{_score(each.reward)}] {text}" if each.parts else f"  {text}")
        return
    from whet.evaluate.evaluation import sample_completions

    question = Prompt("yours", () if plain else ({"role": "user", "content": prompt},), prompt if plain else None)
    config = api.evaluation_config(model, data, values)
    for written in sample_completions(config, [question], number, scored=bool(reward), on_facts=_tell_slow):
        for each in written:
            typer.echo(f"[{_score(each.reward)}] {_written(each)}" if reward else _written(each))


def _opening(samples: Sequence[Sample]) -> str:
    """How the environment began, where the row itself asks nothing."""
    from whet.report.trajectory import opening_text

    return next((text for sample in samples if (text := opening_text(sample.turns))), "")


def _written(sample: Sample) -> str:
    """A completion, or an episode turn by turn."""
    if not sample.turns:
        return sample.completion if sample.stop != "failed" else "(its environment failed)"
    from whet.report.trajectory import trajectory_text

    return trajectory_text(sample.turns).replace("\n", "\n  ")


def _tell_slow(facts: Mapping[str, str]) -> None:
    """A path that is not the fastest has its reason in brackets; said beside the completions, not among them."""
    for name, path in facts.items():
        if path.endswith(")") or name in ("columns", "left out"):
            typer.echo(f"{name}: {path}", err=True)


def _score(reward: float | None) -> str:
    return "unscorable" if reward is None else f"{reward:g}"


def _reward_settings(rewards: Sequence[str]) -> dict[str, Any]:
    from whet.api.inputs import reward_parts, reward_section

    parts = reward_parts(list(rewards)) if rewards else None
    return {"reward": reward_section(parts)} if parts else {}


def run_evaluation(request: EvalRequest) -> None:
    from whet import api

    values = request.values()
    if "rerank" in values or request.page is not None:
        _run_reranking(request, values)
        return
    result = api.evaluate(request.model, request.data, samples=request.samples, settings=values)
    kept = _keep(request, result)
    if request.as_json:
        print_json(dict(result.metrics))
        return
    _print_metrics(result.metrics)
    for name, fact in result.facts.items():
        typer.echo(f"{name:18} {fact}")
    typer.echo(f"{'completions':18} {kept}")


def _keep(request: EvalRequest, result: Any) -> Path:
    """Write the completions: beside the run that was evaluated, or to --out."""
    from whet.config.run_folder import CONFIG
    from whet.types import WhetError

    folder = Path(request.model)
    if request.out is not None:
        place = Path(request.out)
    elif (folder / CONFIG).is_file():
        path = [int(each.stem) for each in (folder / EVALS).glob("*.jsonl") if each.stem.isdigit()]
        place = folder / EVALS / f"{max(path, default=0) + 1:03d}.jsonl"
        place.parent.mkdir(exist_ok=True)
    else:
        place = Path("eval.jsonl")
    try:
        place.write_text("".join(json.dumps(line) + "\n" for line in result.completions), encoding="utf-8")
    except OSError as error:
        raise WhetError(f"--out {place}: cannot write the completions there ({error.strerror})") from error
    return place


def _print_metrics(metrics: Mapping[str, float]) -> None:
    """In the words and units of `whet train`."""
    from whet.report.text import metric_text, words

    for name, value in metrics.items():
        typer.echo(f"{words(name):18} {metric_text(name, value)}")


def _run_reranking(request: EvalRequest, values: dict[str, Any]) -> None:
    """Print the metrics and the curves over n, and write the page."""
    from whet import api
    from whet.evaluate.reranking import rerank_completions
    from whet.report.rerank import reranking_record, reranking_text
    from whet.report.rerank_page import reranking_page
    from whet.types import WhetError

    place = Path(request.page) if request.page else None
    if place is not None and not place.parent.is_dir():
        raise WhetError(f"--html {place}: there is no folder {place.parent}; make it, or give another path")
    metrics, reranking = rerank_completions(api.evaluation_config(request.model, request.data, values), request.samples)
    if place is not None:
        place.write_text(reranking_page(reranking), encoding="utf-8")
    if request.as_json:
        print_json({**metrics, "rerank": reranking_record(reranking)})
        return
    _print_metrics(metrics)
    typer.echo("\n" + reranking_text(reranking))
    if place is not None:
        typer.echo(f"\npage: {place}")
