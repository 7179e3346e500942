"""A party behind the gateway that speaks JSON over a WebSocket, as a page does, and resumes where it was cut off."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp

from tests.proof import record
from tests.proof.layout import SLOW, Call, Party, beside
from tests.proof.parties.party import Load, Place, run

HELLO_S = 5.0
SERVICE_PAUSE_S = 0.5


def main(party: Party, place: Place) -> int:
    return run(lambda: Page(party, place))


class Lost(Exception):
    """The connection ended before the answer came."""


class Page(Load):
    """One WebSocket at a time."""

    def __init__(self, party: Party, place: Place) -> None:
        super().__init__(party, place)
        self.position: dict[str, Any] = {}
        self.tag = 0

    async def session(self) -> None:
        context = ssl.create_default_context(cafile=self.place.cert)
        headers = {"Authorization": f"Bearer {self.place.token}"}
        drop = "?overflow=drop" if self.party.name in SLOW else ""
        try:
            async with aiohttp.ClientSession(headers=headers) as http:
                connecting = http.ws_connect(
                    self.place.uri + drop, protocols=("flux.v1.json",), ssl=context, autoping=True
                )
                async with await asyncio.wait_for(connecting, HELLO_S) as socket:
                    await Talk(self, socket, self._at(socket)).go()
        except aiohttp.ClientError as error:
            raise ConnectionError(str(error)) from error

    def _at(self, socket: aiohttp.ClientWebSocketResponse) -> str:
        """The gateway at the other end."""
        if not self.place.balancer:
            return str(self.party.at)
        own = socket.get_extra_info("sockname")
        if own is None:
            raise ConnectionError("lost before it said anything")
        mine = f"from {own[1]} to "
        lines = Path(self.place.balancer).read_text().splitlines()
        return next(line.removeprefix(mine) for line in reversed(lines) if line.startswith(mine))


class Talk:
    """One WebSocket: who waits for which answer, what is provided."""

    def __init__(self, page: Page, socket: aiohttp.ClientWebSocketResponse, at: str) -> None:
        self.at = at
        self.page, self.party, self.log, self.socket = page, page.party, page.log, socket
        self.waiting: dict[int, asyncio.Queue[dict[str, Any] | None]] = {}
        self.counts: dict[str, int] = {}
        self.conn = ""
        self.held: list[dict[str, Any]] | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.upstream_joined = True

    async def go(self) -> None:
        welcome = await asyncio.wait_for(self.socket.receive_json(), HELLO_S)
        if welcome.get("type") != "welcome":
            raise ConnectionError(f"no welcome: {welcome}")
        self.conn = self.log.conn()
        self.log.up(
            self.conn,
            self.at,
            self.page.userid,
            self.party.roles,
            host=beside(self.party, self.at),
            kind="ws",
        )
        leaving = asyncio.get_running_loop().create_task(self._leave(), name="leave")
        why = "closed"
        try:
            await self._begin(welcome)
            why = await self._read()
        except (OSError, aiohttp.ClientError) as error:
            why = f"{type(error).__name__}: {error}"
        finally:
            self.log.down(self.conn, "closed" if self.page.leaving.is_set() else why)
            leaving.cancel()
            for queue in self.waiting.values():
                queue.put_nowait(None)
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(leaving, *self.tasks, return_exceptions=True)

    async def _leave(self) -> None:
        await self.page.leaving.wait()
        await self.socket.close()

    # -- in ----------------------------------------------------------------------------------------

    async def _read(self) -> str:
        """Until the end; returns why."""
        async for frame in self.socket:
            if frame.type != aiohttp.WSMsgType.TEXT:
                break
            said = json.loads(frame.data)
            for one in said if isinstance(said, list) else [said]:
                self._take(one)
        return f"close code {self.socket.close_code}"

    def _take(self, said: dict[str, Any]) -> None:
        kind = str(said.get("type"))
        if kind == "response" and said.get("matchtag") in self.waiting:
            self.waiting[said["matchtag"]].put_nowait(said)
        elif kind == "request":
            self._serve(said)
        elif kind == "event":
            self._event(said)
        elif kind == "resumed":
            self._resumed(said)
        elif kind == "gap":
            self.log.gap(self.conn, int(said["lost"]))
        elif kind == "upstream":
            self._upstream(said)
        elif kind == "service" and not said.get("registered"):
            self.log.withdrawn(self.conn, said["service"])
            self._start(self._provide(said["service"]))
        elif kind in ("denied", "unsubscribed", "error", "shutdown"):
            self.log.note(f"{self.conn}: {json.dumps(said)}"[:300])

    def _event(self, said: dict[str, Any]) -> None:
        if self.held is not None:
            self.held.append(said)
            return
        self.page.position["sequence"] = said["sequence"]
        payload = said.get("payload")
        if isinstance(payload, dict) and "id" in payload:
            self.log.event(self.conn, payload["id"], said["sequence"], said["topic"], said.get("userid", -1))

    def _upstream(self, said: dict[str, Any]) -> None:
        if said.get("joined"):
            self.page.position["epoch"] = said.get("epoch")
        if said.get("lost") != 0:
            self.log.gap(self.conn, -1 if said.get("lost") is None else int(said["lost"]))

    def _resumed(self, said: dict[str, Any]) -> None:
        """What was missed has come: now it can be told that there is a subscription."""
        if not said["recovered"]:
            self.log.gap(self.conn, -1)
        for prefix in self.party.subscribe:
            self.log.subscribed(self.conn, prefix)
        self.log.resumed(
            self.conn, self.page.position["sequence"], int(said["sequence"]), bool(said["recovered"])
        )
        held, self.held = self.held or [], None
        for event in held:
            self._event(event)
        self.page.position |= {"epoch": said["epoch"]}

    def _serve(self, asked: dict[str, Any]) -> None:
        payload = asked.get("payload")
        if not isinstance(payload, dict) or "id" not in payload or "noresponse" in asked.get("flags", ()):
            return  # disconnect and cancel
        self.log.serve(self.conn, payload, asked.get("userid"), asked.get("rolemask"))
        answer = {name: asked[name] for name in ("topic", "matchtag", "routes") if name in asked}
        answer |= {"type": "response", "payload": {"id": payload["id"], "by": self.conn, "k": 0}}
        self._start(self._say(answer))

    # -- out ---------------------------------------------------------------------------------------

    def _start(self, work: Any) -> None:
        self.tasks = [task for task in self.tasks if not task.done()]
        self.tasks.append(asyncio.get_running_loop().create_task(self._quietly(work)))

    async def _quietly(self, work: Any) -> None:
        try:
            await work
        except (Lost, OSError, aiohttp.ClientError):
            return

    async def _say(self, said: dict[str, Any]) -> None:
        if self.socket.closed:
            raise Lost
        await self.socket.send_json(said)

    def _asking(self, topic: str, payload: dict[str, Any], node: int | None, stream: bool) -> dict[str, Any]:
        self.page.tag += 1
        said = {"type": "request", "topic": topic, "matchtag": self.page.tag, "payload": payload}
        said |= {"flags": ["streaming"]} if stream else {}
        said |= self.page.forged
        self.waiting[self.page.tag] = asyncio.Queue()
        return said | ({} if node is None else {"nodeid": node})

    async def _answer(self, tag: int) -> dict[str, Any]:
        said = await self.waiting[tag].get()
        if said is None:
            raise Lost
        return said

    async def _ask(self, topic: str, payload: dict[str, Any], node: int | None = None) -> dict[str, Any]:
        said = self._asking(topic, payload, node, stream=False)
        try:
            await self._say(said)
            return await self._answer(said["matchtag"])
        finally:
            del self.waiting[said["matchtag"]]

    async def _begin(self, welcome: dict[str, Any]) -> None:
        """Resume if there was a session before, else subscribe; then everything else."""
        position, self.page.position = (
            self.page.position,
            {
                "token": welcome["resume"],
                "epoch": welcome["epoch"],
                "sequence": welcome["sequence"],
            },
        )
        if position and self.party.subscribe:
            self.held = []
            self.page.position["sequence"] = position["sequence"]
            await self._say({"type": "resume", **position, "subscriptions": list(self.party.subscribe)})
        else:
            for prefix in self.party.subscribe:
                self._start(self._subscribe(prefix))
        for name in self.party.provide:
            self._start(self._provide(name))
        for call in self.party.calls:
            self._start(self.page.every(call.every_s, lambda n, call=call: self._call(call)))
        if self.party.topic:
            self._start(self.page.every(self.party.every_s, self._publish))

    async def _subscribe(self, prefix: str) -> None:
        while (await self._ask("event.subscribe", {"topic": prefix})).get("errnum"):
            await asyncio.sleep(SERVICE_PAUSE_S)
        self.log.subscribed(self.conn, prefix)

    async def _provide(self, name: str) -> None:
        while (await self._ask("service.add", {"service": name})).get("errnum"):
            await asyncio.sleep(SERVICE_PAUSE_S)
        self.log.provides(self.conn, name)

    async def _call(self, call: Call) -> None:
        number = self.counts[call.to] = self.counts.get(call.to, -1) + 1
        node = record.ANY if call.node is None else call.node
        payload = self.page.call(
            self.conn, call.to, number, node=node, stream=call.stream or None, expect=call.expect or None
        )
        ident = payload["id"]
        said = self._asking(
            f"{call.to}.{call.method}", {**payload, "count": call.stream}, call.node, bool(call.stream)
        )
        try:
            await self._say(said)
            while True:
                answer = await self._answer(said["matchtag"])
                number, told = answer.get("errnum", 0), answer.get("payload") or {}
                last = not call.stream or number != 0
                self.log.answer(ident, number, k=told.get("k"), last=last, by=told.get("by"))
                if last:
                    return
        except (Lost, OSError, aiohttp.ClientError, asyncio.CancelledError):
            self.log.gave_up(ident, "lost")
            raise
        finally:
            del self.waiting[said["matchtag"]]
            self.page.ended(ident)

    async def _publish(self, number: int) -> None:
        private = bool(self.party.private) and number % self.party.private == self.party.private - 1
        ident = self.log.next_id()
        self.page.open.add(ident)
        self.log.publish(self.conn, ident, self.party.topic, private=private)
        content = {
            "topic": self.party.topic,
            "flags": 32 if private else 0,
            "payload": _base64({"id": ident}),
        }
        try:
            answer = await self._ask("event.publish", content, 0)
            if answer.get("errnum"):
                self.log.unpublished(ident, answer["errnum"])
            else:
                self.log.published(ident, answer["payload"]["seq"])
        except (Lost, OSError, aiohttp.ClientError, asyncio.CancelledError):
            self.log.unpublished(ident, -1)
            raise
        finally:
            self.page.ended(ident)


def _base64(payload: dict[str, Any]) -> str:
    """A JSON payload ends with NUL."""
    return base64.b64encode(json.dumps(payload).encode() + b"\0").decode()
