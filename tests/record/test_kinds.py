"""Every kind of run is shown by its own metrics: on the console, on the page and in the verdict."""

import io
from pathlib import Path

import pytest

from tests.support.for_every import for_every
from whet.pages.card import run_card, run_figure
from whet.pages.run_report import html_report
from whet.record.console import Console
from whet.record.log import RunRecorder
from whet.record.run import read_run, verdict
from whet.record.run_kinds import PREFERENCE, REWARD_MODEL, RL, RUN_KINDS, SFT, kind_of
from whet.record.text import metric_text
from whet.types import StepReport

METRICS = {
    PREFERENCE: {
        "loss": 0.6,
        "accuracy": 0.75,
        "margin": 0.5,
        "chosen_logp": -20.0,
        "rejected_logp": -30.0,
        "chosen_mean_logp": -1.0,
    },
    SFT: {"loss": 1.25, "gradient_norm": 0.5, "learning_rate": 1e-4},
    REWARD_MODEL: {"loss": 0.5, "accuracy": 0.8, "margin": 1.5, "confidence": 0.7, "score": 0.1},
    RL: {"loss": 0.1, "kl": 0.01, "entropy": 0.5},
}
EVALS = {
    PREFERENCE: (
        {"pair_accuracy": 0.5, "accuracy": 0.1, "loss": 0.7},
        {"pair_accuracy": 0.9, "accuracy": 0.2, "loss": 0.4},
    ),
    SFT: ({"loss": 2.0, "accuracy": 0.1}, {"loss": 1.0, "accuracy": 0.3}),
    REWARD_MODEL: ({"accuracy": 0.5, "calibration_error": 0.2}, {"accuracy": 0.8, "calibration_error": 0.1}),
    RL: ({"accuracy": 0.1, "reward": 0.1}, {"accuracy": 0.6, "reward": 0.6}),
}


def step(kind: str, number: int) -> StepReport:
    reward = {"total": 0.25} if kind == RL else {}
    counts = {"samples": 4, "tokens": 100} if kind == RL else {"rows": 4, "tokens": 100}
    return StepReport(number, number - 1, counts, reward, METRICS[kind], (), {"train": 2.0})


def leave_run(folder: Path, kind: str, evaluate: bool = True, steps: int = 3) -> None:
    record = RunRecorder(folder)
    record.started({"title": "<b>title</b>", "total_steps": steps})
    if evaluate:
        record.evaluated(0, "eval", EVALS[kind][0], 1.0)
    for number in range(1, steps + 1):
        record.stepped(step(kind, number), [])
    if evaluate:
        record.evaluated(steps, "eval", EVALS[kind][1], 1.0)
    record.finished({})


@pytest.mark.parametrize("kind", RUN_KINDS)
def test_a_kind_is_known_by_what_its_steps_report(kind: str) -> None:
    assert kind_of([step(kind, 1)]).name == kind
    assert kind_of([]).name == RL


def test_a_labelled_reward_model_is_one_too() -> None:
    assert kind_of([StepReport(1, 0, {}, {}, {"loss": 1.0, "squared_error": 0.2})]).name == REWARD_MODEL


LINES = {
    PREFERENCE: "step 1/3  accuracy 75.0%  margin 0.500  chosen -20.0 nats  rejected -30.0 nats  loss 0.600  ",
    SFT: "step 1/3  loss 1.25  tokens/s 50.0  gradient norm 0.500  learning rate 0.0001",
    REWARD_MODEL: "step 1/3  accuracy 80.0%  margin 1.50  loss 0.500  confidence 70.0%  tokens/s 50.0",
    RL: "step 1/3  reward 0.250  tokens/s 50.0  KL 0.01 nats  entropy 0.500 nats  length 25.0 tokens",
}


@pytest.mark.parametrize("kind", RUN_KINDS)
def test_the_console_prints_the_metrics_of_the_kind(kind: str) -> None:
    stream = io.StringIO()
    console = Console(stream, seconds_between_lines=0)
    console.started({"title": "t", "total_steps": 3})
    console.stepped(step(kind, 1), [])
    (line,) = [line for line in stream.getvalue().splitlines() if line.startswith("step ")]
    assert line.replace("KL 0.010", "KL 0.01").startswith(LINES[kind])


VERDICTS = {
    PREFERENCE: "Pair accuracy rose from 50.0% to 90.0%",
    SFT: "Loss fell from 2.00 to 1.00",
    REWARD_MODEL: "Accuracy rose from 50.0% to 80.0%",
    RL: "Accuracy rose from 10.0% to 60.0%",
}
ALONE = {
    PREFERENCE: "Training accuracy went from 75.0% to 75.0%",
    SFT: "Training loss went from 1.25 to 1.25",
    REWARD_MODEL: "Training accuracy went from 80.0% to 80.0%",
    RL: "Mean reward went from 0.250 to 0.250",
}
FIGURES = {
    PREFERENCE: ("log p of chosen", "log p of rejected", "Margin", "Held-out pair accuracy and training accuracy"),
    SFT: ("Held-out loss and training loss", "Learning rate", "Speed"),
    REWARD_MODEL: ("Held-out accuracy and training accuracy", "Margin", "Confidence"),
    RL: ("Held-out accuracy and mean reward", "Entropy", "KL", "Completion length"),
}


@pytest.mark.parametrize("kind", RUN_KINDS)
def test_the_page_shows_the_kind(tmp_path: Path, kind: str) -> None:
    leave_run(tmp_path / "a", kind)
    assert verdict(read_run(tmp_path / "a")).startswith(VERDICTS[kind])
    page = html_report(tmp_path / "a")
    for title in FIGURES[kind]:
        assert f"<b>{title}</b>" in page, title
    assert ("mean reward" in page) == (kind == RL)
    leave_run(tmp_path / "b", kind, evaluate=False)
    assert verdict(read_run(tmp_path / "b")).startswith(ALONE[kind])


def test_the_card_and_the_figure_are_small_and_escaped(tmp_path: Path) -> None:
    leave_run(tmp_path, PREFERENCE)
    figure = run_figure(tmp_path)
    assert figure.startswith("<svg ") and "held-out pair accuracy" in figure and "training accuracy" in figure
    assert ".whet-figure .line.s0" in figure
    card = run_card(tmp_path)
    assert "&lt;b&gt;title&lt;/b&gt;" in card and "<b>title" not in card
    assert "Pair accuracy rose from 50.0% to 90.0%" in card and figure in card and "<script" not in card


def test_a_run_without_steps_has_a_card_and_no_figure(tmp_path: Path) -> None:
    RunRecorder(tmp_path).started({"title": "t"})
    assert run_figure(tmp_path) == "" and "interrupted before its first step" in run_card(tmp_path)


@for_every(
    [
        ("accuracy", 0.5, "50.0%"),
        ("pair_accuracy", 0.5, "50.0%"),
        ("accuracy_when_longer", 0.5, "50.0%"),
        ("member/1/accuracy", 0.5, "50.0%"),
        ("pass@4", 0.25, "25.0%"),
        ("truncated", 0.1, "10.0%"),
        ("chosen_logp", -3.0, "-3.00 nats"),
        ("kl", 0.5, "0.500 nats"),
        ("completion_length", 20.0, "20.0 tokens"),
        ("completion_tokens", 20.0, "20.0"),
        ("loss", 0.5, "0.500"),
        ("reward", float("nan"), "-"),
        ("reward", None, "-"),
    ]
)
def test_a_metric_has_one_unit_everywhere(name: str, value: float | None, text: str) -> None:
    assert metric_text(name, value) == text


def test_the_leaves_of_episodes_and_what_they_share():
    counts = {"samples": 12, "episodes": 8, "tokens": 90, "shared_tokens": 30}
    step = StepReport(1, 0, counts, {"total": 0.5}, {})
    kind = RUN_KINDS[RL]
    shown = {each.name: each.measure(step) for each in kind.figures}
    assert (shown["leaves"], shown["shared"], shown["completion_length"]) == (1.5, 0.25, 10.0)
    plain = StepReport(1, 0, {"samples": 12, "tokens": 90}, {"total": 0.5}, {})
    assert all(each.measure(plain) is None for each in kind.figures if each.name in ("leaves", "shared"))
