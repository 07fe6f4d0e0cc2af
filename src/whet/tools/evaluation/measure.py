"""A model on held-out prompts, chunk by chunk: completions, their scores, and what they are worth under budgets.

An interrupted evaluation goes on where it stopped: the file's first line names what was asked of whom (`pieces_of`),
each line after it is one chunk of prompts, written whole before the next begins. A torn line's chunk is done again.

A completion under a smaller budget is the opening of the one under a larger: each has its own random stream, so one
long completion gives the whole curve.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from whet.record.metrics.eval_summary import Attempt, EvalSummary, summarized
from whet.record.metrics.reward_model import token_confidence
from whet.reward.answer import final_answer, final_part, normal_form
from whet.reward.combine import RewardPart
from whet.reward.format import is_visible
from whet.reward.safety import is_refusal
from whet.rollout.buffer import restored_sample, sample_state
from whet.rollout.collect import draw_and_score
from whet.rollout.episode_runner import EpisodePlan
from whet.tools.evaluation.evaluation import PromptStyle, check_samples, eval_facts, eval_setup, group_metrics
from whet.training.assembly.fingerprints import model_digest, reward_file_digests
from whet.training.assembly.forms import AUTO
from whet.training.assembly.runtime import Runtime
from whet.training.config import EvaluationConfig
from whet.training.evaluator import Evaluator
from whet.types import Group, Sample, StopReason, WhetError, by_episode

Decode = Callable[[list[int]], str]
# of a completion that was cut: what was said about it as a whole
UNKNOWN: Any = {"support": None, "parts": {}, "reward": None, "routed_experts": None, "token_versions": None}
PARTIAL = ".part"  # after the name of the file that the completions will have
VERSION = 2
CHUNK = 256  # completions between two saves, where the caller names no number of prompts
SERVER_CHUNK = 64


def cut_at(sample: Sample, budget: int, decode: Decode) -> Sample:
    """The completion as it would have been under a smaller budget; unscored where it changes."""
    start = _start(sample)
    if len(sample.tokens) - start <= budget:
        return sample
    stop = start + budget
    return replace(
        sample,
        tokens=sample.tokens[:stop],
        action=sample.action[:stop],
        behavior_logp=sample.behavior_logp[:stop],
        stop=StopReason.LENGTH,
        completion=decode(sample.tokens[start:stop].tolist()),
        **UNKNOWN,
    )


def _start(sample: Sample) -> int:
    """The index of the completion's first token."""
    return int(sample.action.int().argmax())


def text_digest(text: str) -> str:
    """The first 16 hex digits of the text's sha256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class CompletionFile:
    """The chunks of one model on one task. Opened by one process at a time."""

    def __init__(self, out: Path, pieces: Mapping[str, str]) -> None:
        """Reads what is there; chunks that were made of other pieces are left out, and `restarted` says why."""
        self.path = out.with_name(out.name + PARTIAL)
        self.restarted = ""
        self._chunks: list[list[dict[str, Any]]] = []
        head = {"version": VERSION, "pieces": dict(pieces)}
        before, chunks, end = _read(self.path)
        if before == head:
            self._chunks = chunks
        elif chunks:
            assert before is not None
            was = before.get("pieces", {})
            differing = [name for name in {**was, **pieces} if was.get(name) != pieces.get(name)]
            changed = [name.partition(" ")[2] or name for name in differing]
            self.restarted = (
                f"{self.path} holds {sum(map(len, chunks))} prompts of an interrupted evaluation that differs in "
                f"{', '.join(changed) or 'the version of whet'}: it is started anew"
            )
        elif before is not None and "pieces" not in before:
            self.restarted = f"{self.path} is no record of an evaluation: it is started anew"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self._chunks:
                os.truncate(self.path, end)
            else:
                self.path.write_text(json.dumps(head) + "\n", encoding="utf-8")
        except OSError as error:
            raise WhetError(
                f"{out}: cannot write the completions there ({error.strerror}); give another --out"
            ) from error

    @property
    def chunks(self) -> Sequence[Sequence[Mapping[str, Any]]]:
        """The chunks on disk, oldest first."""
        return self._chunks

    def add(self, chunk: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Write a chunk to the end of the file; it comes back as a later reader will find it."""
        line = json.dumps(list(chunk))
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise WhetError(f"{self.path}: cannot be written ({error.strerror}); make room, or give --out") from error
        self._chunks.append(json.loads(line))
        return self._chunks[-1]

    @staticmethod
    def discard(out: Path) -> None:
        """Delete the file of an evaluation that is over and whose results are stored elsewhere."""
        out.with_name(out.name + PARTIAL).unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, Any] | None, list[list[dict[str, Any]]], int]:
    """The head, the whole chunks, and the byte where they end; no head where the file is none of ours."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None, [], 0
    except OSError as error:
        raise WhetError(f"{path}: cannot be read ({error.strerror}); delete it, or give another --out") from error
    head: dict[str, Any] | None = None
    chunks: list[list[dict[str, Any]]] = []
    end = 0
    value: Any
    for line in content.splitlines(keepends=True):
        try:
            value = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            value = None
        if head is None and isinstance(value, dict):
            head = value
        elif head is not None and isinstance(value, list):
            chunks.append(value)
        else:
            break
        end += len(line)
    return (head if head is not None else {}), chunks, end


def sample_record(sample: Sample) -> dict[str, Any]:
    """A sample as JSON, with the log-probabilities of the tokens that the policy chose."""
    return {
        **sample_state(sample),
        "tokens": sample.tokens.tolist(),
        "action": sample.action.int().tolist(),
        "logp": sample.behavior_logp[sample.action].tolist(),
    }


def sample_from(record: Mapping[str, Any]) -> Sample:
    """The inverse of `sample_record`."""
    action = torch.tensor(record["action"], dtype=torch.bool)
    logp = torch.zeros(len(action))
    logp[action] = torch.tensor(record["logp"])
    return restored_sample(
        record, "", {"tokens": torch.tensor(record["tokens"]), "action": action, "behavior_logp": logp}
    )


@dataclass(frozen=True)
class EvalPlan:
    """What is asked of every model."""

    samples: int = 1
    style: PromptStyle = field(default_factory=PromptStyle)
    budgets: tuple[int, ...] = ()
    confidence: str = ""  # "tokens": they are needed; "": what there is
    refusals: bool = False
    counts: tuple[int, ...] = ()  # k of pass@k and n of votes; empty: 1, 2, 4, ... and all samples
    chunk: int = 0  # prompts between two saves; 0: as many as make CHUNK completions

    @property
    def longest(self) -> int:
        """Tokens of a completion, where the budgets say it; else 0."""
        return max(self.budgets, default=0)

    def check(self, config: EvaluationConfig) -> None:
        """Refuse what cannot be measured, before a model is read."""
        check_samples(self.samples, config.sampling.temperature)
        if self.counts and max(self.counts) > self.samples:
            raise WhetError(
                f"pass@{max(self.counts)} needs {max(self.counts)} completions per prompt, and --samples is "
                f"{self.samples}; give --samples {max(self.counts)}"
            )
        if self.confidence == "votes" and self.samples < 2:
            raise WhetError("--confidence votes is the share of several completions that agree; give --samples 8")
        if any(budget < 1 for budget in self.budgets):
            raise WhetError(f"--budget {min(self.budgets)}: a budget is a number of tokens; give 1 or more")
        if self.budgets and not config.env.is_single:
            raise WhetError("--budget is for single completions, and an environment has turns; drop one of them")


@dataclass(frozen=True)
class EvalProgress:
    """The progress of an evaluation."""

    done: int  # prompts
    total: int
    tokens: int  # written since the start of this process
    seconds: float
    value: float | None  # mean outcome so far

    @property
    def tokens_per_second(self) -> float:
        """Tokens written per second so far."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class MeasuredModel:
    """One model on one task."""

    model: str
    task: str
    groups: tuple[Group, ...] = field(repr=False)
    attempts: tuple[tuple[Attempt, ...], ...] = field(repr=False)
    metrics: Mapping[str, float]
    summary: EvalSummary
    facts: Mapping[str, str]
    temperature: float  # 0: greedy
    rows: tuple[Mapping[str, Any], ...] = field(repr=False)  # of the file that is kept

    @property
    def outcomes(self) -> list[list[float]]:
        """The outcomes as lists [prompts][samples]."""
        return [[attempt.outcome for attempt in row] for row in self.attempts]

    def prompt_keys(self) -> list[tuple[str, str]]:
        """Id and text of every prompt: two models are comparable only where these agree."""
        return [(group.prompt.id, group.prompt.question()) for group in self.groups]


def completion_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """What a file of completions holds, one row per completion."""
    return [
        {
            "prompt_id": group.prompt.id,
            "prompt": group.prompt.question(),
            "answer": group.prompt.answer,
            "completion": sample.completion,
            "reward": sample.reward,
            "parts": dict(sample.parts),
            "tokens": sample.num_actions,
            "stop": str(sample.stop),
        }
        for group in groups
        for sample in group.samples
    ]


OnProgress = Callable[[EvalProgress], None]


@dataclass(frozen=True)
class EvalSetup:
    """Everything that is ready before the first completion."""

    config: EvaluationConfig
    plan: EvalPlan
    runtime: Runtime
    evaluator: Evaluator


def prepared(
    config: EvaluationConfig,
    plan: EvalPlan,
    runtime: Runtime | None = None,
    rewards: Sequence[RewardPart] | None = None,
) -> EvalSetup:
    """`runtime` is that of the same model on another task; `rewards` stand for those of the config."""
    plan.check(config)
    if plan.longest:
        sampling = config.sampling.model_copy(update={"max_new_tokens": plan.longest})
        config = config.model_copy(update={"sampling": sampling})
    if plan.style.plain and config.data.as_chat == AUTO:
        config = config.model_copy(update={"data": config.data.model_copy(update={"as_chat": False})})
    return EvalSetup(config, plan, *eval_setup(config, rewards, style=plan.style, runtime=runtime))


def measured(setup: EvalSetup, out: Path, on_progress: OnProgress, tell: Callable[[str], None]) -> MeasuredModel:
    """Completions to all prompts, from `out` as far as they are there; they stay until the command is over."""
    config, plan, evaluator = setup.config, setup.plan, setup.evaluator
    file = CompletionFile(out, pieces_of(setup))
    if file.restarted:
        tell(file.restarted)
    most = CHUNK if getattr(setup.runtime.engine, "updates", True) else SERVER_CHUNK
    total, size = len(evaluator.prompts), plan.chunk or max(1, most // plan.samples)
    started, tokens, done = time.monotonic(), 0, 0
    records: list[Mapping[str, Any]] = [record for chunk in file.chunks for record in chunk]
    if records:
        done = len(records)
        tell(f"{file.path}: going on after {done} of {total} prompts")
    while done < total:
        chunk = file.add(_chunk(setup, range(done, min(done + size, total))))
        records += chunk
        done += len(chunk)
        tokens += sum(sum(sample["action"]) for record in chunk for sample in record["samples"])
        _require_confidence(setup, chunk)
        if total > size:
            on_progress(EvalProgress(done, total, tokens, time.monotonic() - started, _running(records)))
    _require_confidence(setup, records)
    groups = [
        Group(prompt, tuple(sample_from(sample) for sample in record["samples"]))
        for prompt, record in zip(evaluator.prompts, records, strict=True)
    ]
    attempts = [_attempts(group, record["budgets"]) for group, record in zip(groups, records, strict=True)]
    by = config.eval.by
    labels = [str(group.prompt.meta[by]) for group in groups] if by else []
    summary = summarized(attempts, labels, plan.refusals, plan.counts)
    return MeasuredModel(
        model=config.model.name,
        task=config.eval.source or config.data.source,
        groups=tuple(groups),
        attempts=tuple(attempts),
        metrics={**group_metrics(groups, by), **_curve_ends(summary)},
        summary=summary,
        facts=eval_facts(config, setup.runtime, evaluator),
        temperature=config.sampling.temperature if plan.samples > 1 else 0.0,
        rows=tuple(completion_rows(groups)),
    )


def pieces_of(setup: EvalSetup) -> dict[str, str]:
    """What decides the completions, by name: an interrupted evaluation only goes on where all of it is the same."""
    config, plan, evaluator = setup.config, setup.plan, setup.evaluator
    dumped = config.model_dump(mode="json")
    here = getattr(setup.runtime.engine, "updates", True)
    model = model_digest(config.model.name) if here else setup.runtime.loaded.source
    for name in ("report", "rerank"):
        dumped.pop(name)  # they change nothing about the completions
    threads = dumped["model"].pop("threads", None)
    asked = [[prompt.id, prompt.answer, dict(prompt.meta), list(tokens)] for prompt, tokens in zip(
        evaluator.prompts, evaluator.prompt_tokens, strict=True)]  # fmt: skip
    return {
        "model": model,
        "data": config.eval.source or config.data.source,
        "prompts": text_digest(json.dumps(asked, default=str)),
        "reward": text_digest(json.dumps([dumped.pop("reward"), reward_file_digests([config.reward])])),
        "threads": str(threads),
        **{f"setting {name}": text_digest(json.dumps(value)) for name, value in dumped.items()},
        **{f"option {name}": json.dumps(value) for name, value in asdict(plan).items()},
    }


def _curve_ends(summary: EvalSummary) -> dict[str, float]:
    """pass@k and votes among the plain metrics."""
    votes = {f"majority@{point.n}": point.value for point in summary.votes if point.n > 1}
    return {**{f"pass@{point.n}": point.value for point in summary.pass_at}, **votes}


def _chunk(setup: EvalSetup, rows: range) -> list[dict[str, Any]]:
    """The completions to some of the prompts, scored, and what they come to under each budget."""
    config, plan, evaluator = setup.config, setup.plan, setup.evaluator
    prompts = [evaluator.prompts[row] for row in rows]
    tokens = [evaluator.prompt_tokens[row] for row in rows]
    temperature = config.sampling.temperature if plan.samples > 1 else 0.0
    sampling = replace(evaluator.sampling, temperature=temperature)
    episodes = EpisodePlan(prompts, tokens, plan.samples, sampling, (config.seed,), [(row,) for row in rows])
    groups = draw_and_score(setup.runtime.runner, episodes, evaluator.score)
    budgets = _budget_outcomes(setup, groups) if plan.budgets else None
    return [
        {
            "prompt_id": group.prompt.id,
            "samples": [sample_record(sample) for sample in group.samples],
            "budgets": [] if budgets is None else budgets[index],
        }
        for index, group in enumerate(groups)
    ]


def _budget_outcomes(setup: EvalSetup, groups: Sequence[Group]) -> list[list[list[tuple[int, float, int]]]]:
    """[prompts][samples] of (budget, outcome, tokens)."""
    tokenizer = setup.runtime.loaded.tokenizer

    def decode(tokens: list[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=True))

    flat = [sample for group in groups for sample in group.samples]
    prompts = [group.prompt for group in groups for _ in group.samples]
    outcomes: list[list[tuple[int, float, int]]] = [[] for _ in flat]
    for budget in setup.plan.budgets:
        changed = [cut_at(sample, budget, decode) for sample in flat]
        fresh = [index for index, sample in enumerate(changed) if sample.reward is None]
        asked = ([prompts[at] for at in fresh], [changed[at] for at in fresh])
        scored = dict(zip(fresh, setup.evaluator.score(*asked) if fresh else (), strict=True))
        for index, sample in enumerate(changed):
            outcome = scored.get(index, sample).outcome or 0.0
            outcomes[index].append((budget, outcome, len(sample.tokens) - _start(sample)))
    sizes = [len(group.samples) for group in groups]
    rest = iter(outcomes)
    return [[next(rest) for _ in range(size)] for size in sizes]


def _attempts(group: Group, budgets: Sequence[Sequence[Sequence[Any]]]) -> tuple[Attempt, ...]:
    """One per completion; branches of an episode are one attempt, right where all of them are."""
    if all(not sample.episode for sample in group.samples):
        rows = budgets or [[] for _ in group.samples]
        return tuple(_attempt([sample], row) for sample, row in zip(group.samples, rows, strict=True))
    return tuple(_attempt(branches, []) for branches in by_episode(group.samples))


def _attempt(branches: Sequence[Sample], budgets: Sequence[Sequence[Any]]) -> Attempt:
    outcomes = [sample.outcome or 0.0 for sample in branches]
    last = branches[-1]
    answer = final_answer(last.completion)
    logp = [
        value
        for sample in branches
        for value in _text_logp(sample.behavior_logp[sample.action].tolist(), str(sample.stop))
    ]
    thinks = "<think>" in last.completion or "</think>" in last.completion
    return Attempt(
        outcome=min(outcomes) if all(outcome in (0.0, 1.0) for outcome in outcomes) else fmean(outcomes),
        tokens=sum(sample.num_actions for sample in branches),
        finished=not any(sample.stop.is_limit for sample in branches),
        answer=None if answer is None else normal_form(answer),
        confidence=token_confidence(logp),
        refused=is_refusal(last.completion),
        in_format=is_visible(final_part(last.completion)) if thinks else None,
        budgets={budget: (outcome, count) for budget, outcome, count in budgets},
    )


def _text_logp(logp: Sequence[float], stop: str) -> Sequence[float]:
    """The log-probability of the text, without the ending token where a server does not count it as written."""
    return logp[:-1] if len(logp) > 1 and stop == StopReason.END and isnan(logp[-1]) else logp


def _running(records: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean outcome of what has been scored."""
    outcomes = [
        next((score for _, score in sample["parts"]), None) if sample["reward"] is not None else None
        for record in records
        for sample in record["samples"]
    ]
    known = [outcome or 0.0 for outcome in outcomes]
    return fmean(known) if any(outcome is not None for outcome in outcomes) else None


def _require_confidence(setup: EvalSetup, records: Sequence[Mapping[str, Any]]) -> None:
    if setup.plan.confidence != "tokens":
        return
    samples = [sample for record in records for sample in record["samples"]]
    if any(isnan(value) for sample in samples for value in _text_logp(sample["logp"], sample["stop"])):
        raise WhetError(
            f"--confidence tokens needs the log-probability of every token, and {setup.config.model.name} "
            f"({setup.config.sampling.engine}) gives none; ask a server that does (vLLM, SGLang, whet serve), or give "
            "--samples 8 --confidence votes"
        )
