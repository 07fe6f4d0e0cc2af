"""One optimizer update: what the gradient is, what it does not depend on, and what happens when it is not a number."""

import contextlib
import copy
import math
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from tests.support.for_every import for_every
from tests.support.told_apart import told_apart
from whet.data.cursor import Cursor
from whet.model import shared_prefix_attention
from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.reference import CopiedReference
from whet.objective import PRESETS, step_totals, with_changes
from whet.record.metrics.timer import PhaseTimer
from whet.rollout.collect import PromptDataset, RewardContext, RolloutCollector, RolloutSpec
from whet.rollout.prompt_order import PromptOrder
from whet.rollout.torch_engine import TorchEngine
from whet.training import rl_trainer
from whet.training import update as update_module
from whet.training.distributed.ranks import ALONE, Ranks
from whet.training.optimizer import adamw, optimizer_tensors, restore_optimizer, scheduled_rate
from whet.training.rl_trainer import RLModels, RLTrainer, minibatches
from whet.training.run_loop import RunFailed
from whet.training.sections import BatchSection, OptimizerSection, RowsSection
from whet.training.sft_trainer import SFTTrainer
from whet.training.update import NoGradient, NotFinite, TrainState, token_scores, top_scores, update
from whet.types import Encoded, Extras, Prompt, Sampling, TokenBatch

BUDGET = 8
VOCABULARY = 50
CUT_IN_EVERY_WAY = ("grpo", "gspo", "ppo", "echo")  # the others in one way
MEMORY = {"running_sum": 0.4, "running_mass": 0.5}


@pytest.fixture(scope="module")
def llama():
    """Tiny, double precision, with weights large enough that every token looks different."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=None,
        )
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6.0 if parameter.ndim > 1 else 1.0)
    return model.double()


@pytest.fixture
def model(llama):
    """A copy to train."""
    return copy.deepcopy(llama)


@pytest.fixture
def exact(monkeypatch):
    """The model's norms compute in single precision whatever its weights are: here, in double as well."""
    to, single = torch.Tensor.to, torch.Tensor.float

    def widened(values, *asked, **more):
        wide = [torch.float64 if each is torch.float32 else each for each in asked]
        return to(
            values, *wide, **{name: torch.float64 if each is torch.float32 else each for name, each in more.items()}
        )

    monkeypatch.setattr(torch.Tensor, "to", widened)
    # positions meet what was widened; scores are still recorded in single precision
    monkeypatch.setattr(torch.Tensor, "float", lambda each: single(each) if each.is_floating_point() else each.double())


@pytest.fixture(scope="module")
def batch():
    """Ragged rows, a gap in some of them as a tool's answer would leave, and a policy that has drifted."""
    stream = torch.Generator().manual_seed(4)
    shapes = [(2, 5), (3, 1), (1, 7), (4, 4), (2, 2), (6, 3)]
    width = max(prompt + completion for prompt, completion in shapes)
    action = torch.zeros(len(shapes), width, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(shapes):
        action[row, prompt : prompt + completion] = True
    action[2, 4] = action[0, 4:6] = action[3, 6] = False
    observed = torch.zeros_like(action)
    observed[2, 4] = observed[0, 4:6] = observed[3, 6] = True

    demonstrated = torch.zeros_like(action)
    demonstrated[1, 5:8] = demonstrated[4, 6] = True

    def noise(scale):
        return scale * torch.randn(action.shape, generator=stream, dtype=torch.float64)

    apart = torch.Generator().manual_seed(5)  # of the teacher: the rest stays as it was drawn
    taught = torch.randn((*action.shape, VOCABULARY), generator=apart, dtype=torch.float64).log_softmax(-1).topk(3, -1)
    return TokenBatch(
        teacher_logp=-4.0 + torch.randn(action.shape, generator=apart, dtype=torch.float64),
        teacher_top=taught.indices.int(),
        teacher_top_logp=taught.values,
        tokens=torch.randint(2, VOCABULARY, action.shape, generator=stream),
        action=action,
        group=torch.tensor([0, 0, 1, 1, 2, 2]),
        reward=torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64),
        old_logp=torch.where(action, -4.0 + noise(0.5), 0.0),
        ref_logp=torch.where(action, -4.0 + noise(0.5), 0.0),
        behavior_logp=torch.where(action, -4.0 + noise(0.5), 0.0),
        value=noise(0.3),
        entropy=noise(1.0).abs(),
        parts=torch.tensor([[1.0, 0.5], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.5], [1.0, 0.0]]).double(),
        part_weight=torch.tensor([1.0, 0.5], dtype=torch.float64).expand(6, 2),
        finished=torch.tensor([True, True, False, True, True, True]),
        greedy_reward=torch.tensor([0.0, 0.0, 1.0, 1.0, 0.5, 0.5], dtype=torch.float64),
        reference_rewards=torch.tensor([[0.0, 1.0], [1.0, math.nan], [0.5, 0.0]]).double().repeat_interleave(2, 0),
        prompt=torch.tensor([11, 11, 12, 12, 13, 13]),
        step_reward=torch.where(torch.arange(width) % 2 == 0, noise(1.0), math.nan),
        segment=torch.where(action, torch.arange(width) // 3, -1),
        anchor=torch.where(action, torch.tensor([0, 0, 1, 1, 2, 2])[:, None] * 10 + torch.arange(width) // 3, 0),
        max_new_tokens=BUDGET,
        observed=observed,
        demonstrated=demonstrated,
        role=torch.tensor([7, 7, 8, 8, 7, 7]),
    )


def row_of(name):
    """The row; pass@k with a k at which groups of two teach something."""
    changes = {"baseline.k": 1} if name == "pass_at_k" else {}
    return with_changes(PRESETS[name].objective, changes)


class Spy(torch.optim.SGD):
    """Takes the gradient and leaves the weights alone."""

    def __init__(self, model):
        super().__init__(model.parameters(), lr=0.1)

    def step(self, closure=None):
        self.gradient = flat_gradient(self.param_groups[0]["params"])


def flat_gradient(parameters):
    return torch.cat([parameter.grad.flatten() for parameter in parameters])


def prepared(model, objective, batch, temperature=1.0):
    """With advantages and, for a clip rule that looks at the whole step, its weights."""
    batch, _ = objective.advantage(batch, MEMORY)
    if not objective.surveys(batch):
        return batch
    with torch.no_grad():
        return objective.surveyed(batch, plain_logp(model, batch.tokens, temperature))


@cache
def cut(model):
    """Trunk and head, found by trial: once for each model."""
    return causal_lm(model)


def gradient(model, batch, name="grpo", micro_batch_tokens=10_000, temperature=1.0, max_gradient_norm=1e9):
    objective = row_of(name)
    batch = prepared(model, objective, batch, temperature)
    spy = Spy(model)
    state = TrainState(cut(model), spy, temperature, micro_batch_tokens, max_gradient_norm)
    metrics, _ = update(state, objective, batch, step_totals(batch, BUDGET))
    return spy.gradient, metrics


def plain_divergence(objective, every, batch):
    """From the teacher, on its likeliest tokens and all others together."""
    if "teacher_divergence" not in objective.needs():
        return None

    def with_others(logp):
        return torch.cat([logp, torch.log1p(-logp.exp().sum(-1, keepdim=True))], -1).flatten(0, 1)

    own, theirs = every.gather(-1, batch.teacher_top[:, 1:].long()), batch.teacher_top_logp[:, 1:]
    found = objective.teacher.divergence(with_others(own), with_others(theirs))
    return F.pad(found.unflatten(0, own.shape[:2]), (1, 0))


def plain_extras(model, batch, objective, temperature=1.0, num_top=3):
    """What some rows need of the distribution, by the model's own forward pass."""
    every = (model(input_ids=batch.tokens).logits[:, :-1] / temperature).log_softmax(-1)
    chosen = every.gather(-1, batch.tokens[:, 1:, None])[..., 0]
    return Extras(
        entropy=F.pad(-(every.exp() * every).sum(-1), (1, 0)),
        top_logp=F.pad(every.topk(num_top, -1).values, (0, 0, 1, 0)),
        chose_top=F.pad(chosen >= every.amax(-1), (1, 0)),
        teacher_divergence=plain_divergence(objective, every, batch),
    )


def plain_logp(model, tokens, temperature=1.0, support=None):
    """Every token's log-probability by the model's own forward pass; [N, T], 0 in the first column."""
    logits = model(input_ids=tokens).logits[:, :-1] / temperature
    if support is not None:
        kept = torch.zeros_like(logits, dtype=torch.bool)
        kept.scatter_(-1, support[:, 1:].clamp(min=0).long(), support[:, 1:] >= 0)
        logits = logits.masked_fill(~kept, -math.inf)
    found = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    return F.pad(found, (1, 0))


def relative(one, two):
    assert two.norm() > 1e-3
    return float((one - two).norm() / two.norm())


@pytest.mark.parametrize(
    ("temperature", "methods"), [(1.0, CUT_IN_EVERY_WAY), (0.6, told_apart(PRESETS))], ids=["plain", "sharper"]
)
def test_the_gradient_is_that_of_a_plain_forward_pass(exact, model, batch, temperature, methods):
    failures = []
    # what an environment wrote or a demonstration shows is no choice of the sampler's: the model scores it as it is
    unchosen = batch.observed | batch.demonstrated
    for name in methods:
        ours, metrics = gradient(model, batch, name, temperature=temperature)
        objective = row_of(name)
        advantaged = prepared(model, objective, batch, temperature)
        model.zero_grad(set_to_none=True)
        extras = plain_extras(model, batch, objective, temperature)
        logp = torch.where(unchosen, plain_logp(model, batch.tokens), plain_logp(model, batch.tokens, temperature))
        loss = objective.loss(advantaged, logp, step_totals(batch, BUDGET), extras)
        loss.value.backward()
        if (gap := relative(ours, flat_gradient(model.parameters()))) >= 1e-10:
            failures.append(f"{name}: the gradient is {gap:.1e} from the plain one")
        plain = {"loss": float(loss.value.detach()), "gradient_norm": float(ours.norm())}
        if (reported := {key: metrics[key] for key in plain}) != pytest.approx(plain, rel=1e-10):
            failures.append(f"{name}: {reported}, not {plain}")
    assert not failures, "\n".join(failures)


def test_the_gradient_of_truncated_sampling_is_renormalised_on_what_could_be_drawn(model, batch):
    support = torch.stack([batch.tokens, torch.full_like(batch.tokens, 7), torch.full_like(batch.tokens, -1)], -1).int()
    truncated = replace(batch, support=support)
    found, _ = gradient(model, truncated, "dr_grpo")
    objective = PRESETS["dr_grpo"].objective
    advantaged, _ = objective.advantage(truncated, {})
    model.zero_grad(set_to_none=True)
    logp = plain_logp(model, batch.tokens, support=support)
    objective.loss(advantaged, logp, step_totals(batch, BUDGET)).value.backward()
    assert relative(found, flat_gradient(model.parameters())) < 1e-10
    assert relative(found, gradient(model, batch, "dr_grpo")[0]) > 0.1


@pytest.fixture
def episodes(batch):
    """Two groups of three rows that share a prompt, with one to three turns and observed tokens between them."""
    tokens = batch.tokens.repeat(1, 2)
    action, segment = torch.zeros_like(tokens, dtype=torch.bool), torch.full_like(tokens, -1)
    spans = [((2, 5), (7, 8), (11, 14)), ((2, 4), (9, 13)), ((2, 7),), ((3, 6), (8, 12)), ((3, 4),), ((3, 5), (6, 9))]
    for row, turns in enumerate(spans):
        tokens[row, : turns[0][0]] = tokens[row // 3 * 3, : turns[0][0]]
        for turn, (start, stop) in enumerate(turns):
            action[row, start:stop], segment[row, start:stop] = True, turn
    tokens[2, :4] = tokens[1, :4]  # branches of one episode: they share more than the prompt
    begun, ahead = action.cumsum(-1) > 0, action.flip(-1).cumsum(-1).flip(-1) > 0
    return TokenBatch(
        tokens=tokens,
        action=action,
        group=torch.arange(6) // 3,
        reward=batch.reward,
        segment=segment,
        observed=begun & ahead & ~action,
        old_logp=torch.where(action, -4.0 + 0.1 * torch.arange(tokens.shape[1]), 0.0),
        step_reward=torch.where(action & (torch.arange(tokens.shape[1]) % 3 == 0), 0.5, math.nan),
        episode=torch.tensor([0, 1, 1, 2, 3, 4]),
        role=torch.zeros(6, dtype=torch.long),
        max_new_tokens=BUDGET,
    )


@pytest.mark.parametrize("micro_batch_tokens", [1, 24, 10_000])
@pytest.mark.parametrize("name", ["grpo_r1", "rloo_turns", "echo", "gspo"])
def test_rows_of_several_turns_teach_the_same_packed_and_padded(
    exact, model, episodes, name, micro_batch_tokens, monkeypatch
):
    episodes = replace(episodes, ref_logp=episodes.old_logp)
    found, metrics = gradient(model, episodes, name, micro_batch_tokens)
    monkeypatch.setattr(shared_prefix_attention, "_REFUSALS", {model.base_model: {CausalLM.dtype: "a test"}})
    padded, plain_metrics = gradient(model, episodes, name)
    assert relative(found, padded) < 1e-10 and metrics == pytest.approx(plain_metrics, rel=1e-6)
    objective = row_of(name)
    advantaged, _ = objective.advantage(episodes, MEMORY)
    model.zero_grad(set_to_none=True)
    totals = step_totals(advantaged, BUDGET)
    extras = plain_extras(model, episodes, objective)
    objective.loss(advantaged, plain_logp(model, episodes.tokens), totals, extras).value.backward()
    assert relative(found, flat_gradient(model.parameters())) < 1e-10


def test_what_an_environment_wrote_is_scored_under_truncated_sampling_too(exact, model, episodes):
    """The sampler's support says nothing about tokens it did not draw."""
    kept = [episodes.tokens, torch.full_like(episodes.tokens, 7), torch.full_like(episodes.tokens, -1)]
    support = torch.where(episodes.action[..., None], torch.stack(kept, -1), -1).int()
    found, metrics = gradient(model, replace(episodes, support=support), "echo")
    objective = PRESETS["echo"].objective
    advantaged, _ = objective.advantage(episodes, {})
    model.zero_grad(set_to_none=True)
    narrow = plain_logp(model, episodes.tokens, support=torch.stack(kept, -1).int())
    logp = torch.where(episodes.observed, plain_logp(model, episodes.tokens), narrow)
    loss = objective.loss(advantaged, logp, step_totals(advantaged, BUDGET)).value
    loss.backward()
    assert relative(found, flat_gradient(model.parameters())) < 1e-10
    assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-10)


def test_a_row_whose_turns_were_all_left_out_still_shows_what_its_environment_wrote(exact, model, episodes):
    objective = with_changes(PRESETS["echo"].objective, {"select": "finished_turns"})
    cut = replace(episodes, truncated=episodes.action & (torch.arange(6) == 0)[:, None])
    advantaged, _ = objective.advantage(cut, {})
    assert not advantaged.action[0].any() and advantaged.observed[0].any()
    spy = Spy(model)
    update(TrainState(causal_lm(model), spy, 1.0, 20, 1e9), objective, advantaged, step_totals(advantaged, BUDGET))
    found = spy.gradient
    model.zero_grad(set_to_none=True)
    logp = plain_logp(model, episodes.tokens)
    objective.loss(advantaged, logp, step_totals(advantaged, BUDGET)).value.backward()
    assert relative(found, flat_gradient(model.parameters())) < 1e-10


def test_neither_micro_batch_tokens_nor_the_order_of_the_rows_matter(model, batch):
    """How a step is cut into passes is a matter of memory only."""
    failures = []
    shuffled = batch.select([3, 5, 0, 2, 4, 1])
    for name in {*CUT_IN_EVERY_WAY, *told_apart(PRESETS)}:
        whole, metrics = gradient(model, batch, name)
        cuts = {"shuffled rows in passes of 12 tokens": (shuffled, 12)}
        if name in CUT_IN_EVERY_WAY:
            cuts |= {f"passes of {tokens} tokens": (batch, tokens) for tokens in (1, 30)}
        for cut, (rows, micro_batch_tokens) in cuts.items():
            other, other_metrics = gradient(model, rows, name, micro_batch_tokens)
            if (gap := relative(other, whole)) >= 1e-10:
                failures.append(f"{name}: {cut} change the gradient by {gap:.1e}")
            if other_metrics != pytest.approx(metrics, rel=1e-6):
                failures.append(f"{name}: {cut}: {other_metrics}, not {metrics}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("micro_batch_tokens", [1, 20, 10_000])
@pytest.mark.parametrize("name", ["grpo", "gspo", "simko"])
def test_a_shared_prompt_is_computed_once_and_teaches_the_same(
    exact, model, batch, name, micro_batch_tokens, monkeypatch
):
    tokens, action = batch.tokens.clone(), batch.action.clone()
    for row, other in ((1, 0), (3, 2), (5, 4)):
        tokens[row, :2] = tokens[other, :2]
        action[[row, other]] = False
        action[row, 2:6], action[other, 2:8] = True, True
    twins = replace(batch, tokens=tokens, action=action)
    sizes, hidden = [], CausalLM.hidden
    monkeypatch.setattr(
        CausalLM, "hidden", lambda self, tokens, **more: sizes.append(tokens.numel()) or hidden(self, tokens, **more)
    )
    found, _ = gradient(model, twins, name, micro_batch_tokens)
    seen = sizes[-1]
    monkeypatch.setattr(shared_prefix_attention, "_REFUSALS", {model.base_model: {CausalLM.dtype: "a test"}})
    padded, _ = gradient(model, twins, name)
    assert relative(found, padded) < 1e-10
    if micro_batch_tokens == 10_000:
        assert seen == 3 * (2 + 3 + 5) and sizes[-1] == 6 * 8


def test_rows_that_branch_say_what_their_tree_saves(llama):
    """Two turns of 20 tokens that four rows share in pairs, and one of their own."""
    lm, turns = causal_lm(llama), torch.arange(2, 42) % 40 + 2
    rows = torch.stack(
        [torch.cat([turns[:21], (turns[:20] + arm // 2) % 50, (turns[:5] + arm) % 50]) for arm in range(4)]
    )
    action = torch.ones_like(rows, dtype=torch.bool)
    action[:, 0] = False
    scores = token_scores(lm, TokenBatch(rows, action, torch.zeros(4).long(), torch.arange(4.0)), 1.0, 10_000)
    batch = TokenBatch(rows, action, torch.zeros(4).long(), torch.arange(4.0).double(), scores.logp)
    objective = PRESETS["rloo"].objective
    batch, _ = objective.advantage(replace(batch, old_logp=scores.logp, ref_logp=scores.logp), {})
    state = TrainState(lm, torch.optim.SGD(llama.parameters(), lr=0.0), 1.0, 10_000, 1e9)
    metrics, _ = update(state, objective, batch, step_totals(batch, 45))
    assert (metrics["computed_tokens"], metrics["flat_tokens"]) == (21 + 2 * 20 + 4 * 4, 1 + 4 * 44)
    metrics, _ = update(state, objective, batch.select([0]), step_totals(batch, 45))
    assert not {"computed_tokens", "flat_tokens"} & metrics.keys()


def test_padding_does_not_matter(model, batch):
    def wider(values, fill):
        return F.pad(values, (0, 5), value=fill)

    floats = ("old_logp", "ref_logp", "behavior_logp", "value", "entropy", "step_reward")
    padded = batch.mapped(lambda values: wider(values, math.nan), floats)
    padded = padded.mapped(lambda values: wider(values, 9), ("tokens", "segment", "anchor"))
    padded = replace(padded, action=wider(batch.action, False))
    assert relative(gradient(model, padded)[0], gradient(model, batch)[0]) < 1e-10


def test_the_gradient_is_clipped_and_reported_as_it_was(model, batch):
    free, metrics = gradient(model, batch)
    clipped, clipped_metrics = gradient(model, batch, max_gradient_norm=0.01)
    assert float(clipped.norm()) == pytest.approx(0.01, rel=1e-4) and float(free.norm()) > 0.02
    assert clipped_metrics["gradient_norm"] == pytest.approx(metrics["gradient_norm"])


@pytest.mark.parametrize("micro_batch_tokens", [1, 30, 10_000])
def test_scores_are_the_models_own(model, batch, micro_batch_tokens):
    found = token_scores(causal_lm(model), batch, 0.7, micro_batch_tokens)
    with torch.no_grad():
        expected = torch.where(batch.action, plain_logp(model, batch.tokens, 0.7), 0.0)
        every = (model(input_ids=batch.tokens).logits[:, :-1] / 0.7).log_softmax(-1)
    torch.testing.assert_close(found.logp, expected.float(), rtol=1e-5, atol=1e-6)
    entropy = torch.where(batch.action, F.pad(-(every.exp() * every).sum(-1), (1, 0)), 0.0)
    torch.testing.assert_close(found.entropy, entropy.float(), rtol=1e-5, atol=1e-6)
    assert not found.logp.requires_grad


# what is not a number


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def attempt(model, batch, objective=PRESETS["grpo"].objective):
    optimizer = adamw(model, OptimizerSection(learning_rate=0.1))
    update(TrainState(causal_lm(model), optimizer, 1.0, 12, 1.0), objective, batch, step_totals(batch, BUDGET))


def with_advantage(batch):
    return PRESETS["grpo"].objective.advantage(batch, {})[0]


def spoiled(values, row, column, value):
    values = values.clone()
    values[row, column] = value
    return values


@pytest.mark.parametrize(
    ("field", "value", "cause"),
    [
        ("advantage", -math.inf, "look at the rewards"),
        ("ref_logp", math.inf, "the reference's"),
        ("old_logp", -math.inf, "the ratio or the KL term"),
    ],
)
def test_a_loss_that_is_not_finite_stops_before_the_weights(model, batch, field, value, cause):
    before, fine = weights(model), with_advantage(batch)
    broken = replace(fine, **{field: spoiled(getattr(fine, field), 2, 5, value)})
    with pytest.raises(NotFinite, match=f"the loss is not finite.*{cause}") as error:
        attempt(model, broken)
    assert 2 in error.value.rows and len(error.value.rows) < 6
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


class AllOnTheFirst(Ranks):
    """Two ranks, of which the second has no rows."""

    def shares(self, costs, families=None):
        return [list(range(len(costs))), []]

    def most(self, count):
        return max(count, 1)

    def sum_tensor(self, tensor):
        return tensor


def test_a_rank_without_rows_scores_chosen_tokens_for_nothing(llama, batch):
    found = [
        top_scores(causal_lm(llama), batch, 1.0, 10_000, 3, batch.teacher_top, ranks)
        for ranks in (ALONE, AllOnTheFirst(0, 2), AllOnTheFirst(1, 2))
    ]
    assert found[0][1].any() and all(torch.equal(one, two) for one, two in zip(found[0], found[1], strict=True))
    assert not any(values.any() for values in found[2])


def test_diverged_weights_are_told_apart(model, batch):
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = math.nan
    with pytest.raises(NotFinite, match=r"its weights diverged; lower optimizer\.learning_rate"):
        attempt(model, with_advantage(batch))


def test_a_gradient_that_is_not_finite_stops_before_the_weights(model, batch):
    before = weights(model)
    model.model.layers[0].mlp.up_proj.weight.register_hook(lambda value: value * math.inf)
    with pytest.raises(NotFinite, match=r"the gradient is not finite: first seen in model\.layers\.0\.mlp\.up_proj"):
        attempt(model, with_advantage(batch))
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


# supervised


ROWS = [
    Encoded((5, 9, 11, 4), (False, False, True, True)),
    Encoded((7, 8, 3, 40, 41, 42, 1), (False, False, False, True, True, True, True)),
    Encoded((12, 6), (False, True)),
    Encoded((5, 9, 11, 2, 33, 1), (False, True, False, False, True, True)),
]


def sft_trainer(policy, rows, rows_per_step=4, micro_batch_tokens=100, packed=True, eval_rows=()):
    return SFTTrainer(
        policy,
        None,
        rows,
        batch=RowsSection(rows_per_step=rows_per_step, micro_batch_tokens=micro_batch_tokens, packed=packed),
        optimizer=OptimizerSection(learning_rate=1e-3, max_gradient_norm=1e9),
        steps=10,
        seed=0,
        eval_rows=eval_rows,
    )


def supervised_gradient(model, packed, micro_batch_tokens, rows=ROWS):
    model = copy.deepcopy(model)
    trainer = sft_trainer(
        causal_lm(model), rows, rows_per_step=len(rows), micro_batch_tokens=micro_batch_tokens, packed=packed
    )
    report, _ = trainer.step(1, PhaseTimer())
    assert report.counts == {"rows": len(rows), "tokens": sum(sum(row.action) for row in rows)}
    return flat_gradient(model.parameters()), report.metrics["loss"]


def labelled_gradient(model, rows=ROWS, extra_label=None):
    """By transformers' own loss, a row at a time, with -100 on every label that must not count."""
    model = copy.deepcopy(model)
    total, trained = 0.0, sum(sum(row.action) for row in rows)
    for number, row in enumerate(rows):
        labels = [token if learnt else -100 for token, learnt in zip(row.tokens, row.action, strict=True)]
        if extra_label is not None and number == extra_label[0]:
            labels[extra_label[1]] = row.tokens[extra_label[1]]
        count = sum(label != -100 for label in labels[1:])
        loss = model(input_ids=torch.tensor([row.tokens]), labels=torch.tensor([labels])).loss
        (loss * count / trained).backward()
        total += float(loss.detach()) * count / trained
    return flat_gradient(model.parameters()), total


@pytest.mark.parametrize("micro_batch_tokens", [1, 9, 10_000])
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_imitation_is_the_same_however_it_is_packed(llama, packed, micro_batch_tokens):
    found, loss = supervised_gradient(llama, packed, micro_batch_tokens)
    expected, expected_loss = labelled_gradient(llama)
    # transformers takes its loss in single precision
    assert relative(found, expected) < 1e-6
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    alone, alone_loss = supervised_gradient(llama, False, 1)
    assert relative(found, alone) < 1e-10
    assert loss == pytest.approx(alone_loss, rel=1e-12)


def test_only_the_completion_carries_loss(llama):
    """One prompt token more among the labels and the gradient would be another."""
    found, _ = supervised_gradient(llama, False, 10_000)
    assert relative(labelled_gradient(llama, extra_label=(1, 1))[0], found) > 0.05


def test_rows_are_packed_only_where_the_model_keeps_them_apart(llama, monkeypatch):
    widths = []
    hidden = CausalLM.hidden
    monkeypatch.setattr(
        CausalLM,
        "hidden",
        lambda self, tokens, **more: widths.append(tuple(tokens.shape)) or hidden(self, tokens, **more),
    )
    for takes_positions, packed, expected in ((True, True, (1, 15)), (True, False, (4, 7)), (False, True, (4, 7))):
        model = copy.deepcopy(llama)
        policy = replace(causal_lm(model), takes_positions=takes_positions)
        trainer = sft_trainer(policy, ROWS, packed=packed)
        widths.clear()
        trainer.step(1, PhaseTimer())
        assert widths == [expected]


def test_imitation_stops_on_a_loss_that_is_not_finite(model):
    trainer = sft_trainer(causal_lm(model), ROWS, rows_per_step=2, packed=False)
    with torch.no_grad():
        model.model.norm.weight[0] = math.nan
    before = weights(model)
    with pytest.raises(RunFailed, match=r"step 4: the loss is not finite.*learning_rate.*last checkpoint"):
        trainer.step(4, PhaseTimer())
    after = weights(model)
    assert all(torch.equal(before[name].nan_to_num(7), after[name].nan_to_num(7)) for name in before)


def test_eval_loss_is_measured_without_learning(model):
    trainer = sft_trainer(causal_lm(model), ROWS[:2], rows_per_step=2, micro_batch_tokens=9, eval_rows=ROWS[2:])
    before = weights(model)
    measured = trainer.evaluate()
    assert measured == {"loss": pytest.approx(labelled_gradient(model, ROWS[2:])[1], rel=1e-6)}
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


# the optimizer


@for_every([("constant", 1.0), ("linear", 1 / 16), ("cosine", None)], [0, 4])
def test_schedules(schedule, last, warmup):
    total = 16 + warmup
    settings = OptimizerSection(learning_rate=0.5, schedule=schedule, warmup_steps=warmup)
    rates = [scheduled_rate(settings, step, total) for step in range(1, total + 1)]
    assert rates[:warmup] == pytest.approx([0.5 * step / 5 for step in range(1, warmup + 1)])
    assert rates[warmup] == 0.5
    assert sorted(rates[warmup:], reverse=True) == rates[warmup:]
    last = 0.5 * (1 + math.cos(math.pi * 15 / 16)) if last is None else last
    assert rates[-1] == pytest.approx(0.5 * last) and rates[-1] > 0
    if schedule != "constant":
        assert rates[warmup + 8] == pytest.approx(0.25)
        assert len(set(rates)) == total


def test_more_warmup_than_steps_is_only_warmup():
    settings = OptimizerSection(learning_rate=1.0, schedule="cosine", warmup_steps=9)
    assert [scheduled_rate(settings, step, 3) for step in (1, 2, 3)] == pytest.approx([0.1, 0.2, 0.3])


def learn(model, optimizer, step):
    tokens = torch.tensor([[5, 9, 11, 4 + step]])
    optimizer.zero_grad()
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()


def test_the_optimizers_state_comes_back_bit_for_bit(model):
    settings = OptimizerSection(learning_rate=1e-2, weight_decay=0.1)
    first = adamw(model, settings)
    for step in range(3):
        learn(model, first, step)
    other = copy.deepcopy(model)
    second = adamw(other, settings)
    saved = optimizer_tensors(model, first)
    assert len(saved) == 3 * len(list(model.parameters()))
    assert all(value.is_contiguous() for value in saved.values())
    restore_optimizer(other, second, saved)
    again = optimizer_tensors(other, second)
    assert saved.keys() == again.keys() and all(torch.equal(saved[name], again[name]) for name in saved)
    learn(model, first, 3)
    learn(other, second, 3)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))
    # a fresh optimizer would have gone elsewhere
    third = copy.deepcopy(model)
    learn(third, adamw(third, settings), 4)
    learn(model, first, 4)
    assert not torch.equal(third.lm_head.weight, model.lm_head.weight)


def test_restoring_copies(model):
    optimizer = adamw(model, OptimizerSection(learning_rate=1e-2))
    learn(model, optimizer, 0)
    saved = optimizer_tensors(model, optimizer)
    restore_optimizer(model, optimizer, saved)
    before = {name: value.clone() for name, value in saved.items()}
    learn(model, optimizer, 1)
    assert all(torch.equal(before[name], value) for name, value in saved.items())


def test_weight_decay_is_for_matrices(model):
    model.model.embed_tokens.weight.requires_grad_(False)
    before = weights(model)
    optimizer = adamw(model, OptimizerSection(learning_rate=0.1, weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        kept = 1.0 if parameter.ndim < 2 or name == "model.embed_tokens.weight" else 1 - 0.1 * 0.5
        torch.testing.assert_close(parameter.detach(), before[name] * kept, rtol=1e-12, atol=0)
    assert {parameter.ndim for parameter in model.parameters()} == {1, 2}


# several updates of one batch


class Letters:
    def decode(self, tokens, skip_special_tokens=False):
        return "".join(chr(40 + token) for token in tokens)


def even_tokens(prompts, samples):
    shares = [float((sample.tokens[sample.action] % 2 == 0).float().mean()) for sample in samples]
    return [sample.scored({"even": share}, share) for sample, share in zip(samples, shares, strict=True)]


def no_difference(prompts, samples):
    return [sample.scored({"even": 0.5}, 0.5) for sample in samples]


def trainer_of(model, updates, changes=None, rate=0.02, micro_batch_tokens=1000, engine=None, staleness=0, **models):
    policy = causal_lm(model)
    prompts = [Prompt(f"q{number}", (), "?") for number in range(3)]
    objective = with_changes(PRESETS["dr_grpo"].objective, changes or {})
    sampling = Sampling(max_new_tokens=BUDGET)
    collector = RolloutCollector(
        engine or TorchEngine(policy, Letters(), (1,), context=64),
        PromptDataset(prompts, [(2, 3), (4, 5, 6), (7,)]),
        lambda progress: RewardContext(even_tokens),
        RolloutSpec(3, 4, sampling, False, objective.keep),
        PromptOrder(3, 5),
        staleness,
    )
    return RLTrainer(
        RLModels(policy, None, **models),
        objective,
        collector,
        batch=BatchSection(updates_per_step=updates, micro_batch_tokens=micro_batch_tokens, staleness=staleness),
        optimizer=OptimizerSection(learning_rate=rate),
        sampling=sampling,
        steps=20,
        seed=5,
    )


@pytest.fixture
def seen_parts(monkeypatch):
    """(batch, log-probabilities before the update) of every update."""
    parts, original = [], rl_trainer.update

    def watched(state, objective, batch, totals, **settings):
        before = token_scores(state.policy, batch, state.temperature, 1000).logp
        parts.append((batch, before, totals))
        return original(state, objective, batch, totals, **settings)

    monkeypatch.setattr(rl_trainer, "update", watched)
    return parts


def test_several_updates_measure_the_move_since_the_batch_was_written(model, seen_parts):
    trainer = trainer_of(model.float(), updates=4)
    reports = [trainer.step(number, PhaseTimer())[0] for number in (1, 2, 3)]
    assert len(seen_parts) == 12
    for start in (0, 4, 8):
        first, *later = seen_parts[start : start + 4]
        torch.testing.assert_close(first[0].old_logp, first[1], rtol=0, atol=1e-5)
        for part, before, _ in later:
            # old_logp is of the weights before the first update: the sampler's, which share them
            torch.testing.assert_close(part.old_logp, part.behavior_logp, rtol=0, atol=1e-4)
            assert (part.old_logp - before)[part.action].abs().max() > 1e-3
        rows = torch.cat([part.tokens for part, _, _ in seen_parts[start : start + 4]])
        assert len(rows) == 12
        # the advantage was taken over the whole step, and each update divides by what it holds itself
        assert all(totals.sequences == 3 == part.num_sequences for part, _, totals in seen_parts[start : start + 4])
    assert all(report.metrics["ratio"] != 1.0 for report in reports)
    assert any(report.metrics["reweighted"] > 0 for report in reports)
    assert all(report.metrics["sampler_gap"] < 1e-4 for report in reports)


def test_one_update_needs_no_old_logp_and_its_ratio_is_one(model, seen_parts):
    trainer = trainer_of(model.float(), updates=1)
    for number in (1, 2):
        report, samples = trainer.step(number, PhaseTimer())
        assert report.metrics["ratio"] == pytest.approx(1.0) and report.metrics["reweighted"] == 0
        assert report.policy_version == number - 1 and {each.versions for _, each in samples} == {(number - 1,) * 2}
    assert all(part.old_logp is None for part, _, _ in seen_parts)


def test_what_completions_say_is_counted_while_a_device_computes_the_gradient(model, monkeypatch):
    trainer, before, seen = trainer_of(model.float(), updates=2), weights(model), []

    def counted(groups):
        gradients = [parameter.grad for parameter in model.parameters()]
        seen.append((all(one is not None for one in gradients), weights(model)))
        return {}

    monkeypatch.setattr(rl_trainer, "repetition", counted)
    trainer.step(1, PhaseTimer())
    ((has_gradient, during),) = seen  # once, though there are two updates
    assert has_gradient and all(torch.equal(during[name], before[name]) for name in before)


def test_a_step_does_not_depend_on_micro_batch_tokens(llama):
    found = []
    for micro_batch_tokens in (1, 40, 1000):
        model = copy.deepcopy(llama)
        report, _ = trainer_of(model, 2, rate=1e-3, micro_batch_tokens=micro_batch_tokens).step(1, PhaseTimer())
        found.append((report.metrics, weights(model)))
    for metrics, after in found[:2]:
        assert metrics == pytest.approx(found[2][0], rel=1e-5, abs=1e-6)
        assert all(torch.allclose(after[name], found[2][1][name], atol=1e-6) for name in after)


def test_the_failing_samples_are_named(model, monkeypatch):
    trainer = trainer_of(model.float(), updates=2)

    def broken(*arguments, **settings):
        raise NotFinite("the loss is not finite", "because", rows=(0,))

    monkeypatch.setattr(rl_trainer, "update", broken)
    first = minibatches(12, 2, 5, 7)[0][0]
    with pytest.raises(RunFailed) as error:
        trainer.step(7, PhaseTimer())
    taken = [f"q{row}" for row in Cursor(3, 5).take(3)[0]]
    assert str(error.value) == (
        f"step 7: the loss is not finite: because; samples of {taken[first // 4]}; "
        "the weights of the last checkpoint are untouched"
    )


def test_an_objective_that_needs_a_reference_must_get_one(model):
    with pytest.raises(ValueError, match="needs a reference"):
        trainer_of(model.float(), 1, {"kl": "k3"})


def test_every_step_and_epoch_shuffles_in_its_own_way():
    orders = [minibatches(40, 2, seed=1, step=step, epoch=epoch) for step in range(200) for epoch in range(2)]
    assert len({str(order) for order in orders}) == len(orders)


def test_minibatches_cover_every_row_once_and_are_seeded():
    parts = minibatches(13, 4, seed=1, step=2)
    assert sorted(row for part in parts for row in part) == list(range(13))
    assert [len(part) for part in parts] == [4, 3, 3, 3]
    assert parts == minibatches(13, 4, seed=1, step=2)
    assert parts != minibatches(13, 4, seed=1, step=3) and parts != minibatches(13, 4, seed=2, step=2)
    assert [row for part in parts for row in part] != list(range(13))
    assert minibatches(5, 1, seed=1, step=2) == [[0, 1, 2, 3, 4]]


def test_the_engine_is_handed_the_new_weights_after_every_step_and_on_resume(model):
    """An engine with weights of its own depends on it; one that shares the trainer's only notes the version."""
    trainer = trainer_of(model.float(), updates=1)
    handed = []
    trainer._collector._engine.load = lambda weights, version: handed.append(
        (version, {n: w.clone() for n, w in weights.items()})
    )
    trainer.step(1, PhaseTimer())
    trainer.step(2, PhaseTimer())
    assert [version for version, _ in handed] == [1, 2]
    for name, weight in model.state_dict().items():
        assert torch.equal(handed[1][1][name], weight)
    assert any(not torch.equal(handed[0][1][name], handed[1][1][name]) for name in handed[0][1])
    trainer.restore(trainer.state(), trainer.tensors())
    assert handed[2][0] == 2 and handed[2][1].keys() == model.state_dict().keys()


class Liar(TorchEngine):
    """Its log-probabilities are off by half a nat."""

    def generate(self, requests, sampling):
        samples = super().generate(requests, sampling)
        return [replace(each, behavior_logp=each.behavior_logp - 0.5 * each.action) for each in samples]


@pytest.mark.parametrize(("staleness", "name"), [(0, "sampler_gap"), (1, "staleness")])
def test_an_engine_whose_log_probabilities_are_off_is_noticed(model, staleness, name):
    model = model.float()
    liar = Liar(causal_lm(model), Letters(), (1,), context=64)
    report, _ = trainer_of(model, 1, engine=liar, staleness=staleness).step(1, PhaseTimer())
    assert report.metrics[name] == pytest.approx(0.5, abs=1e-3)
    assert report.metrics[f"{name}_max"] == pytest.approx(0.5, abs=1e-3)


def test_groups_older_than_the_objective_allows_stop_the_run(model):
    trainer = trainer_of(model.float(), 1, {"keep": "fresh", "keep.max_staleness": 1}, rate=1e-5, staleness=2)
    trainer.step(1, PhaseTimer())
    trainer.step(2, PhaseTimer())
    with pytest.raises(RunFailed, match=r"step 3: every group is older than objective\.keep\.max_staleness"):
        trainer.step(3, PhaseTimer())


def test_a_step_times_the_collection(model):
    timer = PhaseTimer()
    trainer_of(model.float(), 1).step(1, timer)
    assert {"rollout", "reward", "train"} == timer.seconds.keys() and all(each > 0 for each in timer.seconds.values())


# a gradient of zero


def zeroed(model):
    """Nothing flows back to the weights: what switching gradients off somewhere in the model's own code does."""
    for parameter in model.parameters():
        parameter.register_hook(torch.zeros_like)
    return model


def test_a_zero_gradient_stops_where_the_advantages_are_not_zero(model, batch):
    before = weights(model)
    with pytest.raises(NoGradient, match="the gradient is zero although the advantages are not") as error:
        attempt(zeroed(model), with_advantage(batch))
    assert error.value.rows
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


@pytest.mark.parametrize(
    "why", ["advantages are zero", "all is clipped", "opposite pulls on one completion", "certain"]
)
def test_a_zero_gradient_is_right_where_there_is_nothing_to_learn(model, batch, why):
    fine = with_advantage(batch)
    if why == "advantages are zero":
        fine = replace(fine, advantage=torch.zeros_like(fine.advantage))
    if why == "all is clipped":  # a good token whose ratio is far above, a bad one whose ratio is far below
        gap = torch.where(fine.advantage > 0, -9.0, 9.0)
        fine = replace(fine, old_logp=token_scores(causal_lm(model), fine, 1.0, 1000).logp.double() + gap)
    if why == "opposite pulls on one completion":
        fine = fine.select([0, 0])
        fine = replace(
            fine, advantage=torch.stack([torch.ones_like(fine.advantage[0]), -torch.ones_like(fine.advantage[0])])
        )
        fine = replace(fine, old_logp=None)
    if why == "certain":
        with torch.no_grad():
            model.model.norm.weight.mul_(1e6)
        tokens = fine.tokens.clone()
        for column in range(1, tokens.shape[1]):  # what the model is sure to write
            tokens[:, column] = model(tokens).logits[:, column - 1].argmax(-1)
        fine = replace(fine, tokens=tokens, old_logp=None)
    attempt(zeroed(model), fine, with_changes(PRESETS["grpo"].objective, {"kl": "none"}))


@pytest.mark.parametrize("states", ["float32", "int8"])
def test_an_update_without_any_signal_touches_neither_weights_nor_moments(model, batch, states, monkeypatch):
    """AdamW would go on by its momentum, and by weight decay."""
    optimizer = adamw(model, OptimizerSection(learning_rate=0.1, weight_decay=0.5, states=states))
    state = TrainState(causal_lm(model), optimizer, 1.0, 12, 1.0)
    objective, fine = with_changes(PRESETS["grpo"].objective, {"kl": "none"}), with_advantage(batch)
    idle = replace(fine, advantage=torch.zeros_like(fine.advantage))
    update(state, objective, fine, step_totals(fine, BUDGET))
    before, moments = weights(model), optimizer_tensors(model, optimizer)
    metrics, _ = update(state, objective, idle, step_totals(idle, BUDGET))
    assert metrics["gradient_norm"] == 0
    after = optimizer_tensors(model, optimizer)
    assert moments.keys() == after.keys() and all(torch.equal(moments[name], after[name]) for name in moments)
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    # the norm over all ranks decides: this one may have nothing where another has something
    monkeypatch.setattr(update_module, "total_norm", lambda model: torch.tensor(1.0))
    update(state, objective, idle, step_totals(idle, BUDGET))
    assert not any(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


def test_updates_without_any_signal_are_counted_and_said(model, caplog):
    trainer = trainer_of(model.float(), updates=2)
    moved = trainer.step(1, PhaseTimer())[0]
    trainer._collector._reward_at = lambda progress: RewardContext(no_difference)
    before = weights(model)
    idle = [trainer.step(number, PhaseTimer())[0] for number in (2, 3)]
    assert "skipped_updates" not in moved.metrics and [step.metrics["skipped_updates"] for step in idle] == [2, 2]
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    assert [line.split(":")[0] for line in caplog.messages if "gradient was 0" in line] == ["step 2"]  # said once
    trainer.restore(trainer.state(), {})  # as from shards, where no update has made a moment yet


@pytest.mark.parametrize(("kl", "updates"), [("k3", 1), ("k3", 2), ("abs", 3), ("full", 1), ("full", 2)])
def test_a_reference_that_the_policy_has_not_left_is_no_signal(model, kl, updates, monkeypatch):
    """Rows of an update are packed otherwise than those of the step; rounding must not pass for a distance."""

    def rounded(lm, batch, *arguments):
        scores = token_scores(lm, batch, *arguments)
        noise = 1e-6 if updates > 1 and batch.num_sequences == 12 else 0.0
        return replace(scores, logp=torch.where(batch.action, scores.logp + noise, scores.logp))

    monkeypatch.setattr(rl_trainer, "token_scores", rounded)
    policy = model.float()
    trainer = trainer_of(policy, updates, {"kl": kl}, reference=CopiedReference(causal_lm(policy)))
    trainer._collector._reward_at = lambda progress: RewardContext(no_difference)
    before = weights(policy)
    idle = [trainer.step(number, PhaseTimer())[0] for number in (1, 2)]
    assert [step.metrics["skipped_updates"] for step in idle] == [updates, updates]
    assert all(torch.equal(before[name], parameter) for name, parameter in policy.named_parameters())


@pytest.mark.parametrize("switch", ["no_grad", "inference_mode"])
def test_gradients_that_the_caller_switched_off_are_on_in_an_update(llama, batch, switch):
    one, two = copy.deepcopy(llama), copy.deepcopy(llama)
    attempt(one, with_advantage(batch))
    fine = with_advantage(batch)
    with getattr(torch, switch)():
        attempt(two, fine)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    losses = []
    for mode in (contextlib.nullcontext(), getattr(torch, switch)()):
        trainer = sft_trainer(causal_lm(copy.deepcopy(llama)), ROWS, rows_per_step=len(ROWS), packed=False)
        with mode:
            trainer.step(1, PhaseTimer())
        losses.append(flat_gradient(trainer.model.parameters()))
    assert torch.equal(*losses)
