"""whet's verdicts on GSM8K and MATH-500 completions, and on multiple choice, against lm-eval's own task code."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.test_choices import ASKED, ROWS
from tests.peers.peer import PACKAGES, PeerMissing, install
from tests.support.real_data import data_file
from whet.data.multiple_choice import CHOICES, choice_prompt
from whet.data.rows import Row
from whet.tools.evaluation.likelihood import ACC, ACC_NORM, right_choice

pytestmark = pytest.mark.peers
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def groups():
    data = data_file("verifier_vectors").parent
    spec = importlib.util.spec_from_file_location("lm_eval_parity", ROOT / "benchmarks" / "lm_eval_parity.py")
    parity = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(parity)
    try:
        return parity.compared([*parity.gsm8k_cases(data, 60), *parity.math500_cases(data, 40)])
    except PeerMissing as reason:
        pytest.skip(str(reason))


def test_gsm8k_with_a_marked_answer_agrees_with_both_filters(groups):
    scores = groups["gsm8k_marked"]["scores"]
    assert scores["strict-match"]["agreement"] == 1.0
    assert scores["flexible-extract"]["agreement"] == 1.0
    assert 0.1 < groups["gsm8k_marked"]["whet_accuracy"] < 0.9


def test_gsm8k_without_a_mark_agrees_with_the_flexible_filter(groups):
    scores = groups["gsm8k_unmarked"]["scores"]
    assert scores["flexible-extract"]["agreement"] >= 0.99
    assert scores["strict-match"]["right"] == 0


def test_math500_solutions_right_and_wrong_agree(groups):
    for score in groups["math500_reference"]["scores"].values():
        assert score["agreement"] >= 0.98
    assert 0.45 < groups["math500_reference"]["whet_accuracy"] < 0.55


def test_math500_answers_of_models_differ_by_notation_only(groups):
    """whet reads more notations: docs/data-tools.md lists what differs the other way."""
    scores = groups["math500_models"]["scores"]
    assert scores["minerva_math_verify"]["agreement"] >= 0.95
    assert all(score["agreement"] >= 0.85 and score["only_peer"] <= 2 for score in scores.values())


def test_multiple_choice_has_the_same_words_and_verdicts():
    """Of every benchmark: what is asked, and both accuracies for log-likelihoods that part them."""
    cases = []
    for name, row in ROWS.items():
        doc = {**row, "subject": "abstract_algebra"} if name == "mmlu" else row
        count = len(ASKED[name][1])
        cases += [(name, doc, [-float(3 + (number * seed) % 7) for number in range(count)]) for seed in range(1, 7)]
    lines = [{"task": "choices", "name": name, "doc": doc, "logp": logp} for name, doc, logp in cases]
    try:
        folder = install(PACKAGES["lm_eval"])
    except PeerMissing as reason:
        pytest.skip(str(reason))
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "peers" / PACKAGES["lm_eval"].script)],
        input="".join(json.dumps(line) + "\n" for line in lines),
        env={**os.environ, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-800:]
    theirs = [json.loads(line) for line in done.stdout.splitlines()]
    ours = []
    for name, doc, logp in cases:
        question = choice_prompt(CHOICES[name], 0, Row(doc, "here"))
        meta = question.meta
        verdicts = {ACC: right_choice(question, logp, False), ACC_NORM: right_choice(question, logp, True)}
        ours.append({"text": question.text, "choices": meta["choices"], "right": meta["right"], **verdicts})
    assert ours == theirs
    assert any(one[ACC] != one[ACC_NORM] for one in ours) and {one[ACC] for one in ours} == {0.0, 1.0}
