"""The table on the terminal and the JSON file."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.targets import Group, Row

CONTENDERS: dict[Group, tuple[str, ...]] = {
    "broker": ("headgate", "pure Python", "flux-core", "byte relay", "generator"),
    "libflux": ("headgate", "pure Python", "flux-core", "generator"),
    "gateway": ("headgate", "pure Python", "two processes", "nats-server", "crossbar", "generator"),
    "nfp": ("headgate", "NorFab", "generator"),
    "oslo": ("headgate", "RabbitMQ", "fake:", "raw echo", "generator"),
    "journal": ("headgate", "off", "plain read", "Python loop", "generator"),
    "spark": ("headgate", "plain Spark", "plain DuckDB", "generator"),
}
COLOURS = {
    "aim reached": "green",
    "floor holds": "yellow",
    "MISSED": "bold red",
    "measured": "none",
    "not measured": "dim",
}
BAR_CELLS = 12
MARKS = "<!-- benchmark table of {}: begin -->", "<!-- benchmark table of {}: end -->"
WIDTH = 212


def show(rows: list[Row], console: Console) -> None:
    """Print a table for each group that was measured: one line a row of the issues' tables."""
    for group in CONTENDERS:
        if chosen := [row for row in rows if row.target.group == group]:
            _show(group, chosen, console)
    for row in rows:
        if row.value is None and row.note:
            console.print(f"not measured: {row.target.work}: {row.note}", highlight=False)


def _show(group: Group, rows: list[Row], console: Console) -> None:
    table = Table(title=f"The {group}: ratios within this run, medians over the rounds", title_justify="left")
    table.add_column("work")
    for name in CONTENDERS[group]:
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("figure", "lowest-highest", "floor", "aim"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("towards the aim", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in rows:
        colour = COLOURS[row.verdict]
        table.add_row(*cells(row), bar(row), f"[{colour}]{row.verdict}[/]")
    console.print(table)


def cells(row: Row) -> list[str]:
    target = row.target
    sign = "≥" if target.better == "more" else "≤"
    return [
        target.work,
        *(row.figures.get(name, "") for name in CONTENDERS[target.group]),
        "" if row.value is None else f"{row.value:.2f} {target.unit}",
        ""
        if row.spread is None or row.spread[0] == row.spread[1]
        else f"{row.spread[0]:.2f}-{row.spread[1]:.2f}",
        "" if target.floor is None else f"{sign} {target.floor:g}",
        "" if target.aim is None else f"{sign} {target.aim:g}",
    ]


def bar(row: Row) -> str:
    """Full when the aim (or the only bound) is reached."""
    filled = min(BAR_CELLS, round(row.share * BAR_CELLS))
    return "█" * filled + "·" * (BAR_CELLS - filled)


def write(path: Path, rows: list[Row], about: dict[str, Any]) -> None:
    """The JSON file: the rows with everything behind them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {**about, "rows": [row.as_json() for row in rows]}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def put_into(document: Path, rows: list[Row]) -> None:
    """Replace each measured group's table, which stands between two comments of a Markdown document.

    Where nothing could be measured, the table stays as it is.

    Raises:
        ValueError: the document has no such comments for a group.
    """
    text = document.read_text()
    for group in CONTENDERS:
        chosen = [row for row in rows if row.target.group == group]
        if all(row.value is None for row in chosen):
            continue
        begin, end = (mark.format(group) for mark in MARKS)
        head, found, rest = text.partition(begin)
        _old, closed, tail = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"{document} has no {begin} ... {end}")
        text = f"{head}{begin}\n{_markdown(group, chosen)}\n{end}{tail}"
    document.write_text(text)


def _markdown(group: Group, rows: list[Row]) -> str:
    names = CONTENDERS[group][:-1]
    heads = ["work", "figure", "floor", "aim", "verdict", *names]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        work, *_, figure, _spread, floor, aim = cells(row)
        lines.append([work, figure, floor, aim, row.verdict, *(row.figures.get(n, "") for n in names)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def console() -> Console:
    """As wide as the table needs when the output is no terminal."""
    probe = Console()
    return probe if probe.is_terminal else Console(width=WIDTH)
