"""Completions that must have a form: JSON, JSON of a schema, or a call of a tool. llguidance is imported here alone.

A grammar says which tokens may come next; the sampler draws among those, and gives log-probabilities among those. The
trainer is told which they were, and computes its own among the same (`whet.envs.serve.call_tree`).
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.data.call_formats import call_frame
from whet.envs.serve.wire import BadCall
from whet.types import TokenConstraint

# without this a model may write blanks for ever
COMPACT = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
ANY_OBJECT = {"type": "object"}
INSTALL = "llguidance is not installed here, and {} needs it: pip install 'whet[serve]'"


class Grammars:
    """The constraints of one model's completions."""

    def __init__(self, tokenizer: Any, end_tokens: Sequence[int]) -> None:
        self._tokenizer, self._ends = tokenizer, tuple(end_tokens)
        self._words: Any = None  # the vocabulary as llguidance has it: a second of work

    def of_answer(self, schema: Mapping[str, Any] | None) -> str:
        """JSON of a schema; None: any object."""
        return self._checked(f"start: %json {json.dumps({**(schema or ANY_OBJECT), **COMPACT})}", "response_format")

    def of_calls(self, call_format: str, tools: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
        """A call of one of these tools, as the model's template or the run's format writes it."""
        frame = call_frame(call_format, self._tokenizer, tools)
        if frame is None:
            raise BadCall(
                "tool_choice cannot be enforced where calls are not written as JSON; give auto, or serve with "
                "env.call_format=json",
                param="tool_choice",
            )
        lines = [f"start: {' | '.join(f'call{number}' for number in range(len(names)))}"]
        described = {str(tool["function"]["name"]): tool["function"] for tool in tools}
        for number, name in enumerate(names):
            schema = described[name].get("parameters") or ANY_OBJECT
            opening, closing = (self._literal(part) for part in frame(name))
            lines += [f"call{number}: {opening} arguments{number} {closing}".rstrip()]
            lines += [f"arguments{number}: %json {json.dumps({**schema, **COMPACT})}"]
        return self._checked("\n".join(lines), "tools")

    def constraint(self, grammar: str) -> TokenConstraint:
        """A fresh constraint for one completion."""
        import llguidance

        return _Grammar(llguidance.LLMatcher(self._vocabulary(), grammar), self._ends, len(self._tokenizer))

    def _checked(self, lark: str, what: str) -> str:
        if importlib.util.find_spec("llguidance") is None:
            raise BadCall(INSTALL.format(what), param=what)
        import llguidance

        grammar = llguidance.LLMatcher.grammar_from_lark(lark)
        is_wrong, why = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, self._vocabulary())
        if is_wrong:
            reason = " ".join(" ".join(why).split())[:200]
            raise BadCall(f"{what} holds a schema that cannot be enforced: {reason}", param=what)
        return str(grammar)

    def _vocabulary(self) -> Any:
        if self._words is None:
            from llguidance.hf import from_tokenizer

            try:
                ends = list(self._ends) or None
                self._words = from_tokenizer(self._tokenizer, n_vocab=len(self._tokenizer), eos_token=ends)
            except Exception as error:
                raise BadCall(f"the model's tokenizer cannot be constrained: {str(error)[:200]}") from error
        return self._words

    def _literal(self, text: str) -> str:
        """Text as a grammar has it: control tokens by their ids, the rest in quotes."""
        specials = {
            str(token): number for number, token in self._tokenizer.added_tokens_decoder.items() if token.special
        }
        parts: list[str] = []
        while text:
            at, token = min(
                ((text.find(special), special) for special in specials if special in text), default=(len(text), "")
            )
            parts += [json.dumps(text[:at], ensure_ascii=False)] if at else []
            parts += [f"<[{specials[token]}]>"] if token else []
            text = text[at + len(token) :]
        return " ".join(parts)


class _Grammar(TokenConstraint):
    def __init__(self, matcher: Any, ends: Sequence[int], size: int) -> None:
        self._matcher, self._size = matcher, size
        self._only_ends = torch.zeros(size, dtype=torch.bool)
        self._only_ends[list(ends)] = True

    def allowed(self) -> Tensor:
        if self._matcher.is_stopped():  # nothing may follow, or the grammar gave up
            return self._only_ends
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = torch.from_numpy(np.unpackbits(bits, count=self._size, bitorder="little").astype(bool))
        return allowed if bool(allowed.any()) else self._only_ends

    def accept(self, token: int) -> None:
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)
