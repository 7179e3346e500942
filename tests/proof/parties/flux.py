"""A party that speaks Flux messages by the client library, over a UNIX socket, CURVE, or a WebSocket to the gateway."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import ssl
from typing import Any

from broker.cli.address import curve_client
from broker.client import LATER, Request, connect
from broker.client.handle import Handle
from broker.client.subscriptions import Subscription
from broker.errors import HeadgateError, LinkError, ProtocolError, RpcError
from broker.identity import Role
from broker.transport import unix as _unix  # noqa: F401 - now: a guest may not be able to read where this tree stands
from broker.transport.link import Options
from broker.transport.websocket.control import Conversation
from broker.wire.message import NODEID_ANY, PRIVATE, Message, request
from broker.wire.payload import decode_json, encode_json
from tests.proof import record
from tests.proof.layout import GATEWAYS, HOSTS, OWNER, Call, Party, beside
from tests.proof.parties.party import Load, Place, die_with_parent, run

WINDOW = 64
"""Calls of one kind that may be open at a time: a frozen broker must not make a backlog without end."""
ANYBODY = int(Role.OWNER | Role.USER)
CONNECT_S = 5.0
DONE_ERRNO = errno.ENODATA


def main(party: Party, place: Place) -> int:
    return run(lambda: Flux(party, place))


class Flux(Load):
    """One connection at a time; on each it provides, calls, publishes and subscribes."""

    async def session(self) -> None:
        handle = await self._connected()
        try:
            at = await self._at(handle)
        except HeadgateError as error:
            await handle.close()
            raise ConnectionError(str(error)) from error
        conn = self.log.conn()
        host = beside(self.party, at)
        self.log.up(conn, at, self.userid, self.party.roles, host=host, kind=self.party.by)
        working: list[asyncio.Task[None]] = []
        try:
            await self._offer(handle, conn)
            working = self._work(handle, conn)
            await self._while_it_lasts(handle)
        except HeadgateError as error:
            self.log.note(f"{conn}: {type(error).__name__}: {error}"[:300])
        finally:
            self.log.down(conn, "closed" if handle.ended is None else _why(handle.ended))
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            await handle.close()

    async def _while_it_lasts(self, handle: Handle) -> None:
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(handle.wait_ended()), loop.create_task(self.leaving.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _connected(self) -> Handle:
        """As the user that it is: a UNIX socket tells the broker who connects."""
        own = os.geteuid()
        try:
            if self.party.by == "unix" and self.userid != own:
                os.seteuid(self.userid)
            return await connect(self.place.uri, options=self._options(), retries=0, reconnect=False)
        except HeadgateError as error:
            raise ConnectionError(str(error)) from error
        finally:
            os.seteuid(own)
            die_with_parent()

    async def _at(self, handle: Handle) -> int | str:
        """The gateway that the balancer has chosen is known by its rank."""
        if self.party.at != "gateways":
            return self.party.at
        async with asyncio.timeout(CONNECT_S):
            rank = int((await handle.rpc("attr.get", {"name": "rank"})).json()["value"])
        return next(name for name in GATEWAYS if HOSTS[name] == rank)

    def _options(self) -> Options:
        extra: dict[str, Any] = {}
        if self.party.by == "curve":
            extra["curve"] = curve_client(self.place.cert, self.place.server_key)
        elif self.party.by == "wss":
            extra |= {"token": self.place.token, "ssl": ssl.create_default_context(cafile=self.place.cert)}
        return Options(connect_timeout_s=CONNECT_S, extra=extra)

    # -- what it offers ----------------------------------------------------------------------------

    async def _offer(self, handle: Handle, conn: str) -> None:
        def echo(asked: Request) -> dict[str, Any]:
            said = asked.json()
            self.log.serve(conn, said, asked.userid, asked.rolemask)
            return {"id": said["id"], "by": conn, "k": 0}

        def stream(asked: Request) -> object:
            said = asked.json()
            self.log.serve(conn, said, asked.userid, asked.rolemask)
            for k in range(said["count"]):
                asked.respond({"id": said["id"], "by": conn, "k": k})
            asked.respond_error(DONE_ERRNO)
            return LATER

        for name in self.party.provide:
            await handle.serve(name, {"echo": (echo, ANYBODY), "own": (echo, OWNER)})
            self.log.provides(conn, name)
        for name in self.party.streams:
            await handle.serve(name, {"echo": (stream, ANYBODY)})
            self.log.provides(conn, name)

    # -- what it does ------------------------------------------------------------------------------

    def _work(self, handle: Handle, conn: str) -> list[asyncio.Task[None]]:
        loop = asyncio.get_running_loop()
        works = [self._listen(handle, conn, prefix) for prefix in self.party.subscribe]
        counts: dict[str, int] = {}
        for one in self.party.calls:
            works.append(Calling(self, handle, conn, one, counts).go())
        if self.party.topic:
            works.append(self.every(self.party.every_s, lambda n: self._publish(handle, conn, n)))
        return [loop.create_task(self._quietly(work), name=f"{conn} {n}") for n, work in enumerate(works)]

    async def _quietly(self, work: Any) -> None:
        """The end of the link ends everything on it, and `session` tells it."""
        try:
            await work
        except LinkError:
            return
        except RpcError as error:
            self.log.note(f"{type(error).__name__}: {error}"[:300])

    async def _publish(self, handle: Handle, conn: str, number: int) -> None:
        private = bool(self.party.private) and number % self.party.private == self.party.private - 1
        topic = self.party.topic
        ident = self.log.next_id()
        await handle.writable()
        self.open.add(ident)
        self.log.publish(conn, ident, topic, private=private)
        payload = {"id": ident, "pad": "x" * self.party.pad} if self.party.pad else {"id": ident}
        try:
            self.log.published(ident, await self._number(handle, topic, payload, private))
        except RpcError as error:
            self.log.unpublished(ident, error.errno)
        except (LinkError, asyncio.CancelledError):
            self.log.unpublished(ident, -1)
            raise
        finally:
            self.ended(ident)

    async def _number(self, handle: Handle, topic: str, payload: dict[str, Any], private: bool) -> int:
        """Publish; the library writes no identity, so who forges one makes the request by hand."""
        if not self.forged:
            return await handle.publish(topic, payload, private=private)
        data = base64.b64encode(encode_json(payload)).decode()
        content = {"topic": topic, "flags": PRIVATE if private else 0, "payload": data}
        answer = await handle.request(request("event.publish", encode_json(content), nodeid=0, **self.forged))
        if answer.errnum:
            raise RpcError(answer.errnum, "", "event.publish")
        return int(decode_json(answer.payload)["seq"])

    async def _listen(self, handle: Handle, conn: str, prefix: str) -> None:
        missed = Missed(handle)
        async with handle.subscribe(prefix, overflow="mark") as events:
            self.log.subscribed(conn, prefix)
            await self._hear(events, conn, missed)

    async def _hear(self, events: Subscription, conn: str, missed: Missed) -> None:
        async for event in events:
            if event.lost:
                self.log.gap(conn, event.lost)
            if more := missed.more():
                self.log.gap(conn, more)
            try:
                ident = event.json()["id"]
            except (ProtocolError, KeyError):
                continue  # none of ours
            self.log.event(conn, ident, event.sequence, event.topic, event.userid)


class Calling:
    """One series of calls of one connection."""

    def __init__(self, load: Flux, handle: Handle, conn: str, call: Call, counts: dict[str, int]) -> None:
        self.load, self.handle, self.conn, self.what = load, handle, conn, call
        self.counts = counts
        self.open = 0

    async def go(self) -> None:
        await self.load.every(self.what.every_s, self._stream if self.what.stream else self._single)

    def _called(self) -> dict[str, Any]:
        """Numbers count the calls to one service, whatever series they are of."""
        number = self.counts[self.what.to] = self.counts.get(self.what.to, -1) + 1
        node = record.ANY if self.what.node is None else self.what.node
        return self.load.call(
            self.conn,
            self.what.to,
            number,
            node=node,
            stream=self.what.stream or None,
            expect=self.what.expect or None,
        )

    @property
    def _topic(self) -> str:
        return f"{self.what.to}.{self.what.method}"

    async def _single(self, _number: int) -> None:
        if self.open >= WINDOW:
            return
        await self.handle.writable()
        if self.handle.ended is not None:
            raise self.handle.ended
        said = self._called()
        nodeid = NODEID_ANY if self.what.node is None else self.what.node
        try:
            asked = request(self._topic, encode_json(said), nodeid=nodeid, **self.load.forged)
            future = self.handle.request(asked)
        except LinkError:
            self._lost(said["id"])
            raise
        self.open += 1
        future.add_done_callback(lambda done: self._answered(said["id"], done))

    def _answered(self, ident: str, done: asyncio.Future[Message]) -> None:
        self.open -= 1
        if done.cancelled() or done.exception() is not None:
            self._lost(ident)
            return
        message = done.result()
        said = {} if message.errnum else decode_json(message.payload)
        self.load.log.answer(ident, message.errnum, k=said.get("k"), by=said.get("by"))
        self.load.ended(ident)

    def _lost(self, ident: str) -> None:
        self.load.log.gave_up(ident, "lost")
        self.load.ended(ident)

    async def _stream(self, _number: int) -> None:
        await self.handle.writable()
        if self.handle.ended is not None:
            raise self.handle.ended
        said = self._called()
        ident, log = said["id"], self.load.log
        nodeid = record.ANY if self.what.node is None else self.what.node
        try:
            async with self.handle.stream(
                self._topic, {**said, "count": self.what.stream}, nodeid=nodeid
            ) as answers:
                async for answer in answers:
                    told = answer.json()
                    log.answer(ident, 0, k=told["k"], last=False, by=told["by"])
            log.answer(ident, DONE_ERRNO)
        except RpcError as error:
            log.answer(ident, error.errno)
        except (LinkError, asyncio.CancelledError):
            log.gave_up(ident, "lost")
            raise
        finally:
            self.load.ended(ident)


class Missed:
    """What a gateway says that we, or it, missed: notices beside the events."""

    def __init__(self, handle: Handle) -> None:
        replay = handle.link.replay
        self._replay = replay if isinstance(replay, Conversation) else None  # no gateway: nothing is said
        self._lost = 0
        self._upstream: object = self._replay.welcome.get("upstream") if self._replay is not None else None

    def more(self) -> int:
        """Events missed since the last time; -1: some, nobody knows how many; 0: none."""
        if self._replay is None:
            return 0
        lost, self._lost = self._replay.lost - self._lost, self._replay.lost
        upstream, former = self._replay.welcome.get("upstream"), self._upstream
        self._upstream = upstream
        if upstream is not former and isinstance(upstream, dict):
            told = upstream.get("lost")
            return lost + told if isinstance(told, int) else -1
        return int(lost)


def _why(error: LinkError) -> str:
    return f"{type(error).__name__}: {error}"[:200]
