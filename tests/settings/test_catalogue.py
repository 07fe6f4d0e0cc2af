"""The catalogue is what the presets say, and the commands that only print text do without torch."""

import subprocess
import sys

import pytest

from whet.objective import PAIR_PRESETS, PRESETS, catalogue
from whet.objective.catalogue import KINDS
from whet.objective.presets.reward_model import REWARD_MODELS
from whet.pages import clip_plots
from whet.pages.methods import explanation, explanation_with_plot, overview, record
from whet.types import WhetError


def test_every_preset_is_a_method_of_its_kind():
    assert catalogue.method_names("policy") == list(PRESETS)
    assert catalogue.method_names("preference") == list(PAIR_PRESETS)
    assert catalogue.method_names("reward_model") == list(REWARD_MODELS) and catalogue.method_names("sft") == ["sft"]
    assert len(catalogue.methods()) == sum(len(catalogue.methods(kind)) for kind in KINDS)
    for name, preset in {**PRESETS, **PAIR_PRESETS, **REWARD_MODELS}.items():
        found = catalogue.method(name)
        assert (found.name, found.title, found.paper, found.run) == (name, preset.title, preset.paper, preset.run)
    assert {name: catalogue.method(name).learns for name in REWARD_MODELS} == {
        "rm": "rankings",
        "orm": "outcomes",
        "prm": "steps",
    }


def test_a_component_is_written_with_its_numbers():
    grpo = catalogue.method("grpo")
    assert str(grpo.components["clip"]) == "ppo_clip(low=0.2, high=0.2)" and str(grpo.components["ratio"]) == "token"
    assert record(grpo)["kl"] == "k3(beta=0.04)" and record(grpo)["kind"] == "policy"
    assert [name for name, axis in catalogue.axes("policy").items() if axis.main] == [
        *("baseline", "scale", "ratio", "clip", "aggregate", "kl")
    ]
    assert catalogue.axes("sft") == {}


def test_kinds_without_components_are_explained_too():
    said = explanation("sft")
    assert said.startswith("Supervised fine-tuning: ") and said.endswith("run it    whet train sft")
    assert "components" not in said and explanation_with_plot("sft").split() == said.split()
    assert "says      how likely each step is right" in explanation("prm")
    assert "\nprm     " in overview("reward_model") and "how likely each step is right" in overview("reward_model")


def test_the_stored_plots_are_what_the_rules_draw(monkeypatch):
    drawn = {name: clip_plots.clip_text(rule) for name, rule in clip_plots.plotted().items()}
    monkeypatch.setattr(clip_plots, "clip_text", lambda rule: "not stored: python -m whet.pages.methods")
    stored = {name: clip_plots.stored_text(rule) for name, rule in clip_plots.plotted().items()}
    assert stored == drawn


def test_an_unknown_method_gets_the_nearest_and_one_that_is_left_out_the_reason():
    with pytest.raises(WhetError, match=r"no method is called 'grppo' \(did you mean 'grpo'\?\)"):
        catalogue.method("grppo")
    with pytest.raises(WhetError, match=r"'power_dl' is not built: .* could not be verified"):
        catalogue.method("power_dl")


TEXTS = [
    (("algorithms",), 0, "\ngrpo  "),
    (("algorithms", "--json"), 0, '"name": "grpo"'),
    (("explain", "grpo"), 0, "weight against ratio"),
    (("explain", "dpo"), 0, "what a run minimises"),
    (("advise", "--signal", "verifiable", "--model-size", "7", "--memory", "80"), 0, "whet train grpo"),
    (("config", "grpo"), 0, 'method = "grpo"'),
    (("config", "dpo"), 0, 'method = "dpo"'),
    (("explain", "grppo"), 2, "did you mean 'grpo'?"),
    (("train", "grppo"), 2, "did you mean 'grpo'?"),
    (("config", "grpo", "--set", "batch.grop_size=2"), 2, "batch.group_size"),
]
PROGRAM = f"""
import sys
from whet.cli import main
for words in {[words for words, *_ in TEXTS]!r}:
    sys.argv = ["whet", *words]
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    else:
        code = 0
    print("heavy:", *sorted({{"torch", "transformers", "numpy"}} & set(sys.modules)), "code:", code)
    print("the next command", flush=True)
"""


def test_a_command_that_only_prints_text_imports_no_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    printed = done.stdout.split("the next command\n")
    assert len(printed) == len(TEXTS) + 1, done.stdout
    for (words, code, said), text in zip(TEXTS, printed, strict=False):
        assert said in text, (words, text)
        assert text.endswith(f"heavy: code: {code}\n"), (words, text)
