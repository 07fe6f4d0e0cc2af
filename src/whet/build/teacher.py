"""From a config to the teacher: a model in this process, or a server; asked and checked before the first step."""

from __future__ import annotations

from collections.abc import Sequence

from whet.build.runtime import Runtime
from whet.config.config import OF_TEACHER, PolicyConfig
from whet.model import device_choice, dtype_choice, load_model
from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.narrow import widen_vectors
from whet.model.reference import KeptModel
from whet.model.vocabulary import vocabulary_refusal
from whet.objective import Objective
from whet.rollout.logp_server import LogpServer, logp_server, probed
from whet.train.teacher import LessonSettings, ModelTeacher, ServerTeacher, Teacher
from whet.types import Sampling, WhetError


def check_teacher(config: PolicyConfig, objective: Objective) -> None:
    """Refuse a method without the teacher it learns from, before anything is read."""
    section = config.teacher
    if OF_TEACHER & objective.needs() and not (section.name or section.base_url):
        raise WhetError(
            f"{config.method} learns from a teacher and none is given; add --teacher FOLDER (a model or a run), or "
            "--set teacher.base_url=http://localhost:8000/v1"
        )
    if "teacher_divergence" in objective.needs() and section.base_url and not section.top_k:
        raise WhetError(
            f"{config.method} compares whole distributions, of which a server gives the likeliest tokens; give "
            "teacher.top_k, such as 20"
        )
    if objective.reference.name != "frozen" and "ref_logp" not in objective.needs():
        raise WhetError(
            f"objective.reference={objective.reference.name} moves a reference that nothing looks at: the teacher is "
            "another model; give objective.reference=frozen"
        )


def lessons(config: PolicyConfig) -> LessonSettings:
    section = config.teacher
    return LessonSettings(section.top_k, section.top_of == "policy", section.temperature)


def build_teacher(
    config: PolicyConfig, runtime: Runtime, objective: Objective, sampling: Sampling, prompts: Sequence[Sequence[int]]
) -> tuple[Teacher | None, dict[str, str]]:
    """The teacher that the objective needs, and what to say about it; None where it needs none."""
    if not OF_TEACHER & objective.needs():
        return None, {}
    section = config.teacher
    longest = max(map(len, prompts), default=0) + sampling.max_new_tokens
    if section.base_url:
        return _server(config, runtime, sampling)
    lm, context, where = load_teacher(config, runtime)
    if longest > context:
        raise WhetError(
            f"teacher {section.name}: its context is {context} tokens and a prompt with its completion takes up to "
            f"{longest}; lower sampling.max_new_tokens, or take a teacher with a longer context"
        )
    size = sum(parameter.numel() for parameter in lm.model.parameters())
    teacher = ModelTeacher(
        KeptModel(lm), section.temperature, config.batch.micro_batch_tokens, runtime.ranks, section.top_k
    )
    return teacher, {"teacher": f"{section.name} ({size / 1e6:.1f}M weights, frozen, {where})"}


def load_teacher(config: PolicyConfig, runtime: Runtime) -> tuple[CausalLM, int, str]:
    """The teacher's model, its context, and where it computes; one whose tokens are others is refused."""
    section, own = config.teacher, runtime.policy.device
    device = device_choice(section.device) if section.device else own
    dtype, _ = dtype_choice(config.model.precision, device)
    loaded = load_model(section.name, dtype, str(device))
    if dtype.itemsize < 4:
        widen_vectors(loaded.model)
    refuse_other_vocabulary(section.name, runtime.tokenizer, loaded.tokenizer)
    lm = causal_lm(loaded.model, dtype)
    if lm.vocabulary < len(runtime.tokenizer):
        raise WhetError(
            f"teacher {section.name}: its head has {lm.vocabulary} rows and the policy's tokenizer "
            f"{len(runtime.tokenizer)} tokens; give a teacher of the same family"
        )
    return lm, loaded.context, f"on {device}"


def refuse_other_vocabulary(name: str, ours: object, theirs: object) -> None:
    if refusal := vocabulary_refusal(ours, theirs):
        raise WhetError(
            f"teacher {name} has another vocabulary than the policy: {refusal}; a token-level loss compares token by "
            "token: give a teacher of the policy's family, or distil through text: whet label completions --model "
            f"{name} --out FILE, then whet train sft --data FILE"
        )


def _server(config: PolicyConfig, runtime: Runtime, sampling: Sampling) -> tuple[Teacher, dict[str, str]]:
    section = config.teacher
    if sampling.top_p < 1 or sampling.top_k or sampling.min_p:
        raise WhetError(
            "teacher.base_url: the policy samples from a part of its vocabulary (top_p, top_k or min_p), and a server "
            "cannot renormalise on it; drop them, or give the teacher as teacher.name"
        )

    def found() -> tuple[LogpServer, str]:
        asked = logp_server(section.base_url, section.model, section.key_variable, section.timeout, section.concurrency)
        return probed(asked, runtime.tokenizer, section.top_k)

    server, said = runtime.ranks.first(found)
    fact = f"{section.model or 'the model'} at {section.base_url} ({said})"
    return ServerTeacher(server, runtime.ranks, section.top_k), {"teacher": fact}
