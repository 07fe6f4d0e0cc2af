"""review.html: answers with buttons to mark them. Its one script is its own; the content policy admits no other."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from whet.report.style import STYLE
from whet.report.text import number

REVIEW_STYLE = """
.toolbar { position: sticky; top: 0; background: var(--paper); border-bottom: 1px solid var(--rule); padding: 10px 0;
  display: flex; gap: 14px; align-items: center; flex-wrap: wrap; z-index: 1; margin-top: 18px }
.toolbar .soft { font-size: 13.5px }
button { font: inherit; font-size: 13.5px; padding: 3px 12px; border-radius: 99px; border: 1px solid var(--rule);
  background: var(--card); color: var(--ink); cursor: pointer }
button:focus-visible { outline: 2px solid var(--c2); outline-offset: 1px }
.marks { display: flex; gap: 6px; margin-left: auto }
.sample[data-mark=good] button[value=good] { background: var(--good); color: var(--paper); border-color: var(--good) }
.sample[data-mark=bad] button[value=bad] { background: var(--warn); color: var(--paper); border-color: var(--warn) }
.sample[data-mark] { opacity: .82 }
.sample input { font: inherit; font-size: 13.5px; width: 100%; margin-top: 9px; padding: 4px 9px; color: var(--ink);
  background: var(--well); border: 1px solid var(--rule); border-radius: 7px }
.ends { display: grid; gap: 28px; grid-template-columns: repeat(2, minmax(0, 1fr)) }
.ends .sample { margin-bottom: 16px }
@media (max-width: 720px) { .ends { grid-template-columns: minmax(0, 1fr) } }
"""

SCRIPT = """
const rows = JSON.parse(document.getElementById('rows').textContent);
const byId = new Map(rows.map(row => [row.id, row]));
const key = id => 'whet-review/' + id;
let store = null;
try { store = window.localStorage; store.getItem('x'); } catch (error) { store = null; }
function show(card) {
  const row = byId.get(card.id);
  if (row.mark) card.dataset.mark = row.mark; else delete card.dataset.mark;
  card.querySelector('input').value = row.note || '';
  for (const button of card.querySelectorAll('button'))
    button.setAttribute('aria-pressed', String(button.value === row.mark));
}
function count() {
  const marked = rows.filter(row => row.mark).length;
  document.getElementById('count').textContent = marked + ' of ' + rows.length + ' marked';
}
function keep(row) {
  if (store) store.setItem(key(row.id), JSON.stringify({mark: row.mark, note: row.note}));
  count();
}
for (const card of document.querySelectorAll('.sample')) {
  const row = byId.get(card.id);
  const kept = store && store.getItem(key(row.id));
  if (kept) Object.assign(row, JSON.parse(kept));
  show(card);
  card.addEventListener('click', event => {
    if (event.target.tagName !== 'BUTTON') return;
    row.mark = row.mark === event.target.value ? null : event.target.value;
    keep(row); show(card);
  });
  card.querySelector('input').addEventListener('change', event => { row.note = event.target.value; keep(row); });
}
document.getElementById('save').addEventListener('click', () => {
  const lines = rows.map(row => JSON.stringify(row) + '\\n').join('');
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([lines], {type: 'application/x-ndjson'}));
  link.download = 'review.jsonl';
  link.click();
  URL.revokeObjectURL(link.href);
});
count();
"""
_FINGERPRINT = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
REVIEW_POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_FINGERPRINT}'"


def review_page(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The whole page, the newest step first."""
    steps = sorted({int(row["step"]) for row in rows}, reverse=True)
    sections = "".join(_step(step, [row for row in rows if int(row["step"]) == step]) for step in steps)
    # inside a script element only "</" could end it early
    data = json.dumps([dict(row) for row in rows], ensure_ascii=False).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{REVIEW_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>Review of {escape(title)}</title>'
        f"<style>{STYLE}{REVIEW_STYLE}</style></head>\n<body><main>\n"
        f'<header><div class="eyebrow"><b>whet review</b><span>{len(rows)} answers</span></div>'
        f'<h1>{escape(title)}</h1><p class="verdict">Is the reward right about these answers? Mark what you think of '
        "each, whatever it scored. A bad answer with a high reward is a reward being hacked; a good one with a low "
        "reward is a reward that misses.</p></header>\n"
        '<div class="toolbar"><b id="count">Marking needs scripts: edit "mark" in review.jsonl instead</b>'
        '<button id="save" type="button">Download review.jsonl</button><span class="soft">Marks stay in this browser; '
        "the downloaded file replaces the one in the run folder, or is read by whet reward review --marks."
        f'</span></div>\n{sections}<script id="rows" type="application/json">{data}</script>\n'
        f"<script>{SCRIPT}</script></main></body></html>\n"
    )


def _step(step: int, rows: Sequence[Mapping[str, Any]]) -> str:
    columns = "".join(
        f"<div><h3>{title}</h3>{''.join(_card(row) for row in rows if row['end'] == end) or '<p>None.</p>'}</div>"
        for end, title in (("high", "Highest rewards"), ("low", "Lowest rewards"))
    )
    return f'<section><h2>Step {step}</h2><div class="ends">{columns}</div></section>\n'


def _card(row: Mapping[str, Any]) -> str:
    answer = row.get("answer")
    gold = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    texts = [("Question", row.get("question")), ("Completion", row.get("completion"))]
    texts += [] if answer is None else [("Gold answer", gold)]
    boxes = "".join(
        f'<div class="name">{name}</div><pre class="well" tabindex="0">{escape(str(text or ""))}</pre>'
        for name, text in texts
    )
    chips = "".join(
        f'<span class="chip">{escape(str(name))} {number(value)}</span>'
        for name, value in (row.get("parts") or {}).items()
    )
    buttons = "".join(f'<button type="button" value="{mark}">{mark.title()}</button>' for mark in ("good", "bad"))
    return (
        f'<article class="sample" id="{escape(str(row["id"]), quote=True)}"><header>'
        f'<span class="chip main">reward {number(row.get("reward"))}</span>{chips}<span class="marks">{buttons}</span>'
        f'</header>{boxes}<input type="text" placeholder="Note" aria-label="Note">'
        f"<footer>{escape(str(row.get('tokens')))} tokens, prompt {escape(str(row.get('prompt_id')))}</footer>"
        "</article>"
    )
