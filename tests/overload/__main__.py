"""Loads beside victims, by hand.

    python -m tests.overload [LOAD ...] [--seconds S] [--seed N] [--seeds N] [--json FILE] [--page FILE]

LOAD is a name of the table (``--list``), the first word of some, or ``all``; without any it is those without a gateway.
Exit codes: 0 the bars hold, 1 one does not, 2 wrong usage, 5 this machine cannot do it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.conftest import short_directory
from tests.overload.figures import HEAD, Figures, line, row
from tests.overload.report import MARKS, markdown
from tests.overload.run import open_arena, possible
from tests.overload.seeds import keep
from tests.overload.table import TABLE, beside, chosen, is_random
from tests.proof.report import write_table

SHOWN = 8
"""Bars below which a load stays that are printed."""

CROWDED = 3.0
"""Above this many times as busy as it has cores the machine itself is late; two times is what a load makes of it."""


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit code."""
    asked = _parser().parse_args(words)
    if asked.list:
        print(*TABLE, sep="\n")
        return 0
    if not possible():
        print("only root can connect as somebody else", file=sys.stderr)
        return 5
    try:
        names = chosen(asked.loads) if asked.loads else [name for name in TABLE if not beside(name)]
    except KeyError as error:
        print(f"no load is called {error}; --list shows all", file=sys.stderr)
        return 2
    results: list[Figures] = []
    print(line(HEAD), flush=True)
    for place in ("", "web", "nfp", "oslo"):
        some = [name for name in names if beside(name) == place]
        if some:
            results += _run(some, asked, place)
    if asked.page:
        write_table(asked.page, markdown(results), MARKS)
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    return int(any(figures.below() for figures in results))


def _run(names: list[str], asked: argparse.Namespace, place: str) -> list[Figures]:
    """One load after the other on one stand; on a new one behind a load that has broken something."""
    todo = [
        (name, seed)
        for name in names
        for seed in (range(asked.seed, asked.seed + asked.seeds) if is_random(name) else [0])
    ]
    results: list[Figures] = []
    while len(results) < len(todo):
        with short_directory() as rundir, open_arena(rundir, place) as arena:
            for name, seed in todo[len(results) :]:
                results.append(arena.run(name, asked.seconds, seed))
                _show(results[-1])
                if results[-1].broken():
                    break
    return results


def _show(figures: Figures) -> None:
    print(line(row(figures)), flush=True)
    below = figures.below()
    for said in below[:SHOWN]:
        print(f"    {said[:160]}", flush=True)
    if figures.seed and below and (figures.broken() or figures.crowding < CROWDED):
        keep(figures.load, figures.seed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.overload", description="One client costs only itself."
    )
    parser.add_argument("loads", nargs="*", metavar="LOAD")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load (default 5)")
    parser.add_argument("--seed", type=int, default=1, help="of the first random load (default 1)")
    parser.add_argument("--seeds", type=int, default=1, help="how many random loads (default 1)")
    parser.add_argument("--json", type=Path, help="all figures, too")
    parser.add_argument("--page", type=Path, help="put the table into this Markdown document, too")
    parser.add_argument("--list", action="store_true", help="the names of the loads")
    return parser


if __name__ == "__main__":
    sys.exit(main())
