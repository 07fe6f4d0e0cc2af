"""The page: true, self-contained, inert, and there for every state a run can be left in."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as xml
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from tests.support.for_every import for_every
from tests.support.own_script import without_charts_script
from whet.pages.chart_specs import chart, line, smoothed, thinned
from whet.pages.chart_svg import chart_svg, step_scale, tick_text, value_scale
from whet.pages.run_report import html_report, tiles, write_report
from whet.record.log import RunRecorder
from whet.record.run import read_run, verdict
from whet.types import Prompt, Sample, StepReport, StopReason, WhetError

SUMMARY = {
    "title": "A <title>",
    "method": "row",
    "objective": ["maximise reward", "loss = - a < b"],
    "facts": {"model": "tiny & small", "dtype": "float32"},
    "total_steps": 40,
    "started": 1_700_000_000.0,
    "command": "whet train --seed 7 <x>",
    "seed": 7,
}
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Reader(HTMLParser):
    """Collects tags and attributes, and checks that every tag is closed in its turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def sample(completion: str, reward: float | None) -> Sample:
    action = torch.tensor([False, True, True])
    bare = Sample(torch.arange(3), action, torch.zeros(3), (0, 0), StopReason.LENGTH, completion)
    return bare.scored({"exact": reward or 0.0}, reward)


def leave_run(
    folder: Path, num_steps: int, evaluate: bool = True, finish: bool = True, completion: str = "completion"
) -> None:
    record = RunRecorder(folder)
    record.started(SUMMARY)
    (folder / "config.toml").write_text('[model]\nname = "<tiny>"\n')
    if evaluate:
        record.evaluated(0, "eval", {"accuracy": 0.25}, 2.0)
    for step in range(1, num_steps + 1):
        pairs = [
            (Prompt(f"p{step}", (), f"question {step}", answer="gold"), sample(f"{completion} {step} good", 1.0)),
            (Prompt(f"p{step}", (), f"question {step}", answer="gold"), sample(f"{completion} {step} bad", 0.0)),
        ]
        report = StepReport(
            step,
            step - 1,
            {"prompts": 1, "samples": 2, "tokens": 100, "truncated": 2, "unscorable": 0},
            {"total": 0.1 + 0.01 * step, "exact": 0.02 * step, "format": 0.5},
            {"loss": 0.01, "entropy": 2.0 / step, "kl": 0.001 * step, "odd_metric": 3.0, "sampler_gap": math.nan},
            (),
            {"rollout": 1.0, "train": 0.5},
        )
        record.stepped(report, pairs)
    if evaluate and num_steps:
        record.evaluated(num_steps, "eval", {"accuracy": 0.75}, 2.0)
    if finish:
        after = {"before": {"accuracy": 0.25}, "after": {"accuracy": 0.75}} if evaluate else {}
        seconds = {"rollout": 40.0, "train": 20.0, "start_up": 5.0}
        record.finished({**SUMMARY, "finished": 1_700_000_075.0, "seconds": seconds, "tokens": 4000, **after})
    record.close()


def test_tiles_say_where_a_number_came_from(tmp_path: Path) -> None:
    leave_run(tmp_path, 40)
    shown = {tile.name: (tile.before, tile.value) for tile in tiles(read_run(tmp_path))}
    assert shown["eval accuracy"] == ("25.0%", "75.0%") and shown["mean reward"] == ("0.110", "0.500")


def test_what_a_run_reached_is_said_once(tmp_path: Path) -> None:
    record = RunRecorder(tmp_path)
    record.started({**SUMMARY, "eval_size": 200})
    record.evaluated(0, "eval", {"accuracy": 0.25}, 2.0)
    record.stepped(StepReport(1, 0, {"prompts": 1, "samples": 2}, {"total": 0.1}, {}, (), {"train": 0.5}), [])
    record.evaluated(1, "eval", {"accuracy": 0.75}, 2.0)
    record.finished({**SUMMARY, "eval_size": 200})
    record.close()
    text = Reader(html_report(tmp_path)).text
    assert text.count("Accuracy rose from 25.0%") == 1 and "No problem was found." in text


def test_finished_run_has_every_section(tmp_path: Path) -> None:
    leave_run(tmp_path, 40)
    path = write_report(tmp_path)
    assert path == tmp_path / "report.html"
    text = Reader(path.read_text(encoding="utf-8")).text
    assert "Accuracy rose from 25.0% to 75.0%. It took 40 steps and 1 min 15 s." in text
    for heading in ("Objective", "Curves", "Where the time went", "Health", "Samples", "Counts", "Config", "Reproduce"):
        assert heading in text
    for title in (
        "Held-out accuracy and mean reward",
        "Reward: exact",
        "Reward: format",
        "Completion length",
        "Entropy",
    ):
        assert title in text
    assert "Sampler gap" not in text, "a chart without a single value is left out"
    assert "odd metric" in text and "min 0.050 at step 40" in text and "max 2.00 at step 1" in text
    assert re.search(r"rollout 40 s\s+53.3%", text) and re.search(r"other 10 s", text)
    for words in (
        "completion 1 good",
        "completion 1 bad",
        "completion 40 good",
        "completion 40 bad",
        "gold",
        "ran out of tokens",
    ):
        assert words in text
    assert "completion 20" not in text
    assert "whet train --seed 7 <x>" in text and 'name = "<tiny>"' in text and "loss = - a < b" in text
    assert "step 7: entropy 0.286" in text


def test_page_needs_nothing_from_outside_and_runs_nothing(tmp_path: Path) -> None:
    leave_run(tmp_path, 3)
    page = html_report(tmp_path)
    reader = Reader(without_charts_script(page))
    assert not {"script", "link", "img", "iframe", "object"} & set(reader.tags)
    assert not [name for name, _ in reader.attributes if name in ("src", "href") or name.startswith("on")]
    assert "url(" not in page and "@import" not in page and "http://" not in page and "https://" not in page
    assert "prefers-color-scheme: dark" in page and "@media print" in page and 'name="viewport"' in page


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "</pre></main><script src=//x></script>",
        "<img src=x onerror=alert(1)>",
        "\" onmouseover='alert(1)' x=\"",
        "]]><!--",
        "\ud800\x00",
    ],
)
def test_hostile_text_is_inert_wherever_it_comes_from(tmp_path: Path, hostile: str) -> None:
    leave_run(tmp_path, 2, completion=hostile)
    record = RunRecorder(tmp_path)
    record.started({**SUMMARY, "title": hostile, "status": hostile, "facts": {hostile: hostile}, "command": hostile})
    record.evaluated(2, hostile, {hostile: 0.5}, 1.0)
    metrics = {hostile: 1.0}
    record.stepped(
        StepReport(3, 2, {"samples": 1, hostile: 2}, {"total": 1.0, hostile: 1.0}, metrics, (), {hostile: 1.0}), []
    )
    record.close()
    (tmp_path / "config.toml").write_text(hostile, encoding="utf-8", errors="replace")
    reader = Reader(without_charts_script(write_report(tmp_path).read_text(encoding="utf-8")))
    assert not {"script", "img", "iframe"} & set(reader.tags)
    assert not [name for name, _ in reader.attributes if name in ("src", "href") or name.startswith("on")]
    if "<" in hostile:
        assert f"{hostile} 1 good" in reader.text


def test_run_without_a_step_renders(tmp_path: Path) -> None:
    leave_run(tmp_path, 0, evaluate=False, finish=False)
    assert "interrupted before its first step" in Reader(html_report(tmp_path)).text


def test_killed_run_renders_with_a_torn_line(tmp_path: Path) -> None:
    leave_run(tmp_path, 12, finish=False)
    for name in ("metrics.jsonl", "samples.jsonl"):
        with (tmp_path / name).open("ab") as log:
            log.write(b'{"step": 13, "re')
    text = Reader(html_report(tmp_path)).text
    assert "step 12 of 40" in text and "killed" in text and "from 25.0% to 75.0%" in text
    assert "rollout 12 s" in text


def test_run_without_evaluation_says_so(tmp_path: Path) -> None:
    leave_run(tmp_path, 3, evaluate=False)
    assert verdict(read_run(tmp_path)) == (
        "Mean reward went from 0.110 to 0.130 (nothing was evaluated). It took 3 steps and 1 min 15 s."
    )
    assert "Held-out" not in Reader(html_report(tmp_path)).text


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"accuracy": 0.5}, {"accuracy": 0.25}, "fell from 50.0% to 25.0%"),
        ({"accuracy": 0.5}, {"accuracy": 0.5}, "stayed at 50.0%"),
        ({}, {"accuracy": 0.5}, "reached 50.0%"),
        ({"accuracy": 0.5}, {}, "was 50.0% before training"),
        ({"score": 2.0}, {"score": 3.0}, "rose from 2.00 to 3.00"),
    ],
)
def test_verdict_follows_the_numbers(
    tmp_path: Path, before: dict[str, float], after: dict[str, float], words: str
) -> None:
    leave_run(tmp_path, 2, evaluate=False)
    RunRecorder(tmp_path).started({**SUMMARY, "status": "interrupted", "before": before, "after": after})
    sentence = verdict(read_run(tmp_path))
    assert words in sentence and sentence.startswith("The run was interrupted after step 2 of 40")


def test_bare_summary_renders(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert tmp_path.name in Reader(html_report(tmp_path)).text
    with pytest.raises(WhetError, match=r"has no run\.json"):
        html_report(tmp_path / "nowhere")


def test_chart_places_points_where_the_values_say() -> None:
    root = xml.fromstring(chart_svg(chart([line("reward", [(0.0, 0.0), (10.0, 1.0)])], unit=True), "reward"))
    (path,) = [node for node in root if node.get("class") == "line s0"]
    (x0, y0), (x1, y1) = (pair.split() for pair in path.get("d", "")[1:].split("L"))
    assert float(x1) > float(x0) and float(y1) < float(y0)
    assert (float(y0), float(y1)) == (146.0, 8.0)
    assert [node[0].text for node in root if node.get("class") == "strip"] == [
        "step 0: reward 0",
        "step 10: reward 1.00",
    ]


def test_chart_without_points_is_empty_and_with_one_is_a_dot() -> None:
    assert chart_svg(chart([line("a", [])]), "a") == ""
    assert "<circle" in chart_svg(chart([line("a", [(1.0, 5.0)])]), "a")


@for_every(
    [
        [0.0, 0.0],
        [3.0, 3.0],
        [-1.0, 4.0],
        [1e-9, 2e-9],
        [1.8e-6, 2.5e-6],
        [0.5001, 0.5009],
        [0.31, 0.33],
        [1e5, 3e5],
        [-5.0, -5.0],
    ]
)
def test_scale_holds_its_values_between_its_ticks(values: list[float]) -> None:
    scale = value_scale(values, (100, 0))
    assert 3 <= len(scale.ticks) <= 7
    assert len({tick_text(tick, scale) for tick in scale.ticks}) == len(scale.ticks)
    assert all(-1e-6 <= scale(value) <= 100 + 1e-6 for value in values)
    assert scale(scale.ticks[0]) == pytest.approx(100) and scale(scale.ticks[-1]) == pytest.approx(0)


def test_wide_positive_range_is_logarithmic() -> None:
    scale = value_scale([1e-4, 10.0], (100, 0))
    assert scale.log and scale(1e-4) == pytest.approx(100) and scale.ticks[-1] >= 10
    assert not value_scale([0.0, 10.0], (100, 0)).log


def test_step_ticks_are_whole() -> None:
    for last in (1, 3, 17, 60, 2000):
        assert all(tick == int(tick) for tick in step_scale(0, last, (0, 300)).ticks)


def test_long_series_are_thinned_with_their_range() -> None:
    cells = thinned([(float(step), float(step % 2)) for step in range(1000)], most=100)
    assert len(cells) == 100 and cells[0] == (4.5, 0.5, 0.0, 1.0)
    long = line("a", [(float(x), float(x % 7)) for x in range(1000)])
    assert 'class="band s0"' in chart_svg(chart([long]), "a")


def test_smoothing_keeps_the_ends_and_drops_a_spike() -> None:
    values = [1.0] * 20 + [50.0] + [1.0] * 20
    assert smoothed(values) == [1.0] * 41
    assert smoothed([float(value) for value in range(40)]) == pytest.approx(list(range(40)))


def test_the_median_step_is_drawn_with_what_ran_beside_it(tmp_path: Path) -> None:
    record = RunRecorder(tmp_path)
    record.started(SUMMARY)
    for step, scale in ((1, 10.0), (2, 1.0), (3, 2.0)):
        spans = (("reward_behind", -scale, 0.0), ("reward_behind", scale / 2, scale), ("rollout", 0.0, scale))
        seconds = {"rollout": scale, "train": 0.0}
        report = StepReport(step, step - 1, {"tokens": 1}, {"total": 0.5}, {}, seconds=seconds, timeline=spans)
        record.stepped(report, [])
    assert [step.timeline[2] for step in read_run(tmp_path).steps] == [("rollout", 0.0, s) for s in (10.0, 1.0, 2.0)]
    page = html_report(tmp_path)
    assert "seconds of step 3, the median" in page
    svg = page[page.index("A typical step") :]
    bars = re.findall(r'<rect class="column (s\d)" x="([\d.]+)" y="(\d+)" width="([\d.]+)"', svg[: svg.index("</svg>")])
    assert [(tone, y) for tone, _, y, _ in bars] == [("s1", "8"), ("s1", "8"), ("s0", "34")]
    (early, late, whole) = [(float(x), float(width)) for _, x, _, width in bars]
    assert early[1] == pytest.approx(2 * late[1], abs=0.3) and whole[1] == pytest.approx(early[1], abs=0.3)
    assert early[0] + early[1] == pytest.approx(whole[0], abs=0.3) and whole[0] < late[0]
