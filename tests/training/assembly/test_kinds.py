"""A kind of training is one entry, and every config class has one."""

from typing import get_args

from whet.training.assembly.kinds import KINDS, kind_of
from whet.training.config import Config, resolved


def test_every_config_has_its_kind():
    assert set(KINDS) == set(get_args(Config))
    assert len({kind.name for kind in KINDS.values()}) == len(KINDS)


def test_what_each_kind_needs():
    def needs(method, **layers):
        config = resolved(method, layers)
        kind = kind_of(config)
        assert type(config) is kind.config
        return kind.draws_completions(config), kind.scores_eval_prompts(config)

    assert needs("grpo") == (True, True)
    assert needs("sft") == (False, True)
    assert needs("dpo") == (False, True)
    assert needs("dpo", preference={"online": 4}) == (True, True)
    assert needs("dpo", data={"source": "pairs.jsonl"}) == (False, False)
    assert needs("rm") == (False, False)


def test_each_kind_says_what_it_optimises():
    titles = {method: kind_of(config := resolved(method, {})).describe(config, ()) for method in ("grpo", "sft", "dpo")}
    assert [title for title, _ in titles.values()] == ["GRPO", "SFT", "DPO"]
    assert all(len(lines) >= 3 for _, lines in titles.values())
