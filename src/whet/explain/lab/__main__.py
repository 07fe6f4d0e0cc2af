"""`python -m whet.explain.lab` writes docs/lab.html afresh, or the file it is given: minutes on one core."""

import sys
from pathlib import Path

from whet.explain.lab.page import write_static_page


def main() -> None:
    docs = Path(__file__).parents[4] / "docs"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else docs / "lab.html"
    print(write_static_page(path, said=lambda line: print(line, file=sys.stderr, flush=True)))


if __name__ == "__main__":
    main()
