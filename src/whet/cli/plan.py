"""`whet plan` and `whet bench`: what a run takes before it is started, and how fast this machine is."""

from __future__ import annotations

from typing import Annotated, Any

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
    seconds: Annotated[float, number("--seconds", "Approximate seconds per measurement.", 0.001, LONGEST_BENCH)] = 3.0,
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


@commands.command()
def plan(
    method: Annotated[str, typer.Option("--method", help="A method of `whet algorithms`, sft or a reward model.")],
    model: Annotated[
        str, typer.Option("--model", help="Folder, run, hub id, a size (7B), a name (llama-7b) or hidden=..,layers=..")
    ] = "7B",
    gpus: Annotated[
        str, typer.Option("--gpus", help="Count and memory, 8x80GB; a card, 2xH100; or cpu:16GB.")
    ] = "1x80GB",
    prompt: Annotated[
        int | None,
        typer.Option("--prompt", min=1, max=MOST_TOKENS, help="Tokens of a prompt: 512, or what the context leaves."),
    ] = None,
    completion: Annotated[
        int | None, typer.Option("--completion", min=1, max=MOST_TOKENS, help="Tokens of the longest completion.")
    ] = None,
    reward_model: Annotated[str, typer.Option("--reward-model", help="A learned reward, named as --model is.")] = "",
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Events of a cluster in time: throughput, idle shares, staleness, limits."),
    ] = False,
    mean_length: Annotated[
        float | None, number("--mean-length", "Mean tokens of a simulated completion.", 1, MOST_TOKENS)
    ] = None,
    reward_seconds: Annotated[
        float, number("--reward-seconds", "Seconds that a simulated reward takes.", 0, 86400)
    ] = 0.0,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Plan a run before it starts: memory of every copy with its arithmetic, what fits, what to change, seconds.

    Example:

      whet plan --model 7B --method ppo --gpus 8x80GB --prompt 512 --completion 4096

      whet plan --model 7B --method grpo --gpus 64xH100 --simulate --set batch.prompts_per_step=512
    """
    from whet.api.planning import plan as planned
    from whet.api.planning import simulation
    from whet.settings.layers import from_settings
    from whet.tools.planner.cluster_simulation import cluster_record, cluster_text
    from whet.tools.planner.plan import plan_record, plan_text
    from whet.types import WhetError

    if not simulate and (mean_length is not None or reward_seconds):
        raise WhetError("--mean-length and --reward-seconds have no effect without --simulate; add it, or drop them")
    run: dict[str, Any] = {"model": model, "gpus": gpus, "prompt_tokens": prompt, "completion_tokens": completion}
    run["settings"] = from_settings(settings or [])
    if simulate:
        layouts = simulation(method, mean_length=mean_length, reward_seconds=reward_seconds, **run)
        print_result(as_json, cluster_record(layouts), cluster_text(layouts))
        return
    resource_plan = planned(method, reward_model=reward_model, **run)
    print_result(as_json, plan_record(resource_plan), plan_text(resource_plan))
