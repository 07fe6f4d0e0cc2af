"""`python -m whet.pages.lab` writes docs/lab.html afresh: about six minutes of one core.

With `--keep-tables` only what stands around the tables is written anew, in seconds. A last argument is another file.
"""

import sys
from pathlib import Path

from whet.pages.lab.page import rewrite_static_page, write_static_page


def main() -> None:
    given = [each for each in sys.argv[1:] if each != "--keep-tables"]
    path = Path(given[0]) if given else Path(__file__).parents[4] / "docs" / "lab.html"
    if len(given) < len(sys.argv) - 1:
        print(rewrite_static_page(path))
    else:
        print(write_static_page(path, said=lambda line: print(line, file=sys.stderr, flush=True)))


if __name__ == "__main__":
    main()
