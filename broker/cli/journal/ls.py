"""``headgate journal ls``: the segments of a journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from broker.cli import options
from broker.cli.exits import FAILED, OK
from broker.cli.journal import shared_options
from broker.cli.screen import Screen, duration, progress_bar
from broker.journal.layout import CODECS, VERSION
from broker.journal.reading.verify import Contents, contents

EXAMPLES = (
    "headgate journal ls",
    "headgate journal ls DIR --json | jq .records",
)
HEADS: Final = (
    "writer", "rank", "run", "from", "records", "bytes", "begin (UTC)", "span", "codec", "state",
)  # fmt: skip


NARROW_HEADS: Final = ("writer", "records", "bytes", "begin (UTC)", "span", "state")


def row(each: Contents) -> Sequence[str]:
    """One segment as a line of the table."""
    return (
        each.writer,
        str(each.rank),
        each.run[:8],
        str(each.first_seq),
        str(each.records),
        str(each.size),
        shared_options.clock(each.first_ts)[:19] if each.first_ts is not None else "",
        duration(max(0, (each.last_ts or 0) - each.first_ts) / 1e9) if each.first_ts is not None else "",
        "+".join(CODECS[codec] for codec in each.codecs),
        state(each),
    )


def state(each: Contents) -> str:
    """Open (being written), sealed, damaged, or of a version that is not known here."""
    if each.version != VERSION:
        return f"version {each.version}, this program knows {VERSION}"
    if each.damaged:
        return "damaged"
    return "open" if each.open else "sealed"


def value(each: Contents) -> dict[str, Any]:
    """One segment for ``--json``."""
    return {
        "path": each.path,
        "writer": each.writer,
        "rank": each.rank,
        "run": each.run,
        "first_seq": each.first_seq,
        "records": each.records,
        "bytes": each.size,
        "first_ts_ns": each.first_ts,
        "last_ts_ns": each.last_ts,
        "codecs": [CODECS[codec] for codec in each.codecs],
        "payloads": each.payloads,
        "capture": "both" if each.both else "in",
        "state": state(each),
    }


def total(found: Sequence[Contents]) -> Sequence[str]:
    """The last line."""
    begins = [each.first_ts for each in found if each.first_ts is not None]
    ends = [each.last_ts for each in found if each.last_ts is not None]
    return (
        "total", "", "", "",
        str(sum(each.records for each in found)),
        str(sum(each.size for each in found)),
        shared_options.clock(min(begins))[:19] if begins else "",
        duration((max(ends) - min(begins)) / 1e9) if begins else "",
        "",
        f"{len(found)} segments",
    )  # fmt: skip


def ls(
    directory: shared_options.Directory = None,
    writer: shared_options.Writer = None,
    as_json: options.AsJson = False,
) -> int:
    """List the segments of a journal with totals: writer, rank, run, records, bytes, time, codec, sealed or open.

    Block headers are read, no records: `verify` checks everything. Exit codes: 0 done, 1 a header is damaged or of
    another version, 2 wrong options, 78 no journal.
    """
    screen = Screen(as_json)
    place = shared_options.directory(directory)
    shared_options.check_writer(place, writer)
    with progress_bar("segments", in_bytes=False) as update:
        found = contents(place, writer, update)
    rows = [row(each) for each in found]
    if len(found) > 1 and not as_json:
        rows.append(total(found))
    screen.records(HEADS, [value(each) for each in found], rows, NARROW_HEADS)
    return FAILED if any(each.damaged for each in found) else OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("journal ls", ls, EXAMPLES, argv)
