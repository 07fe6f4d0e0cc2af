"""`whet compare`: methods trained side by side over several seeds, all else equal; or finished runs held together.

`compare` trains and `compare_runs` reads; both give a `MethodComparison`, which `write_comparison` makes a page of.
Every run that `compare` makes is an ordinary run folder below the comparison's own, so each can be viewed, sampled and
resumed. What is finished is never run again, what was interrupted continues: the same call twice is the same as once.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path
from typing import Any

from whet import api
from whet.api.ranks import refuse_ranks
from whet.pages.compare import MethodComparison, MethodRun, compare_page, comparison_values, metric_name, table_text
from whet.record.log import is_finished, read_summary
from whet.record.run import read_run
from whet.record.run_folder import CONFIG, next_free_folder, write_atomically
from whet.record.text import duration, headline, metric_text
from whet.settings.layers import flattened, merged, read_toml
from whet.tools.pipelines.stages import ProgressLine, print_line
from whet.training.config import Config, PolicyConfig, config_class, differing_keys, resolved
from whet.training.saved_config import read_config
from whet.types import RunFailed, WhetError

PAGE, VALUES = "compare.html", "compare.json"
OWN_KEYS = {"method": "--methods", "seed": "--seeds", "folder": "--folder"}
RUN_NAME = re.compile(r".+-seed\d+")


@dataclass(frozen=True)
class ComparisonRun:
    """A comparison's folder after (or during) its runs."""

    folder: Path
    status: str  # finished, unfinished (a run failed) or interrupted
    comparison: MethodComparison
    report: Path


@dataclass(frozen=True)
class PlannedRun:
    """A run of the comparison, to be made or made already."""

    method: str
    seed: int
    folder: Path
    config: PolicyConfig

    @property
    def name(self) -> str:
        """The method and the seed, in words."""
        return f"{self.method} seed {self.seed}"

    @property
    def is_begun(self) -> bool:
        """Whether its folder holds a run already."""
        return (self.folder / CONFIG).exists()

    @property
    def is_finished(self) -> bool:
        """Whether the run in its folder has come to its end."""
        return self.is_begun and is_finished(self.folder)

    def result(self) -> MethodRun:
        """The result of the run, read from its folder."""
        return result_of(self.folder, self.method, self.seed, self.folder.name)


def compare(
    methods: str | Sequence[str],
    seeds: int = 3,
    *,
    folder: str | Path | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    command: str = "",
    **settings: Any,
) -> ComparisonRun:
    """Run every method with seeds 0, 1, ... on the same task, and draw compare.html with one table and one plot.

    `config` is a TOML file or its nested values, `settings` are top-level keys that win over it: `steps=20,
    batch={"group_size": 4}`; `model`, `data` and `reward` may be given by name, as on the command line. A folder that
    already holds runs of this comparison is continued.
    """
    refuse_ranks("a comparison")
    base = read_toml(config) if isinstance(config, str | Path) else dict(config or {})
    names, layer = chosen_methods(methods), merged(named_settings(base), named_settings(settings))
    for key, flag in OWN_KEYS.items():
        if key in layer:
            raise WhetError(f"{key}={layer[key]!r} cannot be set for a comparison: it differs by run; use {flag}")
    if seeds < 1:
        raise WhetError(f"seeds is {seeds}; give 1 or more, 3 to say anything about noise")
    out_folder = Path(folder) if folder else next_free_folder("compare")
    entries = plan_runs(names, seeds, out_folder, layer)
    check_folder(out_folder, entries)
    is_stopped, failures = False, {}
    try:
        # seed by seed: whenever this is interrupted, the methods have about as many runs each
        for number, entry in enumerate(sorted(entries, key=lambda run: run.seed), 1):
            words = "already finished"
            if not entry.is_finished:
                words, complaint = _train(entry, layer)
                failures.update({entry.name: complaint} if complaint else {})
                write_comparison(out_folder, _comparison(entries, failures, command))
            print_line(f"[{number}/{len(entries)}] {'  '.join(filter(None, [entry.name, *_outcome(entry), words]))}")
            if is_stopped := words == INTERRUPTED:
                break
    except BaseException:
        with contextlib.suppress(OSError):  # a mistake found before the first run began leaves nothing behind
            out_folder.rmdir()
        raise
    comparison = _comparison(entries, failures, command)
    write_comparison(out_folder, comparison)
    return _closed(out_folder, comparison, is_stopped)


INTERRUPTED = "interrupted"


def chosen_methods(methods: str | Sequence[str]) -> tuple[str, ...]:
    """The methods to compare; each one once."""
    listed = methods.split(",") if isinstance(methods, str) else list(methods)
    names = [name.strip() for name in listed if name.strip()]
    if not names:
        raise WhetError("no method to compare; give --methods FIRST,SECOND, as `whet algorithms` lists them")
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        raise WhetError(f"--methods names {twice!r} twice; name each method once, and use --seeds for more runs of it")
    return tuple(names)


def named_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested config values; a model, data source or reward given by its name is put where the config has it."""
    layer = {key: value for key, value in settings.items() if value is not None}
    for section, key in (("model", "name"), ("data", "source")):
        if isinstance(layer.get(section), str):
            layer[section] = {key: layer[section]}
    reward = layer.get("reward")
    if reward is not None and not isinstance(reward, Mapping):
        listed = [reward] if isinstance(reward, str) or callable(reward) else list(reward)
        if not all(isinstance(name, str) for name in listed):
            raise WhetError("reward: every run finds it again by its name; give a built-in one or file.py:function")
        layer["reward"] = {"parts": [{"reward": name} for name in listed]}
    return layer


def plan_runs(methods: Sequence[str], seeds: int, folder: Path, layer: Mapping[str, Any]) -> list[PlannedRun]:
    """Every run with its config; a mistake in any of them surfaces here, before the first one starts."""
    from whet.training.assembly.rl import build_objective

    entries = []
    for method in methods:
        if config_class(method) is not PolicyConfig:
            raise WhetError(
                f"--methods: {method!r} imitates demonstrations and draws no completions, so its budget cannot be held "
                "equal; compare methods of `whet algorithms` that learn from a reward"
            )
        for seed in range(seeds):
            run_folder = folder / f"{method}-seed{seed}"
            config = resolved(method, layer, {"seed": seed, "folder": str(run_folder)})
            assert isinstance(config, PolicyConfig)
            entries.append(PlannedRun(method, seed, run_folder, config))
        try:
            build_objective(entries[-1].config)
        except WhetError as error:
            raise WhetError(f"{method}: {error}") from error
    return entries


def check_folder(folder: Path, entries: Sequence[PlannedRun]) -> None:
    """Refuse a folder with anything but this comparison in it."""
    if folder.exists() and not folder.is_dir():
        raise WhetError(f"{folder} is a file; give another --folder")
    if (folder / CONFIG).exists():
        raise WhetError(f"{folder} holds a run, not a comparison; give another --folder")
    if folder.is_dir() and not (folder / VALUES).exists():
        strangers = [path.name for path in folder.iterdir() if not (path.is_dir() and RUN_NAME.fullmatch(path.name))]
        if strangers:
            raise WhetError(
                f"{folder} is not empty and holds no comparison ({sorted(strangers)[0]} is there); "
                "give an empty or new --folder"
            )
    for entry in entries:
        if entry.is_begun:
            differing = differing_keys(entry.config, read_config(entry.folder))
            if differing:
                raise WhetError(
                    f"{entry.folder} was run with other settings ({', '.join(differing[:3])}); give the same "
                    "settings again, or another --folder"
                )
        elif entry.folder.exists() and (
            not entry.folder.is_dir() or any(path.name != "lock" for path in entry.folder.iterdir())
        ):
            raise WhetError(f"{entry.folder} is not empty and not a run; move it away, or give another --folder")


def held_equal(entries: Sequence[PlannedRun]) -> tuple[dict[str, str], dict[str, str]]:
    """What all methods share, in words; and the settings in which some differ, whatever the reason."""
    first = entries[0].config
    peers = [entry for entry in entries if entry.seed == entries[0].seed]
    paths = sorted({path for peer in peers for path in differing_keys(first, peer.config)} - {"method"})
    values = {peer.method: flattened(peer.config.model_dump(mode="json")) for peer in peers}
    unequal = {path: ", ".join(f"{method} {setting.get(path)}" for method, setting in values.items()) for path in paths}
    data, batch, sampling, optimizer = first.data, first.batch, first.sampling, first.optimizer
    is_task = data.parsed_source.is_task
    about = f" difficulty {', '.join(map(str, data.difficulty))}, {data.count} prompts" if is_task else ""
    asked = first.eval.prompts
    held_out = f"{asked} prompts" if is_task else f"{asked} prompts, evenly spread over {first.eval.source}"
    is_examined = asked and (is_task or first.eval.source)
    updates = "1 update" if batch.updates_per_step == 1 else f"{batch.updates_per_step} updates"
    seeds = ", ".join(str(entry.seed) for entry in entries if entry.method == entries[0].method)
    facts = (
        ("model", ("model",), first.model.name),
        ("data", ("data",), f"{data.source}{about}"),
        ("seeds", (), f"{seeds}; a seed gives every method the same queue of prompts and the same random streams"),
        (
            "budget",
            ("steps", "batch", "sampling"),
            f"{first.steps} steps x {batch.prompts_per_step} prompts x {batch.group_size} completions of at most "
            f"{sampling.max_new_tokens} tokens, {updates} per step",
        ),
        ("optimizer", ("optimizer",), f"learning rate {optimizer.learning_rate:g}, {optimizer.schedule}"),
        ("held out", ("report", "data"), f"{held_out}, the same for every run" if is_examined else "nothing"),
    )
    unlike = {path.partition(".")[0] for path in paths}
    return {name: words for name, sections, words in facts if not unlike & set(sections)}, unequal


def result_of(folder: Path, label: str, seed: int, link: str) -> MethodRun:
    """What a finished run came to."""
    run = read_run(folder)
    last = run.evaluations().last
    return MethodRun(
        method=label,
        seed=seed,
        before=_metrics(run.summary.get("before")),
        after=_metrics(run.summary.get("after")),
        rewards=tuple((float(step.step), step.reward["total"]) for step in run.steps if "total" in step.reward),
        tokens=run.tokens(),
        # start-up apart: the imports of a process would be counted against its first run
        seconds=sum(took for phase, took in run.seconds().items() if phase != "start_up"),
        folder=link,
        eval_size=int(run.summary.get("eval_size", 0)),
        scores={last.metric: last.scores} if last is not None and last.step else {},
    )


def _metrics(values: Mapping[str, float | None] | None) -> dict[str, float]:
    return {name: float(value) for name, value in (values or {}).items() if value is not None}


def compare_runs(folders: Sequence[str | Path], command: str = "") -> MethodComparison:
    """Finished runs side by side: headline metrics with intervals, and which differences are beyond noise.

    Runs that differ in nothing but their seed count as one method with several seeds. Runs of different kinds are
    refused; runs that were evaluated on other data or by other rewards are shown, and marked as not comparable.
    """
    places = [Path(folder) for folder in folders]
    if len(places) < 2:
        raise WhetError(f"{len(places)} run{'s' if len(places) != 1 else ''} to compare; give two or more run folders")
    if len({named_folder.resolve() for named_folder in places}) < len(places):
        raise WhetError("a run is named twice; give each run folder once")
    configs = [read_config(named_folder) for named_folder in places]
    for run_path, config in zip(places, configs, strict=True):
        if type(config) is not type(configs[0]):
            raise WhetError(
                f"{places[0]} ({configs[0].method}) and {run_path} ({config.method}) are different kinds of training, "
                "whose metrics measure different things; compare runs of one kind"
            )
        status = read_summary(run_path).get("status")
        if status != "finished":
            raise WhetError(f"{run_path} is {status or 'unfinished'}; finish it with `whet resume {run_path}` first")
    settings = [flattened(config.model_dump(mode="json")) for config in configs]
    differing = sorted(
        path
        for path in {path for run_settings in settings for path in run_settings} - {"seed", "folder"}
        if len({repr(run_settings.get(path)) for run_settings in settings}) > 1
    )
    groups: dict[tuple[str, ...], list[int]] = {}
    for at, values_of_run in enumerate(settings):
        groups.setdefault(tuple(repr(values_of_run.get(path)) for path in differing), []).append(at)
    entries = [at for group in groups.values() for at in _entries(group, configs, alone=len(groups) == 1)]
    labels = _labels(entries, places, configs)
    results = [
        result_of(places[at], labels[at], configs[at].seed, str(places[at].resolve())) for at in range(len(places))
    ]
    remarks = []
    if any(result.scores for result in results) and not _asked_the_same(places, configs):
        results = [replace(result, scores={}) for result in results]
        remarks = [
            f"The records do not say that each run asked the same questions of {configs[0].eval.source}: they are "
            "compared as shares, not prompt by prompt."
        ]
    values = {label: settings[labels.index(label)] for label in dict.fromkeys(labels)}
    return MethodComparison(
        methods=tuple(dict.fromkeys(labels)),
        seeds=tuple(sorted({config.seed for config in configs})),
        results=tuple(results),
        equal={path: str(settings[0][path]) for path in SHOWN_EQUAL if settings[0].get(path) and path not in differing},
        unequal={
            path: ", ".join(
                f"{label} {_setting_text(path, run_settings.get(path))}" for label, run_settings in values.items()
            )
            for path in differing
            if path != "method"
        },
        remarks=tuple(remarks),
        command=command,
        planned={label: labels.count(label) for label in labels},
        incomparable=_incomparable(settings, differing, results),
    )


def _asked_the_same(places: Sequence[Path], configs: Sequence[Config]) -> bool:
    """Whether the n-th score of each run is of the same question: of a file, another version of whet asked others."""
    if all(config.data.parsed_source.is_generated for config in configs):
        return True
    asked = {str(read_summary(run_path).get("eval_questions") or "") for run_path in places}
    return len(asked) == 1 and "" not in asked


SHOWN_EQUAL = ("method", "model.name", "data.source", "eval.source", "steps")


def _entries(group: Sequence[int], configs: Sequence[Config], alone: bool) -> list[list[int]]:
    """Runs of one config as one entry with several seeds; each on its own where nothing else is there to compare, or
    where seeds repeat: equal runs are no independent draws."""
    if alone or len({configs[at].seed for at in group}) < len(group):
        return [[at] for at in group]
    return [list(group)]


def _setting_text(path: str, value: Any) -> str:
    if path == "reward.parts":
        parts = [f"{part['weight']} x {part['reward']}" for part in value or ()]
        return " + ".join(parts) or "the task's own"
    return str(value)


def _labels(groups: Sequence[Sequence[int]], places: Sequence[Path], configs: Sequence[Config]) -> list[str]:
    """What each run is called: its method where that tells the groups apart, else its folder."""
    methods = [configs[group[0]].method for group in groups]
    names = [run_folder.name for run_folder in places]
    shown = names if len(set(names)) == len(names) else [str(run_folder) for run_folder in places]
    labels = [""] * len(places)
    for group, method in zip(groups, methods, strict=True):
        first = shown[group[0]] + (f" and {len(group) - 1} more" if len(group) > 1 else "")
        for at in group:
            labels[at] = method if len(group) > 1 and methods.count(method) == 1 else first
    return labels


def _incomparable(settings: Sequence[Mapping[str, Any]], differing: Sequence[str], results: Sequence[MethodRun]) -> str:
    """Why the metrics of these runs do not measure the same thing; empty where they do."""
    source = str(settings[0].get("eval.source") or "")
    # a task brings its own eval split; elsewhere the training data may differ as they like
    own_split = () if source else ("data.source", "data.difficulty")
    for path in differing:
        section = path.partition(".")[0]
        if path in own_split or path == "eval.source":
            return f"they were evaluated on different data ({path} differs)"
        if path == "eval.prompts":
            return f"they were evaluated on different numbers of prompts ({path} differs)"
        if section == "reward":
            return f"their completions were scored by different rewards ({path} differs)"
    sizes = {result.eval_size for result in results}
    if len(sizes) > 1:
        return f"they were evaluated on different numbers of prompts ({', '.join(map(str, sorted(sizes)))})"
    return "" if metric_name(results) or not any(result.after for result in results) else "they share no eval metric"


def write_comparison(folder: Path, comparison: MethodComparison) -> Path:
    """compare.html and compare.json in this folder; the page."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WhetError(f"{folder}: cannot write there ({error.strerror}); give another --folder") from error
    linked = tuple(replace(result, folder=_link(folder, result.folder)) for result in comparison.results)
    shown = replace(comparison, results=linked)
    values = dumps(comparison_values(shown), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    for name, text in ((VALUES, values), (PAGE, compare_page(shown))):
        write_atomically(folder / name, text)
    return folder / PAGE


def _link(folder: Path, run: str) -> str:
    """A run's folder as the page beside it names it."""
    return Path(os.path.relpath(run, folder.resolve())).as_posix() if os.path.isabs(run) else run


def _train(entry: PlannedRun, layer: Mapping[str, Any]) -> tuple[str, str]:
    """Train or resume one run; returns what to say of it, and the complaint where it failed."""
    line = ProgressLine(entry.name, sys.stdout)
    try:
        if entry.is_begun:
            run = api.resume(entry.folder, callbacks=[line], console=False)
        else:
            own = {"seed": entry.seed, "folder": str(entry.folder)}
            run = api.train(entry.method, config=merged(layer, own), callbacks=[line], console=False)
    except KeyboardInterrupt:
        return INTERRUPTED, ""
    except RunFailed as error:
        # one method that breaks is a finding about it; the others are still worth comparing
        return "failed", f"{entry.name} failed and is left out ({error})."
    finally:
        line.clear()
    return (INTERRUPTED if run.status == "interrupted" else ""), ""


def _outcome(entry: PlannedRun) -> list[str]:
    if not entry.is_finished:
        return []
    result = entry.result()
    name = headline(result.after)
    gain = (
        f"{name} {metric_text(name, result.before.get(name))} to {metric_text(name, result.after[name])}"
        if name
        else ""
    )
    return [gain, duration(result.seconds)]


def _comparison(entries: Sequence[PlannedRun], failures: Mapping[str, str], command: str) -> MethodComparison:
    equal, unequal = held_equal(entries)
    remarks = list(failures.values())
    if len({entry.method for entry in entries}) > 1 and entries[0].config.batch.updates_per_step == 1:
        remarks.append(
            "With one update per step the ratio is always 1: methods that differ only in how they tame it are the same "
            "here. --set batch.updates_per_step=4 lets them differ."
        )
    return MethodComparison(
        tuple(dict.fromkeys(entry.method for entry in entries)),
        tuple(dict.fromkeys(entry.seed for entry in entries)),
        tuple(entry.result() for entry in entries if entry.is_finished),
        equal,
        unequal,
        tuple(remarks),
        command,
    )


def _closed(folder: Path, comparison: MethodComparison, is_stopped: bool) -> ComparisonRun:
    planned, done = len(comparison.methods) * len(comparison.seeds), len(comparison.results)
    print_line(f"\n{table_text(comparison)}\n\n  report     {folder / PAGE}")
    if is_stopped:
        continued = f"to continue, repeat the command with --folder {folder}"
        print_line(f"  next       {done} of {planned} runs are finished; {continued}")
    status = "interrupted" if is_stopped else "finished" if done == planned else "unfinished"
    return ComparisonRun(folder, status, comparison, folder / PAGE)
