"""``headgate pipeline report``: the history as one HTML page; no Java and no Spark is needed."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from broker.cli.parsing import Parser
from broker.times import ns_of

_EPILOG: Final = """\
Examples:
  headgate pipeline report --warehouse DIR -o report.html              all there is, at most the newest seven days
  headgate pipeline report --warehouse DIR -o noon.html --since 2026-03-02T12:00 --until 2026-03-02T13:00

The page is the dashboard's History with its data inside: it needs no server and asks nobody for anything. Times given
here are UTC, the page has those of its reader's clock. It names users, topics and sizes: its mode is 0600.
Exit codes: 0 written, 1 failed, 2 wrong options
"""


def arguments() -> Parser:
    """The options of the verb."""
    parser = Parser(
        "pipeline report",
        "Write charts and tables of a warehouse as one self-contained HTML page.",
        _EPILOG,
    )
    add = parser.add_argument
    add("-w", "--warehouse", metavar="DIR|URL", required=True, help="What headgate pipeline wrote.")
    add("-o", "--output", metavar="FILE", required=True, help="The page; one that is there is replaced.")
    add(
        "--since",
        metavar="TIME",
        type=when,
        help="2026-03-01, 2026-03-01T12:30 (UTC), or seconds since 1970.",
    )
    add("--until", metavar="TIME", type=when, help="The end, not included (default: the end of the data).")
    add("--days", metavar="N", type=float, default=7.0, help="How much, unless --since says it (default 7).")
    return parser


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    given = arguments().parse_args(argv)

    from broker.obstacles import obstacle
    from gateway.pipeline import report

    for name in ("pyarrow", "deltalake"):
        import_module(name)

    try:
        summary = report.write(
            given.warehouse,
            given.output,
            since=given.since,
            until=given.until,
            days=given.days,
        )
    except OSError as error:
        raise obstacle(f"{error.filename2 or error.filename}: {error.strerror}", error) from None
    print(f"{given.output}: {summary['messages']} messages, {len(summary['runs'])} runs of the pipeline")
    return 0


def when(text: str) -> float:
    """A time as seconds since 1970; without a zone it is UTC.

    Raises:
        ValueError: it is none.
    """
    try:
        return float(text)
    except ValueError:
        return ns_of(text) / 1e9
