"""The judge as a reward."""

from __future__ import annotations

import copy
import inspect
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from whet.model.server_client import one_line
from whet.reward.answer import after_thinking
from whet.reward.failure import EXCERPT, PartialFailure, RewardFailure, unscorable
from whet.reward.judge.asides import without_asides
from whet.reward.judge.ask import (
    AnswerCache,
    Answers,
    Ask,
    JudgeAnswer,
    JudgeBudget,
    JudgeSettings,
    Trouble,
    callee_answers,
    question_key,
    server_answers,
)
from whet.reward.judge.questions import (
    JudgeQuestion,
    Messages,
    PairVerdict,
    Rubric,
    comparison_question,
    conversation_text,
    grading_question,
    preference_in,
    repeated_question,
    rubric_from,
    rubric_scores_in,
    verdict_schema,
)
from whet.types import Prompt, Sample, WhetError

logger = logging.getLogger(__name__)
T = TypeVar("T")

NO_VERDICT = "an answer without one clear verdict"
ASIDES_PAID = Trouble("a mark that falls when words beside the question are cut", is_doubtful=True)
CUT = "\n[cut here: the answer goes on]"


def judge(**settings: Any) -> Judge:
    """The verdict of a language model, in [0, 1]; None where it gives no readable one. Settings: `JudgeSettings`."""
    return Judge(JudgeSettings(**settings))


judge.__signature__ = inspect.signature(JudgeSettings, eval_str=True)  # type: ignore[attr-defined]


class Judge:
    """Marks completions (`compare=none`): the rubric's weighted mean as a share of its scale. Or compares them, both
    orders asked, 1 for better, 0 for worse, 0.5 for a tie and for a judge that prefers a place to an answer: with
    the reference answer (`compare=reference`), or with the others of the group, on average (`compare=group`).

    A completion with asides (`without_asides`) is marked a second time without them, and where that mark is lower it
    gets the lower one, or none (`asides`). Comparisons are made without asides.

    A completion that says nothing outside its thinking gets 0 unasked, and loses every comparison with one that does.
    A question that cannot be answered (too long for the judge, filtered, a server that gives up) leaves its sample
    unscorable, and counts as a failure of the reward; an answer without a verdict does so where most of them are.
    """

    limits_itself = True  # by `timeout` and `retries` of each call

    def __init__(self, settings: JudgeSettings, ask: Ask | None = None) -> None:
        self.settings = settings
        self.rubric = rubric_from(settings.rubric)
        self._ask = ask
        self._cache = AnswerCache(settings.cache) if settings.cache else None
        self.budget = JudgeBudget(settings.max_calls, settings.max_tokens, self._cache)
        self._num_without_verdict = self._num_lowered = 0
        self._early: dict[str, str | Trouble] = {}  # answers to questions that were asked ahead of their call
        self._asks_early = False

    @property
    def name(self) -> str:
        """What its scores are reported under."""
        return self.settings.name

    @property
    def deterministic(self) -> bool:
        """Equal completions get equal scores: only when greedy answers are kept."""
        return self.settings.temperature == 0 and self._cache is not None

    @property
    def wants_company(self) -> bool:
        """True: must not be the only reward; see `whet.reward.combine.check_company`."""
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
            *("compare", "opponents", "reference", "show_reference", "show_thinking", "longest_completion", "attempts"),
            "asides",
        )
        return {"rubric": repr(self.rubric), **settings.request, **{key: getattr(settings, key) for key in keys}}

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        return self._checked(prompts, self._marks(prompts, samples))

    def _marks(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | Trouble | None]:
        completions = [self._visible(sample.completion) for sample in samples]
        if self.settings.compare == "none":
            return self._rubric_scores(prompts, completions)
        cut = [self._cut(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        if self.settings.compare == "reference":
            references = [self._reference(prompt) for prompt in prompts]
            return list(self._outcomes(list(zip(prompts, cut, references, strict=True))))
        return self._ranks(prompts, cut)

    @property
    def ahead(self) -> bool:
        """A server is asked while completions are written; the engine that writes them cannot be."""
        return self._ask is None

    @property
    def prefetches_groups(self) -> bool:
        """Whether a judge asks about several completions to a prompt at once."""
        return self.settings.compare == "group"

    def prefetch(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> None:
        """Ask what these completions will need, again too where an answer has no verdict; a call finds the answers."""
        asking = copy.copy(self)
        asking._asks_early = True
        asking._marks(prompts, samples)

    def preferences(self, questions: Sequence[JudgeQuestion]) -> list[PairVerdict | None]:
        """Which of its two answers each question prefers; None where no verdict could be read."""
        verdicts = self._preferences(questions)
        if verdicts and all(isinstance(verdict, Trouble) and verdict.is_failure for verdict in verdicts):
            raise RewardFailure(self._complaint(len(verdicts), len(verdicts), str(verdicts[-1])))
        return [None if isinstance(verdict, Trouble) else verdict for verdict in verdicts]

    def take_notes(self) -> dict[str, float]:
        """How many samples got no verdict since the last call, and how many verdicts fell with the asides; no zeros."""
        counts = {"without_verdict": self._num_without_verdict, "lowered": self._num_lowered}
        self._num_without_verdict = self._num_lowered = 0
        return {f"{self.name}_{what}": float(count) for what, count in counts.items() if count}

    def _checked(self, prompts: Sequence[Prompt], verdicts: Sequence[float | Trouble | None]) -> list[float | None]:
        """The scores; raises a failure that has them, and says of which samples the judge is to blame."""
        scores = [None if isinstance(verdict, Trouble) else verdict for verdict in verdicts]
        troubles = {number: verdict for number, verdict in enumerate(verdicts) if isinstance(verdict, Trouble)}
        self._num_without_verdict += len(troubles)
        for number, trouble in troubles.items():
            unscorable(f"reward {self.name!r}: {NO_VERDICT if trouble.is_unreadable else trouble}", prompts[number])
        most_unreadable = 2 * sum(cause.is_unreadable for cause in troubles.values()) > len(verdicts)
        failed = [
            number
            for number, cause in troubles.items()
            if cause.is_failure or (cause.is_unreadable and most_unreadable)
        ]
        if failed:
            last = f"prompt {prompts[failed[-1]].id!r}: {troubles[failed[-1]]}"
            complaint = self._complaint(len(failed), len(verdicts), last)
            raise PartialFailure(complaint, scores, [number in failed for number in range(len(verdicts))])
        return scores

    def _complaint(self, failed: int, asked: int, last: str) -> str:
        who = self.settings.base_url if self._ask is None else "the model that judges"
        fix = "check that it runs and follows the format asked for, or raise retries and timeout"
        if 2 * failed < asked:
            fix = "where there are many, lower longest_completion or max_new_tokens, or take another judge"
        return f"reward {self.name!r}: {failed} of {asked} got no verdict from {who}; the last, {last}; {fix}"

    def _rubric_scores(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float | Trouble | None]:
        shown = [
            dict.fromkeys((completion, self._cut(prompt, completion)))
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        graded = [(number, text) for number, texts in enumerate(shown) for text in texts if text.strip()]
        questions = [
            grading_question(
                prompts[number],
                text,
                self.rubric,
                self._reference(prompts[number]) if self.settings.show_reference else None,
            )
            for number, text in graded
        ]
        verdicts = dict(zip(graded, self._verdicts(questions, self._scores_in, self.rubric), strict=True))
        return [
            self._worse(*(self._share(verdicts.get((number, text))) for text in texts))
            for number, texts in enumerate(shown)
        ]

    def _share(self, verdict: dict[str, float] | Trouble | None) -> float | Trouble:
        """The mark as a share of the scale; 0 for a text that says nothing, and is not shown to the judge."""
        if verdict is None:
            return 0.0
        return verdict if isinstance(verdict, Trouble) else self.rubric.share(verdict)

    def _cut(self, prompt: Prompt, completion: str) -> str:
        """The completion without its asides, where they are looked for."""
        if self.settings.asides == "keep":
            return completion
        column = self.settings.reference
        reference = prompt.meta.get(column) if column else prompt.answer
        return without_asides(conversation_text(prompt), "" if reference is None else str(reference), completion)

    def _worse(self, whole: float | Trouble, cut: float | Trouble | None = None) -> float | Trouble:
        """The mark of a completion, from the mark as it stands and the mark without its asides."""
        if cut is None or isinstance(whole, Trouble):
            return whole
        if isinstance(cut, Trouble):
            return cut
        if cut >= whole:
            return whole
        self._num_lowered += 1
        return cut if self.settings.asides == "lower" else ASIDES_PAID

    def _scores_in(self, answer: str, code: str) -> dict[str, float] | None:
        return rubric_scores_in(answer, self.rubric, code)

    def _ranks(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float | Trouble | None]:
        """The mean outcome of each completion against the others of its group; None for a completion without others."""
        groups: dict[str, list[int]] = defaultdict(list)
        for number, prompt in enumerate(prompts):
            groups[prompt.id].append(number)
        pairs = [pair for members in groups.values() for pair in meetings(members, self.settings.opponents)]
        outcomes = self._outcomes([(prompts[one], completions[one], completions[other]) for one, other in pairs])
        earned: dict[int, list[float]] = defaultdict(list)
        ranks: list[float | Trouble | None] = [None] * len(completions)
        for (one, other), outcome in zip(pairs, outcomes, strict=True):
            if isinstance(outcome, Trouble):
                ranks[one] = ranks[other] = outcome
            else:
                earned[one].append(outcome)
                earned[other].append(1.0 - outcome)
        for number, shares in earned.items():
            ranks[number] = sum(shares) / len(shares)
        return ranks

    def _outcomes(self, pairs: Sequence[tuple[Prompt, str, str]]) -> list[float | Trouble]:
        """The outcome for the first completion of each pair: 1 better, 0 worse, 0.5 a tie."""
        questions = []
        for prompt, one, other in pairs:
            if _trivial_outcome(one, other) is None:
                show = self.settings.show_reference and self.settings.compare == "group"
                reference = self._reference(prompt) if show else None
                questions.append(comparison_question(prompt, one, other, self.rubric, reference))
                questions.append(comparison_question(prompt, other, one, self.rubric, reference))
        verdicts = iter(self._preferences(questions))
        outcomes: list[float | Trouble] = []
        for _, one, other in pairs:
            trivial = _trivial_outcome(one, other)
            outcomes.append(outcome_of(next(verdicts), next(verdicts)) if trivial is None else trivial)
        return outcomes

    def _preferences(self, questions: Sequence[JudgeQuestion]) -> list[PairVerdict | Trouble]:
        verdicts: Any = self._verdicts(questions, preference_in, None)  # a literal type is inferred as str
        preferences: list[PairVerdict | Trouble] = verdicts
        return preferences

    def _verdicts(
        self, questions: Sequence[JudgeQuestion], read: Callable[[str, str], T | None], rubric: Rubric | None
    ) -> list[T | Trouble]:
        """The verdict read from the answer to each question; a question without a readable one is sent again."""
        verdicts: dict[int, T | Trouble] = {}
        pending = {number: question.messages for number, question in enumerate(questions)}
        for _ in range(self.settings.attempts):
            numbers = list(pending)
            answers = self._answers([pending[number] for number in numbers], rubric)
            pending = {}
            for number, answer in zip(numbers, answers, strict=True):
                if isinstance(answer, Trouble):
                    verdicts[number] = answer
                    continue
                verdict = read(answer, questions[number].code)
                if verdict is None:
                    pending[number] = repeated_question(questions[number], answer)
                    reason = f"{NO_VERDICT}: {one_line(answer[-EXCERPT:])!r}"
                    verdicts[number] = Trouble(reason, is_unreadable=True)
                else:
                    verdicts[number] = verdict
            if not pending:
                break
        return [verdicts[number] for number in range(len(questions))]

    def _answers(self, questions: Sequence[Messages], rubric: Rubric | None) -> list[str | Trouble]:
        """One answer per question, from the cache where it holds one; equal questions are sent once."""
        keys = [question_key(self.settings.request, question) for question in questions]
        answers: dict[str, str | Trouble] = dict(self._cache.lookup(keys)) if self._cache is not None else {}
        take = self._early.get if self._asks_early else self._early.pop  # one call uses an early answer, and no other
        answers |= {key: early for key in dict.fromkeys(keys) if (early := take(key, None)) is not None}
        missing = {key: question for key, question in zip(keys, questions, strict=True) if key not in answers}
        if missing:
            answers |= self._ask_source(missing, rubric)
        if self._asks_early:
            self._early.update((key, answers[key]) for key in keys)
        return [answers[key] for key in keys]

    def _ask_source(self, missing: Mapping[str, Messages], rubric: Rubric | None) -> dict[str, str | Trouble]:
        keys = list(missing)
        answers: dict[str, str | Trouble] = {}
        troubles = []
        try:
            for number, answer in self._asked(list(missing.values()), rubric):
                if isinstance(answer, JudgeAnswer):
                    answers[keys[number]] = answer.text
                    if self._cache is not None:
                        self._cache.store(keys[number], answer.text, answer.tokens)
                        self.budget.save()
                else:
                    answers[keys[number]] = answer
                    troubles.append(answer)
        finally:
            self.budget.save()
        if any(trouble.is_budget for trouble in troubles):
            if self.settings.at_budget_end == "stop":
                raise WhetError(self.budget.complaint(self.name))
            logger.warning("reward %r: its budget is spent, and completions are left unscored", self.name)
        return answers

    def _asked(self, questions: Sequence[Messages], rubric: Rubric | None) -> Answers:
        if self._ask is not None:
            return callee_answers(self._ask, self.budget, questions)
        if not self.settings.base_url:
            raise WhetError(
                f"reward {self.name!r} has nobody to ask; set base_url and model of an OpenAI-compatible server, "
                "or give it an engine: judge.asking(ask)"
            )
        return server_answers(self.settings, self.budget, verdict_schema(rubric), questions)

    def _visible(self, completion: str) -> str:
        text = completion if self.settings.show_thinking else after_thinking(completion)
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


def outcome_of(forth: PairVerdict | Trouble, back: PairVerdict | Trouble) -> float | Trouble:
    """The outcome of a completion from the two preferences: it stood first, and then second."""
    for verdict in (forth, back):
        if isinstance(verdict, Trouble):
            return verdict
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
