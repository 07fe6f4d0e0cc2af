"""`whet config METHOD` writes a TOML that explains itself and is the same run when it is read back."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from tests.support.for_every import for_every
from whet.objective import catalogue
from whet.settings.layers import from_settings, read_toml
from whet.training.annotated_config import annotated_toml, written
from whet.training.config import config_values, resolved
from whet.types import WhetError


@for_every(catalogue.method_names())
def test_reading_it_back_gives_the_same_run(method):
    config = resolved(method)
    text = annotated_toml(config)
    assert resolved(method, tomllib.loads(text)) == config


@pytest.mark.parametrize(
    "settings",
    [
        ["objective.clip.high=0.28", "objective.kl=k2", "objective.kl.beta=0.5"],
        ["objective.clip=dual_clip", "batch.updates_per_step=4"],
        ["model.lora=8", 'sampling.stop=["a\\n", "b"]', 'reward.parts=[{reward="exact_answer", weight=2.0}]'],
        ["data.source=rows.jsonl", 'data.columns={"my question"="prompt"}', "eval.source=test.jsonl"],
    ],
)
def test_changes_are_read_back_too(settings):
    config = resolved("grpo", from_settings(settings))
    assert resolved("grpo", tomllib.loads(annotated_toml(config))) == config


@for_every(
    [
        ("objective.clip.high=banana", "objective.clip.high is 'banana'; give a number"),
        ("objective.clip.high={a=1}", "has no such number"),
        ("objective.clip.high=-3", "give 0 or more"),
        ("objective.clip.nothere=1", "ppo_clip has no such number"),
        ("objective.clip=nonsense", "give one of on_policy, ppo_clip"),
        ("objective.kl=k1", "in the loss its expected gradient is 0"),
    ]
)
def test_what_training_refuses_is_not_written(setting, words):
    with pytest.raises(WhetError, match=words):
        annotated_toml(resolved("grpo", from_settings([setting])))


def test_every_key_has_a_comment_and_the_objective_is_filled_in(tmp_path):
    text = annotated_toml(resolved("grpo", from_settings(["objective.clip.high=0.28"])))
    lines = text.splitlines()
    keys = [number for number, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    assert len(keys) > 60
    assert all("  # " in lines[number] or lines[number - 1].startswith("# ") for number in keys)
    assert max(map(len, lines)) <= 120
    values = tomllib.loads(text)
    assert values["objective"]["clip"] == {"kind": "ppo_clip", "low": 0.2, "high": 0.28}
    assert values["objective"]["kl"] == {"kind": "k3", "beta": 0.04}
    assert set(values["objective"]) == set(catalogue.axes("policy"))


def test_what_equals_the_preset_is_no_change():
    config = resolved("grpo", from_settings(["objective.clip.high=0.2", "objective.kl=k3", "objective.kl.beta=0.5"]))
    assert config.objective == {"kl": {"beta": 0.5}}
    usual = catalogue.axes("policy")["kl"].components["k2"].numbers["beta"]
    other = resolved("grpo", {"objective": {"kl": {"kind": "k2", "beta": usual}}})
    assert other.objective == {"kl": "k2"}
    assert resolved("grpo", {"objective": {"kl": {"kind": "k2", "beta": 0.5}}}).objective == {
        "kl": {"kind": "k2", "beta": 0.5}
    }


def test_keys_without_effect_are_left_out():
    assert "limit" not in config_values(resolved("grpo"))["data"]
    assert "difficulty" not in config_values(resolved("grpo", {"data": {"source": "rows.jsonl"}}))["data"]
    assert "critic" in config_values(resolved("ppo")) and "critic" not in config_values(resolved("grpo"))


@for_every(['a"b\\c\n\u2028é', [1, 2.5, True], {"a b": {"c": [1]}}, {}, 1e-8, float("inf")])
def test_values_are_written_as_toml_reads_them(value):
    assert tomllib.loads(f"value = {written(value)}")["value"] == value


def test_the_config_of_a_run_needs_no_torch():
    code = (
        "import sys; from whet.training.annotated_config import annotated_toml; "
        "from whet.training.config import resolved; "
        "print(len(annotated_toml(resolved('ppo')))); "
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'imported'"
    )
    assert int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout) > 1000


def test_the_recipes_are_configs_of_today():
    from pathlib import Path

    from whet.tools.pipelines.registry import find_pipeline
    from whet.tools.pipelines.settings import resolve_settings

    for path in (Path(__file__).parents[2] / "recipes").glob("*.toml"):
        values = read_toml(path)
        values.get("data", {}).pop("system_prompt", None)  # it is for the rows that the command names
        if "pipeline" in values:
            assert resolve_settings(find_pipeline(values["pipeline"]), values).pipeline == values["pipeline"]
            continue
        method = re.search(r"whet train (\w+)", path.read_text(encoding="utf-8"))
        assert resolved(method[1] if method else "sft", values).eval.every >= 0
