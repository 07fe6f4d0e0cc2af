"""`python -m whet.pages.lab` writes docs/lab.html afresh: about six minutes of one core.

With `--keep-tables` only what stands around the tables is written anew, in seconds. A last argument is another file.
"""

import argparse
import sys
from pathlib import Path

from whet.pages.lab.page import rewrite_static_page, write_static_page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep-tables", action="store_true")
    parser.add_argument("path", type=Path, nargs="?", default=Path(__file__).parents[4] / "docs" / "lab.html")
    options = parser.parse_args()

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if options.keep_tables:
        print(rewrite_static_page(options.path))
    else:
        print(write_static_page(options.path, report=report))


if __name__ == "__main__":
    main()
