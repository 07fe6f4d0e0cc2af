"""Every example runs, for a few steps, and does what its first line says."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import sys
from pathlib import Path

import pytest

from whet.types import Completion, Prompt

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def steps_of(run):
    found = run.metrics()  # a list where pandas is not installed
    return found if isinstance(found, list) else found.to_dict(orient="records")


def test_own_reward(tmp_path):
    module = example("own_reward")
    run = module.main(tmp_path / "run", steps=2)
    assert run.status == "finished" and run.steps == 2
    for sample in run.samples():
        right = sample["completion"].endswith(f"<answer>{sample['answer']}</answer>")
        assert sample["reward"] == pytest.approx(float(right) - 0.002 * len(sample["completion"]))


def test_a_reward_of_trl(tmp_path):
    run = example("trl_reward").main(tmp_path / "run", steps=2)
    assert [set(sample["parts"]) for sample in run.samples()] == [{"accuracy_reward"}] * len(run.samples())
    for sample in run.samples():
        found = re.search(r"<answer>(.*?)</answer>", sample["completion"])
        assert sample["reward"] == float(found is not None and found[1] == sample["answer"])


def test_a_chain_of_runs(tmp_path):
    imitated, preferred, rewarded = example("sft_dpo_grpo").main(tmp_path, steps=1)
    assert [run.method for run in (imitated, preferred, rewarded)] == ["sft", "dpo", "grpo"]
    assert preferred.config["model"]["name"] == str(imitated.folder)
    assert rewarded.config["model"]["name"] == str(preferred.folder)


def test_a_reward_model_is_a_reward(tmp_path):
    model, policy = example("reward_model").main(tmp_path, steps=1)
    assert model.method == "rm" and policy.status == "finished"
    rewards = {sample["reward"] for sample in policy.samples()}
    assert len(rewards) > 2 and not rewards <= {0.0, 1.0}  # scores of a network, not of a rule


def test_ppo_has_a_critic(tmp_path):
    run = example("ppo_critic").main(tmp_path / "run", steps=2)
    assert any(math.isfinite(step["critic_explains"]) for step in steps_of(run))


def test_lora_trains_few_weights(tmp_path):
    run = example("lora").main(tmp_path / "run", steps=2)
    assert run.config["model"]["lora"]["rank"] == 8
    assert any("rank 8" in text for text in run.summary["facts"].values())


def played(said, seed=3, **settings):
    """What the game says to each guess, and the hidden digit."""
    game = example("guessing").Guessing(**settings)
    game.start(Prompt("game", (), meta={"seed": seed}))
    return [game.step(Completion(f"<answer>{guess}</answer>")) for guess in said], game.hidden


def test_the_guessing_game():
    _, hidden = played([], guesses=3)
    found, _ = played([0, 9, hidden], guesses=3)
    assert [each.messages[0]["content"] for each in found[:2]] == ["higher", "lower"] and found[2] == 1.0
    assert found[1].state == "nothing, higher than 0, lower than 9"
    assert played([0, 9])[0][1] == 0.0
    assert played(["2 2"])[0] == [0.0]


@pytest.mark.parametrize(("highest", "guesses"), [(3, 2), (7, 3)])
def test_halving_always_wins_the_guessing_game(highest, guesses):
    for seed in range(30):
        low, high, said = 1, highest, []
        for _ in range(guesses):
            said.append((low + high) // 2)
            answer = played(said, seed, highest=highest, guesses=guesses)[0][-1]
            if answer == 1.0:
                break
            if answer.messages[0]["content"] == "higher":
                low = said[-1] + 1
            else:
                high = said[-1] - 1
        assert answer == 1.0


def test_a_tracker_sees_every_step(tmp_path, capsys):
    path = tmp_path / "tracked.jsonl"
    run = example("tracker").main(tmp_path / "run", steps=2, path=path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert [line["reward/total"] for line in lines] == [step["reward"] for step in steps_of(run)]
    assert "step 2/2" in capsys.readouterr().out  # beside the console, not instead of it


def test_pass_at_k():
    result = example("pass_at_k").main(samples=2)
    assert 0 < result["pass@1"] < result["pass@2"] <= 1
    assert len(result.completions) == 2 * result["prompts"]


def test_the_list_of_examples_is_complete():
    listed = set(re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text()))
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert files <= listed


def test_the_notebook_runs_and_shows_progress(tmp_path):
    reason = "needs the notebook extra: pip install -c constraints.txt -e '.[notebook]'"
    nbformat = pytest.importorskip("nbformat", reason=reason)
    nbclient = pytest.importorskip("nbclient", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    (tmp_path / "problems.jsonl").write_text((EXAMPLES / "problems.jsonl").read_text())
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    training, card, metrics, evals, plot, panels, both, _, table, result = cells
    (progress,) = [
        each for each in training.outputs if each.output_type == "display_data"
    ]  # one output that was kept up to date, not a line per step
    assert "step 4/4" in progress["data"]["text/html"] and "finished" in progress["data"]["text/html"]
    assert "<svg" in card.outputs[0]["data"]["text/html"]
    assert "<table" in metrics.outputs[0]["data"]["text/html"] and "<table" in evals.outputs[0]["data"]["text/html"]
    assert "<svg" in plot.outputs[0]["data"].get("image/svg+xml", plot.outputs[0]["data"].get("text/html", ""))
    shown = [each.outputs[0]["data"]["image/svg+xml"] for each in (panels, both)]
    assert all(f">{name}</text>" in shown[0] for name in ("kl", "entropy", "eval/accuracy"))
    assert ">notebook-run</text>" in shown[1] and ">notebook-run-1</text>" in shown[1]
    assert "<table" in table.outputs[0]["data"]["text/html"] and (tmp_path / "samples.csv").read_text().count("\n") > 8
    assert sum(len(json.dumps(cell.outputs)) for cell in cells) < 400_000  # a saved notebook stays small
    assert "pass@4" in result.outputs[0]["data"]["text/plain"]


def test_tools_of_ones_own():
    import asyncio

    turns = [
        "<tool_call>tide('Brest', 'low')</tool_call>",
        '<tool_call>write_line("a")</tool_call><tool_call>read_lines()</tool_call>',
        "<tool_call>tide(port='Rome')</tool_call>",
        "done",
    ]
    assert asyncio.run(example("tools").main(turns)) == [
        "11:24",
        "1",
        '["a"]',
        "error: tide: ValueError: no tides are known for Rome; there are: Brest, Dover",
    ]
