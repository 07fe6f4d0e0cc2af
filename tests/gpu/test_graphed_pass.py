"""A micro-batch as a CUDA graph: the scores and gradients of the pass without one, whatever the lengths of its rows."""

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none"),
]


def model_of(adapters):
    import transformers

    from whet.model.causal_lm import causal_lm
    from whet.model.lora import LowRank, add_adapters

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "llama", vocab_size=977, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).cuda()
    if adapters:
        add_adapters(model, LowRank(8, 16.0))
    return causal_lm(model, torch.bfloat16)


def rows_of(seed):
    """Sixteen completions to four prompts; the lengths differ from seed to seed, their sum does not."""
    stream = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 60, (8,), generator=stream)
    lengths = torch.cat([lengths, 64 - lengths])
    place = torch.arange(120)
    tokens = torch.randint(977, (16, 120), generator=stream)
    tokens[:, :50] = tokens[::4, :50].repeat_interleave(4, 0)
    return tokens, (place >= 50) & (place < 50 + lengths[:, None])


def passed(lm, tokens, action, coefficient, graphed, known):
    from whet.model.graphed_pass import graphed_scores
    from whet.model.token_logp import Details, token_logp

    if graphed:
        found = graphed_scores(lm, tokens, action, 0.9, coefficient if known else None)
        if found is None:
            return None
        if not known:
            (found[0] * coefficient).sum().backward()
        return found[0].detach()
    details = Details(coefficient=(lambda _, window: coefficient[window]) if known else None)
    logp = token_logp(lm, tokens, action, 0.9, None, details).logp[action.cuda()]
    (logp * coefficient).sum().backward()
    return logp.detach()


def gradients(lm):
    return {name: each.grad.clone() for name, each in lm.model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_graph_is_the_pass_itself(adapters, known):
    from whet.model.graphed_pass import graphed_refusal
    from whet.model.lora import merge_adapters

    lm = model_of(adapters)
    assert graphed_refusal(lm) == ""
    optimizer = torch.optim.AdamW([each for each in lm.model.parameters() if each.requires_grad], 1e-2, fused=True)
    replayed = 0
    for step in range(5):
        parts = []
        for number in range(2):
            tokens, action = rows_of(10 * step + number)
            count = int(action.sum())
            parts.append((tokens, action, torch.randn(count, device="cuda") / count))
        found = []
        for graphed in (False, True):
            lm.model.zero_grad(set_to_none=True)
            logp = [passed(lm, *each, graphed, known) for each in parts]
            replayed += graphed and all(each is not None for each in logp)
            logp = [
                passed(lm, *each, False, known) if one is None else one for each, one in zip(parts, logp, strict=True)
            ]
            found.append((logp, gradients(lm)))
        for ours, theirs in zip(found[1][0], found[0][0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-2)
        assert found[0][1].keys() == found[1][1].keys()
        for name, theirs in found[0][1].items():
            assert (found[1][1][name] - theirs).norm() <= 2e-2 * theirs.norm(), (step, name)
        optimizer.step()
        merge_adapters(lm.model)
    assert replayed >= 3


def test_a_gradient_that_comes_too_late_is_an_error():
    from whet.model.graphed_pass import graphed_scores

    lm = model_of(False)
    rows = rows_of(0)
    found = [graphed_scores(lm, *rows, 1.0, None) for _ in range(3)]
    assert found[0] is None and found[1] is not None and found[2] is not None
    with pytest.raises(RuntimeError, match="overwritten"):
        found[1][0].sum().backward()
    found[2][0].sum().backward()
