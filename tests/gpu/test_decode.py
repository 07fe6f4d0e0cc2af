"""The decode step as a CUDA graph: its kernels against plain torch, its completions against the plain engine."""

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none"),
]

DTYPES = {"fp32": (torch.float32, 2e-5), "bf16": (torch.bfloat16, 2e-2)}


def noise(*sizes, dtype=torch.float32, seed=0):
    stream = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(sizes, generator=stream, device="cuda", dtype=torch.float32).to(dtype)


@pytest.mark.parametrize("precision", DTYPES)
def test_add_norm(precision):
    from whet.model import layer_kernels

    dtype, tolerance = DTYPES[precision]
    x, y, weight = noise(7, 96), noise(7, 96, dtype=dtype, seed=1), noise(96, seed=2)
    out, before = torch.empty(7, 96, dtype=dtype, device="cuda"), x.clone()
    layer_kernels.add_norm(x, y, weight, 1e-5, out)
    total = before + y.float()
    torch.testing.assert_close(x, total)
    expected = total * (total.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("precision", DTYPES)
def test_gated(precision):
    from whet.model import layer_kernels

    dtype, tolerance = DTYPES[precision]
    x = noise(5, 2 * 1100, dtype=dtype)
    out = torch.empty(5, 1100, dtype=dtype, device="cuda")
    layer_kernels.gated(x, out)
    expected = torch.nn.functional.silu(x[:, :1100].float()) * x[:, 1100:].float()
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("shape", [(6, 2, 32), (9, 3, 64), (8, 8, 128)])
def test_attention_over_the_prompt_and_over_what_was_written(precision, shape):
    from whet.model import decode_kernels

    dtype, tolerance = DTYPES[precision]
    heads, key_heads, size = shape
    rows, num_prompts, longest, budget = 5, 2, 192, 70
    query = noise(rows, heads, size, dtype=dtype)
    prompt_k, prompt_v = (noise(num_prompts, key_heads, longest, size, dtype=dtype, seed=s) for s in (1, 2))
    own_k, own_v = (noise(rows, key_heads, budget, size, dtype=dtype, seed=s) for s in (3, 4))
    lengths = torch.tensor([130, 3], dtype=torch.int32, device="cuda")
    members = torch.tensor([[4, 0, -1], [1, 2, 3]], dtype=torch.int32, device="cuda")
    written = torch.tensor([0, 69, 5, 64, 33], device="cuda")
    out = torch.empty(rows, heads, size, dtype=dtype, device="cuda")
    scratch = (noise(rows, heads), noise(rows, heads), noise(rows, heads, size), out)
    prompts = (prompt_k, prompt_v, lengths, members)
    decode_kernels.attention(query, prompts, (own_k, own_v), written, scratch, size**-0.5)
    for row, prompt in ((4, 0), (0, 0), (1, 1), (2, 1), (3, 1)):
        length, own = int(lengths[prompt]), int(written[row]) + 1
        keys = torch.cat([prompt_k[prompt, :, :length], own_k[row, :, :own]], 1).float()
        values = torch.cat([prompt_v[prompt, :, :length], own_v[row, :, :own]], 1).float()
        keys, values = (each.repeat_interleave(heads // key_heads, 0) for each in (keys, values))
        score = (query[row].float()[:, None] @ keys.transpose(1, 2)) * size**-0.5
        expected = (score.softmax(-1) @ values)[:, 0]
        torch.testing.assert_close(out[row].float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sample_inverts_the_cumulative_distribution(precision, temperature):
    from whet.model import decode_kernels
    from whet.rollout.sampling import draw
    from whet.types import Sampling

    dtype, _ = DTYPES[precision]
    logits = 3 * noise(64, 9001, dtype=dtype)
    uniform = torch.rand(64, device="cuda", generator=torch.Generator(device="cuda").manual_seed(5))
    token, logp = torch.zeros(64, dtype=torch.long, device="cuda"), torch.zeros(64, device="cuda")
    decode_kernels.sample(logits, uniform, temperature, token, logp)
    expected = draw(logits, uniform, Sampling(temperature=temperature))
    same = token == expected.token
    assert same.sum() >= 62  # float noise may tip a draw over
    torch.testing.assert_close(logp[same], expected.logp[same], rtol=1e-4, atol=1e-4)
    decode_kernels.sample(logits, torch.ones_like(uniform), temperature, token, logp)
    assert logp.isfinite().all()


def tiny(kind, **changes):
    import transformers

    settings = {
        "vocab_size": 300,
        "hidden_size": 192,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    if kind == "Qwen3":
        settings["head_dim"] = 32
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**settings, **changes})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).cuda().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(4 * parameter if parameter.ndim > 1 else parameter + 0.1 * torch.randn_like(parameter))
    return model


class Silent:
    def decode(self, tokens, skip_special_tokens=False):
        return ""


def requests_of(sizes, copies):
    from whet.types import Request

    stream = torch.Generator().manual_seed(1)
    prompts = [tuple(torch.randint(10, 300, (size,), generator=stream).tolist()) for size in sizes]
    return [Request(tokens, 100 * row + copy) for row, tokens in enumerate(prompts) for copy in range(copies)]


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "Olmo2"])
@pytest.mark.parametrize("rows_per_batch", [16, 512])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_completions_are_those_of_the_plain_engine(kind, rows_per_batch, temperature):
    """Also when rows leave and others take their slots, and when few are left."""
    from whet.model.causal_lm import causal_lm
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Sampling

    lm = causal_lm(tiny(kind, tie_word_embeddings=kind != "Qwen2"))
    sampling = Sampling(max_new_tokens=40, temperature=temperature)
    requests = requests_of((5, 70, 33, 12, 20), copies=7)
    fast = TorchEngine(lm, Silent(), [7, 11], context=512, rows_per_batch=rows_per_batch)
    plain = TorchEngine(lm, Silent(), [7, 11], context=512, fast=False)
    written, expected = fast.generate(requests, sampling), plain.generate(requests, sampling)
    assert fast.uses_graphs and not plain.uses_graphs
    same = sum(torch.equal(one.tokens, two.tokens) for one, two in zip(written, expected, strict=True))
    assert same >= len(requests) - 2  # float noise may tip a draw over
    for one, two in zip(written, expected, strict=True):
        if torch.equal(one.tokens, two.tokens):
            torch.testing.assert_close(one.behavior_logp, two.behavior_logp, rtol=0, atol=1e-4)
            assert one.stop == two.stop
    assert len({len(one.tokens) for one in written}) > 3 or temperature == 0


@pytest.mark.parametrize("copies", [3, 40])
def test_equal_prompts_that_are_no_neighbours(copies):
    """Also more of one than a program reads at once: then a prompt is held several times, and still computed once."""
    from whet.model.causal_lm import causal_lm
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Request, Sampling

    lm, sampling = causal_lm(tiny("Llama")), Sampling(max_new_tokens=24)
    prompts = [request.tokens for request in requests_of((9, 21, 5), copies=1)]
    requests = [Request(prompts[number % 3], number) for number in range(3 * copies)]
    fast = TorchEngine(lm, Silent(), [7], context=512)
    written = fast.generate(requests, sampling)
    expected = TorchEngine(lm, Silent(), [7], context=512, fast=False).generate(requests, sampling)
    assert fast.uses_graphs and str(fast.decode_path) == "CUDA graphs"
    same = sum(torch.equal(one.tokens, two.tokens) for one, two in zip(written, expected, strict=True))
    assert same >= 0.95 * len(requests)


def test_new_weights_are_taken_over():
    from whet.model.causal_lm import causal_lm
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Sampling

    lm = causal_lm(tiny("Llama"))
    requests, sampling = requests_of((9, 21), copies=4), Sampling(max_new_tokens=24)
    fast = TorchEngine(lm, Silent(), [7], context=512)
    before = fast.generate(requests, sampling)
    with torch.no_grad():
        for parameter in lm.model.parameters():
            parameter.mul_(0.9)
    fast.load(lm.model.state_dict(), 1)
    after = fast.generate(requests, sampling)
    expected = TorchEngine(lm, Silent(), [7], context=512, fast=False).generate(requests, sampling)
    assert sum(torch.equal(one.tokens, two.tokens) for one, two in zip(after, expected, strict=True)) >= 7
    assert sum(torch.equal(one.tokens, two.tokens) for one, two in zip(after, before, strict=True)) < 7


def test_a_model_of_another_build_is_left_to_the_plain_engine():
    import transformers

    from whet.model.causal_lm import causal_lm
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Sampling

    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=300, n_positions=128, n_embd=64, n_layer=2, n_head=2)
    lm = causal_lm(transformers.GPT2LMHeadModel(config).cuda().eval())
    engine = TorchEngine(lm, Silent(), [7], context=128)
    assert len(engine.generate(requests_of((9,), copies=3), Sampling(max_new_tokens=8))) == 3
    assert not engine.uses_graphs and "the trunk has no embed_tokens" in engine.decode_path.reason
