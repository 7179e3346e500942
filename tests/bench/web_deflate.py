"""What ``permessage-deflate`` saves and costs: the same events to subscribers with and without it, of one gateway."""

import asyncio
import base64
import json
import random
from pathlib import Path
from urllib.parse import urlsplit

import broker.client
from gateway.websocket.deflate import NAME
from tests.bench import processes
from tests.bench.storm_clients import TEXT, frame
from tests.bench.targets import Row
from tests.bench.web_contenders import Apart, Gateway
from tests.bench.works import Bench, say

SUBSCRIBERS, EVENTS = 50, 400
ROWS = 12
"""Jobs in one event: about a kilobyte of JSON."""
PAUSE_S = 0.003
"""Between two events, so that each travels by itself: joined ones are compressed together."""
QUIET_S = 0.5
READ_BYTES = 1 << 16


class Deflating(Apart):
    """Ours, with compression for those who offer it."""

    def configured(self) -> str:
        file = Path(super().configured())
        file.write_text(file.read_text().replace("[gateway]\n", "[gateway]\ndeflate = true\n", 1))
        return str(file)


def web_deflate(bench: Bench) -> list[Row]:
    """Bytes to a subscriber, and CPU of the gateway a delivery, compressed against plain."""
    smaller, dearer = Row("web_deflate_bytes"), Row("web_deflate_cpu")
    done: dict[str, list[tuple[float, float]]] = {"plain": [], "deflated": []}
    with Deflating() as one:
        for _ in range(bench.rounds):
            for name, offer in (("plain", ""), ("deflated", NAME)):
                done[name].append(asyncio.run(measured(one, offer)))
                say("{}: {:.0f} B, {:.1f} µs CPU of the gateway a delivery".format(name, *done[name][-1]))
    pairs = list(zip(done["deflated"], done["plain"], strict=True))
    smaller.settle([ours[0] / plain[0] for ours, plain in pairs])
    dearer.settle([ours[1] / plain[1] for ours, plain in pairs])
    for row, at, unit in ((smaller, 0, "B"), (dearer, 1, "µs")):
        middle = {
            name: sorted(each[at] for each in rounds)[len(rounds) // 2] for name, rounds in done.items()
        }
        row.figures[Gateway.name] = f"{middle['deflated']:.0f} / {middle['plain']:.0f} {unit}"
        row.raw = {"rounds": done}
    return [smaller, dearer]


async def measured(one: Deflating, offer: str) -> tuple[float, float]:
    """Bytes on the wire, and microseconds of the gateway's CPU, for each delivery."""
    assert one.gateway is not None
    heard = Heard()
    subscribers = [await heard.subscribe(one, offer) for _ in range(SUBSCRIBERS)]
    await heard.quiet()
    before, used = heard.count, processes.cpu_s([one.gateway.pid])
    dice = random.Random(7)
    async with broker.client.connect(one.beside) as h:
        for number in range(EVENTS):
            await h.publish("bench.rows", {"rows": [job(dice, number) for _ in range(ROWS)]})
            await asyncio.sleep(PAUSE_S)
    await heard.quiet()
    deliveries = SUBSCRIBERS * EVENTS
    cpu_s = processes.cpu_s([one.gateway.pid]) - used
    for task in subscribers:
        task.cancel()
    await asyncio.gather(*subscribers, return_exceptions=True)
    return (heard.count - before) / deliveries, 1e6 * cpu_s / deliveries


def job(dice: random.Random, number: int) -> dict[str, object]:
    """What a dashboard is told of one job."""
    state = dice.choice(["pending", "running", "completed"])
    return {
        "id": dice.getrandbits(40),
        "state": state,
        "rank": dice.randrange(64),
        "t": 1e9 + number,
        "user": "ada",
    }


class Heard:
    """What came to all subscribers.

    Attributes:
        count: in bytes.
    """

    def __init__(self) -> None:
        self.count = 0

    async def subscribe(self, one: Deflating, offer: str) -> "asyncio.Task[None]":
        """One more subscriber; the task reads until it is cancelled."""
        place = urlsplit(one.at)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        lines = [
            f"GET {place.path} HTTP/1.1",
            f"Host: {place.netloc}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Protocol: flux.v1",
            f"Authorization: Bearer {one.token}",
            *([f"Sec-WebSocket-Extensions: {offer}"] if offer else []),
        ]
        writer.write("\r\n".join((*lines, "", "")).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert (NAME.encode() in head) is bool(offer), head
        await reader.readuntil(b'"epoch":"')
        epoch = (await reader.readuntil(b'"'))[:-1].decode()
        await reader.readuntil(b'"sequence":')
        sequence = int((await reader.readuntil(b","))[:-1])
        asked = {"type": "resume", "epoch": epoch, "sequence": sequence, "subscriptions": ["bench."]}
        writer.write(frame(TEXT, json.dumps(asked).encode()))
        return asyncio.get_running_loop().create_task(self._read(reader, writer))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(READ_BYTES):
                self.count += len(data)
        finally:
            writer.close()

    async def quiet(self) -> None:
        """Wait until nothing more comes."""
        before = -1
        while before != self.count:
            before = self.count
            await asyncio.sleep(QUIET_S)
