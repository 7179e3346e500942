"""CPU of the pipeline over rows as an SVG of its own, light or dark as its reader has it."""

from collections.abc import Sequence
from typing import Any

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 66, 44
JOBS = {"batch": ("gold: every table", "response"), "ingest": ("bronze: decode, Parquet", "request")}
"""From the top of the bars down."""
STYLE = """\
svg { --request: #0b6485; --response: #6145b5; --ink: #14202a; --dim: #53626f;
  --sheet: #eef2f5; --card: #ffffff; --grid: #d5dde4;
  font: 12px system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", Arial, sans-serif; }
@media (prefers-color-scheme: dark) { svg { --request: #58b7db; --response: #b49cf5; --ink: #e4ebf0; --dim: #9fb0bd;
  --sheet: #10181f; --card: #17222b; --grid: #2b3a46; } }
text { fill: var(--dim); }
.big { font-size: 15px; font-weight: 650; fill: var(--ink); }
.sheet { fill: var(--sheet); }
.card { fill: var(--card); stroke: var(--grid); }
.grid { stroke: var(--grid); shape-rendering: crispEdges; }
.line { fill: none; stroke: var(--tone); stroke-width: 1.8; stroke-linejoin: round; }
.dot, .swatch { fill: var(--tone); }
.even { stroke: var(--dim); stroke-width: 1.2; stroke-dasharray: 4 4; fill: none; }
.tone-request { --tone: var(--request); }
.tone-response { --tone: var(--response); }
"""


def drawn(days: Sequence[dict[str, Any]]) -> str:
    """CPU seconds over rows, both from 0; the dashed lines go straight to the largest day."""
    most = max(day["rows"] for day in days)
    top = max(day[job]["cpu_s"] for day in days for job in JOBS) * 1.1

    def x(rows: float) -> float:
        return LEFT + rows / most * (WIDTH - LEFT - RIGHT)

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - seconds / top * (HEIGHT - TOP - BOTTOM)

    parts = [_sheet()]
    step = _step(top)
    for tick in range(int(top / step) + 1):
        at = y(tick * step)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tick * step:g} s</text>')
    for day in days:
        at, name = x(day["rows"]), f"{day['rows'] / 1e6:.0f} M"
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{name}</text>')
    for job, (name, tone) in JOBS.items():
        points = [(x(day["rows"]), y(day[job]["cpu_s"])) for day in days]
        parts.append(f'<path class="even" d="M{x(0):.1f} {y(0):.1f}L{x(most):.1f} {points[-1][1]:.1f}"/>')
        way = "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
        parts.append(f'<path class="line tone-{tone}" d="M{way}"/>')
        for day, (px, py) in zip(days, points, strict=True):
            each = f"{name}, {day['rows']:,} rows: {day[job]['cpu_s']:g} s of CPU"
            parts.append(
                f'<circle class="dot tone-{tone}" cx="{px:.1f}" cy="{py:.1f}" r="3.5"><title>{each}</title></circle>'
            )
        micros = days[-1][job]["cpu_s"] / most * 1e6
        parts.append(
            f'<text x="{points[-1][0] + 10:.1f}" y="{points[-1][1]:.1f}">{name.partition(":")[0]}</text>'
        )
        parts.append(
            f'<text x="{points[-1][0] + 10:.1f}" y="{points[-1][1] + 15:.1f}">{micros:.1f} µs a row</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _step(top: float) -> float:
    """Between two marks, of which there are three to eight."""
    size = 1.0
    while top / size > 8:
        size *= 2.5 if str(size)[0] == "2" else 2
    return size


def _sheet() -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="CPU of the pipeline over rows">\n<style>\n{STYLE}</style>\n'
        f'<rect class="sheet" width="{WIDTH}" height="{HEIGHT}"/>\n'
        f'<rect class="card" x="10" y="10" width="{WIDTH - 20}" height="{HEIGHT - 20}" rx="8"/>\n'
        '<text class="big" x="24" y="36">A day of messages, journal to tables: CPU over rows</text>\n'
        '<text x="24" y="54">Spark on two cores, with its start; dashed: from nothing to the largest day</text>'
    )
