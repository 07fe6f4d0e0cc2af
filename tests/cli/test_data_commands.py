"""`whet data ...` on small files: what is kept, what is said, and what is refused."""

import gzip
import io
import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

import whet
from whet.cli import app
from whet.data.contamination import contamination
from whet.data.conversion import convert
from whet.data.shingles import Sketches, words_of
from whet.data.spool import RowWriter, Spool, StoredRows
from whet.record.log import read_metrics
from whet.types import WhetError

LUCY = "Lucy has 212 fish. How many more fish does she need to buy to have 280 fish?"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save(name: str, *rows: object) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return name


def load(name: str) -> list[dict[str, object]]:
    data = Path(name).read_bytes()
    text = gzip.decompress(data).decode() if name.endswith(".gz") else data.decode()
    return [json.loads(line) for line in text.splitlines()]


def said(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(app, ["data", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def refused(*arguments: str) -> str:
    with pytest.raises(WhetError) as error:
        CliRunner().invoke(app, ["data", *arguments], catch_exceptions=False)
    return str(error.value)


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    words = [f"w{chr(97 + number % 26)}{chr(97 + number // 26)}" for number in range(200)]
    return [" ".join(draw.choices(words, k=30)) for _ in range(count)]


def test_dedup() -> None:
    texts = sentences(50)
    changed = texts[3].replace(texts[3].split()[-1], "another")
    rows = [{"prompt": text} for text in (*texts, texts[0].upper() + "!", changed)]
    save("a.jsonl", *rows)
    assert said("dedup", "a.jsonl", "-o", "b.jsonl.gz") == {
        "rows": 52, "kept": 50, "exact_duplicates": 1, "near_duplicates": 1, "largest_group": 2,
    }  # fmt: skip
    assert load("b.jsonl.gz") == rows[:50]
    assert said("dedup", "a.jsonl", "--exact", "-o", "c.jsonl")["kept"] == 51
    assert "exists already" in refused("dedup", "a.jsonl", "--exact", "-o", "c.jsonl")
    assert said("dedup", "a.jsonl", "--near", "0.3", "--force", "-o", "c.jsonl")["kept"] == 50


def test_dedup_by_the_whole_row_or_the_prompt_or_a_column() -> None:
    save("a.jsonl", {"prompt": "q", "completion": "one", "k": "x"}, {"prompt": "q", "completion": "two", "k": "x"})
    assert said("dedup", "a.jsonl", "--exact", "-o", "b.jsonl")["kept"] == 2
    assert said("dedup", "a.jsonl", "--exact", "--by", "prompt", "-o", "c.jsonl")["kept"] == 1
    assert said("dedup", "a.jsonl", "--exact", "--by", "k", "-o", "d.jsonl")["kept"] == 1
    assert "'z' is missing; the row has 'prompt', 'completion', 'k'" in refused(
        "dedup", "a.jsonl", "--by", "z", "-o", "-"
    )


def test_numbers_may_be_ignored() -> None:
    save("a.jsonl", {"prompt": LUCY}, {"prompt": LUCY.replace("212", "99").replace("280", "300")})
    assert said("dedup", "a.jsonl", "-o", "b.jsonl")["kept"] == 2
    assert said("dedup", "a.jsonl", "--ignore-numbers", "-o", "c.jsonl")["kept"] == 1


def test_sketches_agree_with_the_true_similarity() -> None:
    """Pairs of every similarity: those well above the threshold are found, those well below are not."""
    draw = random.Random(1)
    texts, true = [], []
    for text in sentences(300, seed=2):
        words = text.split()
        other = [word if draw.random() > 0.02 * (len(true) % 10) else f"x{draw.random()}" for word in words]
        texts += [text, " ".join(other)]
        runs = [{tuple(each[at : at + 3]) for at in range(len(each) - 2)} for each in map(words_of, texts[-2:])]
        true.append(len(runs[0] & runs[1]) / len(runs[0] | runs[1]))
    sketches = Sketches()
    for text in texts:
        sketches.add(text)
    found = sketches.clusters(0.7)
    wrong = sum(
        (found[2 * at] == found[2 * at + 1]) != (share >= 0.7)
        for at, share in enumerate(true)
        if abs(share - 0.7) > 0.15
    )
    assert wrong <= 2
    assert {share >= 0.85 for share in true} == {True, False}


def test_contamination() -> None:
    save("train.jsonl", {"prompt": LUCY}, {"prompt": LUCY.replace("212", "3")}, {"prompt": "Something else."})
    save("test.jsonl", {"question": LUCY, "answer": "68"})
    found = said("contamination", "train.jsonl", "--test", "test.jsonl", "-o", "clean.jsonl")
    assert (found["kept"], found["contaminated"], found["tests_touched"]) == (2, 1, 1)
    assert found["by_kind"] == {"exact": 1, "copy": 0, "near": 0, "template": 1, "passage": 0}
    assert found["examples"][0]["train"] == "train.jsonl:1" and found["examples"][0]["test"] == "test.jsonl:1"  # type: ignore[index]
    assert len(load("clean.jsonl")) == 2
    strict = ("--kinds", "exact,copy,near,template")
    assert said("contamination", "train.jsonl", "--test", "test.jsonl", *strict)["contaminated"] == 2
    result = CliRunner().invoke(app, ["data", "contamination", "train.jsonl", "--test", "test.jsonl", "--check"])
    assert result.exit_code == 1
    assert "no such kind (did you mean 'exact'?)" in refused(
        "contamination", "train.jsonl", "--test", "t", "--kinds", "exat"
    )


def test_filter_and_curriculum() -> None:
    rows = [{"prompt": f"p{number}", "pass_rate": number / 10} for number in (5, 0, 10, 2, 7, 9)]
    save("a.jsonl", *rows)
    found = said("filter", "a.jsonl", "--least", "0.1", "--most", "0.9", "-o", "b.jsonl")
    assert found == {"rows": 6, "kept": 4, "below": 1, "above": 1}
    assert [row["pass_rate"] for row in load("b.jsonl")] == [0.5, 0.2, 0.7, 0.9]
    said("curriculum", "a.jsonl", "-o", "c.jsonl")
    assert [row["pass_rate"] for row in load("c.jsonl")] == [1.0, 0.9, 0.7, 0.5, 0.2, 0.0]
    said("curriculum", "a.jsonl", "--hard-first", "-o", "d.jsonl")
    assert [row["pass_rate"] for row in load("d.jsonl")] == [0.0, 0.2, 0.5, 0.7, 0.9, 1.0]
    found = said("curriculum", "a.jsonl", "--stages", "3", "-o", "e.jsonl")
    assert [(row["stage"], row["pass_rate"] >= 0.9) for row in load("e.jsonl")][:2] == [(1, True), (1, True)]  # type: ignore[operator]
    assert found["stages"][0] == {"stage": 1, "rows": 2, "from": 1.0, "to": 0.9}  # type: ignore[index]
    assert "'pass_rat' is missing" in refused("filter", "a.jsonl", "--column", "pass_rat", "--least", "0", "-o", "-")
    assert "--least 1 is above --most 0" in refused("filter", "a.jsonl", "--least", "1", "--most", "0", "-o", "-")


def test_curriculum_by_length() -> None:
    save("a.jsonl", {"prompt": "long " * 9}, {"prompt": "short"})
    said("curriculum", "a.jsonl", "--by", "length", "-o", "b.jsonl")
    assert load("b.jsonl")[0] == {"prompt": "short"}


def test_mix() -> None:
    save("a.jsonl", *({"prompt": f"a{number}"} for number in range(30)))
    save("b.jsonl", *({"prompt": f"b{number}"} for number in range(100)))
    found = said("mix", "a.jsonl=1", "b.jsonl=3", "-o", "m.jsonl", "--mark", "of")
    rows = load("m.jsonl")
    assert found["kept"] == len(rows) == 120 and len({row["prompt"] for row in rows}) == 120
    assert sum(row["of"] == "a.jsonl" for row in rows) == 30
    said("mix", "a.jsonl=1", "b.jsonl=3", "-o", "n.jsonl", "--mark", "of")
    said("mix", "a.jsonl=1", "b.jsonl=3", "-o", "o.jsonl", "--mark", "of", "--seed", "1")
    assert load("n.jsonl") == rows and load("o.jsonl") != rows
    assert "give --rows 120 or fewer" in refused("mix", "a.jsonl=1", "b.jsonl=3", "--rows", "200", "-o", "p.jsonl")
    assert said("mix", "a.jsonl=1", "b.jsonl=1", "--rows", "100", "--repeat", "-o", "p.jsonl")["repeated"] == 20
    assert "each with a weight above 0" in refused("mix", "a.jsonl", "b.jsonl=1", "-o", "q.jsonl")
    assert "'x' is no number" in refused("mix", "a.jsonl=x", "b.jsonl=1", "-o", "q.jsonl")
    assert not Path("q.jsonl").exists()


def test_split_keeps_prompts_together() -> None:
    texts = sentences(200)
    rows = [{"prompt": text, "completion": str(number)} for number in range(3) for text in texts]
    save("a.jsonl", *rows)
    found = said("split", "a.jsonl", "train.jsonl=0.8", "test.jsonl=0.2")
    train, test = ({row["prompt"] for row in load(name)} for name in ("train.jsonl", "test.jsonl"))
    assert not train & test and len(train | test) == 200 and found["groups"] == 200
    assert 20 <= len(test) <= 60
    # a row stays on its side when others are added
    save("b.jsonl", *rows[:300])
    said("split", "b.jsonl", "train2.jsonl=0.8", "test2.jsonl=0.2")
    assert {row["prompt"] for row in load("test2.jsonl")} <= test
    assert "do not add up to 1" in refused("split", "a.jsonl", "x.jsonl=0.8", "y.jsonl=0.8")
    assert "v.jsonl would get none of the 600 rows" in refused("split", "a.jsonl", "u.jsonl=0.9999", "v.jsonl=0.0001")
    assert not Path("u.jsonl").exists()


def test_split_meets_its_shares_where_prompts_have_variants() -> None:
    """Whichever row of a group decides where the group goes must not favour a side."""
    rows = [
        {"prompt": f"{'What' if n % 2 else 'what'} is {g}, and why{'?' * (n // 2)}"}
        for n in range(40)
        for g in range(100)
    ]
    save("a.jsonl", *rows)
    found = said("split", "a.jsonl", "one.jsonl=0.5", "two.jsonl=0.5")
    assert found["groups"] == 100 and 1200 < found["sides"]["one.jsonl"] < 2800
    one = [row["prompt"] for row in load("one.jsonl")]
    save("b.jsonl", *reversed(rows))  # and neither does their order
    said("split", "b.jsonl", "one2.jsonl=0.5", "two2.jsonl=0.5")
    assert sorted(one) == sorted(row["prompt"] for row in load("one2.jsonl"))


def test_split_keeps_near_duplicates_together() -> None:
    rows = [{"prompt": LUCY.replace("212", str(number))} for number in range(40)]
    save("a.jsonl", *rows, *({"prompt": text} for text in sentences(60)))
    said("split", "a.jsonl", "train.jsonl=0.5", "test.jsonl=0.5", "--near", "0.6")
    train, test = ([str(row["prompt"]) for row in load(name)] for name in ("train.jsonl", "test.jsonl"))
    assert contamination(train, test) == []
    assert "Lucy" in str(train) + str(test)


CHAT = [{"role": "user", "content": "q"}]
PAIR = {"prompt": "q", "chosen": "a", "rejected": "b"}
GOOD, BAD = ({"prompt": "q", "completion": text, "label": text == "a"} for text in "ab")
LOW, HIGH = {"prompt": "q", "completion": "b", "reward": 0.2}, {"prompt": "q", "completion": "a", "reward": 1.0}
RANKED = {"prompt": "q", "completions": ["b", "a", "c"], "scores": [1, 3, 2]}
STEPS = {"prompt": "q", "steps": ["a", "b"], "labels": [1.0, 0.0]}


@pytest.mark.parametrize(
    ("rows", "to", "expected", "lost"),
    [
        ([PAIR], "labels", [GOOD, BAD], "compared"),
        ([PAIR], "sft", [{"prompt": "q", "completion": "a"}], "rejected"),
        ([{**PAIR, "prompt": CHAT}], "prompts", [{"prompt": CHAT}], "completions"),
        ([GOOD, BAD, {"prompt": "r", "completion": "c", "label": True}], "pairs", [PAIR], "without a partner"),
        ([GOOD, BAD], "sft", [{"prompt": "q", "completion": "a"}], "bad"),
        ([LOW, HIGH], "pairs", [{**PAIR, "margin": 0.8}], ""),
        ([HIGH, LOW], "labels", [GOOD, BAD], "scores"),
        ([RANKED], "pairs", [{**PAIR, "rejected": "c"}, PAIR, {**PAIR, "chosen": "c"}], ""),
        ([RANKED], "labels", [GOOD, BAD], "between"),
        ([STEPS], "labels", [{"prompt": "q", "completion": "a\n\nb", "label": False}], "single steps"),
        ([{"prompt": "q", "steps": ["a", "b"], "first_error": 1}], "steps", [STEPS], ""),
        (
            [{"prompt": "q", "completion": "a\n\nb"}],
            "steps",
            [{**STEPS, "labels": [None, None], "separator": "\n\n"}],
            "labels of steps",
        ),
        ([{"question": "q", "answer": "so\n#### 3"}], "prompts", [{"prompt": "q", "answer": "3"}], ""),
    ],
)
def test_convert(rows: list[object], to: str, expected: list[object], lost: str) -> None:
    save("a.jsonl", *rows)
    found = said("convert", "a.jsonl", "--to", to, "-o", "b.jsonl")
    rows_found = [{**row, **({"margin": 0.8} if "margin" in row else {})} for row in load("b.jsonl")]
    assert rows_found == expected
    assert lost in str(found["lost"]) and bool(lost) == bool(found["lost"])


def test_what_cannot_be_converted() -> None:
    save("a.jsonl", {"prompt": "q", "completion": "a"})
    assert "sft cannot become pairs; they can become prompts, sft, steps" in refused(
        "convert", "a.jsonl", "--to", "pairs", "-o", "b.jsonl"
    )
    assert "'pears' is no format" in refused("convert", "a.jsonl", "--to", "pears", "-o", "b.jsonl")
    save(
        "c.jsonl", {"prompt": "q", "completion": "a", "label": True}, {"prompt": "r", "completion": "b", "label": True}
    )
    assert "no pairs can be made of its labels (2 prompts whose" in refused(
        "convert", "c.jsonl", "--to", "pairs", "-o", "-"
    )
    assert not Path("b.jsonl").exists()


def test_stats() -> None:
    rows = [{"question": text, "answer": f"#### {number % 3}"} for number, text in enumerate(sentences(20))]
    save("a.jsonl", *rows, rows[0], {"question": "Сколько?", "answer": "#### 1"}, {"other": 1})
    found = said("stats", "a.jsonl", "--near", "0.8")
    assert (found["rows"], found["usable"], found["repeated_prompts"], found["near_duplicate_prompts"]) == (
        23,
        22,
        1,
        0,
    )
    assert found["scripts"] == {"latin": 21, "cyrillic": 1}
    assert found["columns"] == {"question": {"text": 22}, "answer": {"text": 22}}
    assert found["answers"]["rows"] == 22 and found["answers"]["different"] == 3  # type: ignore[index]
    assert found["left_out"] == {"'prompt' or 'messages' is missing": 1}
    assert "rows" in CliRunner().invoke(app, ["data", "stats", "a.jsonl"]).stdout


def test_bad_rows_are_named_or_dropped() -> None:
    Path("a.jsonl").write_text('{"prompt": "p"}\nnot json\n{"promt": "q"}\n', encoding="utf-8")
    assert refused("dedup", "a.jsonl", "-o", "b.jsonl").startswith("a.jsonl:2: column 1: not valid JSON")
    found = said("dedup", "a.jsonl", "--unusable", "drop", "-o", "b.jsonl")
    assert found["left_out"] == {"the line is not valid JSON": 1, "'prompt' or 'messages' is missing": 1}
    assert load("b.jsonl") == [{"prompt": "p"}]
    Path("empty.jsonl").touch()
    assert "holds no rows" in refused("stats", "empty.jsonl")


def test_a_tool_that_fails_leaves_no_file_and_the_old_one() -> None:
    Path("a.jsonl").write_text('{"prompt": "p"}\nnot json\n', encoding="utf-8")
    save("b.jsonl", {"old": 1})
    refused("filter", "a.jsonl", "--least", "0", "--force", "-o", "b.jsonl")
    assert load("b.jsonl") == [{"old": 1}]
    assert sorted(path.name for path in Path().iterdir()) == ["a.jsonl", "b.jsonl"]
    assert "name it .jsonl or .jsonl.gz" in refused("dedup", "b.jsonl", "-o", "b.csv")
    assert "there is no folder" in refused("dedup", "b.jsonl", "-o", "none/b.jsonl")


def test_standard_input_and_output(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = b'{"prompt": "p"}\n{"prompt": "P!"}\n'
    result = CliRunner().invoke(app, ["data", "dedup", "-", "-o", "-"], input=rows, catch_exceptions=False)
    assert result.stdout == '{"prompt": "p"}\n'
    assert "exact duplicates       1" in result.stderr
    assert "read twice" in refused("convert", "-", "--to", "prompts", "-o", "-")


def test_difficulty() -> None:
    asked = ["Left to right mod 10: 2+3", "Left to right mod 10: 4*2"]
    save("a.jsonl", *({"prompt": [{"role": "user", "content": text}], "answer": "5"} for text in asked))
    found = said("difficulty", "a.jsonl", "--samples", "2", "--reward", "exact_answer", "-o", "b.jsonl")
    rows = load("b.jsonl")
    assert found["kept"] == 2 and all(0 <= row["pass_rate"] <= 1 and row["samples"] == 2 for row in rows)  # type: ignore[operator]
    assert found["mean_pass_rate"] == sum(row["pass_rate"] for row in rows) / 2  # type: ignore[misc]


def test_a_reference_writes_the_rewards_that_a_run_compares_with() -> None:
    asked = ["Left to right mod 10: 2+3", "Left to right mod 10: 4*2"]
    save("a.jsonl", *({"prompt": [{"role": "user", "content": text}], "answer": "5"} for text in asked))
    short = {"steps": 1, "eval": {"prompts": 0}, "batch": {"prompts_per_step": 2}, "model": {"device": "cpu"}}
    with pytest.raises(WhetError, match=r"write it with `whet data difficulty FILE .* --keep-rewards"):
        whet.train("a_star_po", data="a.jsonl", reward="exact_answer", config=short, folder="refused", console=False)
    said("difficulty", "a.jsonl", "--samples", "3", "--reward", "exact_answer", "--keep-rewards", "-o", "b.jsonl")
    rewards = [row["reference_rewards"] for row in load("b.jsonl")]
    assert [sum(each) / 3 for each in rewards] == pytest.approx([row["pass_rate"] for row in load("b.jsonl")], abs=1e-6)  # type: ignore[arg-type,misc]
    # with V between 0 and 1 every verdict teaches something
    save("c.jsonl", *({**row, "reference_rewards": [1.0, 0.0]} for row in load("b.jsonl")))
    run = whet.train("a_star_po", data="c.jsonl", reward="exact_answer", config=short, folder="run", console=False)
    (step,) = read_metrics(run.folder)
    assert step["counts"]["samples"] == 2 and step["metrics"]["gradient_norm"] > 0


def test_a_spool_gives_back_every_row() -> None:
    with Spool() as spool:
        numbers = [spool.add({"n": number, "t": "é" * number}) for number in range(50)]
        assert [spool.values(number)["n"] for number in reversed(numbers)] == list(range(49, -1, -1))


def test_convert_from_python() -> None:
    save("a.jsonl", {"prompt": "q", "chosen": "a", "rejected": "b", "margin": 0.5})
    stream = io.BytesIO()
    convert(StoredRows("a.jsonl"), RowWriter(stream), "pairs")
    assert json.loads(stream.getvalue()) == {"prompt": "q", "chosen": "a", "rejected": "b", "margin": 0.5}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "plain text"},
        {"prompt": "\n\nHuman: hello\n\nAssistant: hi\n\nHuman: more\n\nAssistant:"},
        {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
        {"question": "asked", "answer": "#### 3"},
    ],
)
def test_the_short_way_to_a_text_is_the_long_one(row: dict[str, object]) -> None:
    from whet.data.spool import prompt_text

    save("a.jsonl", row)
    stored = StoredRows("a.jsonl")
    assert [text for _, text in stored.texts()] == [prompt_text(prompt) for _, prompt in stored.prompts()]
