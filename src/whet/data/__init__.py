"""From the user's rows to tokens.

`read_rows` reads a file or a hub dataset, the `*_from` functions turn its rows into prompts, demonstrations, pairs
and labelled completions, `chat` writes them as tokens, and a `Cursor` says which come next. A mistake in the data is a
`WhetError` that names the file, the line, the field and the fix.
"""
