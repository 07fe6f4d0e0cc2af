"""The step of small models on a CPU: rows that hold their prompts' keys, and columns that go round."""

import copy

import pytest
import torch
import transformers

from whet.model import decode_state, ring_decode
from whet.model.block import blocks_of
from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.decode_state import BatchShape
from whet.model.fused_decode import FusedDecoder, fused_decoder
from whet.model.hooked_decode import disagreement, hooked_decoder
from whet.model.ring_decode import LARGEST_COPIES, PACKING_STEPS, RingDecoder

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
KINDS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "biased": lambda: transformers.Qwen2Config(**SMALL),
    "head_norms": lambda: transformers.Qwen3Config(**SMALL, head_dim=8),
    "olmo2": lambda: transformers.Olmo2Config(**SMALL),
    "one_head": lambda: transformers.LlamaConfig(**{**SMALL, "num_key_value_heads": 1}),
    "yarn": lambda: transformers.LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}
    ),
}


def model_of(kind: str) -> torch.nn.Module:
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(KINDS[kind]()).eval()
    with torch.no_grad():  # norms and biases start as ones and zeros, which would hide one left out
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def row_decoder(model: torch.nn.Module) -> RingDecoder:
    decoder = fused_decoder(hooked_decoder(causal_lm(model))).suited(BatchShape(4, 2, 8, 8))
    assert isinstance(decoder, RingDecoder)
    return decoder


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_steps", [0, PACKING_STEPS])
def test_rows_that_come_late_and_move_give_the_models_logits(kind, num_steps):
    """Three rows; one is replaced after three steps by an answer to a longer prompt, then two are moved together."""
    model = model_of(kind)
    decoder = row_decoder(copy.deepcopy(model))  # one that runs cannot be asked at the same time
    prompts = [[7, 8, 9], [11, 12, 13, 14, 15]]
    padded = torch.tensor([prompts[0] + [0, 0], prompts[1]])
    state = decoder.state(BatchShape(3, 2, 5, 5))
    draw = torch.Generator().manual_seed(2)

    def advanced(texts: list[list[int]]) -> None:
        tokens = torch.randint(1, 61, (len(texts),), generator=draw)
        found = decoder.step(tokens, state)
        state.count[: len(texts)] += 1
        for row, text in enumerate(texts):
            text.append(int(tokens[row]))
            torch.testing.assert_close(found[row], model(torch.tensor([text])).logits[0, -1], rtol=1e-4, atol=1e-4)

    with decoder.running(decoder.gathered(num_steps)):
        decoder.prefill(padded, [3, 5], [0, 1], state)
        texts = [list(prompts[0]), list(prompts[1]), list(prompts[0])]
        state.enter([0, 1, 2], [0, 1, 0])
        state.seat([0, 1, 0], 5)
        for _ in range(3):
            advanced(texts)
        texts[0] = list(prompts[1])
        state.enter([0], [1])
        state.seat([1, 1, 0], 5)
        for _ in range(2):
            advanced(texts)
        state.move_rows([2], [1], 5)
        texts = [texts[0], texts[2]]
        texts[1] = list(prompts[0])
        state.enter([1], [0])
        state.seat([1, 0], 5)
        for _ in range(2):  # the columns have gone round: the first row overwrites those of its predecessor
            advanced(texts)


@torch.no_grad()
def test_a_moved_row_keeps_what_it_has_read():
    model = model_of("llama")
    decoder = row_decoder(model)
    state = decoder.state(BatchShape(2, 2, 4, 4))
    with decoder.running():
        decoder.prefill(torch.tensor([[7, 8, 9, 0], [11, 12, 13, 14]]), [3, 4], [0, 1], state)
        state.enter([0, 1], [0, 1])
        state.seat([0, 1], 4)
        decoder.step(torch.tensor([3, 4]), state)
        state.count += 1
        state.move_rows([1], [0], 1)
        state.seat([1], 4)
        found = decoder.step(torch.tensor([5]), state)
    theirs = model(torch.tensor([[11, 12, 13, 14, 4, 5]])).logits[0, -1]
    torch.testing.assert_close(found[0], theirs, rtol=1e-4, atol=1e-4)


def test_long_prompts_and_short_windows_are_left_to_the_shared_keys():
    base = hooked_decoder(causal_lm(model_of("llama")))
    decoder = fused_decoder(base)
    columns = LARGEST_COPIES // (2 * 2 * 8)  # two heads of eight numbers, keys and values
    assert isinstance(decoder.suited(BatchShape(8, 1, columns // 8, 4)), RingDecoder)
    assert decoder.suited(BatchShape(8, 1, columns // 8 + 1, 4)) is decoder
    window = transformers.MistralConfig(**SMALL, sliding_window=9)
    torch.manual_seed(5)
    decoder = fused_decoder(hooked_decoder(causal_lm(transformers.MistralForCausalLM(window).eval())))
    assert isinstance(decoder.suited(BatchShape(2, 1, 5, 4)), RingDecoder)
    assert decoder.suited(BatchShape(2, 1, 5, 5)) is decoder


def test_models_it_does_not_serve_say_why():
    halves = hooked_decoder(causal_lm(model_of("llama"), torch.bfloat16))
    assert RingDecoder.refusal(halves, blocks_of(halves.lm)) == "not everything is float32"
    base = hooked_decoder(causal_lm(model_of("biased")))
    assert not RingDecoder.refusal(base, blocks_of(base.lm))
    base.lm.model.lm_head.bias = torch.nn.Parameter(torch.zeros(61))
    assert "the vocabulary head has a bias" in RingDecoder.refusal(base, blocks_of(base.lm))
    base.lm.model.lm_head.bias = None
    base.lm.model.model.layers[1].self_attn.k_proj.bias = None
    assert "layers.1.self_attn has a bias on some of" in RingDecoder.refusal(base, blocks_of(base.lm))


def test_a_trial_ends_with_the_last_position_of_the_context(monkeypatch):
    decoder, read, hidden = hooked_decoder(causal_lm(model_of("llama"))), [], CausalLM.hidden
    monkeypatch.setattr(
        CausalLM, "hidden", lambda lm, tokens, mask, at: read.append(int(at.max())) or hidden(lm, tokens, mask, at)
    )
    assert not disagreement(decoder)
    assert max(read) == decoder.lm.model.config.max_position_embeddings - 1 and decoder.first_position == 0


BIASED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


@torch.no_grad()
@pytest.mark.parametrize("name", BIASED)
def test_a_bias_on_any_one_product_is_decoded_by_the_written_out_step(name):
    model = model_of("llama")
    for path, module in model.named_modules():
        if path.endswith(name):
            module.bias = torch.nn.Parameter(torch.randn(module.out_features))
    decoder = fused_decoder(hooked_decoder(causal_lm(model)))
    assert isinstance(decoder, FusedDecoder) and not disagreement(decoder)
    assert decoder.suited(BatchShape(2, 1, 5, 4)) is decoder  # the ring takes q, k and v together, and no others
    # the biases are those of now, and each counts
    shape = BatchShape(1, 1, 3, 2)
    logits = []
    for factor in (1.0, 0.0):
        for path, module in model.named_modules():
            if path.endswith(name):
                module.bias.mul_(factor)
        state = decoder.state(shape)
        with decoder.running():
            decoder.prefill(torch.tensor([[4, 5, 6]]), (3,), (0,), state)
            state.enter((0,), (0,))
            state.seat((0,), 3)
            state.completion_width = 1
            logits.append(decoder.step(torch.tensor([7]), state))
        theirs = model(input_ids=torch.tensor([[4, 5, 6, 7]])).logits[:, -1]
        assert (logits[-1] - theirs).abs().max() < 1e-4 * theirs.abs().max()
    assert (logits[0] - logits[1]).abs().max() > 1e-3


@torch.no_grad()
def test_a_model_with_every_bias_is_decoded_by_the_written_out_step():
    config = transformers.LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True)
    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM(config).eval()
    for path, values in model.named_parameters():
        if path.endswith("bias"):
            values.normal_()
    decoder = fused_decoder(hooked_decoder(causal_lm(model)))
    assert isinstance(decoder, FusedDecoder) and not disagreement(decoder)


@torch.no_grad()
def test_no_product_needs_an_operator_of_one_library(monkeypatch):
    """The same logits with oneDNN off and its operators out of reach."""
    monkeypatch.delattr(torch.ops, "mkldnn", raising=False)
    with torch.backends.mkldnn.flags(enabled=False):
        base = hooked_decoder(causal_lm(model_of("llama")))
        stack = blocks_of(base.lm)
        assert not disagreement(FusedDecoder(base, stack)) and not disagreement(RingDecoder(base, stack))


@torch.no_grad()
def test_wide_products_are_taken_in_parts(monkeypatch):
    monkeypatch.setattr(ring_decode, "LARGEST_PART", SMALL["hidden_size"] * SMALL["intermediate_size"] // 4)
    model = model_of("llama")
    decoder = row_decoder(model)
    state = decoder.state(BatchShape(1, 1, 4, 4))
    weights = decoder.gathered()
    assert [len(layer.widen) for layer in weights[0]] == [8, 8]  # the gate's four, and those of the other
    with decoder.running(weights):
        decoder.prefill(torch.tensor([[7, 8, 9, 10]]), [4], [0], state)
        state.enter([0], [0])
        state.seat([0], 4)
        found = decoder.step(torch.tensor([3]), state)
    theirs = model(torch.tensor([[7, 8, 9, 10, 3]])).logits[0, -1]
    torch.testing.assert_close(found[0], theirs, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("columns", [False, True])
def test_the_head_of_a_step_writes_over_the_logits_of_the_last_one(monkeypatch, columns):
    asked = []
    monkeypatch.setattr(decode_state, "by_columns", lambda *sizes: asked.append(sizes) or columns)
    weight, states = torch.randn(61, 8), torch.randn(3, 5, 8)
    head = decode_state.StepHead(weight)
    first = head(states[0])
    torch.testing.assert_close(first, states[0] @ weight.t())
    kept, second = first.clone(), head(states[1])
    torch.testing.assert_close(second, states[1] @ weight.t())
    assert second.is_contiguous() and second.data_ptr() == first.data_ptr() and not torch.equal(first, kept)
    fewer = head(states[2, :2])  # rows that are gone
    torch.testing.assert_close(fewer, states[2, :2] @ weight.t())
    assert fewer.is_contiguous() and set(asked) == {(5, 61, 8), (2, 61, 8)}


@pytest.mark.parametrize(
    ("arm", "rows", "width", "columns"),
    [
        *[(False, rows, 256, rows in (4, 8, 16)) for rows in (1, 3, 4, 8, 16, 17, 24, 48)],
        *[(False, rows, 576, rows not in (3, 20, 56)) for rows in (3, 4, 16, 20, 24, 48, 56)],
        *[(True, rows, 256, rows in (8, 64)) for rows in (4, 7, 8, 64, 65)],
    ],
)
def test_heads_are_taken_by_columns_where_that_was_measured_to_be_quicker(monkeypatch, arm, rows, width, columns):
    monkeypatch.setattr(decode_state, "IS_ARM", arm)
    assert decode_state.by_columns(rows, 49157, width) == columns
    assert not decode_state.by_columns(rows, decode_state.LARGE_VOCABULARY - 1, width)
