"""What each way of training needs, and what it says it optimises."""

from whet.training.assembly.assembly import describe
from whet.training.config import resolved


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
