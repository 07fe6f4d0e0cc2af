"""Families of transformers, tiny and random: training and decoding against their own plain forward, beyond windows."""

import pytest
from families import families, gaps_of

FUSED, PACKED, PADDED = (
    "fused layers",
    "the model's own layers, shared prompts",
    "the model's own layers on padded rows",
)
STEP, BUFFERS, CACHE = "fused decoder", "the model's own layers on whet's buffers", "the model's own forward and cache"
ONE_LENGTH, NO_CACHE = f"{CACHE}, prompts of one length", "the model's own forward over whole rows, without a cache"

# what whet does with them
COMMON = {
    **dict.fromkeys(("llama", "llama yarn", "mistral", "mistral full", "ministral", "cwm", "olmo2"), (FUSED, STEP)),
    **dict.fromkeys(("qwen2", "qwen2 full", "qwen3", "seed_oss", "granite"), (FUSED, STEP)),
    **dict.fromkeys(("ministral3", "smollm3", "olmo3", "exaone4", "granite multipliers", "phi3"), (PACKED, BUFFERS)),
    **dict.fromkeys(("helium", "ernie4_5", "arcee", "apertus", "starcoder2", "stablelm"), (PACKED, BUFFERS)),
    **dict.fromkeys(("gemma", "gemma3_text", "hunyuan_v1_dense", "glm4", "qwen3_moe", "mixtral"), (PACKED, BUFFERS)),
    "llama biased": (PACKED, STEP),
    **dict.fromkeys(("gemma2", "gpt_oss", "lfm2", "falcon_h1"), (PADDED, CACHE)),
    "llama4_text": (PADDED, ONE_LENGTH),
    "rwkv": (PADDED, NO_CACHE),
}


# of every way of training and decoding, and of windows, norms and experts, one; the others are tried with the slow
# tests, as every family that is not named here: another one is computed as it is
QUICK = {
    *(
        "llama",
        "mistral",
        "olmo2",
        "qwen3",
        "phi3",
        "gemma3_text",
        "qwen3_moe",
        "llama biased",
        "gemma2",
        "llama4_text",
    ),
    "rwkv",
}


@pytest.mark.parametrize(
    "family", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COMMON]
)
def test_a_common_family_is_right_beyond_its_window(family):
    found = gaps_of(family)
    assert found.right, found
    training, decoding = COMMON[family]
    assert found.training.startswith(training) and found.decoding.startswith(decoding)


@pytest.mark.slow
def test_every_other_family_is_right_too():
    gaps = [gaps_of(family) for family in families() if family not in COMMON]
    wrong = [str(each) for each in gaps if not each.right]
    assert len(gaps) > 50 and not wrong, "\n".join(wrong)


def test_a_wrong_window_is_found(monkeypatch):
    """The comparison can fail: half a window is far from the model's own."""
    from whet.model import block

    right = block.layer_windows
    monkeypatch.setattr("whet.model.fused_trunk._refusal", lambda lm: "")
    monkeypatch.setattr(block, "layer_windows", lambda *asked: tuple(each and each // 2 for each in right(*asked)))
    found = gaps_of("mistral")
    assert found.training == "fused layers" and not found.right and found.logp > 1e-2 and found.gradient > 1e-2
