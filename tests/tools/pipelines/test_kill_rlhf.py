"""RLHF killed with kill -9, twice, and resumed: the very bytes of an unbroken one."""

import signal

import pytest

from tests.support.commands import started
from tests.tools.pipelines.test_kill_pipeline import content, wait_for
from whet.settings.layers import from_settings
from whet.tools.pipelines.runner import resume_pipeline, run_pipeline

SETTINGS = [
    "prompts=20",
    "completions=4",
    "held_out_share=0.3",
    "data.difficulty=1",
    "judged_prompts=3",
    "judged_completions=2",
    "steps=2",
    "most_n=3",
    "compare=ppo,best_of_n",
    "sft.batch.rows_per_step=4",
    "reward_model.batch.rows_per_step=4",
    "train.ppo.batch.prompts_per_step=2",
    "train.ppo.batch.group_size=2",
    "sampling.max_new_tokens=24",
    "report.save_every=1",
    "model.threads=1",
    "seed=3",
]


def same(folder):
    """All but the ledger of rewards, which names the reward model's folder and the time."""
    return {name: digest for name, digest in content(folder).items() if not name.endswith("rewards.jsonl")}


@pytest.mark.slow
def test_killed_and_resumed_comes_to_the_same_bytes(tmp_path):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    run = run_pipeline("rlhf", from_settings([*SETTINGS, f"folder={unbroken}"]))
    assert run.status == "finished" and len(run.stages) == 11

    words = [word for each in SETTINGS for word in ("--set", each)]
    process = started("pipeline", "rlhf", "--folder", str(broken), *words)
    for pattern in ("*ppo-train/run/metrics.jsonl", "*best_of_n-judged"):
        wait_for(process, broken, pattern)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, process.stderr
        assert not list(broken.glob("*compare/stage.json"))
        process = started("resume", str(broken))
    assert process.wait() == 0, process.stderr
    assert "done before" in process.stdout

    assert resume_pipeline(broken).status == "finished"
    assert same(broken) == same(unbroken)
    assert not list(broken.glob("*/*-parts"))
