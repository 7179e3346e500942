"""What a call over HTTP costs beside one over WebSocket, and beside an aiohttp handler that gives back its body.

All of it is one process and one loop, the clients included, which are as thin as can be: a kept connection, one call
at a time. The figure is CPU time a call, and the ratio is taken within each round.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from aiohttp import web
from websockets.asyncio.client import connect as websocket

from broker.client import Request, connect
from tests.bench.targets import Row
from tests.bench.works import Bench, say
from tests.live.gateways import live

CALLS = 300
WARM = 100
BODY = b'{"a":1}'
FRAME = '{"type":"request","topic":"lab.echo","matchtag":1,"payload":{"a":1}}'
HTTP, WEBSOCKET, BARE = "headgate HTTP", "headgate WebSocket", "aiohttp alone"

Calls = Callable[[int], Awaitable[None]]


def web_http(bench: Bench) -> list[Row]:
    """CPU of a call over HTTP, vs WebSocket and vs aiohttp alone."""
    used = asyncio.run(_measured(bench.rounds))
    rows = [Row("web_http_vs_ws", raw={"cpu_us": used}), Row("web_http_vs_aiohttp")]
    rows[0].figures = {name: f"{median(values):.0f} µs" for name, values in used.items()}
    for row, other in zip(rows, (WEBSOCKET, BARE), strict=True):
        row.settle([ours / theirs for ours, theirs in zip(used[HTTP], used[other], strict=True)])
    say(f"CPU a call {rows[0].figures}")
    return rows


async def _measured(rounds: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="hg-") as folder:
        async with (
            live(Path(folder)) as site,
            connect(f"inproc://{folder}") as handle,
            handle.service("lab") as lab,
        ):
            lab.add("echo", _echo)
            runner, port = await _bare()
            try:
                async with websocket(
                    site.ws,
                    subprotocols=["flux.v1.json"],  # type: ignore[list-item]
                    additional_headers=site.bearer(),
                    proxy=None,
                    compression=None,
                ) as sock:
                    await sock.recv()

                    async def over_websocket(count: int) -> None:
                        for _ in range(count):
                            await sock.send(FRAME)
                            await sock.recv()

                    works: dict[str, Calls] = {
                        HTTP: await _over_http(int(site.url.rpartition(":")[2]), site.bearer()),
                        WEBSOCKET: over_websocket,
                        BARE: await _over_http(port, site.bearer()),
                    }
                    return await _taken_turns(works, rounds)
            finally:
                await runner.cleanup()


async def _taken_turns(works: dict[str, Calls], rounds: int) -> dict[str, list[float]]:
    used: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        await work(WARM)
    for _ in range(rounds):
        for name, work in works.items():
            began = time.process_time()
            await work(CALLS)
            used[name].append(1e6 * (time.process_time() - began) / CALLS)
    return used


async def _over_http(port: int, credential: dict[str, str]) -> Calls:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/rpc/lab.echo HTTP/1.1\r\nHost: localhost\r\nAuthorization: {credential['Authorization']}\r\n"
    sent = f"{head}Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY

    async def call(count: int) -> None:
        for _ in range(count):
            writer.write(sent)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            assert await reader.readexactly(len(BODY)) == BODY

    return call


async def _bare() -> tuple[web.AppRunner, int]:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=await request.read(), content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/rpc/{topic}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, runner.addresses[0][1]


def _echo(request: Request) -> bytes | None:
    return request.payload
