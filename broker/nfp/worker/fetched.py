"""Files that arguments name by ``nf://`` URLs: fetched before the task runs (NFP, "Broker File Sharing Service").

``localise`` puts paths on the worker's disk in place of the URLs. Each content of a URL has a path of its own,
``FOLDER/PATH OF THE URL/DIGEST/NAME``. A path never changes its content, so a running task is not disturbed by what
other jobs and other workers of this machine, which share the folder, fetch later. A content that nobody has asked for
in ``KEPT_S`` is removed when another content of its URL comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Final

from broker.nfp.client.client import NfpClient
from broker.nfp.client.errors import FetchFailed
from broker.nfp.client.fetch import MARK_CHARS, Details, path_of
from broker.nfp.urls import is_url
from broker.safe_text import kind, text

KEPT_S: Final = 7 * 86_400.0
"""Longer than a task runs that was given the path."""
URLS_MAX: Final = 256
"""Different URLs in the arguments of one job."""
DEPTH_MAX: Final = 64
"""Lists and objects inside each other that are looked through."""
TEXT_MAX_BYTES: Final = 16 << 20
"""A file whose content becomes an argument."""

Fetch = Callable[[str], Awaitable[str | os.PathLike[str]]]
"""Brings a URL into the worker's cache folder, digest checked, and returns its path; raises when it cannot."""
Arguments = tuple[list[Any], dict[str, Any]]


async def fetch(client: NfpClient, folder: Path, url: str) -> Path:
    """Return the path, below ``folder``, of what ``url`` holds now.

    Raises:
        FetchFailed, JobTimeout: see ``NfpClient.fetch``.
    """
    names = path_of(url)
    home = folder.joinpath(*names)

    def place(details: Details) -> Path:
        return home / details.mark[:MARK_CHARS] / names[-1]

    found = await client.fetch(url, place)
    with contextlib.suppress(OSError):  # a folder that is shared by users
        os.utime(found.path)
    if not found.cached:
        await asyncio.to_thread(forget, home, found.path.parent)
    return found.path


def delete(folder: Path, pattern: str) -> dict[str, list[str]]:
    """Remove what ``pattern`` matches below ``folder``, and tell it as deployed NorFab does.

    Raises:
        ValueError: the pattern leaves the folder, or is none.
    """
    if not pattern or Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise ValueError(f"pattern {pattern[:64]!r}: expected one of names below the folder of fetched files")
    said: dict[str, list[str]] = {"deleted": [], "errors": []}
    for path in sorted(folder.glob(pattern), key=lambda path: -len(path.parts)):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            said["errors"].append(f"{path}: {error.strerror}")
        else:
            said["deleted"].append(str(path))
    return said


def forget(home: Path, fresh: Path) -> None:
    """Remove the contents in ``home`` that nobody has asked for lately, but ``fresh``; a failure harms nobody."""
    oldest = time.time() - KEPT_S
    for version in home.glob("[0-9a-f]" * MARK_CHARS):
        with contextlib.suppress(OSError):
            used = max(path.stat().st_mtime for path in (version, *version.iterdir()))
            if version != fresh and used < oldest:
                shutil.rmtree(version)


# -- arguments -----------------------------------------------------------------------------------


def urls_in(value: Any) -> list[str]:
    """Every URL in ``value``, looked for in lists, tuples and values of objects, each once and in order.

    Raises:
        FetchFailed: more than ``URLS_MAX``, or nested deeper than ``DEPTH_MAX``.
    """
    found: dict[str, None] = {}
    _collect(value, found, 0)
    return list(found)


def _collect(value: Any, found: dict[str, None], depth: int) -> None:
    if depth > DEPTH_MAX:
        raise FetchFailed(f"arguments nested deeper than {DEPTH_MAX}")
    if is_url(value):
        found[value] = None
        if len(found) > URLS_MAX:
            raise FetchFailed(f"more than {URLS_MAX} files in the arguments of one job")
    elif isinstance(value, dict):
        for one in value.values():
            _collect(one, found, depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            _collect(one, found, depth + 1)


async def localise(arguments: Arguments, fetch: Fetch, *, as_text: Collection[str] = ()) -> Arguments:
    """Arguments with each ``nf://`` URL replaced by the path of the fetched file.

    Args:
        arguments: (args, kwargs) of the job; left as they are.
        fetch: see ``Fetch``; asked once for each different URL, one after the other.
        as_text: names of keywords whose URLs are replaced by what the file says (UTF-8) instead.

    Returns: the very same object when it names no file.

    Raises:
        FetchFailed: a file could not be brought, or is no text or too long where text is wanted.
    """
    args, kwargs = arguments
    urls = urls_in([args, kwargs])
    if not urls:
        return arguments
    paths = {url: await _fetched(url, fetch) for url in urls}
    texts: dict[str, str] = {}
    for name in as_text:
        for url in urls_in(kwargs.get(name)):
            texts[url] = await asyncio.to_thread(_read, url, paths[url])
    return (
        _replaced(args, paths),
        {name: _replaced(value, texts if name in as_text else paths) for name, value in kwargs.items()},
    )


async def _fetched(url: str, fetch: Fetch) -> str:
    try:
        return os.fspath(await fetch(url))
    except Exception as error:
        said = text(error) or kind(error)
        raise FetchFailed(
            said if said.startswith(url) else f"fetching {url[:256]!r} failed: {said}"
        ) from error


def _read(url: str, path: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(TEXT_MAX_BYTES + 1)
        if len(content) > TEXT_MAX_BYTES:
            raise FetchFailed(
                f"{url[:256]!r} is longer than {TEXT_MAX_BYTES} bytes, too much for an argument"
            )
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise FetchFailed(f"{url[:256]!r} cannot be read as text: {text(error)}") from error


def _replaced(value: Any, by: dict[str, str]) -> Any:
    if isinstance(value, str):
        return by.get(value, value)
    if isinstance(value, dict):
        return {name: _replaced(one, by) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(one, by) for one in value]
    return value
