"""What providers answer over HTTP: of bounded size, within bounded time, from the address that was asked alone."""

from __future__ import annotations

import functools
import json
import os
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from broker.nesting import read_json

ANSWER_BYTES: Final = 256 * 1024
"""Largest answer that is read; documents of large providers have 10 KiB."""
FETCH_S: Final = 5.0
"""Longest time for one answer."""
FAULTS: Final = (OSError, ValueError, TimeoutError, aiohttp.ClientError)
"""What asking raises: nobody answers, not in time, too much, or what is no answer."""


class Reply(NamedTuple):
    """An answer."""

    status: int
    body: bytes

    def ok(self) -> Reply:
        """Itself.

        Raises:
            ValueError: its status is not 200.
        """
        if self.status != 200:
            raise ValueError(f"status {self.status}, expected 200")
        return self

    def object(self) -> dict[str, Any]:
        """See `object_of`."""
        return object_of(self.body)


def object_of(text: bytes) -> dict[str, Any]:
    """The JSON object that a text is.

    Raises:
        ValueError: it is none, or one of its objects has a key twice.
    """
    try:
        found = read_json(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"expected a JSON object: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object")
    json.loads(text, object_pairs_hook=_each_once)
    return found


def _each_once(pairs: list[tuple[str, Any]]) -> None:
    """Refuse an object in which a key stands twice: readers differ in which one they take."""
    if len({key for key, _value in pairs}) != len(pairs):
        raise ValueError("expected each key once in a JSON object")


@functools.lru_cache(maxsize=4)
def trusting(_file: str | None) -> ssl.SSLContext:
    """What trusts the authorities of this machine, or of ``$SSL_CERT_FILE``; reading them all takes a while."""
    return ssl.create_default_context()


async def fetch(
    address: str,
    *,
    form: Mapping[str, str] | None = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Get an address, or post a form or bytes to it. No redirect is followed: an answer comes from where the settings
    say, and by https if they do.

    Raises:
        OSError, ValueError, TimeoutError, aiohttp.ClientError: as `FAULTS` says.
    """
    timeout = aiohttp.ClientTimeout(total=FETCH_S)
    # as it comes: a small answer must not unpack into a large one
    said = {"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})}
    async with (
        aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
        session.request(
            "GET" if form is None and body is None else "POST",
            address,
            data=form if body is None else body,
            headers=said,
            allow_redirects=False,
            ssl=trusting(os.environ.get("SSL_CERT_FILE")) if address.startswith("https:") else True,
        ) as response,
    ):
        taken = bytearray()
        async for chunk in response.content.iter_chunked(64 * 1024):
            taken += chunk
            if len(taken) > ANSWER_BYTES:
                raise ValueError(f"more than {ANSWER_BYTES} bytes, expected a small document")
        return Reply(response.status, bytes(taken))


def reason_of(error: BaseException) -> str:
    """What went wrong, for the log."""
    return str(error) or type(error).__name__
