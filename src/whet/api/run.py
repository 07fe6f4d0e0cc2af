"""A run folder as an object: what it came to, its logs as tables, its samples, its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.api.tables import table, write_table
from whet.record.evaluations import Evaluations
from whet.record.flat_rows import eval_row, sample_row, step_row
from whet.record.run_folder import CONFIG, status_of
from whet.training.saved_config import read_values
from whet.types import Prompt, WhetError, did_you_mean

if TYPE_CHECKING:
    from whet.record.doctor import DoctorReport

WHAT = ("metrics", "evals", "samples")
MOST_SMOOTH = 1_000_000
SORTS = ("reward", "-reward", "tokens", "-tokens", "step", "-step")


@dataclass(frozen=True)
class RunFigure:
    """A figure of a run as SVG, which notebooks show."""

    svg: str

    def save(self, path: str | Path) -> Path:
        """Write the figure to a file."""
        target = Path(path)
        if target.suffix.lower() != ".svg":
            raise WhetError(f"{target}: the figure is an SVG; give a name ending in .svg")
        target.write_text(self.svg, encoding="utf-8")
        return target

    def _repr_svg_(self) -> str:
        return self.svg


@dataclass(frozen=True, repr=False)
class Run:
    """A run folder: finished, failed, interrupted, or still running in another process.

    Everything is read from the folder when it is asked for, so a run that goes on shows its newest numbers.
    """

    folder: Path

    def __repr__(self) -> str:
        try:
            return f"Run({self.folder}: {self.method}, {self.status}, step {self.steps}/{self.total_steps})"
        except WhetError:
            return f"Run({self.folder}: damaged)"

    @property
    def summary(self) -> Mapping[str, Any]:
        """run.json: title, objective, facts, command, times."""
        from whet.record.log import read_summary

        return read_summary(self.folder)

    @property
    def config(self) -> Mapping[str, Any]:
        """config.toml: every setting of the run."""
        return read_values(self.folder)

    @property
    def method(self) -> str:
        """The name of the training method, empty where the config does not say."""
        return str(self.config.get("method", ""))

    @property
    def status(self) -> str:
        """finished, failed, interrupted or running."""
        return status_of(self.folder, self.summary)

    @property
    def steps(self) -> int:
        """Steps that are in the log."""
        return max((line["step"] for line in self._lines() if "eval" not in line), default=0)

    @property
    def total_steps(self) -> int:
        """The number of steps the run was planned for."""
        return int(self.summary.get("total_steps") or 0)

    @property
    def before(self) -> Mapping[str, float]:
        """Metrics of the evaluation before the first step; empty where there was none."""
        return self._measured("before", first=True)

    @property
    def after(self) -> Mapping[str, float]:
        """Metrics of the newest evaluation after a step; empty where there was none."""
        return self._measured("after", first=False)

    @property
    def report(self) -> Path:
        """The path of the run's report.html."""
        return self.folder / "report.html"

    @property
    def model(self) -> Path:
        """Its newest weights, a folder that transformers loads: the final model, or a checkpoint that is newer."""
        from whet.model.run_models import run_model

        model = run_model(self.folder)
        if model is None:
            raise WhetError(f"{self.folder} has no complete checkpoint yet; wait for its first save")
        return model

    @property
    def best(self) -> Path:
        """The model with the best evaluation so far, a folder that transformers loads."""
        from whet.model.run_models import BEST, about_model

        if about_model(self.folder / BEST) is None:
            raise WhetError(f"{self.folder} has no best model: nothing was evaluated after a step")
        return self.folder / BEST

    @property
    def checkpoints(self) -> list[Path]:
        """Its complete checkpoints, oldest first; `whet.resume(run, checkpoint=path.name)` goes back to one."""
        from whet.model.run_models import CHECKPOINTS, complete_checkpoints

        return complete_checkpoints(self.folder / CHECKPOINTS)

    def doctor(self, step: int | None = None) -> DoctorReport:
        """What is wrong with the run, since when, why, and which setting to change; `print` shows it as text."""
        from whet.record.doctor import doctor_report

        return doctor_report(self.folder, step)

    def sample(self, prompt: str, samples: int = 1, settings: Mapping[str, Any] | None = None) -> list[str]:
        """Completions of its newest weights to a prompt: one greedy completion, or several drawn ones.

        run.sample("Left to right mod 10: 3+4-2")
        run.sample("...", samples=4, settings={"sampling": {"temperature": 0.7}})
        """
        from whet.api.evaluation import evaluation_config
        from whet.settings.layers import merged
        from whet.tools.evaluation.evaluation import sample_completions

        greedy = {"sampling": {"temperature": 0.0}} if samples == 1 else {}
        config = evaluation_config(str(self.folder), None, merged(greedy, settings or {}))
        question = Prompt("yours", ({"role": "user", "content": prompt},))
        [written] = sample_completions(config, [question], samples)
        return [sample.completion for sample in written]

    @property
    def evaluations(self) -> Evaluations:
        """Its evaluations by their headline metric: `best` and `last`, each with value and 95% interval, and whether
        the last ones fell significantly below the best."""
        from whet.record.run import read_run

        return read_run(self.folder).evaluations()

    def load(self, device: str = "cpu") -> tuple[Any, Any]:
        """Its newest weights as a transformers model and its tokenizer."""
        from whet.model.load import load_model

        loaded = load_model(str(self.model), device=device)
        return loaded.model, loaded.tokenizer

    def save_model(
        self, path: str | Path, dtype: str | None = None, what: str = "model", checkpoint: str | None = None
    ) -> Path:
        """Write the model into a new folder, to give away: weights, tokenizer, chat template and a model card.

        `dtype` is float32, bfloat16 or float16; None: as the run keeps it. `what` is model (adapters merged into it),
        or adapter, for PEFT. `checkpoint` is best, final or a name such as step-000040; None: the newest weights.
        """
        from whet.api.exported_model import export_model, named_model

        source = self.model if checkpoint is None else named_model(self.folder, checkpoint)
        return export_model(self.folder, source, path, what, dtype)

    def metrics(self) -> Any:
        """One row per step: reward and its parts, metrics, counts, seconds. A DataFrame where pandas is installed."""
        return table(self.rows("metrics"))

    def evals(self) -> Any:
        """One row per evaluation on held-out data. A DataFrame where pandas is installed."""
        return table(self.rows("evals"))

    def samples_table(self) -> Any:
        """One row per recorded completion. A DataFrame where pandas is installed."""
        return table(self.rows("samples"))

    def samples(self, step: int | None = None, sort: str | None = None) -> list[dict[str, Any]]:
        """Recorded completions with their prompts and rewards; of one `step` (-1 is the last).

        `sort` is one of reward, tokens and step, the smallest first; with a minus in front, the largest first.
        Completions without the value come last.
        """
        from whet.record.log import read_samples

        lines = read_samples(self.folder)
        if step is not None:
            recorded = sorted({line["step"] for line in lines})
            wanted = recorded[step] if step < 0 and -step <= len(recorded) else step
            lines = [line for line in lines if line["step"] == wanted]
        if sort is None:
            return lines
        if sort not in SORTS:
            raise WhetError(f"sort is {sort!r}{did_you_mean(sort, SORTS)}; give one of {', '.join(SORTS)}")
        key, sign = sort.removeprefix("-"), -1 if sort.startswith("-") else 1
        return sorted(lines, key=lambda line: (line[key] is None, sign * (line[key] or 0)))

    def export(self, path: str | Path, what: str = "metrics") -> Path:
        """Write the metrics, evals or samples to a .csv or .parquet file."""
        return write_table(self.rows(what), path)

    def rows(self, what: str = "metrics") -> list[dict[str, Any]]:
        """The metrics, evals or samples as flat dictionaries: what tables and exports are made of.

        A damaged line of the log is left out, with a warning.
        """
        from whet.record.log import METRICS, SAMPLES, readable_rows

        if what == "metrics":
            return readable_rows(self.folder / METRICS, lambda line: None if "eval" in line else step_row(line))
        if what == "evals":
            return readable_rows(self.folder / METRICS, lambda line: eval_row(line) if "eval" in line else None)
        if what != "samples":
            raise WhetError(f"a run has no {what!r}{did_you_mean(what, WHAT)}; give one of {', '.join(WHAT)}")
        return readable_rows(self.folder / SAMPLES, sample_row)

    def plot(self, *names: str, smooth: int = 0, against: Run | Sequence[Run] = ()) -> RunFigure:
        """Metrics by step; a notebook shows the figure, `save` writes it. Without names: the headline metric and
        what was trained.

        Names are columns of `metrics()`, and `eval/NAME` for those of `evals()`; each has a panel. `smooth` is the
        number of steps that each point is the mean of. `against` are runs to draw beside this one.
        """
        others = [against] if isinstance(against, Run) else list(against)
        if names or others:
            return plot([self, *others], *names, smooth=smooth)
        from whet.pages.card import run_figure

        return RunFigure(run_figure(self.folder))

    def _repr_html_(self) -> str:
        from whet.pages.card import run_card

        return run_card(self.folder)

    def _lines(self) -> list[dict[str, Any]]:
        from whet.record.log import read_metrics

        return read_metrics(self.folder)

    def _measured(self, name: str, first: bool) -> dict[str, float]:
        stated = self.summary.get(name)
        if stated is None:  # not finished: what the log has
            lines = [line for line in self._lines() if "eval" in line and (line["step"] == 0) == first]
            stated = lines[0 if first else -1]["result"] if lines else {}
        return {key: float("nan") if value is None else float(value) for key, value in stated.items()}


def load(folder: str | Path) -> Run:
    """The run in a folder: finished, interrupted, or still running in another process.

    run = whet.load("runs/mine")
    print(run.status, run.after, run.best)
    """
    path = Path(folder)
    if not (path / CONFIG).is_file():
        raise WhetError(f"{path}: not a run folder (no {CONFIG}); `whet train` makes one, `whet runs` lists yours")
    return Run(path)


def plot(runs: Run | Sequence[Run], *names: str, smooth: int = 0) -> RunFigure:
    """Metrics of several runs in one figure, a line per run; without names: what all of them train, or evaluate.

        whet.plot([run, other], "reward", "eval/accuracy", smooth=5).save("both.svg")

    Names are as in `Run.plot`.
    """
    from whet.pages.card import metrics_figure
    from whet.record.run import read_run

    listed = [runs] if isinstance(runs, Run) else list(runs)
    if not listed:
        raise WhetError("there is no run to plot; give one or more: whet.plot([run, other], 'reward')")
    if not 0 <= smooth <= MOST_SMOOTH:
        raise WhetError(f"smooth is {smooth}; give a number of steps from 0 to {MOST_SMOOTH:,}")
    folders: dict[str, Path | str] = {}
    for run in listed:
        name = run.folder.resolve().name
        if name in folders:
            name = "/".join(run.folder.resolve().parts[-2:])
        folders[name if name not in folders else f"{name} ({len(folders) + 1})"] = run.folder
    return RunFigure(metrics_figure(folders, names or [read_run(listed[0].folder).kind.goal], smooth))
