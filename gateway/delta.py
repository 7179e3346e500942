"""A table of Delta Lake, opened: in a folder of this machine, or in a store (``broker.journal.stores``).

What ``deltalake`` is told of a store stands here alone, made of the same URL that pyarrow takes. Tables of a store were
tested on S3 only. A log that cannot be read is an error that names the file; so is a commit that is empty, as a machine
that loses its power leaves it: ``deltalake`` would pass over it, and over its rows, without a word.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from broker.errors import HeadgateError
from broker.journal import stores
from broker.journal.stores import is_url
from broker.secret import masked, masked_in

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOG: Final = "_delta_log"
PARTITION: Final = "dt"
"""UTC date of the row's time; names the directory of a file (``dt=2026-01-31``)."""
PATIENCE: Final = {"connect_timeout": "5s", "timeout": "20s", "max_retries": "10", "retry_timeout": "60s"}
"""How long ``deltalake`` waits for a store that does not answer, each time and in all."""
LOOKED: Final = 100
"""Commits that are looked at: as many lie between two checkpoints at most."""
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m|↳")
_FRAMES: Final = re.compile(r"^\s*\d+: .*", re.DOTALL | re.MULTILINE)
"""Where in the library it happened, which says nothing to anybody."""
_LINE_MAX: Final = 400


class TableError(HeadgateError):
    """A table cannot be read; the text says which file it is, or what the store said."""

    fault = "operator"


@dataclass(frozen=True)
class File:
    """One file of a table.

    Attributes:
        path: within the place of the table.
        stats: as Delta's log has them.
        written_ms: when it came into the table, ms since 1970; 0: not known yet.
    """

    path: str
    date: str
    rows: int
    size: int
    stats: str = ""
    written_ms: int = 0


def place_of(given: str | os.PathLike[str]) -> str:
    """A folder as an absolute path, also one that is given as ``file://``; the URL of a store as it is."""
    text = os.fspath(given)
    if text.lower().startswith("file://"):
        text = unquote(urlsplit(text).path)
    return text if is_url(text) else os.path.abspath(text)


def filesystem(place: str) -> tuple[Any, str]:
    """Pyarrow's file system of a place, and the path in it.

    Raises:
        ConfigError: nothing here speaks that scheme.
    """
    if is_url(place):
        return stores.filesystem(place)
    from pyarrow import fs

    return fs.LocalFileSystem(), place


def listed(system: Any, folder: str, *, recursive: bool = False) -> list[Any]:
    """Pyarrow's ``FileInfo`` of everything in a folder, or below it; empty where there is none, or where it is just
    being made: pyarrow lists first and looks behind that whether the folder is there.

    Raises:
        OSError: it cannot be listed.
    """
    from pyarrow import fs

    try:
        return list(system.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=recursive)))
    except FileNotFoundError:
        return []


def address_of(place: str) -> tuple[str, dict[str, str]]:
    """What ``deltalake`` wants to know: where the table is, and how the store is reached.

    >>> address_of("s3://k:s@b/w/rpc?region=eu-west-1&scheme=http&endpoint_override=h:9000")[1]["AWS_ENDPOINT_URL"]
    'http://h:9000'
    """
    if not is_url(place):
        return place, {}
    url = urlsplit(place)
    user, _, host = url.netloc.rpartition("@")
    if url.scheme != "s3":
        return f"{url.scheme}://{url.netloc}{url.path}", dict(PATIENCE)
    key, _, secret = user.partition(":")
    told = {name: values[-1] for name, values in parse_qs(url.query).items()}
    endpoint = told.get("endpoint_override", "")
    if endpoint and "://" not in endpoint:
        endpoint = f"{told.get('scheme', 'https')}://{endpoint}"
    plain = (endpoint or os.environ.get("AWS_ENDPOINT_URL", "")).startswith("http:")
    options = {
        "AWS_ACCESS_KEY_ID": unquote(key),
        "AWS_SECRET_ACCESS_KEY": unquote(secret),
        "AWS_REGION": told.get("region", ""),
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true" if plain else "",
        "aws_conditional_put": "etag",  # of two commits with one number, one fails
    }
    return f"s3://{host}{url.path}", {**PATIENCE, **{name: value for name, value in options.items() if value}}


def opened(place: str) -> DeltaTable | None:
    """The table in a place as it is now; None where there is none.

    Raises:
        TableError: its log is damaged, or the store does not answer.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    where, options = address_of(place)
    try:
        found = DeltaTable(where, storage_options=options)
    except TableNotFoundError:
        found = None
    except DeltaError as error:
        with plain_errors(place):
            why = _damaged(place) or f"{masked(place)}: {brief(error)}"
        raise TableError(f"{why}; {_remedy(place)}") from None
    except OSError as error:
        raise TableError(f"{masked(place)}: {brief(error)}") from None
    version = -1 if found is None else found.version()
    if not is_url(place) and (empty := _empty(place, version)):
        raise TableError(f"{empty}: a commit that is lost: the file is empty; {_remedy(place)}")
    return found


def files_of(table: DeltaTable) -> list[File]:
    """The files of a table, by date and name."""
    import pyarrow as pa

    rows = pa.table(table.get_add_actions(flatten=True))
    if not rows.num_rows:
        return []
    columns = ("path", f"partition.{PARTITION}", "num_records", "size_bytes", "modification_time")
    fields = zip(*(rows[name].to_pylist() for name in columns), strict=True)
    files = (
        File(path, str(date), count, size, written_ms=written) for path, date, count, size, written in fields
    )
    return sorted(files, key=lambda each: (each.date, each.path))


def _commit(place: str, version: int) -> str:
    return os.path.join(place, LOG, f"{version:020d}.json")


def _empty(place: str, version: int) -> str:
    """The newest commit of a folder without content, of those since the last checkpoint; "" when there is none."""
    for number in range(version, max(-1, version - LOOKED), -1):
        with contextlib.suppress(OSError):
            if os.stat(_commit(place, number)).st_size == 0:
                return _commit(place, number)
    return ""


def _damaged(place: str) -> str:
    """Which commit cannot be read, or is missing among others, the newest; "" when none is."""
    system, log = filesystem(stores.joined(place, LOG))
    numbers = {}
    for each in listed(system, log):
        stem, _dot, ending = each.base_name.partition(".")
        if ending == "json" and stem.isdecimal():
            numbers[int(stem)] = each.path
    for number in range(max(numbers, default=-1), min(numbers, default=0) - 1, -1):
        if number not in numbers:
            return f"{log}/{number:020d}.json: a commit that is missing"
        with system.open_input_stream(numbers[number]) as file:
            lines = file.read().splitlines()
        try:
            if lines and all(isinstance(json.loads(line), dict) for line in lines):
                continue
        except ValueError:
            pass
        return f"{numbers[number]}: a commit that cannot be read: it is not lines of JSON"
    return "" if 0 in numbers else f"{log}: the first commits are missing"


def refuse_without_log(place: str) -> None:
    """Raise where a table has files and no log: it is not empty, its log is lost.

    Raises:
        TableError: with what to do.
    """
    system, folder = filesystem(place)
    with plain_errors(place):
        found = listed(system, folder)
    if any(each.base_name.startswith("dt=") for each in found):
        raise TableError(
            f"{masked(stores.joined(place, LOG))}: missing, though the table has files; {_remedy(place)}"
        )


def _remedy(place: str) -> str:
    """What is to be done about a log that is damaged."""
    path, mark, query = masked(place).partition("?")
    root, _, name = path.rpartition("/")
    root = f"{root}{mark}{query}"
    if name == "messages":
        return (
            "put the file back from a copy, or make the tables anew: "
            "headgate pipeline batch --journal DIR --warehouse NEW"
        )
    return (
        f"put the file back from a copy, or delete {path} and make it anew: "
        f"headgate pipeline batch --warehouse {root} --since 1970-01-01"
    )


def brief(error: BaseException) -> str:
    """What a library said, in one line, and no URL with what may be secret in it.

    >>> brief(OSError("GET https://u:pw@h/w?sig=k failed"))
    'GET https://h/w?sig=*** failed'
    """
    text = masked_in(_FRAMES.sub("", _COLOURS.sub(" ", str(error)), count=1))
    return " ".join(text.split())[:_LINE_MAX] or type(error).__name__


@contextlib.contextmanager
def plain_errors(place: str) -> Iterator[None]:
    """What a store says that fails, or a disk, or a file that is no Parquet, is a TableError of one line.

    Raises:
        TableError: with the place.
    """
    from pyarrow import ArrowException

    try:
        yield
    except (OSError, ArrowException) as error:
        raise TableError(f"{masked(place)}: {brief(error)}", getattr(error, "errno", None) or None) from error
