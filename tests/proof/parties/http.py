"""A party that calls over HTTP, one request after the other, and hears events as server-sent events."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import aiohttp

from tests.proof import record
from tests.proof.layout import Call, Party, beside
from tests.proof.parties.party import Load, Place, run

HELLO_S = 5.0
UNCONFIRMED_MS = 20_000
"""TCP_USER_TIMEOUT, as our own clients have it. Behind a partition TCP sends again after pauses that double: the end
of a connection would be noticed later than anybody waits here."""
END_ERRNO = 61
LOST = (OSError, aiohttp.ClientError, asyncio.CancelledError)


def main(party: Party, place: Place) -> int:
    return run(lambda: Http(party, place))


def _socket(address: Any) -> socket.socket:
    """A socket for ``address`` (as of getaddrinfo) that is lost where what it sent stays unconfirmed."""
    family, kind, protocol, *_ = address
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNCONFIRMED_MS)
    return sock


class Http(Load):
    """Calls on one connection of the log, events on another: both begin anew when something breaks."""

    def __init__(self, party: Party, place: Place) -> None:
        super().__init__(party, place)
        self.last_event = ""

    async def session(self) -> None:
        context = ssl.create_default_context(cafile=self.place.cert)
        headers = {"Authorization": f"Bearer {self.place.token}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=HELLO_S)
        async with aiohttp.ClientSession(
            self.place.uri,
            headers=headers,
            timeout=timeout,
            connector=aiohttp.TCPConnector(ssl=context, socket_factory=_socket),
        ) as http:
            work = [self._series(http), self._listen(http)]
            loop = asyncio.get_running_loop()
            tasks = [loop.create_task(each) for each in work]
            tasks.append(loop.create_task(self._until_leaving()))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in done:
                if not task.cancelled() and task.exception() is not None:
                    raise ConnectionError(f"{task.exception()!r}")

    async def _until_leaving(self) -> None:
        await self.leaving.wait()

    def _why(self, error: BaseException) -> str:
        return "closed" if self.leaving.is_set() else f"{type(error).__name__}: {error}"[:200]

    # -- calls -------------------------------------------------------------------------------------

    async def _series(self, http: aiohttp.ClientSession) -> None:
        async with http.get("/v1/session") as response:
            await response.read()
            if response.status != 200:
                raise ConnectionError(f"status {response.status}")
        conn = self.log.conn()
        self.log.up(
            conn,
            self.party.at,
            self.userid,
            self.party.roles,
            host=beside(self.party),
            unordered=True,
            kind="http",
        )
        counts: dict[str, int] = {}
        try:
            async with asyncio.TaskGroup() as group:
                for call in self.party.calls:
                    group.create_task(
                        self.every(call.every_s, lambda n, call=call: self._call(http, conn, call, counts))
                    )
                if self.party.topic:
                    group.create_task(self.every(self.party.every_s, lambda n: self._publish(http, conn, n)))
            await self.leaving.wait()
        except BaseException as error:
            self.log.down(conn, self._why(error))
            raise
        else:
            self.log.down(conn, "closed")

    async def _call(self, http: aiohttp.ClientSession, conn: str, call: Call, counts: dict[str, int]) -> None:
        number = counts[call.to] = counts.get(call.to, -1) + 1
        node = record.ANY if call.node is None else call.node
        payload = self.call(
            conn, call.to, number, node=node, stream=call.stream or None, expect=call.expect or None
        )
        ident = payload["id"]
        query = {} if call.node is None else {"nodeid": str(call.node)}
        query |= {"stream": "1"} if call.stream else {}
        try:
            body = {**payload, "count": call.stream}
            async with http.post(f"/v1/rpc/{call.to}.{call.method}", params=query, json=body) as response:
                async for number, told, last in _answers(response):
                    self.log.answer(ident, number, k=told.get("k"), last=last, by=told.get("by"))
        except LOST:
            self.log.gave_up(ident, "lost")
            raise
        finally:
            self.ended(ident)

    async def _publish(self, http: aiohttp.ClientSession, conn: str, number: int) -> None:
        private = bool(self.party.private) and number % self.party.private == self.party.private - 1
        ident = self.log.next_id()
        self.open.add(ident)
        self.log.publish(conn, ident, self.party.topic, private=private)
        query = {"private": "1"} if private else {}
        try:
            async with http.post(
                f"/v1/events/{quote(self.party.topic)}", params=query, json={"id": ident}
            ) as response:
                told = await response.json(content_type=None)
            if response.status == 200:
                self.log.published(ident, told["sequence"])
            else:
                self.log.unpublished(ident, told.get("errno", -1))
        except LOST:
            self.log.unpublished(ident, -1)
            raise
        finally:
            self.ended(ident)

    # -- events ------------------------------------------------------------------------------------

    async def _listen(self, http: aiohttp.ClientSession) -> None:
        headers = {"Last-Event-ID": self.last_event} if self.last_event else {}
        query = [("prefix", prefix) for prefix in self.party.subscribe]
        async with http.get("/v1/events", params=query, headers=headers) as response:
            if response.status != 200:
                raise ConnectionError(f"status {response.status}")
            conn = self.log.conn()
            self.log.up(
                conn, self.party.at, self.userid, self.party.roles, host=beside(self.party), kind="sse"
            )
            held: list[dict[str, Any]] | None = [] if headers else None
            try:
                async for kind, ident, data in _sent(response):
                    self.last_event = ident or self.last_event
                    if kind == "welcome":
                        self._subscribed(conn)
                    elif kind == "message" and held is not None:
                        held.append(data)  # missed; that there is a subscription is known at its end
                    elif kind == "message":
                        self._event(conn, data)
                    elif kind == "resumed":
                        self._resumed(conn, data, held or [])
                        held = None
                    elif kind in ("gap", "upstream") and data.get("lost") != 0:
                        self.log.gap(conn, -1 if data.get("lost") is None else data["lost"])
                raise ConnectionError("the stream of events ended")
            except BaseException as error:
                self.log.down(conn, self._why(error))
                raise

    def _subscribed(self, conn: str) -> None:
        for prefix in self.party.subscribe:
            self.log.subscribed(conn, prefix)

    def _resumed(self, conn: str, data: dict[str, Any], held: list[dict[str, Any]]) -> None:
        if not data["recovered"]:
            self.log.gap(conn, -1)
        self._subscribed(conn)
        for event in held:
            self._event(conn, event)

    def _event(self, conn: str, data: dict[str, Any]) -> None:
        payload = data.get("payload")
        if isinstance(payload, dict) and "id" in payload:
            self.log.event(conn, payload["id"], data["sequence"], data["topic"], data.get("userid", -1))


async def _answers(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[int, dict[str, Any], bool]]:
    """(errnum, payload, last) of each response, from a body or from lines."""
    if response.content_type != "application/x-ndjson":
        told = await response.json(content_type=None) if await response.read() else {}
        yield (0 if response.ok else told.get("errno", -1)), (told if response.ok else {}), True
        return
    async for line in response.content:
        told = json.loads(line)
        if told.get("end"):
            yield END_ERRNO, {}, True
        elif "errno" in told:
            yield told["errno"], {}, True
        else:
            yield 0, told.get("payload") or {}, False


async def _sent(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str, dict[str, Any]]]:
    """(event, id, data) of each server-sent event."""
    fields: dict[str, str] = {}
    async for raw in response.content:
        line = raw.decode().rstrip("\r\n")
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            yield fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"])
        fields = {}
