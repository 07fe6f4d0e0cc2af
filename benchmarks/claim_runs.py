"""The documents' claims about training, and the runs that decide them.

An arm is a method with settings; every seed of it is one run, and claims share runs by the names of the arms. The
claims that say most come first: where time runs out, the last ones go without. Documents are named as docs/claims.md
lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from claim_rules import (
    END,
    LATE,
    START,
    RunClaim,
    above,
    apart,
    best_of,
    curve_until,
    ending,
    learned,
    metric,
    moved,
    whole_curve,
)

from whet.settings.layers import merged

Settings = Mapping[str, Any]
Arm = tuple[str, Settings]

RUNS = "RUNS"  # in a setting: the folder that the runs are made in
HERE = "BENCHMARKS"  # in a setting: the folder of this file

UNTIED: Settings = {"objective": {"kl": "none"}}
OFTEN: Settings = {"eval": {"every": 4, "prompts": 100}}  # of every run that draws completions
# several updates on one batch, at a rate at which ratios leave the clip's band
REUSED: Settings = merged(UNTIED, {"batch": {"updates_per_step": 4}, "optimizer": {"learning_rate": 3e-4}, "steps": 24})
BY_TOKENS: Settings = merged(REUSED, {"objective": {"aggregate": "token_mean"}})
# the longest solutions do not fit
SHORT: Settings = merged(UNTIED, {"data": {"difficulty": [1, 2, 3, 4]}, "sampling": {"max_new_tokens": 36}})
MIXTURE: Settings = {
    "model": {"name": f"{RUNS}/mixture.run", "precision": "fp32"},
    "data": {"difficulty": [1, 2]},
    "sampling": {"max_new_tokens": 32},
    "batch": {"prompts_per_step": 8, "group_size": 8, "updates_per_step": 4},
    "optimizer": {"learning_rate": 2e-4, "warmup_steps": 0},
    "eval": {"every": 10},
    "steps": 20,
}
STUDENT: Settings = {
    "model": {"name": f"{RUNS}/student.run", "precision": "fp32"},
    "sampling": {"max_new_tokens": 64},
    "eval": {"every": 20},
    "steps": 60,
}
STUDENT_RL: Settings = merged(STUDENT, {"batch": {"prompts_per_step": 16, "group_size": 8}})


def parts(*named: tuple[str, Any], **first: Any) -> Settings:
    """The parts of a reward, each a name and a weight (or the points of a schedule)."""
    return {"reward": {"parts": [{"reward": name, "weight": weight, **first} for name, weight in named]}}


def scored_by(model: str, exact: float = 0.0, tie: Settings | None = None, **settings: Any) -> Settings:
    """A reward model's score, beside the true answer, which counts `exact`."""
    learned_part = {
        "reward": "learned",
        "weight": 1.0 - exact,
        "settings": {"folder": f"{RUNS}/{model}.run"} | settings,
    }
    return merged(tie or UNTIED, {"reward": {"parts": [{"reward": "exact_answer", "weight": exact}, learned_part]}})


def rising(low: float, high: float) -> list[list[float]]:
    """A weight that changes once a fifth of the training is over."""
    return [[0.0, low], [0.2, low], [0.4, high]]


# runs whose models others start from or are scored by: made once, with seed 0
MODELS: Mapping[str, Arm] = {
    "rm": ("rm", {}),
    "rm4": ("rm", {"reward_model": {"heads": 4}}),
    "student": (
        "sft",
        {
            "model": {"name": f"{RUNS}/fresh-student", "precision": "fp32"},
            "data": {"count": 20000, "share_worked": 0.35},
            "sampling": {"max_new_tokens": 64},
            "batch": {"rows_per_step": 128},
            "optimizer": {"learning_rate": 1e-3, "schedule": "constant", "warmup_steps": 0},
            "eval": {"every": 0},
            "steps": 60,
        },
    ),
    "mixture": (
        "sft",
        {
            "model": {"name": f"{RUNS}/fresh-mixture", "precision": "fp32"},
            "data": {"difficulty": [1, 2], "count": 20000},
            "sampling": {"max_new_tokens": 32},
            "batch": {"rows_per_step": 64},
            "optimizer": {"learning_rate": 3e-3, "schedule": "cosine", "warmup_steps": 0},
            "eval": {"every": 0},
            "steps": 180,
        },
    ),
}

_ARMS: Mapping[str, Arm] = {
    "grpo": ("grpo", {}),
    "untied": ("grpo", UNTIED),
    "dr_grpo": ("dr_grpo", {}),
    "by_tokens": ("grpo", merged(UNTIED, {"objective": {"aggregate": "token_mean"}})),
    "dynamic": ("grpo", merged(UNTIED, {"objective": {"keep": "mixed_outcome"}})),
    "reused": ("grpo", REUSED),
    "reused_unclipped": ("grpo", merged(REUSED, {"objective": {"clip": "unclipped"}})),
    "reused_tokens": ("grpo", BY_TOKENS),
    "reused_higher": ("grpo", merged(BY_TOKENS, {"objective": {"clip": {"high": 0.28}}})),
    "reused_gspo": ("gspo", REUSED),
    "reused_gspo_wide": ("gspo", merged(REUSED, {"objective": {"clip": {"low": 0.2, "high": 0.2}}})),
    "reused_cispo": ("cispo", REUSED),
    "reused_dapo": ("dapo", REUSED),
    "ppo": ("ppo", {}),
    "ppo_from_rm": ("ppo", {"critic": {"start": f"{RUNS}/rm.run/final"}}),
    "rloo": ("rloo", {}),
    "reinforce": ("reinforce", {}),
    "tied_hard": ("grpo", {"objective": {"kl": {"beta": 1.0}}}),
    "tied_little": ("grpo", {"objective": {"kl": {"beta": 0.001}}}),
    "cold": ("grpo", {"sampling": {"temperature": 0.1}}),
    "cool": ("grpo", {"sampling": {"temperature": 0.7}}),
    "hot": ("grpo", {"sampling": {"temperature": 1.5}}),
    "groups_of_2": ("grpo", {"batch": {"prompts_per_step": 64, "group_size": 2}}),
    "groups_of_16": ("grpo", {"batch": {"prompts_per_step": 8, "group_size": 16}}),
    "fast": ("grpo", {"optimizer": {"learning_rate": 5e-3}}),
    "format_even": ("grpo", parts(("exact_answer", 0.8), ("think_format", 0.2))),
    "format_first": ("grpo", parts(("exact_answer", rising(0.2, 0.8)), ("think_format", rising(0.8, 0.2)))),
    "format_only": ("grpo", parts(("exact_answer", 0.0), ("think_format", 1.0))),
    "watched": ("grpo", parts(("exact_answer", 1.0), ("working_steps", 0.0))),
    "process": ("grpo_process", {}),
    "wordy": ("grpo", parts(("exact_answer", 0.0), (f"{HERE}/claim_rewards.py:wordy", 1.0))),
    "wordy_fined": (
        "grpo",
        parts(("exact_answer", 0.0), (f"{HERE}/claim_rewards.py:wordy", 1.0), ("repetition", 1.0)),
    ),
    "short": ("grpo", SHORT),
    "short_shaped": ("grpo", merged(SHORT, {"objective": {"shape": "soft_overlong"}})),
    "short_filtered": ("grpo", merged(SHORT, {"objective": {"select": "finished"}})),
    "rm_alone": ("grpo", scored_by("rm")),
    "rm_tied": ("grpo", scored_by("rm", tie={"objective": {"kl": {"beta": 0.3}}})),
    "rm_with_rule": ("grpo", scored_by("rm", exact=0.5)),
    "rm_mean": ("grpo", scored_by("rm4")),
    "rm_lowest": ("grpo", scored_by("rm4", ensemble="worst")),
    "dpo": ("dpo", {}),
    "dpo_tight": ("dpo", {"objective": {"curve": {"beta": 0.5}}}),
    "ipo": ("ipo", {}),
    "dpop": ("dpop", {}),
    "dpo_online": ("dpo", {"preference": {"online": 8}, "batch": {"rows_per_step": 16}, "steps": 20}),
    "simpo_online": ("simpo", {"preference": {"online": 8}, "batch": {"rows_per_step": 16}, "steps": 20}),
    "mixture_grpo": ("grpo", merged(MIXTURE, UNTIED)),
    "mixture_gspo": ("gspo", MIXTURE),
    "student_traces": (
        "sft",
        merged(
            STUDENT,
            {
                "data": {"share_worked": 1.0, "count": 7680},
                "batch": {"rows_per_step": 128},
                "optimizer": {"learning_rate": 1e-3, "warmup_steps": 0},
            },
        ),
    ),
    "student_rl": ("grpo", merged(STUDENT_RL, {"optimizer": {"learning_rate": 3e-4, "warmup_steps": 0}})),
    "student_rl_fast": ("grpo", merged(STUDENT_RL, {"optimizer": {"learning_rate": 1e-3, "warmup_steps": 0}})),
}

OFFLINE = ("dpo", "dpo_tight", "ipo", "dpop", "student_traces")
ARMS: Mapping[str, Arm] = {
    name: arm if name in OFFLINE else (arm[0], merged(OFTEN, arm[1])) for name, arm in _ARMS.items()
}

ACCURACY = "held-out accuracy at the end"
CURVE = "held-out accuracy, mean over the training"
RIGHT = "share of right completions, mean over the training"

CLAIMS: tuple[RunClaim, ...] = (
    RunClaim(
        "grpo_learns",
        "Comparing the completions of a group with each other is enough to learn from: no critic is needed.",
        "A §3.1, E (motivation)",
        ("grpo",),
        "held-out accuracy, end less start",
        learned("grpo"),
    ),
    RunClaim(
        "length_grows",
        "Trained on the answer's correctness alone, completions grow longer by themselves (R1-Zero).",
        "B §5.3, C §7",
        ("grpo",),
        "tokens per completion, last five steps less first five",
        moved("grpo", "tokens"),
    ),
    RunClaim(
        "longer_is_righter",
        "Thinking longer is right more often: accuracy rises with the tokens spent.",
        "C §7",
        ("grpo",),
        "correlation of reward and length within groups, first five steps",
        lambda records: metric("reward_length_correlation", START)(records["grpo"]),
    ),
    RunClaim(
        "dr_grpo_wrong_shorter",
        "Without GRPO's division by the length, wrong answers are shorter (Dr. GRPO).",
        "C §5, D §3.6",
        ("dr_grpo", "untied"),
        "tokens per wrong completion in the second half: Dr. GRPO less GRPO, both without KL",
        apart("dr_grpo", "untied", metric("wrong_tokens", LATE)),
        -1,
    ),
    RunClaim(
        "dr_grpo_fewer_tokens",
        "Dr. GRPO needs fewer tokens per completion than GRPO.",
        "C §5",
        ("dr_grpo", "untied"),
        "tokens per completion in the second half: Dr. GRPO less GRPO, both without KL",
        apart("dr_grpo", "untied", metric("tokens", LATE)),
        -1,
    ),
    RunClaim(
        "dr_grpo_right_longer",
        "Dr. GRPO has the reverse bias: it mildly favours longer right answers.",
        "D §3.6",
        ("dr_grpo", "untied"),
        "tokens per right completion in the second half: Dr. GRPO less GRPO, both without KL",
        apart("dr_grpo", "untied", metric("right_tokens", LATE)),
    ),
    RunClaim(
        "entropy_falls",
        "Under GRPO with a symmetric clip the entropy of the policy falls.",
        "C §4, E §2",
        ("reused_tokens",),
        "entropy in nats per token, last five steps less first five, four updates per batch",
        moved("reused_tokens", "entropy"),
        -1,
    ),
    RunClaim(
        "clip_higher_entropy",
        "A higher upper clip (0.28 instead of 0.2) keeps the entropy up.",
        "C §4, D §3.6, E §2",
        ("reused_higher", "reused_tokens"),
        "entropy in nats per token, all steps: clip-higher less symmetric",
        apart("reused_higher", "reused_tokens", metric("entropy")),
    ),
    RunClaim(
        "clip_higher_accuracy",
        "Clip-higher ends with a higher score.",
        "E §2",
        ("reused_higher", "reused_tokens"),
        f"{RIGHT}: clip-higher less symmetric",
        apart("reused_higher", "reused_tokens", metric("reward.exact_answer")),
    ),
    RunClaim(
        "uniform_groups_grow",
        "As the model improves, more and more groups agree and teach nothing.",
        "E (when GRPO learns nothing)",
        ("grpo",),
        "share of groups that agree, last five steps less first five",
        moved("grpo", "uniform_groups"),
    ),
    RunClaim(
        "dynamic_sampling_steps",
        "Dropping groups that agree and drawing others (dynamic sampling) learns more in the same number of steps.",
        "C §4, D §3.6, E §1",
        ("dynamic", "untied"),
        "held-out accuracy, mean over the first 20 steps: with less without",
        apart("dynamic", "untied", curve_until(20)),
    ),
    RunClaim(
        "dynamic_sampling_cost",
        "Dynamic sampling has to write more completions for each step.",
        "D §3.6, E §1",
        ("dynamic",),
        "completions written per completion trained on, less 1",
        above("dynamic", metric("spent"), 1.0),
    ),
    RunClaim(
        "token_loss_length",
        "Averaging the loss over tokens instead of completions keeps the length from drifting upwards.",
        "E §3",
        ("by_tokens", "untied"),
        "tokens per completion in the second half: token mean less completion mean",
        apart("by_tokens", "untied", metric("tokens", LATE)),
        -1,
    ),
    RunClaim(
        "token_loss_accuracy",
        "Averaging the loss over tokens learns long solutions better.",
        "C §4, D §3.6, E §3",
        ("by_tokens", "untied"),
        f"{RIGHT}: token mean less completion mean",
        apart("by_tokens", "untied", metric("reward.exact_answer")),
    ),
    RunClaim(
        "overlong_truncation",
        "A soft penalty on length leaves fewer completions cut off.",
        "C §4, E §4",
        ("short_shaped", "short"),
        "share of completions cut off in the second half, budget too small for the longest: with less without",
        apart("short_shaped", "short", metric("truncated", LATE)),
        -1,
    ),
    RunClaim(
        "overlong_accuracy",
        "The soft penalty on length raises the score.",
        "E §4",
        ("short_shaped", "short"),
        f"{ACCURACY}: with less without",
        apart("short_shaped", "short", ending("accuracy")),
    ),
    RunClaim(
        "overlong_filter",
        "Leaving completions that were cut off out of the loss raises the score.",
        "E §4",
        ("short_filtered", "short"),
        f"{ACCURACY}: with less without",
        apart("short_filtered", "short", ending("accuracy")),
    ),
    RunClaim(
        "gspo_clips_more",
        "GSPO with its own narrow band clips far more than GRPO: by two orders of magnitude; tested is one.",
        "A Q14, E (why this matters)",
        ("reused_gspo", "reused"),
        "share of reweighted tokens: GSPO's less ten times GRPO's, four updates per batch",
        lambda records: (
            (metric("reweighted")(records["reused_gspo"]) or 0.0)
            - 10 * (metric("reweighted")(records["reused"]) or 0.0)
        ),
    ),
    RunClaim(
        "gspo_wide_never_clips",
        "With GRPO's band of 0.2 the sequence ratio of GSPO would almost never be clipped (less than 1% of tokens).",
        "A Q14",
        ("reused_gspo_wide",),
        "share of reweighted tokens, less 0.01",
        above("reused_gspo_wide", metric("reweighted"), 0.01),
        -1,
    ),
    RunClaim(
        "gspo_learns_faster",
        "GSPO trains more efficiently than GRPO on a dense model.",
        "A §6.7, E (why this matters)",
        ("reused_gspo", "reused"),
        f"{RIGHT}: GSPO less GRPO, four updates per batch",
        apart("reused_gspo", "reused", metric("reward.exact_answer")),
    ),
    RunClaim(
        "mixture_gspo",
        "On a mixture of experts GSPO trains where GRPO collapses.",
        "A §6.5, C §5.5, D §3.7",
        ("mixture_gspo", "mixture_grpo"),
        f"{RIGHT}: GSPO less GRPO, four updates per batch",
        apart("mixture_gspo", "mixture_grpo", metric("reward.exact_answer")),
    ),
    RunClaim(
        "mixture_grpo_collapses",
        "GRPO on a mixture of experts ends below where it began.",
        "A §6.1, D §3.7",
        ("mixture_grpo",),
        "held-out accuracy, end less start",
        learned("mixture_grpo"),
        -1,
    ),
    RunClaim(
        "mixture_dead_experts",
        "Under GRPO's token ratios more experts go unused than under GSPO's sequence ratio.",
        "A §6.5",
        ("mixture_gspo", "mixture_grpo"),
        "share of experts without a token in the second half: GRPO less GSPO",
        apart("mixture_grpo", "mixture_gspo", metric("dead_experts", LATE)),
    ),
    RunClaim(
        "cispo_faster_than_dapo",
        "Keeping the gradient of every token (CISPO) learns faster than DAPO's clip.",
        "C §5.5",
        ("reused_cispo", "reused_dapo"),
        "held-out accuracy, mean over the first 12 steps: CISPO less DAPO, four updates per batch",
        apart("reused_cispo", "reused_dapo", curve_until(12)),
    ),
    RunClaim(
        "cispo_entropy",
        "The clip silences rare tokens that matter; capping the weight instead keeps them, and with them the entropy.",
        "D §3.6",
        ("reused_cispo", "reused_tokens"),
        "entropy in nats per token, all steps: CISPO less GRPO's clip",
        apart("reused_cispo", "reused_tokens", metric("entropy")),
    ),
    RunClaim(
        "clip_limits_drift",
        "Over several updates of a batch the clip keeps the policy near the one that wrote it.",
        "A Q5, B Q12",
        ("reused", "reused_unclipped"),
        "KL to the policy that wrote the batch, nats per token: clipped less unclipped",
        apart("reused", "reused_unclipped", metric("kl_old")),
        -1,
    ),
    RunClaim(
        "process_beats_outcome",
        "Rewarding each step of a solution beats rewarding the final answer alone.",
        "B §7.1, Q16",
        ("process", "grpo"),
        f"{RIGHT}: step rewards less outcome rewards",
        apart("process", "grpo", metric("reward.exact_answer")),
    ),
    RunClaim(
        "rm_score_rises",
        "Against a learned reward without a KL the score of the reward model rises",
        "B §8.2",
        ("rm_alone",),
        "the reward model's score, last five steps less first five",
        moved("rm_alone", "reward.learned"),
    ),
    RunClaim(
        "rm_overoptimised",
        "... and what it stands for falls: the answers get worse (over-optimisation).",
        "B §0, §8.2",
        ("rm_alone",),
        "held-out accuracy, end less start, reward model alone, no KL",
        learned("rm_alone"),
        -1,
    ),
    RunClaim(
        "kl_against_hacking",
        "A KL penalty protects against over-optimising a reward model.",
        "B §1, §8.1, D §5",
        ("rm_tied", "rm_alone"),
        f"{ACCURACY}: KL 0.3 less none",
        apart("rm_tied", "rm_alone", ending("accuracy")),
    ),
    RunClaim(
        "ensemble_lowest",
        "The lowest score of an ensemble of reward models is harder to exploit than their mean.",
        "B §7.3, §8.1",
        ("rm_lowest", "rm_mean"),
        f"{ACCURACY}: lowest of four heads less their mean",
        apart("rm_lowest", "rm_mean", ending("accuracy")),
    ),
    RunClaim(
        "rule_against_hacking",
        "A rule mixed into a learned reward protects against its exploitation.",
        "A §5.4, B §8.1",
        ("rm_with_rule", "rm_alone"),
        f"{ACCURACY}: half rule, half reward model, less reward model alone",
        apart("rm_with_rule", "rm_alone", ending("accuracy")),
    ),
    RunClaim(
        "dpo_chosen_falls",
        "Under DPO the chosen completions, too, become less likely (likelihood displacement).",
        "B Q20, D §3.5",
        ("dpo",),
        "log-probability of held-out chosen completions, end less start, nats",
        learned("dpo", "chosen_logp"),
        -1,
    ),
    RunClaim(
        "dpo_margin_grows",
        "... while the margin between chosen and rejected grows.",
        "D §3.5",
        ("dpo",),
        "held-out margin, end less start",
        learned("dpo", "margin"),
    ),
    RunClaim(
        "dpo_ranks_only",
        "Offline, DPO only ranks what it is shown: online sampling discovers better answers.",
        "A §4.2, D §6",
        ("grpo", "dpo"),
        f"{ACCURACY}: GRPO less DPO on ready-made pairs",
        apart("grpo", "dpo", ending("accuracy")),
    ),
    RunClaim(
        "dpo_fixed_by_penalty",
        "A term that protects the chosen completion (here DPOP) keeps its likelihood up.",
        "D §3.5",
        ("dpop", "dpo"),
        "log-probability of held-out chosen completions at the end, nats: DPOP less DPO",
        apart("dpop", "dpo", ending("chosen_logp")),
    ),
    RunClaim(
        "dpo_small_beta_close",
        "In DPO a small beta keeps the policy close to the reference, a large one moves it more.",
        "D §3.5",
        ("dpo_tight", "dpo"),
        "fall of the held-out rejected log-probability, nats: beta 0.5 less beta 0.1",
        apart("dpo", "dpo_tight", ending("rejected_logp")),
    ),
    RunClaim(
        "dpo_large_beta_still",
        "In DPO a large beta makes the policy move less.",
        "A (engineering notes)",
        ("dpo_tight", "dpo"),
        "fall of the held-out rejected log-probability, nats: beta 0.5 less beta 0.1",
        apart("dpo", "dpo_tight", ending("rejected_logp")),
        -1,
    ),
    RunClaim(
        "ipo_bounds_margin",
        "Where preferences never vary, IPO keeps the log-ratios apart by less than DPO does.",
        "B §6.1, Q13",
        ("ipo", "dpo"),
        "held-out chosen less rejected log-probability at the end, nats: IPO less DPO",
        lambda records: _logp_gap(records["ipo"]) - _logp_gap(records["dpo"]),
        -1,
    ),
    RunClaim(
        "simpo_shorter",
        "Dividing by the length (SimPO) counters DPO's drift to longer answers.",
        "B §6.3, Q14",
        ("simpo_online", "dpo_online"),
        "tokens per held-out completion at the end, pairs from the policy itself: SimPO less DPO",
        apart("simpo_online", "dpo_online", ending("completion_tokens")),
        -1,
    ),
    RunClaim(
        "distillation_beats_rl",
        "For a small model, imitating worked traces beats reinforcement learning on its own completions.",
        "C §6.5",
        ("student_traces", "student_rl", "student_rl_fast"),
        f"{ACCURACY}: 7,680 traces less 7,680 completions of its own at the better of two rates",
        best_of(("student_rl", "student_rl_fast"), "student_traces", ending("accuracy")),
    ),
    RunClaim(
        "grpo_beats_ppo",
        "Without a critic's errors GRPO trains better than PPO.",
        "A §3.1, §4.2",
        ("grpo", "ppo"),
        f"{RIGHT}: GRPO less PPO",
        apart("grpo", "ppo", metric("reward.exact_answer")),
    ),
    RunClaim(
        "rloo_beats_ppo",
        "REINFORCE with a leave-one-out baseline does better than PPO.",
        "B §6.5",
        ("rloo", "ppo"),
        f"{RIGHT}: RLOO less PPO",
        apart("rloo", "ppo", metric("reward.exact_answer")),
    ),
    RunClaim(
        "critic_from_rm",
        "A critic that starts from a reward model fits sooner than one that starts from the policy.",
        "B Q19",
        ("ppo_from_rm", "ppo"),
        "share of the targets' variance that the critic explains, first five steps: from the reward model less"
        " from the policy",
        apart("ppo_from_rm", "ppo", metric("critic_explains", START)),
    ),
    RunClaim(
        "group_baseline_helps",
        "A baseline of the prompt's own group learns faster than one number for all prompts.",
        "A §3.2, D §3.1",
        ("rloo", "reinforce"),
        f"{RIGHT}: RLOO less REINFORCE with a running mean",
        apart("rloo", "reinforce", metric("reward.exact_answer")),
    ),
    RunClaim(
        "format_first_format",
        "Giving the format more weight in the first fifth of the training establishes it sooner.",
        "A §5.5",
        ("format_first", "format_even"),
        "share of completions in the format, steps 6 to 12: more at first less even",
        apart("format_first", "format_even", metric("reward.think_format", slice(5, 12))),
    ),
    RunClaim(
        "format_first_accuracy",
        "... and helps the answers in the end.",
        "A §5.5",
        ("format_first", "format_even"),
        f"{RIGHT}: more at first less even",
        apart("format_first", "format_even", metric("reward.exact_answer")),
    ),
    RunClaim(
        "format_only",
        "A reward for the format alone gives perfect form with wrong content.",
        "A Q8",
        ("format_only", "grpo"),
        f"{ACCURACY}: format alone less correct answers",
        apart("format_only", "grpo", ending("accuracy")),
        -1,
    ),
    RunClaim(
        "gibberish",
        "A reward for the final answer alone lets the working decay into gibberish.",
        "A §5.1, §5.4",
        ("watched",),
        "share of right steps in the working, which is not rewarded, last five steps less first five",
        moved("watched", "reward.working_steps"),
        -1,
    ),
    RunClaim(
        "wordy_filler",
        "A reward for length is answered with filler: completions grow",
        "A §5.4",
        ("wordy",),
        "tokens per completion, last five steps less first five",
        moved("wordy", "tokens"),
    ),
    RunClaim(
        "wordy_wrong",
        "... and stop being right.",
        "A §5.4",
        ("wordy",),
        "share of right answers in the samples, last five steps less first five",
        moved("wordy", "reward.exact_answer"),
        -1,
    ),
    RunClaim(
        "repetition_fine",
        "A penalty on repetition counters the filler.",
        "A §5.4, B §8",
        ("wordy_fined", "wordy"),
        "share of repeated runs of four tokens, last five steps: with less without",
        apart("wordy_fined", "wordy", metric("repetition", END)),
        -1,
    ),
    RunClaim(
        "kl_too_strong",
        "Too large a KL coefficient keeps the policy from learning.",
        "A §3.5, B §3.3, C (extended)",
        ("tied_hard", "grpo"),
        f"{RIGHT}: beta 1 less beta 0.04",
        apart("tied_hard", "grpo", metric("reward.exact_answer")),
        -1,
    ),
    RunClaim(
        "kl_holds_length",
        "The KL penalty holds back the growth of the chain of thought.",
        "C (extended), E (DAPO)",
        ("tied_hard", "untied"),
        "tokens per completion in the second half: beta 1 less none",
        apart("tied_hard", "untied", metric("tokens", LATE)),
        -1,
    ),
    RunClaim(
        "kl_too_weak",
        "The smaller the KL coefficient, the further the policy drifts from the reference.",
        "A §3.5, B Q8",
        ("tied_little", "grpo"),
        "KL to the reference in nats per completion, last five steps: beta 0.001 less beta 0.04",
        apart("tied_little", "grpo", metric("kl_completion", END)),
    ),
    RunClaim(
        "cold_agrees",
        "At a low temperature (0.1) the completions of a group agree, and the signal vanishes.",
        "A §3.5, Q7",
        ("cold", "grpo"),
        "share of groups that agree, first five steps: temperature 0.1 less 1",
        apart("cold", "grpo", metric("uniform_groups", START)),
    ),
    RunClaim(
        "cold_stalls",
        "... so that training stalls.",
        "A Q7",
        ("cold", "grpo"),
        f"{CURVE}: temperature 0.1 less 1",
        apart("cold", "grpo", whole_curve),
        -1,
    ),
    RunClaim(
        "hot_is_slow",
        "At a high temperature (1.5) training is less efficient.",
        "A Q7",
        ("hot", "grpo"),
        f"{CURVE}: temperature 1.5 less 1",
        apart("hot", "grpo", whole_curve),
        -1,
    ),
    RunClaim(
        "cool_is_best",
        "A temperature of 0.6 to 0.8 is better than 1.",
        "A §3.5, Q7",
        ("cool", "grpo"),
        f"{CURVE}: temperature 0.7 less 1",
        apart("cool", "grpo", whole_curve),
    ),
    RunClaim(
        "small_groups",
        "Groups of 2 give a noisy baseline and learn worse than groups of 8.",
        "A Q6, C (extended)",
        ("groups_of_2", "grpo"),
        f"{RIGHT}: 64 groups of 2 less 16 groups of 8, the same number of completions",
        apart("groups_of_2", "grpo", metric("reward.exact_answer")),
        -1,
    ),
    RunClaim(
        "large_groups",
        "Larger groups train better: their statistics are more accurate.",
        "A Q6",
        ("groups_of_16", "grpo"),
        f"{RIGHT}: 8 groups of 16 less 16 groups of 8, the same number of completions",
        apart("groups_of_16", "grpo", metric("reward.exact_answer")),
    ),
    RunClaim(
        "rate_too_high",
        "Too high a learning rate collapses the policy.",
        "A (engineering notes)",
        ("fast",),
        "held-out accuracy, end less start, 50 times the default rate",
        learned("fast"),
        -1,
    ),
    RunClaim(
        "clip_share_healthy",
        "In a healthy run the clip is active on 0.1 to 0.3 of the tokens.",
        "A (monitoring)",
        ("grpo",),
        "share of reweighted tokens, less 0.1, in a run that learns (one update per batch)",
        above("grpo", metric("reweighted"), 0.1),
    ),
    RunClaim(
        "updates_fade",
        "As the group's quality converges, the updates fade by themselves.",
        "D §3.3",
        ("grpo",),
        "gradient norm, last five steps less first five",
        moved("grpo", "gradient_norm"),
        -1,
    ),
    RunClaim(
        "rollout_dominates",
        "Of the seconds of a PPO step most go into writing the completions.",
        "B §9.3",
        ("ppo",),
        "share of a step's seconds in the rollout, less 0.5",
        above("ppo", metric("rollout_share"), 0.5),
    ),
)


def _logp_gap(record: Mapping[str, Any]) -> float:
    """Nats between held-out chosen and rejected completions at the end, of the policy alone."""
    chosen, rejected = ending("chosen_logp")(record), ending("rejected_logp")(record)
    if chosen is None or rejected is None:
        return float("nan")
    return chosen - rejected
