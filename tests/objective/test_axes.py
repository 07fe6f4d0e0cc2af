"""Rows by name: changed, told apart from their presets, described, tabulated."""

import json
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

from tests.support.for_every import for_every
from whet.objective import AXES, PRESETS, catalogue, description, differences, preset_named, title, with_changes
from whet.objective.axes import POLICY
from whet.objective.catalogue import component_choice
from whet.objective.clip import PPOClip
from whet.objective.kl import K2
from whet.pages.methods import component_table, explanation, markdown_page, record
from whet.types import WhetError

GRPO = PRESETS["grpo"].objective


def test_a_component_is_exchanged_before_its_number_is_set():
    changed = with_changes(GRPO, {"kl.beta": 0.5, "kl": "k2", "clip.high": 0.28})
    assert (changed.kl, changed.clip) == (K2(0.5), PPOClip(0.2, 0.28))
    assert replace(changed, kl=GRPO.kl, clip=GRPO.clip) == GRPO


def test_differences_and_the_star():
    assert differences(GRPO) == {} and title(GRPO) == "GRPO"
    changed = with_changes(GRPO, {"kl": "none", "clip.high": 0.28})
    assert differences(changed) == {"clip.high": "0.2 -> 0.28", "kl": "k3 -> none"}
    assert title(changed) == "GRPO*"
    assert title(with_changes(GRPO, {"clip.high": 0.2, "scale": "group_std"})) == "GRPO"


@for_every(
    [
        ({"clp": "ppo_clip"}, "objective.clp: no axis is called 'clp' (did you mean 'clip'?)"),
        (
            {"clip": "ppo_clp"},
            "objective.clip is 'ppo_clp' (did you mean 'ppo_clip'?); give one of on_policy, ppo_clip",
        ),
        ({"clip.hi": 0.3}, "objective.clip.hi: ppo_clip has no such number"),
        ({"clip.hihg": 0.3}, "(did you mean 'high'?); it has low, high"),
        ({"kl": "none", "kl.beta": 0.1}, "objective.kl.beta: none has no such number; it has nothing"),
        ({"clip.high": "wide"}, "objective.clip.high is 'wide'; give a number"),
        ({"clip.high": True}, "objective.clip.high is True; give a number"),
        ({"kl.beta": 0}, "objective.kl.beta is 0; give a number above 0, or objective.kl=none"),
        ({"clip.low": -1}, "objective.clip.low is -1; give 0 or more"),
        ({"kl": ["k2"]}, "objective.kl is ['k2']; give one of none, k2, k3"),
        ({"kl": "k1"}, "its expected gradient is 0, it ties to nothing; give k1_reward, k2 or k3"),
        ({"keep": "mixed_outcome", "keep.rounds": 0}, "objective.keep.rounds is 0; give 1 or more"),
        ({"baseline": "gae", "baseline.lam": 2}, "objective.baseline.lam is 2; give a share in [0, 1]"),
    ]
)
def test_changes_that_cannot_be(changes, message):
    with pytest.raises(WhetError) as error:
        with_changes(GRPO, changes)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_an_unknown_method_names_the_nearest():
    with pytest.raises(WhetError, match=r"'grop' \(did you mean 'grpo'\?\); `whet algorithms`"):
        preset_named("grop")
    with pytest.raises(WhetError, match="no method is called 'xyzzy'; `whet algorithms`"):
        preset_named("xyzzy")
    assert preset_named("dr_grpo").title == "Dr. GRPO"


def test_the_description_is_what_is_maximised():
    lines = description(with_changes(GRPO, {"clip.high": 0.28, "kl": "none"}), updates_per_step=4)
    assert lines == [
        "GRPO*  (Shao et al. 2024, DeepSeekMath, arXiv 2402.03300)",
        "  changed: clip.high 0.2 -> 0.28",
        "  changed: kl k3 -> none",
        "  A = (R - mean_g(R)) / (std_g(R) + 1e-06)",
        "  J = 1/N SUM_i 1/n_i SUM_t [ min(r A, clip(r, 0.8, 1.28) A) ]",
        "  r = pi(a_t) / pi_old(a_t)",
        "  - compare each completion with the mean of its group",
        "  - divide the difference by the spread of the group",
        "  - measure the policy's move token by token",
        "  - stop learning from a token once its ratio left [0.8, 1.28] the way A pushes it",
        "  - every completion counts the same, whatever its length",
        "  - no tie to a reference",
    ]


def test_the_description_says_when_the_ratio_is_always_one():
    assert any("always 1 here" in line for line in description(GRPO, updates_per_step=1))
    assert not any("always 1 here" in line for line in description(GRPO, updates_per_step=2))
    assert not any("pi_old" in line for line in description(PRESETS["reinforce"].objective))


def test_the_table_has_every_method_with_its_numbers():
    found = {name: record(each) for name, each in catalogue.methods("policy").items()}
    assert list(found) == list(PRESETS)
    assert found["grpo"]["clip"] == "ppo_clip(low=0.2, high=0.2)" and found["grpo"]["kl"] == "k3(beta=0.04)"
    assert found["grpo"]["needs"] == ["old_logp", "ref_logp"] and found["reinforce"]["needs"] == []
    assert found["gigpo"]["needs"] == ["anchor", "old_logp", "segment"] and "value" in found["ppo"]["needs"]
    assert found["reinforce"]["baseline"] == "running_mean(decay=0.9)" and found["reinforce"]["kl"] == "none"
    lines = component_table("policy").splitlines()
    assert len(lines) == len(PRESETS) + 2 and len({len(line) for line in lines}) == 1


every_explanation = cache(partial(markdown_page, "policy"))


@for_every(PRESETS)
def test_the_explanation_tells_all_there_is_to_tell(name):
    preset, text = PRESETS[name], explanation(name)
    for said in (preset.title, preset.paper, preset.formula, preset.fixes, preset.breaks, *preset.deviations):
        assert said in text
    for axis, kinds in AXES.items():
        component = getattr(preset.objective, axis)
        if POLICY.axes[axis].main or component.name != next(iter(kinds)):
            assert f"{axis:10} {component_choice(component)}" in text
    assert f"whet train {name}" in text and text in every_explanation()


def test_the_explanation_of_an_unknown_method_names_the_nearest():
    with pytest.raises(WhetError, match="did you mean 'reinforce'"):
        explanation("reinforced")


def test_every_axis_of_a_method_has_names_and_every_preset_is_made_of_them():
    for preset in PRESETS.values():
        for axis, kinds in AXES.items():
            component = getattr(preset.objective, axis)
            assert kinds[component.name] is type(component)
    for axis, kinds in AXES.items():
        for name, kind in kinds.items():
            assert kind().name == name and isinstance(kind().needs, frozenset), axis


def test_the_page_of_runs_says_how_many_methods_were_run():
    root = Path(__file__).parents[2]
    runs = json.loads((root / "results" / "every_method.json").read_text())["values"]["methods"]
    assert all(run["after"] > run["before"] for run in runs.values())
    page = (root / "docs" / "method-runs.md").read_text()
    assert f"{len(runs)} of the {len(PRESETS)} policy methods of `whet algorithms` have been run this way" in page
    assert f"all {len(runs)} of them learn the task" in page
