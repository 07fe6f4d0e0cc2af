"""Packages that the adapters are tried against; a test skips with the line that installs a missing one."""

from __future__ import annotations

import importlib

import pytest

INSTALL = {
    "textarena": "pip install 'whet[textarena]'",
    "gymnasium": "pip install 'whet[gym]'",
    "reasoning_gym": "pip install 'whet[tasks]'",
    "gem": "pip install --no-deps gem-llm==0.1.0 and pip install nltk msgspec 'whet[tasks]'",
    "skyrl_gym": "pip install --no-deps skyrl-gym==0.4.0",
    "omegaconf": "pip install omegaconf",
    "bfcl_eval": "pip install --no-deps bfcl-eval==2026.3.23",
    "trl": "pip install trl==1.16.0 in an environment of its own",
}


def needs(name: str):
    """A mark for tests of one package."""
    try:
        importlib.import_module(name)
        missing = ""
    except ImportError as error:
        missing = f"{error}; {INSTALL[name]}"
    return pytest.mark.skipif(bool(missing), reason=missing)
