"""Defences against rewards being gamed: small rewards that look for one trick each.

Each is a function (prompt, completion, ...) -> float: 0 for an honest completion and down to -1. Give it a positive
weight in the sum, or weight 0 and `Gate(name, least=0.0)` to the part that shall count only for completions without a
finding. All are deterministic, need no model and no gold answer, and use one where there is one.

Every defence has a corpus of attacks it must catch and honest completions it must not punish, and both shares are
measured (`benchmarks/trust/defence_rates.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from whet.reward.defences.answer_marks import answer_in_thinking, broken_tags, mark_spam
from whet.reward.defences.disguise import hidden_text, look_alikes
from whet.reward.defences.guessing import guessing, hollow_answer, unsupported_answer
from whet.reward.defences.incoherence import incoherent_reasoning
from whet.reward.defences.redundancy import padding, redundant_calls

Defence = Callable[..., float]


DEFENCES: Mapping[str, Defence] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            incoherent_reasoning,
            padding,
            redundant_calls,
            unsupported_answer,
            guessing,
            hollow_answer,
            mark_spam,
            broken_tags,
            answer_in_thinking,
            hidden_text,
            look_alikes,
        )
    }
)


__all__ = ["DEFENCES", "Defence", *DEFENCES]
