"""The rollout duel without a GPU: a stand-in for vLLM answers in its side's process."""

import json
import os
import sys
import time
from types import SimpleNamespace

import pytest
import rollout_duel
from rollout_duel import TINY, Rollouts, Side, cache_bytes, cases_of, duel_rollouts, ragged_lengths, rate_ratios

STAND_IN = """
import os, time, types

__version__ = "0"


class SamplingParams:
    def __init__(self, n=1, max_tokens=16, logprobs=None, ignore_eos=False, **more):
        self.n, self.max_tokens, self.logprobs = n, max_tokens, logprobs
        assert ignore_eos


class LLM:
    def __init__(self, **settings):
        assert max(settings["cudagraph_capture_sizes"]) == settings["max_num_seqs"]
        self.seen = set()

    def generate(self, prompts, params, use_tqdm):
        ragged = isinstance(params, list)
        params = params if ragged else [params] * len(prompts)
        assert len(params) == len(prompts)
        # a prompt that was there before would be read from the prefix cache
        assert not self.seen & {tuple(each) for each in prompts}
        self.seen |= {tuple(each) for each in prompts}
        if os.environ.get("STAND_IN") == "raises" and ragged:
            raise ValueError("no blocks left")
        if os.environ.get("STAND_IN") == "dies" and ragged:
            os._exit(3)
        time.sleep(0.02)
        out = lambda each: types.SimpleNamespace(token_ids=[7] * each.max_tokens)
        return [types.SimpleNamespace(outputs=[out(each) for _ in range(each.n)]) for each in params]
"""


@pytest.fixture
def packages(tmp_path):
    folder = tmp_path / "packages"
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text(STAND_IN)
    (folder / "vllm" / "inputs.py").write_text("def TokensPrompt(prompt_token_ids):\n    return prompt_token_ids\n")
    return folder


def job_of(tmp_path):
    cases = cases_of(TINY, "tiny", 0)
    return {"model": str(tmp_path), "cases": cases, "cache_bytes_per_token": 64, "rounds": 2, "seed": 0, "threads": 1}


def answered(tmp_path, packages):
    side = Side("vllm", sys.executable, job_of(tmp_path), tmp_path / "side", packages)
    side.wait_until_ready(60.0)
    return side.measured(60.0)


def test_every_case_is_measured_and_ragged_completions_have_their_own_lengths(tmp_path, packages):
    answer, problem = answered(tmp_path, packages)
    assert problem is None
    tokens = {name: {kind: each["tokens"] for kind, each in kinds.items()} for name, kinds in answer["cases"].items()}
    lengths = ragged_lengths(8, 8, 0)
    assert tokens == {
        "4": {"with_logp": 32, "tokens_only": 32},
        "8": {"with_logp": 64, "tokens_only": 64},
        "8 ragged": {"with_logp": sum(lengths)},
    }
    assert all(each["tokens_per_s"] > 0 for kinds in answer["cases"].values() for each in kinds.values())


@pytest.mark.parametrize(("ending", "said"), [("raises", None), ("dies", "ended with 3")])
def test_what_was_measured_before_a_failure_stays(tmp_path, packages, monkeypatch, ending, said):
    monkeypatch.setenv("STAND_IN", ending)
    answer, problem = answered(tmp_path, packages)
    assert {"4", "8"} <= set(answer["cases"])
    assert (problem is None) == (said is None) and (said or "") in (problem or "")
    if ending == "raises":
        assert answer["cases"]["8 ragged"]["with_logp"] == {"error": "ValueError: no blocks left"}


def test_a_side_measures_nothing_before_its_turn(tmp_path, packages):
    side = Side("vllm", sys.executable, job_of(tmp_path), tmp_path / "side", packages)
    try:
        side.wait_until_ready(60.0)
        assert (tmp_path / "side" / "ready").exists()
        time.sleep(0.3)
        assert not (tmp_path / "side" / "answer.json").exists()
    finally:
        side.end()


def test_a_side_that_cannot_start_is_named_and_the_other_is_measured(tmp_path, monkeypatch):
    """No vLLM at all: the record has whet's numbers, and the failure says what was missing."""

    class Whet:
        name = "whet"

        def __init__(self, *_):
            pass

        def wait_until_ready(self, _):
            pass

        def measured(self, _):
            return {"cases": {"4": {"with_logp": {"tokens_per_s": 5.0}}}}, None

        def end(self):
            pass

    whole = rollout_duel.Side
    monkeypatch.setattr(rollout_duel, "Side", lambda name, *given: (Whet if name == "whet" else whole)(name, *given))
    (tmp_path / "empty").mkdir()
    chosen = SimpleNamespace(
        **{"together": True, "only": None, "peer_path": tmp_path / "empty", "work": tmp_path, "tiny": True},
        **{"rounds": 1, "threads": 1, "seed": 0, "precision": "fp32"},
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([]))
    kept = []
    found, failed = duel_rollouts(chosen, TINY, tmp_path / "work", lambda *given: kept.append(json.dumps(given)))
    assert found["tiny"]["whet"]["cases"]["4"]["with_logp"]["tokens_per_s"] == 5.0
    assert list(failed) == ["rollout tiny: vllm"] and "No module named 'vllm'" in failed["rollout tiny: vllm"]
    assert len(kept) == 3  # after each side, and at the end


def test_lengths_end_by_chance_and_never_beyond_the_budget():
    lengths = ragged_lengths(4000, 512, 1)
    assert max(lengths) == 512 and min(lengths) < 10
    # the mean of a geometric law with chance 1.5 / 512, cut at 512
    assert sum(lengths) / len(lengths) == pytest.approx(512 / 1.5 * (1 - (1 - 1.5 / 512) ** 512), rel=0.05)


def test_cases_of_the_real_models():
    names = [case["name"] for case in cases_of(Rollouts(), "1.5b", 0)]
    assert names == ["256", "1024", "1024 ragged"]
    assert [case["name"] for case in cases_of(Rollouts(), "7b", 0)] == ["256", "1024"]
    assert cache_bytes("7b") == 2 * 2 * 28 * 4 * 128


def test_ratios_need_both_sides():
    record = {"shapes": {"4": "", "8": ""}}
    record["whet"] = {"cases": {"4": {"with_logp": {"tokens_per_s": 6.0}}, "8": {"with_logp": {"error": "no"}}}}
    assert rate_ratios(record) == {"4": {}}
    record["vllm"] = {"cases": {"4": {"with_logp": {"tokens_per_s": 3.0}, "tokens_only": {"tokens_per_s": 4.0}}}}
    assert rate_ratios(record) == {"4": {"with_logp": 2.0, "tokens_only": 1.5}}
