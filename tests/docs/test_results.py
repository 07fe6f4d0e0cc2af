"""A measured number in README.md or docs/ comes from a file in results/, and says what the file says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.results_file import room_digest
from tests.docs.generated_tables import REFRESH
from tests.docs.quoted_results import MARKED, TABLE, UnknownResult, expanded, pages, with_results
from tests.docs.result_tables import RESULT_TABLES
from tests.support.for_every import for_every

ROOT = Path(__file__).parents[2]

# pages whose numbers another test computes anew and compares
HELD = {
    "docs/algorithms.md": "tests/architecture/test_docs.py",
    "docs/preference-methods.md": "tests/docs/test_preference_differences.py",
    "docs/differences.md": "tests/peers",
    "docs/bias.md": "tests/objective/test_unbiased.py",
}
GENERATED = re.compile(r"<!-- ([\w ]+): from the code -->.*?<!-- \1: end -->", re.S)
QUIET = re.compile(r"^```(?:sh|bash|toml|python)\b.*?^```$", re.S | re.M)
UNITS = (
    r"s|ms|us|seconds?|minutes?|min|hours?|GB|GiB|MB|MiB|GB/s|TB/s|GFLOP/s|TFLOP/s|tokens/s|tokens per second|tests/s"
    r"|points?|times|nats"
)
MEASURED = re.compile(
    rf"(?<![\w.=-])\d[\d,]*(?:\.\d+)?(?:\s?%|\s?±|\s(?:{UNITS})(?![\w-])|x (?:faster|slower|as fast))"
    r"|^\|.*\|\s*-?\d+\.\d+\s*\|"  # a cell that is nothing but a decimal
    r"|(?:accuracy|curve|reache[sd]|took|gap|loss) (?:of |is |was |by |from |rises? )?-?\d*\.\d+"
)
# lines that hold a definition, a default, a threshold, an example or what a paper says: nothing that was measured here
ALLOWED: dict[str, tuple[str, ...]] = {
    "CONTRIBUTING.md": ("about 1 GB of memory",),
    "README.md": ("24 GB trains 0.5B in full or 1.5B with LoRA",),
    "docs/agents.md": (
        "95% intervals on SVAMP",
        "a quarter of a second and 5% of the time spent writing",
        "saves at least 15% of the tokens",
    ),
    "docs/claims.md": ("If the 95% interval of the mean over the seeds",),
    "docs/planner.md": ("within 10%, the worst",),
    "docs/real-model.md": ("95% interval | limit |",),
    "docs/checkpoints.md": (
        "its 95% interval: Wilson's for an accuracy",
        "accuracy best at step 50: 34.5% (28.3-41.3)",
        "one-sided at 5%. Gains too small",
    ),
    "docs/evaluation.md": ("Wilson's 95% interval", "are 95% intervals over prompts"),
    "docs/engines.md": ("The limit is 64 times that", "in float32 and 4 times in bfloat16"),
    "docs/models.md": ("weights in 1.5 MB",),
    "docs/performance.md": (
        "| an answer takes |",
        "share was 8% or more",
    ),
    "docs/doctor.md": (
        "at most 2% of whole runs in which nothing changes",
        "from the first to the last evaluation, holds 5%",
        "hold 1% of looks at pure noise",
        "beyond noise at 1%",
    ),
    "docs/scale.md": (
        "torchrun kills what has not ended after 30 seconds",
        "`scale.timeout` + 12 s |",
        "`scale.timeout` is 600 seconds by default",
    ),
    "docs/rewards.md": (
        "`reward.most_failures` (5%)",
        "| `50` | `50` | `50%`",
        "| `50%` | `50%`, `0.5`, `50` |",
    ),
    "docs/rollout.md": ("| `sampling.",),
    "docs/serve.md": ("about to ask, 30 seconds for the", "Bodies end at 8 MiB"),
    "docs/self-improvement.md": (
        "a rubric of 0 to 5 points",
        "1.5 times as long as in the first round",
        "over 10% of the judgments",
        "orders under 65%",
        "order under 65%",
        "on under 65%",
    ),
}


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def measured_lines(text: str) -> list[tuple[int, str]]:
    """(line, text) of what looks measured and is neither marked nor in a table that a results file fills."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    for pattern in (MARKED, TABLE, GENERATED, QUIET):
        text = pattern.sub(blank, text)
    return [(number, line) for number, line in enumerate(text.splitlines(), 1) if MEASURED.search(line)]


def test_pages_show_what_the_results_files_hold():
    texts = {place(path): path.read_text(encoding="utf-8") for path in pages()}
    stale = [name for name, text in texts.items() if with_results(text) != text]
    assert not stale, f"stale: {stale}; refresh them:\n{REFRESH}"


def test_every_table_of_results_stands_on_one_page():
    names = [match["name"] for path in pages() for match in TABLE.finditer(path.read_text(encoding="utf-8"))]
    assert sorted(names) == sorted(RESULT_TABLES)


def test_every_opened_mark_is_closed():
    """A mark that is misspelt would be neither filled nor checked."""
    for path in pages():
        text = path.read_text(encoding="utf-8")
        opened, closed = text.count("<!--="), text.count("<!--/-->")
        assert opened == closed == len(MARKED.findall(text)), place(path)


def test_measured_numbers_come_from_results_files():
    unmarked = []
    for path in pages():
        allowed = ALLOWED.get(place(path), ())
        text = "" if place(path) in HELD else path.read_text(encoding="utf-8")
        lines = [(number, line) for number, line in measured_lines(text) if not any(part in line for part in allowed)]
        unmarked += [f"{place(path)}:{number} {line}" for number, line in lines]
    assert not unmarked, "\n".join(["measured? then mark it; else add the line to ALLOWED:", *unmarked])


def test_what_is_allowed_is_still_there():
    """An entry without a line would let the next measured number pass."""
    for page, parts in ALLOWED.items():
        lines = [line for _, line in measured_lines((ROOT / page).read_text(encoding="utf-8"))]
        assert not (stale := [part for part in parts if not any(part in line for line in lines)]), f"{page}: {stale}"
    assert all((ROOT / test).exists() and (ROOT / page).is_file() for page, test in HELD.items())


RECORD = {
    "command": "python benchmarks/a.py --results",
    "date": "2026-11-16",
    "commit": "abc1234",
    "code": {"settings": room_digest("settings")},
    "machine": {"gpu": None, "cores": 2, "processor": "X", "torch": "2.13"},
    "values": {"step": 1.25, "sides": {"whet": {"s": 1.0}, "trl": {"s": 2.0}}, "note": "fast", "contended": True},
}


def stored(name):
    return RECORD if name in ("speed", "gpu_speed") else None


def marked(name, value=""):
    return f"<!--={name}-->{value}<!--/-->"


@for_every(
    [
        ("speed/step:.1f", "1.2"),
        ("speed/note", "fast"),
        ("speed/sides/trl/s:.0%", "200%"),
        ("?speed/step", "1.25"),
        ("?speed/sides/vllm/s:.1f", "-"),
        (
            "gpu_speed/@",
            "`results/gpu_speed.json`: 2026-11-16, commit abc1234, 2 cores of an X, torch 2.13;"
            " others used the machine at the same time",
        ),
    ]
)
def test_a_mark_gets_the_number_of_its_file(name, value):
    page = f"# A\n\na {marked(name, 'stale')} s and {marked('speed/note', 'slow')}\n"
    assert with_results(page, stored) == page.replace("stale", value).replace("slow", "fast")


def test_a_table_has_a_row_for_every_key():
    tables = {"speed": "| | s |\n|---|---|\n| {speed/sides/*} | {speed/sides/*/s:.0%} |"}
    page = "  <!-- speed: from results -->\nstale\n  <!-- speed: end -->\n\nrest\n"
    rows = "  | | s |\n  |---|---|\n  | whet | 100% |\n  | trl | 200% |\n"
    assert with_results(page, stored, tables) == page.replace("stale\n", rows)
    with pytest.raises(UnknownResult, match="the table speed"):
        with_results(page, stored, {})


@for_every(
    [
        ("gone/step", "results/gone.json, which does not exist"),
        ("gone/@", "results/gone.json, which does not exist"),
        ("gpu_later/step", "results/gpu_later.json, which does not exist"),
        ("gpu_speed/stepp", "no 'stepp' there; it has step, sides"),
        ("speed/note:.1f", "cannot show"),
        ("speed/step/more", "no 'more' there"),
    ]
)
def test_a_name_that_no_file_holds_is_an_error(name, said):
    with pytest.raises(UnknownResult, match=said):
        with_results(marked(name), stored)
    with pytest.raises(UnknownResult, match=said):
        expanded(f"{{{name}}}", stored)


def test_changed_code_and_a_gpu_are_named():
    machine = {**RECORD["machine"], "gpu": "NVIDIA H200"}
    record = {**RECORD, "dirty": True, "machine": machine, "values": {"step": 1.0}}
    shown = with_results(marked("speed/@"), lambda name: record)
    assert "2026-11-16, commit abc1234 and changes, NVIDIA H200, torch 2.13<" in shown


def test_a_number_older_than_the_code_it_measures_says_so(tmp_path, monkeypatch):
    def shown(code):
        return with_results(marked("speed/@"), lambda name: {**RECORD, "code": code})

    assert "changed since" not in shown({"settings": room_digest("settings")})
    for older in ({"settings": "0" * 16}, {"settings": room_digest("settings"), "gone": "0" * 16}, {}, None):
        assert "; the code has changed since<" in shown(older)
    monkeypatch.setattr("benchmarks.results_file.PACKAGE", tmp_path)
    digests = []
    for text in ("a = 1\n", '"""Words."""\n\n# more\na = 1\n', "a = 2\n"):
        (tmp_path / "room").mkdir(exist_ok=True)
        (tmp_path / "room" / "a.py").write_text(text)
        room_digest.cache_clear()
        digests.append(room_digest("room"))
    room_digest.cache_clear()
    assert digests[0] == digests[1] != digests[2]


@for_every(
    [
        "A step takes 1.95 s and less.",
        "| whet | 8.1 GB |",
        "it rises from 15% to 30.5%",
        "27,800 tokens/s",
        "2.3 times as fast",
        "95 ± 5",
        "| p | 0.92 |",
        "an accuracy of 0.97",
        "three seeds lost 22 points",
        "```text\naccuracy 10.0%\n```",
    ]
)
def test_a_measured_number_without_a_mark_is_found(line):
    assert measured_lines(f"# A\n\n{line}\n")
    assert not measured_lines(f"# A\n\n{marked('speed/note', line)}\n")


@for_every(
    [
        "32 prompts x 8, 128 + 512 tokens",
        "arXiv 2402.03300, TRL 1.16",
        "a learning rate of 1e-5 for 2000 steps",
        "```sh\nwhet train grpo --set sampling.top_p=0.95  # 95%\n```",
        "model.lora=16",
    ]
)
def test_settings_and_shapes_are_no_measurements(line):
    assert not measured_lines(f"{line}\n")
