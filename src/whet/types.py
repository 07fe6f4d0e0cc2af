"""The values that travel between the rooms. All frozen; a shape on each field's line.

P prompts, G samples per prompt, N = P * G sequences, T tokens padded, L tokens of one sequence, K reward parts.
A field never changes its meaning; `None` means "this row does not need it" (see `Objective.needs`).
"""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class WhetError(Exception):
    """A mistake the user can fix: one line that names what was given, what was expected and the fix."""


class RunFailed(WhetError):
    """The run cannot go on; what was saved is intact. The message is one line with the likely cause."""


def is_finite_number(value: Any) -> bool:
    """True for a finite int or float that a float can hold; False for a bool."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that a mistyped one probably means; case does not count."""
    by_lower = {option.lower(): option for option in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """' (did you mean X?)' for an error line, or nothing when no known name is close."""
    close = nearest(name, known, cutoff)
    return f" (did you mean {close!r}?)" if close else ""


class StopReason(StrEnum):
    """Why a completion or an episode ended. The first three are the engine's; the others end an episode."""

    END = "end"  # a stop token, kept as the last token of the sample; of an episode: its environment ended it
    TEXT = "text"  # a stop string appeared in the completion
    LENGTH = "length"  # the token budget of a turn ran out: the completion is truncated
    TURNS = "turns"  # as many turns as an episode may have, and no end
    TOKENS = "tokens"  # no room for another turn: the episode's token budget, or the model's context
    STEP_SECONDS = "step_seconds"  # the environment took too long for one answer
    SECONDS = "seconds"  # the episode took too long
    FAILED = "failed"  # the environment raised, or answered something that is no answer: unscorable

    @property
    def is_limit(self) -> bool:
        """True where a limit cut the sample off, before it had ended by itself."""
        return self not in (StopReason.END, StopReason.TEXT, StopReason.FAILED)


Message = Mapping[str, Any]  # {"role": ..., "content": ...}, and `tool_calls` of an assistant turn that calls tools


class Completion(str):
    """One turn of the policy as text, for the environment that answers it; a plain string with three facts more."""

    tokens: tuple[int, ...]  # as they were sampled
    stop: StopReason  # why the engine stopped
    _raw: str | Callable[[], str]

    def __new__(
        cls,
        text: str,
        tokens: Sequence[int] = (),
        raw: str | Callable[[], str] | None = None,
        stop: StopReason = StopReason.END,
    ) -> Completion:
        made = super().__new__(cls, text)
        made.tokens, made._raw, made.stop = tuple(tokens), text if raw is None else raw, stop
        return made

    @property
    def raw(self) -> str:
        """The text with special tokens, which the plain text omits; decoded on demand."""
        if not isinstance(self._raw, str):
            self._raw = self._raw()
        return self._raw


@dataclass(frozen=True)
class StepResult:
    """What an environment answers to a completion. An episode's return is the sum of the rewards of its turns."""

    messages: tuple[Message, ...] = ()  # shown to the policy before its next turn; never trained on
    reward: float | None = None  # of the turn that is answered
    done: bool = False  # the episode is over
    state: str | None = None  # names the state that the next turn starts from: equal names, equal states
    counts: Mapping[str, int] = field(default_factory=dict)  # tool_calls, malformed_calls, tool_errors, ...
    errors: tuple[str, ...] = ()  # one line each: what went wrong with the turn's calls
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the episode, such as its score in a game
    # self-play: who writes next and is told the messages, where that is another role than the one that just wrote. The
    # first messages to a role are the whole conversation that it begins with
    role: str = ""
    rewards: Mapping[str, float] = field(default_factory=dict)  # by role, of each role's last turn; beside `reward`


@dataclass(frozen=True)
class InitialObservation:
    """How an episode begins, where the environment has more to say than its prompt."""

    messages: tuple[Message, ...]  # the whole conversation before the first turn
    tools: tuple[Mapping[str, Any], ...] = ()  # JSON schemas that the chat template shows to the model
    state: str | None = None  # names the state that the first turn starts from
    role: str = ""  # whom the policy plays in this episode: its reward is compared with the same role's alone


Opening = InitialObservation  # its name in 0.2


@dataclass(frozen=True)
class Turn:
    """One message of an episode, and where it stands in the tokens of its sample."""

    role: str  # "assistant" for the policy's own; else who spoke: tool, user, ...
    text: str
    start: int  # tokens[start:stop] of the sample, what the template writes around it included
    stop: int
    reward: float | None = None  # of the policy's turn, where the environment gave one
    state: str | None = None  # the state that the policy's turn started from, where the environment names it
    ended: StopReason | None = None  # why the engine stopped writing the policy's turn
    counts: Mapping[str, int] = field(default_factory=dict)  # calls in the policy's turn, and what went wrong
    errors: tuple[str, ...] = ()
    seconds: float = 0.0  # that the environment took to answer the policy's turn
    node: int | None = None  # of an episode that branches: branches share a turn of the policy that has the same number


@dataclass(frozen=True)
class Prompt:
    """One question, and everything its reward needs to judge a completion."""

    id: str  # stable across runs: resume and samples.jsonl refer to it
    messages: tuple[Message, ...]  # a conversation that ends before the completion; empty for a plain `text`
    text: str | None = None  # plain prompt, sent to the model as it is; None for a conversation
    answer: Any = None  # the gold answer, None where there is none
    meta: Mapping[str, Any] = field(default_factory=dict)  # all other columns of the row
    tools: tuple[Mapping[str, Any], ...] = ()  # schemas that the chat template shows to the model

    def question(self) -> str:
        """What a person would call the prompt: the plain text, or the last message."""
        if self.text is not None:
            return self.text
        return str(self.messages[-1]["content"]) if self.messages else ""


@dataclass(frozen=True)
class Demonstration:
    """A prompt with the completion to imitate: one row of supervised training."""

    prompt: Prompt
    completion: str  # the last completion; earlier assistant turns stay in `prompt.messages`
    tool_calls: tuple[Mapping[str, Any], ...] = ()  # of the last completion, as the chat template wants them


@dataclass(frozen=True)
class Encoded:
    """Tokens ready for a model, with the positions that carry loss."""

    tokens: tuple[int, ...]  # [L]
    action: tuple[bool, ...]  # [L], True on the tokens to learn


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn. Temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch truncation off."""

    max_new_tokens: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()  # the completion ends with the token that completes one of these
    stop_tokens: tuple[tuple[int, ...], ...] = ()  # the same, as sequences of tokens
    constrained: bool = False  # requests may say which tokens can be drawn: each step then waits for the one before
    keeps_support: bool = False  # note which tokens could be drawn where sampling truncates: a trainer needs it

    def __post_init__(self) -> None:
        checks = (
            (self.max_new_tokens >= 1, f"max_new_tokens is {self.max_new_tokens}; give at least 1"),
            (self.temperature >= 0, f"temperature is {self.temperature}; give 0 (greedy) or more"),
            (0 < self.top_p <= 1, f"top_p is {self.top_p}; give a share in (0, 1], 1 switches it off"),
            (self.top_k >= 0, f"top_k is {self.top_k}; give 0 (off) or a count"),
            (0 <= self.min_p < 1, f"min_p is {self.min_p}; give a share in [0, 1), 0 switches it off"),
            (all(self.stop), "a stop string is empty; drop it"),
            (all(self.stop_tokens), "a sequence of stop tokens is empty; drop it"),
        )
        for fine, complaint in checks:
            if not fine:
                raise WhetError(complaint)

    @property
    def truncates(self) -> bool:
        """True when some tokens of the vocabulary cannot be drawn."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)

    @property
    def stops_early(self) -> bool:
        """Whether anything besides an end token ends a completion."""
        return bool(self.stop or self.stop_tokens)

    def of(self, request: Request) -> Sampling:
        """The sampling of one request: its own budget, and its additional stops."""
        if request.max_new_tokens is None and not request.stop and not request.stop_tokens:
            return self
        return replace(
            self,
            max_new_tokens=request.max_new_tokens or self.max_new_tokens,
            stop=tuple(dict.fromkeys((*self.stop, *request.stop))),
            stop_tokens=tuple(dict.fromkeys((*self.stop_tokens, *request.stop_tokens))),
        )


class TokenConstraint(ABC):
    """Which tokens can be drawn next in one completion. It follows what is drawn, and is used once."""

    @abstractmethod
    def allowed(self) -> Tensor:
        """bool [tokens]: those that can be drawn next, never none; ids after the last cannot."""

    @abstractmethod
    def accept(self, token: int) -> None:
        """Take note that this token was drawn."""


@dataclass(frozen=True)
class Request:
    """One completion to write: the tokens of its prompt and the seed of its own random stream."""

    tokens: tuple[int, ...]  # [prompt length]
    seed: int
    max_new_tokens: int | None = None  # of this completion; None: what the sampling says
    # the request of the same session that this one goes on from: `tokens` begins with its prompt and completion
    continues: int | None = None
    drawn: int = 0  # tokens at the end of `tokens` that its random stream has drawn already: it goes on after them
    stop: tuple[str, ...] = ()  # texts that end it, besides those of the sampling
    stop_tokens: tuple[tuple[int, ...], ...] = ()
    constraint: TokenConstraint | None = None  # of a sampling that is `constrained`


@dataclass(frozen=True)
class SessionShape:
    """What a session of an engine needs room for."""

    conversations: int  # at once, at most
    prompt_tokens: int  # of the longest first prompt
    growth: int  # tokens that a conversation may grow by after its first prompt: completions and answers


@dataclass(frozen=True)
class Support:
    """The tokens the sampler could have drawn at each action position, when it truncates the vocabulary, or a grammar
    does. Where more than half of it could be drawn, the others are named: as -2 - id. No ids: everything."""

    ids: Tensor  # int32 [sum of counts], token ids, position after position
    counts: Tensor  # int32 [number of action tokens]


@dataclass(frozen=True)
class TokenTrace:
    """What a step's updates made of the tokens of one sample: float32 [L] each, 0 where the policy did not choose."""

    advantage: Tensor
    # the factor in front of A grad logp, in the last update that the sample was part of; 0: no gradient came from it
    weight: Tensor
    # of the trainer: before the step's first update where the method asks for that, else in the sample's first update
    logp: Tensor


@dataclass(frozen=True)
class Sample:
    """One trajectory exactly as the engine saw it. Never re-tokenised."""

    tokens: Tensor  # int64 [L], prompt and completion
    action: Tensor  # bool [L], True where the policy chose the token
    behavior_logp: Tensor  # float32 [L], log-probability as sampled, 0 where not an action
    versions: tuple[int, int]  # (oldest, newest) policy version that wrote it
    stop: StopReason
    completion: str  # the action tokens as text; of an episode, those of its last turn
    support: Support | None = None  # None: the whole vocabulary
    parts: Mapping[str, float] = field(default_factory=dict)  # each named reward, before weighting
    reward: float | None = None  # weighted sum of the parts; None: not scored, or unscorable
    steps: tuple[tuple[int, float], ...] = ()  # process rewards: (position of the step's last token, score)
    turns: tuple[Turn, ...] = ()  # of an episode, in order; empty for a single completion
    returned: float | None = None  # the environment's rewards, summed; None: it gave none
    episode: str = ""  # samples of a group that share it are branches of one episode
    role: str = ""  # whom the policy played, in self-play: rewards of one role are compared with each other
    metrics: Mapping[str, float] = field(default_factory=dict)  # what the environment measured in the episode
    # int8 or int16 [L, layers, k]: the experts that the sampler's routers chose; -1 unknown, as of a last token
    routed_experts: Tensor | None = None
    # int32 [L], the policy version that chose each token, of others the oldest; None: one version wrote all of it
    token_versions: Tensor | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # what rewards logged about it, by column
    trace: TokenTrace | None = None  # set after training, on those samples that are recorded
    environment: Any = field(default=None, compare=False, repr=False)  # TRL's object that played; until it is scored

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "environment": None}  # it stays where the episode was played

    def scored(
        self, parts: Mapping[str, float], reward: float | None, extra: Mapping[str, Any] | None = None
    ) -> Sample:
        """A copy with what a reward gave: its parts, their total, and values for the log."""
        # as `replace`, which asks every field: the GPU waits while the completions of a step are scored
        scored = object.__new__(type(self))
        scored.__dict__.update(
            self.__dict__, parts=dict(parts), reward=reward, extra=dict(extra or {}), environment=None
        )
        return scored

    @cached_property
    def num_actions(self) -> int:
        """How many tokens the policy chose."""
        return int(self.action.sum())

    @property
    def outcome(self) -> float | None:
        """The first part of the reward that applies, which says whether it is right; None where it is unscorable."""
        return next(iter(self.parts.values()), None) if self.reward is not None else None


def by_episode(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples with their siblings: branches of one episode; a sample that is no branch stands alone."""
    episodes: dict[tuple[str, str | int], list[Sample]] = {}
    for index, sample in enumerate(samples):
        episodes.setdefault((sample.role, sample.episode or index), []).append(sample)
    return list(episodes.values())


@dataclass(frozen=True)
class Group:
    """The samples of one prompt; `greedy` is the extra deterministic completion some baselines compare with."""

    prompt: Prompt
    samples: tuple[Sample, ...]  # G
    greedy: Sample | None = None
    drawn: tuple[float, ...] = ()  # every reward drawn for the prompt, when only some samples are trained on


@dataclass(frozen=True)
class TokenBatch:
    """What the objective sees: always [N, T], whatever packing the model used.

    `reward` is NaN for an unscorable sample: it stays out of every statistic and gets advantage 0.
    `old_logp` None means that the batch is trained by the very policy that wrote it: the ratio is 1.
    """

    tokens: Tensor  # int64 [N, T], right-padded
    action: Tensor  # bool [N, T], True on the trained tokens
    group: Tensor  # int64 [N], samples of one prompt share a number
    reward: Tensor  # float [N]
    behavior_logp: Tensor | None = None  # [N, T], of the sampler
    old_logp: Tensor | None = None  # [N, T], of the trainer before the first update of this batch
    ref_logp: Tensor | None = None  # [N, T], of the reference
    teacher_logp: Tensor | None = None  # [N, T], of the teacher, which may have seen another context
    teacher_top: Tensor | None = None  # int32 [N, T, K], tokens that the policy is compared with its teacher on
    teacher_top_logp: Tensor | None = None  # [N, T, K], the teacher's log-probabilities of them
    support: Tensor | None = None  # int32 [N, T, S], what the sampler could draw, as in `Support`; -1 padding
    entropy: Tensor | None = None  # [N, T], of the policy before the first update of this batch
    value: Tensor | None = None  # [N, T], the critic's, of the state before the token, before the first update
    parts: Tensor | None = None  # [N, K], each named reward; the first says whether the completion is right
    part_weight: Tensor | None = None  # [N, K], what each part counts in the reward: the same in every row
    finished: Tensor | None = None  # bool [N], False where the token budget cut the completion off
    greedy_reward: Tensor | None = None  # [N], of the greedy completion to the same prompt
    drawn: Tensor | None = None  # [N, 3], count, mean and Bessel's std of all rewards drawn for the prompt
    reference_rewards: Tensor | None = None  # [N, R], of the reference's completions to the prompt, NaN padding
    prompt: Tensor | None = None  # int64 [N], the prompt's own number, the same in every step
    step_reward: Tensor | None = None  # [N, T], of the step that ends here; NaN where none does
    segment: Tensor | None = None  # int64 [N, T], number of the sentence or turn, counted from 0 in each completion
    observed: Tensor | None = None  # bool [N, T], what an environment wrote into the sample; never an action
    demonstrated: Tensor | None = None  # bool [N, T], of a demonstration, in a row without actions or a reward
    episode: Tensor | None = None  # int64 [N], branches of one episode share a number; None: every row is its own
    node: Tensor | None = None  # int64 [N, T], equal where rows of an episode share one draw; None: its tree is unknown
    role: Tensor | None = None  # int64 [N], whom the policy played; None: nobody in particular
    returned: Tensor | None = None  # [N], what of `reward` the steps have earned already; None: nothing
    truncated: Tensor | None = None  # bool [N, T], actions of a turn that its token budget cut off
    anchor: Tensor | None = None  # int64 [N, T], equal where segments of a group start from the same state
    routed_experts: Tensor | None = None  # int8 or int16 [N, T, layers, k], of the sampler; -1 unknown
    old_experts: Tensor | None = None  # the same of the trainer's routers, before the first update of this batch
    max_new_tokens: int | None = None  # the generation budget

    # set by Objective.advantage
    advantage: Tensor | None = None  # [N, T]
    token_reward: Tensor | None = None  # [N, T], what a token earned besides the completion's reward
    target: Tensor | None = None  # [N, T], what the critic should have said
    learns: Tensor | None = None  # bool [N, T], tokens whose advantage counts; None: all actions
    tied: Tensor | None = None  # bool [N, T], tokens the KL term acts on; None: all actions
    step_weight: Tensor | None = None  # [N, T], of a clip rule that looks at the whole step; set before each update
    importance: Tensor | None = None  # [N, 2], a learned share's factor and its slope
    row_weight: Tensor | None = None  # [N], what a row counts: branches share the weight of their episode; None: 1

    @property
    def num_sequences(self) -> int:
        """The number of rows of the batch, N."""
        return self.tokens.shape[0]

    @property
    def lengths(self) -> Tensor:
        """n_i, the number of trained tokens of each sequence: int64 [N]."""
        return self.action.sum(-1)

    @property
    def correct(self) -> Tensor | None:
        """bool [N]: the reward's first part is 1; an unscorable completion is not."""
        return None if self.parts is None else (self.parts[:, 0] == 1) & ~self.reward.isnan()

    def mapped(self, change: Callable[[Tensor], Tensor], only: Iterable[str] | None = None) -> TokenBatch:
        """The batch with every tensor changed, or only those of the given fields."""
        from torch import Tensor  # here: every command reads this file, and few need tensors

        names = self.__dataclass_fields__ if only is None else only
        tensors = {name: value for name in names if isinstance(value := getattr(self, name), Tensor)}
        changed: dict[str, Any] = {name: change(value) for name, value in tensors.items()}
        return replace(self, **changed)

    def select(self, rows: Tensor | Sequence[int]) -> TokenBatch:
        """The batch of these rows, in this order."""
        import torch

        index = torch.as_tensor(rows, dtype=torch.long, device=self.tokens.device)
        return self.mapped(lambda value: value[index])

    def narrowed(self, width: int) -> TokenBatch:
        """The first `width` columns."""
        return self.mapped(lambda value: value[:, :width], TOKEN_FIELDS)


# the fields of a TokenBatch that have a token axis, their second
TOKEN_FIELDS = (
    *("tokens", "action", "behavior_logp", "old_logp", "ref_logp", "support", "entropy", "value", "step_reward"),
    *("teacher_logp", "teacher_top", "teacher_top_logp"),
    *("segment", "observed", "demonstrated", "truncated", "anchor", "advantage", "token_reward", "target", "learns"),
    *("tied", "step_weight", "node"),
    *("routed_experts", "old_experts"),
)


@dataclass(frozen=True)
class Extras:
    """What some rows need of a forward pass beyond logp. All carry gradient where the row asked for it."""

    entropy: Tensor | None = None  # [N, T], of the policy's distribution at each action
    top_logp: Tensor | None = None  # [N, T, K], of the K likeliest tokens
    chose_top: Tensor | None = None  # bool [N, T], the sampled token is the likeliest
    divergence: Tensor | None = None  # [N, T], KL(policy, reference) over the whole vocabulary
    teacher_divergence: Tensor | None = None  # [N, T], of the policy from its teacher, as the objective measures it
    value: Tensor | None = None  # [N, T], the critic's


@dataclass(frozen=True)
class Totals:
    """Denominators of the WHOLE optimizer step, over all passes and ranks. Never local ones.

    Whole numbers, unless episodes have branches: each row counts by its `row_weight`.
    """

    tokens: float  # M, trained tokens
    sequences: float  # N, sequences with at least one trained token
    max_new_tokens: int  # the generation budget, not the padded width
    correct_tokens: float = 0  # trained tokens of right completions
    observed_tokens: float = 0  # tokens that environments wrote, in scored samples
    demonstrated_tokens: float = 0  # tokens of demonstrations

    def __add__(self, other: Totals) -> Totals:
        if self.max_new_tokens != other.max_new_tokens:
            raise ValueError("two ranks disagree on max_new_tokens")
        return Totals(
            self.tokens + other.tokens,
            self.sequences + other.sequences,
            self.max_new_tokens,
            self.correct_tokens + other.correct_tokens,
            self.observed_tokens + other.observed_tokens,
            self.demonstrated_tokens + other.demonstrated_tokens,
        )


@dataclass(frozen=True)
class StepReport:
    """One training step as it is recorded. Only `seconds`, `timeline` and `machine` differ between equal runs."""

    step: int  # 1 is the first
    policy_version: int  # of the weights that wrote the samples
    counts: Mapping[str, int]  # prompts, samples, tokens, truncated, unscorable
    reward: Mapping[str, float]  # "total" and each part: mean over the scored samples
    metrics: Mapping[str, float]  # loss, gradient norm, kl, entropy, sampler_gap, learning_rate, ...
    health: tuple[str, ...] = ()  # findings of this step, one sentence each
    seconds: Mapping[str, float] = field(default_factory=dict)  # rollout, reward, train, save, ...
    spread: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of each part: how it is distributed
    # (phase, start, end) in seconds from the beginning of the step; `reward_behind`: rewards beside another phase
    timeline: tuple[tuple[str, float, float], ...] = ()
    machine: Mapping[str, float] = field(default_factory=dict)  # cores, memory, gpu_memory (GiB), gpu_use
