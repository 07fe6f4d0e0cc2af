"""`whet advise`: what it recommends exists, runs, fits the memory it says, and is what docs/advice.md says."""

import functools
import itertools
import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.for_every import for_every
from whet import cli
from whet.objective import PRESETS, catalogue
from whet.objective.presets.preference import PAIR_PRESETS
from whet.tools.advice import guide
from whet.tools.advice.guide import (
    FILES,
    GOALS,
    GUIDE,
    LARGE_DENSE,
    LONG_COMPLETION,
    OLDER_POLICY,
    RULES,
    SIGNALS,
    Situation,
    advice,
    memory_estimate,
)
from whet.tools.advice.situation import NO_ANSWERS, QUESTIONS, advice_record, advice_text, ask, situation_from
from whet.types import WhetError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "advice.md").read_text(encoding="utf-8")
FLAGS = {
    "--signal": ("signal", str),
    "--model-size": ("model_billions", float),
    "--memory": ("memory_gigabytes", float),
    "--completion-tokens": ("completion_tokens", int),
    "--goal": ("goal", str),
    "--rows": ("data_size", int),
    "--moe": ("mixture_of_experts", True),
    "--several-updates": ("several_updates", True),
    "--one-completion": ("group_sampling", False),
    "--agent": ("turns", True),
}
TINY = {
    "steps": "1",
    "eval.prompts": "0",
    "data.count": "16",
    "model.threads": "1",
    "batch.prompts_per_step": "4",
    "batch.group_size": "4",
}


@functools.cache
def every_advice():
    values = {
        "signal": SIGNALS,
        "model_billions": (None, 3.0, 30.0),
        "mixture_of_experts": (False, True),
        "memory_gigabytes": (None, 80.0),
        "completion_tokens": (None, 8000),
        "several_updates": (False, True),
        "group_sampling": (True, False),
        "turns": (False, True),
        "goal": GOALS,
        "data_size": (None, 100),
    }
    combinations = list(itertools.product(*values.values()))[::7]  # of any two questions every pair of answers
    situations = [Situation(**dict(zip(values, answers, strict=True))) for answers in combinations]
    return [(situation, advice(situation)) for situation in situations]


def said(flags):
    """`--moe --goal pass@k` -> the fields of a situation."""
    words, found = iter(shlex.split(flags)), {}
    for word in words:
        field, kind = FLAGS[word]
        found[field] = kind if isinstance(kind, bool) else kind(next(words))
    return found


def method_of(command):
    assert command.startswith("whet train ")
    return command.split()[2]


def settings_of(command):
    words = shlex.split(command)
    return [words[place + 1] for place, word in enumerate(words) if word == "--set"]


def resolve(command):
    """The command as `whet train` would take it, up to the files: a key or row that cannot be is an error."""
    from whet.settings.layers import from_settings, merged
    from whet.training.assembly.rl import build_objective
    from whet.training.config import PolicyConfig, resolved

    words = shlex.split(command)
    given = {word: words[place + 1] for place, word in enumerate(words) if word.startswith("--")}
    layer = {"model": {"name": given["--model"]}} if "--model" in given else {}
    layer |= {"data": {"source": given["--data"]}} if "--data" in given else {}
    layer |= {"reward": {"parts": [{"reward": given["--reward"]}]}} if "--reward" in given else {}
    config = resolved(words[2], merged(layer, from_settings(settings_of(command))))
    if isinstance(config, PolicyConfig):
        build_objective(config)
    return config


def test_every_situation_gets_a_method_that_exists_with_reasons():
    from whet.training.config import SUPERVISED

    takes = {SUPERVISED, *PRESETS, *PAIR_PRESETS}
    for situation, found in every_advice():
        assert found.recommendation in takes
        assert method_of(found.command) == found.recommendation
        assert found.rehearsal is None or method_of(found.rehearsal) == found.recommendation
        assert found.reasons[0].startswith("You") and all(each.endswith(".") for each in found.reasons)
        assert found.recommendation not in {other.method for other in found.alternatives}
        assert all(other.available == (other.method in takes) for other in found.alternatives)
        assert (found.memory is None) == (situation.model_billions is None)
        if found.best not in takes:
            assert found.reasons[1].startswith("whet does not train ")


def test_every_command_is_one_that_train_takes():
    found = [each for _, each in every_advice()]
    commands = {each.command for each in found} | {each.rehearsal for each in found if each.rehearsal}
    assert len(commands) > 30
    for command in sorted(commands):
        resolve(command)


def test_the_commands_say_what_the_situation_says():
    config = resolve(advice(Situation(completion_tokens=8000, several_updates=True)).command)
    assert config.sampling.max_new_tokens == 8000 and config.batch.updates_per_step > 1
    assert resolve(advice(Situation(group_sampling=False)).command).batch.group_size == 1
    lagging = f"{advice(Situation()).command} {OLDER_POLICY}"
    assert (
        OLDER_POLICY in " ".join(advice(Situation(several_updates=True)).warnings)
        and resolve(lagging).batch.staleness == 1
    )
    for situation, found in every_advice():
        if situation.signal == "reward_model":
            assert "ref_logp" in PRESETS[found.recommendation].objective.needs() or "objective.kl=" in found.command


@pytest.mark.parametrize("methods", [("sft", "grpo"), pytest.param((), marks=pytest.mark.slow)], ids=["some", "all"])
def test_every_rehearsal_trains(methods, tmp_path, monkeypatch):
    from whet import api
    from whet.settings.layers import from_settings

    monkeypatch.chdir(tmp_path)
    rehearsals: dict[str, str] = {}
    for _, found in every_advice():
        if found.rehearsal is not None and len(found.rehearsal) > len(rehearsals.get(found.recommendation, "")):
            rehearsals[found.recommendation] = found.rehearsal  # the one with the most settings
    assert {"sft", "grpo", "gspo"} <= set(rehearsals)
    for method, rehearsal in rehearsals.items():
        if methods and method not in methods:
            continue
        settings = {**TINY, **dict(each.split("=") for each in settings_of(rehearsal)), "batch.prompts_per_step": "4"}
        if method == "sft" or method in PAIR_PRESETS:
            settings = {key: value for key, value in settings.items() if not key.startswith("batch.")}
            settings["batch.rows_per_step"] = "8"
        config = from_settings([f"{key}={value}" for key, value in settings.items()])
        run = api.train(method, config=config, console=False)
        assert run.status == "finished" and run.steps == 1, rehearsal


def table():
    """(flags, methods) of each line of the page's first table."""
    lines = re.findall(r"^\| `(--[^`]+)` \| ([^|]+) \| [^|]+ \|$", PAGE, re.M)
    return [(flags, re.findall(r"`(\w+)`", methods)) for flags, methods in lines]


def test_the_page_has_a_line_for_every_rule_in_order():
    assert len(PAGE.splitlines()) <= 50
    deciding = [next(rule for rule in RULES if rule.holds(situation_from(said(flags)))) for flags, _ in table()]
    assert deciding == list(RULES)
    assert f"{LONG_COMPLETION} tokens and {LARGE_DENSE:g} billion weights" in PAGE


@pytest.mark.parametrize(("flags", "methods"), table())
def test_the_page_tells_what_is_advised(flags, methods, monkeypatch):
    situation = situation_from(said(flags))
    real = advice(situation)
    assert real.best == methods[0]
    assert real.recommendation == next(each for each in methods if each in {"sft", *PRESETS, *PAIR_PRESETS})
    for first in range(len(methods)):
        known = {each: replace(catalogue.method("grpo"), name=each) for each in methods[first:] if each != "sft"}
        monkeypatch.setattr(guide, "trained_methods", lambda known=known: known)
        found = advice(situation)
        assert found.recommendation == methods[first] and method_of(found.command) == methods[first]
        assert len(found.reasons[1:]) >= (first > 0)


def test_the_thresholds_are_those_of_the_page():
    assert advice(Situation(completion_tokens=LONG_COMPLETION - 1)).best == advice(Situation()).best == "grpo"
    assert advice(Situation(completion_tokens=LONG_COMPLETION)).best == "dapo"
    assert advice(Situation(model_billions=LARGE_DENSE)).best == "grpo"
    assert advice(Situation(model_billions=LARGE_DENSE + 0.1)).best == "gspo"
    one_update = Situation(mixture_of_experts=True, goal="pass_at_k")
    assert advice(one_update).best == "pass_at_k"
    assert advice(replace(one_update, several_updates=True)).best == "gspo"


def test_a_method_is_advised_from_the_day_it_exists(monkeypatch):
    critic = replace(catalogue.method("grpo"), needs=("old_logp", "ref_logp", "value"), title="PPO")
    without = {name: each for name, each in guide.trained_methods().items() if name != "ppo"}
    asked = Situation("reward_model", group_sampling=False, model_billions=7.0)
    monkeypatch.setattr(guide, "trained_methods", lambda: without)
    before = advice(asked)
    assert before.best == "ppo" != before.recommendation and "whet does not train PPO" in before.reasons[1]
    monkeypatch.setattr(guide, "trained_methods", lambda: {**without, "ppo": critic})
    after = advice(asked)
    assert after.recommendation == "ppo" and "does not train" not in " ".join(after.reasons)
    assert after.memory.gigabytes > 7 * (18 + 18 + 6) and any("critic" in part for part in after.memory.parts)
    tight = advice(replace(asked, memory_gigabytes=250.0))
    assert tight.recommendation != "ppo" and tight.memory.fits and "your 250 GB" in " ".join(tight.reasons)


def test_preferences_and_labels_get_an_honest_answer(monkeypatch):
    for signal, title, file in (("preferences", "DPO", "chosen.jsonl"), ("labels", "KTO", "liked.jsonl")):
        with monkeypatch.context() as patch:
            patch.setattr(guide, "trained_methods", lambda: catalogue.methods("policy"))
            found = advice(Situation(signal))
        assert found.recommendation == "sft" and f"whet does not train {title} yet" in found.reasons[1]
        assert "can do today" in found.reasons[2] and file in found.command
        assert any("turned down" in each for each in found.warnings)
        found = advice(Situation(signal))
        assert found.title == title and str(found.rehearsal).startswith(f"whet train {found.recommendation}")


def test_the_warnings_are_about_what_was_said():
    def minds(word, **fields):
        return any(word in each for each in advice(Situation(**fields)).warnings)

    assert minds("Reward hacking") and minds("Reward hacking", signal="reward_model")
    assert minds("keep the KL", signal="reward_model") and not minds("keep the KL")
    assert minds("collapse the entropy", several_updates=True) and not minds("collapse the entropy")
    assert minds("cut off at 900 tokens", completion_tokens=900) and not minds("cut off")
    assert minds("every ratio is 1", mixture_of_experts=True)
    assert not minds("every ratio is 1", mixture_of_experts=True, several_updates=True)
    assert minds("--env file.py:Class", turns=True) and not minds("environment")
    assert "--env" in advice(Situation(turns=True)).command and "--env" not in advice(Situation()).command
    assert minds("100 rows are few", data_size=100) and minds("rows are few", data_size=guide.FEW_ROWS - 1)
    assert not minds("rows are few", data_size=guide.FEW_ROWS)
    assert minds("No KL", completion_tokens=8000) and not minds("No KL")
    assert minds("advice for pass@1", goal="pass_at_k", turns=True) and not minds("advice for pass@1", goal="pass_at_k")


def test_the_memory_is_the_planners():
    policy = advice(Situation("demonstrations", model_billions=7.0, memory_gigabytes=200.0)).memory
    assert policy.fits and 7 * 18 < policy.gigabytes < 200 and policy.verdict.startswith("fits: ")
    tied = advice(Situation("reward_model", model_billions=7.0)).memory
    assert tied.fits is None and "--memory" in tied.verdict and tied.gigabytes > policy.gigabytes + 7 * 6
    longer = advice(Situation(model_billions=7.0, completion_tokens=3000)).memory
    assert longer.gigabytes > advice(Situation(model_billions=7.0, completion_tokens=30)).memory.gigabytes
    for billions in (1e-6, 1e6):  # nobody has such a model, and nobody gets an error
        assert memory_estimate(billions, 80.0, frozenset()).fits is (billions < 1)


@for_every(
    [
        (7.0, set(), "it does with --set batch.micro_batch_tokens=4096, which saves"),
        (6.0, {"ref_logp"}, "it does with --set model.reference=reload, which saves"),
        (5.0, {"value", "ref_logp"}, "--set critic.trunk=shared, which saves"),
        (9.0, {"ref_logp"}, "it does with --set optimizer.states=int8 --set model.weights=bfloat16, which saves"),
        (20.0, {"ref_logp"}, "it does with --set model.lora=16, which saves"),
        (300.0, {"ref_logp"}, "no setting makes it fit: take a smaller model"),
    ]
)
def test_what_does_not_fit_gets_a_way_out(billions, needs, way_out):
    from whet.settings.layers import from_settings
    from whet.training.config import resolved

    found = memory_estimate(billions, 160.0, frozenset(needs))
    assert found.fits is False and found.verdict.startswith("does not fit: ") and found.verdict.count(way_out) == 1
    config = resolved(
        "ppo" if "value" in needs else "grpo", from_settings(re.findall(r"--set (\S+=\w+)", found.verdict))
    )
    assert config.model.reference == ("reload" if "reload" in way_out else "memory")


def test_a_reference_that_does_not_fit_is_left_out():
    asked = Situation(model_billions=7.0)
    advised = [advice(replace(asked, memory_gigabytes=room)).recommendation for room in (250.0, 180.0, 80.0)]
    assert advised == ["grpo", "dr_grpo", "grpo"]
    found = advice(replace(asked, memory_gigabytes=180.0))
    assert found.memory.fits and "does not fit your 180 GB" in found.reasons[1]


def test_every_method_named_in_a_rule_is_in_the_guide():
    named = {method for rule in RULES for method in (*rule.ranking, *rule.also, *rule.when)}
    assert named <= set(GUIDE) and set(GUIDE) - named <= {"gmpo"}
    assert all(set(rule.when) <= {*rule.ranking, *rule.also} for rule in RULES)


@for_every(
    [
        ({"signal": "verifable"}, "did you mean 'verifiable'"),
        ({"goal": "pass@z"}, "give one of pass_at_1, pass_at_k"),
        ({"model_billions": -7}, "model_billions (--model-size) is -7; give a number above 0"),
        ({"memory_gigabytes": float("nan")}, "memory_gigabytes (--memory) is nan"),
        ({"completion_tokens": 0}, "completion_tokens (--completion-tokens) is 0"),
    ]
)
def test_a_mistake_gets_one_line_with_the_fix(fields, fix):
    with pytest.raises(WhetError) as error:
        situation_from(fields)
    assert fix in str(error.value) and "\n" not in str(error.value)


def answers(*given):
    """A reader that gives these answers, and the prompts it saw."""
    left, seen = list(given), []

    def read(prompt):
        seen.append(prompt)
        if not left:
            raise KeyboardInterrupt
        return left.pop(0)

    return read, seen


def test_the_questions_make_a_situation():
    shown = []
    read, _ = answers("1", "30", "1000", "2", "1", "8000", "2", "2", "2", "500")
    assert ask(read, shown.append) == Situation(
        "verifiable", 30.0, True, 1000.0, 8000, True, group_sampling=True, turns=True, goal="pass_at_k", data_size=500
    )
    assert sum(line.endswith("?") for line in shown) == len(QUESTIONS) == 10
    read, _ = answers(*[""] * 10)
    assert ask(read, shown.append) == Situation()


@pytest.mark.parametrize("signal", FILES)
def test_offline_signals_are_asked_less(signal):
    read, seen = answers(str(SIGNALS.index(signal) + 1), "7", "", "")
    assert ask(read, lambda line: None) == Situation(signal, 7.0) and len(seen) == 4


def test_a_wrong_answer_is_asked_again_and_control_c_leaves():
    shown = []
    read, seen = answers("9", "one", "3", "many", "-2", "0.5", "", "2.5", "40")
    assert ask(read, shown.append) == Situation("labels", 0.5, data_size=40) and len(seen) == 9
    assert shown.count("  give a number from 1 to 5, or nothing for 1") == 2
    assert shown.count("  give a number above 0, or nothing if you do not know") == 2
    assert shown.count("  give a whole number above 0, or nothing if you do not know") == 1
    read, _ = answers("1")
    assert ask(read, shown.append) is None and shown[-1] == ""


def test_the_text_and_the_record_hold_the_whole_advice():
    situation = Situation("preferences", model_billions=7.0, memory_gigabytes=80.0)
    found = advice(situation)
    text = advice_text(situation, found)
    flat = " ".join(text.split())
    for part in (
        found.title,
        found.command,
        *found.reasons,
        *found.warnings,
        *found.memory.parts,
        found.memory.verdict,
    ):
        assert part in flat
    assert all(len(line) <= 100 for line in text.splitlines() if line.startswith(("  - ", "    ")))
    record = json.loads(json.dumps(advice_record(situation, found)))
    assert record["recommendation"] == found.recommendation and record["situation"]["memory_gigabytes"] == 80.0
    assert record["alternatives"][0]["available"] in (True, False)


def whet(capsys, *words, monkeypatch=None):
    before = sys.argv
    sys.argv = ["whet", "advise", *words]
    try:
        cli.main()
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    finally:
        sys.argv = before
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(("flags", "methods"), table())
def test_the_command_line_takes_the_flags_of_the_page(flags, methods, capsys):
    code, out, _ = whet(capsys, *shlex.split(flags), "--json")
    assert code == 0 and json.loads(out)["best"] == methods[0]


def test_the_command_prints_the_page(capsys):
    code, out, _ = whet(capsys, "--moe", "--several-updates", "--rows", "50")
    assert code == 0 and out.startswith("GSPO (whet train gspo)")
    assert "whet train gspo --set batch.updates_per_step=4" in out and "50 rows are few" in out


def test_without_flags_and_terminal_the_flags_are_listed(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    code, out, err = whet(capsys)
    assert code == 2 and out == "" and err == f"whet: {NO_ANSWERS}\n"
    assert all(flag in err for flag in FLAGS) and "such as: whet advise --signal" in err


def test_a_mistaken_flag_is_one_line(capsys):
    code, _, err = whet(capsys, "--signal", "prefrences")
    assert code == 2 and err.startswith("whet: ") and "did you mean 'preferences'" in err
    assert len(err.strip().splitlines()) == 1


def test_on_a_terminal_it_asks_and_control_c_leaves_cleanly(capsys, monkeypatch):
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    given = iter(["4", "", "", ""])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(given))
    code, out, _ = whet(capsys)
    assert code == 0 and "What tells a good completion?" in out and "whet train sft --model MODEL" in out

    def interrupt(prompt=""):
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupt)
    code, out, err = whet(capsys)
    assert code == 130 and err == "" and "Run, with" not in out
