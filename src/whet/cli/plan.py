"""`whet plan`: what a run takes, before it is started. Heavy imports happen inside the command."""

from __future__ import annotations

from typing import Annotated

import typer

from whet.cli.options import APP_SETTINGS, AsJson, Settings, finite, print_json
from whet.settings.bounds import MOST_TOKENS

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
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Events of a cluster in time: throughput, idle shares, staleness, limits."),
    ] = False,
    mean_length: Annotated[
        float | None,
        typer.Option("--mean-length", min=1, max=MOST_TOKENS, callback=finite, help="Of a simulated completion."),
    ] = None,
    reward_seconds: Annotated[
        float, typer.Option("--reward-seconds", min=0, max=86400, callback=finite, help="Of a simulated reward.")
    ] = 0.0,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """What a run takes before it starts: memory of every copy with its arithmetic, what fits, what to change, seconds.

    Example:

      whet plan --model 7B --method ppo --gpus 8x80GB --prompt 512 --completion 4096

      whet plan --model 7B --method grpo --gpus 64xH100 --simulate --set batch.prompts_per_step=512
    """
    from whet.api.planning import plan as planned
    from whet.api.planning import simulation
    from whet.settings.layers import from_settings
    from whet.tools.planner.cluster import cluster_record, cluster_text
    from whet.tools.planner.plan import plan_record, plan_text
    from whet.types import WhetError

    if not simulate and (mean_length is not None or reward_seconds):
        raise WhetError("--mean-length and --reward-seconds have no effect without --simulate; add it, or drop them")
    if simulate:
        layouts = simulation(
            method,
            model=model,
            gpus=gpus,
            prompt_tokens=prompt,
            completion_tokens=completion,
            mean_length=mean_length,
            reward_seconds=reward_seconds,
            settings=from_settings(settings or []),
        )
        print_json(cluster_record(layouts)) if as_json else typer.echo(cluster_text(layouts))
        return
    resource_plan = planned(
        method,
        model=model,
        gpus=gpus,
        prompt_tokens=prompt,
        completion_tokens=completion,
        reward_model=reward_model,
        settings=from_settings(settings or []),
    )
    if as_json:
        print_json(plan_record(resource_plan))
        return
    typer.echo(plan_text(resource_plan))
