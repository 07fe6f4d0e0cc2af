"""Calls of whet.train and whet.resume, one after another, as one of several ranks: `python ranked_runs.py CALLS.json`.

CALLS.json is a list of `[function, arguments, keywords]`; RANK and the rest are in the environment.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import whet


def main(file: str) -> None:
    for function, arguments, keywords in json.loads(Path(file).read_text(encoding="utf-8")):
        getattr(whet, function)(*arguments, console=False, **keywords)


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # what torch leaves behind takes a second to clear away
