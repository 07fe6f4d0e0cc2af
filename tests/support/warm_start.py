"""What a whet command imports before its first step; imported once, by the process that commands are forked from."""

import gc
import importlib
import os

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
