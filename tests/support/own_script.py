"""What a page with charts may run: their own script, admitted by its digest, and nothing else."""

import base64
import hashlib
import re

from whet.pages.render import chart_script

SCRIPT = re.compile(r"<script([^>]*)>(.*?)</script>", re.DOTALL)


def without_charts_script(page: str) -> str:
    """The page without the script of its charts; an assertion where it runs another, or the policy admits another."""
    scripts = SCRIPT.findall(page)
    data = [content for words, content in scripts if words.startswith(' type="application/json"')]
    run = [content for words, content in scripts if not words]
    assert len(data) + len(run) == len(scripts) and run == [chart_script()]
    assert all("<" not in content for content in data)
    digest = base64.b64encode(hashlib.sha256(run[0].encode()).digest()).decode()
    policies = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    admitted = f"default-src &#39;none&#39;; style-src &#39;unsafe-inline&#39;; script-src &#39;sha256-{digest}&#39;"
    assert policies == [admitted]
    return SCRIPT.sub("", page)
