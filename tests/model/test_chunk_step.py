"""New tokens of rows that have keys already: the logits of the whole conversation, computed from scratch."""

import pytest
import torch
import transformers

from whet.model.block import blocks_of
from whet.model.causal_lm import causal_lm
from whet.model.chunk_step import chunk_of, chunk_step
from whet.model.cuda_step import Caches
from whet.model.fused_trunk import fused_states
from whet.model.fused_weights import fused_weights
from whet.model.shared_prefix import prompt_batch

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
    "three_to_one": lambda: transformers.LlamaConfig(**{**SMALL, "hidden_size": 48, "num_attention_heads": 6}),
}
PROMPTS = [[7, 8, 9], [11, 12, 13, 14, 15]]


def model_of(kind):
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(KINDS[kind]()).eval()
    with torch.no_grad():  # norms and biases start as ones and zeros, which would hide one left out
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def caches_of(lm, prompts, rows, own):
    """Buffers with the prompts in them; what nobody has written yet is not a number."""
    stack = blocks_of(lm)
    sizes, longest = stack.sizes, max(map(len, prompts)) + 2

    def cache(count, length):
        shape = (count, sizes.num_key_heads, length, sizes.head_size)
        return [torch.full(shape, float("nan")) for _ in stack.blocks]

    caches = Caches(
        stack.rotation(torch.arange(64)),
        cache(len(prompts), longest),
        cache(len(prompts), longest),
        torch.tensor([len(each) for each in prompts], dtype=torch.int32),
        torch.full((len(prompts), rows), -1, dtype=torch.int32),
        torch.full((rows,), -1, dtype=torch.int32),
        cache(rows, own),
        cache(rows, own),
    )
    batch = prompt_batch(prompts, torch.device("cpu"))

    def keep(number, key, value):
        for mine, theirs in ((caches.prompt_k[number], key), (caches.prompt_v[number], value)):
            for slot, index in enumerate(batch.layout.prompt_index[torch.tensor(batch.prompt_of_row)]):
                length = len(prompts[slot])
                mine[slot, :, :length] = theirs[index[:length]].transpose(0, 1)

    fused_states(lm, batch, keep)
    return caches


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_turns_of_ragged_rows_give_the_models_logits(kind):
    """Three rows of two prompts, in three passes: not all rows take part, and one is set back by two tokens."""
    model = model_of(kind)
    lm = causal_lm(model)
    weights = fused_weights(blocks_of(lm), torch.float32)
    caches = caches_of(lm, PROMPTS, rows=4, own=24)
    slots, own = {0: 1, 2: 0, 3: 1}, {0: [], 2: [], 3: []}
    stream = torch.Generator().manual_seed(2)
    for turn in ({0: (0, 6), 2: (0, 1), 3: (0, 3)}, {3: (3, 5), 0: (4, 2)}, {2: (1, 9), 3: (8, 1), 0: (6, 4)}):
        rows = list(turn)
        kept = [turn[row][0] for row in rows]
        new = [torch.randint(61, (turn[row][1],), generator=stream).tolist() for row in rows]
        chunk = chunk_of(rows, [slots[row] for row in rows], kept, new, torch.device("cpu"))
        found = chunk_step(weights, caches, chunk)
        for number, row in enumerate(rows):
            own[row] = own[row][: kept[number]] + new[number]
            expected = model(torch.tensor([PROMPTS[slots[row]] + own[row]])).logits[0, -1]
            torch.testing.assert_close(found[number], expected, rtol=1e-4, atol=1e-4)
