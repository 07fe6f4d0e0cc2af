"""How often the words of a refusal agree with people: completions of XSTest (2308.01263) with their labels.

    python benchmarks/refusal_agreement.py FILE             # rows with completion and final_label, .jsonl or .jsonl.gz
    python benchmarks/refusal_agreement.py FILE --results

Full refusals and full answers are compared; partial refusals are counted apart.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from results_file import add_results_flag, write_results

from whet.reward.safety import is_refusal

ANSWER, REFUSAL, PARTLY = "1_full_compliance", "2_full_refusal", "3_partial_refusal"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    add_results_flag(parser, "refusal_agreement")
    chosen = parser.parse_args()
    opened = gzip.open if chosen.file.suffix == ".gz" else open
    with opened(chosen.file, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    verdicts: dict[str, list[bool]] = {ANSWER: [], REFUSAL: [], PARTLY: []}
    for row in rows:
        verdicts[row["final_label"]].append(is_refusal(row["completion"]))
    answers, refusals, partly = verdicts.values()
    right = sum(refusals) + len(answers) - sum(answers)
    values = {
        "rows": len(answers) + len(refusals),
        "agreement": right / (len(answers) + len(refusals)),
        "found": sum(refusals) / len(refusals),
        "false": sum(answers) / len(answers),
        "partial": len(partly),
        "partial_taken_for_refusals": sum(partly) / len(partly),
    }
    print(json.dumps(values, indent=1))
    if chosen.results:
        write_results(chosen.results, values, measured=("reward",))


if __name__ == "__main__":
    main()
