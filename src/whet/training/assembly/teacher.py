"""From a config to the teacher: a model in this process, or a server; asked and checked before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn.utils.rnn import pad_sequence

from whet.data.chat import prompt_tokens, tokens_of_demonstrations
from whet.data.distillation_target import COLUMNS, TEMPLATES, column_text, with_text
from whet.data.source import TRAIN
from whet.data.tasks import solutions
from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.load import device_choice, dtype_choice, load_model
from whet.model.low_precision import widen_vectors
from whet.model.reference import FrozenModel, ReferencePolicy
from whet.model.vocabulary import vocabulary_refusal
from whet.objective import Objective
from whet.training.assembly.runtime import Runtime
from whet.training.config import OF_TEACHER, PolicyConfig
from whet.training.teacher import DistillationSettings, ModelTeacher, ServerTeacher, Teacher
from whet.types import Demonstration, Encoded, Prompt, Sampling, TokenBatch, WhetError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SELF = "self"
READ_FIRST = 32  # prompts whose demonstrations are read, before step 1


def check_teacher(config: PolicyConfig, objective: Objective) -> None:
    """Refuse a method without the teacher it learns from, before anything is read."""
    section = config.teacher
    if OF_TEACHER & objective.needs() and not (section.name or section.base_url):
        raise WhetError(
            f"{config.method} learns from a teacher and none is given; add --teacher FOLDER (a model or a run), or "
            "teacher.base_url=http://localhost:8000/v1"
        )
    if "teacher_divergence" in objective.needs() and section.base_url and not section.top_k:
        raise WhetError(
            f"{config.method} compares whole distributions, of which a server gives the likeliest tokens; give "
            "teacher.top_k, such as 20"
        )
    if section.name == SELF and section.context == "none" and objective.reference.name == "frozen":
        raise WhetError(
            "teacher.name=self is the policy the run begins with, which has nothing to teach it; give teacher.context "
            "(sibling, demonstration or feedback), or another teacher"
        )
    if section.context != "none" and "teacher_divergence" in objective.needs() and not section.top_k:
        raise WhetError(
            "teacher.context: distributions behind two prompts are compared on the likeliest tokens; give "
            "teacher.top_k, such as 100"
        )
    if section.context == "sibling" and config.batch.group_size < 2:
        raise WhetError("teacher.context=sibling needs another completion to each prompt; give batch.group_size=8")
    if section.context != "none" and objective.needs_reward:
        raise WhetError(
            f"teacher.context leaves out samples about which the teacher knows nothing, and {config.method} learns "
            "from their rewards; give objective.baseline=teacher_gap, or teacher.context=none"
        )
    if section.context != "none" and not config.env.is_single:
        raise WhetError(
            "teacher.context is for single completions: a prompt is written anew; drop it, or the environment"
        )
    if section.name != SELF and objective.reference.name != "frozen" and "ref_logp" not in objective.needs():
        raise WhetError(
            f"objective.reference={objective.reference.name} moves a reference that nothing looks at: the teacher is "
            "another model; give objective.reference=frozen, or teacher.name=self"
        )


def needs_verdicts(config: PolicyConfig) -> bool:
    """True where the teacher is shown which completions were right."""
    return config.teacher.context == "sibling"


def distillation_settings(config: PolicyConfig, runtime: Runtime, prompts: Sequence[Prompt]) -> DistillationSettings:
    """The settings of the teacher: how it is asked, and what it reads besides the prompt."""
    section = config.teacher
    if section.context == "none":
        return DistillationSettings(section)
    known = task_demonstrations(config) if section.context == "demonstration" else {}
    if section.context != "sibling":
        without = next(
            (prompt for prompt in prompts if not known.get(prompt.id) and not column_text(prompt, section.context)),
            None,
        )
        if without is not None:
            names = " or ".join(COLUMNS[section.context])
            raise WhetError(
                f"teacher.context={section.context}: row {without.id!r} of {config.data.source} has no column {names}; "
                "add one, or rename yours with data.columns"
            )
    return DistillationSettings(
        section,
        template=section.template or TEMPLATES[section.context],
        known=known,
        encode=partial(prompt_tokens, runtime.tokenizer),
        longest=runtime.loaded.context,
    )


def task_demonstrations(config: PolicyConfig) -> dict[str, str]:
    """The worked solutions of a built-in task's questions, by prompt; empty for data that holds its own."""
    data = config.data
    if not data.parsed_source.is_task:
        return {}
    rows = data.parsed_source.from_tasks(
        lambda task, share, difficulty: solutions(task, TRAIN, share, config.seed, difficulty),
        data.count,
        data.difficulty,
    )
    return {row.prompt.id: row.completion for row in rows}


def build_teacher(
    config: PolicyConfig,
    runtime: Runtime,
    objective: Objective,
    sampling: Sampling,
    prompts: Sequence[Sequence[int]],
    reference: ReferencePolicy | None = None,
) -> Teacher | None:
    """The teacher that the objective needs; None where it needs none. `reference` is the policy as a teacher."""
    if not OF_TEACHER & objective.needs():
        return None
    section, tokens = config.teacher, config.batch.micro_batch_tokens
    longest = max(map(len, prompts), default=0) + sampling.max_new_tokens
    if section.base_url:
        return _server(config, runtime, sampling)
    if section.name == SELF:
        assert reference is not None
        rule = {"frozen": "as it began", "ema": "a moving average of it", "reset": "as it was some steps ago"}
        kind = objective.reference.name
        shown = (
            ""
            if section.context == "none"
            else f", that reads a {section.context} too; samples without one are left out, and counted as untaught"
        )
        description = f"the policy itself, {rule.get(kind, kind)}{shown}"
        return ModelTeacher(reference, section.temperature, tokens, runtime.ranks, section.top_k, description)
    lm, context, where = load_teacher(config, runtime)
    if longest > context:
        raise WhetError(
            f"teacher {section.name}: its context is {context} tokens and a prompt with its completion takes up to "
            f"{longest}; lower sampling.max_new_tokens, or take a teacher with a longer context"
        )
    size = sum(parameter.numel() for parameter in lm.model.parameters())
    description = f"{section.name} ({size / 1e6:.1f}M weights, frozen, {where})"
    return ModelTeacher(FrozenModel(lm), section.temperature, tokens, runtime.ranks, section.top_k, description)


def with_reading(
    teacher: ModelTeacher, target: DistillationSettings, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]
) -> ModelTeacher:
    """The teacher, saying what it makes of demonstrations that it reads: a model that cannot use them has nothing to
    teach."""
    texts = [target.known.get(prompt.id) or column_text(prompt, "demonstration") or "" for prompt in prompts]
    shown = [with_text(prompt, text, target.template) for prompt, text in zip(prompts, texts, strict=True)]
    asked, read = (
        tokens_of_demonstrations(tokenizer, (Demonstration(*row) for row in zip(questions, texts, strict=True)))
        for questions in (prompts, shown)
    )
    fitting = [index for index, row in enumerate(read) if len(row.tokens) <= target.longest]
    if not fitting:
        return teacher
    before, after = (_nats_per_token(teacher, [rows[index] for index in fitting]) for rows in (asked, read))
    description = f"reading it, a demonstration has {after:.2f} nats per token, and {before:.2f} unread"
    if after < before:
        description += (
            ": this model cannot use what it reads, and unlearns what it knows; show it rows in that form first"
        )
    return replace(teacher, said=f"{teacher.said}; {description}")


def _nats_per_token(teacher: ModelTeacher, rows: Sequence[Encoded]) -> float:
    """Mean log-probability of the actions."""
    tokens = pad_sequence([torch.tensor(row.tokens) for row in rows], batch_first=True)
    action = pad_sequence([torch.tensor(row.action) for row in rows], batch_first=True)
    logp = teacher.logp(TokenBatch(tokens, action, torch.arange(len(rows)), torch.zeros(len(rows))))
    return float((logp.double() * action).sum() / action.sum())


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
    """Raise a WhetError where the teacher's vocabulary differs from the policy's."""
    if refusal := vocabulary_refusal(ours, theirs):
        raise WhetError(
            f"teacher {name} has another vocabulary than the policy: {refusal}; a token-level loss compares token by "
            "token: give a teacher of the policy's family, or distil through text: whet label completions --model "
            f"{name} --out FILE, then whet train sft --data FILE"
        )


def _server(config: PolicyConfig, runtime: Runtime, sampling: Sampling) -> Teacher:
    section = config.teacher
    if sampling.top_p < 1 or sampling.top_k or sampling.min_p:
        raise WhetError(
            "teacher.base_url: the policy samples from a part of its vocabulary (top_p, top_k or min_p), and a server "
            "cannot renormalise on it; drop them, or give the teacher as teacher.name"
        )

    from whet.rollout.logp_server import LogpServer, logp_server, probed

    def found() -> tuple[LogpServer, str]:
        asked = logp_server(section.base_url, section.model, section.key_variable, section.timeout, section.concurrency)
        return probed(asked, runtime.tokenizer, section.top_k)

    server, comparison = runtime.ranks.first(found)
    fact = f"{section.model or 'the model'} at {section.base_url} ({comparison})"
    return ServerTeacher(server, runtime.ranks, section.top_k, fact)
