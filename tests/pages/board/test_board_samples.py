"""Samples and their review on the board: found, filtered, coloured, marked, and never more than text."""

import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager

import pytest

from whet.pages.board import review_page
from whet.pages.board.access import Refusal
from whet.pages.board.board_app import Board
from whet.pages.board.board_server import BoardServer
from whet.pages.board.files import folder_id, visible
from whet.pages.board.sample_index import (
    SampleFinder,
    SampleIndex,
    SampleQuery,
    folded,
    numbers_of_group,
    place_in_step,
    rewards_by_step,
    token_line,
)
from whet.pages.review import read_review
from whet.record.marks import LONGEST_NOTE, read_sample_marks

HOSTILE = [
    "</pre><script>document.title='taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "\x1b]0;title\x07\x1b[31mred",
    "\u202egnorw\u202c",
    "x" * 50_000,
]


def line(step, prompt="p", reward=1.0, completion="an answer", **more):
    return {
        "step": step,
        "prompt_id": prompt,
        "question": f"question {prompt}",
        "answer": 42,
        "completion": completion,
        "stop": "end",
        "parts": {"exact": reward, "style": 0.5},
        "reward": reward,
        "tokens": 2,
        "versions": [0, 0],
        "reward_hash": "h",
        **more,
    }


def tokens(step, place, **more):
    known = {"pieces": ["an ", "answer"], "action": [2], "advantage": 0.7, "weight": [1.0, 0.0], "logp": [-1.0, -0.5]}
    return {"step": step, "place": place, **known, "gap": [0.01, -0.02], **more}


def written(folder, samples, token_rows=(), review=()):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text("method = 'grpo'\n")
    for name, rows in (("samples", samples), ("tokens", token_rows), ("review", review)):
        if rows:
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            (folder / f"{name}.jsonl").write_bytes(text.encode("utf-8", "backslashreplace"))
    return f"/run/{folder_id('run', folder.name)}"


def review_row(place, end, **more):
    row = line(100, f"p{place}", float(end == "high"), f"completion {place}")
    return {"id": f"id{place}", "end": end, **row, "mark": None, "note": "", **more}


class Served:
    """A board over a folder, asked over HTTP."""

    def __init__(self, server):
        self.address, self.token = server.address, server.board.token

    def get(self, path):
        with urllib.request.urlopen(self.address + path, timeout=20) as answer:
            return answer.read().decode()

    def json(self, path):
        return json.loads(self.get("/api" + path))

    def post(self, path, value, token=None, **headers):
        given = {"Content-Type": "application/json", "X-Whet-Token": self.token if token is None else token, **headers}
        request = urllib.request.Request(self.address + "/api" + path, json.dumps(value).encode(), given)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@contextmanager
def board_over(folder):
    server = BoardServer(Board(folder))
    server.start()
    try:
        yield Served(server)
    finally:
        server.stop()


SAMPLES = [
    line(1, "a", 1.0, "Nine is RIGHT"),
    line(1, "a", 0.0, "two", stop="length"),
    line(1, "b", None, "naïve Ärger"),
    line(2, "a", 0.5, 'he said "nine"\nand left'),
    line(3, "b", -1.0, "four", parts={"exact": 0.0, "late": 3.0}),
    line(3, "c", 0.25, "last", turns=[{"role": "tool", "text": "a tool said Nine", "tokens": 3}], seconds=[0.1]),
]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, [5, 4, 3, 2, 1, 0]),
        ({"search": "nine"}, [5, 3, 0]),
        ({"search": 'SAID "nine"\n'}, [3]),
        ({"search": "ÄRGER"}, [2]),
        ({"search": "completion"}, []),  # a name in the line is no text
        ({"search": "question c"}, [5]),
        ({"first_step": 2, "last_step": 2}, [3]),
        ({"low": 0.5}, [3, 0]),
        ({"low": 0.0, "high": 0.25}, [5, 1]),
        ({"part": "late", "low": 0}, [4]),
        ({"part": "nothing", "low": 0}, []),
        ({"stop": "length"}, [1]),
        ({"stop": "unheard"}, []),
        ({"prompt": "b", "sort": "oldest"}, [2, 4]),
        ({"sort": "highest"}, [0, 3, 5, 1, 4, 2]),
        ({"sort": "lowest"}, [4, 1, 5, 3, 0, 2]),
    ],
)
def test_samples_are_found(tmp_path, query, found):
    written(tmp_path / "run", SAMPLES)
    index = SampleIndex(tmp_path / "run" / "samples.jsonl")
    index.refresh(5)
    answer = SampleFinder(index).find(SampleQuery(**query), 5)
    assert answer.numbers.tolist() == found and answer.total == 6 and answer.is_complete


def test_a_search_that_runs_out_of_time_says_so_and_goes_on(tmp_path):
    written(tmp_path / "run", [line(step, completion="needle" if step % 10 == 0 else "hay") for step in range(300)])
    index = SampleIndex(tmp_path / "run" / "samples.jsonl")
    index.refresh(5)
    assert index.share_read == 1.0 == SampleIndex(tmp_path / "no log").share_read
    finder = SampleFinder(index)
    first = finder.find(SampleQuery("needle"), 0.0)
    assert not first.is_complete and len(first.numbers) < 30
    last = finder.find(SampleQuery("needle"), 5)
    assert last.is_complete and len(last.numbers) == 30


def test_a_log_that_begins_anew_is_searched_anew(tmp_path):
    written(tmp_path / "run", [line(1, completion="old"), line(2, completion="old")])
    index = SampleIndex(tmp_path / "run" / "samples.jsonl")
    index.refresh(5)
    finder = SampleFinder(index)
    assert len(finder.find(SampleQuery("old"), 5).numbers) == 2
    written(tmp_path / "run", [line(1, completion="new")])
    index.refresh(5)
    assert len(finder.find(SampleQuery("old"), 5).numbers) == 0


def test_groups_and_places(tmp_path):
    written(tmp_path / "run", SAMPLES)
    index = SampleIndex(tmp_path / "run" / "samples.jsonl")
    index.refresh(5)
    assert numbers_of_group(index, 0) == [0, 1] and numbers_of_group(index, 3) == [3]
    assert [place_in_step(index, number) for number in range(6)] == [0, 1, 2, 0, 0, 1]


def test_every_line_of_tokens_is_found_by_halving(tmp_path):
    path = tmp_path / "tokens.jsonl"
    rows = [
        tokens(step, place, pieces=["p" * (97 * step % 3000), "q"])
        for step in range(1, 60)
        for place in range(step % 4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 60, "pla')
    for row in rows:
        assert token_line(path, row["step"], row["place"]) == row
    for absent in ((0, 0), (4, 0), (5, 1), (60, 0), (99, 0)):
        assert token_line(path, *absent) is None
    assert token_line(tmp_path / "none.jsonl", 1, 0) is None


@pytest.mark.parametrize("change", [{"action": [1]}, {"action": None}, {"pieces": None}, {"weight": [1.0]}])
def test_damaged_tokens_are_none(tmp_path, change):
    path = tmp_path / "tokens.jsonl"
    path.write_text("noise\n" + json.dumps(tokens(1, 0, **change)) + "\n" + json.dumps(tokens(1, 1)) + "\n")
    assert token_line(path, 1, 0) is None and token_line(path, 1, 1) == tokens(1, 1)


def test_pages_and_json(tmp_path):
    address = written(tmp_path / "run", [line(step, f"p{step}") for step in range(60)], [tokens(7, 0)])
    with board_over(tmp_path) as board:
        first, last = board.get(f"{address}/samples"), board.get(f"{address}/samples?page=99&from=5")
        assert "60 samples." in first and first.count('class="row"') == 25 and "page 1 of 3" in first
        assert "page 3 of 3" in last and last.count('class="row"') == 5 and "from=5&amp;page=2" in last
        found = board.json(f"{address}/samples?search=question+p7&size=5")
        assert found["found"] == 1 and found["is_complete"] and found["samples"][0]["step"] == 7
        place = found["samples"][0]["place"]
        page = board.get(f"{address}/samples/{place}")
        assert "Step 7, prompt p7" in page and "Gold answer" in page and "No other sample" in page
        values = board.json(f"{address}/tokens?place={place}")
        assert (
            values["pieces"] == ["an ", "answer"]
            and values["weight"] == [1.0, 0.0]
            and values["advantage"] == [0.7] * 2
        )
        listed = board.json(f"{address}/samples")
        assert listed["page"] == 1 and listed == board.json(f"{address}/samples?page=1")
        newest = listed["samples"][0]["place"]
        none = board.json(f"{address}/tokens?place={newest}")
        assert none["pieces"] == [] and "report.tokens" in none["why"]


def test_the_newest_are_shown_and_opened_before_all_is_read(tmp_path, monkeypatch):
    address = written(tmp_path / "run", [line(step, f"p{step}", completion="x" * 2000) for step in range(3000)])
    monkeypatch.setattr("whet.pages.board.samples_page.INDEX_SECONDS", 0.0)
    with board_over(tmp_path) as board:
        page = board.get(f"{address}/samples")
        assert "has been read so far" in page and "step 2999" in page and "data-unread" in page
        newest = page.split('class="row" href="')[1].split('"')[0]
        assert "Step 2999, prompt p2999" in board.get(newest)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/samples/1", 404),
        ("/samples/-1", 404),
        ("/samples/99999999999999999999", 404),
        ("/samples/..%2f..%2fconfig.toml", 404),
        ("/samples?sort=sideways", 400),
        ("/samples?low=nan", 400),
        ("/samples?from=x", 400),
        ("/review?step=3", 404),
    ],
)
def test_what_is_not_there_is_refused(tmp_path, path, status):
    address = written(tmp_path / "run", SAMPLES, review=[review_row(0, "high")])
    with board_over(tmp_path) as board, pytest.raises(urllib.error.HTTPError) as refused:
        board.get(address + path)
    assert refused.value.code == status


def test_runs_without_samples_tokens_or_a_review(tmp_path):
    bare, old = written(tmp_path / "bare", []), written(tmp_path / "old", SAMPLES)
    with board_over(tmp_path) as board:
        assert "recorded no samples" in board.get(f"{bare}/samples")
        assert "Nothing to review yet" in board.get(f"{bare}/review")
        place = board.json(f"{old}/samples")["samples"][0]["place"]
        assert board.json(f"{old}/tokens?place={place}")["pieces"] == []
        assert "a tool said Nine" in board.get(f"{old}/samples/{place}")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text(tmp_path, text):
    turns = [{"role": text, "text": text, "errors": [text], "tokens": 1}]
    samples = [line(1, text, 1.0, text, question=text, answer=text, parts={text: 1.0}, stop=text, turns=turns)]
    samples.append(line(1, text, 0.0, text, question=text, answer=text, turns=[{"tokens": "x", "counts": 3}, 5]))
    rows = [review_row(0, "high", completion=text, question=text, note=text)]
    address = written(tmp_path / "run", samples, [tokens(1, 0, pieces=[text, text])], rows)
    with board_over(tmp_path) as board:
        found = board.json(f"{address}/samples")
        assert found["found"] == 2
        pages = [board.get(f"{address}/samples"), board.get(f"{address}/review")]
        pages += [board.get(f"{address}/samples/{each['place']}") for each in found["samples"]]
        pages.append(board.get(f"{address}/samples?search={urllib.parse.quote(text[:500])}"))
        for page in pages:
            quoted = page.replace("document.title=&#39;", "").replace("document.title%3D%27", "")
            assert "document.title" not in quoted and "<img" not in page
            assert "\x1b" not in page.replace(text, "") or text.startswith("x")
        shown = "".join(board.json(f"{address}/tokens?place={found['samples'][-1]['place']}")["pieces"])
        assert "\x1b" not in shown and "\u202e" not in shown


def test_unseen_characters_are_shown():
    assert visible("a\x1b[1m\u202eb\nc\td\u200f\ud800") == "a<U+001B>[1m<U+202E>b\nc\td<U+200F><U+D800>"
    assert visible("плохо 漢字 é 👩") == "плохо 漢字 é 👩"


def test_marks_are_kept_with_the_run_and_counted(tmp_path):
    rows = [review_row(0, "high"), review_row(1, "high"), review_row(2, "low")]
    address = written(tmp_path / "run", SAMPLES, review=rows)
    with board_over(tmp_path) as board:
        status, found = board.post(f"{address}/review", {"id": "id0", "mark": "hacked", "note": "says nine"})
        assert status == 200 and found["marked"] == 1 and found["counts"]["high"]["hacked"] == 1
        status, found = board.post(f"{address}/review", {"id": "id2", "mark": "wrong"})
        assert (found["marked"], found["agreed"]) == (2, 1) and "agrees with 1 of 2 marks" in found["verdict"]
        assert found == board.json(f"{address}/review")
        page = board.get(f"{address}/review")
        assert 'data-mark="hacked"' in page and 'value="says nine"' in page and "2 of 3 marked" in page
        board.post(f"{address}/review", {"id": "id0", "mark": None, "note": ""})
        assert board.json(f"{address}/review")["marked"] == 1
    assert [row["mark"] for row in read_review(tmp_path / "run")] == [None, None, "wrong"]


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ({"id": "nobody", "mark": "good"}, 404),
        ({"id": "id0", "mark": "great"}, 400),
        ({"id": "id0", "mark": ["good"]}, 400),
        ({"id": ["id0"], "mark": "good"}, 404),
        ({"id": "id0", "mark": "good", "note": 3}, 400),
        ({"id": "id0", "mark": "good", "note": "x" * 10_001}, 400),
        ([], 400),
    ],
)
def test_wrong_marks_are_refused(tmp_path, value, status):
    address = written(tmp_path / "run", SAMPLES, review=[review_row(0, "high")])
    with board_over(tmp_path) as board:
        assert board.post(f"{address}/review", value)[0] == status
    assert not (tmp_path / "run" / "marks.jsonl").exists()


def test_marking_needs_the_token_and_the_boards_own_page(tmp_path):
    address = written(tmp_path / "run", SAMPLES, review=[review_row(0, "high")])
    value = {"id": "id0", "mark": "good"}
    with board_over(tmp_path) as board:
        assert board.post(f"{address}/review", value, token="")[0] == 401
        assert board.post(f"{address}/review", value, token="guess")[0] == 401
        assert board.post(f"{address}/review", value, Origin="http://elsewhere.example")[0] == 403
        assert board.post(f"{address}/review", value, **{"Content-Type": "text/plain"})[0] == 415
        assert board.post("/run/0123/review", value)[0] == 404
        assert not (tmp_path / "run" / "marks.jsonl").exists()
        assert board.post(f"{address}/review", value)[0] == 200


def test_marks_given_at_the_same_time_are_all_kept(tmp_path):
    rows = [review_row(place, "high") for place in range(24)]
    address = written(tmp_path / "run", SAMPLES, review=rows)
    with board_over(tmp_path) as board:
        each = [
            threading.Thread(target=board.post, args=(f"{address}/review", {"id": f"id{place}", "mark": "good"}))
            for place in range(24)
        ]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join(30)
        assert board.json(f"{address}/review")["marked"] == 24
    assert len(read_sample_marks(tmp_path / "run")) == 24


def test_links_lead_nowhere(tmp_path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text(json.dumps(review_row(0, "high", completion="secret")) + "\n")
    address = written(tmp_path / "runs" / "run", SAMPLES)
    (tmp_path / "runs/run/review.jsonl").symlink_to(secret)
    other = written(tmp_path / "runs" / "other", SAMPLES, review=[review_row(0, "high")])
    (tmp_path / "runs/other/marks.jsonl").symlink_to(secret)
    before = secret.read_bytes()
    with board_over(tmp_path / "runs") as board:
        assert "secret" not in board.get(f"{address}/review")
        assert board.post(f"{other}/review", {"id": "id0", "mark": "good"})[0] == 422
    assert secret.read_bytes() == before


def test_samples_are_folded_by_prompt_and_one_prompt_is_followed_over_the_steps(tmp_path):
    rows = [
        line(1, "p", 0.0),
        line(1, "p", 1.0),
        line(1, "q", 0.5),
        line(2, "p", 1.0),
        line(3, "q", None),
        line(4, "p", 1.0),
    ]
    where = written(tmp_path / "run", rows)
    index = SampleIndex(tmp_path / "run" / "samples.jsonl")
    index.refresh(5)
    newest = SampleFinder(index).find(SampleQuery()).numbers
    first, counts = folded(index, newest)
    assert first.tolist() == [5, 4] and counts.tolist() == [4, 2], "of each prompt its newest sample"
    of_p = SampleFinder(index).find(SampleQuery(prompt="p", sort="oldest")).numbers
    assert rewards_by_step(index, of_p) == [(1, 0.5, 0.0, 1.0), (2, 1.0, 1.0, 1.0), (4, 1.0, 1.0, 1.0)]
    assert rewards_by_step(index, newest[:2]) == [(4, 1.0, 1.0, 1.0)], "a sample without a reward is no point"
    with board_over(tmp_path) as board:
        page = board.get(f"{where}/samples?fold=prompt")
        assert "6 samples of 2 prompts." in page and page.count('class="row"') == 2
        assert "all 4 samples of this prompt" in page and f"{where}/samples?prompt=p&amp;sort=oldest" in page
        followed = board.get(f"{where}/samples?prompt=p&sort=oldest")
        assert "Reward of prompt p" in followed and followed.count('class="row"') == 4
        assert "Reward of prompt q" not in board.get(f"{where}/samples?prompt=q"), "one step is no course"


def test_a_note_may_be_as_long_as_is_said():
    given = {"id": "a", "mark": None, "note": "x" * LONGEST_NOTE}
    assert len(review_page._given(None, [{"id": "a"}], given).note) == LONGEST_NOTE
    with pytest.raises(Refusal, match="at most 10,000 characters"):
        review_page._given(None, [{"id": "a"}], {**given, "note": given["note"] + "x"})
