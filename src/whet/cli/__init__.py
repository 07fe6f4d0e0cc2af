"""The command line. Heavy imports happen inside the commands, so that help is instant."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from whet import __version__
from whet.cli.label import label_app
from whet.cli.pipeline import pipeline_app
from whet.cli.reward import reward_app
from whet.cli.study import study_app

app = typer.Typer(
    name="whet",
    help="Sharpen language models with reinforcement learning.\n\n"
    "Try `whet train grpo`: the built-in model learns a built-in task in a minute, without GPU, hub or network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(label_app)
app.add_typer(reward_app)
app.add_typer(study_app)
app.registered_commands += pipeline_app.registered_commands

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Any config value, e.g. batch.group_size=16. Repeatable."),
]
Model = Annotated[
    str | None, typer.Option("--model", help="Built-in name, folder, run folder, .gguf file, smollm2 or hub id.")
]
Rewards = Annotated[
    list[str] | None,
    typer.Option("--reward", help="Built-in name, module:function or file.py:function. Repeatable."),
]
Data = Annotated[
    str | None, typer.Option("--data", help="task:arithmetic (countdown, lists), a file, or hub:owner/name.")
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"whet {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    method: Annotated[str, typer.Argument(help="A row of `whet algorithms`, or sft.")],
    model: Model = None,
    data: Data = None,
    reward: Rewards = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Optimization steps.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of everything random in the run.")] = None,
    folder: Annotated[str | None, typer.Option("--folder", help="Of the run; default: the next under runs/.")] = None,
    config: Annotated[str | None, typer.Option("--config", help="A TOML file; --set and flags win over it.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Reward models of an ensemble, one a seed.")] = 1,
    settings: Settings = None,
) -> None:
    """Train a model and leave a run folder with checkpoints, samples, metrics and report.html.

    Examples:

      whet train grpo

      whet train gspo --set batch.updates_per_step=4

      whet train dr_grpo --model smollm2 --data train.jsonl --reward math_answer

      whet train sft --data chats.jsonl --set batch.packed=true

    `whet config METHOD` shows every key that --set takes, with its default.
    """
    from whet import api
    from whet.config.config import from_settings, merged, read_toml

    flags: dict[str, Any] = {
        key: value for key, value in (("steps", steps), ("seed", seed), ("folder", folder)) if value is not None
    }
    values = merged(read_toml(config) if config else {}, from_settings(settings or []))
    if seeds > 1:
        from whet.experiments.ensemble import train_ensemble

        command = shlex.join(["whet", *sys.argv[1:]])
        flags |= {"model": model, "data": data, "reward": reward or None}
        return _leave(train_ensemble(method, seeds, config=values, command=command, **flags))
    run = api.train(
        method,
        model=model,
        data=data,
        reward=list(reward) if reward else None,
        config=values,
        command=shlex.join(["whet", *sys.argv[1:]]),
        **flags,
    )
    _leave(run)


@app.command("config")
def show_config(
    method: Annotated[str, typer.Argument(help="A row of `whet algorithms`, or sft.")],
    model: Model = None,
    data: Data = None,
    settings: Settings = None,
) -> None:
    """The whole config of a run as TOML, defaults included: look at it, or save it, edit it and train with --config."""
    from whet.config.config import from_settings, merged, resolved, toml_text

    chosen: dict[str, Any] = {}
    if model is not None:
        chosen["model"] = {"name": model}
    if data is not None:
        chosen["data"] = {"source": data}
    typer.echo(toml_text(resolved(method, merged(from_settings(settings or []), chosen))), nl=False)


@app.command()
def resume(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    steps: Annotated[int | None, typer.Option("--steps", help="New total of steps, to train longer.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--from", help="Checkpoint to go on from, e.g. step-000020; default: the newest.")
    ] = None,
) -> None:
    """Go on with a run, exactly where its newest complete checkpoint is; or with a pipeline, where it stopped."""
    from whet import api
    from whet.pipeline.runner import is_pipeline, resume_pipeline

    if is_pipeline(run):
        _leave(resume_pipeline(run, steps, checkpoint))
        return
    _leave(api.resume(run, steps=steps, checkpoint=checkpoint, command=shlex.join(["whet", *sys.argv[1:]])))


@app.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="Model or run folder.")] = "whetstone",
    data: Data = None,
    reward: Rewards = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Completions a prompt; 1 is greedy.")] = 1,
    rerank: Annotated[list[str] | None, typer.Option(help="A reward model's run, or a reward. Repeatable.")] = None,
    search: Annotated[str | None, typer.Option(help="steps: search step by step, by the --rerank.")] = None,
    page: Annotated[str | None, typer.Option("--html", help="Write the --rerank curves as a page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    settings: Settings = None,
) -> None:
    """Marks of a model on held-out prompts: accuracy, reward, completion length; pass@k with --samples.

    A run folder is asked on the held-out prompts of its own task. With --rerank: best of n and votes for every n.
    """
    from whet.cli.evaluate import Asked, tell_evaluation

    flags = (reward or (), settings or (), rerank or (), search, page, as_json)
    tell_evaluation(Asked(model, data, samples, *flags))


@app.command()
def sample(
    model: Annotated[str, typer.Argument(help="Model or run folder.")] = "whetstone",
    prompt: Annotated[str | None, typer.Argument(help="A question; without one, held-out prompts are asked.")] = None,
    number: Annotated[int, typer.Option("--samples", "-n", min=1, help="Completions a prompt.")] = 1,
    count: Annotated[int, typer.Option("--count", min=1, help="Held-out prompts to show.")] = 5,
    plain: Annotated[
        bool, typer.Option("--plain", help="Send the prompt as it is, without the chat template.")
    ] = False,
    data: Data = None,
    settings: Settings = None,
) -> None:
    """Look at completions: to your own prompt, or to held-out prompts with their rewards. Greedy for one completion."""
    from whet import api
    from whet.config.config import from_settings
    from whet.evaluate.evaluation import held_out_groups, written_completions
    from whet.types import Prompt

    values = from_settings(settings or [])
    if number == 1:
        values.setdefault("sampling", {}).setdefault("temperature", 0.0)
    if prompt is None:
        values.setdefault("report", {})["eval_prompts"] = count
        for group in held_out_groups(api.evaluation_config(model, data, values), number):
            typer.echo(f"\n> {group.prompt.question()}    (gold: {group.prompt.answer})")
            for each in group.samples:
                typer.echo(f"  [{each.reward if each.reward is not None else 'unscorable'}] {each.completion}")
        return
    question = Prompt("yours", () if plain else ({"role": "user", "content": prompt},), prompt if plain else None)
    for completions in written_completions(api.evaluation_config(model, data, values), [question], number):
        for completion in completions:
            typer.echo(completion)


@app.command()
def algorithms(
    components: Annotated[
        bool, typer.Option("--rows", help="Show the components of each method: a wide table.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The methods, and what each is for; with --rows the components it is made of."""
    from whet.explain.policy_table import markdown_table, overview, rows
    from whet.explain.preference_table import pair_overview, pair_rows, pair_table
    from whet.objective.presets.reward_model import REWARD_MODELS

    if as_json:
        _print_json([*rows(), *pair_rows()])
        return
    typer.echo("Reinforcement learning, from rewards\n")
    typer.echo(markdown_table(numbers=False) if components else overview(papers=False))
    typer.echo("\nPreference learning, from pairs or labels\n")
    typer.echo(pair_table() if components else pair_overview(papers=False))
    typer.echo("\nReward models\n")
    for name, preset in REWARD_MODELS.items():
        typer.echo(f"{name:5} {preset.title}: {preset.words}")
    typer.echo(
        "\n`whet explain METHOD` shows one in full, `whet advise` helps to choose. There is also `whet train sft`."
    )


@app.command()
def explain(method: Annotated[str, typer.Argument(help="A row of `whet algorithms`.")]) -> None:
    """A method's formula, row, paper, what it fixes and what it breaks."""
    from whet.config.config import SFTConfig, config_kind
    from whet.explain.clip_plots import clip_text
    from whet.explain.policy_table import explanation
    from whet.explain.preference_table import pair_explanation, reward_model_explanation
    from whet.objective import preset_named
    from whet.objective.presets.preference import PAIR_PRESETS
    from whet.objective.presets.reward_model import REWARD_MODELS

    if config_kind(method) is SFTConfig:
        return typer.echo(
            f"Supervised fine-tuning: J = 1/M SUM log pi(completion token)\n\nrun it    whet train {method}"
        )
    if method in PAIR_PRESETS or method in REWARD_MODELS:
        typer.echo((pair_explanation if method in PAIR_PRESETS else reward_model_explanation)(method))
        return
    typer.echo(explanation(method))
    typer.echo("\n" + clip_text(preset_named(method).objective))


@app.command()
def compare(
    methods: Annotated[str, typer.Option("--methods", help="Rows of `whet algorithms`, separated by commas.")],
    seeds: Annotated[int, typer.Option("--seeds", help="Runs a method; 3 or more tell noise from difference.")] = 3,
    model: Model = None,
    data: Data = None,
    reward: Rewards = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Optimization steps of every run.")] = None,
    folder: Annotated[
        str | None, typer.Option("--folder", help="Of the comparison; what is finished there is not run again.")
    ] = None,
    config: Annotated[str | None, typer.Option("--config", help="A TOML file; --set and flags win over it.")] = None,
    settings: Settings = None,
) -> None:
    """Run methods side by side on one task and leave compare.html: one table, one plot, and what is only noise.

    Example:

      whet compare --methods grpo,gspo,cispo --seeds 3 --set batch.updates_per_step=4

    Ctrl-C loses nothing: the same command with its --folder goes on.
    """
    from whet.config.config import from_settings, merged, read_toml
    from whet.experiments import comparison

    flags: dict[str, Any] = {
        key: value
        for key, value in (("steps", steps), ("model", model), ("data", data), ("reward", reward))
        if value is not None
    }
    values = merged(read_toml(config) if config else {}, from_settings(settings or []))
    command = shlex.join(["whet", *sys.argv[1:]])
    compared = comparison.compare(methods, seeds, folder=folder, config=values, command=command, **flags)
    _leave(compared)
    if compared.status == "unfinished":
        raise typer.Exit(1)


@app.command()
def advise(
    signal: Annotated[
        str | None,
        typer.Option("--signal", help="verifiable, preferences, labels, demonstrations or reward_model."),
    ] = None,
    model_size: Annotated[float | None, typer.Option("--model-size", help="Billions of weights.")] = None,
    moe: Annotated[bool, typer.Option("--moe", help="The model is a mixture of experts.")] = False,
    memory: Annotated[float | None, typer.Option("--memory", help="Gigabytes of the device.")] = None,
    completion_tokens: Annotated[
        int | None, typer.Option("--completion-tokens", help="Budget of a completion.")
    ] = None,
    several_updates: Annotated[bool, typer.Option("--several-updates", help="Each batch is reused.")] = False,
    one_completion: Annotated[
        bool, typer.Option("--one-completion", help="Only one completion a prompt is affordable.")
    ] = False,
    agent: Annotated[bool, typer.Option("--agent", help="It acts over several turns.")] = False,
    goal: Annotated[
        str | None, typer.Option("--goal", help="pass@1, or pass@k: one of k completions is right.")
    ] = None,
    rows: Annotated[int | None, typer.Option("--rows", help="Rows of data.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Which method to use: the reasons, the alternatives, the memory and the command. Asks when no flag is given.

    Example:

      whet advise --signal verifiable --model-size 7 --memory 80 --completion-tokens 8000
    """
    from whet.advise.guide import advice
    from whet.advise.questions import advice_record, advice_text, situation_told

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
    situation = situation_told(flags, terminal=sys.stdin.isatty() and sys.stdout.isatty() and not as_json)
    if situation is None:
        raise typer.Exit(130)
    found = advice(situation)
    if as_json:
        _print_json(advice_record(situation, found))
        return
    typer.echo(advice_text(situation, found))


@app.command()
def bench(
    model: Model = None,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Prompts a step.")] = 4,
    group: Annotated[int, typer.Option("--group", min=1, help="Completions a prompt.")] = 8,
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", min=1, help="Length of a prompt.")] = 40,
    completion_tokens: Annotated[int, typer.Option("--completion-tokens", min=1, help="Length of a completion.")] = 64,
    seconds: Annotated[float, typer.Option("--seconds", help="For each of the measurements, about.")] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    settings: Settings = None,
) -> None:
    """How fast your model trains on this machine, where the time goes, and what the machine could do at best."""
    from whet.bench.benchmark import benchmark, speed_record
    from whet.config.config import from_settings
    from whet.report.speed import Shape, speed_text

    shape = Shape(prompts, group, prompt_tokens, completion_tokens)
    found = benchmark(model or "whetstone", shape, seconds=seconds, settings=from_settings(settings or []))
    if as_json:
        _print_json(speed_record(found))
        return
    typer.echo(speed_text(found))


@app.command()
def report(run: Annotated[str, typer.Argument(help="A run folder.")]) -> None:
    """Draw report.html of a run again, also while it is running."""
    from pathlib import Path

    from whet.config.run_folder import read_config
    from whet.report import write_report

    read_config(Path(run))
    typer.echo(write_report(run))


def _leave(run: Any) -> None:
    if run.status == "interrupted":
        raise typer.Exit(130)


def _print_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))


def main() -> None:
    """Run the command line: exit code 2 and one line for a mistake of the user's, 1 for a run that failed."""
    try:
        app()
    except KeyboardInterrupt:
        print("whet: interrupted; `whet resume RUN` goes on from the last checkpoint", file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        from whet.train.run import RunFailed
        from whet.types import WhetError

        if not isinstance(error, WhetError | RunFailed):
            raise
        print(f"whet: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, WhetError) else 1) from None
