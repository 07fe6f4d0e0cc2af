from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tests.support.commands import finished
from tests.support.for_every import for_every
from whet.data.chat import (
    ROWS_TOGETHER,
    check_context,
    demonstration_tokens,
    prompt_tokens,
    tokens_of_demonstrations,
    tokens_of_prompts,
)
from whet.types import Demonstration, Encoded, Prompt, WhetError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USER = {"role": "user", "content": "two plus three"}
FIVE = {"role": "assistant", "content": "it is five"}
AGAIN = {"role": "user", "content": "are you sure"}


def built(template: str | None = CHATML, *, bos: bool = False, close: bool = False, eos: str | None = "</s>") -> Any:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(["\n\nit is\n\nfive\n\nfive"] * 20, trainer)
    if bos or close:
        core.post_processor = processors.TemplateProcessing(
            single=("<s> $A" if bos else "$A") + (" </s>" if close else ""), special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token=eos)
    tokenizer.chat_template = template
    return tokenizer


def text(tokenizer: Any, tokens: tuple[int, ...]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def trained(tokenizer: Any, encoded: Encoded) -> list[str]:
    """The runs of trained tokens, as text."""
    runs: list[list[int]] = [[]]
    for token, action in zip(encoded.tokens, encoded.action, strict=True):
        if action:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [text(tokenizer, tuple(run)) for run in runs if run]


def shown(completion: str, *messages: dict[str, str]) -> Demonstration:
    return Demonstration(Prompt("a.jsonl:1", messages), completion)


def test_conversation_prompt_opens_a_completion() -> None:
    tokenizer = built()
    tokens = prompt_tokens(tokenizer, Prompt("p", (USER, FIVE, AGAIN)))
    assert text(tokenizer, tokens) == (
        "<|im_start|>user\ntwo plus three<|im_end|>\n<|im_start|>assistant\nit is five<|im_end|>\n"
        "<|im_start|>user\nare you sure<|im_end|>\n<|im_start|>assistant\n"
    )
    assert isinstance(tokens, tuple)
    assert all(isinstance(token, int) for token in tokens)


def test_plain_prompt_has_the_default_special_tokens() -> None:
    bare, marked = built(None), built(None, bos=True)
    prompt = Prompt("p", (), "it is")
    assert text(bare, prompt_tokens(bare, prompt)) == "it is"
    assert text(marked, prompt_tokens(marked, prompt)) == "<s>it is"


def test_many_prompts_have_the_tokens_of_each() -> None:
    class OwnWriter(transformers.PreTrainedTokenizerFast):
        def apply_chat_template(self, *arguments: Any, **options: Any) -> Any:
            return [5, 6] if options["tokenize"] else None

    prompts = [Prompt("p", (USER, FIVE, AGAIN)), Prompt("q", (), "it is"), Prompt("r", (USER,)), Prompt("s", (AGAIN,))]
    for tokenizer in (built(), built(bos=True, close=True)):
        rows = tokens_of_prompts(tokenizer, prompts)
        assert rows == [prompt_tokens(tokenizer, prompt) for prompt in prompts]
        assert len(set(rows)) == 4
        assert tokens_of_prompts(tokenizer, prompts[:1]) == rows[:1]
    own = OwnWriter(tokenizer_object=built().backend_tokenizer, chat_template=CHATML)
    assert tokens_of_prompts(own, prompts[2:]) == [(5, 6), (5, 6)]


def test_plain_prompt_stays_open() -> None:
    closing = built(None, bos=True, close=True)
    assert text(closing, prompt_tokens(closing, Prompt("p", (), "it is"))) == "<s>it is"
    assert text(closing, prompt_tokens(closing, Prompt("p", (), "it is</s>"))) == "<s>it is</s>"


def test_plain_demonstration() -> None:
    tokenizer = built(None, bos=True)
    encoded = demonstration_tokens(tokenizer, Demonstration(Prompt("p", (), "it is\n"), "\nfive"))
    assert text(tokenizer, encoded.tokens) == "<s>it is\n\nfive</s>"
    assert trained(tokenizer, encoded) == ["\nfive</s>"]
    assert encoded.tokens[: encoded.action.index(True)] == prompt_tokens(tokenizer, Prompt("p", (), "it is\n"))


def test_the_completion_is_trained_with_its_end_and_nothing_after() -> None:
    tokenizer = built()
    demonstration = shown("it is five", USER, FIVE, AGAIN)
    encoded = demonstration_tokens(tokenizer, demonstration)
    assert trained(tokenizer, encoded) == ["it is five<|im_end|>"]
    before = prompt_tokens(tokenizer, demonstration.prompt)
    assert encoded.tokens[: len(before)] == before
    assert encoded.action.index(True) == len(before)
    assert len(encoded.tokens) == len(encoded.action)


def test_every_completion_trains_the_earlier_turns_too() -> None:
    tokenizer = built()
    demonstration = shown("five", USER, FIVE, AGAIN, FIVE, USER)
    encoded = demonstration_tokens(tokenizer, demonstration, every_completion=True)
    assert trained(tokenizer, encoded) == ["it is five<|im_end|>", "it is five<|im_end|>", "five<|im_end|>"]
    assert encoded.tokens == demonstration_tokens(tokenizer, demonstration).tokens


def test_every_completion_leaves_out_a_turn_that_opens_the_conversation() -> None:
    tokenizer = built()
    encoded = demonstration_tokens(tokenizer, shown("five", FIVE, USER), every_completion=True)
    assert trained(tokenizer, encoded) == ["five<|im_end|>"]


def test_a_merge_across_the_boundary_leaves_the_prompt_alone() -> None:
    tokenizer = built()
    opened = prompt_tokens(tokenizer, Prompt("p", (USER,)))
    whole = text(tokenizer, opened) + "\n\nfive"
    merged = tuple(tokenizer(whole, add_special_tokens=False)["input_ids"])
    assert merged[: len(opened)] != opened, "the vocabulary no longer merges across the boundary"
    earlier = {"role": "assistant", "content": "\n\nfive"}
    encoded = demonstration_tokens(tokenizer, shown("\n\nfive", USER))
    assert encoded.tokens[: len(opened)] == opened
    assert trained(tokenizer, encoded) == ["\n\nfive<|im_end|>"]
    both = demonstration_tokens(tokenizer, shown("five", USER, earlier, AGAIN), every_completion=True)
    assert both.tokens[: len(prompt_tokens(tokenizer, Prompt("p", (USER, earlier, AGAIN))))] == prompt_tokens(
        tokenizer, Prompt("p", (USER, earlier, AGAIN))
    )
    first, last = trained(tokenizer, both)
    assert first.endswith("\n\nfive<|im_end|>")
    assert first.strip("\n") == "five<|im_end|>"
    assert last == "five<|im_end|>"


def test_control_tokens_inside_a_completion_do_not_end_it() -> None:
    tokenizer = built()
    tokenizer.add_tokens(["</think>"], special_tokens=True)
    encoded = demonstration_tokens(tokenizer, shown("it is</think>", USER))
    assert trained(tokenizer, encoded) == ["it is</think><|im_end|>"]


def test_only_the_first_end_token_is_kept() -> None:
    tokenizer = built(CHATML.replace("{% endif %}", "{% else %}{{ eos_token }}{% endif %}"))
    encoded = demonstration_tokens(tokenizer, shown("five", USER, FIVE, AGAIN), every_completion=True)
    assert trained(tokenizer, encoded) == ["it is five<|im_end|>", "five<|im_end|>"]


def test_a_template_without_end_token_gets_eos() -> None:
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    tokenizer = built(plain + "{% if add_generation_prompt %}assistant: {% endif %}")
    encoded = demonstration_tokens(tokenizer, shown("five", USER))
    assert text(tokenizer, encoded.tokens) == "user: two plus three\nassistant: five</s>"
    assert trained(tokenizer, encoded) == ["five</s>"]


def test_a_completion_the_template_trims_or_prefixes_is_trained_as_written() -> None:
    thinking = CHATML.replace(
        "{{ m.content }}",
        "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}{{ m.content | trim }}",
    )
    tokenizer = built(thinking)
    demonstration = shown("  five \n", USER, FIVE, AGAIN)
    assert trained(tokenizer, demonstration_tokens(tokenizer, demonstration)) == ["<think></think>five<|im_end|>"]
    with pytest.raises(WhetError, match=r"'a\.jsonl:1': .*messages\[1\] differently.*give data.every_completion=false"):
        demonstration_tokens(tokenizer, demonstration, every_completion=True)


def test_a_template_that_rewrites_history_is_an_error() -> None:
    rewriting = "{{ messages | length }} turns\n" + CHATML
    with pytest.raises(WhetError, match=r"'a\.jsonl:1': the chat template rewrites the prompt .*give the tokenizer"):
        demonstration_tokens(built(rewriting), shown("five", USER))


def test_a_conversation_needs_a_template() -> None:
    for encode in (
        lambda: prompt_tokens(built(None), Prompt("a.jsonl:1", (USER,))),
        lambda: demonstration_tokens(built(None), shown("five", USER)),
    ):
        with pytest.raises(WhetError, match=r"'a\.jsonl:1': .*no chat template; use plain text prompts, or give one"):
            encode()


def test_a_template_that_refuses_a_role_is_an_error() -> None:
    refusing = "{{ raise_exception('no system turns') }}"
    with pytest.raises(WhetError, match=r"'p': the chat template refuses the turns user \(no system turns\); .*change"):
        prompt_tokens(built(refusing), Prompt("p", (USER,)))


def test_a_completion_needs_an_end_token() -> None:
    with pytest.raises(WhetError, match=r"'p': the tokenizer has no eos_token .*set tokenizer\.eos_token"):
        demonstration_tokens(built(None, eos=None), Demonstration(Prompt("p", (), "it is"), "five"))


def test_many_demonstrations_have_the_tokens_of_each() -> None:
    shared = Prompt("q", (USER, FIVE, AGAIN))
    few = [
        Demonstration(shared, "it is"),
        Demonstration(Prompt("r", (), "it is"), "five"),
        shown("\n\nfive", USER),  # a merge may run across the boundary
        Demonstration(shared, "five</s>"),
        shown("", AGAIN),
    ]
    rows = [*few, *(shown(f"it is {number}", USER) for number in range(ROWS_TOGETHER)), *few[:1]]
    endless = "{% for m in messages %}{{ m.content }}{% endfor %}"
    glued = CHATML.replace("assistant\n{% endif %}", "assistant{% endif %}").replace("}}\n{{", "}}{{")
    for template, every in ((CHATML, False), (CHATML, True), (endless, False), (glued, True)):
        tokenizer = built(template, bos=True)
        expected = [demonstration_tokens(tokenizer, row, every_completion=every) for row in rows]
        assert tokens_of_demonstrations(tokenizer, iter(rows), every_completion=every) == expected
    assert tokens_of_demonstrations(built(), []) == []


def test_many_demonstrations_are_tokenized_together_and_a_shared_prompt_is_written_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = [Prompt(str(number), ({**USER, "content": f"two plus {number}"},)) for number in range(ROWS_TOGETHER)]
    asked = {"written": 0, "tokenized": 0}

    def counted(name: str, method: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            asked[name] += 1
            return method(*arguments, **options)

        return call

    base = transformers.PreTrainedTokenizerBase
    monkeypatch.setattr(base, "apply_chat_template", counted("written", base.apply_chat_template))
    monkeypatch.setattr(base, "__call__", counted("tokenized", base.__call__))
    pairs = [Demonstration(prompt, completion) for prompt in prompts for completion in ("five", "six")]
    assert len(tokens_of_demonstrations(built(), pairs)) == 2 * ROWS_TOGETHER
    assert asked == {"written": 4 * ROWS_TOGETHER + 1, "tokenized": 2}  # and once to see that users are heard


def test_a_template_that_leaves_out_what_somebody_says_is_refused() -> None:
    """A name that is not there, such as m.text, is nothing at all to Jinja: every prompt would be the same."""
    deaf, rules = CHATML.replace("m.content", "m.text"), {"role": "system", "content": "be brief"}
    no_system = CHATML.replace("in messages %}", "in messages if m.role != 'system' %}")
    asked = [Prompt(name, (USER,)) for name in "ab"]
    for template, prompts, role in ((deaf, asked, "user"), (no_system, [Prompt("s", (rules, USER))] * 2, "system")):
        for write in (
            lambda tokenizer, prompts=prompts: tokens_of_prompts(tokenizer, prompts),
            lambda tokenizer, prompts=prompts: prompt_tokens(tokenizer, prompts[0]),
            lambda tokenizer, prompts=prompts: tokens_of_demonstrations(
                tokenizer, [Demonstration(prompt, "five") for prompt in prompts]
            ),
        ):
            with pytest.raises(
                WhetError, match=f"the chat template does not write what '{role}' says; .*chat_template"
            ):
                write(built(template))
    assert tokens_of_prompts(built(no_system), asked)  # nobody spoke whom it leaves out


def test_of_many_demonstrations_the_first_that_cannot_be_used_is_named() -> None:
    tokenizer = built(CHATML.replace("{% for", "{% if messages[0].content == 'no' %}{{ 1 / 0 }}{% endif %}{% for", 1))
    usable, refused = shown("no", USER), shown("no", {**USER, "content": "no"})
    unknown = shown("it is\n\nfive\n\nfive", USER)
    tokenizer.embedding_rows = max(demonstration_tokens(tokenizer, usable).tokens) + 1
    unknown, refused = (
        replace(row, prompt=replace(row.prompt, id=name)) for row, name in ((unknown, "u"), (refused, "r"))
    )
    with pytest.raises(WhetError) as first:
        demonstration_tokens(tokenizer, unknown)
    for rows, said in (([usable, unknown, refused], str(first.value)), ([usable, refused, unknown], "'r'")):
        with pytest.raises(WhetError, match=re.escape(said)):
            tokens_of_demonstrations(tokenizer, rows)


def test_context() -> None:
    prompts = [Prompt("short", (), "a"), Prompt("long", (), "b"), Prompt("longest", (), "c")]
    check_context(prompts, [1, 20, 24], max_new_tokens=8, context=32)
    with pytest.raises(
        WhetError,
        match=r"'longest' \(and 1 more\): 30 tokens .*make 38; .*context of 32; give sampling.max_new_tokens=2,",
    ):
        check_context(prompts, [1, 25, 30], max_new_tokens=8, context=32)
    with pytest.raises(WhetError, match=r"'longest': 32 tokens .*; shorten the prompt, leave such rows out"):
        check_context(prompts, [1, 2, 32], max_new_tokens=1, context=32)


HEAVY = """
import sys
heavy = {"transformers", "datasets", "pyarrow", "jinja2"}
for name in [name for name in sys.modules if name.split(".")[0] in {"whet", *heavy}]:
    del sys.modules[name]  # torch stays: the room is imported anew
import whet.data.chat, whet.data.prompts, whet.data.source
print("whet.data.chat" in sys.modules, heavy & set(sys.modules))
"""


def test_the_room_imports_no_heavy_package(tmp_path: Path) -> None:
    (tmp_path / "imports.py").write_text(HEAVY)
    done = finished(str(tmp_path / "imports.py"))
    assert done.stdout.strip() == "True set()", done.stderr


@for_every(
    [
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% if %}",
        "{{ messages[0].content.nothing.at_all }}",
        "{{ 1 / 0 }}",
        "{{ '' }}",
    ]
)
def test_a_template_that_cannot_be_run_is_one_line(template: str) -> None:
    with pytest.raises(WhetError, match="'p'") as told:
        prompt_tokens(built(template), Prompt("p", (USER,)))
    assert "\n" not in str(told.value)


def test_tokens_beyond_the_embedding_are_refused() -> None:
    tokenizer = built()
    tokens = prompt_tokens(tokenizer, Prompt("p", (), "two plus three"))
    tokenizer.embedding_rows = max(tokens)
    with pytest.raises(WhetError, match=rf"prompt 'p': holds token {max(tokens)} .*embedding has {max(tokens)} rows"):
        prompt_tokens(tokenizer, Prompt("p", (), "two plus three"))
    with pytest.raises(WhetError, match="take tokenizer and model from the same place"):
        demonstration_tokens(tokenizer, Demonstration(Prompt("p", (USER,)), "two plus three"))
    tokenizer.embedding_rows = max(tokens) + 1
    assert prompt_tokens(tokenizer, Prompt("p", (), "two plus three")) == tokens
