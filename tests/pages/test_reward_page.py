"""The spread of rewards, dry runs, rescored runs and reviews: numbers by hand, and pages that hold them safely."""

import base64
import hashlib
import json
import logging
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from whet.cli.reward import reward_app
from whet.pages.chart_svg import chart_svg
from whet.pages.render import ASSETS
from whet.pages.rescore import Rescore, RescoredSample, rescore_page, rescore_record, rescore_text
from whet.pages.review import Review, ReviewPlan, is_review_due, read_review, review_rows, with_marks, write_review
from whet.pages.reward_dry_run import (
    DryRun,
    PartFacts,
    RepeatDifference,
    ScoredAnswer,
    dry_run_page,
    dry_run_record,
    dry_run_text,
    dry_run_tiles,
    dry_run_verdict,
)
from whet.pages.run_charts import columns_of, drawn_charts, planned_charts
from whet.record.marks import review_counts, review_verdict
from whet.record.metrics.distribution import (
    correlations,
    distribution,
    flat_shares,
    histogram,
    pearson,
    ranks,
    reward_spread,
    spearman,
)
from whet.record.run import RunRecord
from whet.types import Group, Prompt, Sample, StepReport, StopReason, WhetError

HOSTILE = "</script><script>alert(1)</script><b onclick=x>&"


def sample(completion: str, reward: float | None, **parts: float) -> Sample:
    ones = torch.ones(4, dtype=torch.bool)
    return Sample(
        torch.zeros(4, dtype=torch.long), ones, torch.zeros(4), (0, 0), StopReason.END, completion, None, parts, reward
    )


def prompt(name: str) -> Prompt:
    return Prompt(name, (), f"question {name}", "7")


def test_a_distribution_by_hand():
    found = distribution([0.0, 0.0, 1.0, 3.0, float("nan")])
    assert found == {
        "min": 0.0,
        "q1": 0.0,
        "median": 0.5,
        "q3": 1.5,
        "max": 3.0,
        "mean": 1.0,
        "at_min": 0.5,
        "at_max": 0.25,
    }
    assert distribution([]) == {}


def test_the_spread_of_a_step_and_its_flat_groups():
    groups = [
        Group(prompt("a"), (sample("x", 1.0, right=1.0, form=0.0), sample("y", 1.0, right=1.0, form=0.0))),
        Group(prompt("b"), (sample("x", 1.0, right=1.0, form=0.0), sample("y", 0.0, right=0.0, form=0.0))),
        Group(prompt("c"), (sample("x", None, right=1.0), sample("y", 0.5, right=0.5, form=0.0))),
    ]
    spread = reward_spread(groups)
    assert list(spread) == ["total", "right", "form"]
    assert spread["total"]["flat"] == 0.5  # of two groups: the third has one total
    assert spread["right"]["flat"] == pytest.approx(1 / 3)
    assert spread["form"]["flat"] == 1.0 and spread["form"]["max"] == 0.0
    assert spread["total"]["mean"] == pytest.approx(3.5 / 5)
    assert flat_shares([[sample("x", 1.0)]]) == {}
    assert flat_shares([[sample("x", 1.0), sample("y", 1.0 + 1e-9)]]) == {"total": 1.0}  # float noise is no spread


def test_histograms_have_a_bin_a_score_or_equal_bins():
    assert histogram([1.0, 0.0, 1.0]) == [(0.0, 0.0, 1), (1.0, 1.0, 2)]
    bins = histogram([value / 99 for value in range(100)], 10)
    assert [count for *_, count in bins] == [10] * 10
    assert bins[0][0] == 0.0 and bins[-1][1] == 1.0 and histogram([]) == []


def test_correlations_by_hand():
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1.0)
    assert pearson([1, 2, 3], [1, 4, 2]) == pytest.approx(0.3273268)
    assert spearman([1, 2, 3, 4], [1, 8, 27, 1000]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert ranks([5, 1, 5, 0]) == [3.5, 2.0, 3.5, 1.0]
    assert pearson([1, 1, 1], [1, 2, 3]) is None and pearson([1, 2], [1, 2]) is None
    ((_, _, linear, _),) = correlations({"a": [1, None, 2, 3], "b": [1, 100, 2, 3]})
    assert linear == pytest.approx(1.0)


def judged(where: str, right: float | None, form: float, tokens: int, **other: object) -> ScoredAnswer:
    total = None if right is None else right + 0.5 * form
    parts = {"right": right, "form": form}
    first = ScoredAnswer(where, "gold answer", "p", "question", "7", "fine", tokens, parts, total, 0.01)
    return replace(first, **other)


def a_dry_run() -> DryRun:
    rows = (
        judged("data.jsonl:1", 1.0, 1.0, 10),
        judged("data.jsonl:2", 0.0, 1.0, 20, completion=HOSTILE, seconds=2.5),
        judged("data.jsonl:3", None, 1.0, 30),
        judged("data.jsonl:4", 1.0, 1.0, 12),
        judged(
            "data.jsonl:5", None, 1.0, 30, failures={"right": "reward 'right' raised ValueError"}, kind="completion"
        ),
    )
    parts = (PartFacts("right", "1", "aaaa"), PartFacts("form", "0.5", "bbbb", deterministic=False))
    differences = (RepeatDifference("data.jsonl:2", "form", 1.0, 0.5),)
    title, pieces = "1 x right + 0.5 x form", {"code right": "1"}
    return DryRun(title, "cccc", "data.jsonl", ("a note",), parts, rows, differences, 3.0, pieces)


def test_a_dry_run_finds_what_is_wrong():
    dry_run = a_dry_run()
    assert [each.where for each in dry_run.gold_misses] == ["data.jsonl:2"]
    assert dry_run.gold_rate() == pytest.approx(2 / 3)  # the unscorable one is not counted as missed
    assert [each.where for each in dry_run.unscorable] == ["data.jsonl:3"]
    assert [each.where for each in dry_run.failed] == ["data.jsonl:5"]
    assert dry_run.slowest[0].where == "data.jsonl:2"
    assert dry_run.never_vary() == ["form"]
    assert dry_run.with_length()[1][1] == pytest.approx(pearson([10, 20, 12], [1, 0, 1]))
    named = replace(dry_run.scored[0], parts={"length": 1.0, "form": 1.0})
    assert len(replace(dry_run, parts=(PartFacts("length", "1", "a"),), scored=(named,)).with_length()) == 1
    assert not dry_run.is_sound()
    kept = replace(dry_run, scored=dry_run.scored[:1])
    assert kept.is_sound()  # `form` says that it is not deterministic
    unsteady = (RepeatDifference("data.jsonl:1", "right", 1.0, 0.0),)
    assert not replace(kept, differences=unsteady).is_sound()


def test_the_verdict_names_what_happened_and_nothing_else():
    verdict = dry_run_verdict(a_dry_run())
    for said in ("66.7% of the gold", "failed on 1 of 5", "1 samples are unscorable", "form never varies", "1 scores"):
        assert said in verdict, said
    rows = (judged("data.jsonl:1", 1.0, 1.0, 10), judged("data.jsonl:2", 1.0, 0.0, 10))
    quiet = dry_run_verdict(replace(a_dry_run(), scored=rows, differences=()))
    for said in ("failed", "unscorable", "second time", "length"):
        assert said not in quiet, said


def test_the_scores_of_a_reward_model_are_not_held_against_gold_answers():
    dry_run = a_dry_run()
    learned = replace(dry_run, parts=(replace(dry_run.parts[0], says_right=False), *dry_run.parts[1:]))
    assert learned.gold_misses == [] and learned.gold_rate() is None and "gold = 1" not in dry_run_text(learned)
    from whet.reward.learned.outcome import Learned

    assert not Learned.says_right


def test_a_tile_says_whether_scores_stay_the_same():
    states = {"not checked": None, "yes": (), "no": a_dry_run().differences}
    for text, differences in states.items():
        tiles = {tile.name: tile.value for tile in dry_run_tiles(replace(a_dry_run(), differences=differences))}
        assert tiles["deterministic"] == text


def test_a_dry_run_in_the_terminal_and_as_json():
    text = dry_run_text(a_dry_run())
    for said in (
        "version cccc",
        "gold = 1       66.7%: 2 of 3 by right",
        "data.jsonl:2 (gold answer): 0 for 7",
        "data.jsonl:3: right cannot judge it, gold 7",
        "data.jsonl:5: reward 'right' raised ValueError",
        "never vary     form",
        "form says it is not",
        "data.jsonl:2: form 1.00, then 0.500",
    ):
        assert said in text, text
    assert re.search(r"1\.00  #{28}  2 \(66\.7%\)", text)
    record = json.loads(json.dumps(dry_run_record(a_dry_run())))
    assert record["parts"]["right"]["histogram"] == [[0.0, 0.0, 1], [1.0, 1.0, 2]]
    assert record["gold"]["misses"][0]["where"] == "data.jsonl:2" and record["sound"] is False


def test_the_pages_escape_what_models_write():
    for page in (dry_run_page(a_dry_run()), rescore_page(a_rescore())):
        assert "<script" not in page and "alert(1)" in page and "onclick=x>" not in page
        assert "script-src" not in page and "default-src 'none'" in unescape(page)


def test_the_dry_run_page_shows_each_part():
    page = dry_run_page(a_dry_run())
    assert page.count('class="column') == 2 + 2 + 1  # the totals, right and form have so many different scores
    assert "Gold answers that do not score 1 (1)" in page and "Failures (1)" in page and "Unscorable (1)" in page
    assert "66.7% of the gold answers score 1." in page


def test_a_large_dry_run_page_thins_no_kind_away():
    rows = tuple(judged(f"d:{n}", float(n % 2), 1.0, n // 2) for n in range(4000))
    page = dry_run_page(replace(a_dry_run(), scored=rows, differences=None))
    dots = re.findall(r'<circle class="point s1" cx="\S+" cy="(\S+)"', page)
    assert 200 < len(dots) <= 600 and len(set(dots)) == 2


def a_rescore() -> Rescore:
    def row(step: int, name: str, old: float | None, new: float | None, completion: str = "r") -> RescoredSample:
        return RescoredSample(step, name, "q", "7", completion, {"a": old}, old, {"b": new}, new)

    rows = (
        row(1, "x", 1.0, 0.0, HOSTILE),
        row(1, "x", 0.0, 1.0),
        row(1, "x", 0.5, 0.5),
        row(1, "y", 0.0, 0.2),
        row(1, "y", 0.0, 0.4),
        row(2, "z", 0.0, 0.3),
        row(2, "z", 1.0, 0.3),
        row(2, "w", 1.0, 1.0),
        row(2, "v", 1.0, None),
    )
    return Rescore("runs/a", "a", "aaaa", "b", "bbbb", ("code a removed",), (), rows)


def test_rescored_samples_by_hand():
    found = a_rescore()
    assert found.by_step() == [
        (1, pytest.approx(0.3), pytest.approx(0.42)),
        (2, pytest.approx(2 / 3), pytest.approx(1.6 / 3)),
    ]
    assert len(found.groups()) == 3
    assert found.flipped_share() == pytest.approx(3 / 7)  # all three of x; ties that open or close are no flips
    assert [group[0].prompt_id for group in found.gained_spread()] == ["y"]
    assert [group[0].prompt_id for group in found.lost_spread()] == ["z"]
    assert found.num_newly(unscorable=True) == 1 and found.num_newly(unscorable=False) == 0
    assert found.largest(1)[0].completion == HOSTILE
    assert found.part_means()["a"] == (pytest.approx(4.5 / 9), None)
    text = rescore_text(found)
    assert "42.9% of the samples change places" in text and "only the old reward can score 1 samples" in text
    record = json.loads(json.dumps(rescore_record(found)))
    assert record["flipped_share"] == pytest.approx(3 / 7) and len(record["largest"]) == 6


def part_figures(spread):
    steps = tuple(StepReport(step, step, {}, {"total": 1.0}, {}, spread=spread(step)) for step in (1, 2, 3))
    columns = columns_of(steps)
    plans = planned_charts(RunRecord(Path(), {}, "", steps, (), (), ()), columns.names).parts
    return drawn_charts(plans, {name: columns.points(name, None, None, 100) for name in columns.names})


def test_the_distribution_of_every_part_is_drawn():
    total, other, _ = part_figures(
        lambda n: (
            {"total": distribution([0, 0.5, 1]) | {"flat": 0.25}} | dict.fromkeys(("a<b", "c"), distribution([n, 2.0]))
        )
    )
    assert "25.0% of groups flat" in total.note and total.last == "0.500" and other.title == "Reward: a<b"
    drawn = chart_svg(other.spec, other.title)
    assert "Reward: a&lt;b" in drawn and drawn.count('class="band') == 2
    assert part_figures(lambda n: {}) == [] == part_figures(lambda n: {"total": {}})


def step_samples(rewards: list[float | None]) -> list[tuple[Prompt, Sample]]:
    return [(prompt(f"p{place}"), sample(f"completion {place}", reward)) for place, reward in enumerate(rewards)]


def test_reviews_take_both_ends():
    rows = review_rows(100, step_samples([0.1 * place for place in range(10)] + [None]), 3, reward_hash="abc")
    assert [(row["end"], round(row["reward"], 1)) for row in rows] == [
        ("high", 0.9),
        ("high", 0.8),
        ("high", 0.7),
        ("low", 0.0),
        ("low", 0.1),
        ("low", 0.2),
    ]
    assert all(row["mark"] is None and row["reward_hash"] == "abc" and row["step"] == 100 for row in rows)
    few = review_rows(1, step_samples([0.0, 0.5, 1.0]))
    assert sorted(row["completion"] for row in few) == ["completion 0", "completion 1", "completion 2"]  # nobody twice
    assert {row["end"] for row in review_rows(1, step_samples([1.0] * 5))} == {"low"}


def test_ties_are_drawn_and_the_draw_is_repeatable():
    tied = step_samples([0.0] * 30 + [1.0] * 30)
    first = [row["completion"] for row in review_rows(100, tied, 5)]
    assert first == [row["completion"] for row in review_rows(100, tied, 5)]
    assert first != [row["completion"] for row in review_rows(200, tied, 5)]


@pytest.mark.parametrize(
    ("step", "every", "due"), [(100, 100, True), (99, 100, False), (150, 100, True), (150, 0, False)]
)
def test_reviews_are_due(step, every, due):
    assert is_review_due(step, 150, every) is due


def test_a_review_keeps_its_marks_and_forgets_steps_that_were_cut(tmp_path):
    for step in (100, 200, 300):
        write_review(tmp_path, review_rows(step, step_samples([0.0, 1.0])))
    path = tmp_path / "review.jsonl"
    path.write_text(path.read_text().replace('"mark": null', '"mark": "wrong"', 1))
    write_review(tmp_path, review_rows(200, step_samples([0.0, 1.0])))  # the run was resumed from step 150
    rows = read_review(tmp_path)
    assert [row["step"] for row in rows] == [100, 100, 200, 200]
    assert [row["mark"] for row in rows] == ["wrong", None, None, None]
    counts = review_counts(rows)
    assert counts["high wrong"] == 1
    assert review_verdict(counts).startswith(
        "0 of 1 marked answers with a high reward are hacked and 1 are wrong; 0 of 0"
    )


def test_downloaded_marks_are_taken_over():
    rows = review_rows(1, step_samples([0.0, 1.0]))
    marked = [{**rows[1], "mark": "good", "note": "fair"}, {"id": "unknown", "mark": "bad"}]
    assert [row["mark"] for row in with_marks(rows, marked)] == [None, "good"]
    assert with_marks(rows, marked)[1]["note"] == "fair"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('"mark": null', '"mark": "fine"'), r':1: mark is "fine"; write "good", "hacked", "wrong" or null'),
        (('"end": "high"', '"end": "top"'), ":1: no row of a review; restore the line or delete it"),
        (('"step": 1', '"step": "one"'), ":1: no row of a review"),
        (('"id": "', '"id": 1, "was": "'), ":1: no sample is named"),
        (('{"id"', '["id"'), ":1 is not a JSON object"),
    ],
)
def test_a_review_edited_wrongly_is_named(tmp_path, caplog, change, said):
    write_review(tmp_path, review_rows(1, step_samples([0.0, 1.0])))
    path = tmp_path / "review.jsonl"
    path.write_text(path.read_text().replace(*change, 1))
    edited = path.read_bytes()
    with pytest.raises(WhetError, match=rf"review.jsonl{said}"):
        read_review(tmp_path)
    with caplog.at_level(logging.WARNING):  # and does not end the run
        Review(tmp_path, 2, ReviewPlan()).stepped(StepReport(2, 1, {}, {}, {}), step_samples([0.0, 1.0]))
    assert "the review of step 2 is not written" in caplog.text and path.read_bytes() == edited


def test_a_review_edited_by_hand_loses_nothing(tmp_path):
    write_review(tmp_path, review_rows(1, step_samples([0.0, 0.5, 1.0])))
    path = tmp_path / "review.jsonl"
    path.write_text("\ufeff" + path.read_text().replace("\n", "\r\n\r\n").rstrip())  # an editor that means well
    rows = read_review(tmp_path)
    assert len(rows) == 3
    write_review(tmp_path, review_rows(2, step_samples([0.0, 1.0])))
    assert [row["step"] for row in read_review(tmp_path)] == [1, 1, 1, 2, 2]


MARKED = {
    "an invalid mark": (
        lambda rows: [{**rows[0], "mark": "great"}],
        ':1: mark is "great"; write "good", "hacked", "wrong" or null',
    ),
    "a mark in capitals": (lambda rows: [rows[0], {**rows[1], "mark": "Good"}], ':2: mark is "Good"; write'),
    "a mark that is a list": (lambda rows: [{**rows[0], "mark": ["good"]}], r':1: mark is \["good"\]; write'),
    "a mark that is true": (lambda rows: [{**rows[0], "mark": True}], ":1: mark is true; write"),
    "a note that is a number": (lambda rows: [{**rows[0], "note": 3}], ":1: note is 3; write text in quotes"),
    "an unknown sample": (
        lambda rows: [rows[0], {**rows[1], "id": "0123"}],
        r":2: '0123' is no sample of .*review.jsonl; give the file that the review.html of this run saved",
    ),
    "no id": (lambda rows: [{"mark": "good"}], ":1: no sample is named"),
    "a duplicate": (lambda rows: [rows[0], rows[1], rows[0]], r":3: sample '\w+' stands in line 1 too; delete one"),
    "broken JSON": (lambda rows: [rows[0], '{"id": '], ":2 is not a JSON object; delete the line or restore the file"),
    "a list": (lambda rows: [rows], ":1 is not a JSON object"),
    "deep JSON": (lambda rows: ["[" * 100_000], ":1 is not a JSON object"),
    "a long number": (lambda rows: ['{"id": ' + "9" * 6000 + "}"], ":1 is not a JSON object"),
    "another encoding": (lambda rows: [b"\xff\xfe{\x00"], ":1 is not a JSON object"),
    "nothing": (lambda rows: [], " is empty; give the review.jsonl that the page saved"),
    "no file": (None, ": no such file; give the review.jsonl"),
    "a folder": (Path.mkdir, " is a folder; give the review.jsonl"),
}


@pytest.mark.parametrize("case", MARKED)
def test_wrong_marks_are_one_line_and_change_nothing(tmp_path, case):
    made, said = MARKED[case]
    run, file = tmp_path / "run", tmp_path / "marks.jsonl"
    rows = review_rows(1, step_samples([0.0, 1.0]))
    write_review(run, rows)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.iterdir()}
    if made is Path.mkdir:
        file.mkdir()
    elif made is not None:
        lines = [each if isinstance(each, str | bytes) else json.dumps(each) for each in made(rows)]
        file.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    done = CliRunner().invoke(reward_app, ["review", str(run), "--marks", str(file)])
    assert isinstance(done.exception, WhetError) and re.search(rf"marks.jsonl{said}", str(done.exception))
    assert "\n" not in str(done.exception) and not done.output
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.iterdir()} == before


def test_a_review_that_cannot_be_written_stays_as_it_was(tmp_path, monkeypatch):
    rows = review_rows(1, step_samples([0.0, 1.0]))
    write_review(tmp_path, rows)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(
        WhetError, match=r"review.jsonl cannot be written \(No space left on device\) and stays as it was"
    ):
        write_review(tmp_path, [{**row, "mark": "bad"} for row in rows])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_review_page_runs_no_script_but_its_own(tmp_path):
    rows = review_rows(1, [(replace(prompt("p"), text=HOSTILE), sample(HOSTILE, 1.0, right=1.0)), *step_samples([0.0])])
    page = write_review(tmp_path, rows).read_text()
    assert page.count("<script") == 2 and page.count("</script>") == 2  # the rows as data, and the page's own
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    assert script == (ASSETS / "review.js").read_text()
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in page
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', page, re.DOTALL)[1])
    assert data[0]["completion"] == HOSTILE and len(data) == 2


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)")
@pytest.mark.parametrize("click", [False, True])
def test_marks_are_given_in_a_browser(tmp_path, click):
    page = write_review(tmp_path, review_rows(1, step_samples([0.0, 0.4, 1.0])))
    if click:  # the page's own policy would refuse the probe
        text = re.sub(r"<meta http-equiv=.Content-Security-Policy.[^>]*>", "", page.read_text())
        probe = "<script>document.querySelector('.sample button[value=hacked]').click()</script>"
        page.write_text(text + probe)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run([CHROMIUM, *flags, page.as_uri()], check=True, capture_output=True, text=True, timeout=120)
    assert f"{int(click)} of 3 marked" in done.stdout
    assert ('data-mark="hacked"' in done.stdout) is click
