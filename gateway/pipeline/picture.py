"""The history as one picture: an SVG of its own, light, without program and without anything beside it.

Four charts on a sheet: traffic, latency, refusals, notifications or jobs, and below them what was found about order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Final, NamedTuple

from gateway.history.charts import Line, bounds, chart
from gateway.pipeline.reportlines import latency_lines, stacked_lines, traffic_lines, verdict
from gateway.pipeline.reportwords import mark, rate, short, size, span

WIDTH: Final = 1100
HEIGHT: Final = 560
MARGIN: Final = 20
GAP: Final = 16
HEAD: Final = 58
"""Height of the title."""
FOOT: Final = 54
"""Height of the sentence on order."""
PER_CHARACTER: Final = (6.6, 8.6)
"""Width of a small and of a large character of a legend, about."""
STYLE: Final = """\
svg { --request: #0b6485; --response: #6145b5; --event: #a8500a; --ok: #16784a; --bad: #b8281f; --warn: #8a5a00;
  --control: #5f6d79; --pink: #c4267e; --olive: #7d8a00; --ink: #14202a;
  font: 12px system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", Arial, sans-serif; }
text { fill: #53626f; }
.big { font-size: 19px; font-weight: 650; fill: #14202a; }
.name { font-size: 13.5px; font-weight: 650; fill: #14202a; }
.said { font-size: 14px; fill: #14202a; }
.sheet { fill: #eef2f5; }
.card { fill: #ffffff; stroke: #d5dde4; }
.grid { stroke: #d5dde4; shape-rendering: crispEdges; }
.line { fill: none; stroke: var(--tone); stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.bar, .swatch { fill: var(--tone); }
.hint { fill: transparent; }
"""
TONES: Final = ("request", "response", "event", "ok", "bad", "warn", "control", "pink", "olive", "ink")


class Panel(NamedTuple):
    """One chart: what it says, its lines, how values read, and what stands there without any."""

    title: str
    note: str
    found: dict[str, Any]
    lines: Sequence[Line]
    form: Callable[[float], str]
    empty: str
    bars: bool = False
    zeros: bool = False


def drawn(answers: dict[str, dict[str, Any]]) -> str:
    """The answers of all questions as an SVG document."""
    wide = (WIDTH - 2 * MARGIN - GAP) / 2
    high = (HEIGHT - HEAD - FOOT - MARGIN - 2 * GAP) / 2
    cards = [
        _card(panel, MARGIN + at % 2 * (wide + GAP), HEAD + at // 2 * (high + GAP), wide, high)
        for at, panel in enumerate(_panels(answers))
    ]
    tones = "".join(f".tone-{name} {{ --tone: var(--{name}); }}\n" for name in TONES)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="Headgate history">\n<style>\n{STYLE}{tones}</style>\n'
        f'<rect class="sheet" width="{WIDTH}" height="{HEIGHT}"/>\n{_title(answers["summary"])}'
        f"{''.join(cards)}{_sentence(answers['order'])}</svg>\n"
    )


def _panels(answers: dict[str, dict[str, Any]]) -> list[Panel]:
    traffic, latency, denied = answers["traffic"], answers["latency"], answers["denied"]
    refused = [Line("refused", "warn", denied["n"])]
    jobs, notes = answers["jobs"], answers["notifications"]
    last = (
        Panel("Jobs", f"per {span(jobs['step_s'])}", jobs, stacked_lines(jobs), short, "No jobs.", bars=True)
        if jobs["total"] or not notes["total"]
        else Panel("Notifications", f"per {span(notes['step_s'])}", notes, stacked_lines(notes), short, "", bars=True)
    )  # fmt: skip
    return [
        Panel("Traffic", "messages/s in", traffic, traffic_lines(traffic), rate, "No messages."),
        Panel("Latency", "until the first answer", latency, latency_lines(latency)[:-1], mark, "No calls.", zeros=True),
        Panel("Denied access", f"per {span(denied['step_s'])}", denied, refused, short, "Nothing refused.", bars=True),
        last,
    ]  # fmt: skip


def _title(summary: dict[str, Any]) -> str:
    words = (
        f"{bounds(summary)} · {short(summary['messages'])} messages · {size(summary['wire_bytes'])} on the wire · "
        f"{len(summary['services'])} services · {len(summary['ranks'])} ranks"
    )
    return (
        f'<text class="big" x="{MARGIN}" y="28">Headgate history</text>\n'
        f'<text x="{MARGIN}" y="46">{escape(words)}</text>\n'
    )


def _card(panel: Panel, x: float, y: float, wide: float, high: float) -> str:
    head = (
        f'<text class="name" x="{x + 12:g}" y="{y + 20:g}">{escape(panel.title)}'
        f'<tspan dx="7" font-weight="400" font-size="11.5" fill="#53626f">{escape(panel.note)}</tspan></text>'
    )
    place = (x + 2, y + 44, wide - 8, high - 48)
    drawing = chart(
        panel.title, panel.found["times"], panel.found["step_s"], panel.lines, panel.form,
        bars=panel.bars, zeros=panel.zeros, place=place,
    )  # fmt: skip
    inside = (
        _legend(panel.lines, x + 12, y + 38) + drawing
        if drawing
        else f'<text x="{x + 12:g}" y="{y + 42:g}">{escape(panel.empty)}</text>'
    )
    return (
        f'<rect class="card" x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="8"/>{head}{inside}\n'
    )


def _legend(lines: Sequence[Line], x: float, y: float) -> str:
    parts = []
    for line in lines:
        parts.append(
            f'<rect class="swatch tone-{escape(line.tone)}" x="{x:g}" y="{y - 7:g}" width="12" height="5" rx="2"/>'
            f'<text x="{x + 17:g}" y="{y:g}">{escape(line.name)}</text>'
        )
        x += 17 + sum(PER_CHARACTER[each.isupper()] for each in line.name) + 14
    return "".join(parts)


def _sentence(answer: dict[str, Any]) -> str:
    mood, sentence = verdict(answer)
    tone = {"ok": "ok", "bad": "bad"}.get(mood, "control")
    y = HEIGHT - FOOT - MARGIN + GAP / 2
    return (
        f'<rect class="card" x="{MARGIN}" y="{y:g}" width="{WIDTH - 2 * MARGIN}" height="{FOOT}" rx="8"/>'
        f'<rect class="swatch tone-{tone}" x="{MARGIN}" y="{y:g}" width="5" height="{FOOT}" rx="2"/>'
        f'<text class="said" x="{MARGIN + 18}" y="{y + FOOT / 2 + 5:g}">'
        f'<tspan font-weight="650">Order of deliveries</tspan><tspan dx="10">{escape(sentence)}</tspan></text>\n'
    )
