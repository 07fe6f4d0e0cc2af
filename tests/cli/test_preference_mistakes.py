"""Bad rows, bad labels, a foreign reward model and a stored reference of something else: one line with the fix."""

import json
import sys
from pathlib import Path

import pytest
import torch

from whet import cli

PAIR = {"prompt": "2+3?", "chosen": "5", "rejected": "6"}
COMPLETION = {"prompt": "2+3?", "completion": "5", "label": True}
SOLUTION = {"prompt": "2+3?", "steps": ["2+3", "=5"], "labels": [1, 0]}
RANKING = {"prompt": "2+3?", "completions": ["5", "6", "7"], "scores": [2, 1, 0]}
USER, FIVE, SIX = (
    {"role": role, "content": text} for role, text in (("user", "2+3?"), ("assistant", "5"), ("assistant", "6"))
)
QUICK = ["--steps", "1", "--set", "eval.prompts=0", "--set", "model.threads=1"]
DROP = ["--set", "data.unusable=drop"]

FILES = {
    "good.jsonl": [{**PAIR, "prompt": f"{number}+3?"} for number in range(4)],
    "fewer.jsonl": [{**PAIR, "prompt": f"{number}+3?"} for number in range(3)],
    "same.jsonl": [PAIR, {**PAIR, "rejected": "5"}],
    "empty.jsonl": [PAIR, {**PAIR, "chosen": " "}],
    "null.jsonl": [PAIR, {**PAIR, "rejected": None}],
    "number.jsonl": [PAIR, {**PAIR, "chosen": True}],
    "apart.jsonl": [
        {"chosen": [USER, FIVE], "rejected": [USER, SIX]},
        {"chosen": [USER, FIVE], "rejected": [{**USER, "content": "4+3?"}, SIX]},
    ],
    "liked.jsonl": [{**COMPLETION, "prompt": f"{number}+3?"} for number in range(3)],
    "unsure.jsonl": [COMPLETION, {**COMPLETION, "label": "maybe"}],
    "steps.jsonl": [SOLUTION, {**SOLUTION, "labels": [1, 0, 1]}],
    "first.jsonl": [{"prompt": "a", "steps": ["1", "2"], "first_error": each} for each in (1, 2)],
    "right.jsonl": [{**SOLUTION, "labels": [1, 1]}, {**SOLUTION, "labels": [True, True]}],
    "ranks.jsonl": [RANKING, {**RANKING, "scores": [2, 1]}],
    "mostly_bad.jsonl": [PAIR, *[{**PAIR, "rejected": "5"}] * 2],
}
SOME = "; or leave out the 1 of 2 rows that cannot be used: data.unusable=drop"

# method, file, what the line says
MISTAKES = {
    "identical": ("dpo", "same.jsonl", "same.jsonl:2: rejected is the same text as 'chosen'"),
    "identical for a reward model": ("rm", "same.jsonl", "same.jsonl:2: rejected is the same text as 'chosen'"),
    "empty answer": ("ipo", "empty.jsonl", "empty.jsonl:2: chosen is empty; expected some text"),
    "no answer": ("orpo", "null.jsonl", "null.jsonl:2: 'rejected' is null; expected a value"),
    "not text": ("simpo", "number.jsonl", "number.jsonl:2: chosen is True; expected text"),
    "prompts differ": ("simpo", "apart.jsonl", "apart.jsonl:2: rejected leaves the conversation of 'chosen'"),
    "no such label": ("kto", "unsure.jsonl", "unsure.jsonl:2: label is 'maybe'; expected true or false"),
    "a label too many": ("prm", "steps.jsonl", "steps.jsonl:2: labels has 3 entries for 2 steps"),
    "an error behind the end": ("prm", "first.jsonl", "first.jsonl:2: first_error is 2 in a solution of 2 steps"),
    "a score too few": ("rm", "ranks.jsonl", "ranks.jsonl:2: scores has 2 for 3 completions"),
}
# what leaving rows out would not fix
WHOLE = {
    "labels of one class": ("kto", "liked.jsonl", "label is true in all 3 rows", "add rows with false"),
    "outcomes of one class": ("orm", "liked.jsonl", "label is true in all 3 rows", "add rows with false"),
    "every step right": ("prm", "right.jsonl", "right.jsonl:1: labels call every step", "add some"),
    "labels for a method of pairs": ("dpo", "liked.jsonl", "one completion with a label; dpo compares two", "(kto, "),
    "labels for a reward model": ("rm", "liked.jsonl", "one completion with a label; rm compares", "train orm"),
    "pairs for outcomes": ("orm", "good.jsonl", "the row compares completions", "train rm"),
    "pairs for steps": ("prm", "good.jsonl", "'steps' is missing; the row has 'prompt', 'chosen'", "YOURS=steps"),
    "pairs for demonstrations": ("sft", "good.jsonl", "compares two (dpo, ", "data.columns.chosen=completion"),
    "conversations for demonstrations": ("sft", "apart.jsonl", " or rm, ", "data.columns.chosen=messages"),
    "steps for pairs": ("ipo", "steps.jsonl", "a solution in steps; ipo learns from completions", "train prm"),
    "too many to leave out": ("dpo", "mostly_bad.jsonl", "mostly_bad.jsonl:2: rejected is the same", "correct it"),
}


def whet(capsys, *words):
    """The real entry point, in process."""
    before, sys.argv = sys.argv, ["whet", *words]
    try:
        cli.main()
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    finally:
        sys.argv = before
    out, err = capsys.readouterr()
    return code, out, err


def refusal(capsys, *words):
    """The one line of a command that is refused."""
    capsys.readouterr()
    code, out, err = whet(capsys, *words)
    assert code == 2 and out == "" and len(err.strip().splitlines()) == 1, (code, err)
    return err.strip()


@pytest.fixture(autouse=True)
def folder_of_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, rows in FILES.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_bad_row_is_named_and_can_be_left_out(name, capsys):
    method, file, said = MISTAKES[name]
    told = refusal(capsys, "train", method, "--data", file)
    assert said in told and told.endswith(SOME)


@pytest.mark.parametrize("name", WHOLE)
def test_what_leaving_rows_out_does_not_fix_does_not_offer_it(name, capsys):
    method, file, said, fix = WHOLE[name]
    told = refusal(capsys, "train", method, "--data", file)
    assert said in told and fix in told and "data.unusable" not in told


@pytest.mark.parametrize(("method", "file"), [("dpo", "same.jsonl"), ("rm", "ranks.jsonl"), ("prm", "steps.jsonl")])
def test_left_out_rows_are_counted_by_reason(method, file, capsys):
    code, out, err = whet(capsys, "train", method, "--data", file, *DROP, *QUICK)
    assert code == 0, err
    reasons = {
        "same.jsonl": "rejected is the same text as 'chosen' (1)",
        "ranks.jsonl": "scores is not one for each completion (1)",
        "steps.jsonl": "labels is not one for each step (1)",
    }
    line = " ".join(out.split())
    assert f"{file} (1 row, 1 unusable: {reasons[file]})" in line


def test_demonstrations_and_prompts_can_lose_rows_too(capsys, tmp_path):
    rows = [
        {"prompt": "2+3?", "completion": "5"},
        {"prompt": "2+3?", "completion": ""},
        {"prompt": "4?", "completion": "4"},
    ]
    (tmp_path / "shown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = refusal(capsys, "train", "sft", "--data", "shown.jsonl")
    assert "shown.jsonl:2: completion is empty" in told and told.endswith(
        "1 of 3 rows that cannot be used: data.unusable=drop"
    )
    code, out, _ = whet(capsys, "train", "sft", "--data", "shown.jsonl", *DROP, *QUICK)
    assert code == 0 and "1 unusable: completion is empty (1)" in " ".join(out.split())
    asked = [{"prompt": "2+3?", "answer": "5"}, {"prompt": "", "answer": "5"}]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    small = ["--set", "batch.prompts_per_step=1", "--set", "batch.group_size=2", "--set", "sampling.max_new_tokens=4"]
    code, out, err = whet(
        capsys, "train", "reinforce", "--data", "asked.jsonl", "--reward", "exact_answer", *DROP, *QUICK, *small
    )
    assert code == 0 and "1 unusable: prompt is empty (1)" in " ".join(out.split()), err


def test_rows_too_long_for_the_model_are_named_where_what_is_left_does_not_do(capsys, tmp_path):
    long = " ".join(["12 + 34"] * 200)
    files = {
        "long.jsonl": [{**PAIR, "chosen": long}],
        "labels.jsonl": [
            COMPLETION,
            {**COMPLETION, "prompt": "4?"},
            {**COMPLETION, "completion": long, "label": False},
        ],
        "wrong.jsonl": [{**SOLUTION, "labels": [1, 1]}, {**SOLUTION, "steps": [long, "=5"]}],
    }
    for name, rows in files.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = refusal(capsys, "train", "dpo", "--data", "long.jsonl", *QUICK)
    assert "long.jsonl: no row fits: the shortest has" in told and "context of 512" in told
    told = refusal(capsys, "train", "kto", "--data", "labels.jsonl", *QUICK)
    assert "labels.jsonl: 1 row is longer than the model's context of 512 tokens; leave" in told
    told = refusal(capsys, "train", "kto", "--data", "labels.jsonl", *DROP)
    assert "labels.jsonl: all 2 completions that fit have the same label (1 more rows are too long" in told
    told = refusal(capsys, "train", "prm", "--data", "wrong.jsonl", *DROP)
    assert "wrong.jsonl: all labels of the data say the same" in told and "longer context" in told


def test_more_than_half_is_no_data_to_leave_out(capsys):
    told = refusal(capsys, "train", "dpo", "--data", "mostly_bad.jsonl", *DROP)
    assert "mostly_bad.jsonl:2: " in told and "2 of 3 rows cannot be used" in told and "at most half" in told


def test_the_setting_is_for_files(capsys):
    assert "data.unusable has no effect" in refusal(capsys, "train", "dpo", *DROP)
    assert "'stop' or 'drop'" in refusal(capsys, "train", "dpo", "--data", "good.jsonl", "--set", "data.unusable=skip")


def test_a_stored_reference_of_something_else_is_refused(capsys, tmp_path):
    stored = ["--set", "preference.reference_logp=stored", "--set", "preference.store=said.safetensors"]
    train = ["train", "dpo", *QUICK, *stored]
    assert whet(capsys, *train, "--data", "good.jsonl", "--folder", "first")[0] == 0
    assert whet(capsys, *train, "--data", "good.jsonl", "--folder", "again")[0] == 0
    assert "of other rows than this run's" in refusal(capsys, *train, "--data", "fewer.jsonl")
    told = refusal(capsys, *train, "--data", "good.jsonl", "--model", "first")
    assert told.startswith("whet: said.safetensors: ") and "by another model" in told and "preference.store" in told
    model = untrained_copy(tmp_path / "retold")
    chats = [{"prompt": [USER], "chosen": [FIVE], "rejected": [SIX]}]
    (tmp_path / "chats.jsonl").write_text(json.dumps(chats[0]) + "\n")
    train = ["train", "dpo", *QUICK, "--data", "chats.jsonl", "--model", str(model), "--set", "preference.store=chats"]
    train += ["--set", "preference.reference_logp=stored"]
    assert whet(capsys, *train, "--folder", "chatted")[0] == 0
    template = model / "chat_template.jinja"
    template.write_text("1" + template.read_text())
    assert "or of another chat template" in refusal(capsys, *train, "--folder", "other")
    assert "live" in refusal(capsys, "train", "kto", "--data", "good.jsonl", *stored)
    assert "live" in refusal(capsys, "train", "tr_dpo", "--data", "good.jsonl", *stored)
    assert "has no effect" in refusal(capsys, "train", "simpo", "--data", "good.jsonl", *stored)


def untrained_copy(folder):
    """The built-in model as a folder of the user's own."""
    from whet.model.load import load_model

    loaded = load_model("whetstone", torch.float32, "cpu")
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return Path(folder)


CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789 +-*/=<>?.:,;()[]\n"


def foreign_scorer(folder, head, tokenizer=None):
    """A classifier of another family than the built-in model's, that reads letters or the given tokens."""
    import transformers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    if tokenizer is None:
        known = {word: number for number, word in enumerate(["<unk>", "<end>", *CHARACTERS])}
        backend = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<end>")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), num_labels=1, num_key_value_heads=2, **sizes)
    getattr(transformers, f"Llama{head}")(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def renumbered(folder):
    """The built-in tokenizer with two of its tokens exchanged."""
    from transformers import AutoTokenizer

    from whet.model.load import load_model

    load_model("whetstone", torch.float32, "cpu").tokenizer.save_pretrained(folder)
    file = Path(folder) / "tokenizer.json"
    written = json.loads(file.read_text())
    words = written["model"]["vocab"]
    one, two = sorted(words, key=words.get)[-2:]
    words[one], words[two] = words[two], words[one]
    file.write_text(json.dumps(written))
    return AutoTokenizer.from_pretrained(folder)


FEW = [
    *("--steps", "1", "--set", "eval.prompts=2", "--set", "model.threads=1", "--set", "data.count=8"),
    *("--set", "batch.prompts_per_step=2", "--set", "batch.group_size=2", "--set", "sampling.max_new_tokens=12"),
]


def scored_by(reward, folder):
    return ["--set", f'reward.parts=[{{reward="{reward}",settings={{folder="{folder}"}}}}]']


def test_a_reward_model_of_another_tokenizer_reads_text(capsys, tmp_path):
    scorer = foreign_scorer(tmp_path / "scorer", "ForSequenceClassification")
    code, _, err = whet(capsys, "train", "rloo", "--folder", "run", *FEW, *scored_by("learned", scorer))
    assert code == 0, err
    found = [json.loads(line) for line in Path("run/samples.jsonl").read_text().splitlines()]
    assert found and all(each["parts"]["learned"] != 0 for each in found)
    steps = foreign_scorer(tmp_path / "steps", "ForTokenClassification")
    told = ["--set", "objective.baseline=step_sum"]
    code, _, err = whet(capsys, "train", "grpo", *FEW, *told, *scored_by("learned_steps", steps))
    assert code == 0, err


def test_the_tokens_of_another_tokenizer_are_refused(capsys, tmp_path):
    scorer = foreign_scorer(tmp_path / "scorer", "ForSequenceClassification")
    told = refusal(capsys, "train", "ppo", *FEW, "--set", f"critic.start={scorer}")
    assert "its vocabulary has" in told and "same tokenizer" in told
    alike = foreign_scorer(tmp_path / "alike", "ForSequenceClassification", renumbered(tmp_path / "words"))
    told = refusal(capsys, "train", "ppo", *FEW, "--set", f"critic.start={alike}")
    assert "tokenizer has 2 of the policy's" in told and "another number" in told and "`learned`" in told
    other = tmp_path / "scorer"
    settings = f'{{folder="{untrained_scorer(tmp_path)}",tokenizer="{other}"}}'
    told = refusal(capsys, "train", "rloo", *FEW, "--set", f'reward.parts=[{{reward="learned",settings={settings}}}]')
    assert "it is another model's" in told and "tokenizer=FOLDER" in told


def untrained_scorer(folder):
    """A reward model that whet saved, of the built-in model's own tokenizer."""
    import transformers

    from whet.model.load import load_model

    loaded = load_model("whetstone", torch.float32, "cpu")
    config = transformers.AutoConfig.from_pretrained(untrained_copy(folder / "language"), num_labels=1)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder / "own")
    loaded.tokenizer.save_pretrained(folder / "own")
    return folder / "own"
