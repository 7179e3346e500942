"""``nf://`` URLs in a task's arguments become files before the task runs (NFP, "Broker File Sharing Service")."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from broker.errors import HeadgateError
from broker.nfp.urls import is_url

URLS_MAX: Final = 256
"""Different URLs in the arguments of one job."""
DEPTH_MAX: Final = 64
"""Lists and objects inside each other that are looked through."""
TEXT_MAX_BYTES: Final = 16 << 20
"""A file whose content becomes an argument."""

Fetch = Callable[[str], Awaitable[str | os.PathLike[str]]]
"""Brings a URL into the worker's cache folder, digest checked, and returns its path; raises when it cannot."""
Arguments = tuple[list[Any], dict[str, Any]]


class FetchFailed(HeadgateError):
    """A file that the arguments name could not be fetched; the text says which and why. The task is not run."""


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
    except FetchFailed:
        raise
    except Exception as error:
        text = str(error) or type(error).__name__
        raise FetchFailed(
            text if text.startswith(url) else f"fetching {url[:256]!r} failed: {text}"
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
        raise FetchFailed(f"{url[:256]!r} cannot be read as text: {error}") from error


def _replaced(value: Any, by: dict[str, str]) -> Any:
    if isinstance(value, str):
        return by.get(value, value)
    if isinstance(value, dict):
        return {name: _replaced(one, by) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(one, by) for one in value]
    return value
