"""How a transport is described for its checks, and what the checks are made of: recorders, pairs of links."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from broker.errors import LinkClosed, LinkError
from broker.schemes import BUILT_IN, Capabilities, scheme_of
from broker.transport.link import Link, Listener, Options, Transport
from broker.wire.message import (
    Message,
    control,
    event,
)

PATIENCE_S = 15.0
"""How long a check waits for what must happen; generous, because it is only spent on failure."""
SOON_S = 0.02
"""How long a check waits for what must not happen."""


@dataclass
class Harness:
    """A transport and how to use it.

    Attributes:
        name: for test ids.
        transport: the transport.
        address: where to listen; "%d" is replaced by a number that no other listener has.
        listen, dial: keyword arguments of ``Options`` for either side: ``settings``, ``keys``, ``extra``.
        refusal: errno that ``admit`` returned -> errno that a refused dialer sees.
        prepare: called with both links before the check proper, e.g. to switch something on.
        stranger: opens a raw connection to a contact address that says nothing; returns how to send bytes on it
            and how to close it. None where there is no such thing.
    """

    name: str
    transport: Transport
    address: str
    listen: dict[str, Any] = field(default_factory=dict)
    dial: dict[str, Any] = field(default_factory=dict)
    refusal: Callable[[int], int] = lambda number: number
    prepare: Callable[[Link, Link], None] = lambda _near, _far: None
    stranger: Callable[[str], Awaitable[asyncio.StreamWriter]] | None = None
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def capabilities(self) -> Capabilities:
        """What the transport declares; of one with several built-in schemes, for this one."""
        built_in = BUILT_IN.get(scheme_of(self.address))
        return self.transport.capabilities if built_in is None else built_in.capabilities

    def new_address(self) -> str:
        """An address that no other listener has."""
        return self.address % next(self.numbers) if "%d" in self.address else self.address

    def listening(self, **more: Any) -> Options:
        """New options of a listener."""
        return _options(self.listen, more)

    def dialling(self, **more: Any) -> Options:
        """New options of a dialer."""
        return _options(self.dial, more)


def _options(given: dict[str, Any], more: dict[str, Any]) -> Options:
    extra = dict(given.get("extra", {}))
    return Options(**(given | {"extra": extra, "connect_timeout_s": PATIENCE_S} | more))


class Recorder:
    """A receiver that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.ends: list[LinkError] = []
        self.choked: list[bool] = []
        self._changed = asyncio.Event()

    def received(self, link: Link, messages: list[Message]) -> None:
        """As of ``Receiver``; never empty, and nothing behind the end."""
        assert messages, "received() with no messages"
        assert not self.ends, "received() after link_ended()"
        self.messages += messages
        self._changed.set()

    def link_ended(self, link: Link, error: LinkError) -> None:
        """As of ``Receiver``."""
        assert link.ended is error
        self.ends.append(error)
        self._changed.set()

    def link_choked(self, link: Link, choked: bool) -> None:
        """As of ``Receiver``."""
        self.choked.append(choked)
        self._changed.set()

    async def until(self, condition: Callable[[Recorder], object]) -> None:
        """Wait until ``condition(self)`` holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def count(self, number: int) -> list[Message]:
        """All messages, once there are so many."""
        await self.until(lambda self: len(self.messages) >= number or self.ends)
        assert len(self.messages) >= number, f"link ended after {len(self.messages)} of {number}: {self.ends}"
        return self.messages

    async def end(self) -> LinkError:
        """How the link ended; fails when it ends a second time soon after."""
        await self.until(lambda self: self.ends)
        await asyncio.sleep(SOON_S)
        assert len(self.ends) == 1, f"ended {len(self.ends)} times: {self.ends}"
        return self.ends[0]


@dataclass
class Pair:
    """Two connected links: ``near`` was dialled, ``far`` accepted; ``near_in`` and ``far_in`` record."""

    near: Link
    far: Link
    near_in: Recorder
    far_in: Recorder
    listener: Listener


class Accepting:
    """A listener's other half: starts every link with a recorder of its own."""

    def __init__(self) -> None:
        self.links: list[tuple[Link, Recorder]] = []
        self._more = asyncio.Event()

    def __call__(self, link: Link) -> None:
        """Start a link that was accepted."""
        recorder = Recorder()
        self.links.append((link, recorder))
        link.start(recorder)
        self._more.set()

    async def link(self, number: int) -> tuple[Link, Recorder]:
        """The link accepted as ``number``-th, from 0, and its recorder."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.links) <= number:
                self._more.clear()
                await self._more.wait()
        return self.links[number]


async def dial_pair(harness: Harness, listener: Listener, accepting: Accepting, options: Options) -> Pair:
    """Dial ``listener`` and let the dialer say the first word."""
    known = len(accepting.links)
    near, near_in = await harness.transport.dial(listener.contact_address, options), Recorder()
    near.start(near_in)
    near.send(control(0))
    near.flush()
    far, far_in = await accepting.link(known)
    await far_in.count(1)
    far_in.messages.clear()
    harness.prepare(near, far)
    return Pair(near, far, near_in, far_in, listener)


@contextlib.asynccontextmanager
async def connected(
    harness: Harness, listen: Options | None = None, dial: Options | None = None
) -> AsyncIterator[Pair]:
    """A pair of links; closes whatever is left of it."""
    accepting = Accepting()
    listener = await harness.transport.listen(harness.new_address(), accepting, listen or harness.listening())
    pair = None
    try:
        pair = await dial_pair(harness, listener, accepting, dial or harness.dialling())
        yield pair
    finally:
        for link, _recorder in accepting.links:
            link.abort(LinkClosed("check over"))
        accepting.links.clear()
        if pair is not None:
            pair.near.abort(LinkClosed("check over"))
            listener = pair.listener  # another one, if it was renewed
        await listener.stop()


async def failure_of(harness: Harness, listener: Listener, options: Options) -> LinkError | None:
    """Why ``listener`` cannot be dialled; None when it could."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            link = await harness.transport.dial(listener.contact_address, options)
    except LinkError as error:
        return error
    link.abort(LinkClosed("check over"))
    return None


def numbered(count: int, size: int = 0) -> list[Message]:
    """Events ``n.0``, ``n.1``, ... with payloads of ``size`` bytes; 0: with none."""
    return [event(f"n.{number}", b"x" * size if size else None) for number in range(count)]


def topics(messages: list[Message]) -> list[str | None]:
    """The topic of each."""
    return [message.topic for message in messages]


def send_all(link: Link, messages: list[Message]) -> None:
    """Queue all, then flush once."""
    for message in messages:
        link.send(message)
    link.flush()
