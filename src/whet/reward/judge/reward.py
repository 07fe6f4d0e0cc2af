"""The judge as a reward."""

from __future__ import annotations

import inspect
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from whet.protocols import Reward
from whet.reward.failure import RewardFailure
from whet.reward.judge.ask import AnswerSource, Ask, Callee, Endpoint, JudgeAnswer
from whet.reward.judge.cache import AnswerCache, JudgeBudget, question_key
from whet.reward.judge.questions import Messages, comparison_question, grading_question, repeated_question
from whet.reward.judge.rubric import rubric_from
from whet.reward.judge.settings import JudgeSettings
from whet.reward.judge.verdict import PairVerdict, preference_in, rubric_scores_in, without_thinking
from whet.types import Prompt, Sample, WhetError

logger = logging.getLogger(__name__)
T = TypeVar("T")

CUT = "\n[cut here: the answer goes on]"


def judge(**settings: Any) -> Judge:
    """The verdict of a language model, in [0, 1]; None where it gives no readable one. Settings: `JudgeSettings`."""
    return Judge(JudgeSettings(**settings))


judge.__signature__ = inspect.signature(JudgeSettings, eval_str=True)  # type: ignore[attr-defined]


def check_company(rewards: Sequence[Reward]) -> None:
    """Refuse a judge as the only reward, unless the user allows it with alone=true. Leave out those of weight 0."""
    if rewards and all(getattr(reward, "wants_company", False) for reward in rewards):
        raise WhetError(
            f"reward {rewards[0].name!r} is a judge, and the only reward: a judge can be talked into good marks; add a "
            "reward that checks something (an answer, a format, tests), or set alone=true if you mean it"
        )


class Judge:
    """Marks completions (`compare=none`): the rubric's weighted mean as a share of its scale. Or compares them, both
    orders asked, 1 for better, 0 for worse, 0.5 for a tie and for a judge that prefers a place to an answer: with
    the reference answer (`compare=reference`), or with the others of the group, on average (`compare=group`).

    A completion that says nothing outside its thinking gets 0 unasked, and loses every comparison with one that does.
    """

    limits_itself = True  # by `timeout` and `retries` of each call

    def __init__(self, settings: JudgeSettings, ask: Ask | None = None) -> None:
        self.settings = settings
        self.rubric = rubric_from(settings.rubric)
        self._ask = ask
        self._cache = AnswerCache(settings.cache) if settings.cache else None
        self.budget = JudgeBudget(settings.max_calls, settings.max_tokens, self._cache)

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def deterministic(self) -> bool:
        """Equal completions get equal scores: only when greedy answers are kept."""
        return self.settings.temperature == 0 and self._cache is not None

    @property
    def wants_company(self) -> bool:
        """True: must not be the only reward; see `check_company`."""
        return not self.settings.alone

    @property
    def needs_ask(self) -> bool:
        """True while there is nothing to answer the questions: give an engine with `asking`."""
        return self._ask is None and not self.settings.base_url

    def asking(self, ask: Ask) -> Judge:
        """The same judge, its questions answered by `ask`."""
        return Judge(self.settings, ask)

    @property
    def made_of(self) -> Mapping[str, Any]:
        """What a score depends on."""
        settings = self.settings
        keys = (
            "compare",
            "opponents",
            "reference",
            "show_reference",
            "show_thinking",
            "longest_completion",
            "attempts",
        )
        return {"rubric": repr(self.rubric), **settings.request, **{key: getattr(settings, key) for key in keys}}

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        completions = [self._visible(sample.completion) for sample in samples]
        if self.settings.compare == "none":
            return self._rubric_scores(prompts, completions)
        if self.settings.compare == "reference":
            references = [self._reference(prompt) for prompt in prompts]
            rows = zip(prompts, completions, references, strict=True)
            return self._outcomes([(prompt, completion, reference) for prompt, completion, reference in rows])
        return self._ranks(prompts, completions)

    def preferences(self, questions: Sequence[Messages]) -> list[PairVerdict | None]:
        """Which of its two answers each question prefers; None where no verdict could be read."""
        verdicts: list[PairVerdict | None] = self._verdicts(questions, preference_in)  # type: ignore[assignment]
        return verdicts

    def _rubric_scores(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float | None]:
        nonempty = [number for number, completion in enumerate(completions) if completion.strip()]
        questions = [
            grading_question(
                prompts[number],
                completions[number],
                self.rubric,
                self._reference(prompts[number]) if self.settings.show_reference else None,
            )
            for number in nonempty
        ]
        verdicts = self._verdicts(questions, lambda answer: rubric_scores_in(answer, self.rubric))
        scores: list[float | None] = [0.0] * len(completions)
        for number, found in zip(nonempty, verdicts, strict=True):
            scores[number] = None if found is None else self.rubric.share(found)
        return scores

    def _ranks(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float | None]:
        """The mean outcome of each completion against the others of its group; None for a completion without others."""
        groups: dict[str, list[int]] = defaultdict(list)
        for number, prompt in enumerate(prompts):
            groups[prompt.id].append(number)
        pairs = [pair for members in groups.values() for pair in meetings(members, self.settings.opponents)]
        outcomes = self._outcomes([(prompts[one], completions[one], completions[other]) for one, other in pairs])
        earned: dict[int, list[float]] = defaultdict(list)
        for (one, other), outcome in zip(pairs, outcomes, strict=True):
            if outcome is not None:
                earned[one].append(outcome)
                earned[other].append(1.0 - outcome)
        means = {number: sum(ranks) / len(ranks) for number, ranks in earned.items()}
        return [means.get(number) for number in range(len(completions))]

    def _outcomes(self, pairs: Sequence[tuple[Prompt, str, str]]) -> list[float | None]:
        """For the first completion of each pair: 1 better, 0 worse, 0.5 a tie, None without a verdict."""
        outcomes = [_trivial_outcome(one, other) for _, one, other in pairs]
        asked = [number for number, outcome in enumerate(outcomes) if outcome is None]
        questions = []
        for number in asked:
            prompt, one, other = pairs[number]
            show = self.settings.show_reference and self.settings.compare == "group"
            reference = self._reference(prompt) if show else None
            questions.append(comparison_question(prompt, one, other, self.rubric, reference))
            questions.append(comparison_question(prompt, other, one, self.rubric, reference))
        verdicts = self._verdicts(questions, preference_in)
        for number, forth, back in zip(asked, verdicts[::2], verdicts[1::2], strict=True):
            outcomes[number] = outcome_of(forth, back)
        return outcomes

    def _verdicts(self, questions: Sequence[Messages], read: Callable[[str], T | None]) -> list[T | None]:
        """The verdict read from the answer to each question; a question without a readable one is sent again."""
        verdicts: list[T | None] = [None] * len(questions)
        pending = dict(enumerate(questions))
        for _ in range(self.settings.attempts):
            numbers = list(pending)
            answers = self._answers([pending[number] for number in numbers])
            pending = {}
            for number, answer in zip(numbers, answers, strict=True):
                verdicts[number] = None if answer is None else read(answer)
                if answer is not None and verdicts[number] is None:
                    pending[number] = repeated_question(questions[number], answer)
            if not pending:
                break
        if pending:
            logger.warning("reward %r: %d of %d verdicts cannot be read", self.name, len(pending), len(questions))
        return verdicts

    def _answers(self, questions: Sequence[Messages]) -> list[str | None]:
        """One answer per question, from the cache where it holds one; equal questions are sent once."""
        keys = [question_key(self.settings.request, question) for question in questions]
        answers = self._cache.lookup(keys) if self._cache is not None else {}
        missing = {key: question for key, question in zip(keys, questions, strict=True) if key not in answers}
        if missing:
            answers |= self._ask_source(missing)
        return [answers.get(key) for key in keys]

    def _ask_source(self, missing: Mapping[str, Messages]) -> dict[str, str]:
        keys = list(missing)
        answers: dict[str, str] = {}
        troubles = []
        try:
            for number, answer in self._source().answers(list(missing.values())):
                if isinstance(answer, JudgeAnswer):
                    answers[keys[number]] = answer.text
                    if self._cache is not None:
                        self._cache.store(keys[number], answer.text, answer.tokens)
                        self.budget.save()
                else:
                    troubles.append(answer)
        finally:
            self.budget.save()
        if any(trouble.is_budget for trouble in troubles):
            if self.settings.at_budget_end == "stop":
                raise WhetError(self.budget.complaint(self.name))
            logger.warning("reward %r: its budget is spent, and completions are left unscored", self.name)
        failed = [trouble for trouble in troubles if not trouble.is_budget]
        if failed and not answers:
            raise RewardFailure(
                f"reward {self.name!r}: none of {len(failed)} questions was answered at {self.settings.base_url}; the "
                f"last: {failed[-1].reason}; check that the server runs, or raise retries and timeout"
            )
        if failed:
            logger.warning("reward %r: %d calls failed; the last: %s", self.name, len(failed), failed[-1].reason)
        return answers

    def _source(self) -> AnswerSource:
        if self._ask is not None:
            return Callee(self._ask, self.budget)
        settings = self.settings
        if not settings.base_url:
            raise WhetError(
                f"reward {self.name!r} has nobody to ask; set base_url and model of an OpenAI-compatible server, "
                "or give it an engine: judge.asking(ask)"
            )
        return Endpoint(
            settings.base_url,
            settings.model,
            self.budget,
            settings.key_variable,
            settings.payload,
            settings.timeout,
            settings.retries,
            settings.concurrency,
            settings.first_wait,
        )

    def _visible(self, completion: str) -> str:
        text = completion if self.settings.show_thinking else without_thinking(completion)
        return text if len(text) <= self.settings.longest_completion else text[: self.settings.longest_completion] + CUT

    def _reference(self, prompt: Prompt) -> str:
        column = self.settings.reference
        value = prompt.meta.get(column) if column else prompt.answer
        text = "" if value is None else str(value)
        if not text.strip():
            where = f"the column {column!r}" if column else "a gold answer"
            raise WhetError(
                f"reward {self.name!r} looks at a reference, and prompt {prompt.id!r} has not {where}; give the row "
                "one, or name its column with reference=COLUMN"
            )
        return text


def meetings(members: Sequence[int], opponents: int) -> list[tuple[int, int]]:
    """The pairs of a group: all of them, or a ring in which each meets about `opponents` others."""
    size = len(members)
    if opponents == 0 or opponents >= size - 1:
        return list(itertools.combinations(members, 2))
    reach = (opponents + 1) // 2
    ring = [(members[at], members[(at + step) % size]) for step in range(1, reach + 1) for at in range(size)]
    return list({frozenset(pair): pair for pair in ring}.values())


def outcome_of(forth: str | None, back: str | None) -> float | None:
    """The outcome of a completion from the two preferences: it stood first, and then second."""
    if forth is None or back is None:
        return None
    if (forth, back) == ("first", "second"):
        return 1.0
    return 0.0 if (forth, back) == ("second", "first") else 0.5


def _trivial_outcome(one: str, other: str) -> float | None:
    """A verdict that needs no judge: equal texts tie, and nothing loses against something."""
    if one.strip() == other.strip():
        return 0.5
    if not one.strip() or not other.strip():
        return float(bool(one.strip()))
    return None
