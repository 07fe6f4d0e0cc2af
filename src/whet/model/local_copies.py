"""What is fetched or converted once for all runs of this machine, and where it is kept."""

from __future__ import annotations

import os
from pathlib import Path

SMOLLM2 = "smollm2"  # fetched and converted when it is first asked for


def cache_folder() -> Path:
    """$WHET_CACHE, or ~/.cache/whet: converted models, and what was found out about models that were tried."""
    stated = os.environ.get("WHET_CACHE")
    return Path(stated).expanduser() if stated else Path.home() / ".cache" / "whet"
