"""`whet eval` and `whet sample`: what a model writes, and its worth. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
    command_line,
    environment_settings,
    print_json,
)
from whet.settings.bounds import MOST_ROWS, MOST_SAMPLES

if TYPE_CHECKING:
    from whet.pages.eval_report import EvalReport
    from whet.tools.evaluation.measure import EvalProgress
    from whet.tools.evaluation.side_by_side import EvalCell
    from whet.types import Sample

commands = typer.Typer(**APP_SETTINGS)
EVALS = "evals"  # in a run folder: the completions of its evaluations by hand
EVAL_FOLDER = "eval"  # of several models, where --out names no other
RESULT = "eval.json"  # in it: everything that was measured


@commands.command("eval")
def evaluate(
    models: Annotated[list[str] | None, typer.Argument(help="Models or run folders; a server's names.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data", help="task:NAME, gym:NAME, a file, gsm8k:FILE, mmlu:FOLDER, hub:owner/name. Repeatable."
        ),
    ] = None,
    reward: Rewards = None,
    env: Environment = None,
    tool: Tools = None,
    agent: Agent = None,
    samples: Annotated[
        int, typer.Option("--samples", min=1, max=MOST_SAMPLES, help="Completions per prompt; 1 is greedy.")
    ] = 1,
    counts: Annotated[
        str | None, typer.Option("--k", help="k of pass@k and of votes: 1,8,32. Default: 1, 2, 4, ...")
    ] = None,
    shots: Annotated[int, typer.Option("--shots", min=0, max=1000, help="Worked examples before each question.")] = 0,
    shots_from: Annotated[
        str | None, typer.Option("--shots-from", help="File of training rows; default: the task's own.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Send plain text, without the chat template.")] = False,
    budget: Annotated[str | None, typer.Option("--budget", help="Accuracy at token budgets: 64,128,256.")] = None,
    confidence: Annotated[
        str | None, typer.Option("--confidence", help="Require calibration by votes or tokens; fail without it.")
    ] = None,
    refusals: Annotated[
        bool, typer.Option("--refusals", help="Report how often the model refuses, also by eval.by.")
    ] = False,
    server: Annotated[
        str | None, typer.Option("--server", help="OpenAI-compatible server: http://localhost:8000/v1.")
    ] = None,
    chunk: Annotated[
        int, typer.Option("--chunk", min=0, max=MOST_ROWS, help="Prompts between two saves; 0: 256 completions.")
    ] = 0,
    rerank: Annotated[list[str] | None, typer.Option(help="A reward model's run, or a reward. Repeatable.")] = None,
    search: Annotated[str | None, typer.Option(help="steps: search step by step, scored by --rerank.")] = None,
    page: Annotated[str | None, typer.Option("--html", help="Write the curves as a page.")] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", help="FILE.jsonl of the completions, or a folder; default: evals/ in the run, or eval.jsonl."
        ),
    ] = None,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Evaluate models on held-out prompts, with intervals. Several models are compared on the same prompts.

    Accuracy, reward, length, format, calibration; pass@k and majority votes with --samples; accuracy against tokens
    with --budget; best of n with --rerank. A run folder is measured on the held-out prompts of its own task. The
    completions are kept in a file; the same command continues where it was interrupted.
    """
    from whet import api
    from whet.pages.eval_report import eval_record
    from whet.settings.layers import from_settings, merged
    from whet.tools.evaluation.evaluation import PromptStyle
    from whet.tools.evaluation.measure import EvalPlan
    from whet.tools.evaluation.side_by_side import EvalCell, evaluate_cells
    from whet.types import WhetError

    if confidence not in (None, "votes", "tokens"):
        raise WhetError(f"--confidence {confidence}: give votes or tokens")
    plan = EvalPlan(
        samples=samples,
        style=PromptStyle(shots, shots_from or "", plain),
        budgets=_numbers("--budget", budget),
        confidence=confidence or "",
        refusals=refusals,
        counts=_numbers("--k", counts),
        chunk=chunk,
    )
    asked = {"engine": "openai", "engine_settings": {"base_url": server}} if server is not None else {}
    values = merged({"sampling": asked} if asked else {}, from_settings(settings or []))
    values = merged(values, _reward_settings(reward or ()))
    choice: dict[str, Any] = {"scorers": [{"reward": scorer} for scorer in rerank]} if rerank else {}
    choice |= {"search": search} if search is not None else {}
    values = merged(merged(values, environment_settings(env, tool, agent)), {"rerank": choice} if choice else {})
    page_file = _page_file(page)
    sources: Sequence[str | None] = data or [None]
    pairs = [(model, source) for model in models or ["whetstone"] for source in sources]
    folder = _out_folder(out, several=len(pairs) > 1)
    cells = []
    for model, source in pairs:
        config = api.evaluation_config(model, source, merged(values, {}))
        task = config.eval.source or config.data.source
        cells.append(EvalCell(config, _completions_file(out, model) if folder is None else folder / _name(model, task)))
    report = evaluate_cells(cells, plan, _tell_progress, lambda line: typer.echo(line, err=True))
    if folder is not None:
        _write(folder / RESULT, json.dumps(eval_record(report), indent=2) + "\n")
    if page_file is not None:
        _write(page_file, _page(report))
    if as_json:
        print_json(eval_record(report))
        return
    _print_report(report, page_file)


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
    """Print completions: to your own prompt, or to held-out prompts with their rewards. A single one is greedy.

    With --reward the completions are scored by it, those to your own prompt too. A task scores them by its own reward;
    prompts from a file need none.
    """
    from whet import api
    from whet.settings.layers import from_settings, merged
    from whet.types import Prompt

    values = merged(from_settings(settings or []), _reward_settings(reward or ()))
    values = merged(values, environment_settings(env, tool, agent))
    if number == 1:
        values.setdefault("sampling", {}).setdefault("temperature", 0.0)
    if prompt is None:
        from whet.tools.evaluation.evaluation import evaluate_groups

        values.setdefault("eval", {})["prompts"] = count
        config = api.evaluation_config(model, data, values)
        for group in evaluate_groups(config, number, on_facts=_tell_slow, scored=bool(reward)):
            gold = f"    (gold: {group.prompt.answer})" if group.prompt.answer is not None else ""
            asked = group.prompt.question() or _opening(group.samples)
            typer.echo(f"\n> {asked}{gold}")
            for sample in group.samples:
                text = _written(sample)
                typer.echo(f"  [{_score(sample.reward)}] {text}" if sample.parts else f"  {text}")
        return
    from whet.data.prompts import with_system_prompt
    from whet.tools.evaluation.evaluation import sample_completions

    question = Prompt("yours", () if plain else ({"role": "user", "content": prompt},), prompt if plain else None)
    config = api.evaluation_config(model, data, values)
    if config.data.system_prompt and not plain:
        (question,) = with_system_prompt([question], config.data.system_prompt)
    for written in sample_completions(config, [question], number, scored=bool(reward), on_facts=_tell_slow):
        for sample in written:
            typer.echo(f"[{_score(sample.reward)}] {_written(sample)}" if reward else _written(sample))


def _opening(samples: Sequence[Sample]) -> str:
    """How the environment began, where the row itself asks nothing."""
    from whet.pages.run_report import opening_text

    return next((text for sample in samples if (text := opening_text(sample.turns))), "")


def _written(sample: Sample) -> str:
    """A completion, or an episode turn by turn."""
    if not sample.turns:
        return sample.completion if sample.stop != "failed" else "(its environment failed)"
    from whet.pages.run_report import trajectory_text

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


def _numbers(option: str, text: str | None) -> tuple[int, ...]:
    """The numbers in a text such as `64,128,256`; they must ascend."""
    from whet.types import WhetError

    if text is None:
        return ()
    try:
        numbers = sorted({int(number) for number in text.split(",")})
    except ValueError:
        raise WhetError(f"{option} {text}: give whole numbers with commas between them, such as 64,128,256") from None
    if numbers[0] < 1 or numbers[-1] > 10_000_000:
        raise WhetError(f"{option} {text}: give numbers from 1 to 10,000,000")
    return tuple(numbers)


def _out_folder(out: str | None, several: bool) -> Path | None:
    """The folder in which the completions of several models or tasks lie side by side; None: there is one file."""
    from whet.types import WhetError

    if not several and (out is None or (Path(out).suffix and not Path(out).is_dir())):
        return None
    folder = Path(out or EVAL_FOLDER)
    if folder.suffix == ".jsonl":
        raise WhetError(f"--out {folder} is one file, and several models or tasks are evaluated; give a folder")
    return folder


def _completions_file(out: str | None, model: str) -> Path:
    """The file of one model's completions: --out, or beside the run that was evaluated."""
    from whet.record.run_folder import CONFIG

    if out is not None:
        return Path(out)
    if (Path(model) / CONFIG).is_file():
        folder = Path(model) / EVALS
        numbers = [int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdigit()]
        return folder / f"{max(numbers, default=0) + 1:03d}.jsonl"
    return Path("eval.jsonl")


def _name(model: str, task: str) -> str:
    return f"{_file_name(model)}.{_file_name(task)}.jsonl"


def _file_name(text: str) -> str:
    """A model or task as part of a file's name; long ones and odd characters by a digest."""
    import hashlib
    import re

    plain = re.sub(r"[^\w.-]+", "-", text).strip("-.")[-60:]
    return plain if plain == text else f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _page_file(page: str | None) -> Path | None:
    from whet.types import WhetError

    path = Path(page) if page else None
    if path is not None and not path.parent.is_dir():
        raise WhetError(f"--html {path}: there is no folder {path.parent}; make it, or give another path")
    return path


def _write(path: Path, text: str) -> None:
    from whet.types import WhetError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WhetError(f"{path}: cannot be written ({error.strerror}); give another path") from error


def _tell_progress(cell: EvalCell, now: EvalProgress) -> None:
    """A line per chunk, beside the results, not among them."""
    value = "" if now.value is None else f", {100 * now.value:.1f}% right so far"
    if now.value is not None and not 0 <= now.value <= 1:
        value = f", reward {now.value:.3g} so far"
    speed = f"{now.tokens_per_second:,.0f} tokens/s"
    typer.echo(f"{cell.model} on {cell.task}: {now.done} of {now.total} prompts, {speed}{value}", err=True)


def _page(report: EvalReport) -> str:
    from whet.pages.eval_report import eval_page

    return eval_page(report, command_line())


def _print_report(report: EvalReport, page: Path | None) -> None:
    from whet.pages.eval_report import eval_text
    from whet.pages.rerank import reranking_text

    typer.echo(eval_text(report))
    if len(report.evals) == 1:
        for name, fact in report.evals[0].facts.items():
            typer.echo(f"{name:18} {fact}")
        typer.echo(f"{'completions':18} {report.evals[0].completions}")
    else:
        typer.echo(f"\ncompletions: {Path(report.evals[0].completions).parent}")
    for model_eval in report.evals:
        if model_eval.reranking is not None:
            head = f"{model_eval.model} on {model_eval.task}\n" if len(report.evals) > 1 else ""
            typer.echo("\n" + head + reranking_text(model_eval.reranking))
    if page is not None:
        typer.echo(f"\npage: {page}")
