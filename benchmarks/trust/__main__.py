"""Every attack and fault of docs/trust.md, tried again.

    python -m benchmarks.trust                      # a quick cut of every area
    python -m benchmarks.trust math sandbox --full  # two areas, whole corpora
    python -m benchmarks.trust --full --results     # and results/trust_AREA.json, which docs/trust.md quotes

An area is a module of this package with `measure(full) -> rows`; a row says what was tried, how often, and how often
whet did what it should.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path

# run as a script, this folder would come first, and its areas would hide modules such as math
sys.path[:] = [each for each in sys.path if Path(each or ".").resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from results_file import write_results  # noqa: E402

FOLDER = Path(__file__).parent
# folders of the package that an area tries, where they are not all that it loads
MEASURED = {
    "sandbox": ("reward/sandbox",),
    "code": ("reward", "data"),
    "math": ("reward", "data", "tools/workbench"),
    "hacking": ("reward", "data", "tools/workbench"),
    "judge": ("reward", "data"),
}
AREAS = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))


def table(area: str, rows: list[dict]) -> str:
    """The rows of one area, aligned for a terminal."""
    width = max(len(row["what"]) for row in rows)
    lines = [area]
    for row in rows:
        note = f"  {row['note']}" if row.get("note") else ""
        lines.append(f"  {row['what']:{width}}  {row['held']:>6,} of {row['tried']:>6,}{note}")
    return "\n".join(lines)


def write_rows(area: str, rows: list[dict], full: bool) -> None:
    """results/trust_AREA.json. A page names a value by its keys, with / and : between."""
    values = {
        row["what"].replace(":", ",").replace("/", " or "): {
            "tried": row["tried"], "held": row["held"], "note": row.get("note", "").replace("|", " ")
        }
        for row in rows
    }  # fmt: skip
    write_results(f"trust_{area}", {"full": full, "rows": values}, measured=MEASURED.get(area, ()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}; without any: all")
    parser.add_argument("--full", action="store_true", help="whole corpora: minutes")
    parser.add_argument("--results", action="store_true", help="write results/trust_AREA.json")
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.areas) - set(AREAS)):
        parser.error(f"no area {', '.join(unknown)}; there are {', '.join(AREAS)}")
    for area in chosen.areas or AREAS:
        started = time.perf_counter()
        rows = import_module(f"benchmarks.trust.{area}").measure(chosen.full)
        print(table(area, rows), f"  {time.perf_counter() - started:.0f} s", sep="\n", flush=True)
        if chosen.results:
            write_rows(area, rows, chosen.full)


if __name__ == "__main__":
    main()
