"""CSV, Parquet, DataFrames and figures of a run."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

import whet
from whet.api.tables import csv_text, write_table
from whet.cli import app
from whet.record.log import RunRecorder
from whet.types import StepReport, WhetError

HOSTILE = "=1+1"


def made(folder: Path, rise: float = 0.1) -> whet.Run:
    folder.mkdir()
    (folder / "config.toml").write_text('method = "grpo"\n')
    record = RunRecorder(folder)
    record.started({"title": "GRPO", "total_steps": 4})
    record.evaluated(0, "eval", {"accuracy": 0.25}, 0.5)
    for step in range(1, 5):
        metrics = {"kl": float("nan") if step == 2 else 0.01 * step, "tokens": 5.0}
        counts, reward = {"samples": 2, "tokens": 20}, {"total": rise * step, "exact": 0.5}
        record.stepped(StepReport(step, step, counts, reward, metrics, (), {"train": 1.0}), [])
    (folder / "samples.jsonl").write_text(
        '{"step": 1, "prompt_id": "p", "question": "=1+1", "answer": 2, "completion": "-2\\nand,\\"more\\"", '
        '"parts": {"exact": 1.0}, "reward": 1.0, "turns": [{"role": "tool", "text": "x"}]}\n'
        '{"step": 1, "prompt_id": "p", "question": "plain", "answer": "two", "completion": "\\u0000\\ud800", '
        '"parts": {"exact": null}, "reward": null}\n'
    )
    record.finished({})
    return whet.load(folder)


@pytest.fixture
def run(tmp_path: Path) -> whet.Run:
    return made(tmp_path / "first")


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_metrics_as_csv(run: whet.Run) -> None:
    rows = read(csv_text(run.rows()))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["kl"] for row in rows] == ["0.01", "", "0.03", "0.04"]
    assert rows[0]["reward/exact"] == "0.5" and rows[0]["seconds/train"] == "1.0" and rows[0]["health"] == "[]"
    assert rows[0]["tokens"] == "5.0" and rows[0]["counts/tokens"] == "20"  # a metric of the same name came first
    assert read(csv_text(run.rows("evals"))) == [
        {"step": "0", "eval": "eval", "accuracy": "0.25", "seconds": "0.5"},
    ]


def test_no_cell_is_a_formula_and_texts_come_back(run: whet.Run) -> None:
    first, second = read(csv_text(run.rows("samples")))
    assert first["question"] == "'=1+1" and first["completion"] == '\'-2\nand,"more"' and first["reward/exact"] == "1.0"
    assert first["turns"] == '[{"role": "tool", "text": "x"}]' and second["completion"] == "\\0\\ud800"
    negative = csv_text([{"@name": -1.5, "b": "+x", "c": "\t=x", "d": True}])
    assert negative == "'@name,b,c,d\n-1.5,'+x,'\t=x,True\n"  # a number is a number
    assert csv_text([]) == "\n"


def test_parquet_comes_back_as_the_table(run: whet.Run, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.read_parquet(run.export(tmp_path / "metrics.parquet"))
    assert list(frame["reward"]) == list(run.metrics()["reward"]) and frame["kl"].isna().tolist()[1]
    samples = pandas.read_parquet(run.export(tmp_path / "samples.parquet", "samples"))
    assert list(samples["question"]) == [HOSTILE, "plain"]  # as it is: nothing runs it
    assert list(samples["answer"]) == ["2", "two"]
    assert run.samples_table()["completion"].tolist()[1] == "\0\\ud800"
    assert pandas.read_parquet(write_table([], tmp_path / "none.parquet")).empty


def test_the_command_writes_and_prints(run: whet.Run, tmp_path: Path) -> None:
    runner = CliRunner()
    printed = runner.invoke(app, ["export", str(run.folder)])
    assert printed.exit_code == 0 and len(read(printed.output)) == 4
    target = tmp_path / "out.csv"
    written = runner.invoke(app, ["export", str(run.folder), "--what", "evals", "-o", str(target)])
    assert written.exit_code == 0 and "1 rows" in written.output and len(read(target.read_text())) == 1

    def refused(*arguments: str) -> str:
        result = runner.invoke(app, ["export", str(run.folder), *arguments])
        assert isinstance(result.exception, WhetError)
        return str(result.exception)

    assert "did you mean 'samples'" in refused("--what", "sample")
    assert "did you mean 'parquet'" in refused("--format", "parket")
    assert "give a file" in refused("--format", "parquet")
    assert "ending in .csv or .parquet" in refused("-o", str(tmp_path / "out.xlsx"))
    assert "cannot be written" in refused("-o", str(tmp_path / "no" / "out.csv"))


def test_damaged_lines_are_left_out_and_said(run: whet.Run, caplog: pytest.LogCaptureFixture) -> None:
    whole = run.rows()
    log = run.folder / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], b"{torn\n", b'{"step": 9}\n', *lines[2:]]))
    assert run.rows() == whole and "2 lines could not be read and are left out" in caplog.text
    assert len(run.rows("evals")) == 1
    with (run.folder / "samples.jsonl").open("a") as file:
        file.write("nothing\n")
    assert len(run.rows("samples")) == 2 and "1 line could not be read and is left out" in caplog.text


def lines_of(svg: str) -> int:
    root = ElementTree.fromstring(svg)
    return sum("line" in (each.get("class") or "").split() for each in root.iter())


def test_figures_of_metrics_and_of_several_runs(run: whet.Run, tmp_path: Path) -> None:
    other = made(tmp_path / "second", 0.2)
    svg = run.plot("kl", "reward", "eval/accuracy").svg
    assert ">kl</text>" in svg and ">reward</text>" in svg and ">eval/accuracy</text>" in svg
    assert "prefers-color-scheme:dark" in svg
    both = whet.plot([run, other], "reward").svg
    assert lines_of(both) == 2 * 2 and ">first</text>" in both and ">second</text>" in both
    assert both == run.plot("reward", against=other).svg == run.plot("reward", against=[other]).svg
    assert whet.plot(run).svg == run.plot("reward").svg  # what the run trains
    assert run.plot("reward", smooth=3).svg != run.plot("reward").svg
    assert run.plot("eval/accuracy", smooth=3).svg == run.plot("eval/accuracy").svg, "evaluations are not smoothed"
    assert ElementTree.fromstring(run.plot().svg).tag.endswith("svg")
    assert run.plot("reward").save(tmp_path / "figure.svg").read_text() == run.plot("reward").svg


def test_smoothing_is_a_running_mean() -> None:
    from whet.pages.card import _mean_of

    points = tuple((float(step), float(step % 2)) for step in range(5))
    assert [round(value, 3) for _, value in _mean_of(points, 3)] == [0.0, 0.333, 0.667, 0.333, 0.0]
    assert _mean_of(points, 1) == points


def test_mistakes_name_what_is_near(run: whet.Run) -> None:
    with pytest.raises(WhetError, match=r"no metric is called 'entropie'; there are: eval/acc.*reward"):
        run.plot("entropie")
    with pytest.raises(WhetError, match="did you mean 'reward'"):
        run.plot("rewards")
    with pytest.raises(WhetError, match="smooth is -1"):
        run.plot("reward", smooth=-1)
    with pytest.raises(WhetError, match="no run to plot"):
        whet.plot([])
    with pytest.raises(WhetError, match=r"ending in \.svg"):
        run.plot().save("figure.png")


def test_words_in_a_figure_are_escaped(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a<b>&"), made(tmp_path / "c")
    svg = whet.plot([first, second], "reward").svg
    assert "a&lt;b&gt;&amp;" in svg and ElementTree.fromstring(svg) is not None


def test_every_line_of_a_figure_has_a_colour() -> None:
    from whet.pages import chart_svg
    from whet.pages.chart_specs import NUM_TONES

    style = (Path(chart_svg.__file__).parent / "templates" / "style.css").read_text()
    for tone in range(NUM_TONES):  # the page's own
        assert f"--c{tone}: {chart_svg.LIGHT[tone]}" in style and f"--c{tone}: {chart_svg.DARK[tone]}" in style
        assert f".line.s{tone}" in chart_svg.FIGURE_STYLE
