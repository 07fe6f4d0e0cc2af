"""What each way of training needs, and what it says it optimises."""

import json

import pytest

from whet.api.evaluation import evaluation_config
from whet.reward.mathematics.verifier import POOL
from whet.reward.sections import RewardPartSection, RewardSection
from whet.threads import num_cores
from whet.training.assembly.assembly import assemble, describe
from whet.training.assembly.fingerprints import questions_digest, reward_file_digests
from whet.training.assembly.prompts import load_prompts
from whet.training.assembly.sft import load_demonstrations
from whet.training.config import resolved
from whet.types import WhetError


def test_what_each_way_of_training_needs():
    def needs(method, **layers):
        config = resolved(method, layers)
        return config.draws_completions(), config.scores_eval_prompts()

    assert needs("grpo") == (True, True)
    assert needs("sft") == (False, True)
    assert needs("sft", data={"source": "rows.jsonl"}) == (False, False)
    assert needs("dpo") == (False, True)
    assert needs("dpo", preference={"online": 4}) == (True, True)
    assert needs("dpo", data={"source": "pairs.jsonl"}) == (False, False)
    assert needs("rm") == (False, False)


def test_each_way_of_training_says_what_it_optimises():
    described = [describe(resolved(method, {}), ()) for method in ("grpo", "sft", "dpo", "rm")]
    assert [title for title, _ in described] == ["GRPO", "SFT", "DPO", "Reward model"]
    assert all(len(lines) >= 3 for _, lines in described)


def test_a_reward_model_says_which_token_is_scored():
    def said(method, **layers):
        return describe(resolved(method, layers), ())[1][-1]

    assert said("rm") == "  - scored at the last token of the conversation"
    assert said("prm") == "  - scored at the last token of each step"
    outcomes = said("orm", reward_model={"outcome_at": "every_token"})
    assert outcomes.startswith("  - learned at every token of a completion, scored at the last token")


def test_files_of_rewards_are_known_by_what_they_hold(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def right(prompt, completion): return 1.0\n")
    sections = [
        RewardSection(parts=tuple(RewardPartSection(reward=name) for name in names))
        for names in ((f"{file}:right", "exact_answer"), (f"{file}:other", f"{tmp_path}/gone.py:right"))
    ]
    before = reward_file_digests(sections)
    assert list(before) == [f"reward {file}"]
    file.write_text("def right(prompt, completion): return 0.0\n")
    assert reward_file_digests(sections) != before


def test_what_rewards_can_begin_goes_on_while_the_model_is_read(monkeypatch):
    begun = []

    def load_runtime(*_):
        begun.append("model")
        raise InterruptedError

    monkeypatch.setattr(POOL, "start_behind", begun.append)
    monkeypatch.setattr("whet.training.assembly.assembly.load_runtime", load_runtime)
    for name, settings in (("math_answer", {}), ("math_answer", {"tolerance": 0.1}), ("exact_answer", {})):
        reward = RewardSection(parts=(RewardPartSection(reward=name, settings=settings),))
        with pytest.raises(InterruptedError):
            assemble(resolved("grpo", {"reward": reward}))
    processes = max(1, num_cores() // 4)
    assert begun == [processes, "model", processes, "model", "model"]


ROWS = {
    "sft": {"completion": "2"},
    "dpo": {"chosen": "yes it is", "rejected": "no"},
    "rm": {"chosen": "yes it is", "rejected": "no"},
    "grpo": {"answer": "2"},
}


@pytest.mark.parametrize("method", ROWS)
def test_an_evaluation_asks_as_many_rows_as_it_was_told_evenly_spread(method, tmp_path):
    for name, start, count in (("train", 100, 8), ("held", 0, 12)):
        rows = [{**ROWS[method], "prompt": f"1+{start + number}"} for number in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def built(prompts):
        sections = {"data": {"source": str(tmp_path / "train.jsonl")}, "model": {"device": "cpu", "threads": 1}}
        sections["eval"] = {"source": str(tmp_path / "held.jsonl"), "prompts": prompts}
        reward = {"reward": {"parts": [{"reward": "exact_answer"}]}} if method == "grpo" else {}
        return assemble(resolved(method, {**sections, **reward}))

    some, whole, none = built(4), built(200), built(0)
    assert "4 of 12 held out" in some.facts["data"] and "12 held out" in whole.facts["data"]
    assert "held out" not in none.facts["data"]
    measured = [assembly.trainer.evaluate() for assembly in (some, whole, none)]
    assert measured[0] and measured[1] and not measured[2]
    if method != "grpo":
        assert measured[0] != measured[1]  # other rows
    assert [assembly.eval_size for assembly in (some, whole, none)] == ([0, 0, 0] if method == "sft" else [4, 12, 0])


def test_a_limit_cuts_what_is_trained_on_and_no_eval_file(tmp_path):
    source, asked = tmp_path / "rows.jsonl", tmp_path / "eval.jsonl"
    for path, count in ((source, 5), (asked, 7)):
        rows = [{"prompt": f"{number}?", "completion": f"{number}", "answer": f"{number}"} for number in range(count)]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    layers = {"data": {"source": str(source), "limit": 3}, "eval": {"source": str(asked)}}
    policy = resolved("grpo", layers, {"reward": {"parts": [{"reward": "exact_answer"}]}})
    assert [len(load_prompts(policy, evaluation)) for evaluation in (False, True)] == [3, 7]
    questions = load_prompts(policy, evaluation=True)
    others = (questions[:6], questions[::-1], load_prompts(policy, evaluation=False), [])
    assert len({questions_digest(asked) for asked in (questions, list(questions), *others)}) == 5
    assert [len(rows) for rows in load_demonstrations(resolved("sft", layers))] == [3, 7]
    with pytest.raises(WhetError, match=r"data\.limit has no effect on an evaluation: .*; give eval\.prompts"):
        evaluation_config("whetstone", str(asked), {"data": {"limit": 3}})
