"""The style sheet of the report: light and dark, wide and narrow, screen and paper."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark;
  --paper: #fcfcfa; --card: #ffffff; --ink: #1d2125; --soft: #5f6770; --rule: #e3e3dd; --well: #f4f4f0;
  --c0: #0f766e; --c1: #c2620a; --c2: #4f5bd5; --c3: #b83280; --c4: #6b8e23; --c5: #0e7fb8; --c6: #8b6f4e;
  --c7: #8a8f98; --warn: #b45309; --warn-well: #fdf3e3; --good: #0f766e }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14171a; --card: #1b1f23; --ink: #e6e7e8; --soft: #9aa3ad; --rule: #2d3338; --well: #22272c;
  --c0: #3fb8a9; --c1: #f0a052; --c2: #8f9bff; --c3: #ee7fb8; --c4: #a6c662; --c5: #5cbcf0; --c6: #c9a87e;
  --c7: #7d858f; --warn: #f0b35b; --warn-well: #2b2418; --good: #3fb8a9 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif }
main { max-width: 1120px; margin: 0 auto; padding: 36px 24px 56px }
h1 { font-size: 26px; line-height: 1.2; margin: 8px 0 8px; letter-spacing: -.01em; overflow-wrap: anywhere }
h2 { font-size: 17px; margin: 40px 0 12px; letter-spacing: -.005em }
h3 { font-size: 13px; margin: 0 0 10px; color: var(--soft); font-weight: 600 }
p { margin: 0 0 8px }
pre, code, .mono { font: 13px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere }
.soft, .eyebrow { color: var(--soft) }
.eyebrow { font-size: 13px; display: flex; gap: 12px; flex-wrap: wrap; align-items: baseline }
.eyebrow b { color: var(--ink); font-weight: 650; letter-spacing: .01em }
.status { border: 1px solid var(--rule); border-radius: 99px; padding: 0 9px; font-size: 12px }
.status.finished { color: var(--good); border-color: currentColor }
.status.failed, .status.interrupted { color: var(--warn); border-color: currentColor }
.verdict { font-size: 18px; line-height: 1.45; max-width: 46em; margin: 0; text-wrap: pretty }
.tiles { display: flex; flex-wrap: wrap; gap: 1px; background: var(--rule); border: 1px solid var(--rule);
  border-radius: 10px; overflow: hidden; margin: 22px 0 0 }
.tile { background: var(--card); padding: 12px 16px 13px; flex: 1 1 150px }
.tile dt { font-size: 12.5px; color: var(--soft) }
.tile dd { margin: 1px 0 0; font-size: 20px; font-weight: 600; font-variant-numeric: tabular-nums; white-space: nowrap }
.tile dd small { font-size: 13px; font-weight: 400; color: var(--soft) }
.pair { display: grid; gap: 28px; grid-template-columns: minmax(0, 3fr) minmax(0, 2fr) }
.pair > div { display: flex; flex-direction: column } .pair .box { flex: 1; align-content: start }
.box { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px }
.well { background: var(--well); border-radius: 7px; padding: 9px 12px; max-height: 16em; overflow: auto }
.objective p { margin: 0; padding: 2px 0; overflow-wrap: anywhere }
.objective p + p { border-top: 1px solid var(--rule); padding-top: 6px; margin-top: 4px }
.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 3px 16px; margin: 0; font-size: 14px }
.facts dt { color: var(--soft) }
.facts dd { margin: 0; overflow-wrap: anywhere }
.charts { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)) }
figure { margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 12px 14px 10px; min-width: 0; break-inside: avoid }
figure.wide { grid-column: 1 / -1 }
figcaption { display: flex; gap: 8px; align-items: baseline; font-size: 14px; margin-bottom: 6px }
figcaption b { font-weight: 600 }
figcaption .last { margin-left: auto; font-weight: 600; font-variant-numeric: tabular-nums; white-space: nowrap }
figcaption .soft, .range { font-size: 12.5px; color: var(--soft) }
.range { margin: 2px 0 0; font-variant-numeric: tabular-nums }
svg { display: block; width: 100%; height: auto; overflow: visible }
.narrow { display: none }
.tick { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--soft) }
.tick.end { text-anchor: end } .tick.middle { text-anchor: middle }
.grid { stroke: var(--rule); stroke-width: 1; fill: none }
.line, .raw { fill: none; stroke: var(--tone); stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round }
.raw { stroke-width: 1; opacity: .38 }
.band { fill: var(--tone); opacity: .16 }
.dot { fill: var(--tone); stroke: var(--card); stroke-width: 1.2 }
.strip { fill: transparent } .strip:hover { fill: var(--ink); fill-opacity: .07 }
.s0 { --tone: var(--c0) } .s1 { --tone: var(--c1) } .s2 { --tone: var(--c2) } .s3 { --tone: var(--c3) }
.s4 { --tone: var(--c4) } .s5 { --tone: var(--c5) } .s6 { --tone: var(--c6) } .s7 { --tone: var(--c7) }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 3px; background: var(--tone);
  margin-right: 6px; print-color-adjust: exact; -webkit-print-color-adjust: exact }
.legend { display: flex; gap: 4px 18px; flex-wrap: wrap; font-size: 13.5px; margin: 0 }
.bar { display: flex; height: 26px; gap: 2px; border-radius: 6px; overflow: hidden; margin-bottom: 12px }
.bar span { background: var(--tone); min-width: 2px; print-color-adjust: exact; -webkit-print-color-adjust: exact }
.legend span { font-variant-numeric: tabular-nums }
.finding { border-left: 3px solid var(--rule); padding: 4px 0 4px 14px; margin: 0 0 12px; max-width: 62em;
  break-inside: avoid }
.finding.problem { border-color: var(--warn); background: var(--warn-well); border-radius: 0 8px 8px 0;
  padding: 9px 14px }
.finding b { font-weight: 600; display: inline-block; margin-right: 4px }
.finding b::first-letter { text-transform: uppercase }
.samples { display: grid; gap: 16px 20px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)) }
.sample { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 13px 15px;
  margin-bottom: 14px; break-inside: avoid; min-width: 0 }
.sample header { display: flex; gap: 6px 10px; flex-wrap: wrap; align-items: baseline; margin-bottom: 8px }
.sample header b { margin-right: auto }
.sample .name { font-size: 12.5px; color: var(--soft); margin: 8px 0 3px }
.chip { font-size: 12.5px; background: var(--well); border-radius: 99px; padding: 1px 9px; white-space: nowrap;
  font-variant-numeric: tabular-nums }
.chip.main { font-weight: 600 }
.sample footer { font-size: 12.5px; color: var(--soft); margin-top: 9px; overflow-wrap: anywhere }
.box.counts { max-width: 640px }
table { border-collapse: collapse; font-size: 14px; width: 100% }
th, td { text-align: left; padding: 5px 0; border-bottom: 1px solid var(--rule); font-weight: 400 }
tr:last-child > * { border-bottom: 0 }
td { text-align: right; font-variant-numeric: tabular-nums }
details { margin-top: 16px } summary { cursor: pointer; color: var(--soft); font-size: 14px; margin-bottom: 12px }
.config { max-height: 32em }
.command { max-height: none }
.foot { margin-top: 44px; font-size: 12.5px; color: var(--soft) }
@media (max-width: 720px) {
  main { padding: 20px 14px 40px } h1 { font-size: 22px } .verdict { font-size: 16.5px }
  .tile { flex-basis: 40% } .pair { grid-template-columns: minmax(0, 1fr); gap: 14px }
  .tile dd { font-size: 18px } .broad { display: none } .narrow { display: block }
  h2 { margin-top: 32px } }
@media print { :root {
  --paper: #fff; --card: #fff; --ink: #111; --soft: #555; --rule: #ccc; --well: #f4f4f4; --warn: #b45309;
  --warn-well: #fff; --c0: #0f766e; --c1: #c2620a; --c2: #4f5bd5; --c3: #b83280; --c4: #6b8e23; --c5: #0e7fb8;
  --c6: #8b6f4e; --c7: #8a8f98; --good: #0f766e }
  body { font-size: 12px } main { max-width: none; padding: 0 }
  .well, .config { max-height: none; overflow: visible } h2 { break-after: avoid }
  .charts { grid-template-columns: repeat(2, 1fr) } .strip { display: none } }
"""
