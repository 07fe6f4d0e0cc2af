"""The model hub, as far as it is asked before a model is loaded. Imports no torch."""

from __future__ import annotations

import functools
import socket
import urllib.parse
import urllib.request
from pathlib import Path

REACH_SECONDS = 3.0


def hub_reachable() -> bool:
    """A short look, because the hub's client retries for most of a minute before it gives up."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    address = urllib.parse.urlsplit(constants.ENDPOINT)
    if urllib.request.getproxies():
        return True  # a direct connection says nothing about what the proxy can reach
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        with socket.create_connection((address.hostname or "", port), timeout=REACH_SECONDS):
            return True
    except OSError:
        return False


@functools.cache
def hub_file(name: str, file: str) -> Path | None:
    """A small file of a hub model: from the hub's own cache, else downloaded into it; None where neither works."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(name, file)
        if not isinstance(path, str) and hub_reachable():
            path = hf_hub_download(name, file)
    except (HFValidationError, OSError, ValueError):  # what is wrong with the model is told when it is loaded
        return None
    return Path(path) if isinstance(path, str) else None
