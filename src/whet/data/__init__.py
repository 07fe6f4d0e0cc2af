"""From the user's rows to tokens.

`read_rows` reads a file or a hub dataset, the `*_from` functions turn its rows into prompts, demonstrations, pairs
and labelled completions, `chat` writes them as tokens, and a `Cursor` says which come next. A mistake in the data is a
`WhetError` that names the file, the line, the field and the fix.
"""

from whet.data.chat import check_context, demonstration_tokens, prompt_tokens, tokens_of_prompts
from whet.data.cursor import Cursor
from whet.data.prompts import (
    LabelledCompletion,
    PreferencePair,
    demonstrations_from,
    labelled_from,
    pairs_from,
    prompts_from,
)
from whet.data.rows import Row
from whet.data.source import read_rows

__all__ = [
    "Cursor",
    "LabelledCompletion",
    "PreferencePair",
    "Row",
    "check_context",
    "demonstration_tokens",
    "demonstrations_from",
    "labelled_from",
    "pairs_from",
    "prompt_tokens",
    "prompts_from",
    "read_rows",
    "tokens_of_prompts",
]
