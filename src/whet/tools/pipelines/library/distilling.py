"""Stages of distillation: a student out of a teacher, training at a matched cost, and who learned most from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from whet.record.speed import FORWARD, TRAINING
from whet.record.text import count_of, number, percent
from whet.settings.bounds import MOST_SEED
from whet.tools.pipelines.library.entry import (
    OUTPUT_FILES,
    Composition,
    Inputs,
    StageEntry,
    StageInput,
    StageWork,
)
from whet.tools.pipelines.library.trainings import Located, RLEntry
from whet.tools.pipelines.settings import PipelineSettings
from whet.tools.pipelines.stages import StageCost, read_json_lines, stage_result
from whet.tools.pipelines.training import RUN, total_steps, train_run, trained_result, training_cost
from whet.types import WhetError

MOST_LAYERS = 1000
# completions of the student may be shorter than the traces: then the training goes on until its cost is close
CLOSE, MOST_EXTENSIONS = 0.95, 6


class StudentEntry(StageEntry, kind="student", gives=("model",)):
    """A smaller model: some layers of another one, its shape with new weights, or a model that is there already."""

    teacher: str = Field(description="the stage or model that the student learns from later")
    source: str = Field("", description="the student, where it is a model already; empty: made out of the teacher")
    layers: int = Field(
        0, ge=0, le=MOST_LAYERS, description="layers of the teacher that the student keeps; 0: all of them"
    )
    from_scratch: bool = Field(False, description="draw its weights anew instead of copying the teacher's")
    seed: int = Field(0, ge=0, le=MOST_SEED, description="random seed of new weights")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        inputs = {"teacher": composition.model(self, "teacher", self.teacher)}
        if self.source and (self.layers or self.from_scratch):
            raise WhetError(f"stage {self.name!r}: layers and from_scratch make a student; drop them, or source")
        return {**inputs, "source": composition.model(self, "source", self.source)} if self.source else inputs

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        if self.source:
            return f"the student: {inputs['source'].label}"
        made = "its shape with new weights" if self.from_scratch else f"{self.layers or 'all'} of its layers"
        return f"a student out of {inputs['teacher'].label}: {made}"

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


@dataclass(frozen=True)
class Arithmetic:
    """Operations of one token: 2 per weight for a forward pass, 6 for training (2001.08361). Completions only."""

    student: int  # weights
    teacher: int

    def of_traces(self, sampled: int, trained: int) -> float:
        """The teacher wrote `sampled` tokens, and the student was trained on `trained`."""
        return float(FORWARD * self.teacher * sampled + TRAINING * self.student * trained)

    def of_own(self, tokens: int, frozen: int, epochs: float = 1.0, scores_itself: bool = False) -> float:
        """The student wrote the tokens, models of `frozen` weights read them, and it learned from them."""
        read = FORWARD * (self.student * (1 + scores_itself) + frozen)
        return tokens * (read + TRAINING * self.student * epochs)


class MatchedEntry(RLEntry, kind="matched_rl"):
    """Training on the student's own completions, for about the arithmetic that learning from traces took."""

    unplanned: ClassVar[frozenset[str]] = frozenset({"student", "traces", "imitation"})

    teacher: str = Field("", description="the stage or model that grades tokens, where the method has a teacher")
    student: str = Field(description="the stage that made the student")
    traces: str = Field(description="the stage that sampled the teacher")
    imitation: str = Field(description="the stage that learned from those traces")

    def find_more(self, composition: Composition) -> dict[str, StageInput]:
        inputs = super().find_more(composition)
        if self.teacher:
            inputs["teacher"] = composition.model(self, "teacher", self.teacher)
        for key in ("student", "traces", "imitation"):
            inputs[key] = composition.known_stage(self, key, getattr(self, key))
        return inputs

    def more(self, settings: PipelineSettings, inputs: Inputs, located: Located) -> Mapping[str, Any]:
        values = super().more(settings, inputs, located)
        return {**values, "teacher": {"name": located("teacher")}} if self.teacher else values

    def known_steps(self, config: Any, count: int) -> int:
        return 0

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        return f"{super().about(settings, inputs)}; {self._as_long_as()}"

    def cost(self, settings: PipelineSettings, inputs: Inputs) -> StageCost:
        return StageCost(note=self._as_long_as())

    def _as_long_as(self) -> str:
        return f"as many steps as cost what {self.traces} and {self.imitation} did"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        located = run.located
        config = self.checked(run.settings, run.inputs, located)
        counts, cost = run.result("student")["counts"], run.result("traces")["cost"]
        arithmetic = Arithmetic(counts["weights"], counts["teacher_weights"])
        frozen, epochs, scores_itself = self.passes(config, arithmetic)
        budget = arithmetic.of_traces(cost["sampled_tokens"], run.result("imitation")["cost"]["trained_tokens"])
        tokens = cost["sampled_tokens"] / max(1, cost["completions"])
        per_step = config.batch.prompts_per_step * config.batch.group_size * tokens
        steps = max(1, round(budget / arithmetic.of_own(round(per_step), frozen, epochs, scores_itself)))
        for _ in range(MOST_EXTENSIONS):
            train_run(run.folder, self.method, self.config(run.settings, run.inputs, located, steps))
            sampled = training_cost(run.folder / RUN)["sampled_tokens"]
            spent = arithmetic.of_own(sampled, frozen, epochs, scores_itself)
            steps = total_steps(run.folder / RUN)
            more = round((budget - spent) / (spent / steps))
            if more < 1 or spent > CLOSE * budget:
                break
            steps += more
        result = trained_result(run.folder)
        summary = f"{result['summary']}; {percent(spent / budget)} of the arithmetic that the traces took"
        return {**result, "summary": summary, "operations": spent, "budget": budget}

    def passes(self, config: Any, arithmetic: Arithmetic) -> tuple[int, float, bool]:
        """Weights that read each token besides the student's own, epochs, and whether the student reads it again."""
        from whet.training.assembly.rl import build_objective

        needs = build_objective(config).needs()
        graded = any(name.startswith("teacher") for name in needs)
        frozen = arithmetic.student * ("ref_logp" in needs)
        frozen += (arithmetic.teacher if self.teacher else arithmetic.student) * graded
        again = config.batch.updates_per_step > 1 and "old_logp" in needs
        return frozen, float(config.batch.epochs_per_batch), again


class CompareEntry(StageEntry, kind="compare", gives=("metrics",)):
    """Evals of several models on the same prompts: who is right more often, and by more than chance."""

    evals: tuple[str, ...] = Field(min_length=2, description="stages of kind eval; all with the first")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        return {name: composition.known_stage(self, "evals", name) for name in self.evals}

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        return f"{' and '.join(self.evals[1:])} against {self.evals[0]}, prompt by prompt"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        outcomes = {}
        for name in self.evals:
            rows = read_json_lines(run.done[name].folder / OUTPUT_FILES["completions"])
            outcomes[name] = [row["right"] or 0.0 for row in rows]
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
    from whet.record.metrics.intervals import corrected, paired_test

    first, *others = outcomes
    base = [[right] for right in outcomes[first]]
    tests = [paired_test((first, base), (name, [[right] for right in outcomes[name]])) for name in others]
    adjusted = corrected([1.0 if test.p is None else test.p for test in tests], len(tests))
    return {
        name: {
            "accuracy": sum(outcomes[name]) / max(1, len(outcomes[name])),
            "difference": test.difference,
            "low": test.low,
            "high": test.high,
            "p": p,
        }
        for name, test, p in zip(others, tests, adjusted, strict=True)
    }
