"""Gradients of every kind of training, by one process or by this rank among several.

As a script it is a rank: `python rank_cases.py MODE FILE` with
RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; the first
rank writes the gradients to FILE. MODE says how rows are shared out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.oracle_methods import MEMORY, METHODS, example
from tests.support.prefix_trees import random_tree
from tests.support.rank_processes import joined_ranks
from whet.data.families import ClassifierRow, Family
from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.critic import critic_on
from whet.model.lora import LowRank, add_adapters
from whet.model.reference import AdapterFreeReference, CopiedReference
from whet.model.scalar_head import scalar_model
from whet.model.token_logp import token_logp
from whet.objective import PRESETS, step_totals
from whet.objective.preference.reward_model_losses import AllPairs, LabelLoss, PlackettLuce, RankLoss
from whet.objective.presets.preference import PAIR_PRESETS
from whet.record.metrics.timer import PhaseTimer
from whet.training.completion_logp import LiveReference, stored_reference
from whet.training.distributed.ranks import ALONE, OtherRankFailed, Ranks
from whet.training.distributed.shard import (
    Sharding,
    sharded,
    sharded_critic,
    sharded_reference,
    sharded_scalar_model,
    sharding,
    whole,
)
from whet.training.preference_trainer import (
    PreferenceDataset,
    PreferenceModels,
    PreferenceRow,
    PreferenceTrainer,
)
from whet.training.reward_model_trainer import (
    RewardModelDataset,
    RewardModelRow,
    RewardModelTrainer,
    bootstrap_rows,
)
from whet.training.sections import OptimizerSection, RowsSection
from whet.training.sft_trainer import SFTTrainer
from whet.training.update import TrainState, UpdateRefused, critic_values, token_scores, update
from whet.types import Encoded, TokenBatch

Gradients = dict[str, Tensor]
VOCABULARY = 50
NO_LIMIT = 1e30
RATES = OptimizerSection(learning_rate=1e-30, max_gradient_norm=1e12)


def training(steps: int, rows: int, micro_batch_tokens: int, packed: bool = True, seed: int = 0) -> dict[str, Any]:
    """How a trainer on rows trains."""
    batch = RowsSection(rows_per_step=rows, micro_batch_tokens=micro_batch_tokens, packed=packed)
    return {"batch": batch, "optimizer": RATES, "steps": steps, "seed": seed}


@dataclass(frozen=True)
class Uneven(Ranks):
    """Ranks whose shares are as bad as they may be: the first has most rows, the last few or none."""

    empty: bool = False

    def shares(self, costs: Sequence[float], families: Sequence[Hashable] | None = None) -> list[list[int]]:
        rows = list(range(len(costs)))
        busy = self.size - 1 if self.empty else self.size
        ends = [round(len(rows) * (1 - 0.4 ** (rank + 1))) for rank in range(busy - 1)]
        cuts = [0, *ends, len(rows)]
        shares = [rows[start:stop] for start, stop in pairwise(cuts)]
        return shares + [[] for _ in range(self.size - busy)]


@dataclass(frozen=True)
class World:
    """One process, or this rank."""

    ranks: Ranks = ALONE
    shards: Sharding | None = None

    def model(self, lm: CausalLM) -> CausalLM:
        return lm if self.shards is None else sharded(lm, self.shards)

    def __call__(self, change: Callable[..., Any], *values: Any) -> Any:
        return values[0] if self.shards is None else change(*values, self.shards)


class Norm(nn.Module):
    """transformers' own computes in float32, whatever the weights are: no gradient would agree beyond 1e-7."""

    def __init__(self, weight: Tensor, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(weight.clone()), epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)


def tiny(seed: int = 1, tied: bool = True, dtype: torch.dtype = torch.float64) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=96, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    if dtype == torch.float64:
        exact_norms(model)
    return model


def exact_norms(model: Any) -> None:
    """A Llama's norms in the precision of its weights: its own compute in float32."""
    trunk = model.model
    trunk.norm = Norm(trunk.norm.weight.data)
    for layer in trunk.layers:
        layer.input_layernorm = Norm(layer.input_layernorm.weight.data)
        layer.post_attention_layernorm = Norm(layer.post_attention_layernorm.weight.data)


def gradients(*models: nn.Module) -> Gradients:
    """Whole, of all that learns."""
    return {
        f"{number} {name}": whole(each.grad)
        for number, model in enumerate(models)
        for name, each in model.named_parameters()
        if each.grad is not None
    }


def still(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.0)


def policy_case(name: str, model: CausalLM) -> tuple[Any, TokenBatch]:
    """A batch that the model itself might have written, some updates ago: rules bind here and there."""
    objective, batch, drifted, _ = example(METHODS[name], seed=2)
    logp = token_scores(model, batch, 1.0, 10_000).logp.double()
    shift = logp - drifted
    moved = {"old_logp": batch.old_logp, "behavior_logp": batch.behavior_logp, "ref_logp": batch.ref_logp}
    batch = replace(batch, **{name: torch.where(batch.action, value + shift, 0.0) for name, value in moved.items()})
    stream = torch.Generator().manual_seed(8)
    every = torch.randn((*batch.action.shape, VOCABULARY), generator=stream, dtype=torch.float64)
    taught = every.log_softmax(-1).topk(3, -1)
    batch = replace(batch, teacher_top=taught.indices.int(), teacher_top_logp=taught.values)
    batch, _ = objective.advantage(batch, MEMORY)
    return objective, objective.surveyed(batch, logp)  # some rules look at the whole step before its update


def policies(world: World, names: Sequence[str], tied: bool = True) -> dict[str, Gradients]:
    lm = causal_lm(tiny(tied=tied))
    cases = {name: policy_case(name, lm) for name in names}
    own = critic_on(lm, shared=False, shares_weights=world.shards is not None)
    critics = {"": own, " shared": critic_on(lm, shared=True)}
    reference = CopiedReference(causal_lm(tiny(seed=7, tied=tied)))
    stream = torch.Generator().manual_seed(3)
    for critic in critics.values():
        critic.head.double()
        with torch.no_grad():
            critic.head.weight.copy_(torch.randn(critic.head.weight.shape, generator=stream))
    lm = world.model(lm)
    reference = world(sharded_reference, reference, lm)
    critics = {kind: world(sharded_critic, critic) for kind, critic in critics.items()}
    found: dict[str, Gradients] = {}
    for name, (objective, batch) in cases.items():
        for kind in critics if "value" in objective.needs() else [None]:
            critic = None if kind is None else critics[kind]
            critic_optimizer = None if critic is None else still(critic.modules())
            state = TrainState(lm, still(lm.model), 1.0, 60, NO_LIMIT, critic, critic_optimizer, world.ranks)
            totals = step_totals(batch, batch.max_new_tokens)
            with reference.open() as other:
                metrics, scores = update(state, objective.tuned(MEMORY), batch, totals, reference=other)
            assert "ended" not in metrics, name
            models = [lm.model] if critic is None else [lm.model, critic.modules()]
            numbers = torch.tensor([metrics[key] for key in sorted(metrics)], dtype=torch.float64)
            found[name + (kind or "")] = {**gradients(*models), "metrics": numbers, "logp": scores.logp}
    if names:
        batch = cases[names[0]][1]
        found["scores"] = {
            "logp": token_scores(lm, batch, 1.0, 60, world.ranks).logp,
            "value": critic_values(critics[""], lm, batch, 60, world.ranks),
            "shared value": critic_values(critics[" shared"], lm, batch, 60, world.ranks),
        }
    return found


def warmup(world: World, every: bool) -> dict[str, Gradients]:
    """The critic alone learns, on a trunk of its own and on the policy's."""
    found = {}
    for shared in (False, True) if every else (True,):
        lm = causal_lm(tiny())
        objective, batch = policy_case("ppo", lm)
        critic = critic_on(lm, shared=shared)
        critic.head.double()
        lm, critic = world.model(lm), world(sharded_critic, critic)
        state = TrainState(
            lm, still(lm.model), 1.0, 60, NO_LIMIT, critic, still(critic.modules()), world.ranks
        )  # fmt: skip
        update(state, objective, batch, step_totals(batch, 16), only_critic=True)
        found[f"warmup shared={shared}"] = gradients(critic.modules())
    return found


def adapters(world: World) -> dict[str, Gradients]:
    """LoRA with several real steps: factors, merged weights, and the reference with adapters off."""
    lm = causal_lm(tiny())
    add_adapters(lm.model, LowRank(4, 8.0, seed=2))
    stream = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, each in lm.model.named_parameters():
            if name.endswith("up"):
                each.copy_(0.1 * torch.randn(each.shape, generator=stream))
    from whet.model.lora import merge_adapters

    merge_adapters(lm.model)
    objective, batch = policy_case("grpo", lm)
    lm = world.model(lm)
    reference = world(sharded_reference, AdapterFreeReference(lm), lm)
    optimizer = torch.optim.SGD([each for each in lm.model.parameters() if each.requires_grad], lr=1e-3)
    state = TrainState(lm, optimizer, 1.0, 60, NO_LIMIT, ranks=world.ranks)
    found = {}
    for step in range(2):
        with reference.open() as base:
            base_logp = token_scores(base, batch, 1.0, 60, world.ranks).logp
        update(state, objective, batch, step_totals(batch, 16))
        weights = {f"weight {name}": whole(each).clone() for name, each in lm.model.state_dict().items()}
        found[f"lora step {step}"] = {**gradients(lm.model), **weights, "base": base_logp}
    return found


def trees(world: World, every: bool) -> dict[str, Gradients]:
    """Rows that branch, in two roles, some with adapters: alone they share whole prefixes, on several ranks fewer."""
    found = {}
    for adapted in (False, True) if every else (True,):
        lm = causal_lm(tiny())
        if adapted:
            add_adapters(lm.model, LowRank(4, 8.0, seed=2))
        tokens, action = random_tree(5, depth=4, run=(16, 18), most=11, vocabulary=VOCABULARY)
        rows = torch.arange(len(tokens))
        plain = TokenBatch(tokens, action, rows // 6, (rows % 3).double(), role=rows % 2, max_new_tokens=96)
        assert token_logp(lm, tokens, action).computed < 0.8 * token_logp(lm, tokens, action).flat
        logp = token_scores(lm, plain, 1.0, 10_000).logp.double()
        shift = 0.3 * torch.randn(logp.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        moved = torch.where(action, logp + shift, 0.0)
        batch = replace(plain, behavior_logp=moved, old_logp=moved, ref_logp=moved.roll(1, 0) * action)
        objective = PRESETS["grpo"].objective
        batch, _ = objective.advantage(batch, MEMORY)
        lm = world.model(lm)
        state = TrainState(lm, still(lm.model), 1.0, 200, NO_LIMIT, ranks=world.ranks)
        _, scores = update(state, objective, batch, step_totals(batch, 96))
        found[f"trees adapted={adapted}"] = {**gradients(lm.model), "logp": scores.logp}
    return found


def refusals(world: World) -> dict[str, Gradients]:
    """What one rank finds is refused by all of them, in the same words; so is an error in one rank's share of work."""
    lm = causal_lm(tiny())
    objective, batch = policy_case("grpo", lm)
    assert batch.advantage is not None
    broken = replace(batch, advantage=batch.advantage.index_fill(0, torch.tensor([0]), float("nan")))
    lm, frozen = world.model(lm), causal_lm(tiny())
    frozen.model.requires_grad_(False)
    said = []
    for model, given in ((lm, broken), (world.model(frozen), batch)):
        optimizer = torch.optim.SGD([*lm.model.parameters()], lr=0.0)
        state = TrainState(model, optimizer, 1.0, 60, NO_LIMIT, ranks=world.ranks)
        try:
            update(state, objective, given, step_totals(given, 16))
            said.append("nothing")
        except UpdateRefused as refusal:
            said.append(f"{type(refusal).__name__} {refusal} {refusal.rows}")
    everyone = world.ranks.gather(said)
    assert [each.split()[0] for each in said] == ["NotFinite", "NoGradient"], said
    assert all(each == said for each in everyone), everyone
    if world.ranks.size > 1:
        _share_that_fails(world.ranks)
    return {}


def _share_that_fails(ranks: Ranks) -> None:
    def work(rows: list[int]) -> list[int]:
        if 0 in rows:
            raise ValueError("row 0 is bad")
        return rows

    owner = next(rank for rank, rows in enumerate(ranks.shares([1.0] * 6)) if 0 in rows)
    try:
        ranks.spread([1.0] * 6, work)
    except ValueError:
        assert ranks.rank == owner
    except OtherRankFailed as failed:
        assert (ranks.rank != owner) and failed.rank == owner and "row 0 is bad" in str(failed)
    else:
        raise AssertionError("nobody failed")


def rows_of(stream: torch.Generator, completions: int) -> Family:
    def draw(least: int, most: int) -> list[int]:
        size = int(torch.randint(least, most, (), generator=stream))
        return torch.randint(2, VOCABULARY, (size,), generator=stream).tolist()

    prompt, made = draw(2, 9), [draw(1, 7) for _ in range(completions)]
    return tuple(Encoded((*prompt, *each, 1), (False,) * len(prompt) + (True,) * (len(each) + 1)) for each in made)


def preferences(world: World, names: Sequence[str]) -> dict[str, Gradients]:
    stream = torch.Generator().manual_seed(0)
    pairs = [PreferenceRow(rows_of(stream, 2)) for _ in range(7)]
    labels = [PreferenceRow(rows_of(stream, 1), 1 if at % 2 else -1) for at in range(7)]
    found = {}
    lm, other = causal_lm(tiny()), causal_lm(tiny(seed=7))
    stored = stored_reference(lm, [row.family for row in pairs], 60, ranks=world.ranks)
    reference = CopiedReference(other)
    lm = world.model(lm)
    reference = world(sharded_reference, reference, lm)
    for name in names:
        objective = PAIR_PRESETS[name].objective
        needs = objective.needs()
        for kind, rows in (("", pairs), *(() if "pairs" in needs else ((" labels", labels),))):
            live = LiveReference(reference, 60, ranks=world.ranks) if "ref_logp" in needs else None
            models = PreferenceModels(lm, None, live)
            trainer = PreferenceTrainer(
                models, objective, PreferenceDataset(rows), **training(4, 7, 60, seed=3), ranks=world.ranks
            )
            moved = {f"weight {key}": value for key, value in _reference_after(trainer, objective, live).items()}
            found[name + kind] = {**gradients(lm.model), **moved}
    models = PreferenceModels(lm, None, stored)
    trainer = PreferenceTrainer(
        models, PAIR_PRESETS["dpo"].objective, PreferenceDataset(pairs), **training(4, 7, 60, seed=3),
        ranks=world.ranks,
    )  # fmt: skip
    trainer.step(1, PhaseTimer())
    found["dpo stored"] = gradients(lm.model)
    return found


def _reference_after(trainer: PreferenceTrainer, objective: Any, live: LiveReference | None) -> Gradients:
    """One step; the weights of the reference where it follows the policy."""
    trainer.step(1, PhaseTimer())
    if live is None or objective.reference.kept_after(1) == 1:
        return {}
    with live.reference.open() as lm:
        return {name: whole(value) for name, value in lm.model.state_dict().items()}


def demonstrations(world: World, every: bool) -> dict[str, Gradients]:
    stream = torch.Generator().manual_seed(5)
    rows = [rows_of(stream, 1)[0] for _ in range(9)]
    found = {}
    for packed in (True, False) if every else (True,):
        lm = world.model(causal_lm(tiny(tied=packed)))
        trainer = SFTTrainer(lm, None, rows, **training(2, 9, 30, packed), eval_rows=rows[:4], ranks=world.ranks)
        report, _ = trainer.step(1, PhaseTimer())
        loss = torch.tensor([report.metrics["loss"], trainer.evaluate()["loss"]], dtype=torch.float64)
        found[f"sft packed={packed}"] = {**gradients(lm.model), "loss": loss}
    return found


def reward_models(world: World, every: bool) -> dict[str, Gradients]:
    stream = torch.Generator().manual_seed(6)

    def judged(completions: int, places: int = 1) -> tuple[ClassifierRow, ...]:
        rows = rows_of(stream, completions)
        shared = rows[0].action.index(True)
        return tuple(
            ClassifierRow(row.tokens, shared, tuple(range(len(row.tokens)))[-min(places, len(row.tokens) - shared) :])
            for row in rows
        )

    ranked = [RewardModelRow(judged(3), (1, 1, 1), ranks=(0, 1, 2)) for _ in range(7)]
    singles = [RewardModelRow(judged(1), (1,), labels=(float(at % 2),)) for at in range(7)]
    stepped = [
        RewardModelRow(row, (1,), labels=tuple(float((at + place) % 2) for place in range(len(row[0].places))))
        for at, row in enumerate(judged(1, 3) for _ in range(7))
    ]
    kinds: dict[str, tuple[Any, Any, Any, int]] = {
        "pairs": (RankLoss(AllPairs(), 0.01), ranked, "sequence", 1),
        "ensemble": (RankLoss(PlackettLuce(), 0.0), bootstrap_rows(ranked, 3, 1), "sequence", 3),
        "outcomes": (LabelLoss(), singles, "sequence", 1),
        "steps": (LabelLoss(), stepped, "token", 2),
    }
    found = {}
    for name in kinds if every else ("ensemble", "steps"):
        objective, rows, kind, heads = kinds[name]
        made = scalar_model(causal_lm(tiny()), kind, 2, heads=heads)
        made.head.double()
        made = world(sharded_scalar_model, made)
        dataset = RewardModelDataset(rows, rows[:3])
        trainer = RewardModelTrainer(made, None, objective, dataset, **training(2, 7, 40), ranks=world.ranks)
        trainer.step(1, PhaseTimer())
        found[f"reward model {name}"] = gradients(made.model)
        loss, scores = trainer.eval_scores()
        flat = [value for row in scores for place in row for value in place]
        found[f"reward model {name}"]["eval"] = torch.tensor([loss, *flat], dtype=torch.float64)
    return found


def other_shapes(world: World, every: bool) -> dict[str, Gradients]:
    """An untied head; written-out layers in float32 on gathered weights."""
    untied = {f"{name} untied": value for name, value in policies(world, ["grpo"], tied=False).items()}
    lm = causal_lm(tiny(dtype=torch.float32))
    objective, batch = policy_case("grpo", lm)
    found = {}
    for recompute in ("none", "layers") if every else ("layers",):
        each: Any = world.model(replace(causal_lm(tiny(dtype=torch.float32)), recompute=recompute))
        from whet.model.fused_trunk import fused_refusal

        assert not fused_refusal(each)
        state = TrainState(each, still(each.model), 1.0, 60, NO_LIMIT, ranks=world.ranks)
        update(state, objective, batch, step_totals(batch, 16))
        found[f"fused float32 {recompute}"] = gradients(each.model)
    # the model's own layers, computed again in the backward pass
    each = world.model(replace(causal_lm(tiny()), recompute="layers"))
    each.model.train()
    state = TrainState(each, still(each.model), 1.0, 60, NO_LIMIT, ranks=world.ranks)
    update(state, objective, batch, step_totals(batch, 16))
    found["own layers recomputed"] = gradients(each.model)
    return {**untied, **found}


# of every way that rows and weights are read, one
SOME = ("grpo", "ppo", "echo", "simko", "lambda_grpo")
SOME_PAIRS = ("dpo", "kto")


def all_gradients(world: World, every: bool = True) -> dict[str, Gradients]:
    """Of every preset, or of some."""
    return {
        **policies(world, list(PRESETS) if every else SOME),
        **warmup(world, every),
        **adapters(world),
        **trees(world, every),
        **preferences(world, list(PAIR_PRESETS) if every else SOME_PAIRS),
        **demonstrations(world, every),
        **reward_models(world, every),
        **other_shapes(world, every),
        **refusals(world),
    }


def main(mode: str, file: str, every: str = "every") -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    ranks = joined_ranks()
    shards = sharding(ranks, device)
    if mode != "even":
        ranks = Uneven(ranks.rank, ranks.size, empty=mode == "empty")
    found = all_gradients(World(ranks, shards), every == "every")
    if ranks.is_first:
        torch.save(found, file)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
