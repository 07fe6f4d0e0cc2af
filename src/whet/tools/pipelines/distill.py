"""Distillation: a teacher into a smaller student, by its traces, token by token on the student's own completions,
by the student itself with more in its context; and reinforcement learning of the student, all for the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from whet.data.distillation_target import TEMPLATES
from whet.objective import catalogue
from whet.settings.layers import merged
from whet.settings.sections import Section
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library.choices import RejectionChoice, RLChoice, SFTChoice
from whet.tools.pipelines.library.distilling import MOST_LAYERS, CompareEntry, MatchedEntry, StudentEntry
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.library.evaluation import NOBODY, EvalEntry
from whet.tools.pipelines.library.sampling import MixEntry, MixSource
from whet.tools.pipelines.library.trainings import RLEntry, SFTEntry
from whet.tools.pipelines.r1 import require_reward
from whet.tools.pipelines.settings import Names, Pipeline, PipelineSettings, can_evaluate
from whet.types import WhetError, did_you_mean

STUDENT, READ, TAUGHT, TRACES, KEPT = "student", "demonstrations", "warm-student", "traces", "kept-traces"
# self-teaching by one token at a time is noisier, and the student's own distributions are here to be compared
SAMPLED = "sdft"
OVER_DISTRIBUTIONS = {"objective": {"baseline": "none", "teacher": "reverse_kl"}, "teacher": {"top_k": 100}}
READING = {"learning_rate": 3e-3, "schedule": "cosine"}  # at 1e-3 the built-in model does not learn to copy in time
WAYS = ("traces", "on_policy", "self", "rl")  # the first sets the budget of the others


class StudentChoice(Section):
    """The smaller model."""

    name: str = Field("", description="a model with the teacher's vocabulary; empty: made out of the teacher")
    layers: int = Field(0, ge=0, le=MOST_LAYERS, description="layers of the teacher that it keeps; 0: all of them")
    from_scratch: bool = Field(False, description="new weights instead of the teacher's")


class OnPolicyChoice(RLChoice):
    """Grades of a teacher: it is in this process, so whole distributions are compared."""

    method: str = Field("opd_full", description="a method with a teacher of `whet algorithms`")


class SelfChoice(RLChoice):
    """Grades of the student, with more in its context."""

    method: str = Field("sdft", description="a method of `whet algorithms` whose teacher is the policy")


class DistillSettings(PipelineSettings):
    """A teacher, a student, and the ways in which the one teaches the other."""

    teacher: str = Field("", description="a model or run folder; empty, on a task: the policy after teacher_rl")
    teacher_rl: RLChoice = Field(RLChoice(), description="makes the teacher on a task, where none is given")
    student: StudentChoice = StudentChoice()
    demonstrations: str = Field(
        "", description="that the student sees first; a task: its own; empty: a given student begins as it is"
    )
    warm_rows: amounts.CountOrNone = Field(0, description="demonstrations of that warm-up; 0: all of a file")
    reading_rows: amounts.CountOrNone = Field(
        0,
        description="demonstrations of the warm-up that stand next to their prompt too, as a student reads them where "
        "it teaches itself; 0: it can use what it reads, as models that follow instructions can",
    )
    warm: SFTChoice = Field(SFTChoice(epochs=1.0), description="the warm-up of the student")
    compare: Names = Field(
        WAYS, min_length=1, max_length=len(WAYS), description="the ways to teach: traces, on_policy, self, rl"
    )
    traces: RejectionChoice = Field(RejectionChoice(), description="what the teacher writes, and what of it is kept")
    imitate: SFTChoice = Field(SFTChoice(), description="the student learns from the traces")
    on_policy: OnPolicyChoice = Field(OnPolicyChoice(), description="the teacher grades the student's own completions")
    self_teaching: SelfChoice = Field(SelfChoice(), description="the student, shown the demonstration, grades")
    rl: RLChoice = Field(RLChoice(), description="the student learns from the reward alone")

    small_run: ClassVar[Mapping[str, Any]] = {
        "data": {"count": 512},
        "sampling": {"max_new_tokens": 64},
        "teacher_rl": {"steps": 30},
        "student": {"layers": 2},
        "warm_rows": 512,
        "reading_rows": 512,
        # the updates that the imitation makes of a trace of every prompt
        "warm": {"epochs": 4.0, "train": {"batch": {"rows_per_step": 32}, "optimizer": READING}},
        "imitate": {"epochs": 8.0, "train": {"batch": {"rows_per_step": 32}}},
        # as many completions per update as the imitation has rows
        "on_policy": {"train": {"batch": {"prompts_per_step": 32}}},
        "self_teaching": {"train": {"batch": {"prompts_per_step": 32}, "teacher": {"template": "{prompt}\n{text}"}}},
    }

    def idle(self) -> dict[str, str]:
        why = "has no effect: the teacher is given; drop one of them"
        idle = super().idle() | ({"teacher_rl": why} if self.teacher else {})
        if self.warmed_on:
            return idle
        why = "has no effect: the student begins as it is; give --set demonstrations=FILE to warm it up"
        return idle | dict.fromkeys(("warm", "warm_rows", "reading_rows"), why)

    @property
    def warmed_on(self) -> str:
        """What the student sees first; nothing where a model is given and the data are no task of ours."""
        return self.demonstrations or (self.data.source if self.data.parsed_source.is_task else "")


def distill_entries(settings: DistillSettings) -> list[StageEntry]:
    """The teacher and the student, then one branch from the same student for each way."""
    for way in settings.compare:
        if way not in WAYS:
            raise WhetError(f"compare: no way is called {way!r}{did_you_mean(way, WAYS)}; there are {', '.join(WAYS)}")
    if settings.compare[0] != WAYS[0]:
        raise WhetError(f"compare: {WAYS[0]} comes first; what it takes is what the others may spend")
    reward, source = require_reward(settings), settings.data.parsed_source
    shown = settings.warmed_on
    if not settings.teacher and not source.is_task:
        raise WhetError("no teacher: give --set teacher=FOLDER, a run or a model larger than the student")
    student = settings.student
    if not shown and not student.name:
        raise WhetError("a student made out of the teacher is warmed up first; give --set demonstrations=FILE")
    if not shown and "self" in settings.compare:
        raise WhetError("compare: self shows the student demonstrations; give --set demonstrations=FILE, or drop it")
    entries: list[StageEntry] = []
    teacher = settings.teacher
    if not teacher:
        teacher = "teacher"
        entries.append(RLEntry(name=teacher, reward=reward, **settings.teacher_rl.values()))
    warm = {"data": shown, "rows": settings.warm_rows}
    if settings.reading_rows and shown:
        template = shown_template(settings.self_teaching)
        sources = (MixSource(**warm), MixSource(data=shown, rows=settings.reading_rows, template=template))
        entries.append(MixEntry(name=READ, sources=sources))
        warm = {"data": READ}
    start = TAUGHT if shown else STUDENT
    entries += [
        StudentEntry(
            name=STUDENT,
            teacher=teacher,
            source=student.name,
            layers=student.layers,
            from_scratch=student.from_scratch,
            seed=settings.seed,
        ),
        *([SFTEntry(name=TAUGHT, start=STUDENT, **warm, **settings.warm.values())] if shown else []),
        *settings.traces.entries(teacher, (TRACES, KEPT)),
        SFTEntry(name=WAYS[0] + "-sft", start=start, data=KEPT, **settings.imitate.values()),
    ]
    budget = {"student": STUDENT, "traces": TRACES, "imitation": WAYS[0] + "-sft", "start": start}
    for way in settings.compare[1:]:
        choice = {"on_policy": settings.on_policy, "self": settings.self_teaching, "rl": settings.rl}[way]
        taught = {"teacher": teacher} if way == "on_policy" else {}
        scored: dict[str, Any] = {"reward": reward} if way == "rl" else {}
        shown_to = {"prompts": settings.demonstrations} if way == "self" else {}
        values = choice.values()
        if choice.method == SAMPLED and "objective" not in choice.train:
            values["train"] = merged(OVER_DISTRIBUTIONS, choice.train)
        entries.append(MatchedEntry(name=way, **budget, **taught, **scored, **shown_to, **values))
    return measured_entries(settings, entries, teacher, start)


def shown_template(choice: RLChoice) -> str:
    """How a demonstration stands beside the prompt where the student teaches itself by this method."""
    teacher = merged(catalogue.method(choice.method).run.get("teacher", {}), choice.train.get("teacher", {}))
    return teacher.get("template") or TEMPLATES[teacher["context"]]


def measured_entries(
    settings: DistillSettings, entries: list[StageEntry], teacher: str, start: str
) -> list[StageEntry]:
    """The entries with an eval of the teacher, of the student that the ways begin with and of what each made of it."""
    if not can_evaluate(settings):
        return entries
    measured: list[StageEntry] = [] if not settings.teacher else [EvalEntry(name="eval-teacher", model=teacher)]
    evals = []
    for entry in entries:
        measured.append(entry)
        if "model" in entry.gives and (entry.name != STUDENT or start == STUDENT):
            against = f"eval-{start}" if entry.name not in (start, teacher) else NOBODY
            measured.append(EvalEntry(name=f"eval-{entry.name}", model=entry.name, against=against))
            evals.append(f"eval-{entry.name}")
    ways = [name for name in evals if name not in (f"eval-{start}", "eval-teacher")]
    return [*measured, CompareEntry(name="comparison", evals=tuple(ways))] if len(ways) > 1 else measured


DISTILL = Pipeline(
    "distill",
    "a teacher into a smaller student: its traces, on-policy, by itself, and RL, for the same arithmetic",
    DistillSettings,
    distill_entries,
)
