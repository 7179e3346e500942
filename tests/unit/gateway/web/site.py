"""The pages of a gateway behind aiohttp's test client, and a service behind them that misbehaves on request."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiohttp.test_utils import TestClient

from broker.client import LATER, Handle, Request, connect
from broker.errors import RpcError
from broker.identity import Role
from gateway.serve import Gateway
from tests.live.gateways import Live, live

EVERYBODY = Role.USER | Role.ADMIN


class Site(NamedTuple):
    """What a test has in its hands."""

    client: TestClient
    live: Live
    handle: Handle
    """A client of the broker itself, as the owner."""
    gone: asyncio.Queue[bool]
    """Gets an item when a stream of ``lab.forever`` was cancelled or its caller left."""

    @property
    def gateway(self) -> Gateway:
        return self.live.gateway

    @property
    def url(self) -> str:
        return str(self.client.make_url("/")).rstrip("/")

    def get(self, path: str, user: str | None = "ada", **more: Any):
        return self.request("GET", path, user, **more)

    def post(self, path: str, user: str | None = "ada", **more: Any):
        return self.request("POST", path, user, **more)

    def request(
        self,
        method: str,
        path: str,
        user: str | None = "ada",
        headers: dict[str, str] | None = None,
        **more: Any,
    ):
        """A request of ``user``; None brings no credential."""
        credential = self.live.bearer(user) if user else {}
        return self.client.request(method, path, headers={**credential, **(headers or {})}, **more)


@contextlib.asynccontextmanager
async def site(folder: Path, serve: Any, extra: str = "") -> AsyncIterator[Site]:
    """The pages of a joined gateway; ``serve`` is the fixture ``aiohttp_client``, ``extra`` further settings."""
    gone: asyncio.Queue[bool] = asyncio.Queue()
    async with (
        live(folder, extra, doors=False) as running,
        connect(f"inproc://{folder}") as handle,
        handle.service("lab") as lab,
    ):
        for name, handler in methods(gone).items():
            lab.add(name, handler, allow=EVERYBODY)
        yield Site(await serve(running.gateway.apps[0]), running, handle, gone)


def methods(gone: asyncio.Queue[bool]) -> dict[str, Any]:
    """The service's methods."""

    def echo(request: Request) -> bytes | None:
        return request.payload

    def who(request: Request) -> dict[str, int]:
        return {"userid": request.userid, "rolemask": request.rolemask}

    def fail(request: Request) -> None:
        asked = request.json()
        raise RpcError(asked["errno"], asked.get("text", ""))

    def never(request: Request):
        return LATER

    async def count(request: Request):
        for number in range(request.json()["to"]):
            yield {"n": number}

    async def flood(request: Request):
        for number in range(4000):
            yield {"n": number, "text": "x" * 10_000}

    async def breaks(request: Request):
        yield {"n": 0}
        raise RpcError(5, "it broke")

    async def forever(request: Request):
        try:
            number = 0
            while True:
                yield {"n": number}
                number += 1
                await asyncio.sleep(0.01)
        finally:
            gone.put_nowait(True)

    return {
        "echo": echo,
        "who": who,
        "fail": fail,
        "never": never,
        "count": count,
        "flood": flood,
        "breaks": breaks,
        "forever": forever,
    }


def lines(body: bytes) -> list[dict[str, Any]]:
    """The objects of an NDJSON body."""
    return [json.loads(line) for line in body.splitlines()]


def begin(work: Any) -> asyncio.Task[Any]:
    """Run ``work`` beside the test, which awaits it."""
    return asyncio.get_running_loop().create_task(work, name="beside the test")


class Message(NamedTuple):
    """A server-sent event."""

    id: str
    event: str
    data: dict[str, Any]


class Stream:
    """Reads server-sent events as the standard says (WHATWG HTML, "Interpreting an event stream")."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._last_id = ""
        self.comments = 0

    async def next(self, kind: str | None = None) -> Message:
        """The next event, or the next one of ``kind``."""
        while True:
            message = await self._next()
            if kind in (None, message.event):
                return message

    async def _next(self) -> Message:
        event, data = "message", []
        while True:
            line = (await self._response.content.readline()).decode()
            assert line, "the stream ended"
            line = line.rstrip("\n")
            if not line:
                if data:
                    return Message(self._last_id, event, json.loads("\n".join(data)))
                event = "message"
                continue
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not field:
                self.comments += 1
            elif field == "id":
                self._last_id = value
            elif field == "event":
                event = value
            elif field == "data":
                data.append(value)
