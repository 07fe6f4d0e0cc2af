"""`whet bench`. Heavy imports happen inside the command."""

from __future__ import annotations

from typing import Annotated

import typer

from whet.cli.options import APP_SETTINGS, AsJson, Model, Settings, number, print_result
from whet.settings.bounds import LONGEST_BENCH, MOST_SAMPLES, MOST_TOKENS

commands = typer.Typer(**APP_SETTINGS)


@commands.command()
def bench(
    model: Model = None,
    prompts: Annotated[int, typer.Option("--prompts", min=1, max=MOST_SAMPLES, help="Prompts per step.")] = 4,
    group: Annotated[int, typer.Option("--group", min=1, max=MOST_SAMPLES, help="Completions per prompt.")] = 8,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", min=1, max=MOST_TOKENS, help="Length of a prompt.")
    ] = 40,
    completion_tokens: Annotated[
        int, typer.Option("--completion-tokens", min=1, max=MOST_TOKENS, help="Length of a completion.")
    ] = 64,
    seconds: Annotated[float, number("--seconds", "For each measurement, about.", 0.001, LONGEST_BENCH)] = 3.0,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Measure how fast a model trains on this machine, where the time goes, and the machine's upper bound."""
    from whet.record.speed import RolloutShape, speed_text
    from whet.settings.layers import from_settings
    from whet.tools.bench.benchmark import benchmark, speed_record

    shape = RolloutShape(prompts, group, prompt_tokens, completion_tokens)
    result = benchmark(model or "whetstone", shape, seconds=seconds, settings=from_settings(settings or []))
    print_result(as_json, speed_record(result), speed_text(result))
