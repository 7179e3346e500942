"""``headgate journal show``: records of a journal, filtered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from broker.cli import options
from broker.cli.exits import FAILED, OK
from broker.cli.journal import lines, shared_options
from broker.cli.screen import Screen
from broker.errors import ConfigError
from broker.journal.reading.records import Record, records
from broker.journal.reading.segments import Damage
from broker.journal.stores import is_url
from broker.secret import masked

EXAMPLES = (
    "headgate journal show                                   everything, oldest first",
    "headgate journal show DIR --type request --topic 'kvs.*' --limit 20",
    "headgate journal show DIR --direction denied --since 1h",
    "headgate journal show DIR --user 1000 --json | jq .payload",
)


class Damages:
    """Tells of damage on stderr as it is met, and counts it."""

    def __init__(self, verb: str, screen: Screen) -> None:
        self._verb = verb
        self._screen = screen
        self.count = 0

    def __call__(self, damage: Damage) -> None:
        """Tell of one damage and count it."""
        self.count += 1
        self._screen.note(f"journal {self._verb}", str(damage))


def read(
    place: str, since_ns: int | None, until_ns: int | None, writer: str | None, damages: Damages
) -> Iterator[Record]:
    """Records of a directory or a segment.

    Raises:
        ConfigError: there is neither, or it cannot be looked at.
    """
    try:
        if not is_url(place):
            os.stat(place)
    except OSError as error:
        raise ConfigError(f"journal directory {place}: {error.strerror}", error.errno) from None
    shared_options.check_writer(place, writer)
    try:
        yield from records(place, since_ns, until_ns, writer=writer, on_damage=damages)
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{masked(place)}: {what}, expected a directory or a segment") from None


def show(
    directory: shared_options.Place = None,
    types: shared_options.Type = None,
    topic: shared_options.Topic = None,
    user: shared_options.User = None,
    direction: shared_options.Direction = None,
    since: shared_options.Since = None,
    until: shared_options.Until = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most so many; 0: all.")] = 0,
    writer: shared_options.Writer = None,
    as_json: options.AsJson = False,
) -> int:
    """Print records: time, writer and number, direction, type, peer, user, topic, payload.

    Damage is stepped over and told on stderr. Exit codes: 0 done, 1 something is damaged, 2 wrong options, 78 no
    journal.
    """
    chosen = shared_options.wanted(types, topic, user, direction)
    since_ns, until_ns = (
        shared_options.moment_ns(since, "--since"),
        shared_options.moment_ns(until, "--until"),
    )
    screen = Screen(as_json)
    damages = Damages("show", screen)
    found = filter(chosen, read(shared_options.directory(directory), since_ns, until_ns, writer, damages))
    for record in islice(found, limit or None):
        lines.show(screen, record)
    return FAILED if damages.count else OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("journal show", show, EXAMPLES, argv)
