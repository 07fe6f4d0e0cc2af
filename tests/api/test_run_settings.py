"""Settings that a script or a notebook asks of a run: epochs, system prompts, templates, references, running twice."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

import whet
from tests.support.commands import finished
from whet.registry import _REGISTRIES
from whet.types import WhetError

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(4) for b in range(4)]
SMALL: dict[str, Any] = {
    "batch": {"prompts_per_step": 4, "group_size": 2},
    "sampling": {"max_new_tokens": 4},
    "model": {"threads": 1},
}
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def trained(folder: Path, method: str = "grpo", *, config: Any = SMALL, **arguments: Any) -> whet.Run:
    reward = {} if method == "sft" else {"reward": "exact_answer"}
    given = {"data": ROWS, "console": False, "folder": str(folder), **reward, **arguments}
    return whet.train(method, config=config, **given)


def refused(folder: Path, **arguments: Any) -> str:
    with pytest.raises(WhetError) as raised:
        trained(folder, **arguments)
    return str(raised.value)


def test_epochs_become_steps_and_a_stream_gives_what_the_run_needs(tmp_path: Path) -> None:
    run = trained(tmp_path / "epochs", epochs=0.5)
    assert (run.total_steps, run.config["steps"], run.config["epochs"]) == (2, 2, 0.0)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    from whet.training.config import resolved

    section = {"source": str(file), "limit": 9}
    assert resolved("sft", {"data": section, "epochs": 3, "batch": {"rows_per_step": 4}}).steps == 7
    endless = ({"prompt": f"{number}+1=", "answer": str(number + 1)} for number in itertools.count())
    streamed = trained(tmp_path / "stream", data=endless, steps=2)
    assert (streamed.folder / "data.jsonl").read_text().count("\n") == 8
    assert "give one of them" in refused(tmp_path / "both", steps=2, epochs=1)
    assert "a stream" in refused(tmp_path / "both", data=iter(ROWS), epochs=1)
    assert not (tmp_path / "both").exists()


def test_a_script_can_be_run_twice(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = trained(folder, steps=1, exist="resume")
    written = (folder / "metrics.jsonl").read_bytes()
    assert trained(folder, steps=1, exist="resume") == first and (folder / "metrics.jsonl").read_bytes() == written
    assert trained(folder, steps=2, exist="resume").steps == 2
    mistakes = {
        "another config (seed)": {"steps": 2, "seed": 5},
        "other rows": {"steps": 2, "data": ROWS[1:]},
        "give resume or replace": {"steps": 2, "exist": "overwrite"},
    }
    said = {expected: refused(folder, **{"exist": "resume", **given}) for expected, given in mistakes.items()}
    assert [line for expected, line in said.items() if expected not in line] == []
    assert "exist=replace" in refused(folder, steps=2)
    with pytest.raises(WhetError, match="needs a folder"):
        whet.train("grpo", exist="replace", console=False)
    replaced = trained(folder, steps=1, seed=5, exist="replace")
    assert replaced.steps == 1 and replaced.config["seed"] == 5


def test_a_system_prompt_and_a_template_reach_the_model_and_stay_with_it(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    config = {**SMALL, "model": {"threads": 1, "chat_template": str(template)}, "data": {"system_prompt": "Be brief."}}
    seen: list[Any] = []

    def told(prompt: whet.Prompt, completion: whet.Completion) -> float:
        seen.append(prompt.messages)
        return float(len(seen) % 2)

    rows = [*ROWS[:3], {"prompt": [{"role": "system", "content": "Own."}, {"role": "user", "content": "1+1="}]}]
    run = trained(tmp_path / "run", data=rows, reward=told, steps=1, config=config)
    systems = {messages[0]["content"] for messages in seen if messages[0]["role"] == "system"}
    assert systems == {"Be brief.", "Own."} and all(messages[-1]["role"] == "user" for messages in seen)
    template.unlink()
    _, tokenizer = run.load()
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "<user>x"
    assert run.config["model"]["chat_template"] == TEMPLATE
    from whet.api import evaluation_config

    assert evaluation_config(str(run.folder), "rows.jsonl", None).data.system_prompt == "Be brief."
    plain = {**SMALL, "data": {"system_prompt": "x", "as_chat": False}}
    assert "needs a conversation" in refused(tmp_path / "no", config=plain)
    absent = {**SMALL, "model": {"chat_template": "absent.jinja"}}
    assert "cannot be read" in refused(tmp_path / "no", config=absent)


def test_another_reference_and_runs_as_settings(tmp_path: Path) -> None:
    shown = [{**row, "completion": row["answer"]} for row in ROWS]
    start = trained(tmp_path / "start", "sft", steps=2, data=shown, config={"batch": {"rows_per_step": 8}})
    own = trained(tmp_path / "own", steps=1)
    other = trained(tmp_path / "other", steps=1, config={**SMALL, "model": {"reference_model": start}})
    adapted = trained(tmp_path / "adapted", steps=1, config={**SMALL, "model": {"reference_model": start, "lora": 2}})
    kl = [run.rows()[0]["kl"] for run in (own, other, adapted)]
    assert abs(kl[0]) < 1e-6 and kl[1] > 1e-4 and kl[2] == pytest.approx(kl[1], rel=1e-3)
    assert other.config["model"]["reference_model"] == str(start.folder)
    assert whet.resume(other, steps=2, console=False).steps == 2
    moves = {**SMALL, "model": {"reference_model": start}, "objective": {"reference": "ema"}}
    assert "stays as it is" in refused(tmp_path / "no", config=moves)
    assert "uses no reference" in refused(
        tmp_path / "no", method="dr_grpo", config={**SMALL, "model": {"reference_model": start}}
    )
    few = {"data": {"count": 16}, "batch": {"rows_per_step": 4}, "eval": {"prompts": 4}}
    critic = whet.train("rm", steps=1, folder=str(tmp_path / "rm"), console=False, config=few)
    ppo = trained(tmp_path / "ppo", "ppo", steps=1, config={**SMALL, "critic": {"start": critic}})
    assert ppo.config["critic"]["start"] == str(critic.folder)


def test_a_resumed_run_imports_what_it_was_registered_with(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import whet\n\n\n@whet.register('reward')\ndef length_of_mine(prompt, completion):\n"
        "    return len(completion) % 2\n"
    )
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        run = trained(Path("run"), reward="length_of_mine", steps=1, imports=["mine.py"])
        assert run.config["imports"] == [str(file)]
        program = tmp_path / "resume.py"
        program.write_text("import sys, whet; print(whet.resume(sys.argv[1], steps=2, console=False).steps)")
        os.chdir(before)
        done = finished(str(program), str(tmp_path / "run"))  # a process that never saw the registration
        assert done.stdout.strip() == "2", done.stderr
        file.write_text(file.read_text() + "# changed\n")
        with pytest.raises(WhetError, match=r"imports .*changed"):
            whet.resume(tmp_path / "run", steps=3, console=False)
    finally:
        os.chdir(before)
        for registered in _REGISTRIES["reward"]:  # other tests list what there is
            registered.entries.pop("length_of_mine", None)
            registered.registered.pop("length_of_mine", None)


def test_several_sources_with_weights_and_a_reward_each(tmp_path: Path) -> None:
    for folder, count in (("a", 12), ("b", 9)):
        (tmp_path / folder).mkdir()
        lines = [json.dumps({"prompt": f"{folder}{number}=", "answer": "1"}) + "\n" for number in range(count)]
        (tmp_path / folder / "rows.jsonl").write_text("".join(lines))
    first, second = (str(tmp_path / folder / "rows.jsonl") for folder in ("a", "b"))
    seen: dict[str, set[str]] = {"on_first": set(), "on_all": set()}

    def on_all(prompt: str, completion: str, data_source: str) -> float:
        seen["on_all"].add(data_source)
        return 0.0

    run = trained(
        tmp_path / "run", data=[f"{first}=3", f"{second}=1"], reward=[f"exact_answer@{first}", on_all], steps=4
    )
    assert seen["on_all"] == {first, second} and "(16 prompts" in run.summary["facts"]["data"]
    assert run.config["reward"]["parts"][0]["rows"] == first
    kinds = {sample["prompt_id"].startswith(second): sample["parts"] for sample in run.samples()}
    assert set(kinds) <= {True, False}
    from whet.data.source import read_rows

    assert len(read_rows(f"mix:{first},{second}")) == 21
    mixed = read_rows(f"mix:{first}=1,{second}=1")
    assert [row.values["data_source"] for row in mixed].count(first) == 9 and mixed == read_rows(
        f"mix:{first}=1,{second}=1"
    )
    mistakes = {
        "none is from there": {"data": [first, second], "reward": "exact_answer@c.jsonl"},
        "no reward is for prompt": {"data": [first, second], "reward": f"exact_answer@{first}"},
        "a weight above 0": {"data": [f"{first}=1", second]},
        "makes its prompts itself": {"data": f"mix:{first},task:lists"},
    }
    said = {expected: refused(tmp_path / "no", steps=1, **given) for expected, given in mistakes.items()}
    assert [line for expected, line in said.items() if expected not in line] == []
