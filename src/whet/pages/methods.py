"""`python -m whet.pages.methods` writes what is made of the presets afresh.

To be run when a preset, a component or its words have changed. That is catalogue.json in the
package and, in a clone, the pages and pictures of the methods in docs/.
"""

import json
from pathlib import Path

from whet.pages import clip_plots
from whet.settings.methods import catalogue, describe, tables
from whet.settings.methods.method import to_record


def main() -> None:
    described = to_record(describe.catalogue())
    catalogue.FILE.write_text(json.dumps(described, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    catalogue.forget()
    docs = Path(__file__).parents[3] / "docs"
    if not docs.is_dir():
        return
    clip_plots.write_plots(docs / "images" / "clip")
    for kind, page in tables.PAGES.items():
        (docs / page).write_text(tables.markdown_page(kind), encoding="utf-8")
    objective = docs / "objective.md"
    objective.write_text(tables.with_axes_table(objective.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
