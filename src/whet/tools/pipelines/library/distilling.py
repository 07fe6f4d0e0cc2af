"""Stages of distillation: a student out of a teacher, training at a matched cost, and who learned most from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from whet.record.speed import FORWARD, TRAINING
from whet.record.text import count_of, number, percent
from whet.settings.bounds import MOST_SEED
from whet.settings.layers import merged
from whet.tools.pipelines.library.entry import (
    OUTPUT_FILES,
    Composition,
    Output,
    StageEntry,
    StageInput,
    entry_values,
    input_digests_of,
)
from whet.tools.pipelines.library.settings import own_data
from whet.tools.pipelines.library.trainings import Done, RLEntry, row_source, trained_result, training_cost
from whet.tools.pipelines.stages import Stage, StagePlan, read_json_lines, stage_result
from whet.tools.pipelines.training import RUN, check_training, total_steps, train_run
from whet.types import WhetError

MOST_LAYERS = 1000
# completions of the student may be shorter than the traces: then the training goes on until its cost is close
CLOSE, MOST_EXTENSIONS = 0.95, 6


class StudentEntry(StageEntry):
    """A smaller model: some layers of another one, its shape with new weights, or a model that is there already."""

    kind: ClassVar[str] = "student"
    gives: ClassVar[tuple[Output, ...]] = ("model",)

    teacher: str = Field(description="the stage or model that the student learns from later")
    source: str = Field("", description="the student, where it is a model already; empty: made out of the teacher")
    layers: int = Field(0, ge=0, le=MOST_LAYERS, description="of the teacher that the student keeps; 0: all of them")
    from_scratch: bool = Field(False, description="draw its weights anew instead of copying the teacher's")
    seed: int = Field(0, ge=0, le=MOST_SEED, description="of new weights")

    def stage(self, composition: Composition) -> Stage:
        teacher = composition.model(self, "teacher", self.teacher)
        source = composition.model(self, "source", self.source) if self.source else None
        if source is not None and (self.layers or self.from_scratch):
            raise WhetError(f"stage {self.name!r}: layers and from_scratch make a student; drop them, or source")

        def work(folder: Path, done: Done) -> Mapping[str, Any]:
            from whet.model.prune import count_weights, save_smaller

            own = teacher.model(done) if source is None else source.model(done)
            total, weights = save_smaller(own, folder / RUN, self.layers, self.from_scratch, self.seed)
            of_teacher = total if source is None else count_weights(teacher.model(done))
            counts = {"weights": weights, "teacher_weights": of_teacher}
            share = f"{percent(weights / of_teacher)} of the teacher's {number(of_teacher / 1e6)}M"
            return stage_result(f"a student of {number(weights / 1e6)}M weights, {share}", counts=counts)

        models = [teacher, *([source] if source else [])]
        made = "its shape with new weights" if self.from_scratch else f"{self.layers or 'all'} of its layers"
        about = f"the student: {source.label}" if source else f"a student out of {teacher.label}: {made}"
        return Stage(
            self.name,
            about,
            work,
            entry_values(self),
            reads=tuple(name for each in models for name in each.reads),
            inputs=input_digests_of([], models),
            plan=StagePlan({"teacher": teacher.label}, "model"),
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


class MatchedEntry(RLEntry):
    """Training on the student's own completions, for about the arithmetic that learning from traces took."""

    kind: ClassVar[str] = "matched_rl"

    teacher: str = Field("", description="the stage or model that grades tokens, where the method has a teacher")
    student: str = Field(description="the stage that made the student")
    traces: str = Field(description="the stage that sampled the teacher")
    imitation: str = Field(description="the stage that learned from those traces")

    def plain(self, teacher: str, steps: int) -> RLEntry:
        """The same training with its teacher and its number of steps known."""
        own = {name: getattr(self, name) for name in RLEntry.model_fields}
        train = merged(self.train, {"teacher": {"name": teacher}}) if self.teacher else self.train
        return RLEntry(**{**own, "train": train, "steps": steps})

    def stage(self, composition: Composition) -> Stage:
        settings = composition.settings
        teacher = composition.model(self, "teacher", self.teacher) if self.teacher else None
        start = composition.model(self, "start", self.start)
        prompts = StageInput(source=settings.data.source)
        if self.prompts:
            prompts = composition.rows(self, "prompts", self.prompts, ("rows", "completions"))

        def data_of(location: str) -> dict[str, Any]:
            return row_source(settings, prompts, 0, location) if self.prompts else own_data(settings)

        known = teacher.source if teacher is not None and teacher.source else settings.model.name
        base = self.plain(known, 1).stage(composition)

        def work(folder: Path, done: Done) -> Mapping[str, Any]:
            name = teacher.model(done) if teacher is not None else ""
            arithmetic = arithmetic_of(done[self.student].result)
            frozen, epochs, scores_itself = self.passes(settings, arithmetic, name or known)
            budget = traces_operations(arithmetic, done[self.traces].result, done[self.imitation].result)
            cost = done[self.traces].result["cost"]
            tokens = cost["sampled_tokens"] / max(1, cost["completions"])
            batch = self.resolved(settings, name or known).batch
            per_step = batch.prompts_per_step * batch.group_size * tokens
            steps = max(1, round(budget / arithmetic.of_own(round(per_step), frozen, epochs, scores_itself)))
            data, model = data_of(prompts.location(done)), start.model(done)
            for _ in range(MOST_EXTENSIONS):
                config = self.plain(name, steps).whole_config(settings, model, data, "", steps)
                train_run(folder, self.method, config)
                cost = training_cost(folder / RUN)
                spent = arithmetic.of_own(cost["sampled_tokens"], frozen, epochs, scores_itself)
                steps = total_steps(folder / RUN)
                more = round((budget - spent) / (spent / steps))
                if more < 1 or spent > CLOSE * budget:
                    break
                steps += more
            result = trained_result(folder, steps=steps)
            summary = f"{result['summary']}; {percent(spent / budget)} of the arithmetic that the traces took"
            return {**result, "summary": summary, "operations": spent, "budget": budget}

        reads = (*(base.reads or ()), *(teacher.reads if teacher else ()), self.student, self.traces, self.imitation)
        digests = input_digests_of([], [teacher] if teacher else [])

        def inputs() -> Mapping[str, str]:
            return {**base.inputs(), **digests()}

        plan = base.plan or StagePlan()
        note = f"as many steps as cost what {self.traces} and {self.imitation} did"
        more = {"teacher": teacher.label} if teacher else {}
        return replace(
            base,
            about=f"{base.about}; {note}",
            work=work,
            settings={**base.settings, **entry_values(self)},
            reads=tuple(dict.fromkeys(reads)),
            inputs=inputs,
            plan=StagePlan({**plan.inputs, **more}, plan.writes, replace(plan.cost, **_unknown(note))),
        )

    def resolved(self, settings: Any, teacher: str) -> Any:
        entry = self.plain(teacher, 1)
        values = entry.config(settings, settings.model.name, own_data(settings), 1)
        return check_training(entry.method_name(), values, f"stage {self.name!r}: train")

    def passes(self, settings: Any, arithmetic: Arithmetic, teacher: str) -> tuple[int, float, bool]:
        """Weights that read each token besides the student's own, epochs, and whether the student reads it again."""
        from whet.training.assembly.rl import build_objective

        config = self.resolved(settings, teacher)
        needs = build_objective(config).needs()
        graded = any(name.startswith("teacher") for name in needs)
        frozen = arithmetic.student * ("ref_logp" in needs)
        frozen += (arithmetic.teacher if self.teacher else arithmetic.student) * graded
        again = config.batch.updates_per_step > 1 and "old_logp" in needs
        return frozen, float(config.batch.epochs_per_batch), again


def _unknown(note: str) -> dict[str, Any]:
    return {"updates": 0, "trained_rows": 0, "completions": 0, "sampled_tokens": 0, "seconds": None, "note": note}


def arithmetic_of(student: Mapping[str, Any]) -> Arithmetic:
    return Arithmetic(student["counts"]["weights"], student["counts"]["teacher_weights"])


def traces_operations(arithmetic: Arithmetic, traces: Mapping[str, Any], imitation: Mapping[str, Any]) -> float:
    return arithmetic.of_traces(traces["cost"]["sampled_tokens"], imitation["cost"]["trained_tokens"])


class CompareEntry(StageEntry):
    """Evals of several models on the same prompts: who is right more often, and by more than chance."""

    kind: ClassVar[str] = "compare"
    gives: ClassVar[tuple[Output, ...]] = ("metrics",)

    evals: tuple[str, ...] = Field(min_length=2, max_length=100, description="stages of kind eval; all with the first")

    def stage(self, composition: Composition) -> Stage:
        found = [composition.rows(self, "evals", name, ("metrics",)) for name in self.evals]

        def work(folder: Path, done: Done) -> Mapping[str, Any]:
            outcomes = {each.stage: _right(each, done) for each in found}
            tests = against_first(outcomes)
            lines = [
                f"{name} {percent(value['accuracy'])} ({value['difference']:+.1%}, p {value['p']:.2g})"
                for name, value in tests.items()
            ]
            first = self.evals[0]
            share = sum(outcomes[first]) / max(1, len(outcomes[first]))
            summary = f"{first} {percent(share)}; {'; '.join(lines)}; {count_of(len(outcomes[first]), 'prompt')}"
            return stage_result(summary, tests=tests)

        return Stage(
            self.name,
            f"{' and '.join(self.evals[1:])} against {self.evals[0]}, prompt by prompt",
            work,
            entry_values(self),
            reads=tuple(each.stage for each in found),
            plan=StagePlan({"evals": ", ".join(self.evals)}, "metrics"),
        )


def _right(found: StageInput, done: Done) -> list[float]:
    rows = read_json_lines(done[found.stage].folder / OUTPUT_FILES["completions"])
    return [row["right"] or 0.0 for row in rows]


def against_first(outcomes: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Each later one against the first, on the same prompts: its share, the difference, its interval and p (Holm)."""
    from whet.record.metrics.paired import paired_test
    from whet.record.metrics.significance import corrected

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
