"""Files of public data sets that are not part of the project; the environment variable WHET_DATA names their folder."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest


def data_file(name: str) -> Path:
    """DATA/name; a test that asks for what is not there is skipped."""
    folder = os.environ.get("WHET_DATA")
    if not folder:
        pytest.skip(f"set WHET_DATA to a data folder with {name}")
    path = Path(folder) / name
    if not path.exists():
        pytest.skip(f"WHET_DATA names a folder without {name}")
    return path


def data_rows(name: str) -> list[dict[str, Any]]:
    """The rows of DATA/name.jsonl.gz."""
    with gzip.open(data_file(f"{name}.jsonl.gz"), "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
