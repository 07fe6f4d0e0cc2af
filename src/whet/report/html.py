"""report.html: a run on one page that needs nothing but a browser. No script, no font, no network.

Everything that comes from the run is escaped where it enters the page; the content policy in the head forbids
scripts besides, since completions are written by a model that may have read anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from whet.report.eval_section import held_out_section
from whet.report.health import Episode, completion_length, episodes, gradient_norm
from whet.report.run import Run, read_run, started_on, verdict
from whet.report.spread_figure import spread_figures
from whet.report.style import STYLE
from whet.report.svg import Point, Series, line_chart, value_scale
from whet.report.text import (
    ACCURACY_NAMES,
    duration,
    headline,
    label,
    measured,
    memory_text,
    number,
    ordered,
    percent,
    quantity,
)
from whet.types import StepReport

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
REPORT = "report.html"
TONES = {"rollout": 0, "reward": 1, "train": 2, "save": 3, "evaluate": 4, "reference": 5, "start_up": 6}
Measure = Callable[[StepReport], float | None]


def write_report(folder: Path | str) -> Path:
    path = Path(folder) / REPORT
    text = html_report(Path(folder))
    path.write_text(text, encoding="utf-8", errors="replace")
    return path


def html_report(folder: Path | str) -> str:
    """The page of a run folder, whatever state the run was left in."""
    run = read_run(folder)
    title = str(run.summary.get("title") or run.folder.name or "run")
    sections = (
        _opening(run, title),
        _objective(run),
        _curves(run),
        held_out_section(run.evaluations),
        _time(run),
        _health(run),
        _samples(run),
        _counts(run),
        _config(run),
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body><main>\n{''.join(filter(None, sections))}"
        f'<p class="foot">Drawn by whet from run.json, config.toml, metrics.jsonl and samples.jsonl in'
        f" {escape(str(run.folder))}.</p>\n</main></body></html>\n"
    )


def _opening(run: Run, title: str) -> str:
    method = run.summary.get("method")
    return (
        f'<header><div class="eyebrow"><b>whet</b>'
        f"{f'<span>{escape(str(method))}</span>' if method else ''}<span>{started_on(run)}</span>"
        f'<span class="status {escape(run.status, quote=True)}">{escape(run.status)}</span></div>'
        f'<h1>{escape(title)}</h1><p class="verdict">{escape(verdict(run))}</p></header>\n{_tiles(run)}'
    )


def _tiles(run: Run) -> str:
    total = int(run.summary.get("total_steps") or 0)
    short = f" <small>of {total}</small>" if total > run.num_steps else ""
    tiles: list[tuple[str, str]] = []
    gain = run.gain()
    if gain is not None:
        name, before, after = gain
        tiles.append((name.replace("_", " "), _change(measured(name, before), measured(name, after))))
    rewards = _points(run.steps, lambda step: step.reward.get("total"))
    if rewards:
        tiles.append(("mean reward", _change(number(rewards[0][1]), number(rewards[-1][1]))))
    tiles.append(("steps", f"{run.num_steps}{short}"))
    wall = run.wall_seconds()
    if wall:
        tiles.append(("wall time", duration(wall)))
    tokens, writing = run.tokens(), run.seconds().get("rollout", 0.0)
    if tokens:
        tiles.append(("tokens generated", quantity(tokens)))
    if tokens and writing:
        tiles.append(("rollout tokens/s", number(tokens / writing)))
    if run.summary.get("memory"):
        tiles.append(("peak memory", memory_text(run.summary["memory"])))
    inside = "".join(f'<div class="tile"><dt>{escape(name)}</dt><dd>{value}</dd></div>' for name, value in tiles)
    return f'<dl class="tiles">{inside}</dl>\n'


def _change(before: str, after: str) -> str:
    return f"<small>{escape(before)} →</small> {escape(after)}"


def _objective(run: Run) -> str:
    lines = [str(line) for line in run.summary.get("objective") or ()]
    facts = {str(name): str(value) for name, value in (run.summary.get("facts") or {}).items()}
    if run.summary.get("seed") is not None:
        facts.setdefault("seed", str(run.summary["seed"]))
    words = "".join(f'<p class="mono">{escape(line)}</p>' for line in lines)
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    left = f'<div><h2>Objective</h2><div class="box objective">{words}</div></div>' if words else ""
    right = f'<div><h2>Setting</h2><dl class="box facts">{pairs}</dl></div>' if pairs else ""
    return f'<section class="pair">{left}{right}</section>\n' if left or right else ""


def _points(steps: Sequence[StepReport], measure: Measure) -> tuple[Point, ...]:
    values = ((step.step, measure(step)) for step in steps)
    return tuple((float(step), value) for step, value in values if value is not None and math.isfinite(value))


def _curves(run: Run) -> str:
    if not run.steps and not run.evaluations:
        return ""
    small = [_figure(title, unit, _points(run.steps, measure)) for title, unit, measure in _measures(run)]
    others = [_figure(name.replace("_", " "), "", _points(run.steps, _metric(name))) for name in _other_metrics(run)]
    more = "".join(filter(None, others))
    spreads = spread_figures([(step.step, step.spread) for step in run.steps])
    details = (
        f'<details><summary>Every other metric</summary><div class="charts">{more}</div></details>' if more else ""
    )
    figures = f"{_main_figure(run)}{''.join(small)}{spreads}"
    return f'<section><h2>Curves</h2><div class="charts">{figures}</div>{details}</section>\n'


KNOWN = {"completion_length", "entropy", "kl", "gradient_norm", "grad_norm", "loss", "sampler_gap", "uniform_groups"}


def _other_metrics(run: Run) -> list[str]:
    return sorted({name for step in run.steps for name in step.metrics} - KNOWN)


def _metric(name: str) -> Measure:
    return lambda step: step.metrics.get(name)


def _part(name: str) -> Measure:
    return lambda step: step.reward.get(name)


def _speed(step: StepReport) -> float | None:
    seconds = sum(step.seconds.values())
    return step.counts.get("tokens", 0) / seconds if seconds > 0 and math.isfinite(seconds) else None


def _truncated(step: StepReport) -> float | None:
    samples = step.counts.get("samples", 0)
    return step.counts["truncated"] / samples if samples and "truncated" in step.counts else None


def _measures(run: Run) -> list[tuple[str, str, Measure]]:
    """The small charts, in the order of the page: title, unit, and what is drawn."""
    parts = list(dict.fromkeys(name for step in run.steps for name in step.reward if name != "total"))
    same = len(parts) == 1 and all(step.reward.get(parts[0]) == step.reward.get("total") for step in run.steps)
    return [
        *((f"Reward: {name}", "mean of the step", _part(name)) for name in parts if not same),
        ("Completion length", "tokens", completion_length),
        ("Truncated completions", "share", _truncated),
        ("Groups that agree", "share", _metric("uniform_groups")),
        ("Entropy", "nats per token", _metric("entropy")),
        ("KL", "nats per token", _metric("kl")),
        ("Gradient norm", "before clipping", gradient_norm),
        ("Loss", "share x weight x A x log pi", _metric("loss")),
        ("Sampler gap", "nats per token", _metric("sampler_gap")),
        ("Speed", "tokens a second, whole step", _speed),
    ]


def _figure(title: str, unit: str, points: tuple[Point, ...]) -> str:
    if not points:
        return ""
    chart = line_chart([Series(title.lower(), points)], f"{title} by step")
    if value_scale([value for _, value in points], (0, 1)).log:
        unit = f"{unit}, log scale" if unit else "log scale"
    return (
        f'<figure><figcaption><b>{escape(title)}</b><span class="soft">{escape(unit)}</span>'
        f'<span class="last">{number(points[-1][1])}</span></figcaption>{chart}{_range(points)}</figure>'
    )


def _range(points: Sequence[Point]) -> str:
    low, high = min(points, key=lambda point: point[1]), max(points, key=lambda point: point[1])
    return (
        f'<p class="range">min {number(low[1])} at step {low[0]:.0f} · max {number(high[1])} at step {high[0]:.0f}</p>'
    )


def _main_figure(run: Run) -> str:
    """Held-out measurements and the mean reward together: is what is trained also what is wanted?"""
    by_name: dict[str, list[Point]] = {}
    for evaluation in run.evaluations:
        main = headline(evaluation.result)
        if main is not None and math.isfinite(evaluation.result[main]):
            name = f"{evaluation.name} {main}".replace("_", " ")
            by_name.setdefault(name, []).append((float(evaluation.step), evaluation.result[main]))
    series = [Series(name, tuple(points), marked=True) for name, points in by_name.items()]
    rewards = _points(run.steps, _part("total"))
    series += [Series("mean reward", rewards)] if rewards else []
    if not series:
        return ""
    values = [value for line in series for _, value in line.points]
    unit = min(values) >= 0 and max(values) <= 1
    broad = line_chart(series, "Evaluations and mean reward by step", (1060, 270), unit)
    narrow = line_chart(series, "Evaluations and mean reward by step", (340, 210), unit)
    legend = "".join(
        f'<span class="s{place}"><span class="swatch"></span>{escape(line.name)}'
        f' <b>{number(line.points[-1][1])}</b> <span class="soft">min {number(min(v for _, v in line.points))},'
        f" max {number(max(v for _, v in line.points))}</span></span>"
        for place, line in enumerate(series)
    )
    title = "Held-out accuracy and mean reward" if by_name else "Mean reward"
    if by_name and not any(name in key.replace(" ", "_") for key in by_name for name in ACCURACY_NAMES):
        title = "Evaluations and mean reward"
    return (
        f'<figure class="wide"><figcaption><b>{title}</b><span class="soft">by step</span></figcaption>'
        f'<div class="broad">{broad}</div><div class="narrow">{narrow}</div><p class="legend">{legend}</p></figure>'
    )


def _time(run: Run) -> str:
    spent = ordered(run.seconds())
    covered = sum(took for _, took in spent)
    rest = run.wall_seconds() - covered
    if covered and rest > 0.01 * covered:
        spent.append(("other", rest))
    total = sum(took for _, took in spent)
    if not total:
        return ""
    bars, legend = [], []
    for phase, took in spent:
        tone, words = f"s{TONES.get(phase, 7)}", f"{label(phase)} {duration(took)}, {percent(took / total)}"
        bars.append(f'<span class="{tone}" style="flex:{took / total:.5f}" title="{escape(words, quote=True)}"></span>')
        legend.append(
            f'<span class="{tone}"><span class="swatch"></span>{escape(label(phase))} <b>{duration(took)}</b>'
            f' <span class="soft">{percent(took / total)}</span></span>'
        )
    return (
        f'<section><h2>Where the time went</h2><div class="box"><div class="bar">{"".join(bars)}</div>'
        f'<p class="legend">{"".join(legend)}</p></div></section>\n'
    )


def _health(run: Run) -> str:
    if not run.steps:
        return ""
    found = episodes(run.steps, run.dtype)
    problems = [episode for episode in found if episode.finding.is_problem]
    notes = [episode for episode in found if not episode.finding.is_problem and episode.holds]
    known = {episode.finding.sentence for episode in found}
    others = [sentence for sentence in run.steps[-1].health if sentence not in known]
    calm = "" if problems or others else f"<p>No problem was found in {len(run.steps)} steps.</p>"
    inside = "".join(map(_finding, [*problems, *notes]))
    inside += "".join(f'<div class="finding problem">{escape(sentence)}</div>' for sentence in others)
    return f"<section><h2>Health</h2>{calm}{inside}</section>\n"


def _finding(episode: Episode) -> str:
    finding, first, last = episode.finding, episode.first, episode.last
    name, sentence = escape(finding.name), escape(finding.sentence)
    if not finding.is_problem:
        return f'<div class="finding"><b>{name}</b> <span class="soft">normal</span><br>{sentence}</div>'
    span = f"step {first}" if first == last else f"steps {first} to {last}"
    if episode.num_steps < last - first + 1:
        span = f"{episode.num_steps} of the {span}"
    when = "still true at the end" if episode.holds else "over by the end"
    return f'<div class="finding problem"><b>{name}</b> <span class="soft">{span}, {when}</span><br>{sentence}</div>'


def _samples(run: Run) -> str:
    if not run.first_samples:
        return ""
    ends = [("First step", run.first_samples)]
    if run.last_samples[0]["step"] != run.first_samples[0]["step"]:
        ends.append(("Last step", run.last_samples))
    columns = "".join(
        f"<div><h3>{name} ({samples[0]['step']})</h3>{''.join(_sample(*choice) for choice in _best_and_worst(samples))}"
        "</div>"
        for name, samples in ends
    )
    return f'<section><h2>Samples</h2><div class="samples">{columns}</div></section>\n'


def _best_and_worst(samples: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    scored = [sample for sample in samples if sample.get("reward") is not None]
    if not scored:
        return [("Not scored", samples[0])]
    best, worst = max(scored, key=lambda sample: sample["reward"]), min(scored, key=lambda sample: sample["reward"])
    if best["reward"] == worst["reward"]:
        return [("All rewards alike", best)]
    return [("Best", best), ("Worst", worst)]


def _sample(rank: str, sample: Mapping[str, Any]) -> str:
    completion = str(sample.get("completion") or "")
    answer = sample.get("answer")
    gold = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    parts = (sample.get("parts") or {}).items()
    chips = "".join(f'<span class="chip">{escape(name)} {number(value)}</span>' for name, value in parts)
    texts = [("Question", str(sample.get("question") or "")), ("Completion", completion)]
    texts += [] if answer is None else [("Gold answer", str(gold))]
    boxes = "".join(
        f'<div class="name">{name}</div><pre class="well" tabindex="0">{escape(text) or _EMPTY}</pre>'
        for name, text in texts
    )
    stop = {"length": "ran out of tokens", "end": "ended by itself", "text": "ended at a stop string"}
    ending = stop.get(str(sample.get("stop")), str(sample.get("stop")))
    return (
        f'<article class="sample"><header><b>{rank}</b>{chips}'
        f'<span class="chip main">reward {number(sample.get("reward"))}</span></header>{boxes}'
        f"<footer>{sample.get('tokens')} tokens, {escape(ending)}, prompt {escape(str(sample.get('prompt_id')))}"
        "</footer></article>"
    )


_EMPTY = '<span class="soft">(empty)</span>'


def _counts(run: Run) -> str:
    counts: dict[str, int] = {}
    for step in run.steps:
        for name, count in step.counts.items():
            counts[name] = counts.get(name, 0) + count
    if not counts:
        return ""
    samples = counts.get("samples", 0)
    rows = "".join(
        f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{count:,}</td><td>{number(count / len(run.steps))}</td>"
        f"<td>{percent(count / samples) if samples and name in ('truncated', 'unscorable') else ''}</td></tr>"
        for name, count in counts.items()
    )
    return (
        '<section><h2>Counts</h2><div class="box counts"><table><tr class="soft"><th></th><td>whole run</td>'
        f"<td>a step</td><td>of samples</td></tr>{rows}</table></div></section>\n"
    )


def _config(run: Run) -> str:
    command = str(run.summary.get("command") or "")
    again = (
        f'<section><h2>Reproduce</h2><pre class="well command" tabindex="0">{escape(command)}</pre></section>\n'
        if command
        else ""
    )
    config = (
        f'<section><h2>Config</h2><pre class="well config" tabindex="0">{escape(run.config)}</pre></section>\n'
        if run.config
        else ""
    )
    return config + again
