"""The copy of the policy that only writes: layers in the type of their products, embedding and head in float32."""

import torch

from tests.support.for_every import for_every
from whet.model.block import NotDescribed
from whet.model.causal_lm import causal_lm
from whet.model.fused_decode import fused_decoder
from whet.model.fused_trunk import fused_refusal
from whet.model.hooked_decode import hooked_decoder
from whet.training.distributed.shared_rollout import whole_copy


@for_every(("LlamaConfig", "Qwen2Config"), (True, False), (torch.float32, torch.bfloat16))
def test_a_copy_is_read_and_decoded_on_the_fast_paths(family, tied, dtype):
    """Slow paths were taken in silence: what was tried went by the embedding's type."""
    import transformers

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": tied}
    config = getattr(transformers, family)(**sizes, **heads)
    torch.manual_seed(0)
    copy = whole_copy(causal_lm(transformers.AutoModelForCausalLM.from_config(config), dtype))
    assert {weight.dtype for weight in copy.model.parameters()} == {torch.float32, dtype}
    assert copy.finest == dtype
    assert not (refusal := fused_refusal(copy)), refusal
    decoder = hooked_decoder(copy)
    assert not isinstance(decoder, NotDescribed), decoder
    assert not isinstance(fused_decoder(decoder), NotDescribed)
