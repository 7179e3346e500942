"""Which records a person wants to see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Final

import typer

from broker.cli.exits import UsageError
from broker.journal.reading.records import Record

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
