"""The documents' claims, each with a verdict: reproduced, not at this scale, refuted, or cannot be tested here.

    python benchmarks/claims.py --folder build/claims --workers 8 --seconds 900 --results   # docs/claims.md
    python benchmarks/claims.py --archive --results                    # judge the archived runs anew, without training
    python benchmarks/claims.py --folder build/tiny --arms grpo,dr_grpo --seeds 1 --steps 2

Claims about training are runs of the built-in model (claim_runs.py), claims about arithmetic are computed
(claim_arithmetic.py), and the rule that makes the verdicts is in claim_rules.py. A run that is there already in
--folder is not repeated; claims whose runs are missing say so. --results writes results/claims.json and the archive of
the runs, benchmarks/runs/claims.jsonl.xz.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from claim_arithmetic import ARITHMETIC, UNTESTED_CLAIMS
from claim_rules import Record, computed, judged, untested
from claim_runs import ARMS, CLAIMS, HERE, MODELS, RUNS, Arm
from results_file import add_results_flag, write_results
from run_archive import ARCHIVES, PlannedRun, make_runs, read_archive, write_archive

from whet.settings.layers import flattened, merged

SEEDS = 5
ARCHIVE = ARCHIVES / "claims.jsonl.xz"
ONE_THREAD = {"model": {"device": "cpu", "threads": 1}}


def placed(value: Any, folder: Path) -> Any:
    """The settings with the folders of this machine."""
    if isinstance(value, Mapping):
        return {key: placed(member, folder) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [placed(member, folder) for member in value]
    if isinstance(value, str):
        return value.replace(f"{RUNS}/", f"{folder}/").replace(f"{HERE}/", f"{Path(__file__).resolve().parent}/")
    return value


def planned(name: str, arm: Arm, folder: Path, seed: int, steps: int, keeps_model: bool = False) -> PlannedRun:
    """A run of an arm; `steps` 0 is the arm's own number."""
    method, settings = arm
    limits = {"steps": steps, "eval": {"prompts": 16}} if steps else {}
    settings = merged(merged(ONE_THREAD, placed(settings, folder)), {"seed": seed, **limits})
    tags = {"arm": name, "seed": seed}
    return PlannedRun(name if keeps_model else f"{name}-s{seed}", method, settings, tags, keeps_model)


def models_of(arm: Arm) -> list[str]:
    """The runs that a run of the arm starts from, or is scored by."""
    said = json.dumps(arm[1])
    return [name for name in MODELS if f"{RUNS}/{name}.run" in said]


def in_order(arms: Sequence[str], seeds: int) -> list[tuple[str, int]]:
    """(arm, seed) of every run, those of the first claims first."""
    wanted = [(arm, seed) for claim in CLAIMS for seed in range(seeds) for arm in claim.arms if arm in arms]
    return list(dict.fromkeys(wanted))


def fresh_models(folder: Path) -> None:
    """The models that MODELS are trained from: a mixture with random weights, and two of the built-in one's layers."""
    from moe import fresh_mixture

    from whet.model.prune import save_smaller

    if not (folder / "fresh-mixture").exists():
        fresh_mixture("tiny", folder / "fresh-mixture")
    if not (folder / "fresh-student").exists():
        save_smaller("whetstone", folder / "fresh-student", layers=2)


def all_runs(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of every run that was made, those of the models first."""
    folder = Path(options.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    began = time.monotonic()
    fresh_models(folder)
    arms = options.arms.split(",") if options.arms else list(ARMS)
    runs = [
        (models_of(ARMS[arm]), planned(arm, ARMS[arm], folder, seed, options.steps))
        for arm, seed in in_order(arms, options.seeds)
    ]
    awaited = {name for names, _ in runs for name in names}
    models = [planned(name, MODELS[name], folder, 0, options.steps, True) for name in MODELS if name in awaited]
    free = [run for names, run in runs if not names]
    if models:  # and beside them as much as keeps every worker busy
        make_runs([*models, *free[: 3 * options.workers]], folder, options.workers, options.seconds, options.timeout)
    there = {model.name for model in models if (folder / f"{model.name}.json").exists()}
    left = max(options.seconds - (time.monotonic() - began), 1.0) if options.seconds else 0.0
    possible = [model for model in models if model.name in there] + [
        run for names, run in runs if there.issuperset(names)
    ]
    return make_runs(possible, folder, options.workers, left, options.timeout)


def by_seed(records: Iterable[Record]) -> dict[int, dict[str, Record]]:
    """Records of arms by seed and arm; a run that never made a step is left out."""
    seeds: dict[int, dict[str, Record]] = {}
    for record in records:
        if record["tags"]["arm"] in ARMS and record["lines"]:
            seeds.setdefault(record["tags"]["seed"], {})[record["tags"]["arm"]] = record
    return seeds


def ledger(records: Sequence[Record]) -> dict[str, Any]:
    """Every claim with its verdict, and the commands of the runs."""
    seeds = by_seed(records)
    rows = {
        **{claim.name: judged(claim, seeds) for claim in CLAIMS},
        **{claim.name: computed(claim) for claim in ARITHMETIC},
        **{claim.name: untested(claim) for claim in UNTESTED_CLAIMS},
    }
    return {
        "claims": rows,
        "verdicts": dict(Counter(row["verdict"] for row in rows.values()).most_common()),
        "seeds": len(seeds),
        "runs": len(records),
        "failed": sorted(record["name"] for record in records if record["error"]),
        "core_minutes": sum(record["wall_s"] for record in records) / 60,
        "commands": {name: command_of(arm) for name, arm in {**MODELS, **ARMS}.items()},
    }


def command_of(arm: Arm) -> str:
    """How the run is made by hand; `--seed` is added to it."""
    method, settings = arm
    words = [f"whet train {method}"]
    for path, value in flattened(settings).items():
        value = json.loads(json.dumps(value).replace(f"{RUNS}/", "runs/").replace(f"{HERE}/", "benchmarks/"))
        words.append(f"--steps {value}" if path == "steps" else f"--set {path}={toml(value)}")
    return " ".join(word if "[{" not in word else f"--set '{word.removeprefix('--set ')}'" for word in words)


def toml(value: Any) -> str:
    """A value as `--set` reads it."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}={toml_inside(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(toml_inside(member) for member in value) + "]"
    return str(value)


def toml_inside(value: Any) -> str:
    """A value within a list or a table: texts are quoted."""
    return f'"{value}"' if isinstance(value, str) else toml(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="build/claims", help="where the runs are made")
    parser.add_argument("--workers", type=int, default=2, help="runs side by side, one core each")
    parser.add_argument("--seconds", type=float, default=0.0, help="no run begins after so many; 0: no limit")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds after which a run is ended")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--arms", default="", help="only these, by comma")
    parser.add_argument("--steps", type=int, default=0, help="of every run, to try the script; 0: the arm's own")
    parser.add_argument("--archive", action="store_true", help="judge the archived runs, train nothing")
    add_results_flag(parser, "claims")
    options = parser.parse_args()
    records = list(read_archive(ARCHIVE)) if options.archive else all_runs(options)
    values = ledger(records)
    for name, row in values["claims"].items():
        effect = (
            f"{row['mean']:+.4g} [{row['low']:+.4g}, {row['high']:+.4g}]" if "mean" in row else row.get("outcome", "")
        )
        print(f"{row['verdict']:22} {name:26} {effect}")
    print(json.dumps({key: values[key] for key in ("verdicts", "runs", "failed", "core_minutes")}))
    if options.results:
        write_results(options.results, values, archived=options.archive)
        if not options.archive:
            kept = Path(options.folder) / ARCHIVE.name
            write_archive(kept, records)
            ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(kept, ARCHIVE)


if __name__ == "__main__":
    main()
