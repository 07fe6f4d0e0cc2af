"""Built-in tasks: procedural, verifiable, with disjoint splits by construction.

A task writes items from a random stream. Which split an item belongs to is decided by a hash of its question, so
no question can ever be in both, whatever the seeds. Each item knows its gold answer, a completion that works the answer
out, and a completion that states it at once; the last two are what the built-in model was taught from.
"""

from __future__ import annotations

from whet.data.tasks.arithmetic import arithmetic
from whet.data.tasks.countdown import countdown
from whet.data.tasks.item import Item, Task, demonstrations, gold_completion, items, prompts, solutions
from whet.data.tasks.lists import lists

TASKS: dict[str, Task] = {task.name: task for task in (arithmetic, countdown, lists)}

__all__ = ["TASKS", "Item", "Task", "demonstrations", "gold_completion", "items", "prompts", "solutions"]
