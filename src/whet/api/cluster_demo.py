"""A run on a small Ray cluster on this machine: two nodes, engines, reward workers, ranks; and who did what."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet.api.run import Run
from whet.api.training import train
from whet.record.text import aligned

NODES, WORKERS, ENGINES, REWARD_WORKERS = 2, 2, 2, 2
END_SECONDS = 30.0  # that processes get to end after the cluster


def cluster_demo(
    method: str, steps: int = 4, port: int = 0, folder: str = "", console: bool = True
) -> tuple[Run, str, list[str]]:
    """The run, a table in words, and the command lines of processes that did not end."""
    from whet.training.distributed.ray_cluster import demo_cluster, processes_in

    processes = WORKERS + ENGINES + REWARD_WORKERS
    folder = folder or str(Path(tempfile.mkdtemp(prefix="whet-cluster-demo-")) / "run")
    with demo_cluster(NODES, -(-processes // NODES), port) as (address, cluster):
        mark = cluster.mark
        run = train(
            method,
            steps=steps,
            folder=folder,
            batch={"prompts_per_step": 16, "group_size": 8},
            eval={"prompts": 50, "every": 0},
            scale={"address": address, "workers": WORKERS, "engines": ENGINES, "reward_workers": REWARD_WORKERS},
            console=console,
        )
    until = time.monotonic() + END_SECONDS
    while (left := processes_in(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    return run, table(run, len(left)), left


def table(run: Run, left: int) -> str:
    """A table of who did what, the result of the run, and what it left on this machine."""
    summary: Mapping[str, Any] = json.loads((run.folder / "run.json").read_text(encoding="utf-8"))
    rows = [("process", "where", "did", "weights", "restarts")]
    for process in summary.get("processes", ()):
        if "tokens" in process:
            did = f"{process['requests']:,} completions, {process['tokens']:,} tokens in {process['seconds']:.1f} s"
        else:
            did = f"{process['samples']:,} completions scored"
        fetched = f"{process['weight_bytes'] / 1e6:.1f} MB in {process['loads']} loads" if "loads" in process else ""
        rows.append((process["process"], process["place"], did, fetched, str(process["restarts"])))
    before, after = summary.get("before", {}), summary.get("after", {})
    metrics = [f"{name} {before[name]:.3f} -> {after[name]:.3f}" for name in before if name in after]
    return "\n".join(
        [
            *aligned(rows, left=len(rows[0])),
            f"{WORKERS} trainer ranks on {NODES} nodes, {summary['tokens']:,} tokens trained on; {', '.join(metrics)}",
            f"processes left behind: {left}",
        ]
    )
