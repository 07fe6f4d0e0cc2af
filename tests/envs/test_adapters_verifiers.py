"""Environments of verifiers: a small stand-in here, and the package itself, in both generations, under `-m peers`.

The package lives in a virtual environment of its own, beside this one's packages; `WHET_PEERS` says where it is kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import types
import venv
from pathlib import Path

import pytest

from tests.support.packages import needs
from tests.support.scripted import ScriptedEngine, tool_tokenizer
from whet.data.seeds import SEED
from whet.envs.sections import EnvSection, env_defaults
from whet.envs.serve.agent import AgentRunner
from whet.rollout.episode_runner import EpisodePlan
from whet.types import Prompt, Sampling, WhetError

ROOT = Path(__file__).parents[2]
SIDES = Path(__file__).parent / "sides"
CLASSIC, TASKSETS = "verifiers==0.1.14", "verifiers==0.4.0"


class StandIn:
    """As much of an environment of 0.1 as the adapter touches: a dataset, and a rollout with its own loop."""

    requires_group_rollouts = False

    def get_dataset(self):
        return [{"question": f"{number}?", "answer": str(number)} for number in range(20)]

    async def run_rollout(self, task, client, model, sampling):
        messages = [{"role": "user", "content": task["question"]}]
        answer = await client.chat.completions.create(model=model, messages=messages)
        said = answer.choices[0].message.content
        error = {"error_chain_str": "ToolError -> ValueError"} if said == "broken" else None
        return {"reward": float(said == task["answer"]), "metrics": {"length": len(said), "text": said}, "error": error}


@pytest.fixture
def stand_in(monkeypatch):
    """The package and one environment, `numbers`, in the places where the adapter looks for them."""
    package, clients = types.ModuleType("verifiers"), types.ModuleType("verifiers.clients")
    package.load_environment, package.__version__, package.__path__ = lambda name, **given: StandIn(), "0.1", []
    clients.OpenAIChatCompletionsClient = lambda client: client
    numbers = types.ModuleType("asked_numbers")
    numbers.load_environment = package.load_environment
    for name, module in (("verifiers", package), ("verifiers.clients", clients), ("asked_numbers", numbers)):
        monkeypatch.setitem(sys.modules, name, module)


@needs("fastapi", "uvicorn")
def test_a_rollout_is_an_episode_with_the_rubrics_reward(stand_in):
    tokenizer = tool_tokenizer()
    said = {"3": "3", "4": "no", "5": "broken"}
    engine = ScriptedEngine(tokenizer, lambda prompt, request: said[prompt.split("<|user|>")[1][0]])
    ends = (tokenizer.eos_token_id,)
    runner = AgentRunner(engine, tokenizer, "verifiers:asked-numbers", context=512, end_tokens=ends)
    prompts = [Prompt(f"seed-{seed}", (), "", meta={SEED: seed}) for seed in (3, 4, 5, 20)]
    try:
        groups = runner.play(EpisodePlan(prompts, [(1,)] * 4, 1, Sampling(50), (1,)))
        notes = runner.take_notes()
    finally:
        runner.close()
    samples = [sample for group in groups for sample in group]
    assert [sample.returned for sample in samples] == [1.0, 0.0, None, None]
    assert samples[0].metrics == {"length": 1.0}
    assert samples[0].tokens.tolist() == engine.samples[0].tokens.tolist()
    assert sorted(line.partition(": ")[2] for line in notes.failures) == [
        "its function raised: RuntimeError: verifiers: ToolError -> ValueError",
        "its function raised: ValueError: the row has the seed 20; expected the number of a task, 0 to 19",
    ]


def test_the_data_are_all_of_its_tasks(stand_in):
    section = {"name": "verifiers:asked-numbers", "settings": {}}
    assert env_defaults({"env": section})["data"] == {"source": "seeds:20"}
    assert env_defaults({"env": section, "data": {"source": "seeds:10"}})["data"] == {"source": "seeds:10"}
    assert EnvSection(name="verifiers:asked-numbers", at_once=4).player == "verifiers:asked-numbers"
    with pytest.raises(ValueError, match="brings its own tools"):
        EnvSection(name="verifiers:asked-numbers", tools=("calculator",))


def test_what_cannot_be_loaded_is_one_line(stand_in, monkeypatch):
    from whet.envs.adapters.verifiers import num_tasks

    for name, words in {
        "verifiers:": "names none",
        "verifiers:no-such-thing": "no module 'no_such_thing'",
    }.items():
        with pytest.raises(WhetError, match=words):
            num_tasks(name, {})
    monkeypatch.delattr(sys.modules["verifiers"], "load_environment")
    with pytest.raises(WhetError, match=r"is written for verifiers 0.1, and 0.1 is installed"):
        num_tasks("verifiers:asked-numbers", {})
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(WhetError, match="needs the package 'verifiers'; run pip install"):
        num_tasks("verifiers:asked-numbers", {})


def python_beside(package: str) -> str:
    """The interpreter of an environment with the package on top of this one's; skips where pip cannot get it."""
    cache = Path(os.environ.get("WHET_PEERS") or Path.home() / ".cache" / "whet-peers")
    folder = cache / f"beside-{package.replace('==', '-')}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        # verifiers starts servers of tools with paths of their own: what they import has to be installed, as it were
        (own / "beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n{SIDES}")
        import torch

        pinned = f"torch=={torch.__version__.partition('+')[0]}"
        done = subprocess.run([python, "-m", "pip", "install", "-q", package, pinned], capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip said nothing"]
            pytest.skip(f"{package} could not be installed: {lines[-1]}")
        (folder / "complete").touch()
    return str(python)


def run_beside(package: str, *command: str, folder: Path = SIDES) -> str:
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT), str(SIDES)))
    kept = {name: value for name, value in os.environ.items() if name not in ("HTTP_PROXY", "http_proxy")}
    environment = {**kept, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [python_beside(package), *command], env=environment, cwd=folder, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


ONE, TWO, THREE = (["prompt", *["assistant", "user"] * turns, "assistant"] for turns in range(3))
CALL = ["prompt", "assistant", "tool", "assistant"]
KINDS = {
    "one turn": (CLASSIC, "classic-environments", {"kind": "one_turn"}, "", [1.5, 0.5], ONE),
    "several turns": (CLASSIC, "classic-environments", {"kind": "several_turns"}, "", [3.0, 3.0], THREE),
    "tools": (CLASSIC, "classic-environments", {"kind": "with_tools"}, "add", [1.0, 0.0], CALL),
    "a taskset": (TASKSETS, "taskset-sums", {}, "", [2.0, 0.0], ONE),
    "a taskset of turns": (TASKSETS, "taskset-turns", {}, "", [2.0, 0.0], THREE),
    "a taskset of tools": (TASKSETS, "taskset-tools", {}, "adding_add", [1.0, 0.0], CALL),
}


@pytest.mark.peers
@pytest.mark.parametrize("kind", KINDS)
def test_an_environment_of_verifiers_plays_with_exact_tokens(kind):
    package, name, settings, tool, rewards, turns = KINDS[kind]
    printed = run_beside(
        package, str(SIDES / "verifiers_play.py"), f"verifiers:{name}", json.dumps(settings), *([tool] if tool else [])
    )
    got = json.loads(printed.splitlines()[-1])
    assert got["failures"] == [] and got["tasks"] == 40
    assert [episode["returned"] for episode in got["episodes"]] == rewards
    assert [episode["turns"] for episode in got["episodes"]] == [turns, turns]
    assert all(episode["exact"] for episode in got["episodes"])
    if turns is CALL:
        assert [episode["texts"] for episode in got["episodes"]] == [["6"], ["6"]]


@pytest.mark.peers
def test_a_run_trains_on_an_environment_of_verifiers(tmp_path):
    command = ["train", "grpo", "--env", "verifiers:classic-environments", "--steps", "2"]
    smaller = ["batch.prompts_per_step=2", "batch.group_size=2", "eval.prompts=2", "sampling.max_new_tokens=8"]
    settings = [part for setting in smaller for part in ("--set", setting)]
    run_beside(CLASSIC, "-m", "whet", *command, *settings, "--set", f"folder={tmp_path}", folder=SIDES)
    (run,) = tmp_path.glob("**/metrics.jsonl")
    rows = [json.loads(line) for line in run.read_text().splitlines()]
    assert [row["step"] for row in rows][-1] == 2 and "is_right" in json.dumps(rows)
