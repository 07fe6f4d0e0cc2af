"""The kernels of a layer against plain torch, and the written-out trunk on the device against the model's own."""

from dataclasses import replace

import pytest
import torch

from whet.model import layer_ops, norms

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none"),
]

DTYPES = {"fp32": (torch.float32, 3e-5), "bf16": (torch.bfloat16, 3e-2)}


def noise(*sizes, dtype=torch.float32, seed=0):
    stream = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(sizes, generator=stream, device="cuda", dtype=torch.float32).to(dtype)


def both(function, monkeypatch):
    """What the kernel gives, and what torch gives."""
    ours = function()
    with monkeypatch.context() as patch:
        patch.setattr(layer_ops, "kernels_for", lambda values: None)
        patch.setattr(norms, "kernels_for", lambda values: None)
        theirs = function()
    as_tuple = lambda found: found if isinstance(found, tuple) else (found,)  # noqa: E731
    return zip(as_tuple(ours), as_tuple(theirs), strict=True)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("width", [64, 576, 1536])
def test_norms(precision, width, monkeypatch):
    dtype, tolerance = DTYPES[precision]
    x, y, weight = noise(3000, width), noise(3000, width, dtype=dtype, seed=1), noise(width, seed=2)
    for ours, theirs in both(lambda: norms.added_and_normed(x, y, weight, 1e-5, dtype), monkeypatch):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    grad, carried = noise(3000, width, dtype=dtype, seed=3), noise(3000, width, seed=4)
    both_grads = both(lambda: tuple(vars(norms.norm_grad(x, weight, 1e-5, grad, carried)).values()), monkeypatch)
    for ours, theirs in both_grads:
        torch.testing.assert_close(ours, theirs, rtol=max(1e-3, tolerance), atol=1e-3 * float(theirs.abs().max()))


@pytest.mark.parametrize("precision", DTYPES)
def test_rotation(precision, monkeypatch):
    dtype, tolerance = DTYPES[precision]
    heads = noise(50, 9, 64, dtype=dtype)
    angle = noise(50, 64, seed=1)
    tables = (angle.cos(), angle.sin())
    for ours, theirs in both(lambda: layer_ops.rotated(heads.clone(), 7, tables), monkeypatch):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    for ours, theirs in both(lambda: layer_ops.rotated_back(heads.clone(), 7, tables), monkeypatch):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("precision", DTYPES)
def test_gates(precision, monkeypatch):
    dtype, tolerance = DTYPES[precision]
    gate_up, grad = noise(70, 2 * 1100, dtype=dtype), noise(70, 1100, dtype=dtype, seed=1)
    for ours, theirs in both(lambda: layer_ops.gated(gate_up), monkeypatch):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    for ours, theirs in both(lambda: layer_ops.gated_grad(gate_up, grad), monkeypatch):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_merged_adapters_are_rounded_at_random_and_right_on_average():
    from whet.model import layer_kernels

    whole, down = noise(200, 96 + 24).bfloat16(), (noise(24, 96, seed=1) * 1e-3).bfloat16()
    base, up = whole[:, :96], whole[:, 96:]
    exact = base.double() + up.double() @ down.double()
    drawn = torch.empty(300, 200, 96, dtype=torch.bfloat16, device="cuda")
    for seed, out in enumerate(drawn):
        layer_kernels.merged(whole, up, down, seed, out)
    again = torch.empty_like(drawn[0])
    layer_kernels.merged(whole, up, down, 0, again)
    assert torch.equal(again, drawn[0]) and not torch.equal(drawn[0], drawn[1])
    step = exact.abs() * 2**-7  # the most that two neighbours in bfloat16 are apart
    error = (drawn.double() - exact) / step.clamp(min=1e-9)
    assert float(error.abs().max()) <= 1 + 1e-3
    assert float(error.mean(0).abs().mean()) < 0.04 and abs(float(error.mean())) < 0.002
    whole[0, :96] = float("inf")
    layer_kernels.merged(whole, up, down, 0, again)
    assert bool(again[0].isinf().all()) and bool(again[1:].isfinite().all())


def test_a_recording_follows_its_tensors():
    from whet.model.cuda_graphs import Recording

    source, target, calls = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda"), []

    def work():
        calls.append(1)
        target.copy_(source * 2)

    recording = Recording([source, target])
    for value in range(5):
        source.fill_(value)
        recording.play(work)
        assert target.tolist() == [2.0 * value] * 3
    assert len(calls) == 2  # as it is, and recorded
    source.data = torch.full((3,), 7.0, device="cuda")
    for _ in range(3):
        recording.play(work)
        assert target.tolist() == [14.0] * 3
    assert len(calls) == 4


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "olmo2"])
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("recompute", ["none", "wide", "layers"])
def test_trunk(family, precision, recompute):
    import transformers

    from whet.model.causal_lm import causal_lm
    from whet.model.fused_trunk import fused_states, fused_works
    from whet.model.shared_prefix import shared_prefix_batch
    from whet.model.shared_prefix_attention import shared_prefix_states, trial_rows

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        family, vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).cuda()
    lm = causal_lm(model, DTYPES[precision][0])
    assert fused_works(lm)
    batch = shared_prefix_batch(*trial_rows(97, lm.device))
    gradients = []
    for states in (shared_prefix_states, fused_states):
        model.zero_grad(set_to_none=True)
        found = states(replace(lm, recompute=recompute) if states is fused_states else lm, batch)
        (found * torch.linspace(-1, 1, found.numel(), device="cuda").view_as(found)).sum().backward()
        gradients.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, theirs in gradients[0].items():
        gap = (theirs - gradients[1][name]).norm() / theirs.norm()
        assert gap < (1e-4 if precision == "fp32" else 6e-2), name


def test_a_models_own_layers_may_be_computed_again():
    import transformers

    from whet.model.causal_lm import causal_lm
    from whet.model.shared_prefix import shared_prefix_batch
    from whet.model.shared_prefix_attention import shared_prefix_states, trial_rows

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "llama", vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).cuda().train()
    lm = causal_lm(model, torch.bfloat16)
    batch = shared_prefix_batch(*trial_rows(97, lm.device))
    gradients = []
    for again in (False, True):
        if again:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.zero_grad(set_to_none=True)
        found = shared_prefix_states(lm, batch)
        (found * torch.linspace(-1, 1, found.numel(), device="cuda").view_as(found)).sum().backward()
        gradients.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, kept in gradients[0].items():
        torch.testing.assert_close(kept, gradients[1][name], rtol=1e-3, atol=1e-3 * float(kept.abs().max()))


def ragged_rows(groups):
    """Rows of prompts with completions of the given lengths: [(prompt, [completion, ...]), ...]."""
    stream = torch.Generator().manual_seed(1)
    width = max(prompt + max(completions) for prompt, completions in groups)
    tokens, action = [], []
    for number, (prompt, completions) in enumerate(groups):
        start = torch.randint(90, (prompt,), generator=stream)
        start[0] = number
        for length in completions:
            row = torch.cat([start, torch.randint(90, (width - prompt,), generator=stream)])
            place = torch.arange(width)
            tokens.append(row)
            action.append((place >= prompt) & (place < prompt + length))
    return torch.stack(tokens), torch.stack(action)


LAYOUTS = {
    "ragged": [(20, [33, 5, 1]), (137, [250]), (7, [18, 40]), (333, [1, 1]), (64, [64, 65, 300])],
    "wide groups": [(128, [512] * 8), (129, [511, 700, 3])],
    "lone rows": [(10, [1000]), (30, [77])],
    "long prompt": [(2000, [40] * 16)],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("heads", [(9, 3, 64), (12, 2, 128), (4, 4, 32), (2, 1, 256)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention(layout, heads, dtype):
    """Our kernels against float64, and no worse than torch's flash kernels."""
    from whet.model import ragged_attention
    from whet.model.shared_prefix import shared_prefix_batch
    from whet.model.shared_prefix_attention import attended

    num, keys, size = heads
    batch = shared_prefix_batch(*ragged_rows(LAYOUTS[layout]), torch.device("cuda"))
    side_by_side = noise(batch.size, num + 2 * keys, size, dtype=dtype)
    parts = side_by_side.split([num, keys, keys], 1)
    grad = noise(batch.size, num, size, dtype=dtype, seed=1)
    exact = [each.double().detach().requires_grad_() for each in parts]
    output = attended(batch, *exact, 0.3 / size**0.5)
    expected = [output.detach(), *torch.autograd.grad(output, exact, grad.double())]

    def errors():
        found, norm, kept = ragged_attention.ragged_forward(*parts, batch.segments, 0.3 / size**0.5)
        grads = ragged_attention.ragged_backward(grad, (*parts, found, norm), batch.segments, kept, 0.3 / size**0.5)
        each = [found, *grads.split([num, keys, keys], 1)]
        return [float((a.double() - b).norm() / b.norm()) for a, b in zip(each, expected, strict=True)]

    ours = errors()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged_attention, "_prefix_kernels", lambda query, key: None)
        theirs = errors()
    for mine, flash in zip(ours, theirs, strict=True):
        assert mine < max(1.2 * flash, 4e-3 if dtype == torch.bfloat16 else 5e-4), (ours, theirs)


def test_kernels_that_are_wrong_are_not_used(monkeypatch):
    from whet.model import prefix_attention_kernels, ragged_attention

    case = (torch.device("cuda", 0), torch.bfloat16, 6, 2, 64)
    ragged_attention._kernels_refusal.cache_clear()
    assert ragged_attention._kernels_refusal(*case) == ""
    right = prefix_attention_kernels.backward

    def wrong(grad, saved, segments, scale, targets):
        right(grad, saved, segments, scale, targets)
        targets[1][: segments.end_of_prompts] *= 0.9  # of keys of prompts alone

    ragged_attention._kernels_refusal.cache_clear()
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="not used: they differ"):
        patch.setattr(prefix_attention_kernels, "backward", wrong)
        assert "differ" in ragged_attention._kernels_refusal(*case)
    ragged_attention._kernels_refusal.cache_clear()


@pytest.mark.parametrize("precision", DTYPES)
def test_adapters(precision):
    import transformers

    from whet.model.causal_lm import causal_lm
    from whet.model.fused_trunk import fused_states, fused_works
    from whet.model.lora import LowRank, adapter_factors, add_adapters, merge_adapters
    from whet.model.shared_prefix import shared_prefix_batch
    from whet.model.shared_prefix_attention import shared_prefix_states, trial_rows

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "llama", vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).cuda()
    add_adapters(model, LowRank(8, 16.0))
    with torch.no_grad():
        for name, factor in adapter_factors(model).items():
            if name.endswith(".up"):
                factor.normal_(0, 0.05)
    merge_adapters(model)
    lm = causal_lm(model, DTYPES[precision][0])
    assert fused_works(lm)
    batch = shared_prefix_batch(*trial_rows(97, lm.device))
    gradients = []
    for states in (shared_prefix_states, fused_states):
        model.zero_grad(set_to_none=True)
        found = states(lm, batch)
        (found * torch.linspace(-1, 1, found.numel(), device="cuda").view_as(found)).sum().backward()
        gradients.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() == adapter_factors(model).keys()
    for name, theirs in gradients[0].items():
        gap = (theirs - gradients[1][name]).norm() / theirs.norm()
        assert gap < (1e-4 if precision == "fp32" else 6e-2), name


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("known", [False, True])
def test_head(precision, known, monkeypatch):
    from whet.model import head

    dtype, tolerance = DTYPES[precision]
    layer = torch.nn.Linear(48, 9001, bias=False).cuda()
    states, targets = noise(70, 48).requires_grad_(), torch.arange(70, device="cuda") * 128
    grad = noise(70, seed=5)
    found = []
    for kernels in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(head, "CHUNK_ELEMENTS", 9001 * 3)
            if not kernels:
                patch.setattr(head, "_kernels", lambda states: None)
            layer.weight.grad = states.grad = None
            coefficient = (lambda logp, window: grad[window]) if known else None
            logp, entropy = head.chunked_logp(head.VocabularyHead(layer), states, targets, 0.7, dtype, coefficient)
            (logp * grad).sum().backward()
            found.append((logp.detach(), entropy, states.grad, layer.weight.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))
