"""`whet reward attack`: a red team for a reward. Heavy imports happen inside the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from whet.cli.options import print_json
from whet.settings.bounds import MOST_ROWS


def attack(
    reward: Annotated[
        list[str] | None,
        typer.Argument(
            help="Built-in name or file.py:function, each with =WEIGHT if you like; or a config's .toml file."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Questions with answers: a file, task:NAME or hub:owner/name; default: built-in."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, max=MOST_ROWS, help="Only the first prompts; 0: 20, or all built-in.")
    ] = 0,
    model: Annotated[
        str | None, typer.Option("--model", help="A model that rewrites wrong completions as well, one per prompt.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="As for `whet reward test`: SETTING=VALUE, reward.timeout=S, ..."
        ),
    ] = None,
) -> None:
    """Red team: which wrong completions does the reward pay, and by which trick?

    Rewrites honest wrong completions by some fifty strategies (several answers, empty marks, orders to the grader,
    hidden text, filler, ...) and scores them. For rows with tests, programs that cheat are tried instead.

    Exit code 1 where a wrong completion is paid more than the best honest wrong completion to the same prompt.

    Examples:

      whet reward attack math_answer

      whet reward attack mine.py:reward --data test.jsonl --model runs/first
    """
    from whet.pages.attack import attack_record, attack_text
    from whet.settings.layers import from_settings
    from whet.tools.workbench.attack import attack_prompts, attack_reward
    from whet.tools.workbench.workbench import reward_parts

    values = from_settings(settings or [])
    data_settings, reward_settings = values.pop("data", {}), values.pop("reward", {})
    _refuse_others("data", data_settings, ("columns", "as_chat", "unusable"))
    _refuse_others("reward", reward_settings, ("timeout",))
    parts = reward_parts(list(reward or ()), values)
    prompts, source = attack_prompts(data, limit, data_settings)
    rewrite = (lambda texts: _rewritten(model, texts)) if model else None
    attack_report = attack_reward(parts, prompts, float(reward_settings.get("timeout", 10.0)), rewrite, source)
    print_json(attack_record(attack_report)) if as_json else typer.echo(attack_text(attack_report))
    if attack_report.holes:
        raise typer.Exit(1)


def _refuse_others(section: str, values: Mapping[str, Any], known: tuple[str, ...]) -> None:
    from whet.types import WhetError

    for key in values:
        if key not in known:
            raise WhetError(f"--set {section}.{key}: has no effect here; there is {', '.join(known)}")


def _rewritten(model: str, texts: Sequence[str]) -> list[str]:
    from whet import api
    from whet.tools.evaluation.evaluation import sample_completions
    from whet.types import Prompt

    values: dict[str, Any] = {"sampling": {"temperature": 1.0}}
    config = api.evaluation_config(model, None, values)
    asked = [Prompt(f"attack/{index}", ({"role": "user", "content": text},)) for index, text in enumerate(texts)]
    return [samples[0].completion for samples in sample_completions(config, asked, 1)]
