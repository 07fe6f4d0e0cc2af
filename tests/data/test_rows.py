from __future__ import annotations

import gzip
import json
import sys
import types
from pathlib import Path

import pytest

from tests.support.real_data import data_file
from whet.data.prompts import prompts_from, renamed
from whet.data.source import read_rows
from whet.types import WhetError

ROWS = [
    {"prompt": "What is 2 + 3?", "answer": "5"},
    {"prompt": 'Say "hi", twice\nplease', "answer": "hi hi"},
    {"prompt": "naïve café ⊕", "answer": "\u2028 inside"},
]


def written(path: Path, text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def as_jsonl() -> str:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n"


CSV = 'prompt,answer\nWhat is 2 + 3?,5\n"Say ""hi"", twice\nplease",hi hi\n\nnaïve café ⊕,\u2028 inside\n'


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize(
    ("suffix", "text", "places"),
    [
        (".jsonl", as_jsonl(), [":1", ":2", ":3"]),
        (".json", json.dumps(ROWS, indent=1), [": item 1", ": item 2", ": item 3"]),
        (".csv", CSV, [":2", ":3", ":6"]),
        (".CSV", CSV.replace("\n", "\r\n"), [":2", ":3", ":6"]),
    ],
)
def test_text_formats_keep_every_value_and_place(
    tmp_path: Path, suffix: str, text: str, places: list[str], gz: str
) -> None:
    rows = read_rows(written(tmp_path / f"data{suffix}{gz}", text))
    assert [{k: v.replace("\r", "") for k, v in row.values.items()} for row in rows] == ROWS
    assert [row.where for row in rows] == [f"data{suffix}{gz}{place}" for place in places]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    nested = [{"messages": [{"role": "user", "content": str(i)}], "id": i} for i in range(5)]
    parquet.write_table(pyarrow.Table.from_pylist(nested), tmp_path / "d.parquet")
    rows = read_rows(str(tmp_path / "d.parquet"))
    assert [dict(row.values) for row in rows] == nested
    assert rows[2].where == "d.parquet: row 3"
    assert [row.values["id"] for row in read_rows(str(tmp_path / "d.parquet"), limit=2)] == [0, 1]


def test_damaged_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(WhetError, match=r"bad\.parquet: not readable as Parquet .* write it again"):
        read_rows(written(tmp_path / "bad.parquet", "not parquet at all"))


@pytest.mark.parametrize("package", ["pyarrow", "datasets"])
def test_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    source = written(tmp_path / "d.parquet", "x") if package == "pyarrow" else "hub:owner/name"
    with pytest.raises(WhetError, match=rf"needs the package {package}; run: pip install 'whet\[hub\]'"):
        read_rows(source)


def test_blank_lines_and_byte_order_mark(tmp_path: Path) -> None:
    rows = read_rows(written(tmp_path / "a.jsonl", '\ufeff{"a": 1}\n\n  \n{"a": 2}'))
    assert [(row.values["a"], row.where) for row in rows] == [(1, "a.jsonl:1"), (2, "a.jsonl:4")]
    assert read_rows(written(tmp_path / "a.json", '\ufeff[{"a": 1}]'))[0].values == {"a": 1}
    assert read_rows(written(tmp_path / "a.csv", "\ufeffa,b\n1,2\n"))[0].values == {"a": "1", "b": "2"}


def test_limit_stops_before_later_mistakes(tmp_path: Path) -> None:
    source = written(tmp_path / "a.jsonl", '{"a": 1}\n{"a": 2}\nbroken\n')
    assert [row.values["a"] for row in read_rows(source, limit=2)] == [1, 2]
    with pytest.raises(WhetError, match="limit is 0; give at least 1"):
        read_rows(source, limit=0)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.jsonl", '{"a": 1}\n\n{"a": 1,}\n', r"^a\.jsonl:3: column \d+: not valid JSON .*correct the line$"),
        ("a.jsonl.gz", '{"a": tru}\n', r"^a\.jsonl\.gz:1: column 7: not valid JSON"),
        ("a.jsonl", '{"a": 1}\n[1]\n', r"^a\.jsonl:2: the row is an array; expected a JSON object; write it as"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', r"^a\.jsonl:2: byte 8 is not UTF-8; .*save the file as UTF-8"),
        ("a.json", '[{"a": 1},\n {"a": }]', r"^a\.json:2: column 8: not valid JSON"),
        ("a.json", '{"a": 1}\n{"a": 2}', r"^a\.json:2: column 1: .*name it \.jsonl"),
        ("a.json", '{"a": 1}', r"^a\.json: holds an object; expected an array of objects"),
        ("a.json", '[{"a": 1}, 5]', r"^a\.json: item 2: the row is a number"),
        ("a.csv", "a,b,a\n1,2,3\n", r"^a\.csv:1: column 'a' appears twice in the header.*rename"),
        ("a.csv", "a,\n1,2\n", r"^a\.csv:1: header field 2 is empty.*name the column"),
        ("a.csv", 'a,b\n"x\ny",2\n1\n', r"^a\.csv:4: the row has 1 fields; expected 2 \(a, b\); quote fields"),
        ("a.csv", "a,b\n1,2,3\n", r"^a\.csv:2: the row has 3 fields; expected 2"),
        ("a.csv", 'a,b\n1,2\n"open,2\n', r"^a\.csv:3: not valid CSV .*correct the row"),
        ("a.txt", "hello", r"a\.txt: unknown kind of file; expected a name ending in \.jsonl.*convert"),
        ("a.parquet.gz", "hello", r"a\.parquet\.gz: unknown kind of file"),
        ("a.jsonl", "\n\n", r"a\.jsonl: holds no rows; expected at least one"),
        ("a.json", "[]", r"a\.json: holds no rows"),
        ("a.csv", "a,b\n", r"a\.csv: holds no rows"),
    ],
)
def test_mistakes_name_the_place_and_the_fix(tmp_path: Path, name: str, text: str | bytes, complaint: str) -> None:
    with pytest.raises(WhetError, match=complaint) as raised:
        read_rows(written(tmp_path / name, text))
    assert "\n" not in str(raised.value)


def test_damaged_gzip(tmp_path: Path) -> None:
    whole = gzip.compress(as_jsonl().encode())
    for data in (b"plain text\n", whole[:-12]):
        (tmp_path / "a.jsonl.gz").write_bytes(data)
        with pytest.raises(WhetError, match=r"a\.jsonl\.gz: the gzip data is damaged"):
            read_rows(str(tmp_path / "a.jsonl.gz"))


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    written(tmp_path / "train.jsonl", as_jsonl())
    with pytest.raises(WhetError, match=r"trian\.jsonl: no such file; .*did you mean .*/train\.jsonl\?"):
        read_rows(str(tmp_path / "trian.jsonl"))
    with pytest.raises(WhetError, match=r"zzz\.csv: no such file; .*correct the path$"):
        read_rows(str(tmp_path / "zzz.csv"))
    with pytest.raises(WhetError, match=r"nor the folder .*/nowhere; .*correct the path"):
        read_rows(str(tmp_path / "nowhere" / "train.jsonl"))
    with pytest.raises(WhetError, match=r"hub is written hub:openai-none/gsm8k"):
        read_rows("openai-none/gsm8k")


def test_folder_is_an_error_with_a_file_to_give(tmp_path: Path) -> None:
    with pytest.raises(WhetError, match=r"is a folder; .*give the file itself"):
        read_rows(str(tmp_path))
    written(tmp_path / "train.csv", "a\n1\n")
    with pytest.raises(WhetError, match=r"is a folder; .*such as .*/train\.csv"):
        read_rows(str(tmp_path))


def fake_hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    asked: list[tuple[object, ...]] = []

    def load_dataset(path: str, name: str | None = None, *, split: str) -> list[dict[str, object]]:
        asked.append((path, name, split))
        if split == "none":
            raise ValueError('Unknown split "none".\nShould be one of ["train"].')
        return [{"prompt": f"{split} {i}"} for i in range(4)]

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


def test_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_hub(monkeypatch)
    rows = read_rows("hub:owner/name", limit=3)
    assert [row.values["prompt"] for row in rows] == ["train 0", "train 1", "train 2"]
    assert rows[2].where == "owner/name[train]: row 3"
    assert prompts_from(rows)[2].id == "owner/name[train]:3"
    assert read_rows("hub:owner/name:test")[0].values == {"prompt": "test 0"}
    assert read_rows("hub:owner/name/main:train[:4]")[3].where == "owner/name/main[train[:4]]: row 4"
    assert asked == [
        ("owner/name", None, "train"),
        ("owner/name", None, "test"),
        ("owner/name", "main", "train[:4]"),
    ]


def test_hub_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch)
    with pytest.raises(
        WhetError, match=r'^hub:o/n:none: .*ValueError: Unknown split "none"\.\); check its name'
    ) as raised:
        read_rows("hub:o/n:none")
    assert "\n" not in str(raised.value)
    for name in ("hub:", "hub:gsm8k", "hub:a/b/c/d", "hub:/x:train"):
        with pytest.raises(WhetError, match="not a dataset name; expected hub:owner/name"):
            read_rows(name)


def test_real_file() -> None:
    prompts = prompts_from(renamed(read_rows(str(data_file("gsm8k/train.jsonl.gz"))), {"question": "prompt"}))
    assert len(prompts) == 7473
    assert prompts[0].id == "train.jsonl.gz:1"
    assert all(prompt.text and prompt.answer and "####" not in prompt.answer for prompt in prompts)
    assert (prompts[0].answer, prompts[0].meta.get("solution", "")[-7:]) == ("72", "#### 72")
