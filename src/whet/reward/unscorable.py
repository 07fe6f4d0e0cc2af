"""Why a sample cannot be judged. The score of such a sample is None; the reason is said once, in the log.

return unscorable("the gold answer is not read in full", prompt)
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from whet.types import Prompt

logger = logging.getLogger(__name__)

SAID = 5  # prompts named in the log; after that, every tenfold is counted

_lock = threading.Lock()
_prompts: set[tuple[str, str]] = set()
_collected: list[list[tuple[str | None, str]]] = []


def unscorable(reason: str, prompt: Prompt | None = None) -> float | None:
    """None, the score of a sample that cannot be judged. The log names the first prompts and their reasons."""
    name = None if prompt is None else prompt.id
    with _lock:
        for collection in _collected:
            collection.append((name, reason))
        is_new = (str(name), reason) not in _prompts
        _prompts.add((str(name), reason))
        count = len(_prompts)
    if is_new and (count <= SAID or count in (10, 100, 1000, 10_000, 100_000)):
        of = "a sample" if name is None else f"prompt {name!r}"
        more = f" ({count} prompts so far)" if count > SAID else ""
        logger.warning("%s cannot be judged%s: %s", of, more, reason)
    return None


@contextlib.contextmanager
def collected_reasons() -> Iterator[list[tuple[str | None, str]]]:
    """(prompt id or None, reason) of everything that could not be judged meanwhile."""
    collection: list[tuple[str | None, str]] = []
    with _lock:
        _collected.append(collection)
    try:
        yield collection
    finally:
        with _lock:
            _collected[:] = [other for other in _collected if other is not collection]
