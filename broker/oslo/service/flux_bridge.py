"""The service ``oslo`` on a Flux broker, and notifications through its link: each request runs as a task until it has
answered.

Concurrency: one event loop, which waits for nothing of the pipelines. The reply of a call comes in the thread of the
sockets, and from there to the loop. Casts and fan-outs may block until they are handed over, so they have a few threads
of their own; what waits for one is bounded. A caller that has left is not waited for, but its call takes room until its
time is over: the pipelines know no taking back. While the Flux broker is away the pipelines go on; notifications of
that time are counted as lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.client import Request
from broker.client.bridge import EVERYBODY, OTHERWISE, TRUSTED, Bridge, Methods
from broker.errors import RpcError
from broker.identity import Credentials
from broker.oslo.contract import OsloFailure, Settings
from broker.oslo.service import asking, policy
from broker.oslo.service.notifications import EventAnnouncer, NotificationListening
from broker.oslo.service.policy import CALL, CAST, CallRule
from broker.oslo.service.topics import (
    SERVICE,
    Asked,
    StatusPayload,
    WhichTopics,
    asked,
    body_of,
    error_of,
    result_of,
)
from broker.transport.link import Options
from broker.wire.payload import read_request

if TYPE_CHECKING:
    from broker.oslo.client.session import ClientSession

FIGURES_S: Final = 0.3
"""How long rooms may take that are asked for figures: whoever asks us waits a little longer."""
TOPICS_MAX: Final = 1000
"""Topics in one answer."""
CALLS_MAX: Final = 8192
"""Calls under way, those of callers that have left included; beyond it EAGAIN."""
CASTS_MAX: Final = 1024
"""Casts that wait for a thread or are being handed over; beyond it EAGAIN."""
THREADS: Final = 8
"""Casts handed over at a time: each may wait a moment for a node that was just heard of."""

OpenSession = Callable[[Settings], "ClientSession"]


@dataclass(frozen=True, slots=True)
class FluxBridgeConfig:
    """One bridge.

    Attributes:
        client: how it finds the pipelines.
        rules: who may call what, apart from owners; after them nobody.
        call_timeout_s: how long a call waits when it does not say.
        call_timeout_max_s: the most that it may say.
        notify: (exchange, topic) whose notifications are published; () none.
        notify_pool: the pool that listens to them.
        notify_public: publish them for everybody; False: for owners.
    """

    client: Settings
    rules: tuple[CallRule, ...] = ()
    call_timeout_s: float = 60.0
    call_timeout_max_s: float = 3600.0
    notify: tuple[tuple[str, str], ...] = (("openstack", "notifications"),)
    notify_pool: str = "headgate"
    notify_public: bool = False


def open_client(settings: Settings) -> ClientSession:
    """The session of this process."""
    from broker.oslo.client import open_session

    return open_session(settings)


class FluxBridge:
    """The bridge of one node's pipelines on a Flux broker.

    Args:
        config: rules, times, notifications.
        uri: the Flux broker; the connection has to be its owner's.
        options: what the transport should know; None: its defaults.
        open_session: the way into the pipelines; closed by ``stop``.

    Attributes:
        announcer: counts of events.
    """

    def __init__(
        self,
        config: FluxBridgeConfig,
        uri: str,
        *,
        options: Options | None = None,
        open_session: OpenSession = open_client,
    ) -> None:
        self.announcer = EventAnnouncer(public=config.notify_public)
        self._bridge = Bridge("oslo", SERVICE, uri, options, self.announcer)
        self._config = config
        self._open_session = open_session
        self._session: ClientSession | None = None
        self._threads = ThreadPoolExecutor(THREADS, "oslo casts")
        self._calls: set[asyncio.Future[bytes]] = set()
        self._casts: set[asyncio.Future[None]] = set()
        self._sent = 0
        self._listening: NotificationListening | None = None
        self._asking: dict[str, asyncio.Task[Any]] = {}

    async def start(self) -> None:
        """Open the pipelines, connect and register.

        Raises:
            LinkError: nobody is there, or it refuses. RpcError: EEXIST, another bridge is there; EPERM, we are a guest
            there. ConfigError: a certificate cannot be used.
        """
        try:
            session = await self.open()
            await self._bridge.start(self.table())
        except BaseException:
            await self.stop()
            raise
        if self._config.notify:
            config = self._config
            self._listening = NotificationListening(
                session, config.notify, config.notify_pool, self.announcer.take
            )
            self._listening.start()

    async def open(self) -> ClientSession:
        """Open the pipelines alone; ``start`` does, and ``stop`` closes them.

        Raises:
            ConfigError: a certificate cannot be used.
        """
        self._session = await asyncio.to_thread(self._open_session, self._config.client)
        return self._session

    async def stop(self) -> None:
        """Answer what waits with ECANCELED, leave, close the port. Harmless twice."""
        await self._bridge.stop()
        if self._listening is not None:
            await self._listening.stop()
            self._listening = None
        self._threads.shutdown(
            wait=False, cancel_futures=True
        )  # what is being handed over goes on in its thread
        session, self._session = self._session, None
        if session is not None:
            await asyncio.to_thread(session.close)

    def counts(self) -> dict[str, Any]:
        """What the bridge counts."""
        listening = self._listening
        return {
            "connections": self._bridge.connections,
            "calls": len(self._calls),
            "casts": len(self._casts),
            "sent": self._sent,
            "notifications": listening.received if listening is not None else 0,
            "notifications_lost": listening.lost if listening is not None else 0,
            "notifications_failed": listening.failed if listening is not None else 0,
            "events": self.announcer.sent,
            "events_dropped": self.announcer.dropped,
            "events_unreadable": self.announcer.unreadable,
        }

    # ------------------------------------------------------------ what ``oslo.*`` does

    def table(self) -> Methods:
        """What is called by which name."""
        return {
            OTHERWISE: (self.send, EVERYBODY),  # oslo.EXCHANGE.TOPIC.METHOD: ``policy`` decides who may
            "send": (self.send, EVERYBODY),
            "status": (self.status, TRUSTED),
            "calls": (self.calls, TRUSTED),
            "topics.list": (self.topics_list, EVERYBODY),
        }

    async def send(self, request: Request) -> dict[str, Any]:
        """``oslo.EXCHANGE.TOPIC.METHOD`` and ``oslo.send``."""
        session = self._session
        assert session is not None
        what = asked(request.topic, request.payload)
        who = Credentials(request.userid, request.rolemask)
        send = what.send
        policy.check(self._config.rules, who, what.address, what.method, send.mode, ctxt=bool(send.ctxt))
        body = body_of(what, who)
        try:
            if send.mode == CALL:
                return {"result": result_of(await self._call(session, what, body))}
            if send.mode == CAST:
                cast = partial(session.cast, what.address, body, mandatory=send.mandatory, retry=0)
                await self._hand_over(cast)
            else:
                await self._hand_over(partial(session.fanout, what.address, body, retry=0))
        except OsloFailure as error:
            raise error_of(error, what) from error
        return {"sent": True}

    async def _call(self, session: ClientSession, what: Asked, body: bytes) -> bytes:
        """Call and wait for the body of the reply.

        Raises:
            OsloFailure: as of ``ClientSession.call``. RpcError: EINVAL, the caller would wait longer than is allowed;
            EAGAIN, too many are under way.
        """
        timeout_s = self._config.call_timeout_s if what.send.timeout is None else what.send.timeout
        if timeout_s > self._config.call_timeout_max_s:
            text = f"timeout: saw {timeout_s:g} s, expected {self._config.call_timeout_max_s:g} s at most"
            raise RpcError(errno.EINVAL, text)
        if len(self._calls) >= CALLS_MAX:
            raise RpcError(errno.EAGAIN, f"{len(self._calls)} calls are under way")
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[bytes] = loop.create_future()

        def done(outcome: bytes | OsloFailure) -> None:  # in the thread of the sockets
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
                loop.call_soon_threadsafe(self._settle, reply, outcome)

        session.start_call(what.address, body, done, timeout_s=timeout_s, mandatory=what.send.mandatory)
        self._sent += 1
        self._calls.add(reply)
        return await reply

    def _settle(self, reply: asyncio.Future[bytes], outcome: bytes | OsloFailure) -> None:
        self._calls.discard(reply)
        if reply.done():
            return  # its caller has left
        if isinstance(outcome, OsloFailure):
            reply.set_exception(outcome)
        else:
            reply.set_result(outcome)

    async def _hand_over(self, send: partial[None]) -> None:
        """Send in a thread.

        Raises:
            OsloFailure: as of ``ClientSession.cast`` with one attempt. RpcError: EAGAIN, too many are under way.
        """
        if len(self._casts) >= CASTS_MAX:
            raise RpcError(errno.EAGAIN, f"{len(self._casts)} casts are under way")
        cast = asyncio.get_running_loop().run_in_executor(self._threads, send)
        self._casts.add(cast)
        cast.add_done_callback(self._casts.discard)
        await asyncio.shield(cast)
        self._sent += 1

    async def status(self, request: Request) -> dict[str, Any]:
        """``oslo.status``."""
        read_request(StatusPayload, request.payload)
        rooms = await self._once("status", lambda: asking.statuses(self._config.client.ipc_dir))
        return {"rooms": rooms, "bridge": self.counts()}

    async def calls(self, request: Request) -> dict[str, Any]:
        """``oslo.calls``."""
        read_request(StatusPayload, request.payload)
        rooms = await self._once(
            "calls", lambda: asking.statuses(self._config.client.ipc_dir, FIGURES_S, figures=True)
        )
        return {
            "figures": {
                f"{room} {name}": told
                for room, said in rooms.items()
                for name, told in ((said or {}).get("figures") or {}).items()
            },
            "silent": [room for room, said in rooms.items() if said is None],
        }

    async def _once(self, name: str, ask: Callable[[], Any]) -> Any:
        """Ask in a thread; who asks meanwhile is told the same: however many they are, it is one thread."""
        under_way = self._asking.get(name)
        if under_way is None:
            under_way = asyncio.get_running_loop().create_task(asyncio.to_thread(ask), name=f"oslo {name}")
            self._asking[name] = under_way
            under_way.add_done_callback(lambda _task: self._asking.pop(name))
        return await asyncio.shield(under_way)

    async def topics_list(self, request: Request) -> dict[str, Any]:
        """``oslo.topics.list``."""
        which = read_request(WhichTopics, request.payload)
        who = Credentials(request.userid, request.rolemask)
        found = await self._once("topics", lambda: asking.listened(self._config.client))
        if found is None:
            raise RpcError(errno.EHOSTUNREACH, "no directory of this node has answered")
        seen = [
            row
            for row in found
            if which.exchange in ("", row["exchange"])
            and policy.may_see(self._config.rules, who, row["exchange"], row["topic"])
        ]
        return {"topics": seen[:TOPICS_MAX], "more": len(seen) > TOPICS_MAX}
