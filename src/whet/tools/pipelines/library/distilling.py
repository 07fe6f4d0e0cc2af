"""Stages of distillation: a student out of a teacher, training at a matched cost, and who learned most from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from whet.record.metrics.intervals import corrected, paired_test
from whet.record.speed import FORWARD
from whet.record.text import count_of, number, percent
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library import takes
from whet.tools.pipelines.library.entry import OUTPUT_FILES, Composition, StageEntry, StageInput, StageWork
from whet.tools.pipelines.library.trainings import Passes, RLEntry
from whet.tools.pipelines.stages import StageCost, stage_result
from whet.tools.pipelines.training import RUN, total_steps, train_run, trained_result, training_cost
from whet.types import WhetError

MOST_LAYERS = 1000
# completions of the student may be shorter than the traces: then the training goes on until its cost is close
CLOSE, MOST_EXTENSIONS = 0.95, 6


class StudentEntry(StageEntry, kind="student", gives=("model",)):
    """A smaller model: some layers of another one, its shape with new weights, or a model that is there already."""

    teacher: takes.Model = Field(description="the stage or model that the student learns from later")
    source: takes.OptionalModel = Field(
        "", description="the student, where it is a model already; empty: made out of the teacher"
    )
    layers: int = Field(
        0, ge=0, le=MOST_LAYERS, description="layers of the teacher that the student keeps; 0: all of them"
    )
    from_scratch: bool = Field(False, description="draw its weights anew instead of copying the teacher's")
    seed: amounts.Seed = Field(0, description="random seed of new weights")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        if self.source and (self.layers or self.from_scratch):
            raise WhetError(f"stage {self.name!r}: layers and from_scratch make a student; drop them, or source")
        return super().find_inputs(composition)

    def about(self, run: StageWork) -> str:
        if self.source:
            return f"the student: {run.labels['source']}"
        made = "its shape with new weights" if self.from_scratch else f"{self.layers or 'all'} of its layers"
        return f"a student out of {run.labels['teacher']}: {made}"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        from whet.model.prune import count_weights, save_smaller

        teacher, source = run.model("teacher"), run.model("source")
        total, weights = save_smaller(source or teacher, run.folder / RUN, self.layers, self.from_scratch, self.seed)
        of_teacher = count_weights(teacher) if source else total
        share = f"{percent(weights / of_teacher)} of the teacher's {number(of_teacher / 1e6)}M"
        return stage_result(
            f"a student of {number(weights / 1e6)}M weights, {share}",
            counts={"weights": weights, "teacher_weights": of_teacher},
        )


class MatchedEntry(RLEntry, kind="matched_rl"):
    """Training on the student's own completions, for about the arithmetic that learning from traces took.

    Operations of one token: 2 per weight for a forward pass, 6 for training (2001.08361). Completions only.
    """

    unplanned: ClassVar[frozenset[str]] = frozenset({"student", "traces", "imitation"})

    teacher: takes.OptionalModel = Field(
        "", description="the stage or model that grades tokens, where the method has a teacher"
    )
    student: takes.Result = Field(description="the stage that made the student")
    traces: takes.Result = Field(description="the stage that sampled the teacher")
    imitation: takes.Result = Field(description="the stage that learned from those traces")

    def more(self, run: StageWork) -> Mapping[str, Any]:
        values = super().more(run)
        return {**values, "teacher": {"name": run.located("teacher")}} if self.teacher else values

    def known_steps(self, config: Any, count: int) -> int:
        return 0

    def about(self, run: StageWork) -> str:
        return f"{super().about(run)}; {self._as_long_as()}"

    def cost(self, run: StageWork) -> StageCost:
        return StageCost(note=self._as_long_as())

    def _as_long_as(self) -> str:
        return f"as many steps as cost what {self.traces} and {self.imitation} did"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        config = self.checked(run)
        counts, cost = run.result("student")["counts"], run.result("traces")["cost"]
        student, teacher = counts["weights"], counts["teacher_weights"]
        trained = run.result("imitation")["cost"]["trained_tokens"]
        budget = operations(teacher, cost["sampled_tokens"], Passes(sampled=1.0))
        budget += operations(student, trained, Passes(trained=1.0))
        by_student, by_teacher = self.passes(config)
        per_token = operations(student, 1, by_student) + operations(teacher, 1, by_teacher)
        tokens = cost["sampled_tokens"] / max(1, cost["completions"])
        per_step = config.batch.prompts_per_step * config.batch.group_size * tokens
        steps = max(1, round(budget / (round(per_step) * per_token)))
        for _ in range(MOST_EXTENSIONS):
            train_run(run.folder, self.method, self.config(run, steps))
            spent = training_cost(run.folder / RUN)["sampled_tokens"] * per_token
            steps = total_steps(run.folder / RUN)
            more = round((budget - spent) / (spent / steps))
            if more < 1 or spent > CLOSE * budget:
                break
            steps += more
        result = trained_result(run.folder)
        summary = f"{result['summary']}; {percent(spent / budget)} of the arithmetic that the traces took"
        return {**result, "summary": summary, "operations": spent, "budget": budget}

    def passes(self, config: Any) -> tuple[Passes, Passes]:
        """How often a completion passes through a model of the student's size, and through the teacher.

        The student grades its own where there is no other teacher, and reads them again before several updates.
        """
        from whet.training.assembly.rl import build_objective

        needs = build_objective(config).needs()
        graded = float(any(name.startswith("teacher") for name in needs))
        again = float(config.batch.updates_per_step > 1 and "old_logp" in needs)
        own_grades = 0.0 if self.teacher else graded
        by_student = Passes(1.0, float("ref_logp" in needs) + own_grades + again, float(config.batch.epochs_per_batch))
        return by_student, Passes(scored=graded - own_grades)


def operations(weights: int, tokens: int, passes: Passes) -> float:
    """Operations of passing so many tokens through a model of so many weights."""
    return FORWARD * weights * tokens * passes.cost


class CompareEntry(StageEntry, kind="compare", gives=("metrics",)):
    """Evals of several models on the same prompts: who is right more often, and by more than chance."""

    evals: Annotated[tuple[str, ...], takes.RESULT] = Field(
        min_length=2, description="stages of kind eval; all with the first"
    )

    def about(self, run: StageWork) -> str:
        return f"{' and '.join(self.evals[1:])} against {self.evals[0]}, prompt by prompt"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        outcomes = {
            name: [row["right"] or 0.0 for row in run.file_rows(name, OUTPUT_FILES["completions"])]
            for name in self.evals
        }
        tests = against_first(outcomes)
        lines = [
            f"{name} {percent(value['accuracy'])} ({value['difference']:+.1%}, p {value['p']:.2g})"
            for name, value in tests.items()
        ]
        first = outcomes[self.evals[0]]
        share = percent(sum(first) / max(1, len(first)))
        return stage_result(
            f"{self.evals[0]} {share}; {'; '.join(lines)}; {count_of(len(first), 'prompt')}", tests=tests
        )


def against_first(outcomes: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Each later one against the first, on the same prompts: its share, the difference, its interval and p (Holm)."""
    first, *others = ((name, [[right] for right in rights]) for name, rights in outcomes.items())
    tests = [paired_test(first, other) for other in others]
    adjusted = corrected([1.0 if test.p is None else test.p for test in tests], len(tests))
    return {
        name: {
            "accuracy": sum(outcomes[name]) / max(1, len(outcomes[name])),
            "difference": test.difference,
            "low": test.low,
            "high": test.high,
            "p": p,
        }
        for (name, _), test, p in zip(others, tests, adjusted, strict=True)
    }
