"""A scalar head on a language model: scored at the token that is asked for, and saved as a classifier."""

import pytest
import torch

from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.scalar_head import padding_token, scalar_model
from whet.model.token_logp import packs
from whet.types import WhetError

TOKENS = torch.tensor([[5, 6, 7, 8, 9, 1], [5, 6, 7, 11, 1, 0], [5, 6, 7, 0, 0, 0], [4, 1, 0, 0, 0, 0]])
LENGTHS = torch.tensor([6, 5, 3, 2])
LAST = torch.arange(6) == LENGTHS[:, None] - 1
SHARED = torch.tensor([3, 3, 3, 1])


def tiny_qwen2():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=260, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=96, bos_token_id=0, eos_token_id=1, pad_token_id=None,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


@pytest.fixture(params=["llama", "untied_llama", "qwen2", "gpt2"])
def language(request, make_llama, gpt2):
    makers = {"llama": make_llama, "untied_llama": lambda: make_llama(tied=False), "qwen2": tiny_qwen2}
    model = gpt2 if request.param == "gpt2" else makers[request.param]()
    return causal_lm(model)


def test_the_saved_classifier_gives_the_same_scores(language, tmp_path):
    from transformers import AutoModelForSequenceClassification

    judge = scalar_model(language, "sequence", seed=5, end_tokens=(1, 7))
    found = judge.scores(TOKENS, LAST, SHARED)[:, 0]
    assert found.abs().min() > 1e-3 and len(set(found.tolist())) == 4
    judge.model.save_pretrained(tmp_path)
    saved, loading = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    assert saved.config.num_labels == 1
    saved.eval()
    there = torch.arange(6) < LENGTHS[:, None]
    filled = torch.where(there, TOKENS, saved.config.pad_token_id)
    with torch.no_grad():
        scores = saved(input_ids=filled, attention_mask=there.long()).logits[:, 0]
    torch.testing.assert_close(found, scores, rtol=0, atol=1e-5)


def test_steps_are_scored_by_a_token_classifier(make_llama, tmp_path):
    from transformers import AutoModelForTokenClassification

    judge = scalar_model(causal_lm(make_llama()), "token", seed=5)
    scored = torch.zeros_like(LAST)
    scored[0, [3, 5]] = scored[1, 4] = scored[3, 0] = True
    found = judge.scores(TOKENS, scored, SHARED)[:, 0]
    judge.model.save_pretrained(tmp_path)
    saved = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        logits = saved(input_ids=TOKENS).logits[..., 0]
    torch.testing.assert_close(found, logits[scored], rtol=0, atol=1e-5)
    assert found.abs().max() > 1e-2


def test_sharing_an_opening_changes_no_score_and_no_gradient(language):
    judge = scalar_model(language, "sequence", seed=5)
    assert packs(judge.lm)
    gradients = []
    for shared in (SHARED, torch.ones_like(SHARED), torch.zeros_like(SHARED)):
        judge.model.zero_grad()
        scores = judge.scores(TOKENS, LAST, shared)[:, 0]
        (scores * torch.tensor([1.0, -2.0, 0.5, 3.0])).sum().backward()
        gradients.append({name: value.grad.clone() for name, value in judge.model.named_parameters()})
    assert all(value.abs().sum() > 0 for name, value in gradients[0].items() if "k_proj.bias" not in name)
    for other in gradients[1:]:
        for name, value in gradients[0].items():
            torch.testing.assert_close(value, other[name], rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("kind", ["sequence", "token"])
def test_several_heads_are_labels_of_one_classifier(kind, make_llama, tmp_path):
    import transformers

    judge = scalar_model(causal_lm(make_llama()), kind, seed=5, end_tokens=(1, 7), heads=3)
    assert torch.equal(judge.head.weight[:1], scalar_model(causal_lm(make_llama()), kind, 5).head.weight)
    found = judge.scores(TOKENS, LAST, SHARED)
    assert found.shape == (4, 3) and len({round(value, 5) for value in found.flatten().tolist()}) == 12
    alone = scalar_model(causal_lm(make_llama()), kind, seed=5, end_tokens=(1, 7))
    assert alone.model.config.id2label == {0: "score"} and alone.model.config.label2id == {"score": 0}
    judge.note_scales([(0.0, 1.0), (0.5, 2.0), (-1.0, 3.0)])
    judge.model.save_pretrained(tmp_path)
    loader = getattr(transformers, f"AutoModelFor{kind.capitalize()}Classification")
    saved = loader.from_pretrained(tmp_path).eval()
    assert saved.config.num_labels == 3 and saved.config.id2label == {0: "score_1", 1: "score_2", 2: "score_3"}
    assert saved.config.score_members == [[0.0, 1.0], [0.5, 2.0], [-1.0, 3.0]]
    there = torch.arange(6) < LENGTHS[:, None]
    filled = torch.where(there, TOKENS, saved.config.pad_token_id)
    with torch.no_grad():
        logits = saved(input_ids=filled, attention_mask=there.long()).logits
    torch.testing.assert_close(found, logits if kind == "sequence" else logits[LAST], rtol=0, atol=1e-5)
    judge.note_scales(None)
    assert judge.model.config.score_members == [None, None, None]


def test_what_is_trained_is_trunk_and_head_only(make_llama):
    language = causal_lm(make_llama(tied=False))
    judge = scalar_model(language, "sequence", seed=5)
    names = {name for name, _ in judge.model.named_parameters()}
    assert "score.weight" in names and not any("lm_head" in name for name in names)
    trunk = dict(language.model.named_parameters())
    assert all(value is trunk[name] for name, value in judge.model.named_parameters() if name != "score.weight")


def test_the_head_is_drawn_by_its_seed(make_llama):
    heads = [scalar_model(causal_lm(make_llama()), "sequence", seed).head.weight for seed in (1, 1, 2)]
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])
    assert 0.1 < heads[0].std() < 0.5


def test_padding_is_no_token_that_a_row_ends_in():
    assert padding_token(10, {1, 9}, (None, 1, 4)) == 4
    assert padding_token(10, {1, 9}, (None, 1)) == 8
    assert padding_token(10, {1}, (12,)) == 9


def test_a_model_that_cannot_be_scored_is_refused(make_llama, gpt2):
    model = make_llama()
    whole = CausalLM(model, model, lambda logits: logits, True, True)
    with pytest.raises(WhetError, match="trunk cannot be told"):
        scalar_model(whole, "sequence", 0)
    with pytest.raises(WhetError, match="no linear `score` head"):
        scalar_model(causal_lm(gpt2), "token", 0)
