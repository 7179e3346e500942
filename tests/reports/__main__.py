"""``python -m tests.reports licences|coverage``: reports about the project as a whole, with an exit code for CI.

``licences`` fails (1) on a licence that is unknown or has a strong copyleft. ``coverage`` runs the fast tests and fails
where they fail, or with ``--least`` where less of the product is run; 2 when the package ``coverage`` is missing.
"""

import argparse
import json
import sys
from pathlib import Path

from tests.reports import licences, rooms


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reports", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    legal = verbs.add_parser("licences", help="of all locked packages")
    legal.add_argument("--lock", type=Path, default=licences.LOCK)
    legal.add_argument(
        "--complete", action="store_true", help="fail when a locked package is not installed here"
    )
    cover = verbs.add_parser("coverage", help="of the fast tests, by room")
    cover.add_argument(
        "--least", type=float, default=0.0, help="per cent of all statements that have to be run"
    )
    cover.add_argument("tests", nargs="*", help="files or folders (default: all)")
    for each in (legal, cover):
        each.add_argument("--json", type=Path, help="write the figures to this file")
    asked, more = parser.parse_known_args(words)
    return _licences(asked) if asked.verb == "licences" else _coverage(asked, more)


def _licences(asked: argparse.Namespace) -> int:
    found = licences.packages(asked.lock)
    print(licences.table(found))
    if asked.json:
        asked.json.write_text(json.dumps([one._asdict() for one in found], indent=1) + "\n")
    absent = asked.complete and any(one.verdict == "absent" for one in found)
    return 1 if absent or not all(one.good for one in found) else 0


def _coverage(asked: argparse.Namespace, more: list[str]) -> int:
    try:
        report, code = rooms.measure(more, asked.tests)
    except rooms.MissingError as error:
        print(f"tests.reports: {error}", file=sys.stderr)
        return 2
    print(rooms.table(report))
    if asked.json:
        figures = {
            room.name: {"statements": room.statements, "missed": room.missed} for room in rooms.rooms(report)
        }
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")
    if code == 0 and rooms.share(report) < asked.least:
        print(f"less than {asked.least:g} %", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
