"""What became of runs that fell, as benchmarks/falls.py counts it."""

import json

import pytest

from benchmarks import falls
from benchmarks.run_archive import ARCHIVES, read_archive
from tests.support.source_tree import ROOT


def record(case: str, action: str, *accuracies: float) -> dict[str, object]:
    lines = [
        {"step": 8 * at, "eval": "eval", "size": 200, "seconds": {}, "result": {"accuracy": value}}
        for at, value in enumerate(accuracies)
    ]
    return {"tags": {"case": case, "action": action}, "lines": lines}


def test_only_runs_that_fell_before_their_last_evaluation_count():
    early, late, never = (0.1, 0.8, 0.4, 0.9), (0.1, 0.8, 0.9, 0.4), (0.1, 0.5, 0.8, 0.9)
    case = next(iter(falls.TITLES))
    off = [record(case, falls.OFF, *values) for values in (early, late, never)]
    assert [falls.fell_early(one) for one in off] == [True, False, False]
    rows = falls.by_case([*off, record(case, "half the rate", 0.1, 0.8, 0.4, 1.0)])
    title = falls.TITLES[case]
    assert rows == {
        f"{title}, nothing": {"of": 3, "runs": 1, "best": 0.9, "last": 0.9, "steps": 24},
        f"{title}, stop": {"of": 3, "runs": 1, "best": 0.8, "last": 0.4, "steps": 16},
        f"{title}, half the rate": {"of": 3, "runs": 1, "best": 1.0, "last": 1.0, "steps": 24},
    }


def test_the_default_is_what_the_archived_runs_say():
    recorded = json.loads((ROOT / "results" / "falls.json").read_text("utf-8"))["values"]["rows"]
    rows = falls.by_case(list(read_archive(ARCHIVES / "falls.jsonl.xz")))
    assert {name: row["last"] for name, row in rows.items()} == pytest.approx(
        {name: row["last"] for name, row in recorded.items()}, abs=1e-4
    )
    for title in {name.rpartition(", ")[0] for name in rows}:
        assert rows[f"{title}, half the rate"]["last"] > rows[f"{title}, nothing"]["last"], title
