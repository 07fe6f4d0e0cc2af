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


def turned(heads, weight, tables, position, dtype):
    """[B, N, D] normed where asked and rotated, rounded where the kernel rounds."""
    heads, half = heads.float(), heads.shape[-1] // 2
    if weight is not None:
        heads = heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + 1e-5) * weight
        heads = heads.to(dtype).float()
    cosine, sine = (each[position][:, None] for each in tables)
    return (heads * cosine + torch.cat([-heads[..., half:], heads[..., :half]], -1) * sine).to(dtype).float()


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("shape", [(6, 2, 32), (9, 3, 64), (8, 8, 128)])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("parts", [0, 1, 3])
def test_attention_over_the_prompt_and_over_what_was_written(precision, shape, normed, parts):
    from whet.model import decode_kernels

    dtype, tolerance = DTYPES[precision]
    heads, key_heads, size = shape
    rows, num_prompts, longest, budget = 5, 3, 192, 70
    qkv = noise(rows, (heads + 2 * key_heads) * size, dtype=dtype)
    prompt_k, prompt_v = (noise(num_prompts, key_heads, longest, size, dtype=dtype, seed=s) for s in (1, 2))
    own_k, own_v = (noise(rows, key_heads, budget, size, dtype=dtype, seed=s) for s in (3, 4))
    lengths, members, slot = (
        torch.tensor(each, dtype=torch.int32, device="cuda")
        for each in ([130, 3, 77], [[4, 0, -1], [1, 2, 3], [-1, -1, -1]], [0, 1, 1, 1, 0])
    )
    written = torch.tensor([0, 69, 5, 64, 33], device="cuda")
    position = lengths[slot].long() + written
    angle = noise(300, size // 2, seed=5)
    tables = tuple(torch.cat([each, each], 1) for each in (angle.cos(), angle.sin()))
    norms = (noise(size, seed=6), noise(size, seed=7)) if normed else None
    about = decode_kernels.Heads(heads, key_heads, size, size**-0.5, 1e-5, tables, norms)
    prompts = decode_kernels.PromptCache(prompt_k, prompt_v, lengths, members, slot)
    out = torch.full((rows, heads * size), 7.0, dtype=dtype, device="cuda")
    shares = None
    if parts:
        shares = decode_kernels.PromptShares(
            noise(parts, rows, heads), noise(parts, rows, heads), noise(parts, rows, heads, size)
        )
        decode_kernels.prompt_shares(qkv, position, about, prompts, shares)
    before_k, before_v = own_k.clone(), own_v.clone()
    decode_kernels.attention(qkv, (position, written), about, prompts, (own_k, own_v), shares, out)
    query, key, value = qkv.view(rows, -1, size).split([heads, key_heads, key_heads], 1)
    query, key = (turned(each, norms and norms[n], tables, position, dtype) for n, each in enumerate((query, key)))
    for row in range(rows):
        prompt, own = int(slot[row]), int(written[row])
        length = int(lengths[prompt])
        torch.testing.assert_close(own_k[row, :, own].float(), key[row], rtol=tolerance, atol=tolerance)
        assert torch.equal(own_v[row, :, own], value[row])
        assert torch.equal(own_k[row, :, :own], before_k[row, :, :own])
        keys = torch.cat([prompt_k[prompt, :, :length], before_k[row, :, :own], key[row][:, None].to(dtype)], 1).float()
        values = torch.cat([prompt_v[prompt, :, :length], before_v[row, :, :own], value[row][:, None]], 1).float()
        keys, values = (each.repeat_interleave(heads // key_heads, 0) for each in (keys, values))
        score = (query[row][:, None] @ keys.transpose(1, 2)) * size**-0.5
        expected = (score.softmax(-1) @ values)[:, 0].flatten()
        torch.testing.assert_close(out[row].float(), expected, rtol=tolerance, atol=tolerance)


SAMPLINGS = {
    "plain": {},
    "cool": {"temperature": 0.6},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 50},
    "top_p": {"top_p": 0.9, "temperature": 0.7},
    "min_p": {"min_p": 0.05},
    "all": {"top_k": 40, "top_p": 0.8, "min_p": 0.02, "temperature": 1.3},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", SAMPLINGS)
def test_sample_inverts_the_cumulative_distribution(dtype, kind):
    from whet.model import decode_kernels
    from whet.rollout.sampling import draw, kept_tokens
    from whet.types import Sampling

    sampling = Sampling(keeps_support=True, **SAMPLINGS[kind])
    logits = 3 * noise(64, 9001, dtype=dtype)
    uniform = torch.rand(64, device="cuda", generator=torch.Generator(device="cuda").manual_seed(5))
    log, drawn = open_log(64, 80), torch.arange(64, device="cuda")
    log._cursor += drawn
    ring = decode_kernels.SupportRing(
        torch.full((64, 4, 4096), -1, dtype=torch.int32, device="cuda"),
        torch.zeros(64, 4, dtype=torch.int32, device="cuda"),
    )
    decode_kernels.sample(logits, uniform, sampling, log.state, ring if sampling.truncates else None)
    token, logp = log.last.clone(), log._logp[log._base + drawn]
    expected = draw(logits, uniform, sampling)
    same = token == expected.token
    assert same.sum() >= 62  # float noise may tip a draw over
    torch.testing.assert_close(logp[same], expected.logp[same], rtol=1e-4, atol=1e-4)
    if sampling.truncates:
        kept = kept_tokens(logits.float() / sampling.temperature, sampling)
        equal = 0
        for row in range(64):
            ids = ring.ids[row, row % 4, : ring.counts[row, row % 4]].tolist()
            equal += ids == kept[row].nonzero()[:, 0].tolist()
        assert equal >= 62
    decode_kernels.sample(logits, torch.ones_like(uniform), sampling, log.state)
    assert log._logp.isfinite().all() and ((log.last >= 0) & (log.last < 9001)).all()
    # weights that have diverged must not end in an index out of bounds
    decode_kernels.sample(torch.full_like(logits, float("nan")), uniform, sampling, log.state)
    assert ((log.last >= 0) & (log.last < 9001)).all()


def open_log(rows, budget, ends=()):
    """Rows that have just begun, with different budgets."""
    from whet.rollout.scheduler import TokenLog

    log = TokenLog(rows, budget, torch.tensor(ends, dtype=torch.long), torch.device("cuda"))
    streams = torch.rand(rows, budget, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1))
    log.open(torch.arange(rows, device="cuda"), streams, budget - torch.arange(rows, device="cuda") % 5)
    return log


@pytest.mark.parametrize("ends", [(), (3,), (5, 11)])
def test_a_step_notes_what_it_draws_as_the_log_does(ends):
    from whet.model import decode_kernels
    from whet.rollout.sampling import draw
    from whet.types import Sampling

    ours, theirs, sampling, width, active = open_log(40, 12, ends), open_log(40, 12, ends), Sampling(), 24, 33
    embedding, rows = noise(13, width, dtype=torch.bfloat16), slice(0, active)
    starts, read = torch.arange(40, device="cuda") * 3, torch.arange(40, device="cuda") % 4
    logits = noise(active, 13)
    for step in range(14):
        position, written = (torch.empty(active, dtype=torch.long, device="cuda") for _ in range(2))
        uniform, residual = torch.empty(active, device="cuda"), torch.empty(active, width, device="cuda")
        decode_kernels.begin(ours.state, starts, read, embedding, 110, (position, written, uniform, residual))
        place = (read[rows] + theirs.counts(active) - 1).masked_fill(theirs.done[rows], -1)
        assert torch.equal(written, place) and torch.equal(position, (starts[rows] + place).clamp(0, 109))
        assert torch.equal(uniform, theirs.uniform(rows))
        assert torch.equal(residual, embedding[theirs.last[rows]].float())
        logits = logits.roll(step, 0)
        decode_kernels.sample(logits, uniform, sampling, ours.state)
        theirs.record(rows, draw(logits, uniform, sampling))
        for mine, other in zip(ours.moving, theirs.moving, strict=True):
            assert torch.equal(mine, other)
        assert torch.equal(ours._tokens, theirs._tokens)
        torch.testing.assert_close(ours._logp, theirs._logp, rtol=1e-5, atol=1e-5)
    assert theirs.done[rows].all() and not theirs.done[active:].any()


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
@pytest.mark.parametrize("long", [False, True])
def test_completions_are_those_of_the_plain_engine(kind, rows_per_batch, temperature, long):
    """Also when rows leave and others take their slots, when few are left, and when prompts are read in parts."""
    from whet.model.causal_lm import causal_lm
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Sampling

    lm = causal_lm(tiny(kind, tie_word_embeddings=kind != "Qwen2"))
    sampling = Sampling(max_new_tokens=40, temperature=temperature)
    requests = requests_of((5, 70, 33, 12, 20, *((300,) if long else ())), copies=7)
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


class Numbers:
    def decode(self, tokens, skip_special_tokens=False):
        return "".join(f"<{token}>" for token in tokens)


@pytest.mark.parametrize("rows_per_batch", [16, 512])
@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 8},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"stop": ("1><", "7>")},
        {"top_k": 9, "top_p": 0.9, "stop": ("5>",)},
    ],
    ids=["top_k", "top_p", "min_p", "stop", "all"],
)
def test_common_settings_stay_on_the_graphs(settings, rows_per_batch):
    """And write what the plain engine writes, with the same supports and the same reasons to stop."""
    from whet.model.causal_lm import causal_lm
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Sampling

    lm = causal_lm(tiny("Llama"))
    sampling = Sampling(max_new_tokens=40, keeps_support=True, **settings)
    requests = requests_of((5, 70, 33, 12, 20), copies=7)
    fast = TorchEngine(lm, Numbers(), [7, 11], context=512, rows_per_batch=rows_per_batch)
    assert str(fast.path_for(sampling, 70)) == "CUDA graphs"
    written = fast.generate(requests, sampling)
    expected = TorchEngine(lm, Numbers(), [7, 11], context=512, fast=False).generate(requests, sampling)
    same, positions, kept_alike = 0, 0, 0
    for one, two in zip(written, expected, strict=True):
        assert one.support is None or len(one.support.counts) == one.num_actions
        if not torch.equal(one.tokens, two.tokens):
            continue
        same += 1
        assert one.stop == two.stop
        gap = (one.behavior_logp - two.behavior_logp).abs()[one.action]
        alike = torch.ones_like(gap, dtype=torch.bool)
        if sampling.truncates:
            mine, theirs = (each.support.ids.split(each.support.counts.tolist()) for each in (one, two))
            alike = torch.tensor([torch.equal(*ids) for ids in zip(mine, theirs, strict=True)])
        assert gap[alike].max() < 1e-4
        positions, kept_alike = positions + len(alike), kept_alike + int(alike.sum())
    assert same >= len(requests) - 2  # float noise may tip a draw over, or a token over a threshold
    assert kept_alike >= 0.99 * positions
    assert len({one.stop for one in written}) > 1


def test_graphs_and_caches_outlast_a_rollout_and_grow():
    from whet.model.causal_lm import causal_lm
    from whet.rollout.torch_engine import TorchEngine
    from whet.types import Sampling

    lm = causal_lm(tiny("Llama"))
    fast = TorchEngine(lm, Silent(), [7], context=512)
    plain = TorchEngine(lm, Silent(), [7], context=512, fast=False)
    small, large = requests_of((5, 33), copies=4), requests_of((5, 90, 33, 12, 150), copies=9)
    graphs = []
    for requests, budget in ((large, 30), (small, 20), (large, 30), (small, 40), (large, 40)):
        sampling = Sampling(max_new_tokens=budget)
        written, expected = fast.generate(requests, sampling), plain.generate(requests, sampling)
        same = sum(torch.equal(one.tokens, two.tokens) for one, two in zip(written, expected, strict=True))
        assert same >= len(requests) - 2
        graphs.append({graph for graph, _ in fast._graphs._graphs.values()})
    assert graphs[0] <= graphs[1] <= graphs[2] and not graphs[2] & graphs[3] and graphs[3] <= graphs[4]


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
