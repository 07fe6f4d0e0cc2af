"""On a CUDA device: the sampler is the trainer, in every precision, and a run goes through."""

import pytest
import torch

import whet
from whet.data.chat import prompt_tokens
from whet.data.tasks import TASKS, prompts
from whet.model.causal_lm import causal_lm
from whet.model.load import load_model
from whet.model.shared_prefix_attention import shared_prefix_works
from whet.model.token_logp import Details, token_logp
from whet.record.log import read_metrics
from whet.rollout.torch_engine import TorchEngine
from whet.types import Request, Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none"),
]

# Mean of |trainer - sampler| over the tokens. In bf16 the two see other shapes, so other kernels and roundings.
GAPS = {"fp32": (torch.float32, 1e-4), "bf16": (torch.bfloat16, 3e-2)}


def engine_on(device, dtype=torch.float32):
    loaded = load_model("whetstone", torch.float32, device)
    policy = causal_lm(loaded.model, dtype)
    return policy, TorchEngine(policy, loaded.tokenizer, loaded.end_tokens, context=loaded.context), loaded


def questions(loaded, count, copies=1):
    chosen = prompts(TASKS["arithmetic"], "eval", count, 1, 3)
    tokens = [prompt_tokens(loaded.tokenizer, prompt) for prompt in chosen]
    return [Request(each, seed=100 * row + copy) for row, each in enumerate(tokens) for copy in range(copies)]


@pytest.mark.parametrize("precision", GAPS)
@pytest.mark.parametrize("sampling", [Sampling(40), Sampling(40, temperature=0.8, top_k=20)], ids=["plain", "top_k"])
def test_the_sampler_is_the_trainer(precision, sampling):
    from whet.data.packing import token_batch
    from whet.training.update import token_scores
    from whet.types import Group, Prompt

    dtype, tolerance = GAPS[precision]
    policy, engine, loaded = engine_on("cuda", dtype)
    samples = engine.generate(questions(loaded, 16, copies=4), sampling)
    batch = token_batch([Group(Prompt("q", (), "?"), tuple(samples))])
    found = token_scores(policy, batch, sampling.temperature, micro_batch_tokens=2000)
    gap = (found.logp - batch.behavior_logp)[batch.action].abs()
    assert len(gap) > 200 and float(gap.mean()) < tolerance
    assert float(batch.behavior_logp[batch.action].std()) > 10 * tolerance


def test_greedy_completions_are_those_of_the_cpu():
    sampling = Sampling(max_new_tokens=40, temperature=0)
    written = {}
    for device in ("cpu", "cuda"):
        _, engine, loaded = engine_on(device)
        written[device] = [sample.completion for sample in engine.generate(questions(loaded, 40), sampling)]
    assert written["cuda"] == written["cpu"] and len(set(written["cpu"])) >= 5


def test_logp_is_that_of_the_cpu():
    tokens, action = torch.arange(2, 40)[None] % 30, torch.ones(1, 38, dtype=torch.bool)
    action[0, :3] = False
    found = {}
    for device in ("cpu", "cuda"):
        policy, _, _ = engine_on(device)
        found[device] = token_logp(policy, tokens.to(device), action.to(device)).logp.detach().cpu()
    torch.testing.assert_close(found["cuda"], found["cpu"], rtol=1e-4, atol=1e-3)
    assert found["cpu"].abs().mean() > 0.1


@pytest.mark.parametrize("precision", GAPS)
def test_a_shared_prompt_is_computed_once(precision):
    """A shared-prefix batch against padded rows: values and gradients as near as two paddings are to each other."""
    dtype, tolerance = GAPS[precision]
    policy, _, _ = engine_on("cuda", dtype)
    tokens = (torch.arange(60, device="cuda")[None] * 7 + torch.arange(12, device="cuda")[:, None]) % 30 + 2
    tokens[:, :30] = tokens[::4, :30].repeat_interleave(4, 0)
    action = torch.zeros_like(tokens, dtype=torch.bool)
    action[:, 30:] = torch.arange(30, device="cuda") < torch.arange(12, 24, device="cuda")[:, None]
    found = []
    for packed in (True, False):
        policy.model.zero_grad()
        scores = token_logp(policy, tokens, action, details=Details(packed=packed))
        (scores.logp.sum() / 100).backward()
        found.append((scores.logp.detach(), [each.grad.clone() for each in policy.model.parameters()]))
    gap = (found[0][0] - found[1][0])[action].abs().mean()
    assert float(gap) < tolerance and float(found[1][0][action].std()) > 0.1
    for mine, theirs in zip(found[0][1], found[1][1], strict=True):
        assert float((mine - theirs).norm()) <= 3 * tolerance * float(theirs.norm()) + 1e-6


def test_ragged_kernels_round_as_padded_ones_do(monkeypatch):
    """Half precision without padding is as near to single precision as half precision with masks."""
    import transformers

    from whet.model import shared_prefix_attention

    torch.manual_seed(0)
    settings = {"vocab_size": 61, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings, **heads)).cuda()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0 if parameter.ndim > 1 else 1.0)
    stream = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 61, (10, 150), generator=stream).cuda()
    action = torch.zeros_like(tokens, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(
        [(90, 40), (90, 1), (9, 141), (90, 55), (9, 3), (9, 70), (33, 20), (90, 17)]
    ):
        tokens[row, :prompt] = tokens[{90: 0, 9: 2, 33: 6}[prompt], :prompt]
        action[row, prompt : prompt + completion] = True

    def outcome(dtype, packed=True):
        lm = causal_lm(model, dtype)
        assert shared_prefix_works(lm)
        model.zero_grad()
        logp = token_logp(lm, tokens, action, details=Details(packed=packed)).logp
        (logp * torch.linspace(-1, 2, action.numel(), device="cuda").reshape(action.shape)).sum().backward()
        return torch.cat([logp.detach()[action], *(each.grad.flatten() for each in model.parameters())])

    calls, kernel = [], shared_prefix_attention.ragged_attention
    monkeypatch.setattr(shared_prefix_attention, "ragged_attention", lambda *values: calls.append(1) or kernel(*values))
    exact, ragged = outcome(torch.float32, packed=False), outcome(torch.bfloat16)
    assert len(calls) >= 3
    monkeypatch.setattr(shared_prefix_attention, "ragged_works", lambda *values: False)
    calls.clear()
    bundled, padded = outcome(torch.bfloat16), outcome(torch.bfloat16, packed=False)
    single = outcome(torch.float32)
    assert not calls and float((single - exact).norm() / exact.norm()) < 1e-4
    errors = [float((each - exact).norm() / exact.norm()) for each in (ragged, bundled, padded)]
    assert errors[0] < 1.3 * max(errors[1:]) < 0.1, errors


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_of_three_steps(tmp_path, precision):
    run = whet.train(
        "grpo",
        config={"model": {"device": "cuda", "precision": precision}},
        steps=3,
        folder=str(tmp_path / "run"),
        batch={"prompts_per_step": 4, "group_size": 4, "updates_per_step": 2},
        eval={"prompts": 8},
        report={"save_every": 2},
        console=False,
    )
    steps = [line for line in read_metrics(run.folder) if "eval" not in line]
    assert run.status == "finished" and len(steps) == 3
    assert all(step["metrics"]["sampler_gap"] < GAPS[precision][1] for step in steps)
    assert any(step["metrics"]["gradient_norm"] > 0 for step in steps)
    resumed = whet.resume(run.folder, steps=4, console=False)
    assert (resumed.status, resumed.steps) == ("finished", 4)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_imitation_on_the_device(tmp_path, packed):
    assert shared_prefix_works(engine_on("cuda")[0])
    run = whet.train(
        "sft",
        config={"model": {"device": "cuda"}},
        steps=3,
        folder=str(tmp_path / "run"),
        batch={"rows_per_step": 8, "packed": packed},
        eval={"prompts": 0},
        console=False,
    )
    losses = [line["metrics"]["loss"] for line in read_metrics(run.folder) if "eval" not in line]
    assert run.status == "finished" and len(losses) == 3 and all(loss > 0 for loss in losses)
