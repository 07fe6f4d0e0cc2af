"""Incremental answers against the template's own rendering."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from test_chat import CHATML, built

from whet.data.turns import turn_renderer

ASKED = [{"role": "user", "content": "two plus three"}, {"role": "assistant", "content": "it is five"}]


def whole(tokenizer: Any, messages: list[dict[str, Any]]) -> tuple[int, ...]:
    return tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def test_the_answer_to_a_turn_is_what_the_template_writes_behind_it() -> None:
    tokenizer = built(CHATML)
    renderer = turn_renderer(tokenizer, chat=True)
    for answer in ([{"role": "user", "content": "\n\nare you sure"}], [{"role": "tool", "content": "5"}] * 2):
        rendered = renderer.answer(ASKED, answer, ended=True)
        expected = whole(tokenizer, [*ASKED, *answer])
        assert expected[-len(rendered.tokens) :] == rendered.tokens
        (end,) = renderer.end_tokens
        assert expected[-len(rendered.tokens) - 1] == end == tokenizer.convert_tokens_to_ids("<|im_end|>")
        assert renderer.answer(ASKED, answer, ended=False).tokens == (end, *rendered.tokens)
        assert len(rendered.spans) == len(answer)
