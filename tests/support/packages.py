"""Packages that tests need beside the core; a test skips with the line that installs a missing one.

Whether a package is there is looked up, not tried: importing one at the head of a test file costs every worker seconds.
"""

from __future__ import annotations

import importlib.util

import pytest

INSTALL = {
    "bitsandbytes": "pip install 'whet[bits]'",
    "bm25s": "pip install 'whet[search]'",
    "fastapi": "pip install 'whet[board]'",
    **dict.fromkeys(("mlflow", "sqlalchemy", "alembic"), "pip install 'whet[mlflow]'"),
    "llguidance": "pip install 'whet[serve]'",
    "mcp": "pip install 'whet[mcp]'",
    "textarena": "pip install 'whet[textarena]'",
    "gymnasium": "pip install 'whet[gym]'",
    "reasoning_gym": "pip install 'whet[tasks]'",
    "gem": "pip install --no-deps gem-llm==0.1.0 and pip install nltk msgspec 'whet[tasks]'",
    "skyrl_gym": "pip install --no-deps skyrl-gym==0.4.0",
    "omegaconf": "pip install omegaconf",
    "bfcl_eval": "pip install --no-deps bfcl-eval==2026.3.23",
    "trl": "pip install trl==1.16.0 in an environment of its own",
    **dict.fromkeys(("trackio", "wandb"), "pip install 'whet[track]'"),
    "uvicorn": "pip install 'whet[board]'",
}


def needs(*names: str) -> pytest.MarkDecorator:
    """A mark for tests that need these packages."""
    missing = [f"{name} is not installed: {INSTALL[name]}" for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason="; ".join(missing))
