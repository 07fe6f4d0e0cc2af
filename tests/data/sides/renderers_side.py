"""Runs where the package `renderers` is installed: its `bridge_to_next_turn` for each case of a file.

Arguments: folder of the tokenizers, file of the cases. Prints one line of JSON: the tokens of each case, or null where
the package declines, or the error as a text.
"""

import json
import sys
from pathlib import Path

from renderers import create_renderer
from renderers.configs import config_from_name
from transformers import AutoTokenizer


def main(folder: str, path: str) -> None:
    made, found = {}, []
    for case in json.loads(Path(path).read_text()):
        if case["family"] not in made:
            tokenizer = AutoTokenizer.from_pretrained(Path(folder) / case["family"])
            try:
                made[case["family"]] = create_renderer(tokenizer, config_from_name(case["renderer"]))
            except Exception as error:
                made[case["family"]] = f"{type(error).__name__}: {error}"
        renderer = made[case["family"]]
        if isinstance(renderer, str):
            found.append(renderer)
            continue
        try:
            tools = [each["function"] for each in case["tools"]] or None
            result = renderer.bridge_to_next_turn(case["prompt"], case["sampled"], case["answer"], tools=tools)
            found.append(None if result is None else list(result.token_ids))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
