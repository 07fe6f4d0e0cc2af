"""What a user adds: components, presets, rewards, engines, environments; from Python or by a package's entry point."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
import torch

import whet
from tests.support.commands import finished
from whet import registry
from whet.objective import AXES, PAIR_AXES, PAIR_PRESETS, PRESETS, Preset, catalogue, description, title, with_changes
from whet.objective.axes import FAMILIES, component_refusal
from whet.objective.clip import PPOClip
from whet.objective.component import Component
from whet.objective.preference.pair_terms import Summed
from whet.objective.terms import ImitateRight
from whet.pages.methods import axes_table, component_table, explanation_with_plot, overview
from whet.types import TokenBatch, WhetError

ROOT = Path(__file__).parents[2]
GRPO = PRESETS["grpo"]


@pytest.fixture(autouse=True)
def as_it_was():
    """Whatever a test registers is gone after it."""
    before = [(known, dict(known.registered)) for several in registry._REGISTRIES.values() for known in several]
    yield
    for known, registered in before:
        for name in [name for name in known.registered if name not in registered]:
            del known.entries[name], known.registered[name]


def narrow_rule(own_name="narrow"):
    @dataclass(frozen=True)
    class Narrow(PPOClip):
        low: float = 0.05
        high: float = 0.1
        name: ClassVar[str] = own_name

    return Narrow


def test_a_clip_rule_is_used_by_its_name_described_and_listed():
    rule = whet.register("clip", narrow_rule())
    changed = with_changes(GRPO.objective, {"clip": "narrow", "clip.high": 0.07})
    assert type(changed.clip) is rule and (changed.clip.low, changed.clip.high) == (0.05, 0.07)
    assert title(changed) == "GRPO*" and "  changed: clip ppo_clip -> narrow" in description(changed)
    assert registry.lookup("clip", "narrow") is rule and "narrow" in registry.names("clip")
    assert registry.added("clip") == {"narrow": rule}
    assert catalogue.axes("policy")["clip"].components["narrow"].numbers == {"low": 0.05, "high": 0.1}
    assert "`narrow` (low, high)" in axes_table("policy")


def test_the_decorator_returns_the_class():
    rule = narrow_rule()
    assert whet.register("clip")(rule) is rule is AXES["clip"]["narrow"]


def test_a_preset_is_a_method_everywhere():
    rule = whet.register("clip", narrow_rule())
    own = replace(GRPO, objective=replace(GRPO.objective, name="narrow_grpo", clip=rule()), title="Narrow", fixes="it")
    assert whet.register("preset", own) is own
    assert catalogue.method("narrow_grpo").title == "Narrow" and "narrow_grpo" in catalogue.method_names("policy")
    assert "narrow_grpo" not in catalogue.method_names("preference")
    said = explanation_with_plot("narrow_grpo")
    assert "clip       narrow(low=0.05, high=0.1)" in said and "weight against ratio" in said
    assert "\nnarrow_grpo  " in overview("policy") and "| narrow_grpo" in component_table("policy")
    assert title(own.objective) == "Narrow"
    from whet.training.config import PolicyConfig, resolved

    assert isinstance(resolved("narrow_grpo"), PolicyConfig)
    with pytest.raises(WhetError, match="did you mean 'narrow_grpo'"):
        catalogue.method("narow_grpo")


def test_a_component_goes_to_the_family_that_it_fits():
    @dataclass(frozen=True)
    class Half(Summed):
        name: ClassVar[str] = "half"

    @dataclass(frozen=True)
    class HalfRight(ImitateRight):
        name: ClassVar[str] = "half"

    whet.register("imitate", Half)
    assert "half" in PAIR_AXES["imitate"] and "half" not in AXES["imitate"]
    whet.register("imitate", HalfRight)
    assert AXES["imitate"]["half"] is HalfRight and PAIR_AXES["imitate"]["half"] is Half


def test_a_module_that_is_loaded_again_replaces_its_own():
    whet.register("clip", narrow_rule())
    again = narrow_rule()
    assert whet.register("clip", again) is AXES["clip"]["narrow"] is again


CELL = """
import whet
from dataclasses import dataclass, replace
from typing import ClassVar
from whet.objective import PRESETS
from whet.objective.clip import PPOClip

@whet.register("clip")
@dataclass(frozen=True)
class {name}(PPOClip):
    low: float = {low}
    name: ClassVar[str] = "cell_clip"

grpo = PRESETS["grpo"]
whet.register("preset", replace(grpo, objective=replace(grpo.objective, name="cell_grpo", clip={name}()), title="Cell"))
"""


def test_a_notebooks_cell_that_is_changed_and_run_again_replaces_what_it_registered():
    cell = {"__name__": "__main__"}
    exec(CELL.format(name="First", low=0.1), cell)
    exec(CELL.format(name="Second", low=0.3), cell)
    assert AXES["clip"]["cell_clip"] is cell["Second"] and PRESETS["cell_grpo"].objective.clip.low == 0.3
    with pytest.raises(WhetError, match=r"a clip called 'cell_clip' exists already, in __main__; .*, or replace=True"):
        exec(CELL.format(name="Third", low=0.2), {"__name__": "another_module"})
    with pytest.raises(
        WhetError, match=r"a clip called 'ppo_clip' exists already, in whet.objective.clip.band; .*name$"
    ):
        exec(CELL.format(name="Fourth", low=0.2).replace("cell_clip", "ppo_clip"), cell)


def test_replace_takes_the_place_of_what_was_registered_and_of_nothing_built_in():
    @dataclass(frozen=True)
    class Other(PPOClip):
        name: ClassVar[str] = "narrow"

    whet.register("clip", narrow_rule())
    with pytest.raises(WhetError, match="give yours another name, or replace=True"):
        whet.register("clip", Other)
    assert whet.register("clip", replace=True)(Other) is AXES["clip"]["narrow"]
    with pytest.raises(
        WhetError, match=r"'ppo_clip' exists already, in whet.objective.clip.band; give yours another name$"
    ):
        whet.register("clip", narrow_rule("ppo_clip"), replace=True)
    whet.register("clip", PPOClip)  # and giving it as it is does not make it replaceable
    with pytest.raises(WhetError, match="'ppo_clip' exists already"):
        whet.register("clip", narrow_rule("ppo_clip"), replace=True)


class Undecorated(PPOClip):
    low: float = 0.2
    middle: float = 1.0
    name: ClassVar[str] = "undecorated"


class Unable:
    name = "unable"


@dataclass(frozen=True)
class Empty(Component):
    name: ClassVar[str] = "empty"


@dataclass(frozen=True)
class Wordy(PPOClip):
    low: str = "a little"
    name: ClassVar[str] = "wordy"

    def __post_init__(self):
        pass


def no_engine(policy):
    """Takes too little."""


@dataclass(frozen=True)
class Summing(PPOClip):
    name: ClassVar[str] = "summing"

    def __call__(self, ratio, advantage, action, logp):
        return ratio.sum(-1)


@dataclass(frozen=True)
class Crashing(PPOClip):
    name: ClassVar[str] = "crashing"

    def surrogate(self, ratio, advantage, action, logp):
        raise RuntimeError("no surrogate")


@pytest.mark.parametrize(
    ("kind", "thing", "said"),
    [
        ("clip", PPOClip, None),
        (
            "clip",
            narrow_rule("ppo_clip"),
            "a clip called 'ppo_clip' exists already, in whet.objective.clip.band; give yours",
        ),
        ("clip", narrow_rule("My Clip"), "the name of the clip is 'My Clip'; give one like my_clip"),
        ("clip", lambda ratio: ratio, "the name of the clip is '<lambda>'"),
        ("clip", PPOClip(), "give a frozen dataclass that inherits from whet.objective.component.Component"),
        ("clip", Undecorated, "Undecorated.middle is not one of its fields; give @dataclass(frozen=True)"),
        ("clip", Empty, "Empty has no __call__, surrogate, symbols, uses_ratio; give it all that ClipRule has"),
        ("clip", Wordy, "Wordy.low is 'a little'; the fields of a component are numbers"),
        ("clip", Summing, "for a ratio of shape (1, 3) it returns (1,); return one weight per token, [N, T]"),
        ("clip", Crashing, "called with tensors [N, T] it fails with RuntimeError: no surrogate; fix it"),
        (
            "score",
            PPOClip,
            "PPOClip.__call__ takes (ratio, advantage, action, logp); CompletionScore takes (completions)",
        ),
        ("preset", GRPO.objective, "give whet.objective.Preset(Objective(...), ...)"),
        ("preset", replace(GRPO, title="Mine"), "a preset called 'grpo' exists already; give yours another name"),
        ("preset", replace(PAIR_PRESETS["dpo"], objective=replace(PAIR_PRESETS["dpo"].objective, name="rm")), "'rm'"),
        ("preset", replace(GRPO, objective=replace(GRPO.objective, name="dpo")), "a preset called 'dpo' exists"),
        ("reward", 3, "the reward 3 has no name; give it one: whet.register('reward', ..., name='my_reward')"),
        ("engine", 3, "the engine 3 has no name"),
        ("engine", Unable, "Unable has no generate and no load; give it both methods of whet.protocols.Engine"),
        (
            "engine",
            no_engine,
            "it is called with (policy, tokenizer, end_tokens, context=...): too many positional arguments; take these",
        ),
        (
            "clop",
            PPOClip,
            "nothing of kind 'clop' can be registered (did you mean 'clip'?); give one of baseline, scale",
        ),
    ],
)
def test_what_cannot_be_registered_is_refused_in_one_line(kind, thing, said):
    if said is None:
        assert whet.register(kind, thing) is thing and registry.added(kind) == {}  # a built-in stays built in
        return
    with pytest.raises(WhetError) as error:
        whet.register(kind, thing)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert not any(registry.added(each) for each in registry.KINDS)


def test_a_plain_function_is_a_baseline():
    @whet.register("baseline")
    def highest(rewards):
        """Compare each completion with the best of its group."""
        return rewards.max()

    reward, group = torch.tensor([0.0, 2.0, 5.0, 1.0, float("nan")]), torch.tensor([0, 0, 1, 1, 1])
    batch = TokenBatch(
        tokens=torch.ones(5, 1, dtype=torch.long), action=torch.ones(5, 1, dtype=torch.bool), group=group, reward=reward
    )
    objective = with_changes(GRPO.objective, {"baseline": "highest", "scale": "none"})
    centred = objective.baseline.centred(batch, {})[:, 0]
    assert centred[:4].tolist() == [-2.0, 0.0, 0.0, -4.0] and callable(highest)
    advantage, _ = objective.advantage(batch, {})
    assert advantage.advantage[:, 0].tolist() == [-2.0, 0.0, 0.0, -4.0, 0.0], "what has no score learns nothing"
    lines = description(objective)
    assert "  A = R - highest_g(R)" in lines and "  - Compare each completion with the best of its group" in lines

    @whet.register("baseline")
    def wrong(rewards):
        return rewards[:1].repeat(3)

    with pytest.raises(
        WhetError, match=r"'wrong' returned \(3,\) for the rewards of a group, \(2,\); return one number"
    ):
        with_changes(GRPO.objective, {"baseline": "wrong"}).baseline.centred(batch, {})


def test_a_second_name_for_a_component_is_refused():
    with pytest.raises(WhetError, match="called 'narrow' where it is defined and 'thin' here"):
        whet.register("clip", narrow_rule(), name="thin")


def test_every_built_in_component_passes_the_check_that_a_users_must_pass():
    for family in FAMILIES:
        for name, axis in family.axes.items():
            for component in axis.components.values():
                assert component_refusal(name, axis.interface, component) == "", component


def test_a_reward_an_engine_and_an_environment_by_name():
    from whet.reward.find import find_reward

    @whet.register("reward")
    def short_answer(prompt, completion):
        return float(len(completion) < 5)

    class Remote:
        def __init__(self, policy, tokenizer, end_tokens, *, context): ...

        def generate(self, requests, sampling): ...

        def load(self, weights, version): ...

    whet.register("engine", Remote, name="remote")
    whet.register("environment", lambda: None, name="maze")
    assert find_reward("short_answer").name == "short_answer"
    assert registry.lookup("engine", "remote") is Remote and "maze" in registry.names("environment")
    with pytest.raises(
        WhetError,
        match=r"no engine is called 'remot' \(did you mean 'remote'\?\); there are: torch, vllm, openai, remote",
    ):
        registry.lookup("engine", "remot")
    with pytest.raises(WhetError, match="a reward called 'math_answer' exists already"):
        whet.register("reward", short_answer, name="math_answer")
    with pytest.raises(WhetError, match="did you mean 'short_answer'"):
        find_reward("short_answr")


PLUGIN = """
from dataclasses import dataclass, replace
from typing import ClassVar
import whet
from whet.objective import PRESETS
from whet.objective.clip import PPOClip

@dataclass(frozen=True)
class Thin(PPOClip):
    low: float = 0.05
    high: float = 0.05
    name: ClassVar[str] = "thin_clip"

def load():
    whet.register("clip", Thin)
    grpo = PRESETS["grpo"]
    thin = replace(grpo.objective, name="thin_grpo", clip=Thin())
    whet.register("preset", replace(grpo, objective=thin, title="Thin"))

    @whet.register("reward")
    def full_stop(prompt, completion):
        return float("." in completion)

    from whet.rollout.torch_engine import TorchEngine

    class LoudEngine(TorchEngine):
        def generate(self, requests, sampling):
            print("the plugin's engine writes")
            return super().generate(requests, sampling)

    whet.register("engine", LoudEngine, name="loud")
"""


@pytest.fixture
def plugin(tmp_path):
    """A distribution that is installed as far as Python can tell: a module, and a dist-info folder with entry
    points."""
    folder = tmp_path / "site"
    points = "[whet.plugins]\nthin = whet_thin:load\nbroken = whet_missing\n"
    for name, text in (
        ("METADATA", "Metadata-Version: 2.1\nName: whet-thin\nVersion: 1.2\n"),
        ("entry_points.txt", points),
    ):
        path = folder / "whet_thin-1.2.dist-info" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "whet_thin.py").write_text(PLUGIN)
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{folder}"}


def command(plugin, tmp_path, *words):
    return finished(*words, folder=tmp_path, PYTHONPATH=plugin["PYTHONPATH"])


def test_a_package_adds_methods_components_and_rewards(plugin, tmp_path):
    small = [
        "--steps",
        "1",
        "--set",
        "batch.prompts_per_step=2",
        "--set",
        "batch.group_size=2",
        "--set",
        "eval.prompts=2",
        "--set",
        "sampling.max_new_tokens=8",
    ]
    own = ["--set", "objective.clip=thin_clip", "--set", "batch.updates_per_step=2"]
    for method, further in (("thin_grpo", ["--set", "sampling.engine=loud"]), ("grpo", own)):
        done = command(plugin, tmp_path, "train", method, "--reward", "full_stop", "--folder", method, *small, *further)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (tmp_path / method / "report.html").is_file()
        assert ("the plugin's engine writes" in done.stdout) == (method == "thin_grpo")
        assert done.stderr.count("warning:") == 1
        warned = "warning: the whet plugin 'broken' of whet-thin 1.2 was not loaded: ModuleNotFoundError: No module"
        assert warned in done.stderr
    assert "thin_clip" in (tmp_path / "grpo" / "config.toml").read_text()
    program = [sys.executable, "-m", "whet", "algorithms"]  # and in a process that starts from nothing
    assert "\nthin_grpo  " in subprocess.run(program, cwd=tmp_path, env=plugin, capture_output=True, text=True).stdout
    assert "clip       thin_clip(low=0.05, high=0.05)" in command(plugin, tmp_path, "explain", "thin_grpo").stdout
    typo = command(plugin, tmp_path, "train", "thin_grp")
    assert typo.returncode == 2 and "did you mean 'thin_grpo'?" in typo.stderr


def test_a_known_method_loads_no_plugin(plugin, tmp_path):
    done = command(plugin, tmp_path, "explain", "grpo")
    assert done.returncode == 0 and "warning" not in done.stderr


@pytest.mark.slow
def test_the_example_trains_with_its_own_clip_rule(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    program = [sys.executable, str(ROOT / "examples" / "own_clip_rule.py")]
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "clip       taper(band=0.2, fade=0.3)" in done.stdout and "Tapered GRPO*" in done.stdout
    assert "changed: clip.fade 0.3 -> 0.5" in done.stdout
    assert 'method = "tapered_grpo"' in next(tmp_path.glob("runs/*/config.toml")).read_text()


def test_the_rule_of_the_example_is_what_it_says():
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        from own_clip_rule import Taper
    finally:
        sys.path.pop(0)
    ratio = torch.tensor([[0.4, 0.5, 0.65, 1.0, 1.2, 1.35, 1.5, 2.0]], dtype=torch.float64)
    action = torch.ones_like(ratio, dtype=torch.bool)
    good = Taper()(ratio, torch.ones_like(ratio), action, ratio.log())
    bad = Taper()(ratio, -torch.ones_like(ratio), action, ratio.log())
    assert good[0].tolist() == pytest.approx([0.4, 0.5, 0.65, 1, 1.2, 0.675, 0, 0], abs=1e-12)
    assert bad[0].tolist() == pytest.approx([0, 0, 0.325, 1, 1.2, 1.35, 1.5, 2], abs=1e-12)
    assert isinstance(registry.lookup("preset", "tapered_grpo"), Preset)


def test_what_a_file_defines_is_offered_and_no_class_as_a_reward():
    module = ModuleType("mine")
    exec("from json import dumps\ndef pays(): pass\ndef _hidden(): pass\nclass Game: pass\nLIMIT = 3", vars(module))
    assert [registry._defined(module, what) for what in ("reward", "environment")] == [["pays"], ["Game", "pays"]]
