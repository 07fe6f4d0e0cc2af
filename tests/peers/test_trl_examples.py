"""TRL's documented examples and commands run through whet, from a cache of the hub with the hub switched off."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers.peer import PACKAGES, PeerMissing, install

pytestmark = pytest.mark.peers
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# (method, steps): three epochs of three rows, one prompt at a time in GRPO; in RLOO they do not fill a batch
EXPECTED = {
    "quickstart: SFT": ("sft", 3),
    "quickstart: GRPO": ("grpo", 9),
    "quickstart: DPO": ("dpo", 3),
    "quickstart: reward model": ("rm", 3),
    "kto_trainer": ("kto", 3),
    "rloo_trainer": ("rloo", 1),
    "dpo_trainer: PEFT": ("dpo", 3),
    "grpo_trainer: several tasks": ("grpo", 12),
}


def environment(home):
    """whet's own packages come first: of TRL's folder only what is not there is used."""
    try:
        paths = (ROOT / "src", ROOT, install(PACKAGES["trl"]))
    except PeerMissing as reason:
        pytest.skip(str(reason))
    own = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **own, "PYTHONWARNINGS": "ignore"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def answers(home, tmp_path_factory):
    command = [sys.executable, str(HERE / "trl_examples_side.py"), str(tmp_path_factory.mktemp("runs"))]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_documented_examples_train_as_they_stand(answers):
    trained = {name: (answers[name]["method"], answers[name]["steps"]) for name in EXPECTED}
    assert trained == EXPECTED
    assert {answers[name]["status"] for name in EXPECTED} == {"finished"}
    assert not any(answers[name]["unmapped"] for name in EXPECTED)


def test_every_documented_kind_of_reward_is_one(answers):
    names = ("length_func", "format_reward_func", "async_reward_func", "reward_func")
    assert set(answers["rewards"]["recorded"]) >= {*(f"reward/{name}" for name in names), "logged/accuracy"}
    # the example's rows say `code` where its function asks for `coding`: nothing scores them, and the run goes on
    assert answers["grpo_trainer: several tasks"]["recorded"] == ["reward/math_reward_func"]


def test_peft_loads_what_was_trained_by_a_lora_config_of_its_own(answers):
    assert answers["dpo_trainer: PEFT"]["lora"] == 8
    assert answers["peft"] == ["PeftModelForCausalLM", "Qwen/Qwen3-0.6B"]


def whet(home, folder, *words):
    command, own = [sys.executable, "-m", "whet", *words], environment(home)
    done = subprocess.run(command, env=own, cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_documented_command_is_translated_and_trains_from_the_cache(answers, home, tmp_path):
    quickstart = (
        "trl dpo --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct \\\n --dataset_name trl-lib/ultrafeedback_binarized"
    )
    whet(home, tmp_path, "migrate", quickstart, "-o", "trl.toml")
    printed = whet(home, tmp_path, "train", "dpo", "--config", "trl.toml", "--folder", "run")
    assert "hub:trl-lib/ultrafeedback_binarized" in printed and "step 2/2" in printed and "finished" in printed


def test_a_missing_name_says_what_is_missing(answers, home, tmp_path):
    words = ("train", "sft", "--model", "Qwen/Qwen3-0.6B", "--data", "hub:trl-lib/absent", "--folder", "run")
    own = environment(home)
    done = subprocess.run([sys.executable, "-m", "whet", *words], env=own, cwd=tmp_path, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("whet: ")]
    assert done.returncode == 2 and len(lines) == 1 and "hub:trl-lib/absent: the dataset did not load" in lines[0]
