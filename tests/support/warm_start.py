"""What a whet command imports before its first step; imported once, by the process that commands are forked from."""

import importlib

for name in ("api.training", "build.assembly", "build.rl", "cli.runs", "cli.train", "pipeline.runner"):
    importlib.import_module(f"whet.{name}")
importlib.import_module("whet.model").load_model("whetstone")  # what transformers imports at its first model
