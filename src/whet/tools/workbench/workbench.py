"""The reward workbench: rewards tried, compared and remembered without training.

`try_reward` is a dry run, `rescore_run` lays another reward over a run's saved samples.
"""

from __future__ import annotations

import ast
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whet.pages.rescore import Rescore, RescoredSample
from whet.pages.reward_dry_run import DryRun, PartFacts, RepeatDifference, ScoredAnswer
from whet.record.log import read_summary
from whet.reward.call import PerSample
from whet.reward.code_tests import CodeTests, PromptTests, code_of, tests_of
from whet.reward.combine import NOT_APPLICABLE, RewardPart, Schedule, check_parts, combined, in_shares, named_weight
from whet.reward.failure import RewardFailure, collected_reasons
from whet.reward.find import find_reward
from whet.reward.run_record import reward_table, title_of, weight_text
from whet.reward.score import score, skips_none
from whet.reward.version import parts_version, reward_version, version_changes
from whet.settings.layers import read_toml
from whet.tools.workbench.completions import (
    SOLUTION_COLUMNS,
    TrialCompletion,
    TrialCompletions,
    described,
    estimated_tokens,
    sample_of,
)
from whet.training.assembly.rewards import build_reward_parts, start_sandbox
from whet.training.config import resolved_evaluation
from whet.types import Prompt, WhetError

MOST_PROMPTS = 50  # controls show a reward's fault on few prompts or on none
BODIES = {"pass": "pass", "return None": "return None"}
PROGRAMS = {"pass": "pass", "print()": "print()"}
TEXTS = {"empty": "", "no answer": "I do not know.", "None": "<answer>None</answer>"}
logger = logging.getLogger(__name__)

CALL = 32  # samples per call of a reward that scores many at once
UNKNOWN = "unknown"


def wrong_controls(items: Sequence[TrialCompletion], reward: Any) -> list[TrialCompletion]:
    """Wrong completions for the prompts of `items`, in the form that the reward reads."""
    by_prompt = {item.prompt.id: item for item in items}
    chosen = list(by_prompt.values())
    if len(chosen) > MOST_PROMPTS:
        chosen = [chosen[index * len(chosen) // MOST_PROMPTS] for index in range(MOST_PROMPTS)]
    return [
        replace(item, sample=sample_of(completion, estimated_tokens), kind=kind, parts={}, reward=None)
        for item in chosen
        for kind, completion in _wrong_completions(item.prompt, reward)
    ]


def _wrong_completions(prompt: Prompt, reward: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(reward, CodeTests):
        yield from TEXTS.items()
        return
    tests = tests_of(prompt, reward.prelude, reward.tolerance)
    yield "empty", ""
    for kind, code in _wrong_codes(prompt, tests):
        yield kind, f"```python\n{code}\n```"


def _wrong_codes(prompt: Prompt, tests: PromptTests) -> Iterator[tuple[str, str]]:
    if tests.test_spec is None:
        yield from PROGRAMS.items()
        return
    known = _definitions(prompt)
    for kind, body in BODIES.items():
        yield kind, "\n\n".join(_stub(name, known.get(name), body) for name in sorted(tests.names or {"solution"}))


def _definitions(prompt: Prompt) -> dict[str, ast.stmt]:
    """The functions and classes that the prompt or its solution defines, by name."""
    definitions: dict[str, ast.stmt] = {}
    columns = ("starter_code", "prompt", "solutions", *SOLUTION_COLUMNS)
    for text in (prompt.question(), *(prompt.meta.get(column) for column in columns)):
        if isinstance(text, str):
            # the beginning of a function has no body yet
            for code in (code_of(text) or "", f"{(code_of(text) or '').rstrip()}\n        pass\n"):
                for node in _parsed(code):
                    if isinstance(node, ast.FunctionDef | ast.ClassDef):
                        definitions.setdefault(node.name, node)
    return definitions


def _parsed(code: str) -> list[ast.stmt]:
    try:
        return ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _stub(name: str, known: ast.stmt | None, body: str) -> str:
    """A function or class of this name whose functions have the same parameters and do nothing."""
    if isinstance(known, ast.ClassDef):
        methods = [_function(node.name, node.args, body) for node in known.body if isinstance(node, ast.FunctionDef)]
        inner = "\n".join(methods or ["pass"]).replace("\n", "\n    ")
        return f"class {name}:\n    {inner}"
    if isinstance(known, ast.FunctionDef):
        return _function(name, known.args, body)
    if name[:1].isupper():
        return f"class {name}:\n    def __getattr__(self, name):\n        return lambda *given, **named: None"
    return f"def {name}(*given, **named):\n    {body}"


def _function(name: str, parameters: ast.arguments, body: str) -> str:
    """A function's parameters by name alone: annotations and defaults may need names that are not defined here."""
    plain = [parameter.arg for parameter in (*parameters.posonlyargs, *parameters.args)]
    first_optional = len(plain) - len(parameters.defaults)
    signature = [argument if index < first_optional else f"{argument}=None" for index, argument in enumerate(plain)]
    star = f"*{parameters.vararg.arg}" if parameters.vararg else "*" if parameters.kwonlyargs else ""
    named = [f"{parameter.arg}=None" for parameter in parameters.kwonlyargs]
    rest = f"**{parameters.kwarg.arg}" if parameters.kwarg else ""
    body = "pass" if name == "__init__" else body
    return f"def {name}({', '.join(filter(None, [*signature, star, *named, rest]))}):\n    {body}"


def reward_parts(
    names: Sequence[str], settings: Mapping[str, Any] | None = None, require: str | None = None
) -> list[RewardPart]:
    """The parts of a reward: `name`, `file.py:function`, either with `=WEIGHT`, or one TOML file with a [reward].

    `settings` are keyword settings: of the only part, or `{part: {key: value}}` where there are several. `require` is
    the isolation that model-written code needs, over what a file or an earlier call says.
    """
    start_sandbox((), require)
    configs = [name for name in names if name.endswith(".toml")]
    if configs:
        if len(names) > 1 or settings:
            raise WhetError(
                f"{configs[0]} is a config with all its parts; give it alone, and edit settings in the file"
            )
        values = read_toml(configs[0])
        chosen: dict[str, Any] = {key: values[key] for key in ("reward", "data", "model", "sandbox") if key in values}
        if require is not None:
            chosen["sandbox"] = {"require": require}
        return build_reward_parts(resolved_evaluation(chosen), True)
    if not names:
        raise WhetError("no reward is given; name one, such as math_answer, or a file: rewards.py:my_reward")
    weights = {path: weight for weight, path in map(named_weight, names)}
    by_short_name = {path.rpartition(":")[2]: path for path in weights}
    by_part = dict(settings or {})
    if len(names) == 1 and not (
        set(by_part) <= set(by_short_name) and all(isinstance(options, dict) for options in by_part.values())
    ):
        by_part = {next(iter(by_short_name)): by_part}
    for part in by_part:
        if part not in by_short_name or not isinstance(by_part[part], dict):
            raise WhetError(
                f"--set {part}: no part is called {part!r}; write PART.SETTING=VALUE with one of "
                f"{', '.join(by_short_name)}"
            )
    parts = []
    for short, path in by_short_name.items():
        reward = find_reward(path, by_part[short]) if short in by_part else find_reward(path)
        parts.append(RewardPart(reward, weights[path]))
    check_parts(parts)
    return parts


def try_reward(
    parts: Sequence[RewardPart],
    completions: TrialCompletions,
    timeout: float = 10.0,
    twice: bool = True,
    controls: bool = True,
) -> DryRun:
    """A dry run: every part on every answer, with the time it took, and once more to see whether scores stay.

    With `controls` the first part is also tried on completions that are wrong on purpose.
    """
    parts = settled(parts)
    start_sandbox(parts)
    start = time.perf_counter()
    with collected_reasons() as reasons:
        first = [_part_scores(part, completions.items, timeout) for part in parts]
    totals = _totals(parts, first, completions.items, [1.0])
    again = [_part_scores(part, completions.items, timeout) for part in parts] if twice else None
    scored = []
    for index, answer in enumerate(completions.items):
        row = {part.name: column[index] for part, column in zip(parts, first, strict=True)}
        reason = _reason(answer, reasons) if any(score is None for score, *_ in row.values()) else ""
        scored.append(_scored_answer(answer, row, totals[index], reason))
    version = parts_version(parts)
    return DryRun(
        title=title_of(parts),
        hash=version.hash,
        source=completions.source,
        notes=(*completions.notes, *_call_notes(parts)),
        parts=tuple(
            PartFacts(
                part.name,
                weight_text(part),
                reward_version(part.resolved_reward).hash,
                is_deterministic(part.resolved_reward),
                getattr(part.resolved_reward, "says_right", True),
            )
            for part in parts
        ),
        scored=tuple(scored),
        differences=None if again is None else tuple(_differences(parts, completions.items, first, again)),
        controls=tuple(_scored_controls(parts[0], completions.items, timeout)) if controls else (),
        seconds=time.perf_counter() - start,
        pieces=version.pieces,
    )


def _reason(answer: TrialCompletion, reasons: Sequence[tuple[str | None, str]]) -> str:
    """Why this one could not be judged, where its reward said so; a reason without a prompt is for all."""
    own = [reason for prompt_id, reason in reasons if prompt_id in (answer.prompt.id, None)]
    return own[0] if own else ""


def _scored_controls(part: RewardPart, items: Sequence[TrialCompletion], timeout: float) -> list[ScoredAnswer]:
    """Completions that are wrong on purpose, scored by the part that says what is right."""
    if not getattr(part.resolved_reward, "says_right", True):
        return []
    # of a pair one completion is better than the other: nothing says which score is right
    judged = [item for item in items if item.kind not in ("chosen", "rejected")]
    controls = wrong_controls(judged, part.resolved_reward)
    scores = _part_scores(part, controls, timeout)
    pairs = zip(controls, scores, strict=True)
    return [_scored_answer(control, {part.name: scored}, scored[0]) for control, scored in pairs]


def _scored_answer(
    answer: TrialCompletion, row: Mapping[str, tuple[float | None, float, str]], total: float | None, reason: str = ""
) -> ScoredAnswer:
    """One completion with the (score, seconds, failure) of each part."""
    return ScoredAnswer(
        where=answer.where,
        kind=answer.kind,
        prompt_id=answer.prompt.id,
        question=answer.prompt.question(),
        answer=described(answer.prompt.answer),
        completion=answer.sample.completion,
        tokens=answer.sample.num_actions,
        parts={name: score for name, (score, _, _) in row.items()},
        total=total,
        seconds=sum(took for _, took, _ in row.values()),
        failures={name: failure for name, (_, _, failure) in row.items() if failure},
        reason=reason,
        step=answer.step,
    )


def rescore_run(
    run: str | Path, parts: Sequence[RewardPart], completions: TrialCompletions, timeout: float = 10.0
) -> Rescore:
    """The run's saved samples under other parts; schedules stand where they stood at each sample's step."""
    start_sandbox(parts)
    folder = Path(run)
    steps = max([answer.step for answer in completions.items] + [int(read_summary(folder).get("total_steps") or 1)])
    parts = in_shares(parts, steps)
    columns = [_part_scores(part, completions.items, timeout) for part in parts]
    totals = _totals(parts, columns, completions.items, [answer.step / steps for answer in completions.items])
    rows = [
        RescoredSample(
            step=answer.step,
            prompt_id=answer.prompt.id,
            question=answer.prompt.question(),
            answer=described(answer.prompt.answer),
            completion=answer.sample.completion,
            old_parts=answer.parts,
            old=answer.reward,
            new_parts={part.name: column[index][0] for part, column in zip(parts, columns, strict=True)},
            new=totals[index],
        )
        for index, answer in enumerate(completions.items)
    ]
    version, table = parts_version(parts), reward_table(folder)
    hashes = list(dict.fromkeys(answer.reward_hash for answer in completions.items if answer.reward_hash))
    before = table.get(hashes[-1], {}) if hashes else {}
    old_pieces = before.get("pieces")
    old_title = str(before.get("title") or ", ".join(dict.fromkeys(name for row in rows for name in row.old_parts)))
    return Rescore(
        run=str(folder),
        old_title=old_title,
        old_hash=", ".join(hashes) or UNKNOWN,
        new_title=title_of(parts),
        new_hash=version.hash,
        changed=tuple(version_changes(old_pieces, version.pieces)) if old_pieces is not None else (),
        notes=completions.notes,
        rows=tuple(rows),
    )


def is_deterministic(reward: Any) -> bool:
    """Whether a reward declares itself deterministic, by its own or its function's attribute; True without one."""
    function = getattr(reward, "function", None)
    function = getattr(function, "func", function)
    return bool(getattr(reward, "deterministic", getattr(function, "deterministic", True)))


def settled(parts: Sequence[RewardPart]) -> list[RewardPart]:
    """Schedules that run over steps, as shares of the steps they name: a dry run has no steps of its own."""
    lasts = [int(part.weight.points[-1][0]) for part in parts if isinstance(part.weight, Schedule)]
    return in_shares(parts, max([1, *lasts]))


def _call_notes(parts: Sequence[RewardPart]) -> list[str]:
    shared = [
        part.name
        for part in parts
        if not isinstance(part.reward, PerSample) and not hasattr(part.resolved_reward, "take_seconds")
    ]
    return [f"{name} scores {CALL} samples per call, and its time is shared among them" for name in shared]


def _part_scores(
    part: RewardPart, answers: Sequence[TrialCompletion], timeout: float
) -> list[tuple[float | None, float, str]]:
    """(score, seconds, failure) of each answer. Of a call on many, every answer took the same share of its time,
    unless the reward itself knows what each one took.
    """
    size = 1 if isinstance(part.reward, PerSample) else CALL
    mistakes: list[WhetError] = []
    if answers:
        _call(part, answers[:1], timeout, [])  # imports and warm-up do not count as slowness
    scores: list[tuple[float | None, float, str]] = []
    for start in range(0, len(answers), size):
        together = answers[start : start + size]
        scored = _call(part, together, timeout, mistakes)
        if isinstance(scored, str):  # an answer in it fails: one by one shows which
            alone = [_call(part, [answer], timeout, mistakes) for answer in together]
            one_by_one = [score[0] for score in alone if not isinstance(score, str)]
            # none fails alone: the call on several is wrong, say a list of the wrong length
            scores += (
                one_by_one
                if any(failure for *_, failure in one_by_one)
                else [(None, took, scored) for _, took, _ in one_by_one]
            )
        else:
            scores += scored
    if mistakes and all(failure for *_, failure in scores) and not isinstance(mistakes[0], RewardFailure):
        raise mistakes[0]  # a column that no row has, say: not the fault of any one of them
    return scores


def _call(
    part: RewardPart, answers: Sequence[TrialCompletion], timeout: float, mistakes: list[WhetError]
) -> list[tuple[float | None, float, str]] | str:
    """The scores of one call, or why it failed where it has several answers."""
    start = time.perf_counter()
    prompts, samples = [answer.prompt for answer in answers], [answer.sample for answer in answers]
    try:
        scored = score(prompts, samples, [RewardPart(part.resolved_reward)], timeout, "stop")
    except WhetError as failure:
        if len(answers) > 1:
            return str(failure)
        mistakes.append(failure)
        return [(None, time.perf_counter() - start, str(failure))]
    took = [(time.perf_counter() - start) / len(answers)] * len(answers)
    if hasattr(part.resolved_reward, "take_seconds"):
        took = part.resolved_reward.take_seconds()
    getattr(part.resolved_reward, "take_notes", dict)()  # a second call must not know of the first
    return [(sample.parts.get(part.name), seconds, "") for sample, seconds in zip(scored, took, strict=True)]


def _totals(
    parts: Sequence[RewardPart],
    columns: Sequence[Sequence[tuple[float | None, float, str]]],
    answers: Sequence[TrialCompletion],
    done: Sequence[float],
) -> list[float | None]:
    """The sums, as a run would form them: step by step, since some parts are normalised among their neighbours."""
    totals: list[float | None] = [None] * len(answers)
    progress = done if len(done) == len(answers) else [done[0]] * len(answers)
    places: dict[int, list[int]] = {}
    for index, answer in enumerate(answers):
        places.setdefault(answer.step, []).append(index)
    for chosen in places.values():
        scores = {
            part.name: [_entered(part, *column[i]) for i in chosen] for part, column in zip(parts, columns, strict=True)
        }
        groups = [answers[i].prompt.id for i in chosen]
        for i, total in zip(chosen, combined(scores, parts, progress[chosen[0]], groups), strict=True):
            totals[i] = total
    return totals


def _entered(part: RewardPart, score: float | None, _: float, failure: str) -> float | None:
    """A score as it enters the sum."""
    skipped = score is None and not failure and skips_none(part.resolved_reward)
    return NOT_APPLICABLE if skipped else score


def _differences(
    parts: Sequence[RewardPart],
    answers: Sequence[TrialCompletion],
    first: Sequence[Sequence[tuple[float | None, float, str]]],
    again: Sequence[Sequence[tuple[float | None, float, str]]],
) -> list[RepeatDifference]:
    return [
        RepeatDifference(answer.where, part.name, before[0], after[0])
        for part, befores, afters in zip(parts, first, again, strict=True)
        for answer, before, after in zip(answers, befores, afters, strict=True)
        if before[0] != after[0]
    ]
