"""`python -m whet.explain` writes catalogue.json afresh: after a preset, a component or its words have changed."""

import json

from whet.explain.catalogue import FILE, to_record
from whet.explain.describe import catalogue

FILE.write_text(json.dumps(to_record(catalogue()), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
print(f"wrote {FILE}")
