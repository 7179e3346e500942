"""A wing as a service of a Flux broker: one table of handlers, over a link that is made again whenever it ends.

For what goes on without the broker: over ``local://`` and ZeroMQ a Handle's link is its last one.

``Publisher`` sends events through a link that may be away, or behind: they are published or dropped, and nobody waits.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from broker.backoff import Backoff
from broker.client.connection import Limits
from broker.client.dialing import connect
from broker.client.handle import Handle
from broker.client.service import Service
from broker.errors import HeadgateError
from broker.identity import Role
from broker.serving.request import Handler
from broker.transport.link import Options
from broker.wire.message import event
from broker.wire.payload import encode_json

log = logging.getLogger("headgate")

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
"""Between two attempts to reach a broker that is gone: twice as long each time, up to this."""
TASKS_MAX: Final = 8192
"""Requests under way: each waits for what the wing does."""
WAITING_MAX: Final = 1024
"""Requests that wait behind those; beyond it EAGAIN."""
EVERYBODY: Final = Role.OWNER | Role.USER | Role.ADMIN
"""Roles that may call methods about which rules of the wing decide."""
TRUSTED: Final = Role.OWNER | Role.ADMIN
"""Roles that may see what concerns other users."""
OTHERWISE: Final = ""
"""In place of a method's name: the handler of topics that no method has."""

Methods = Mapping[str, tuple[Handler, int]]
"""By name: handler, and the roles that may call it."""
WORD_CHARS_MAX: Final = 128
"""The longest name that stands in a topic as it is."""


def offer(service: Service, methods: Methods) -> None:
    """Give ``service`` all of ``methods``."""
    for name, (handler, allow) in methods.items():
        if name == OTHERWISE:
            service.otherwise(handler, allow=allow)
        else:
            service.add(name, handler, allow=allow)


class Bridge:
    """The service of one wing on one broker, from ``start`` to ``stop``.

    Args:
        who: the name of its owner, for the log.
        name: of the service.
        uri: the broker; the connection has to be its owner's.
        options: what the transport should know; None: its defaults.
        publisher: publishes over each link; None: nobody does.

    Attributes:
        handle: None while there is no link.
        connections: how often a link was made.
    """

    def __init__(
        self, who: str, name: str, uri: str, options: Options | None, publisher: Publisher | None
    ) -> None:
        self.handle: Handle | None = None
        self.connections = 0
        self._who = who
        self._name = name
        self._uri = uri
        self._options = options
        self._publisher = publisher
        self._methods: Methods = {}
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = False
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)

    async def start(self, methods: Methods) -> None:
        """Connect and register the service with ``methods``.

        Raises:
            LinkError: nobody is there, or it refuses. RpcError: EEXIST, the name is taken; EPERM, we are a guest there.
        """
        self._methods = methods
        await self._connect()
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name=f"service {self._name}")

    async def stop(self) -> None:
        """Answer what waits with ECANCELED, leave. Harmless twice."""
        self._stopping = True
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        await self._leave()

    @property
    def leaving(self) -> bool:
        """True once the service goes, or its link has: callers that end now have not left by themselves."""
        return self._stopping or self.handle is None or self.handle.ended is not None

    async def writable(self) -> None:
        """Return when the link takes more; at once while there is none."""
        if self.handle is not None:
            await self.handle.writable()

    async def _connect(self) -> None:
        limits = Limits(service_tasks=TASKS_MAX, service_waiting=WAITING_MAX)
        handle = await connect(self._uri, options=self._options, limits=limits, retries=0)
        try:
            service = handle.service(self._name)
            offer(service, self._methods)
            await service.open()
        except BaseException:
            await handle.close()  # or the name would stay taken
            raise
        self._use(handle)
        self.connections += 1

    def _use(self, handle: Handle | None) -> None:
        self.handle = handle
        if self._publisher is not None:
            self._publisher.handle = handle

    async def _leave(self) -> None:
        handle = self.handle
        self._use(None)
        if handle is not None:
            await handle.close()

    async def _keep(self) -> None:
        """Wait for the end of the link, make it again, for ever."""
        clock = asyncio.get_running_loop().time
        while True:
            assert self.handle is not None
            began = clock()
            error = await self.handle.wait_ended()
            log.warning("the link of %s to the broker at %s has ended: %s", self._who, self._uri, error)
            try:
                await self._leave()
            except Exception:
                log.exception("the link of %s to %s could not be closed in order", self._who, self._uri)
            await self._again(clock() - began)
            log.info("%s is back at the broker at %s", self._who, self._uri)

    async def _again(self, lived_s: float) -> None:
        while True:
            await asyncio.sleep(self._backoff.after(lived_s))
            lived_s = 0.0
            try:
                await self._connect()
                return
            except (HeadgateError, OSError) as error:
                log.debug("no link to %s yet: %s", self._uri, error)
            except Exception:
                log.exception("the link of %s to %s could not be made", self._who, self._uri)


def word_of(name: str) -> str:
    """One word of a topic that stands for ``name``: what a word cannot have is percent-encoded, and a word that would
    be longer than ``WORD_CHARS_MAX`` is a digest.

    >>> word_of("a.b c"), len(word_of("x" * 200))
    ('a%2Eb%20c', 64)
    """
    word = quote(name, safe="").replace(".", "%2E")
    return word if len(word) <= WORD_CHARS_MAX else hashlib.sha256(name.encode()).hexdigest()


class Publisher:
    """Publishes what it can; each event says in ``lost`` how many were dropped before it.

    Attributes:
        handle: the link, None while there is none: events are then dropped, like those of a choked one.
        sent, dropped: counts.
    """

    def __init__(self) -> None:
        self.handle: Handle | None = None
        self.sent = 0
        self.dropped = 0
        self._untold = 0

    def has_room(self) -> bool:
        """Whether an event would leave now; False counts it as dropped."""
        handle = self.handle
        if handle is not None and handle.ended is None and not handle.link.outbox.choked:
            return True
        self.dropped += 1
        self._untold += 1
        return False

    def miss(self, events: int) -> None:
        """So many never came here, or cannot be told: the next event says so."""
        self._untold += events

    def publish(self, topic: str, content: dict[str, Any], **stamp: int) -> None:
        """Send an event; only where there is room. ``stamp``: its flags, userid and rolemask.

        Raises:
            ProtocolError: ``content`` cannot be written as JSON.
        """
        assert self.handle is not None
        if self._untold:
            content["lost"] = self._untold
        self.handle.send(event(topic, encode_json(content), **stamp))
        self._untold = 0
        self.sent += 1
