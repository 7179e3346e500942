"""Options that the verbs of the journal share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Final

import typer

from broker.cli.exits import UsageError
from broker.errors import ConfigError
from broker.home import check, state_folder
from broker.journal.reading.segments import is_folder, listing
from broker.secret import masked
from broker.times import EPOCH, ns_of, seconds_of

if TYPE_CHECKING:  # verbs of NFP read times with this, and no records
    from broker.journal.reading.records import Record

_DEFAULT: Final = "Default: $XDG_STATE_HOME/headgate/journal."
Directory = Annotated[
    str | None,
    typer.Argument(metavar="[DIR]", help=f"The journal's directory. {_DEFAULT}", show_default=False),
]
Place = Annotated[
    str | None,
    typer.Argument(
        metavar="[DIR]", help=f"The journal's directory, or one segment. {_DEFAULT}", show_default=False
    ),
]
Writer = Annotated[
    str | None, typer.Option("--writer", "-w", metavar="NAME", help="Of this writer only: rank0, nfp, ...")
]


Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="From 2026-01-31T12:00 (UTC), or 10m ago.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before this time.")]


def directory(given: str | None) -> str:
    """The journal's directory: as given, else that of this user.

    Raises:
        ConfigError: this user has no home.
    """
    if given:
        return given
    found = state_folder("journal")
    check(found)
    return found


def check_writer(place: str, writer: str | None) -> None:
    """Accept a writer's name, if one was given, when it has a segment.

    Raises:
        ConfigError: it has none, or there is no such directory.
    """
    if writer is not None and is_folder(place) and not listing(place, writer):
        raise ConfigError(f"journal directory {masked(place)}: no segment of writer {writer[:64]}")


def moment_ns(word: str | None, option: str) -> int | None:
    """Ns since 1970 of ``2026-01-31T12:00`` (UTC unless it says otherwise) or ``10m`` (ago); None stays None.

    Raises:
        UsageError: it is neither.
    """
    if word is None:
        return None
    ago_s = seconds_of(word)
    if ago_s is not None:
        return time.time_ns() - int(ago_s * 1e9)
    try:
        return ns_of(word)
    except ValueError:
        raise UsageError(
            f"{option} {word[:64]!r}: expected a time such as 2026-01-31T12:00 or how long ago: 30s, 10m, 2h, 1d"
        ) from None


def clock(ts_ns: int, *, with_date: bool = True) -> str:
    """A time for people, UTC, to the microsecond.

    >>> clock(1_767_225_600_000_001_000)
    '2026-01-01 00:00:00.000001'
    """
    try:
        moment = EPOCH + timedelta(microseconds=ts_ns // 1000)
    except OverflowError:
        return f"{ts_ns} ns"
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f" if with_date else "%H:%M:%S.%f")


Type = Annotated[
    list[str] | None,
    typer.Option(
        "--type", "-t", metavar="TYPE", help="request, response, event, nfp, oslo, state; again for more."
    ),
]
Topic = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="GLOB", help="Topics such as 'kvs.*'; may be given again."),
]
User = Annotated[
    int | None, typer.Option("--user", min=0, metavar="UID", help="Of this userid, stamped or claimed.")
]
Direction = Annotated[
    str | None, typer.Option("--direction", "-d", metavar="DIRECTION", help="in, out or denied.")
]

TYPES: Final = ("request", "response", "event", "control", "nfp", "oslo", "state")
DIRECTIONS: Final = ("in", "out", "denied")


@dataclass(frozen=True)
class Wanted:
    """A filter; what is None or empty lets everything through."""

    types: Sequence[str] = ()
    topics: Sequence[str] = ()
    user: int | None = None
    direction: str | None = None

    def __call__(self, record: Record) -> bool:
        """Whether ``record`` is wanted."""
        return (
            (not self.types or (record.type or record.kind) in self.types)
            and (not self.topics or any(fnmatchcase(record.topic, each) for each in self.topics))
            and (
                self.user is None
                or self.user in (record.userid, record.claimed if record.delivered is None else None)
            )
            and (self.direction is None or record.direction == self.direction)
        )


def wanted(
    types: Sequence[str] | None, topics: Sequence[str] | None, user: int | None, direction: str | None
) -> Wanted:
    """The filter that the options describe.

    Raises:
        UsageError: a type or a direction that cannot be.
    """
    for each in types or ():
        if each not in TYPES:
            raise UsageError(f"--type {each[:64]!r}: expected one of {', '.join(TYPES)}")
    if direction is not None and direction not in DIRECTIONS:
        raise UsageError(f"--direction {direction[:64]!r}: expected one of {', '.join(DIRECTIONS)}")
    return Wanted(tuple(types or ()), tuple(topics or ()), user, direction)
