"""`whet reward ...`: try, version, compare and review rewards. Heavy imports happen inside the commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from whet.cli.options import APP_SETTINGS, AsJson, print_json, print_result
from whet.settings.bounds import MOST_ROWS

reward_app = typer.Typer(
    name="reward",
    help="Try a reward before training with it, keep its history, and see what it prefers.",
    **APP_SETTINGS,
)

Names = Annotated[
    list[str] | None,
    typer.Argument(help="Built-in name or file.py:function, each with =WEIGHT if you like; or a config's .toml file."),
]
Parts = Annotated[list[str] | None, typer.Option("--reward", help="A further part, NAME or NAME=WEIGHT. Repeatable.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="SETTING=VALUE of the reward, PART.SETTING=VALUE, reward.timeout=S, sandbox.require=LEVEL or "
        "data.columns.YOURS=OURS.",
    ),
]
Page = Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a page as well.")]
Ledger = Annotated[
    str | None, typer.Option("--ledger", metavar="FILE", help="Ledger file (default: rewards.jsonl next to the runs).")
]
DEFAULT_RUNS = "runs"


@reward_app.command()
def attack(
    reward: Names = None,
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
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Red team: search for wrong completions that the reward still pays for.

    Rewrites honest wrong completions by some fifty strategies (several answers, empty marks, orders to the grader,
    hidden text, filler, ...) and scores them. For rows with tests, programs that cheat are tried instead.

    Exits with 1 if a wrong completion scores higher than the best honest wrong completion to the same prompt.

    Examples:

      whet reward attack math_answer

      whet reward attack mine.py:reward --data test.jsonl --model runs/first
    """
    from whet.tools.workbench.attack import attack_prompts, attack_record, attack_reward, attack_text

    parts, config = _chosen(list(reward or ()), settings)
    prompts, source = attack_prompts(data, limit, config.get("data", {}))
    rewrite = (lambda texts: _rewritten(model, texts)) if model else None
    attack_report = attack_reward(parts, prompts, _timeout(config), rewrite, source)
    print_result(as_json, attack_record(attack_report), attack_text(attack_report))
    if attack_report.holes:
        raise typer.Exit(1)


def _rewritten(model: str, texts: Sequence[str]) -> list[str]:
    """One completion by the model to each text."""
    from whet import api
    from whet.tools.evaluation.evaluation import sample_completions
    from whet.types import Prompt

    config = api.evaluation_config(model, None, {"sampling": {"temperature": 1.0}})
    asked = [Prompt(f"attack/{index}", ({"role": "user", "content": text},)) for index, text in enumerate(texts)]
    return [samples[0].completion for samples in sample_completions(config, asked, 1)]


@reward_app.command()
def test(
    reward: Names = None,
    parts: Parts = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Prompts: a file, task:NAME or hub:owner/name. Alone: gold answers.")
    ] = None,
    completions: Annotated[
        str | None, typer.Option("--completions", help="File of answers: `completion` and their prompts.")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help="A run folder: the answers it saved.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Model whose tokenizer counts tokens (default: an estimate).")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, max=MOST_ROWS, help="Only the first rows; 0 is all.")] = 0,
    once: Annotated[bool, typer.Option("--once", help="Score once: no check that scores stay the same.")] = False,
    controls: Annotated[
        bool, typer.Option("--controls/--no-controls", help="Also try completions that are wrong on purpose.")
    ] = True,
    page: Page = None,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Dry run: does every gold answer score 1 and a wrong one less, what varies, what fails, what is slow?

    With --run and no REWARD, the run's own. Wrong on purpose are an empty completion, one without an answer, and for
    code functions of the right names that do nothing (`pass`, `return None`).

    Exits with 1 if a gold answer is missed, one kind of wrong completion scores 1 on every prompt, every sample is
    unscorable, a reward fails, or one that calls itself deterministic is not.

    Examples:

      whet reward test math_answer --data test.jsonl

      whet reward test math_answer think_format=0.2 --run runs/first --html reward.html
    """
    from whet.pages.reward_dry_run import dry_run_page, dry_run_record, dry_run_text
    from whet.record.run_folder import write_atomically
    from whet.tools.workbench.workbench import try_reward

    names = [*(reward or ()), *(parts or ())]
    if not names and run is not None:
        names = [str(Path(run) / "config.toml")]
    chosen, config = _chosen(names, settings)
    dry_run = try_reward(
        chosen, _answers(data, completions, run, limit, model, config), _timeout(config), not once, controls
    )
    if page:
        write_atomically(page, dry_run_page(dry_run))
    print_result(as_json, dry_run_record(dry_run), dry_run_text(dry_run))
    if not dry_run.is_sound():
        raise typer.Exit(1)


@reward_app.command()
def version(reward: Names = None, parts: Parts = None, as_json: AsJson = False, settings: Settings = None) -> None:
    """Print the content hash of a reward and its ingredients: code, settings, data files, package versions."""
    from whet.reward.run_record import title_of
    from whet.reward.version import parts_version

    chosen, _ = _chosen([*(reward or ()), *(parts or ())], settings)
    reward_version = parts_version(chosen)
    if as_json:
        print_json({"hash": reward_version.hash, "title": title_of(chosen), "pieces": dict(reward_version.pieces)})
        return
    typer.echo(f"{reward_version.hash}  {title_of(chosen)}")
    for piece, content in reward_version.pieces.items():
        typer.echo(f"  {piece:40} {content}")


@reward_app.command("list")
def list_rewards(
    name: Annotated[str | None, typer.Argument(help="One reward, with its settings.")] = None, as_json: AsJson = False
) -> None:
    """List the built-in rewards and what each is for; with a name, show all about one."""
    import inspect

    from whet.record.text import listing
    from whet.reward.find import BUILTIN, find_reward

    if name is not None:
        function = BUILTIN[name] if name in BUILTIN else getattr(find_reward(name), "function", None)
        about = inspect.getdoc(function) or ""
        keys = _settings_text(function) if callable(function) else {}
        if as_json:
            print_json({"name": name, "about": about, "settings": keys})
            return
        lines = [name, "", about, ""]
        lines += ["settings of its part in a config, or `whet reward test` with --set:"] if keys else []
        lines += [f"  {key}  {text}" for key, text in keys.items()]
        typer.echo("\n".join(lines).rstrip())
        return
    summaries = {
        reward_name: (inspect.getdoc(function) or "").partition("\n\n")[0]
        for reward_name, function in sorted(BUILTIN.items())
    }
    if as_json:
        print_json(summaries)
        return
    typer.echo(listing(summaries))


@reward_app.command()
def note(
    reward: Names = None,
    reason: Annotated[str, typer.Option("--reason", help="Why the reward was changed.")] = "",
    expected: Annotated[str, typer.Option("--expected", help="What should come of it.")] = "",
    ledger: Ledger = None,
    settings: Settings = None,
) -> None:
    """Write into the ledger why a reward changed and what is expected of it; without REWARD, of the last entry."""
    from whet.reward.ledger import note_change, note_reason
    from whet.reward.version import parts_version
    from whet.types import WhetError

    if not reason and not expected:
        raise WhetError("nothing to note; give --reason, --expected or both")
    path = _ledger(ledger)
    if reward:
        chosen, _ = _chosen(reward, settings)
        entry = note_change(path, parts_version(chosen), reason, expected)
    else:
        entry = note_reason(path, reason, expected)
    typer.echo(f"{path}: {entry.old or 'first'} -> {entry.new}  {entry.reason}")


@reward_app.command()
def history(ledger: Ledger = None, as_json: AsJson = False) -> None:
    """Print the ledger: each change with its reason, what was expected and what came of it."""
    from dataclasses import asdict

    from whet.pages.rescore import history_text
    from whet.reward.ledger import history as entries

    path = _ledger(ledger)
    changes = entries(path)
    if as_json:
        print_json([asdict(change) for change in changes])
        return
    if not changes:
        typer.echo(f"{path}: no entry yet; a run writes one, and so does `whet reward note REWARD --reason ...`")
        return
    typer.echo(history_text([asdict(change) for change in changes]))


@reward_app.command()
def rescore(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    new: Annotated[list[str], typer.Option("--with", help="The other reward, as for `whet reward test`. Repeatable.")],
    limit: Annotated[int, typer.Option("--limit", min=0, max=MOST_ROWS, help="Only the first samples; 0 is all.")] = 0,
    page: Page = None,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Score a run's saved samples with another reward and show what would have changed, without training."""
    from whet.pages.rescore import rescore_page, rescore_record, rescore_text
    from whet.record.run_folder import write_atomically
    from whet.tools.workbench.completions import run_completions
    from whet.tools.workbench.workbench import rescore_run

    chosen, config = _chosen(new, settings)
    rescored = rescore_run(run, chosen, run_completions(run, limit), _timeout(config))
    if page:
        write_atomically(page, rescore_page(rescored))
    print_result(as_json, rescore_record(rescored), rescore_text(rescored))


@reward_app.command()
def review(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    marks: Annotated[
        str | None, typer.Option("--marks", metavar="FILE", help="A downloaded review.jsonl to take marks from.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how people marked a run's best and worst answers. Reads downloaded marks with --marks."""
    from dataclasses import asdict

    from whet.pages.review import REVIEW, draw_review, read_review, take_marks
    from whet.record.marks import agreement, review_counts, review_verdict
    from whet.types import WhetError

    if not read_review(run):
        raise WhetError(f"{run} has no {REVIEW}; a run writes one every report.review_every steps and at its end")
    if marks is not None:
        take_marks(run, marks)
    written = draw_review(run)
    counts = review_counts(read_review(run))
    if as_json:
        both = {name: None if value != value else value for name, value in asdict(agreement(counts)).items()}
        print_json({**counts, "agreement": both})
        return
    typer.echo(f"{review_verdict(counts)}\n{written}")


def _settings_text(function: Any) -> dict[str, str]:
    """What each setting of a reward takes, and its default."""
    import inspect

    from whet.reward.find import expected_text

    try:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
    except NameError:  # an annotation that only a type checker can resolve
        parameters = inspect.signature(function).parameters.values()
    keys = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    kinds = {key.name: "" if key.annotation is key.empty else expected_text(key.annotation) for key in keys}
    defaults = {key.name: "needed" if key.default is key.empty else f"default {key.default!r}" for key in keys}
    return {name: ", ".join(filter(None, (kind, defaults[name]))) for name, kind in kinds.items()}


def _chosen(names: list[str], settings: list[str] | None) -> tuple[Any, dict[str, Any]]:
    """The parts, and the settings that are not theirs."""
    from collections import Counter

    from whet.settings.layers import from_settings
    from whet.tools.workbench.workbench import reward_parts
    from whet.types import WhetError

    bare = Counter(name.partition("=")[0].rpartition(":")[2] for name in names)
    repeated = [name for name, count in bare.items() if count > 1]
    if repeated:
        raise WhetError(f"two rewards are called {repeated[0]!r}; scores are reported by name, drop or rename one")
    values = from_settings(settings or [])
    config: dict[str, Any] = {key: values.pop(key) for key in ("data", "reward", "sandbox") if key in values}
    _check_config(config)
    return reward_parts(names, values, config.get("sandbox", {}).get("require")), config


def _check_config(config: dict[str, Any]) -> None:
    from whet.types import WhetError, did_you_mean

    keys_of = {"reward": ("timeout",), "data": ("columns", "as_chat", "unusable"), "sandbox": ("require",)}
    for section, keys in keys_of.items():
        for key in config.get(section, {}):
            if key not in keys:
                expected = " and ".join(f"{name}.{key_name}" for name, inner in keys_of.items() for key_name in inner)
                raise WhetError(
                    f"--set {section}.{key}: has no effect here{did_you_mean(key, keys)}; there are {expected}"
                )


def _timeout(config: dict[str, Any]) -> float:
    return float(config.get("reward", {}).get("timeout", 10.0))


def _answers(
    data: str | None, completions: str | None, run: str | None, limit: int, model: str | None, config: dict[str, Any]
) -> Any:
    from whet.tools.workbench.completions import (
        estimated_tokens,
        given_completions,
        gold_completions,
        run_completions,
        tokenizer_encode,
    )
    from whet.types import WhetError

    settings = dict(config.get("data", {}))
    columns = settings.pop("columns", {})
    if run is not None:
        if data is not None or completions is not None:
            raise WhetError("--run brings its own prompts and answers; drop --data and --completions, or --run")
        return run_completions(run, limit)
    encode = tokenizer_encode(model) if model else estimated_tokens
    if completions is not None:
        return given_completions(completions, data, columns, limit, encode)
    if data is None:
        raise WhetError("nothing to score; give --data FILE (gold answers), --completions FILE or --run RUN")
    return gold_completions(data, columns, limit, encode, settings)


def _ledger(path: str | None) -> Path:
    from whet.reward.ledger import LEDGER

    return Path(path) if path else Path(DEFAULT_RUNS) / LEDGER
