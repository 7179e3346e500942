"""The style sheet of the report: the dashboard's colours, by media query instead of a button."""

from typing import Final

STYLE: Final = """\
:root {
  color-scheme: light dark;
  --bg: #eef2f5; --card: #ffffff; --sunk: #f5f8fa; --line: #d5dde4; --ink: #14202a; --muted: #53626f; --ok: #16784a;
  --warn: #8a5a00; --bad: #b8281f; --request: #0b6485; --response: #6145b5; --event: #a8500a; --control: #5f6d79;
  --pink: #c4267e; --olive: #7d8a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #0c1217; --card: #141c23; --sunk: #10171d; --line: #2a3641; --ink: #e3eaf0; --muted: #9aa9b6; --ok: #52c58f;
    --warn: #e0b04a; --bad: #ff8a80; --request: #56bbdb; --response: #b3a0f5; --event: #f0a561; --control: #93a2af;
    --pink: #f472b6; --olive: #c8d64b;
  }
}
* { box-sizing: border-box; }
html {
  font: 13px/1.45 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", Arial, sans-serif;
  background: var(--bg); color: var(--ink); font-variant-numeric: tabular-nums;
}
body { margin: 0 auto; max-width: 1400px; padding: 16px; }
h1, h2, p, ul, dl, dd { margin: 0; padding: 0; }
h1 { font-size: 20px; }
h2 { font-size: 13px; font-weight: 650; margin-bottom: 2px; }
small { font-weight: 400; font-size: 11.5px; color: var(--muted); }
header p, footer { color: var(--muted); margin-top: 2px; }
footer { margin-top: 14px; font-size: 12px; }
dl { display: flex; flex-wrap: wrap; gap: 6px 28px; margin: 14px 0; }
dt { color: var(--muted); font-size: 11.5px; }
dd { font-size: 18px; font-weight: 650; }
main { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 12px; }
.block {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; min-width: 0;
  display: grid; gap: 16px; align-content: start;
}
.wide { grid-column: 1 / -1; grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); }
section { min-width: 0; }
ul { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 12px; color: var(--muted); }
li { display: inline-flex; align-items: center; gap: 6px; }
li i { width: 12px; height: 4px; border-radius: 2px; background: var(--tone); }
svg { display: block; width: 100%; height: auto; }
text { fill: var(--muted); font-size: 11px; }
.grid { stroke: var(--line); shape-rendering: crispEdges; }
.line { fill: none; stroke: var(--tone); stroke-width: 1.7; stroke-linejoin: round; stroke-linecap: round; }
.bar { fill: var(--tone); }
.hint { fill: transparent; }
.hint:hover { fill: var(--muted); opacity: .18; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: 3px 10px 3px 0; border-bottom: 1px solid var(--line); }
th { text-align: left; font-weight: 500; color: var(--muted); font-size: 11px; }
td { overflow-wrap: anywhere; min-width: 11ch; }
td:first-child, td.broad { min-width: 17ch; }
.number { text-align: right; }
.number, .slim { white-space: nowrap; }
td.number, td.slim { min-width: 0; }
.empty { color: var(--muted); padding: 4px 0; }
.verdict { padding: 7px 12px; background: var(--sunk); border-left: 3px solid var(--control); }
.verdict.ok { border-color: var(--ok); }
.verdict.bad { border-color: var(--bad); }
.tone-request { --tone: var(--request); }
.tone-response { --tone: var(--response); }
.tone-event { --tone: var(--event); }
.tone-ok { --tone: var(--ok); }
.tone-bad { --tone: var(--bad); }
.tone-warn { --tone: var(--warn); }
.tone-control { --tone: var(--control); }
.tone-pink { --tone: var(--pink); }
.tone-olive { --tone: var(--olive); }
.tone-ink { --tone: var(--ink); }
@media (max-width: 900px) { main { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 620px) {
  svg { overflow: visible; margin: 8px 0; }
  text { font-size: 17px; }
  .when { transform: translateY(6px); }
  .when:nth-of-type(even) { display: none; }
}
@media print { .block { break-inside: avoid; } }
"""
