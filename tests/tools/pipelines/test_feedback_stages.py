"""Stages in which models judge, criticise and score: each run once, on the built-in model and without any training."""

import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from whet.data.pairs import preferences_from
from whet.data.prompts import demonstrations_from
from whet.data.source import read_rows
from whet.tools.pipelines.library import (
    CollapseEntry,
    ConductEntry,
    ConstitutionExamplesEntry,
    JudgedPairsEntry,
    JudgeEvalEntry,
    JudgeExamplesEntry,
    PrincipledPairsEntry,
    RevisionsEntry,
    SampleEntry,
    SelfExamplesEntry,
    SelfJudgeEvalEntry,
    SelfScoredPairsEntry,
)
from whet.tools.pipelines.library.entry import compose
from whet.tools.pipelines.library.judging import CandidatePair, PairLabel, true_pairs
from whet.tools.pipelines.library.self_judging import mixed_scores
from whet.tools.pipelines.settings import PipelineSettings
from whet.tools.pipelines.stages import FinishedStage, read_json_lines, run_stages

# an untrained judge is silent and contradicts itself: scores and winners are given in its place
SCORED_BY = "whet.tools.pipelines.library.self_judging.score_in"
COMBINED_BY = "whet.tools.pipelines.library.judging.combine_orders"
JUDGE = {"question": "short", "times": 2, "max_new_tokens": 12, "examples": 4, "eval_prompts": 2}
ASKED = {"question": "short", "settings": {"attempts": 1, "max_new_tokens": 4}}


class LikesLonger(BaseHTTPRequestHandler):
    """A server that prefers the longer completion, wherever it stands."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        first, second = (re.search(rf"<<<ANSWER {side} \w+>>>\n(.*?)\n<<<END", asked, re.S)[1] for side in "AB")
        code = re.search(r'"code": "(\w+)"', asked)[1]
        said = json.dumps({"code": code, "better": "A" if len(first) > len(second) else "B"})
        body = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def by_length(answer):
    """A stand-in for a judge that can spell; some of its answers cannot be read."""
    return None if len(answer) % 5 == 4 else float(len(answer) % 5)


def with_a_winner(forth, back):
    """A stand-in for feedback that does not contradict itself."""
    return PairLabel(0.5 + 0.1 * (1 + forth) * (1 if forth > back else -1))


class Silent:
    def stage_started(self, *_):
        pass

    def stage_finished(self, *_):
        pass

    def stage_replaced(self, *_):
        raise AssertionError("a stage ran again with other inputs")


def settings(**more):
    values = {"model": {"threads": 1}, "data": {"difficulty": [1]}, "sampling": {"max_new_tokens": 24}}
    return PipelineSettings(pipeline="mine", **{**values, "eval": {"prompts": 4}, **more})


def stages(port):
    server = {"base_url": f"http://127.0.0.1:{port}/v1", "model": "any"}
    anchor = {"parts": [{"reward": "exact_answer"}]}
    return compose(
        settings(),
        [
            SampleEntry(name="drawn", count=16, completions=4),
            JudgeExamplesEntry(name="judge-examples", completions="drawn"),
            JudgeEvalEntry(name="judge-eval", completions="drawn", examples="judge-examples", verdict="logp", **ASKED),
            JudgedPairsEntry(name="pairs", completions="drawn", settings=server),
            PrincipledPairsEntry(name="principled", completions="drawn"),
            PrincipledPairsEntry(name="reasoned", completions="drawn", reason=True, reason_tokens=4),
            ConstitutionExamplesEntry(name="examples", count=4),
            RevisionsEntry(name="revisions", count=6, critiques=2, critique_tokens=8),
            SelfExamplesEntry(name="self-examples", teach={"count": 4}, judge=JUDGE),
            SelfJudgeEvalEntry(name="judge0", judge=JUDGE),
            SelfScoredPairsEntry(name="round1", number=1, count=6, completions=4, anchor=anchor, judge=JUDGE),
            SelfScoredPairsEntry(name="round2", number=2, count=6, completions=4, anchor=anchor, judge=JUDGE),
            CollapseEntry(name="collapse", pairs=("round1",), judges=("judge0",), judge=JUDGE),
        ],
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("feedback")
    server = ThreadingHTTPServer(("127.0.0.1", 0), LikesLonger)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SCORED_BY, by_length)
            whole = stages(server.server_port)
            done = run_stages(whole[:4], folder, Silent())
            patch.setattr(COMBINED_BY, with_a_winner)
            return {**done, **run_stages(whole, folder, Silent())}
    finally:
        server.shutdown()


def rows(made, stage, file):
    return read_json_lines(made[stage].folder / file)


def test_a_judge_learns_from_both_orders_and_is_asked_in_both(made):
    examples = rows(made, "judge-examples", "rows.jsonl")
    assert examples and {row["completion"] for row in examples} == {"A", "B"}
    held_out = made["judge-examples"].result["counts"]["held_out"]
    labels = rows(made, "judge-eval", "labels.jsonl")
    assert len(labels) == held_out > 0 and all(0 <= line["forth"] <= 1 and 0 <= line["back"] <= 1 for line in labels)
    assert set(made["judge-eval"].result["metrics"]) >= {"flip_rate", "tie_rate"}


def test_a_server_orders_pairs_and_an_eighth_is_held_out_as_the_truth_orders_it(made):
    pairs = rows(made, "pairs", "pairs.jsonl")
    assert pairs and all(len(pair["chosen"]) >= len(pair["rejected"]) for pair in pairs)
    counts = made["pairs"].result["counts"]
    assert counts["unreadable"] == 0 and len(pairs) == counts["pairs"] - counts["eval_pairs"]
    assert len(rows(made, "pairs", "eval_pairs.jsonl")) <= counts["eval_pairs"]
    assert preferences_from(read_rows(str(made["pairs"].folder / "pairs.jsonl")))


def test_eval_pairs_whose_truth_is_unknown_are_left_out():
    truths = {"right": 1.0, "wrong": 0.0, "even": 0.5, "unknown": None}
    candidates = [CandidatePair({"id": name, "prompt": "p"}, "one", "other", truth) for name, truth in truths.items()]
    judged = [{"id": name, "prompt": "p", "chosen": "one", "rejected": "other"} for name in truths]
    shown = true_pairs(judged, candidates)
    assert [(pair["id"], pair["chosen"]) for pair in shown] == [("right", "one"), ("wrong", "other")]
    assert true_pairs(judged, candidates[3:]) == judged


def test_pairs_are_compared_under_a_principle_and_reasons_hold_labels_back(made):
    plain, reasoned = (rows(made, name, "labels.jsonl") for name in ("principled", "reasoned"))
    assert plain and all(line["principle"] == "right steps" for line in plain)
    assert all(0.4 <= line[side] <= 0.6 for line in reasoned for side in ("forth", "back"))
    assert any(not 0.4 <= line[side] <= 0.6 for line in plain for side in ("forth", "back"))
    pairs = preferences_from(read_rows(str(made["principled"].folder / "pairs.jsonl")))
    assert pairs and all(0.5 < pair.preference < 1 for pair in pairs)


def test_completions_are_criticised_and_revised_and_the_last_revision_is_learnt(made):
    revised = rows(made, "revisions", "revisions.jsonl")
    assert len(revised) == 6 and all(len(row["critiques"]) == len(row["revisions"]) == 2 for row in revised)
    learnt = {row["id"]: row["completion"] for row in rows(made, "revisions", "rows.jsonl")}
    assert all(learnt[row["id"]] == row["revisions"][-1] for row in revised if row["id"] in learnt)
    counts = made["revisions"].result["counts"]
    assert counts["changed"] == sum(row["revisions"][-1] != row["completion"] for row in revised)
    assert len(learnt) == 6 - counts["cut_off_or_empty"] and "right_after" in made["revisions"].result["metrics"]
    assert "right steps" in (made["revisions"].folder / "constitution.toml").read_text()
    taught = demonstrations_from(read_rows(str(made["examples"].folder / "rows.jsonl")))
    assert len(taught) == 4 + 4 * 4 and {row.completion for row in taught} >= {"A", "B"}


def test_a_policy_scores_its_own_completions_to_new_prompts_in_every_round(made):
    for name in ("round1", "round2"):
        judged = rows(made, name, "judged.jsonl")
        assert all(len(row["judgments"]) == len(row["truth"]) == len(row["anchor"]) == 4 for row in judged)
        assert all(len(each) == 2 for row in judged for each in row["judgments"])
        scores = {row["id"]: dict(zip(row["completions"], mixed_scores(row, 0.5), strict=True)) for row in judged}
        pairs = rows(made, name, "pairs.jsonl")
        assert all(pair["chosen_score"] > pair["rejected_score"] for pair in pairs)
        assert all(pair["chosen"] in scores[pair["id"]] for pair in pairs)
        counts = made[name].result["counts"]
        assert counts["pairs"] + counts["ties"] + counts["cut_off"] == 6 and counts["pairs"] == len(pairs) > 0
    asked = [{json.dumps(row["prompt"]) for row in rows(made, name, "judged.jsonl")} for name in ("round1", "round2")]
    assert len(asked[0]) == len(asked[1]) == 6 and not asked[0] & asked[1]
    taught = demonstrations_from(read_rows(str(made["self-examples"].folder / "rows.jsonl")))
    assert len(taught) == 4 + 4 * 4 and sum("Score:" in row.completion for row in taught) == 16


def test_a_round_has_its_signals(made):
    result = made["collapse"].result
    expected = {"length", "own_score", "spread", "ties", "unreadable", "distinct", "judge_accuracy"}
    assert expected <= set(result["metrics"]) and result["metrics"]["length"] > 0 and result["summary"]
    assert 0 < result["metrics"]["distinct"] <= 1 and "judge_accuracy" in made["judge0"].result["metrics"]


def test_half_written_rows_are_written_again_to_the_same_bytes(made, tmp_path, monkeypatch):
    monkeypatch.setattr(SCORED_BY, by_length)
    monkeypatch.setattr(COMBINED_BY, with_a_winner)
    whole = {stage.name: stage for stage in stages(1)}
    for name, file in (("round2", "judged.jsonl"), ("principled", "labels.jsonl")):
        again = tmp_path / name
        shutil.copytree(made[name].folder, again)
        (again / file).unlink()
        result = whole[name].work(again, {**made, name: FinishedStage(again, {})})
        assert json.loads(json.dumps(result)) == made[name].result, name
        assert (again / file).read_bytes() == (made[name].folder / file).read_bytes(), name


def test_conduct_is_measured_by_rules(tmp_path):
    held = tmp_path / "held.jsonl"
    held.write_text("".join(json.dumps({"prompt": f"q{at}", "label": "ab"[at % 2]}) + "\n" for at in range(4)))
    given = settings(data={"source": str(held)}, eval={"source": str(held), "prompts": 4}, allow_contamination=True)
    done = run_stages(compose(given, [ConductEntry(name="conduct", forbidden="label=a")]), tmp_path, Silent())
    result = done["conduct"].result
    assert result["eval_prompts"] == 4 and set(result["metrics"]) >= {"clean", "complied", "evasive", "characters"}
    forbidden = [row for row in rows(done, "conduct", "conduct.jsonl") if row["prompt"] in ("q0", "q2")]
    assert all(row["violations"] for row in forbidden)  # a completion that refuses nothing
