"""From an address to a Handle.

Retries follow deployed libflux: a broker that is just starting has no socket yet, so a missing or silent
one is tried again after 16 ms, then twice as long each time; a broker that says no is believed at once.
"""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

from broker.backoff import Backoff
from broker.client.handle import Handle
from broker.client.reconnecting import Reconnect, Reconnecting
from broker.errors import ConfigError, LinkBroken
from broker.transport.link import Options
from broker.transport.registry import dial

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from broker.client.connection import Limits
    from broker.transport.link import Link

RETRIES: Final = 5
"""Times an absent broker is tried again, as libflux does; FLUX_LOCAL_CONNECTOR_RETRY_COUNT overrides."""
FIRST_PAUSE_S: Final = 0.016
"""Pause before the first retry; each following one is twice as long, half a second in all."""
PATIENT_S: Final = 0.5
"""A transport that was at it longer has tried again by itself for ``connect_timeout_s``, as ZeroMQ does: it is not
asked once more."""
_ABSENT: Final = (errno.ENOENT, errno.ECONNREFUSED)


def default_uri() -> str:
    """FLUX_URI, which a broker sets for the programs it starts, else HEADGATE_URI.

    Raises:
        ConfigError: neither is set.
    """
    uri = os.environ.get("FLUX_URI") or os.environ.get("HEADGATE_URI")
    if not uri:
        raise ConfigError("no broker named: give an address, or set FLUX_URI or HEADGATE_URI")
    return uri


def default_retries() -> int:
    """FLUX_LOCAL_CONNECTOR_RETRY_COUNT, else RETRIES.

    Raises:
        ConfigError: it is no number from 0 on.
    """
    text = os.environ.get("FLUX_LOCAL_CONNECTOR_RETRY_COUNT")
    if text is None:
        return RETRIES
    if not text.isdecimal():
        raise ConfigError(f"FLUX_LOCAL_CONNECTOR_RETRY_COUNT={text!r}: expected a number from 0 on")
    return int(text)


class Connecting:
    """The result of ``connect``: enter it with ``async with``, or await it and close the Handle yourself."""

    def __init__(
        self,
        uri: str | None,
        options: Options | None,
        limits: Limits | None,
        retries: int | None,
        reconnect: Reconnect | bool,
    ) -> None:
        self._uri = uri
        self._options = options
        self._limits = limits
        self._retries = retries
        self._reconnect = Reconnect() if reconnect is True else reconnect or None
        self._handle: Handle | None = None

    def __await__(self) -> Generator[Any, None, Handle]:
        return self._connect().__await__()

    async def __aenter__(self) -> Handle:
        self._handle = await self._connect()
        return self._handle

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._handle is not None
        await self._handle.close()

    async def _connect(self) -> Handle:
        uri = self._uri or default_uri()
        left = default_retries() if self._retries is None else self._retries
        options = self._options or Options()
        backoff = Backoff(FIRST_PAUSE_S, inf, spread=False)
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                link = await dial(uri, options)
                return Handle(link, self._limits, self._reconnecting(uri, options, link))
            except LinkBroken as error:
                waited = clock() - began > PATIENT_S
                # only a broker that is not there yet is tried again; one that says no means it
                if left <= 0 or waited or error.errno not in _ABSENT:
                    raise
            await asyncio.sleep(backoff.after())
            left -= 1

    def _reconnecting(self, uri: str, options: Options, link: Link) -> Reconnecting | None:
        """The dialer of the next link after ``link``; None where the far end does not keep the events that a client
        misses.
        """
        if self._reconnect is None or link.replay is None:
            return None
        # ``resume`` was for this link: what the next one resumes is ``Position``'s to say
        extra = {name: value for name, value in options.extra.items() if name != "resume"}
        following = replace(options, extra=extra)
        return Reconnecting(link.peer.address, lambda: dial(uri, following), self._reconnect)


def connect(
    uri: str | None = None,
    *,
    options: Options | None = None,
    limits: Limits | None = None,
    retries: int | None = None,
    reconnect: Reconnect | bool = True,
) -> Connecting:
    """Connect to a broker.

    ::

        async with broker.client.connect() as h:
            print(await h.size())

    Args:
        uri: ``local:///path``, or any scheme a transport is registered for; None is ``default_uri()``.
        options: what the transport should know (timeout, certificates); None is its defaults.
        limits: what the handle may hold; None is ``Limits()``.
        retries: how often an absent broker is tried again; None is ``default_retries()``.
        reconnect: over ``ws://`` and ``wss://``, dial again when the link is lost (``Connection``), with these pauses;
            False: that is the end. A gateway that says that another attempt would fail the same way is believed.

    Raises:
        LinkRefused: the broker said no (errno 1: we are a guest and guests may not). LinkBroken: nobody is
        there. ConfigError: no address, or one that no transport understands.
    """
    return Connecting(uri, options, limits, retries, reconnect)
