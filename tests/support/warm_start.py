"""What a whet command imports and does at its first step; once, by the process that commands are forked from."""

import gc
import importlib
import os
import tempfile
from functools import cache

import torch

from whet.cli import _command_line
from whet.model.load import load_model

os.fsync = lambda file: None  # as in tests/conftest.py
for name in (
    *("api.training", "api.evaluation", "cli.runs", "cli.train", "cli.evaluate", "pages.run_report", "record.console"),
    *("training.assembly.assembly", "training.assembly.rl", "training.assembly.sft", "training.assembly.preference"),
    *("tools.pipelines.runner", "tools.planner.from_config"),
):
    importlib.import_module(f"whet.{name}")
importlib.import_module("rich.live")
load_model("whetstone")  # what transformers imports at its first model
gc.freeze()  # forked processes do not look through it


@cache
def run_once() -> None:
    """One step of a run, for what only a run makes: templates are compiled, fast paths tried out, commands built.

    Not on a GPU: neither it nor autograd's threads for it would survive a fork.
    """
    _command_line()
    if torch.cuda.device_count():
        return
    from whet.api.training import train

    small = {"batch": {"prompts_per_step": 2, "group_size": 2}, "eval": {"prompts": 2}}
    small |= {"sampling": {"max_new_tokens": 4}, "model": {"threads": 1}}
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng():
        train("grpo", steps=1, folder=f"{folder}/run", config=small, console=False)
