"""The reward for getting there with few steps and few tokens."""

from __future__ import annotations

from collections.abc import Sequence

from whet.reward.repetition import repeated_share, words_of
from whet.types import Turn, WhetError

COST_OF_A_STEP = 0.1
MOST_FOR_STEPS = 0.5
MOST_FOR_TOKENS = 0.3
MOST_FOR_REPETITION = 0.2
NGRAM = 4
ALLOWED_REPETITION = 0.3


def efficiency(
    completion: str,
    num_tokens: int,
    trajectory: Sequence[Turn] = (),
    *,
    expected_steps: int = 3,
    max_tokens: int = 512,
    step: str = "<tool_call>",
) -> float:
    """1 for a completion within the expected steps and tokens and without repetition, down to 0.

    Each step beyond `expected_steps` costs 0.1, at most 0.5; tokens beyond `max_tokens` cost in proportion, 0.3 for
    twice as many and no more; n-grams repeated beyond a share of 0.3 cost up to 0.2. A step is an occurrence of the
    text `step`, a token what the tokenizer counted. Of an episode all turns of the policy count together, and a turn
    has at least as many steps as its environment counted tool calls, however they are written. Efficiency does not ask
    whether anything was achieved: give it a smaller weight than the accuracy, or gate it by the accuracy, or a
    completion of nothing is a good one.
    """
    if expected_steps < 0 or max_tokens < 1 or not step:
        raise WhetError(
            f"reward 'efficiency' has expected_steps {expected_steps}, max_tokens {max_tokens}, step {step!r}; "
            "give counts from 0 and from 1, and the text that marks a step"
        )
    written, steps = completion, completion.count(step)
    if policy := [turn for turn in trajectory if turn.role == "assistant"]:
        written = "\n".join(turn.text for turn in policy)
        steps = sum(max(turn.text.count(step), turn.counts.get("tool_calls", 0)) for turn in policy)
    extra_steps = max(steps - expected_steps, 0)
    extra_tokens = max(num_tokens - max_tokens, 0) / max_tokens
    repeated = max(repeated_share(words_of(written), NGRAM) - ALLOWED_REPETITION, 0) / (1 - ALLOWED_REPETITION)
    return max(
        0.0,
        1.0
        - min(COST_OF_A_STEP * extra_steps, MOST_FOR_STEPS)
        - min(MOST_FOR_TOKENS * extra_tokens, MOST_FOR_TOKENS)
        - MOST_FOR_REPETITION * repeated,
    )
