"""Options that the verbs of the journal share."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from broker.cli.exits import UsageError
from broker.errors import ConfigError
from broker.home import check, state_folder
from broker.journal.reading.files import is_folder
from broker.journal.reading.segments import listing
from broker.secret import masked

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
_AGO: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|min|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


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
    if ago := _AGO.fullmatch(word.strip()):
        return time.time_ns() - int(float(ago[1]) * _SECONDS[ago[2]] * 1e9)
    try:
        moment = datetime.fromisoformat(word.strip())
    except ValueError:
        raise UsageError(
            f"{option} {word[:64]!r}: expected a time such as 2026-01-31T12:00 or how long ago: 30s, 10m, 2h, 1d"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def clock(ts_ns: int, *, with_date: bool = True) -> str:
    """A time for people, UTC, to the microsecond.

    >>> clock(1_767_225_600_000_001_000)
    '2026-01-01 00:00:00.000001'
    """
    try:
        moment = _EPOCH + timedelta(microseconds=ts_ns // 1000)
    except OverflowError:
        return f"{ts_ns} ns"
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f" if with_date else "%H:%M:%S.%f")
