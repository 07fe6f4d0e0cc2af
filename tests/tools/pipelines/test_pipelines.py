"""Every pipeline is composed without running: its stages and what they read, its settings, its defaults, mistakes."""

import json
import tomllib

import pytest

from tests.support.for_every import for_every
from whet.tools.pipelines.library.entry import compose
from whet.tools.pipelines.library.trainings import memory_of, passes_of, steps_within
from whet.tools.pipelines.registry import PIPELINES
from whet.tools.pipelines.runner import planned_text, run_pipeline
from whet.tools.pipelines.settings import resolve_settings, settings_toml
from whet.tools.pipelines.training import steps_for
from whet.types import WhetError


def built_in(name, **layer):
    return resolve_settings(PIPELINES[name], layer)


def composed(name, **layer):
    settings = built_in(name, **layer)
    return compose(settings, PIPELINES[name].stages(settings))


def entries(name, **layer):
    return {entry.name: entry for entry in PIPELINES[name].stages(built_in(name, **layer))}


# each stage with those that it reads: what a change of one redoes
READS = {
    "iterative_dpo": {
        "eval0": (),
        "round1-completions": (),
        "round1-pairs": ("round1-completions",),
        "round1-train": ("round1-pairs",),
        "round1-eval": ("round1-train",),
        "round2-completions": ("round1-train",),
        "round2-pairs": ("round2-completions",),
        "round2-train": ("round2-pairs", "round1-train"),
        "round2-eval": ("round2-train",),
    },
    "spin": {
        "demonstrations": (),
        "eval0": (),
        "round1-completions": ("demonstrations",),
        "round1-pairs": ("round1-completions", "demonstrations"),
        "round1-train": ("round1-pairs",),
        "round1-eval": ("round1-train",),
        "round1-imitate": ("demonstrations", "round1-train"),
        "round1-imitate-eval": ("round1-imitate",),
    },
    "rlaif": {
        "eval0": (),
        "judge-completions": (),
        "judge-examples": ("judge-completions",),
        "judge-train": ("judge-examples",),
        "judge-eval": ("judge-completions", "judge-train", "judge-examples"),
        "completions": (),
        "pairs": ("completions", "judge-train"),
        "reward-model": ("pairs",),
        "train": ("reward-model",),
        "eval1": ("train",),
    },
    "self_rewarding": {
        "examples": (),
        "teach": ("examples",),
        "eval0": ("teach",),
        "judge0": ("teach",),
        "round1-pairs": ("teach",),
        "round1-train": ("round1-pairs", "teach"),
        "round1-eval": ("round1-train",),
        "round1-collapse": ("round1-train", "round1-pairs", "judge0", "eval0", "round1-eval"),
    },
    "constitutional": {
        "examples": (),
        "teach": ("examples",),
        "eval0": ("teach",),
        "revisions": ("teach",),
        "revise": ("revisions", "teach"),
        "eval1": ("revise",),
        "completions": ("revise",),
        "pairs": ("completions", "teach"),
        "train": ("pairs", "revise"),
        "eval2": ("train",),
    },
    "rlhf": {
        "completions": (),
        "all-pairs": ("completions",),
        "pairs": ("all-pairs",),
        "sft": ("pairs",),
        "reward-model": ("pairs", "sft"),
        "judge-model": ("pairs",),
        "sft-judged": ("sft", "pairs", "judge-model", "reward-model"),
        "ppo-train": ("pairs", "sft", "reward-model", "sft-judged"),
        "ppo-judged": ("ppo-train", "sft", "pairs", "judge-model", "reward-model", "sft-judged"),
        "dpo-train": ("pairs", "sft", "ppo-train", "sft-judged"),
        "dpo-judged": ("dpo-train", "sft", "pairs", "judge-model", "reward-model", "sft-judged"),
        "grpo-train": ("pairs", "sft", "reward-model", "ppo-train", "sft-judged"),
        "grpo-judged": ("grpo-train", "sft", "pairs", "judge-model", "reward-model", "sft-judged"),
        "best_of_n-judged": ("sft", "pairs", "judge-model", "reward-model", "sft-judged", "ppo-train"),
        "compare": (
            *("sft-judged", "ppo-train", "dpo-train", "grpo-train", "best_of_n-judged"),
            *("ppo-judged", "dpo-judged", "grpo-judged"),
        ),
    },
    "phased": {
        "pairs": (),
        "judge-model": ("pairs",),
        "start-measured": ("pairs", "judge-model"),
        "preference": ("pairs",),
        "preference-measured": ("preference", "pairs", "judge-model", "start-measured"),
        "rl": ("preference",),
        "rl-measured": ("rl", "pairs", "judge-model", "start-measured"),
        "rl-unguarded": ("preference",),
        "rl-unguarded-measured": ("rl-unguarded", "pairs", "judge-model", "start-measured"),
        "check": ("start-measured", "preference-measured", "rl-measured", "rl-unguarded-measured"),
    },
}


@for_every(READS)
def test_the_stages_of_a_pipeline_and_what_each_reads(name):
    layer = {"rounds": 1} if name in ("spin", "self_rewarding") else {}
    assert {stage.name: stage.reads for stage in composed(name, **layer)} == READS[name]


def test_pipelines_whose_stages_another_test_runs_are_composed_too():
    names = {name: [stage.name for stage in composed(name)] for name in ("r1", "r1_zero", "rejection", "ttrl")}
    assert [name for name in names["r1"] if "eval" not in name] == [
        "cold-start", "reasoning-rl", "completions", "kept", "second-sft", "final-rl",
    ]  # fmt: skip
    assert names["r1_zero"] == ["eval-base", "rl", "eval-rl", "re-checks"]
    assert names["rejection"][:5] == [
        "eval-base", "round1-completions", "round1-kept", "round1-sft", "eval-round1-sft",
    ]  # fmt: skip
    assert {"votes-before", "rl", "votes-after"} <= set(names["ttrl"])


def test_more_rounds_do_not_change_the_first_ones():
    from whet.tools.pipelines.stages import stage_fingerprints

    for name in ("iterative_dpo", "spin", "self_rewarding"):
        few, more = (stage_fingerprints(composed(name, rounds=rounds)) for rounds in (1, 2))
        assert more.items() >= few.items() and len(more) > len(few), name


def test_each_round_asks_new_prompts_and_starts_from_the_last():
    rounds = entries("iterative_dpo", rounds=3)
    asked = [(rounds[f"round{at}-completions"].first, rounds[f"round{at}-completions"].count) for at in (1, 2, 3)]
    assert asked == [(0, 128), (128, 128), (256, 128)]
    assert [rounds[f"round{at}-train"].start for at in (1, 2, 3)] == ["", "round1-train", "round2-train"]
    spin = entries("spin")
    assert spin["round2-imitate"].start == "round1-imitate" and spin["round2-imitate"].steps_of == "round2-train"
    assert (
        spin["round2-imitate-eval"].against == "round1-imitate-eval" and spin["round2-imitate-eval"].who != "the policy"
    )
    judged = entries("rlaif")
    assert judged["completions"].first == judged["judge-completions"].count == 640


def test_the_judge_sees_other_pairs_and_policies_learn_from_the_reward_model_alone():
    found = entries("rlhf")
    assert (found["reward-model"].data, found["judge-model"].data) == ("pairs/own.jsonl", "pairs/other_half.jsonl")
    assert (found["reward-model"].seed_offset, found["judge-model"].seed_offset) == (0, 1000)
    assert (found["reward-model"].start, found["judge-model"].start) == ("sft", "")
    assert found["ppo-train"].prompts == found["grpo-train"].prompts == "pairs/prompts.jsonl"
    assert found["dpo-train"].data == "pairs/own.jsonl" and found["sft"].data == "pairs/chosen.jsonl"
    assert {found[f"{way}-train"].start for way in ("ppo", "dpo", "grpo")} == {"sft"}
    assert (found["ppo-train"].steps, found["grpo-train"].steps, found["grpo-train"].cost_of) == (12, 0, "ppo-train")
    alone = entries("rlhf", compare="best_of_n", sft_epochs=0)
    assert "sft" not in alone and alone["best_of_n-judged"].cost_of == ""


def test_the_guard_is_the_kl_to_the_first_phase_and_is_off_beside_it():
    found = entries("phased", guard_kl=0.3, replay_epochs=0.5)
    assert found["rl"].train["objective"]["kl"] == {"kind": "k3", "beta": 0.3}
    assert found["rl-unguarded"].train["objective"]["kl"] == {"kind": "none"}
    assert found["replay"].start == "rl" and found["replay"].epochs == 0.5
    other = entries("phased", order="rl_first")
    assert (other["rl"].start, other["preference"].start, other["check"].taught) == ("", "rl", "rl")
    assert "rl-unguarded" not in other and list(other["check"].phases) == ["rl", "preference"]


def test_helpful_rows_are_mixed_in_and_conduct_is_measured_where_there_is_no_task(tmp_path):
    rows = {
        "asked.jsonl": [{"prompt": f"question {at}"} for at in range(20)],
        "held.jsonl": [{"prompt": f"other {at}", "label": "unsafe"} for at in range(4)],
        "helpful.jsonl": [{"prompt": f"help {at}", "completion": "yes"} for at in range(4)],
    }
    for name, lines in rows.items():
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    stages = composed(
        "constitutional",
        data={"source": str(tmp_path / "asked.jsonl")},
        eval={"source": str(tmp_path / "held.jsonl")},
        helpful=str(tmp_path / "helpful.jsonl"),
        forbidden="label=unsafe",
        prompts=8,
        preference_prompts=8,
    )
    assert [stage.name for stage in stages] == [
        *("conduct0", "revisions", "mixture", "revise", "conduct1", "completions", "pairs", "train", "conduct2"),
    ]
    assert [stage.measures for stage in stages if stage.measures] == [("the policy", at) for at in (0, 1, 2)]


def test_a_policy_is_evaluated_on_the_way_only_where_there_is_something_to_measure_by(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    judge = {"settings": {"base_url": "http://localhost:1/v1", "model": "any"}, "verdict": "text"}
    bare = entries("rlaif", data={"source": str(file)}, judge=judge)
    assert bare["train"].train["eval"] == {"prompts": 0, "every": 0} and "eval0" not in bare
    assert entries("rlaif")["train"].train["eval"] == {"prompts": 200, "every": 5}
    (watched,) = entries("rlaif")["train"].reward.parts
    assert watched.weight == 0 and entries("rlaif")["train"].reward_model_rows == "all"


# --- costs ---


def test_the_first_method_sets_the_budget_and_pairs_are_passed_over_no_more_than_allowed():
    settings = built_in("rlhf")
    found = {stage.name: stage for stage in PIPELINES["rlhf"].stages(settings)}
    assert found["dpo-train"].most_epochs == 1.0
    assert steps_within(1000.0, 10.0) == 100 and steps_within(1000.0, 10.0, most=7) == 7
    from whet.training.config import resolved

    # sampled; read by reference, reward model, critic and (4 updates) the policy; both learn
    assert passes_of(resolved("ppo", {})).cost == 11 and passes_of(resolved("grpo", {})).cost == 6
    assert passes_of(resolved("dpo", {})).cost == 4


def test_the_memory_of_all_four_models_is_said():
    stages = {
        stage.name: stage.plan.cost.note for stage in composed("rlhf", model={"name": "smollm2", "device": "cpu"})
    }
    told = stages["ppo-train"].partition("moments of ")[2]
    assert [word.split(" ")[0] for word in told.split(", ")] == ["policy", "reference", "critic", "reward"]
    assert "policy 2.15 GB" in told  # 134.5M weights x 16 bytes: weights, gradients, two moments
    assert "critic" not in stages["grpo-train"] and "reward model" not in stages["dpo-train"]
    from whet.training.config import resolved

    assert memory_of(resolved("dpo", {"model": {"name": "smollm2"}})).startswith("policy 2.15 GB, reference")


# --- defaults: what the docs pages say was measured is what a run without settings does ---


def test_the_built_in_model_writes_short_completions_and_learns_from_few_rows():
    for name in PIPELINES:
        settings = built_in(name)
        budget = 48 if name == "overoptimization" else 64
        assert settings.sampling.max_new_tokens == budget and settings.eval.prompts == 200, name
        assert getattr(settings, "epochs", 2) == 2, name


def test_the_sizes_of_the_published_runs():
    rounds = built_in("iterative_dpo")
    assert (rounds.prompts_per_round, rounds.completions, rounds.rounds) == (128, 8, 2)
    # docs/pipelines.md: 8 updates per round
    assert steps_for(rounds.prompts_per_round, rounds.epochs, rounds.train["batch"]["rows_per_step"]) == 8
    spin = built_in("spin")
    assert spin.data.count == 512 and spin.train == spin.imitate == {"batch": {"rows_per_step": 32}}
    judged = built_in("self_rewarding")
    assert (judged.prompts_per_round, judged.completions, judged.train["batch"]["rows_per_step"]) == (128, 8, 32)
    assert (judged.judge.question, judged.judge.max_new_tokens, judged.judge.times) == ("short", 60, 3)
    assert judged.teach.train["steps"] == 200 and judged.teach.train["batch"]["rows_per_step"] == 64
    rlaif = built_in("rlaif")
    assert (rlaif.prompts, rlaif.steps, rlaif.judge.examples, rlaif.judge.verdict) == (384, 20, 640, "logp")
    assert rlaif.judge.train == {"steps": 120, "batch": {"rows_per_step": 32}}
    assert rlaif.reward_model == {"batch": {"rows_per_step": 32}} and entries("rlaif")["train"].method == "rloo"
    written = built_in("constitutional")
    assert (written.prompts, written.preference_prompts, written.critiques) == (256, 256, 1)
    assert written.critique_tokens == 24 and written.learn == "pairs" and written.teach["steps"] == 200
    assert written.revise == written.reward_model == {"batch": {"rows_per_step": 32}}
    rlhf = built_in("rlhf")
    assert (rlhf.prompts, rlhf.completions, rlhf.steps, rlhf.most_n) == (1024, 4, 12, 16)
    assert (rlhf.judged_prompts, rlhf.judged_completions, rlhf.sft_epochs) == (80, 4, 0.5)
    phased = built_in("phased")
    assert (phased.pairs, phased.prompts, phased.steps, phased.guard_kl) == ("task:lists", 1024, 15, 0.04)


def test_a_larger_model_gets_the_numbers_of_the_papers():
    large = {name: built_in(name, model={"name": "smollm2"}) for name in PIPELINES}
    assert large["iterative_dpo"].prompts_per_round == large["self_rewarding"].prompts_per_round == 1024
    assert large["rlaif"].prompts == large["constitutional"].prompts == 1024
    assert (large["rlaif"].judge.examples, large["rlaif"].judge.verdict, large["rlaif"].steps) == (1024, "text", 100)
    assert large["constitutional"].critiques == 4 and large["constitutional"].learn == "reward_model"
    assert large["self_rewarding"].judge.question == "rubric" and large["self_rewarding"].judge.max_new_tokens == 200


def test_settings_are_shown_as_they_are_read_back():
    for name, pipeline in PIPELINES.items():
        measured = {} if "eval" in built_in(name).idle() else {"eval": {"prompts": 6}}
        settings = built_in(name, data={"difficulty": [1]}, **measured)
        assert resolve_settings(pipeline, tomllib.loads(settings_toml(settings))) == settings, name


# --- mistakes ---

SERVER = {"base_url": "http://localhost:1/v1", "model": "b"}
MISTAKES = [
    ("spinn", {}, "did you mean 'spin'"),
    ("spin", {"round": 3}, "did you mean 'rounds'"),
    ("spin", {"rounds": 0}, "rounds is 0"),
    ("spin", {"train": {"optimizer": {"learning_rat": 1}}}, "did you mean 'optimizer.learning_rate'"),
    ("spin", {"imitate": {"steps": 3}}, "train.steps and steps_of both say how long"),
    ("spin", {"imitate": {"data": {"source": "x"}}}, "train.data is set by the stage itself"),
    ("spin", {"method": "grpo"}, "does not learn from pairs"),
    ("spin", {"data": {"limit": 3}}, "data.limit has no effect"),
    ("spin", {"reward": {"parts": [{"reward": "exact_answer"}]}}, "reward has no effect"),
    ("iterative_dpo", {"method": "dppo"}, "no method is called"),
    ("iterative_dpo", {"train": {"preference": {"online": 4}}}, "drop online"),
    ("rlaif", {"judge": {"name": "a", "settings": SERVER}}, "both name"),
    ("rlaif", {"judge": {"settings": SERVER, "verdict": "logp"}}, "a server is read as text"),
    ("rlaif", {"judge": {"settings": {"modle": "b"}}}, "modle"),
    ("rlaif", {"judge": {"settings": {"alone": True}}}, "judge.settings.alone has no effect"),
    ("rlaif", {"data": {"source": "rows.jsonl"}}, "name a model or server"),
    ("rlaif", {"method": "dpo"}, "does not learn from reward_model"),
    ("rlaif", {"learn": "pairs", "method": "ipo"}, "soft_labels: ipo cannot weight pairs by preference"),
    ("rlaif", {"learn": "pairs", "steps": 3}, "steps has no effect"),
    ("rlaif", {"train": {"steps": 3}}, "set steps instead"),
    ("rlaif", {"judge": {"name": "whetstone", "examples": 3}}, "judge.examples has no effect"),
    ("self_rewarding", {"anchor_weight": 0.3}, "anchor_weight has no effect without anchor.parts"),
    ("self_rewarding", {"judge": {"tmies": 3}}, "did you mean 'judge.times'"),
    ("self_rewarding", {"teach": {"train": {"model": {"name": "a"}}}}, "train.model.name is the stage's start"),
    ("self_rewarding", {"data": {"source": "a.jsonl"}, "judge": {"eval_prompts": 3}}, "eval_prompts has no effect"),
    ("constitutional", {"constitution": "nowhere.toml"}, "nowhere.toml cannot be read"),
    ("constitutional", {"helpful": "absent.jsonl"}, "absent.jsonl"),
    ("constitutional", {"data": {"source": "absent.jsonl"}}, "absent.jsonl"),
    ("constitutional", {"forbidden": "unsafe"}, "give COLUMN=VALUE"),
    ("constitutional", {"feedback": {"reason_tokens": 3}}, "has no effect without feedback.reason"),
    ("constitutional", {"learn": "pairs", "steps": 3}, "steps has no effect"),
    ("constitutional", {"method": "ppo"}, "does not learn from pairs"),
    ("rlhf", {"data": {"source": "prompts.jsonl"}}, "has no preferences; give --set pairs=FILE"),
    ("rlhf", {"pairs": "missing.jsonl"}, "pairs: missing.jsonl is not there"),
    ("rlhf", {"compare": ["ppoo"]}, "did you mean 'ppo'"),
    ("rlhf", {"compare": ["sft"]}, "learns neither from a reward nor from pairs"),
    ("rlhf", {"compare": ["dpo", "dpo"]}, "names dpo twice"),
    ("rlhf", {"train": {"rloo": {"batch": {"group_size": 2}}}}, "train.rloo: no method of compare is called that"),
    ("rlhf", {"train": {"ppo": {"batch": {"grup_size": 2}}}}, "did you mean 'batch.group_size'"),
    ("rlhf", {"train": {"dpo": {"steps": 2}}}, "train.dpo.steps is set by the pipeline"),
    ("rlhf", {"train": {"dpo": {"preference": {"online": 4}}}}, "drop online"),
    ("rlhf", {"sft_epochs": 0, "sft": {"batch": {"rows_per_step": 2}}}, "sft has no effect"),
    ("rlhf", {"compare": ["dpo"], "most_n": 3}, "most_n has no effect"),
    ("rlhf", {"allow_overlap": True}, "allow_overlap has no effect"),
    ("rlhf", {"held_out": "more.jsonl"}, "held_out has no effect"),
    ("rlhf", {"as_chat": True}, "as_chat has no effect"),
    ("rlhf", {"reward_model": {"optimizer": {"learning_rat": 1}}}, "stage 'reward-model': train: "),
    ("phased", {"method": "grpo"}, "does not learn from pairs"),
    ("phased", {"rl_method": "dpo"}, "draws no completions"),
    ("phased", {"eval": {"prompts": 0}}, "give eval.source"),
    ("phased", {"train": {"objective": {"kl": {"beta": 1.0}}}}, "set guard_kl instead"),
    ("phased", {"order": "rl_first", "guard_kl": 0.1}, "guard_kl has no effect"),
    ("phased", {"guard_kl": 0, "compare_unguarded": True}, "compare_unguarded has no effect"),
    ("phased", {"preference": {"preference": {"online": 2}}}, "drop online"),
    ("phased", {"completions": 3}, "completions has no effect"),
]


def test_every_mistake_is_one_line_before_anything_is_done(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = []
    for name, layer, said in MISTAKES:
        try:
            planned_text(name, layer)
            wrong.append((name, layer, "not refused"))
        except WhetError as error:
            if said not in str(error) or "\n" in str(error):
                wrong.append((name, layer, str(error)))
    assert not wrong
    with pytest.raises(WhetError, match="did you mean 'rounds'"):
        run_pipeline("spin", {"round": 3})
    assert not list(tmp_path.iterdir())
