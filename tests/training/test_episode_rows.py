"""Methods of episodes, through the command line, on an environment with turns, states and two roles."""

import json
import shutil
from statistics import fmean

import pytest
from typer.testing import CliRunner

import whet
from tests.support.for_every import for_every
from whet.cli import app
from whet.data.packing import number_of
from whet.training.rl_trainer import RLTrainer
from whet.types import WhetError

# who moves first earns one point more; the policy ends an episode by what it writes, and each turn earns something
ENVIRONMENT = """
import itertools

import whet

MADE = itertools.count()


class Seats:
    def __init__(self):
        self.role = ("first", "second")[next(MADE) % 2]
        self.turns = 0

    def start(self, prompt):
        opening = [{"role": "user", "content": prompt.question()}]
        return whet.Opening(opening, state="open", role=self.role)

    def step(self, completion):
        self.turns += 1
        earned = 0.25 * (len(completion) % 3)
        if len(completion) % 4 == 0 or self.turns == 3:
            return whet.StepResult(reward=earned + (self.role == "first"), done=True)
        told = {"role": "user", "content": f"you wrote {len(completion) % 5}"}
        return whet.StepResult((told,), earned, state=f"turn {self.turns} parity {len(completion) % 2}")
"""
SMALL = {
    "env.max_turns": 3,
    "sampling.max_new_tokens": 10,
    "batch.prompts_per_step": 3,
    "batch.group_size": 4,
    "data.count": 24,
    "eval.prompts": 0,
    "model.threads": 1,
    "report.save_every": 2,
    "report.keep_checkpoints": 9,
    "report.samples_per_step": 100,
    "optimizer.learning_rate": 3e-4,
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "seats.py").write_text(ENVIRONMENT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(folder, method, *words, steps=2):
    """Run the command; the lines of its metrics and of its samples."""
    settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    command = ["train", method, "--env", "seats.py:Seats", "--steps", str(steps), "--folder", str(folder)]
    done = CliRunner().invoke(app, [*command, *settings, *words])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return lines_of(folder)


def lines_of(folder):
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return [line for line in metrics if "metrics" in line], samples


def memory_of(folder, step):
    state = json.loads((folder / "checkpoints" / f"step-{step:06d}" / "state.json").read_text())
    return state["state"]["trainer"]["memory"]


ROWS = {
    "echo": (),
    "gigpo": (),
    "rloo_turns": (),
    "rloo_tree": (),
    "tree_grpo": (),
    "grpo_process": ("--reward", "environment"),
    "by turn index": ("--set", "objective.baseline=turn_index_rewards"),
    "mean over turns": ("--set", "objective.aggregate=turn_mean", "--set", "objective.select=finished_turns"),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_method_of_turns_trains_on_an_environment(here, row):
    words, method = ROWS[row], row if " " not in row else "rloo_turns"
    metrics, samples = trained(here / "run", method, *words)
    assert len(metrics) == 2 and all(line["metrics"]["gradient_norm"] > 0 for line in metrics)
    assert metrics[0]["counts"]["observed_tokens"] > 0 and metrics[0]["counts"]["turns"] > 6
    # the trainer reads the very tokens that were sampled, turn by turn
    assert all(line["metrics"]["sampler_gap_max"] < 1e-3 for line in metrics)
    # the environment's rewards of the turns are the episode's
    for sample in samples:
        turns = [turn for turn in sample["turns"] if turn["role"] == "assistant"]
        assert sample["role"] in ("first", "second") and turns[0]["state"] == "open"
        assert sample["reward"] == pytest.approx(sum(turn["reward"] for turn in turns))
    assert len({len(sample["turns"]) for sample in samples}) > 1


BRANCHING = {
    "turns": (),
    "entropy": ("--set", "env.branching=entropy", "--set", "env.branch_entropy=2"),
}


@pytest.mark.parametrize("rule", ["turns", pytest.param("entropy", marks=pytest.mark.slow)])
def test_a_resumed_run_whose_episodes_branch_leaves_the_same_bytes(here, rule):
    metrics, samples = trained(here / "whole", "rloo_tree", *BRANCHING[rule], steps=3)
    for line in metrics:
        counts = line["counts"]
        assert 12 == counts["episodes"] < counts["samples"] <= 48 and counts["shared_tokens"] > 0
        assert line["metrics"]["gradient_norm"] > 0 and line["metrics"]["sampler_gap_max"] < 1e-3
    leaves = {}
    for sample in samples:
        leaves.setdefault((sample["step"], sample["episode"]), []).append(sample)
    several = [branches for branches in leaves.values() if len(branches) > 1]
    assert several and len({len(branches) for branches in leaves.values()}) > 1
    for branches in several:  # one turn is shared, and siblings went on from it
        first = [next(turn for turn in branch["turns"] if turn["role"] == "assistant") for branch in branches]
        assert {turn["node"] for turn in first} == {0} and len({turn["text"] for turn in first}) == 1
    assert any(len({branch["reward"] for branch in branches}) > 1 for branches in several)
    shutil.copytree(here / "whole", here / "broken")
    whet.resume(here / "broken", steps=3, checkpoint="step-000002", console=False)
    weights = [(here / name / "checkpoints" / "step-000003" / "model.safetensors") for name in ("whole", "broken")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    again, written = lines_of(here / "broken")
    strip = [[{key: each[key] for key in each if key != "seconds"} for each in found] for found in (samples, written)]
    assert strip[0] == strip[1] and [line["metrics"] for line in again] == [line["metrics"] for line in metrics]


SLOW = ("gigpo", "rloo_turns", "rae", "rloo_tree")


@pytest.mark.parametrize("method", ["echo", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_how_a_batch_of_episodes_is_cut_does_not_matter(here, method):
    found = []
    for number, tokens in enumerate((40, 10_000)):
        words = ("--set", f"batch.micro_batch_tokens={tokens}")
        metrics, _ = trained(here / str(number), method, *words, steps=1)
        found.append(metrics[0]["metrics"])
    for name in ("loss", "gradient_norm", "surrogate", "entropy"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-4, abs=1e-7), name


def test_what_the_environment_wrote_is_a_lesson_of_its_own(here):
    first = {}
    for name, words in {"with": (), "without": ("--set", "objective.imitate=none")}.items():
        metrics, samples = trained(here / name, "echo", *words, steps=1)
        first[name] = metrics[0]["metrics"], [sample["completion"] for sample in samples]
    (imitates, written), (plain, same) = first.values()
    assert written == same  # the first step's episodes are drawn before anything is learned
    assert imitates["loss"] > plain["loss"] and imitates["gradient_norm"] != plain["gradient_norm"]
    # nothing that is said about the policy is about tokens that it only read
    for name in ("entropy", "sampler_gap", "ratio", "kl_old", "surrogate", "reweighted"):
        assert imitates[name] == pytest.approx(plain[name], abs=1e-6), name


def test_roles_have_a_running_mean_each_that_a_checkpoint_keeps(here, monkeypatch):
    metrics, samples = trained(here / "whole", "rae", steps=3)
    assert metrics[0]["metrics"]["reward_as_first"] > metrics[0]["metrics"]["reward_as_second"] + 0.5
    expected = dict.fromkeys(("first", "second"), 0.0)
    for step in range(1, 4):
        for role in expected:
            rewards = [each["reward"] for each in samples if (each["step"], each["role"]) == (step, role)]
            share = 0.95 ** len(rewards)
            expected[role] = share * expected[role] + (1 - share) * fmean(rewards)
    found = memory_of(here / "whole", 3)
    assert found == pytest.approx({f"role/{number_of(role)}": mean for role, mean in expected.items()})
    shutil.copytree(here / "whole", here / "broken")
    whet.resume(here / "broken", steps=3, checkpoint="step-000002", console=False)
    assert memory_of(here / "broken", 3) == found != memory_of(here / "broken", 2)
    weights = [(here / name / "checkpoints" / "step-000003" / "model.safetensors") for name in ("whole", "broken")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    again, written = lines_of(here / "broken")
    strip = [[{key: each[key] for key in each if key != "seconds"} for each in found] for found in (samples, written)]
    assert strip[0] == strip[1]
    assert [line["metrics"] for line in again] == [line["metrics"] for line in metrics]
    # it agrees because the memory came back: without it it would not
    shutil.copytree(here / "whole", here / "forgetful")
    restore = RLTrainer.restore
    monkeypatch.setattr(
        RLTrainer, "restore", lambda trainer, state, *rest: restore(trainer, {**state, "memory": {}}, *rest)
    )
    whet.resume(here / "forgetful", steps=3, checkpoint="step-000002", console=False)
    assert memory_of(here / "forgetful", 3) != found
    forgetful = here / "forgetful" / "checkpoints" / "step-000003" / "model.safetensors"
    assert forgetful.read_bytes() != weights[0].read_bytes()


@for_every(
    [
        (("echo",), "objective.imitate=observed is about episodes"),
        (("rae",), "objective.baseline=running_role_mean is about episodes"),
        (("rloo_turns",), "objective.baseline=turn_return is about episodes"),
        (("grpo", "--set", "objective.select=finished_turns"), "or objective.select=finished"),
        (("rloo_tree",), "env: branching has no effect without an environment; give env.name, env.tools or env.agent"),
        (("grpo", "--agent", "true", "--set", "env.branching=turns"), "true plays by itself; let it ask for several"),
        (("grpo", "--tool", "calculator", "--set", "env.leaves=3"), "leaves has no effect with branching=none"),
        (
            ("rloo_tree", "--tool", "python"),
            "tools python cannot branch: the tool python may keep what",
        ),
        (
            ("rloo_tree", "--tool", "calculator", "--set", "env.branch_chance=1"),
            "branch_chance has no effect with branching=turns; give branching=entropy",
        ),
        (("rloo_tree", "--tool", "calculator", "--set", "env.max_turns=1"), "nothing branches behind a last turn"),
        (("grpo_process", "--reward", "exact_answer"), "or an environment that rewards turns"),
    ]
)
def test_a_method_of_episodes_without_an_environment_is_one_line(words, said):
    error = CliRunner().invoke(app, ["train", *words]).exception
    assert isinstance(error, WhetError) and said in str(error) and "\n" not in str(error)


def test_no_sandbox_is_made_ready_for_a_run_that_is_refused(monkeypatch):
    episodes = []
    monkeypatch.setattr("whet.envs.tools.find.warm_sandboxes", lambda sources, count: episodes.append(count))
    refused = CliRunner().invoke(app, ["train", "rloo_tree", "--tool", "python"]).exception
    assert "cannot branch" in str(refused) and episodes == [0]


def test_the_pages_of_methods_say_what_they_need():
    for name in ("echo", "rae", "rloo_turns", "rloo_tree", "tree_grpo"):
        shown = CliRunner().invoke(app, ["explain", name]).output
        assert f"whet train {name} --env file.py:Class" in shown
    assert "whet train gigpo --env" not in CliRunner().invoke(app, ["explain", "gigpo"]).output
    listed = {line.partition(" ")[0] for line in CliRunner().invoke(app, ["algorithms"]).output.splitlines()}
    assert {"echo", "rae", "rloo_turns", "gigpo"} <= listed
