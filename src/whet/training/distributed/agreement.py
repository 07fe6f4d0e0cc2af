"""Whether the ranks of a run are still doing the same thing. One small exchange per step.

Every rank computes a step's report from the same gathered values in the same order, so the reports are equal bit by
bit. One that is not (another reward, another row, a weight that was loaded otherwise) shows in the step where it first
matters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whet.training.distributed.rank_group import disagreement
from whet.training.distributed.ranks import Ranks
from whet.types import Prompt, Sample, StepReport

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SAMPLED = 4096  # values of a weight whose order counts
LOOK = "a rank reads another file or reward, or draws numbers of its own: look there, then resume"


def weights_fingerprint(model: nn.Module) -> str:
    """Cheap and exact: the sum of every weight's bits, and the bits of some; the same in any order of adding."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {parameter.dtype} {list(parameter.shape)} {_bits(parameter)}".encode())
    return digest.hexdigest()[:16]


def _bits(value: Tensor) -> str:
    whole = value.detach().reshape(-1)
    numbers = whole.view(INTEGERS[whole.element_size()])
    some = numbers[:: max(1, len(numbers) // SAMPLED)].cpu().numpy().tobytes()
    return f"{int(numbers.sum(dtype=torch.int64))} {hashlib.sha256(some).hexdigest()}"


def agree_on_weights(ranks: Ranks, model: nn.Module) -> str:
    """What differs between the weights that the ranks have read, before they are cut into shards; empty: nothing."""
    if ranks.size == 1:
        return ""
    fingerprints = [{"the model's weights": fingerprint} for fingerprint in ranks.gather(weights_fingerprint(model))]
    return disagreement(fingerprints, "give every rank the same model files")


def agree_on_step(
    ranks: Ranks, model: nn.Module, report: StepReport, samples: Sequence[tuple[Prompt, Sample]], stops: bool
) -> tuple[bool, str]:
    """Whether any rank was told to stop, and what they disagree on in this step; empty: nothing."""
    if ranks.size == 1:
        return stops, ""
    facts = step_facts(model, report, samples)
    mine = hashlib.sha256(repr(sorted(facts.items())).encode()).hexdigest()
    answers = ranks.gather((mine, stops))
    if len({digest for digest, _ in answers}) == 1:
        return any(stop for _, stop in answers), ""
    return False, f"step {report.step}: {disagreement(ranks.gather(facts), LOOK)}"


def step_facts(model: Any, report: StepReport, samples: Sequence[tuple[Prompt, Sample]]) -> dict[str, str]:
    """What has to be the same on every rank after a step."""
    rows = hashlib.sha256()
    for prompt, sample in samples:
        rows.update(f"{prompt.id} {sample.reward}".encode())
        rows.update(sample.tokens.cpu().numpy().tobytes())
    whole = [(name, parameter) for name, parameter in model.named_parameters() if not hasattr(parameter, "to_local")]
    replicated = hashlib.sha256(repr([(name, _bits(parameter)) for name, parameter in whole]).encode())
    facts = {"policy version": str(report.policy_version)}
    facts |= {"prompts, completions and rewards": rows.hexdigest()[:8], "weights": replicated.hexdigest()[:8]}
    for name, value in (*report.counts.items(), *report.metrics.items()):
        facts[name] = repr(value)
    return {**facts, **{f"reward {name}": repr(value) for name, value in report.reward.items()}}
