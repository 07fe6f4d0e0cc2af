"""Learned rewards on tiny models made on the spot: what they score, how several agree, and what is refused."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.for_every import for_every
from whet.protocols import Reward
from whet.record.metrics.reward_model import ensemble_score
from whet.reward.combine import RewardPart
from whet.reward.find import find_reward, reward_with
from whet.reward.learned.network import Place, Tokens, batches, read_network
from whet.reward.learned.outcome import learned, length_slope
from whet.reward.learned.process import LearnedSteps, aggregated, learned_steps, step_ends
from whet.reward.steps import step_scorer, with_steps
from whet.types import Prompt, Sample, StopReason, WhetError

QUESTION = Prompt("q1", ({"role": "user", "content": "say a"},))
PLAIN = Prompt("q2", (), "say a ")
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'][0] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[a]{% endif %}"
)
CHARACTERS = "abcdefghijklmnopqrstuvwxyz +-.[]\n"
SPECIAL = ["<unk>", "<end>", "<sep>", "<cls>"]
VOCABULARY = {word: number for number, word in enumerate([*SPECIAL, *CHARACTERS])}
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def sample(completion):
    one = torch.ones(1)
    return Sample(one.long(), one.bool(), one, (0, 0), StopReason.END, completion)


def samples(*completions):
    return [sample(completion) for completion in completions]


def letters_tokenizer(pairs=False, template=TEMPLATE):
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    special = {"unk_token": "<unk>", "eos_token": "<end>"}
    if pairs:
        backend.post_processor = processors.TemplateProcessing(
            single="<cls> $A <sep>", pair="<cls> $A <sep> $B:1 <sep>:1", special_tokens=[("<cls>", 3), ("<sep>", 2)]
        )
        special |= {"sep_token": "<sep>", "cls_token": "<cls>", "pad_token": "<end>"}
        template = None
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    tokenizer.chat_template = template
    return tokenizer


def llama(kind, seed=0, **changes):
    import transformers

    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        **{
            "vocab_size": len(VOCABULARY),
            "max_position_embeddings": 64,
            "num_key_value_heads": 2,
            "pad_token_id": None,
            "initializer_range": 0.5,
            **SIZES,
            **changes,
        }
    )
    return getattr(transformers, f"Llama{kind}")(config).eval()


def saved(folder, model, tokenizer=None):
    model.save_pretrained(folder)
    (tokenizer or letters_tokenizer()).save_pretrained(folder)
    return str(folder)


def ids(text):
    return torch.tensor([[VOCABULARY[character] for character in text]])


@pytest.fixture(scope="module")
def scalar(tmp_path_factory):
    """A reward model of one label; and its folder."""
    model = llama("ForSequenceClassification", num_labels=1)
    return model, saved(tmp_path_factory.mktemp("scalar"), model)


def test_a_scalar_is_what_the_model_says(scalar):
    model, folder = scalar
    reward = learned(folder=folder)
    assert isinstance(reward, Reward) and reward.name == "learned" and reward.deterministic
    found = reward([QUESTION, QUESTION, PLAIN], samples("a", "a longer completion", "b"))
    texts = ("[u]say a[a]a", "[u]say a[a]a longer completion", "say a b")
    expected = [model(ids(text)).logits.item() for text in texts]
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(set(found)) == 3
    probability = learned(folder=folder, output="probability")([QUESTION], samples("a"))
    assert probability == pytest.approx([1 / (1 + math.exp(-expected[0]))], abs=1e-5)


def test_scores_do_not_depend_on_the_batch(scalar):
    completions = [chr(97 + number) * (1 + 3 * number) for number in range(12)]
    whole = learned(folder=scalar[1])([QUESTION] * 12, samples(*completions))
    for micro_batch_tokens in (1, 60):
        reward = learned(folder=scalar[1], micro_batch_tokens=micro_batch_tokens)
        assert reward([QUESTION] * 12, samples(*completions)) == pytest.approx(whole, abs=1e-5)


def test_batches_keep_the_budget():
    found = list(batches([5, 50, 7, 8, 5], 16))
    assert found == [[1], [3, 2], [0, 4]] and list(batches([], 16)) == []


def test_the_model_is_frozen(scalar):
    network, kind = read_network(Place(scalar[1]), ["token", "sequence"])
    assert kind == "sequence" and not network.model.training
    assert not any(parameter.requires_grad for parameter in network.model.parameters())
    assert network.model.dtype == torch.float32
    half, _ = read_network(Place(scalar[1], dtype="bfloat16"), ["sequence"])
    assert half.model.dtype == torch.bfloat16


def test_a_completion_that_outgrows_the_context_is_unscorable(scalar, caplog):
    found = learned(folder=scalar[1])([QUESTION] * 2, samples("a", "a" * 100))
    assert found[0] is not None and found[1] is None
    assert "1 completions outgrow its model's context of 64 tokens" in caplog.text


def test_the_context_is_the_shorter_of_what_model_and_tokenizer_state(scalar, tmp_path):
    folder = Path(shutil.copytree(scalar[1], tmp_path / "shorter"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 20}))
    contexts = [read_network(Place(str(path)), ["sequence"])[0].context for path in (scalar[1], folder)]
    assert contexts == [64, 20]


def test_one_of_several_labels_is_named(tmp_path):
    labels = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
    model = llama("ForSequenceClassification", num_labels=3, **labels)
    folder = saved(tmp_path, model)
    logits = model(ids("[u]say a[a]b")).logits[0].double()
    found = learned(folder=folder, label="Good")([QUESTION], samples("b"))
    assert found == pytest.approx([logits.softmax(-1)[2].item()], abs=1e-5)
    assert learned(folder=folder, label="0", output="raw")([QUESTION], samples("b")) == pytest.approx(
        [logits[0].item()], abs=1e-5
    )
    with pytest.raises(WhetError, match="has 3 labels and none is named; give label=NAME, its labels: bad, fair, good"):
        learned(folder=folder).prepare()
    with pytest.raises(WhetError, match=r"no label 'god' \(did you mean 'good'\?\)"):
        learned(folder=folder, label="god").prepare()


def test_an_older_classifier_reads_a_pair_of_texts(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(3)
    config = BertConfig(vocab_size=len(VOCABULARY), num_labels=1, pad_token_id=1, initializer_range=0.5, **SIZES)
    model = BertForSequenceClassification(config).eval()
    folder = saved(tmp_path, model, letters_tokenizer(pairs=True))
    tokens = torch.tensor([[3, *ids("say a")[0].tolist(), 2, *ids("b")[0].tolist(), 2]])
    types = torch.tensor([[0] * 7 + [1] * 2])
    expected = model(tokens, token_type_ids=types).logits.item()
    assert learned(folder=folder)([QUESTION] * 2, samples("b", "bcdef"))[0] == pytest.approx(expected, abs=1e-5)
    assert abs(model(tokens).logits.item() - expected) > 1e-3


@pytest.mark.parametrize(("how", "expected"), [("mean", 2.0), ("worst", 1.0), ("mean_minus_std", 2.0 - 0.5 * 1.0)])
def test_member_scores_are_combined(how, expected):
    assert ensemble_score([1.0, 2.0, 3.0], how, 0.5) == pytest.approx(expected)
    assert ensemble_score([4.0], how, 0.5) == 4.0


def test_an_ensemble_of_folders(scalar, tmp_path):
    other = saved(tmp_path, llama("ForSequenceClassification", seed=9, num_labels=1))
    one, two = (learned(folder=each)([QUESTION] * 3, samples("a", "b", "cc")) for each in (scalar[1], other))
    both = [scalar[1], other]
    assert learned(folder=both)([QUESTION] * 3, samples("a", "b", "cc")) == pytest.approx(
        [(x + y) / 2 for x, y in zip(one, two, strict=True)], abs=1e-5
    )
    worst = learned(folder=both, ensemble="worst")([QUESTION] * 3, samples("a", "b", "cc"))
    assert worst == pytest.approx(list(map(min, one, two)), abs=1e-5)
    cautious = learned(folder=both, ensemble="mean_minus_std", deviations=2.0)([QUESTION], samples("a"))
    assert cautious == pytest.approx([(one[0] + two[0]) / 2 - 2 * abs(one[0] - two[0]) / math.sqrt(2)], abs=1e-5)


def test_the_slope_is_taken_within_groups():
    lengths, scores = [1, 2, 3, 11, 12, 13], [5.0, 5.5, 6.0, 0.0, 0.5, 1.0]
    assert length_slope(lengths, scores, "aaabbb") == pytest.approx(0.5)
    assert length_slope(lengths, scores, "cccccc") < 0  # across questions the sign would be wrong
    assert length_slope([3, 3], [0.0, 1.0], "aa") == length_slope([], [], "") == 0.0
    assert length_slope([3, 4], [0.0, 1.0], "aa") == pytest.approx(1.0)  # a token apart is enough


def test_a_given_slope_is_taken_off(scalar):
    completions = samples("a", "abcde")
    plain = learned(folder=scalar[1])([QUESTION] * 2, completions)
    found = learned(folder=scalar[1], length_slope=0.25, length_center=3)([QUESTION] * 2, completions)
    assert found == pytest.approx([plain[0] + 0.5, plain[1] - 0.5], abs=1e-5)


@pytest.mark.parametrize(
    ("how", "expected"), [("min", 0.25), ("mean", 0.5), ("last", 0.75), ("product", 0.5 * 0.25 * 0.75)]
)
def test_steps_are_aggregated(how, expected):
    assert aggregated([0.5, 0.25, 0.75], how) == pytest.approx(expected)
    assert aggregated([], how) == 0.0


def test_steps_end_with_their_separator():
    completion = "one\n\ntwo\n\n\n\nthree"
    assert [completion[a:b] for a, b in zip([0, 5, 12], step_ends(completion, "\n\n"), strict=True)] == [
        "one\n\n",
        "two\n\n\n\n",
        "three",
    ]
    assert step_ends("one\n\n", "\n\n") == [5] and step_ends(" \n\n ", "\n\n") == [] and step_ends("", ";") == []


def test_a_token_classifier_scores_steps(tmp_path):
    model = llama("ForTokenClassification", num_labels=2)
    folder = saved(tmp_path, model)
    reward = learned_steps(folder=folder, separator="\n", aggregate="product")
    completion = "ab\ncd"
    logits = model(ids("[u]say a[a]ab\ncd\n")).logits[0].double().softmax(-1)
    expected = [logits[13, 1].item(), logits[16, 1].item()]
    assert reward([QUESTION] * 2, samples(completion, "")) == pytest.approx([expected[0] * expected[1], 0.0], abs=1e-5)
    assert [end for end, _ in reward.steps(QUESTION, completion)] == [3, 5]
    assert [score for _, score in reward.steps(QUESTION, completion)] == pytest.approx(expected, abs=1e-5)
    assert reward.steps(QUESTION, "another") == learned_steps(folder=folder, separator="\n").steps(QUESTION, "another")
    scorer = step_scorer([RewardPart(reward)])
    assert scorer is not None
    (found,) = with_steps([QUESTION], [sample(completion).scored({}, 1.0)], scorer, lambda tokens: completion)
    assert found.steps[0][1] == pytest.approx(expected[1], abs=1e-5)


def test_a_language_model_scores_steps_at_its_tag(tmp_path):
    model = llama("ForCausalLM", tie_word_embeddings=False)
    folder = saved(tmp_path, model)
    settings = {"folder": folder, "separator": "\n", "tag": "z", "after_tag": "."}
    found = learned_steps(**settings, aggregate="last")([QUESTION], samples("ab\ncd"))
    logits = model(ids("[u]say a[a]abz.cdz")).logits[0, -1].double()
    pair = logits[[VOCABULARY["+"], VOCABULARY["-"]]].softmax(-1)
    assert found == pytest.approx([pair[0].item()], abs=1e-5)
    swapped = learned_steps(**settings, aggregate="last", good="-", bad="+")([QUESTION], samples("ab\ncd"))
    assert swapped[0] == pytest.approx(1 - found[0], abs=1e-5)
    with pytest.raises(WhetError, match="'good' is not one token"):
        learned_steps(**settings, good="good").prepare()


def test_an_ensemble_of_process_models(tmp_path):
    folders = [saved(tmp_path / str(seed), llama("ForTokenClassification", seed=seed, num_labels=1)) for seed in (1, 2)]
    each = [learned_steps(folder=folder, separator="\n").steps(QUESTION, "a\nb") for folder in folders]
    worst = learned_steps(folder=folders, separator="\n", ensemble="worst").steps(QUESTION, "a\nb")
    assert [score for _, score in worst] == pytest.approx(
        [min(one[1], two[1]) for one, two in zip(*each, strict=True)], abs=1e-6
    )
    found = learned_steps(folder=folders[0], separator="\n")([QUESTION] * 2, samples("a\nb", "a\n" * 60))
    assert found[0] == pytest.approx(min(score for _, score in each[0]), abs=1e-6) and found[1] is None


def test_a_language_model_is_no_classifier(tmp_path):
    folder = saved(tmp_path, llama("ForCausalLM"))
    with pytest.raises(WhetError, match="holds LlamaForCausalLM, which is no SequenceClassification model; give"):
        learned(folder=folder).prepare()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForSequenceClassification"]}))
    with pytest.raises(WhetError, match=r"lacks score.weight .* would be random numbers"):
        learned(folder=folder).prepare()


def test_another_models_tokenizer_is_refused(tmp_path):
    large = saved(tmp_path / "large", llama("ForSequenceClassification", num_labels=1, vocab_size=500))
    with pytest.raises(WhetError, match=r"has 37 tokens and the model .* was made for 500: it is another model's"):
        learned(folder=large).prepare()
    small = saved(tmp_path / "small", llama("ForSequenceClassification", num_labels=1, vocab_size=30))
    with pytest.raises(WhetError, match="give tokenizer=FOLDER"):
        learned(folder=small).prepare()
    padded = saved(tmp_path / "padded", llama("ForSequenceClassification", num_labels=1, vocab_size=2 * 37))
    learned(folder=padded).prepare()  # rows for twice as many tokens may still be padding
    bare = tmp_path / "bare"
    llama("ForSequenceClassification", num_labels=1).save_pretrained(bare)
    with pytest.raises(WhetError, match="its tokenizer cannot be read"):
        learned(folder=str(bare)).prepare()
    lent = learned(folder=str(bare), tokenizer=small)
    assert lent([QUESTION], samples("a"))[0] is not None


@for_every(
    [
        ({}, "reward 'learned' has no model; give folder=FOLDER"),
        ({"folder": "nowhere"}, "nowhere has no config.json; give the folder"),
        ({"folder": "nowhere", "output": "odd"}, "output of reward 'learned' is 'odd'; give one of auto, raw"),
        ({"folder": "nowhere", "ensemble": "best"}, "give one of mean, worst, mean_minus_std"),
        ({"folder": "nowhere", "micro_batch_tokens": 0}, "give at least 1"),
    ]
)
def test_a_mistake_is_one_line_with_its_fix(settings, complaint):
    with pytest.raises(WhetError, match=complaint) as caught:
        learned(**settings).prepare()
    assert "\n" not in str(caught.value)


def test_device_and_dtype_are_checked(scalar):
    with pytest.raises(WhetError, match="give auto, cpu, cuda or cuda:N"):
        learned(folder=scalar[1], device="gpu").prepare()
    with pytest.raises(WhetError, match="give one of auto, float32, bfloat16, float16"):
        learned(folder=scalar[1], dtype="int8").prepare()


def test_what_a_score_depends_on_is_told(scalar):
    made_of = learned(folder=scalar[1]).made_of
    assert made_of["folder"] == [scalar[1]] and "device" not in made_of
    assert learned(folder=scalar[1], label="x").made_of != made_of
    steps = learned_steps(folder=scalar[1]).made_of
    assert steps["separator"] == "" and learned_steps(folder=scalar[1], tag="x").made_of != steps


@pytest.mark.parametrize("maker", [learned, learned_steps])
def test_settings_are_checked_by_name_and_type(maker):
    found = reward_with(maker, {"folder": ["a", "b"], "ensemble": "worst"}, maker.__name__)
    assert found.settings.folder == ["a", "b"] and found.name == maker.__name__
    with pytest.raises(WhetError, match=r"no setting 'foldr' \(did you mean 'folder'\?\)"):
        reward_with(maker, {"foldr": "a"}, maker.__name__)
    with pytest.raises(WhetError, match="give a whole number"):
        reward_with(maker, {"folder": "a", "micro_batch_tokens": "many"}, maker.__name__)


def test_a_reward_models_folder_is_a_reward(scalar, tmp_path):
    model, folder = scalar
    reward = find_reward(folder)
    assert reward.name == Path(folder).name
    asked = [QUESTION] * 2
    assert reward(asked, samples("a", "bb")) == learned(folder=folder)(asked, samples("a", "bb"))
    assert find_reward(folder, {"name": "mine"}).name == "mine"
    run = tmp_path / "rm-004"
    checkpoint = run / "checkpoints" / "step-000020"
    saved(checkpoint, model)
    (checkpoint / "manifest.json").write_text("{}")
    for given in (run, checkpoint):
        found = find_reward(str(given))
        assert found.name == "rm-004" and found.made_of["folder"] == [str(checkpoint)]
    steps = saved(tmp_path / "prm", llama("ForTokenClassification", num_labels=1))
    assert isinstance(find_reward(steps, {"aggregate": "last"}), LearnedSteps)


def test_a_folder_without_a_reward_model_says_what_it_holds(tmp_path):
    policy = saved(tmp_path / "policy", llama("ForCausalLM"))
    with pytest.raises(WhetError, match=r"holds LlamaForCausalLM, which is no reward model; give the folder of a run"):
        find_reward(policy)
    (tmp_path / "notes").mkdir()
    with pytest.raises(WhetError, match="holds no model that can be a reward: it is empty"):
        find_reward(str(tmp_path / "notes"))
    (tmp_path / "notes" / "a.txt").write_text("")
    with pytest.raises(WhetError, match=r"it has a\.txt; give"):
        find_reward(str(tmp_path / "notes"))
    (tmp_path / "young" / "checkpoints").mkdir(parents=True)
    with pytest.raises(WhetError, match="its run has no complete checkpoint yet"):
        find_reward(str(tmp_path / "young"))
    with pytest.raises(WhetError, match=r"runs/none'?: there is no such folder"):
        find_reward("runs/none")


@pytest.mark.parametrize("kind", ["sequence", "token"])
def test_completions_that_share_a_prompt_score_as_they_do_alone(tmp_path, kind):
    suffix = {"sequence": "ForSequenceClassification", "token": "ForTokenClassification"}[kind]
    folder = saved(tmp_path, llama(suffix, num_labels=2, pad_token_id=VOCABULARY["<end>"], num_hidden_layers=2))
    network, _ = read_network(Place(folder, micro_batch_tokens=60), [kind])
    assert network.scalar is not None
    asked = [QUESTION] * 3 + [PLAIN] * 2 + [QUESTION]
    written = ["a", "bcd efg", "bcd xyz and more", "z", "zzzzzzzz", "bcd"]
    rows = [network.conversation_tokens(*pair) for pair in zip(asked, written, strict=True)]
    rows[1] = Tokens([*rows[1].ids, VOCABULARY["<end>"]])  # padding inside a row: transformers reads before it
    places = None if kind == "sequence" else [[0, len(row.ids) // 2, len(row.ids) - 1] for row in rows]
    shared = network.logits(rows, [prompt.id for prompt in asked], places)
    alone = replace(network, scalar=None).logits(rows, [prompt.id for prompt in asked], places)
    for one, other in zip(shared, alone, strict=True):
        assert one.shape == other.shape and torch.allclose(one, other, rtol=1e-5, atol=1e-5)
    assert len({round(float(each[-1, 0]), 4) for each in alone}) >= 5  # the rows differ, so a mix-up would show


def test_a_shared_prompt_is_computed_once(scalar, monkeypatch):
    network, _ = read_network(Place(scalar[1]), ["sequence"])
    computed = []
    original = network.scalar.lm.trunk.forward
    monkeypatch.setattr(
        network.scalar.lm.trunk,
        "forward",
        lambda *given, **named: computed.append(named["input_ids"].numel()) or original(*given, **named),
    )
    rows = [network.conversation_tokens(QUESTION, "ab" + letter) for letter in "cdefghij"]
    network.logits(rows, ["q"] * 8)
    fused = computed == []  # a fast path of its own walks the layers without the trunk's forward
    assert fused or sum(computed) < 0.7 * sum(len(row.ids) for row in rows)
