"""`whet plan`: what a run takes, before it is started. Heavy imports happen inside the command."""

from __future__ import annotations

from typing import Annotated

import typer

from whet.cli.options import APP_SETTINGS, AsJson, Settings, print_json
from whet.config.bounds import MOST_TOKENS

commands = typer.Typer(**APP_SETTINGS)


@commands.command()
def plan(
    method: Annotated[str, typer.Option("--method", help="A method of `whet algorithms`, sft or a reward model.")],
    model: Annotated[
        str, typer.Option("--model", help="Folder, run, hub id, a size (7B), a name (llama-7b) or hidden=..,layers=..")
    ] = "7B",
    gpus: Annotated[
        str, typer.Option("--gpus", help="Count and memory, 8x80GB; a card, 2xH100; or cpu:16GB.")
    ] = "1x80GB",
    prompt: Annotated[int, typer.Option("--prompt", min=1, max=MOST_TOKENS, help="Tokens of a prompt.")] = 512,
    completion: Annotated[
        int | None, typer.Option("--completion", min=1, max=MOST_TOKENS, help="Tokens of the longest completion.")
    ] = None,
    reward_model: Annotated[str, typer.Option("--reward-model", help="A learned reward, named as --model is.")] = "",
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """What a run takes before it starts: memory of every copy with its arithmetic, what fits, what to change, seconds.

    Example:

      whet plan --model 7B --method ppo --gpus 8x80GB --prompt 512 --completion 4096
    """
    from whet.api.planning import plan as planned
    from whet.config.config import from_settings
    from whet.plan.plan import plan_record, plan_text

    found = planned(
        method,
        model=model,
        gpus=gpus,
        prompt_tokens=prompt,
        completion_tokens=completion,
        reward_model=reward_model,
        settings=from_settings(settings or []),
    )
    if as_json:
        print_json(plan_record(found))
        return
    typer.echo(plan_text(found))
