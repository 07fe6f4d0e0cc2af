"""Commands that only print text: `whet algorithms`, `explain`, `advise` and `config`. They import no torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from whet.cli.options import APP_SETTINGS, AsJson, Data, Model, Settings, finite, print_json
from whet.settings.bounds import MOST_TOKENS, MOST_WEIGHT

commands = typer.Typer(**APP_SETTINGS)


@commands.command()
def algorithms(
    components: Annotated[
        bool, typer.Option("--components", help="Show the components of each method: a wide table.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the methods and what each is for; --components shows what they are made of."""
    from whet.objective.catalogue import methods
    from whet.pages.methods import algorithms_text, record

    if as_json:
        print_json([record(method) for method in methods().values() if method.components])
        return
    typer.echo(algorithms_text(components))
    typer.echo("\n`whet explain METHOD` shows one in full, `whet advise` helps to choose.")


@commands.command()
def explain(method: Annotated[str, typer.Argument(help="A method of `whet algorithms`, or sft.")]) -> None:
    """Explain a method: its formula, components, paper, what it fixes and what it breaks."""
    from whet.pages.methods import explanation_with_plot

    typer.echo(explanation_with_plot(method))


@commands.command("config")
def show_config(
    method: Annotated[str, typer.Argument(help="A method of `whet algorithms`, or sft.")],
    model: Model = None,
    data: Data = None,
    settings: Settings = None,
) -> None:
    """Print the whole config of a run as TOML, defaults included. Save it, edit it, and train with --config."""
    from whet.settings.layers import from_settings, merged
    from whet.training.annotated_config import annotated_toml
    from whet.training.config import resolved

    chosen: dict[str, Any] = {}
    if model is not None:
        chosen["model"] = {"name": model}
    if data is not None:
        chosen["data"] = {"source": data}
    typer.echo(annotated_toml(resolved(method, merged(from_settings(settings or []), chosen))), nl=False)


@commands.command()
def advise(
    signal: Annotated[
        str | None,
        typer.Option("--signal", help="verifiable, preferences, labels, demonstrations or reward_model."),
    ] = None,
    model_size: Annotated[
        float | None, typer.Option("--model-size", min=0, max=MOST_WEIGHT, callback=finite, help="Billions of weights.")
    ] = None,
    moe: Annotated[bool, typer.Option("--moe", help="The model is a mixture of experts.")] = False,
    memory: Annotated[
        float | None, typer.Option("--memory", min=0, max=MOST_WEIGHT, callback=finite, help="Gigabytes of the device.")
    ] = None,
    completion_tokens: Annotated[
        int | None, typer.Option("--completion-tokens", min=1, max=MOST_TOKENS, help="Budget of a completion.")
    ] = None,
    several_updates: Annotated[
        bool, typer.Option("--several-updates", help="Each batch is used for several updates.")
    ] = False,
    one_completion: Annotated[
        bool, typer.Option("--one-completion", help="Only one completion per prompt is affordable.")
    ] = False,
    agent: Annotated[bool, typer.Option("--agent", help="The model acts over several turns.")] = False,
    goal: Annotated[
        str | None, typer.Option("--goal", help="pass@1, or pass@k: one of k completions is right.")
    ] = None,
    rows: Annotated[int | None, typer.Option("--rows", min=0, max=10**12, help="Rows of data.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recommend a method, with reasons, alternatives, memory and the command. Asks questions if no flag is given.

    Example:

      whet advise --signal verifiable --model-size 7 --memory 80 --completion-tokens 8000
    """
    from whet.tools.advice.guide import advice
    from whet.tools.advice.situation import advice_record, advice_text, situation_from_flags

    flags = {
        "signal": signal,
        "model_billions": model_size,
        "mixture_of_experts": moe or None,
        "memory_gigabytes": memory,
        "completion_tokens": completion_tokens,
        "several_updates": several_updates or None,
        "group_sampling": False if one_completion else None,
        "turns": agent or None,
        "goal": goal,
        "data_size": rows,
    }
    situation = situation_from_flags(flags, terminal=sys.stdin.isatty() and sys.stdout.isatty() and not as_json)
    if situation is None:
        raise typer.Exit(130)
    recommendation = advice(situation)
    if as_json:
        print_json(advice_record(situation, recommendation))
        return
    typer.echo(advice_text(situation, recommendation))


@commands.command()
def migrate(
    command: Annotated[
        str,
        typer.Argument(
            help="A command line of verl, OpenRLHF or TRL in quotes, a shell script with one, or a YAML file."
        ),
    ],
    out: Annotated[str | None, typer.Option("-o", "--out", help="File for the TOML (default: print it).")] = None,
) -> None:
    """Translate the command or config of another trainer into whet's TOML, and list what has no counterpart.

    Examples:

      whet migrate 'python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=256' -o run.toml

      whet migrate 'trl dpo --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/ultrafeedback_binarized'

    `whet train METHOD --config FILE` trains with it.
    """
    from whet.settings.migrate import from_command, translate
    from whet.training.config import resolved
    from whet.types import WhetError

    translation = translate(*from_command(command))
    written = str(translation)
    if out is None:
        typer.echo(written, nl=False)
    else:
        Path(out).write_text(written, encoding="utf-8")
        count = len(translation.unmapped)
        listed = f"{count} setting{'s' if count > 1 else ''} without a counterpart: listed at its top"
        typer.echo(f"{out}: {listed}" if count else out)
        typer.echo(f"next  whet train {translation.method} --config {out}")
    try:
        resolved(translation.method, translation.settings, rows=1)  # the data is not read for this
    except WhetError as error:
        typer.echo(f"note  whet train would refuse it: {error}", err=True)
