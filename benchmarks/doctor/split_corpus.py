"""Runs that took hold, in two halves: rules are tuned on one, and measured once on the other.

    python benchmarks/doctor/split_corpus.py corpus/corpus-*.jsonl.xz --out benchmarks/doctor
    python benchmarks/doctor/split_corpus.py corpus/corpus-again.jsonl.xz --out benchmarks/doctor --add

Within each kind (and file), runs go to `tune` and `sealed` in turn in the order of a hash of their names: nothing that
is in them decides. What did not do what its kind says (`kinds.took_hold`) is dropped and counted. Written are
OUT/corpus-tune.jsonl.xz and OUT/corpus-sealed.jsonl.xz, one run per line, and OUT/corpus.json, the counts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinds import KINDS, took_hold

from whet.record.health.history import known_settings

HALVES = ("tune", "sealed")
DIGITS = 4


def read_runs(path: Path) -> Iterator[dict[str, Any]]:
    with lzma.open(path, "rb") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def part_of(run: Mapping[str, Any]) -> str:
    """Where a run comes from: trained for the corpus, by its authors or an outsider's plan, archived, or drawn."""
    if str(run["name"]).startswith("outside-"):
        return "outside"
    return "corpus" if str(run.get("part", "")).endswith("xz") else str(run.get("part", "corpus"))


def write_runs(path: Path, runs: Iterable[Mapping[str, Any]]) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 26}]
    with lzma.open(path, "wb", filters=filters) as file:
        for run in runs:
            file.write(json.dumps(run, separators=(",", ":")).encode() + b"\n")


def halves(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The runs of each kind in turn, in the order of a hash of their names."""
    found: dict[str, list[Mapping[str, Any]]] = {half: [] for half in HALVES}
    kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        kinds.setdefault((run["kind"], run["part"]), []).append(run)
    for (kind, _), members in sorted(kinds.items()):
        members.sort(key=lambda run: hashlib.sha256(run["name"].encode()).hexdigest())
        # the odd one goes by the kind's own hash, so that neither half is always the larger one
        first = hashlib.sha256(kind.encode()).digest()[0] % 2
        for place, run in enumerate(members):
            found[HALVES[(place + first) % 2]].append(run)
    return found


def light(run: Mapping[str, Any], with_samples: bool) -> dict[str, Any]:
    """What rules and criteria read: no spread over the samples, and no value per sample unless asked for."""
    kept = {key: run[key] for key in run if key not in ("lines", "objective", "facts", "environment", "patch")}
    stated = known_settings({"facts": run.get("facts", {})})  # a rule may look at them beside the settings
    kept["health_settings"] = {**run.get("health_settings", {}), **stated}
    kept["dtype"] = str(run["dtype"]).split(" ")[0]
    kept["lines"] = [_light_line(line, with_samples) for line in run["lines"]]
    return kept


def _light_line(line: Mapping[str, Any], with_samples: bool) -> dict[str, Any]:
    kept = {key: rounded(value) for key, value in line.items() if key not in ("spread", "seen")}
    if "seen" in line:
        dropped = () if with_samples else ("rewards", "tokens")
        kept["seen"] = rounded({key: value for key, value in line["seen"].items() if key not in dropped})
        rewards = [each for each in line["seen"].get("rewards", ()) if each is not None]
        if rewards:
            mean = sum(rewards) / len(rewards)
            kept["seen"]["reward_std"] = rounded((sum((each - mean) ** 2 for each in rewards) / len(rewards)) ** 0.5)
    return kept


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """Numbers with so many significant digits; a whole number without its point."""
    if isinstance(value, Mapping):
        return {key: rounded(member, digits) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(member, digits) for member in value]
    if isinstance(value, float):
        short = float(f"{value:.{digits}g}")
        return int(short) if short.is_integer() and abs(short) < 1e9 else short
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--add", action="store_true", help="to the halves that OUT has, which stay as they are")
    parser.add_argument("--samples", action="store_true", help="keep the reward and length of every sample")
    options = parser.parse_args()
    runs = [{**run, "part": path.name} for path in options.corpus for run in read_runs(path)]
    names = Counter(run["name"] for run in runs)
    if names and names.most_common(1)[0][1] > 1:
        raise SystemExit(f"{names.most_common(1)[0][0]} is there twice")
    held = [run for run in runs if took_hold(run)]
    for half, members in halves(held).items():
        target = options.out / f"corpus-{half}.jsonl.xz"
        before = list(read_runs(target)) if options.add else []
        write_runs(target, [*before, *(light(run, options.samples) for run in members)])
    made, kept = Counter(run["kind"] for run in runs), Counter(run["kind"] for run in held)
    if options.add:
        for kind, each in json.loads((options.out / "corpus.json").read_text()).items():
            made[kind] += each["made"]
            kept[kind] += each["kept"]
    counts = {
        kind: {"made": made[kind], "kept": kept[kind], "took hold": KINDS[kind].criterion if kind in KINDS else ""}
        for kind in sorted(made)
    }
    (options.out / "corpus.json").write_text(json.dumps(counts, indent=1) + "\n")
    for kind, each in counts.items():
        print(f"{kind:26}{each['made']:5} made{each['kept']:5} kept")
    dropped = [run["name"] for run in runs if not took_hold(run)]
    print(f"{len(held)} of {len(runs)} runs kept; dropped: {', '.join(dropped)}")


if __name__ == "__main__":
    main()
