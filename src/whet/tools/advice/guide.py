"""Which method for which situation: the selection guide as a pure function.

`advice(situation)` takes the first rule that holds, the first method of its ranking that this whet can train and
that fits the memory, and says why, what else there is, what to mind and what to run. What can be trained is read
from the presets at every call, so a new method is advised from the day it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from whet.objective import catalogue
from whet.objective.catalogue import Method, MethodKind
from whet.tools.planner.plan import plan_for
from whet.tools.planner.shapes import LEAST_BILLIONS, MOST_BILLIONS, shape_of_size
from whet.tools.planner.workload import GIGA, REFERENCES, Devices, Workload
from whet.types import WhetError, did_you_mean

UNLIMITED = 1e18  # bytes
USUAL_COMPLETION = 512  # tokens, where nobody said
SIGNALS = ("verifiable", "preferences", "labels", "demonstrations", "reward_model")
GOALS = ("pass_at_1", "pass_at_k")
IMITATION = "sft"
ON_POLICY = "on_policy"  # the one clip rule that does not look at the ratio

# Rules of thumb, not theorems.
LONG_COMPLETION = 4000  # tokens
LARGE_DENSE = 14.0  # billions of weights above which ratios of whole completions are preferred
FEW_ROWS = 1000
UPDATES = 4  # parts a batch is cut into where it is reused
OLDER_POLICY = "--set batch.staleness=1 --set objective.mismatch=truncate"

# Offline signals, with the file that their own method would read.
LEARNED = """--set 'reward.parts=[{reward="learned",settings={folder="REWARD_MODEL"}}]'"""
FILES = {"demonstrations": "demonstrations.jsonl", "preferences": "pairs.jsonl", "labels": "labels.jsonl"}
# These differ from the plain group method only where a batch is reused.
TAMED_RATIOS = ("gspo", "gspo_token", "luspo", "cispo", "gmpo", "sapo", "dppo_tv")


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory that a run needs on one device, in gigabytes (10^9 bytes)."""

    gigabytes: float
    parts: tuple[str, ...]
    fits: bool | None  # None: the machine's memory is not known
    verdict: str


@lru_cache(maxsize=512)
def memory_estimate(
    billions: float,
    gigabytes: float | None,
    needs: frozenset[str],
    samples: bool = True,
    completion_tokens: int | None = None,
) -> MemoryEstimate:
    """What a run of a model of so many billion weights takes of one device, and what to do where it does not fit."""
    memory = UNLIMITED if gigabytes is None else gigabytes * GIGA
    shape = replace(shape_of_size(min(max(billions, LEAST_BILLIONS), MOST_BILLIONS)), context=0)
    length = completion_tokens or USUAL_COMPLETION
    work = Workload(shape, needs=needs, completion_tokens=length, samples=samples, draws=samples)
    plan = plan_for(work, Devices(1, memory))
    lines = sorted(plan.memory.lines, key=lambda line: -line.bytes)
    parts = tuple(f"{line.name}: {line.gigabytes:.3g} GB" for line in lines if line.bytes >= 0.02 * plan.memory.total)
    total = plan.memory.total / GIGA
    if gigabytes is None:
        return MemoryEstimate(total, parts, None, "give --memory to hear whether it fits")
    return MemoryEstimate(total, parts, plan.fits, plan.verdict)


@dataclass(frozen=True)
class Situation:
    """The user's situation: a signal, a model, a machine and a goal. None means: not given."""

    signal: str = "verifiable"  # one of SIGNALS: what tells a good completion
    model_billions: float | None = None  # weights, all experts counted
    mixture_of_experts: bool = False
    memory_gigabytes: float | None = None  # of the one device that trains
    completion_tokens: int | None = None  # the budget of a completion
    several_updates: bool = False  # each batch is reused, or written by an older policy
    group_sampling: bool = True  # several completions per prompt are affordable
    turns: bool = False  # an agent that acts over several turns
    goal: str = "pass_at_1"  # one of GOALS: the one completion must be right, or one of k
    data_size: int | None = None  # prompts, pairs, labels or demonstrations

    def __post_init__(self) -> None:
        for name, known in (("signal", SIGNALS), ("goal", GOALS)):
            answer = getattr(self, name)
            if answer not in known:
                raise WhetError(
                    f"{name} is {answer!r}{did_you_mean(str(answer), known)}; give one of {', '.join(known)}"
                )
        numbers = {
            "model_billions (--model-size)": self.model_billions,
            "memory_gigabytes (--memory)": self.memory_gigabytes,
            "completion_tokens (--completion-tokens)": self.completion_tokens,
            "data_size (--rows)": self.data_size,
        }
        for name, number in numbers.items():
            if number is not None and not 0 < number < float("inf"):
                raise WhetError(f"{name} is {number}; give a number above 0, or leave it out")


@dataclass(frozen=True)
class Alternative:
    """Another method, and the circumstances in which it would be the better one."""

    method: str
    title: str
    when: str
    available: bool  # `whet train` takes it


@dataclass(frozen=True)
class Advice:
    """What to train with, why, what to mind, and the command."""

    recommendation: str  # a method that `whet train` takes
    title: str
    best: str  # the method of choice, had whet every one; mostly the recommendation itself
    reasons: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    warnings: tuple[str, ...]
    memory: MemoryEstimate | None  # None: the model's size was not given
    command: str  # with MODEL and the file names to be filled in
    rehearsal: str | None  # the same on the built-in model and task, as it stands


@dataclass(frozen=True)
class Rule:
    """A line of the guide: `ranking` is recommended from, best first; `also` is only mentioned."""

    holds: Callable[[Situation], bool]
    reason: str  # with fields of the situation in braces
    ranking: tuple[str, ...]
    also: tuple[str, ...] = ()
    when: Mapping[str, str] = field(default_factory=dict)  # alternatives that here have a reason of their own


# method: (title, what makes it the better one)
GUIDE: dict[str, tuple[str, str]] = {
    "sft": ("SFT", "there are good completions to imitate and nothing that scores new ones"),
    "dpo": ("DPO", "there are pairs and one cheap run without sampling is wanted"),
    "ipo": ("IPO", "every pair has a sure winner, where DPO's margins grow without end"),
    "simpo": ("SimPO", "a reference copy does not fit, or longer completions win for their length"),
    "orpo": ("ORPO", "imitation and preference should be one stage, without a reference"),
    "kto": ("KTO", "there are single thumbs up or down instead of pairs"),
    "reinforce": ("REINFORCE", "the textbook is enough: no group, no critic, no reference"),
    "reinforce_pp": ("REINFORCE++", "one completion per prompt is all you can sample"),
    "reinforce_pp_baseline": ("REINFORCE++-baseline", "groups are so small that their own spread is noise"),
    "remax": ("ReMax", "one greedy completion more is cheaper than a group"),
    "rloo": ("RLOO", "each batch is used once and the baseline should be unbiased"),
    "grpo": ("GRPO", "nothing speaks for another one: the plainest group method, with its KL leash"),
    "dr_grpo": ("Dr. GRPO", "completions grow longer without getting better, or a reference copy does not fit"),
    "dapo": ("DAPO", "completions are long, entropy falls early, or many groups agree"),
    "gspo": ("GSPO", "token ratios are noisy: mixtures of experts, large models, several updates"),
    "gspo_token": ("GSPO-token", "the ratio should be the completion's but the advantage a turn's or a token's"),
    "luspo": ("LUSPO", "GSPO makes the completions shorter than they should be"),
    "cispo": ("CISPO", "rare tokens matter that a clip would silence, such as changes of mind in long completions"),
    "gmpo": ("GMPO", "single tokens with extreme ratios upset the run"),
    "sapo": ("SAPO", "a hard clip throws too many tokens away"),
    "maxrl": ("MaxRL", "hard prompts should count most and rewards are 0 or 1"),
    "pass_at_k": ("pass@k training", "k tries are allowed and rewards are 0 or 1"),
    "simko": ("SimKO", "the likeliest token crowds out its rivals and pass@k falls"),
    "ppo": ("PPO", "tokens need credit of their own and there is memory for a critic"),
    "vapo": ("VAPO", "completions are long, tokens need credit of their own and there is memory for a critic"),
    "dppo_tv": ("DPPO", "ratio clipping is too strict with rare tokens and too lax with frequent ones"),
    "kl_cov": ("KL-Cov", "entropy collapses while the reward still rises"),
    "gdpo": ("GDPO", "the reward has several parts and the one with the small spread is drowned"),
    "gigpo": ("GiGPO", "attempts of an agent pass through the same states, so that steps can be compared"),
}


JUDGE = (
    "new completions can be scored after all, by a judge or a reward model of yours behind --reward rewards.py:score"
)
ONE_COMPLETION = (
    "You sample one completion per prompt, so there is no group to compare with: the batch or a critic is the baseline."
)

RULES: tuple[Rule, ...] = (
    Rule(
        lambda s: s.signal == "demonstrations",
        "You have demonstrations: imitating them is the shortest way, and ends at their own level.",
        ("sft",),
        ("grpo",),
        {"grpo": "completions can be checked as well: go on from the imitation with --model RUN"},
    ),
    Rule(
        lambda s: s.signal == "preferences",
        "You have preference pairs: they can be learned offline, without sampling or a reward model.",
        ("dpo", "sft"),
        ("ipo", "simpo", "orpo", "rloo"),
        {"rloo": JUDGE},
    ),
    Rule(
        lambda s: s.signal == "labels",
        "You have thumbs up and down on single completions, and no pairs.",
        ("kto", "sft"),
        ("rloo",),
        {"rloo": JUDGE},
    ),
    Rule(
        lambda s: not s.group_sampling and s.signal == "reward_model",
        ONE_COMPLETION,
        ("ppo", "reinforce_pp", "remax", "reinforce"),
    ),
    Rule(
        lambda s: not s.group_sampling,
        ONE_COMPLETION,
        ("reinforce_pp", "remax", "reinforce"),
        ("ppo",),
    ),
    Rule(
        lambda s: s.mixture_of_experts and (s.several_updates or s.goal == "pass_at_1"),
        "You have a mixture of experts: its routing shifts with every update and makes token ratios jump, which "
        "a ratio over the whole completion averages out.",
        ("gspo", "cispo", "grpo"),
        ("gspo_token", "luspo"),
    ),
    Rule(
        lambda s: s.signal == "reward_model" and s.several_updates,
        "You reuse each batch under a learned reward, which asks for a clip and a KL.",
        ("grpo", "gspo"),
        ("ppo", "reinforce_pp_baseline"),
    ),
    Rule(
        lambda s: s.signal == "reward_model",
        "You have a reward model and use each batch once: policy gradient with the KL in the reward will do.",
        ("rloo", "grpo"),
        ("ppo", "reinforce_pp_baseline"),
    ),
    Rule(
        lambda s: s.turns,
        "You train an agent over several turns, where one credit for a whole attempt is coarse.",
        ("gigpo", "dr_grpo"),
        ("gspo_token", "ppo"),
    ),
    Rule(
        lambda s: s.goal == "pass_at_k",
        "You want one of k completions to be right: prompts that rarely succeed must weigh more than in a mean.",
        ("pass_at_k", "maxrl"),
        ("simko", "grpo"),
    ),
    Rule(
        lambda s: _is_long(s) and s.several_updates,
        "You reuse batches of completions of up to {completion_tokens} tokens, where a tight clip ends exploration.",
        ("dapo", "cispo", "gspo"),
        ("kl_cov", "vapo"),
    ),
    Rule(
        lambda s: _is_long(s),
        "Your completions take up to {completion_tokens} tokens: divided by the length, each token hardly counts.",
        ("dapo", "dr_grpo"),
        ("vapo", "cispo"),
    ),
    Rule(
        lambda s: s.several_updates,
        "You reuse each batch: the policy leaves the one that wrote it behind, and token ratios get noisy.",
        ("gspo", "cispo"),
        ("sapo", "dppo_tv", "dapo"),
    ),
    Rule(
        lambda s: (s.model_billions or 0) > LARGE_DENSE,
        "Your model has {model_billions:g} billion weights, where ratios of whole completions train steadier.",
        ("gspo", "dr_grpo"),
        ("grpo", "dapo"),
    ),
    Rule(
        lambda s: True,
        "You can check completions and sample several a prompt: they are each other's baseline, without a critic.",
        ("grpo", "dr_grpo"),
        ("rloo", "gdpo", "ppo"),
    ),
)


def _is_long(situation: Situation) -> bool:
    return situation.completion_tokens is not None and situation.completion_tokens >= LONG_COMPLETION


def available_methods() -> frozenset[str]:
    """What `whet train` takes, now."""
    return frozenset((IMITATION, *trained_methods()))


def trained_methods() -> dict[str, Method]:
    """The policy and preference methods, a user's own included."""
    return {**catalogue.methods("policy"), **catalogue.methods("preference")}


def advice(situation: Situation) -> Advice:
    """The method to use in this situation, the reasons, what to mind, and the command."""
    rule = next(rule for rule in RULES if rule.holds(situation))
    available = available_methods()
    trainable = [method for method in rule.ranking if method in available]
    chosen = next((method for method in trainable if _fits(situation, method) is not False), trainable[0])
    others = [method for method in (*rule.ranking, *rule.also) if method != chosen]
    command, rehearsal = _commands(situation, chosen)
    return Advice(
        recommendation=chosen,
        title=_title(chosen),
        best=rule.ranking[0],
        reasons=(rule.reason.format(**vars(situation)), *_reasons(situation, rule.ranking, chosen)),
        alternatives=tuple(
            Alternative(method, _title(method), rule.when.get(method, GUIDE[method][1]), method in available)
            for method in others
        ),
        warnings=(*_run_warnings(situation, chosen), *_data_warnings(situation, chosen)),
        memory=_memory(situation, chosen),
        command=command,
        rehearsal=rehearsal,
    )


def _title(method: str) -> str:
    return trained_methods()[method].title if _is(method, "policy") else GUIDE[method][0]


def _is(method: str, kind: MethodKind) -> bool:
    trained = trained_methods()
    return method in trained and trained[method].kind == kind


def _needs(situation: Situation, method: str) -> frozenset[str]:
    """What the method asks the loop for; against a learned reward there is always a reference."""
    if _is(method, "preference"):
        return frozenset(trained_methods()[method].needs) & {"ref_logp"}
    if not _is(method, "policy"):
        return frozenset()
    needs = frozenset(trained_methods()[method].needs)
    return needs | {"ref_logp"} if situation.signal == "reward_model" else needs


def _memory(situation: Situation, method: str) -> MemoryEstimate | None:
    """The memory the method needs; None where the model's size was not given."""
    if situation.model_billions is None:
        return None
    return memory_estimate(
        situation.model_billions,
        situation.memory_gigabytes,
        _needs(situation, method),
        _is(method, "policy"),
        situation.completion_tokens,
    )


def _fits(situation: Situation, method: str) -> bool | None:
    memory = _memory(situation, method)
    return None if memory is None else memory.fits


def _reasons(situation: Situation, ranking: tuple[str, ...], chosen: str) -> Iterator[str]:
    before = ranking[: ranking.index(chosen)]
    missing = [_title(method) for method in before if method not in available_methods()]
    too_large = [_title(method) for method in before if method in available_methods()]
    if missing:
        yield f"whet does not train {_listed(missing)} yet, which would come first."
    if too_large:
        yield (
            f"{_listed(too_large)} would come {'next' if missing else 'first'}, but with all copies of the model that "
            f"does not fit your {situation.memory_gigabytes:g} GB; {_title(chosen)} needs fewer."
        )
    if _is(chosen, "policy"):
        yield f"What {_title(chosen)} fixes: {trained_methods()[chosen].fixes}."
        yield from (f"The command sets {setting} because {why}." for setting, why in _additions(situation, chosen))
    elif _is(chosen, "preference"):
        yield f"What {_title(chosen)} fixes: {trained_methods()[chosen].fixes}."
    elif situation.signal == "preferences":
        yield "What whet can do today is imitate your chosen completions, the stage that comes before pairs anyway."
    elif situation.signal == "labels":
        yield "What whet can do today is imitate the completions that got a thumb up."


def _listed(names: list[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))


def _additions(situation: Situation, method: str) -> list[tuple[str, str]]:
    """Changes to the method that the situation asks for, with the reason."""
    additions = []
    if situation.several_updates and trained_methods()[method].components["clip"].name == ON_POLICY:
        additions.append(("objective.clip=ppo_clip", f"{_title(method)} itself uses a batch once and has no clip"))
    if situation.signal == "reward_model" and not REFERENCES.intersection(trained_methods()[method].needs):
        additions.append(("objective.kl=k2", f"a learned reward needs a leash and {_title(method)} itself has none"))
    return additions


def _run_warnings(situation: Situation, chosen: str) -> Iterator[str]:
    if not _is(chosen, "policy"):
        return
    needs = _needs(situation, chosen)
    yield f"The price of {_title(chosen)}: {trained_methods()[chosen].breaks}."
    if situation.group_sampling:
        yield "Groups whose completions all score the same teach nothing: take prompts that are solved sometimes."
    if not needs & REFERENCES:
        yield "No KL holds the policy: fine against a checker; --set objective.kl=k2 ties it to where it started."
    if situation.several_updates:
        yield "Reuse can collapse the entropy: watch `entropy` and `reweighted`, and use fewer updates if it falls."
        yield (
            f"If completions come from an older policy rather than being reused: {OLDER_POLICY} instead of the updates."
        )
    elif chosen in TAMED_RATIOS:
        yield f"With one update per batch every ratio is 1, and {_title(chosen)} starts to differ only with several."
    if situation.completion_tokens is not None:
        yield (
            f"Completions cut off at {situation.completion_tokens} tokens are scored as they stand: watch "
            "`truncated`, and see "
            "that the model's context holds prompt and completion."
        )
    if situation.turns:
        yield (
            "The environment is yours to give: --env file.py:Class, --tool NAME or --agent COMMAND. What the agent "
            "reads there carries no loss. Turns that the policy may end itself are compared by turn_return "
            "(rloo_turns): by turn index is biased (docs/bias.md)."
        )
    if situation.goal == "pass_at_k" and chosen not in ("pass_at_k", "maxrl"):
        yield "This is advice for pass@1: objectives for pass@k want groups, and rewards that are 0 or 1."


def _data_warnings(situation: Situation, chosen: str) -> Iterator[str]:
    if situation.signal == "verifiable":
        yield "Reward hacking: whatever the checker lets pass will be found, so read samples.jsonl too."
    if situation.signal == "reward_model":
        yield (
            "Reward hacking: a learned reward is a proxy, so keep the KL, watch `kl` and the completion length, and "
            "judge "
            "the result by something else."
        )
        yield "`whet train rm` trains one; a folder that transformers loads is the reward `learned` (docs/rewards.md)."
    if situation.signal in ("preferences", "labels") and chosen == IMITATION:
        yield "Imitation learns nothing from the completions that were turned down."
    if situation.data_size is not None and situation.data_size < FEW_ROWS:
        yield f"{situation.data_size} rows are few: hold some out, and stop when the model gets worse on them."


def _commands(situation: Situation, method: str) -> tuple[str, str | None]:
    """The command for the asker's own model and data, and its rehearsal on the built-in ones."""
    if situation.signal in FILES:
        imitated = {"preferences": "chosen.jsonl", "labels": "liked.jsonl"} if method == IMITATION else {}
        file = imitated.get(situation.signal, FILES[situation.signal])
        rehearsed = bool(imitated) or _is(method, "preference")
        single = " --set preference.labels=true" if situation.signal == "labels" and _is(method, "preference") else ""
        command = f"whet train {method}"
        return f"{command} --model MODEL --data {file}", f"{command}{single}" if rehearsed else None
    settings = []
    if not situation.group_sampling:
        settings += ["batch.group_size=1", "batch.prompts_per_step=64"]
    if situation.several_updates:
        settings.append(f"batch.updates_per_step={UPDATES}")
    settings += [setting for setting, _ in _additions(situation, method)]
    reward = "--reward math_answer" if situation.signal == "verifiable" else LEARNED
    budget = [] if situation.completion_tokens is None else [f"sampling.max_new_tokens={situation.completion_tokens}"]
    environment = " --env environment.py:Environment" if situation.turns else ""
    yours = f"whet train {method} --model MODEL --data train.jsonl{environment} {reward}"
    return _set(yours, [*budget, *settings]), _set(f"whet train {method}", settings)


def _set(command: str, settings: list[str]) -> str:
    return " ".join([command, *(f"--set {setting}" for setting in settings)])
