"""Episodes of four turns with 1,024 tokens of context.

    python benchmarks/agents.py --gpu --results    # on one GPU: beside single completions of the same lengths

See `agents_gpu.py`.
"""

from __future__ import annotations

import sys


def main() -> None:
    if "--gpu" in sys.argv[1:]:
        from agents_gpu import main as on_gpu

        on_gpu([each for each in sys.argv[1:] if each != "--gpu"])
        return
    raise SystemExit("give --gpu")


if __name__ == "__main__":
    main()
