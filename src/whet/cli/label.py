"""`whet label ...`: labels without people. Heavy imports happen inside the commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from whet.cli.options import APP_SETTINGS, AsJson, number, print_result
from whet.settings.bounds import MOST_ROWS, MOST_SAMPLES, MOST_SEED

if TYPE_CHECKING:
    from whet.tools.labelling.label_files import LabelProgress
    from whet.training.config import EvaluationConfig

label_app = typer.Typer(
    name="label",
    help="Label data by the outcomes of rollouts.",
    **APP_SETTINGS,
)
PATIENCE = 5.0  # seconds between two lines of progress where there is no terminal

Labeller = Annotated[str, typer.Argument(help="Model or run folder that writes the completions.")]
Prompts = Annotated[
    str | None, typer.Option("--data", help="Prompts that the model solves: task:NAME, a file or hub:owner/name.")
]
Out = Annotated[str, typer.Option("--out", help="Output file; one that was started is continued.")]
Rewards = Annotated[
    list[str] | None,
    typer.Option("--reward", help="Reward that judges a completion (default: the task's own). Repeatable."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="Random seed.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Any config value, as sampling.temperature=0.7. Repeatable."),
]
Work = TypeVar("Work")


@label_app.callback()
def root() -> None:
    pass


@label_app.command()
def steps(
    model: Labeller = "whetstone",
    data: Prompts = None,
    solutions: Annotated[
        str | None, typer.Option("--solutions", help="Solutions to label instead: a file with `steps`, or task:NAME.")
    ] = None,
    rollouts: Annotated[
        int, typer.Option("--rollouts", min=1, max=MOST_SAMPLES, help="Completions from the end of each step.")
    ] = 8,
    count: Annotated[int, typer.Option("--count", min=1, max=MOST_ROWS, help="Prompts, or given solutions.")] = 200,
    per_prompt: Annotated[
        int, typer.Option("--each", min=1, max=MOST_SAMPLES, help="Solutions that the model draws for a prompt.")
    ] = 1,
    out: Out = "steps.jsonl",
    reward: Rewards = None,
    right_from: Annotated[float, number("--right-from", "A completion with at least this score is right.")] = 1.0,
    separator: Annotated[
        str, typer.Option("--separator", help="Text that ends a step (default: the data's own, else an empty line).")
    ] = "",
    truth: Annotated[
        str, typer.Option("--truth", help="A reward that judges steps, to compare with: working_steps.")
    ] = "",
    seed: Seed = 0,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Label the steps of solutions by rollouts: a step is right where a completion from its end is right.

    The file holds hard labels (any completion is right) and soft ones (the share that is); `whet train prm` reads it.

    Examples:

      whet label steps --data task:arithmetic --count 200 --out steps.jsonl

      whet label steps runs/mine --solutions given.jsonl --reward math_answer --rollouts 16

    Ctrl-C loses at most one chunk: run the same command again to continue.
    """
    from whet.tools.labelling.label_files import LabelSpec, label_steps
    from whet.types import WhetError

    if data is not None and solutions is not None:
        raise WhetError("--data gives prompts to solve and --solutions gives solved ones; give one of them")
    config = _config(model, data or solutions, reward, seed, settings)
    step_separator = separator.encode().decode("unicode_escape") if "\\" in separator else separator
    spec = LabelSpec(
        out=Path(out),
        rollouts=rollouts,
        count=count,
        per_prompt=per_prompt,
        solutions=solutions or "",
        separator=step_separator,
        right_from=right_from,
        truth=truth,
    )
    report = _with_progress(lambda show: label_steps(config, spec, show), out).record()
    print_result(as_json, report, _steps_text(report, rollouts))


@label_app.command()
def completions(
    model: Labeller = "whetstone",
    data: Prompts = None,
    count: Annotated[int, typer.Option("--count", min=1, max=MOST_ROWS, help="Prompts.")] = 200,
    per_prompt: Annotated[int, typer.Option("--each", min=1, max=MOST_SAMPLES, help="Completions per prompt.")] = 1,
    out: Out = "completions.jsonl",
    reward: Rewards = None,
    at_least: Annotated[float | None, number("--at-least", "Keep completions with this score or more.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    settings: Settings = None,
) -> None:
    """Write completions to imitate, by a model or by a server; `whet train sft` reads the file.

    Examples:

      whet label completions --data task:arithmetic --at-least 1 --out teacher.jsonl

      whet label completions NAME --data prompts.jsonl --set sampling.engine=openai --set
      sampling.engine_settings.base_url=http://localhost:8000/v1

    Completions that the token budget cut off are left out. Run the same command again to continue a file.
    """
    from whet.tools.labelling.label_files import CompletionSpec, write_completions
    from whet.types import WhetError

    if reward and at_least is None:
        raise WhetError("--reward has no effect without --at-least; say from which score a completion is kept")
    config = _config(model, data, reward, seed, settings)
    spec = CompletionSpec(Path(out), count, per_prompt, at_least)
    report = _with_progress(lambda show: write_completions(config, spec, show), out).record()
    left = f", {report['left_out']} left out" if report["left_out"] else ""
    text = f"{report['file']}: {report['completions']} completions{left}, {report['tokens']:,} tokens"
    print_result(as_json, report, f"{text}\n  next     whet train sft --data {report['file']}")


def _config(
    model: str, data: str | None, rewards: list[str] | None, seed: int, settings: list[str] | None
) -> EvaluationConfig:
    from whet import api
    from whet.settings.layers import from_settings, merged

    values = merged(from_settings(settings or []), {"seed": seed})
    if rewards:
        values = merged(values, {"reward": {"parts": [{"reward": name} for name in rewards]}})
    return api.evaluation_config(model, data, values)


def _with_progress(work: Callable[[Callable[[LabelProgress], None]], Work], out: str) -> Work:
    """Do the work, which reports its progress; Ctrl-C says how to go on."""
    line = _Line()
    try:
        return work(line.show)
    except KeyboardInterrupt:
        line.close()
        typer.echo(f"whet: interrupted; run the same command again to continue {out}", err=True)
        raise typer.Exit(130) from None
    finally:
        line.close()


class _Line:
    """One line that is written over on a terminal; now and then a new one elsewhere."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._is_open = False

    def show(self, progress: LabelProgress) -> None:
        left = progress.seconds / progress.done_now * (progress.total - progress.chunks)
        text = (
            f"{100 * progress.chunks / progress.total:3.0f}%  {progress.completions:,} completions, "
            f"{progress.tokens:,} tokens, {progress.seconds:.0f} s, about {left:.0f} s left"
        )
        if sys.stderr.isatty():
            print(f"\r{text:79}", end="", file=sys.stderr, flush=True)
            self._is_open = True
        elif time.monotonic() - self._last >= PATIENCE:
            print(text, file=sys.stderr, flush=True)
            self._last = time.monotonic()

    def close(self) -> None:
        if self._is_open:
            print(file=sys.stderr)
            self._is_open = False


def _steps_text(report: dict[str, Any], rollouts: int) -> str:
    lines = [f"{report['file']}: {report['solutions']} solutions, {report['steps']} steps"]
    for name, words in (
        ("without_steps", "completions without a step left out"),
        ("unlabelled", "steps without a label"),
    ):
        if report[name]:
            lines.append(f"  {report[name]} {words}")
    if report["right"] is None:
        return "\n".join([*lines, "  no completion could be judged: is the reward right for this data?"])
    lines.append(
        f"  labels   {report['right']:.1%} right by any of {rollouts}; mean share {report['mean_share']:.2f}, "
        f"in steps of {1 / rollouts:.3g}"
    )
    own = f", and {report['solution_tokens']:,} for the solutions" if report["solution_tokens"] else ""
    lines.append(
        f"  cost     {report['completions']:,} completions, {report['tokens']:,} tokens, "
        f"{report['tokens_per_label']:.0f} tokens per label{own}; {report['seconds']:.1f} s this time"
    )
    truth = report["truth"]
    if truth:
        comparison = [f"  truth    {truth['agreement']:.1%} of {truth['steps']:.0f} known steps agree"]
        comparison += [f"{truth['right_confirmed']:.1%} of the right confirmed"] if "right_confirmed" in truth else []
        comparison += [f"{truth['wrong_found']:.1%} of the wrong found"] if "wrong_found" in truth else []
        if "area_under_curve" in truth:
            comparison.append(f"shares: area under the curve {truth['area_under_curve']:.3f}")
        lines.append(", ".join(comparison))
    return "\n".join([*lines, f"  next     whet train prm --data {report['file']}"])
