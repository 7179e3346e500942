"""Dashboards that come back wherever a gateway is, and the publisher that they listen to: thousands of events a second.

So many of them are parties in the driver's process (`tests.proof.returns`). Each writes a log of its own; events stand
there in rows, as they came in one message of the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import broker.client
from broker.errors import HeadgateError
from tests.proof.layout import PREFIXES, TOPICS, topic_of
from tests.proof.record import Writer

TICK_S: Final = 0.025
"""How often it is published."""
BURST: Final = 500
"""Events in a tick at the most."""
PAUSE_S: Final = 0.05
"""Between two tries to connect."""
SESSION_S: Final = 60.0
"""Then it comes back on its own account."""
READ_BYTES: Final = 1 << 18
EVENT: Final = re.compile(
    rb'\{"type":"event","topic":"([a-z]+\.\d)","sequence":(\d+)[^{}]*"payload":\{"id": ?(\d+)\}\}'
)
"""One of the publisher's events, whole."""
TEXT, CLOSE, PING, PONG = 0x81, 0x88, 0x89, 0x8A


class Dashboard:
    """One person's page, with no code of the product: it connects, resumes, notes.

    Args:
        log: its own. token: its credential. urls: WebSocket addresses of the gateways, asked in turn.
        number: which of ``urls`` is asked first; those of even numbers subscribe to everything, and have what the rules
            leave of it.

    Attributes:
        newest: of its events; -1 before. live: it has resumed once. leaving: it is told to leave.
    """

    def __init__(self, log: Writer, token: str, urls: Sequence[str], number: int) -> None:
        self.log = log
        self.newest = -1
        self.live = asyncio.Event()
        self.leaving = False
        self._token = token
        self._urls = urls
        self._turn = number
        self._prefixes = list(PREFIXES) if number % 2 else [""]
        self._position: dict[str, Any] | None = None

    async def run(self) -> None:
        """Until it is told to leave."""
        while not self.leaving:
            url = self._urls[self._turn % len(self._urls)]
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(SESSION_S):
                    await self._session(url)
            self._turn += 1
            await asyncio.sleep(PAUSE_S)

    async def _session(self, url: str) -> None:
        """One connection. Its frames are read by hand: thousands come in one read, an event in each."""
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            writer.write(
                f"GET {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                f"Sec-WebSocket-Protocol: flux.v1.json\r\nAuthorization: Bearer {self._token}\r\n\r\n".encode()
            )
            if b" 101 " not in await reader.readuntil(b"\r\n\r\n"):
                return
            rest = b""
            while data := await reader.read(READ_BYTES):
                rest += data
                end, frames = whole_frames(rest)
                if not self._hear(rest[:end], frames, writer):
                    return
                rest = rest[end:]
        finally:
            writer.close()

    def _hear(self, data: bytes, frames: list[tuple[int, int, int]], writer: asyncio.StreamWriter) -> bool:
        """Take whole frames; False when that is the end."""
        found = EVENT.findall(data)
        if found and len(found) == data.count(b'"type":') and all(kind == TEXT for kind, _, _ in frames):
            self._note([(topic.decode(), int(sequence), int(ident)) for topic, sequence, ident in found])
            return not self.leaving
        for kind, begin, end in frames:  # something else is among them
            if kind == PING:
                writer.write(masked(PONG, data[begin:end]))
            elif kind != TEXT:
                return False
            else:
                said = json.loads(data[begin:end])
                for one in said if isinstance(said, list) else [said]:
                    self._take(one, writer)
        return not self.leaving

    def _note(self, events: Sequence[tuple[str, int, int]]) -> None:
        assert self._position is not None
        idents = [ident for _topic, _sequence, ident in events]
        sequences = [sequence for _topic, sequence, _ident in events]
        odd = [[ident, topic] for topic, _sequence, ident in events if topic_of(ident) != topic]
        self.log.line("events", idents=idents, sequences=sequences, odd=odd or None)
        self._position["sequence"] = sequences[-1]
        self.newest = max(self.newest, idents[-1])

    def _take(self, said: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        kind = said["type"]
        if kind == "welcome":
            if self._position is None and not said["epoch"]:
                raise EOFError("this gateway has no broker yet")
            self._position = self._position or {name: said[name] for name in ("epoch", "sequence")}
            asked = {"type": "resume", **self._position, "subscriptions": self._prefixes}
            writer.write(masked(TEXT, json.dumps(asked).encode()))
            return
        assert self._position is not None
        if kind == "event":
            if said["topic"].startswith(PREFIXES):
                self._note([(said["topic"], said["sequence"], said["payload"]["id"])])
            self._position["sequence"] = said["sequence"]
        elif kind == "resumed":
            self._position = {name: said[name] for name in ("epoch", "sequence")}
            self.log.line("back", **self._position, recovered=said["recovered"], replayed=said["replayed"])
            self.live.set()
        elif kind == "gap":
            self.log.line("missed", lost=said["lost"])
        elif kind == "upstream" and said["joined"]:
            if said["epoch"] != self._position["epoch"]:
                self._position = {"epoch": said["epoch"], "sequence": 0}
                self.log.line("renumbered", epoch=said["epoch"])
            if said["lost"] != 0:
                self.log.line("missed", lost=said["lost"])


def whole_frames(data: bytes) -> tuple[int, list[tuple[int, int, int]]]:
    """Where the whole frames of ``data`` end, and (first byte, begin and end of the content) of each."""
    found = []
    at, size = 0, len(data)
    while at + 2 <= size:
        begin, length = at + 2, data[at + 1]
        if length > 125:
            begin += 2 if length == 126 else 8
            length = int.from_bytes(data[at + 2 : begin])
        if begin + length > size:
            break
        found.append((data[at], begin, begin + length))
        at = begin + length
    return at, found


def masked(kind: int, content: bytes) -> bytes:
    """A client's frame, whose mask changes nothing."""
    size = len(content)
    head = bytes((kind, 0x80 | size)) if size < 126 else bytes((kind, 0xFE)) + size.to_bytes(2)
    return head + bytes(4) + content


class Publisher:
    """Publishes numbered events at a rate, over whatever comes back; what was answered is certain to have a number.

    Attributes:
        count: events published. leaving: it is told to leave.
    """

    def __init__(self, log: Writer, uri: str, per_s: int) -> None:
        self.log, self.uri, self.per_s = log, uri, per_s
        log.line("topics", topics=TOPICS)
        self.count = 0
        self.leaving = False

    async def run(self) -> None:
        """Until it is told to leave."""
        while not self.leaving:
            with contextlib.suppress(HeadgateError, OSError):
                async with broker.client.connect(self.uri) as handle:
                    await self._publish(handle)
            await asyncio.sleep(PAUSE_S)

    async def _publish(self, handle: broker.client.Handle) -> None:
        clock = asyncio.get_running_loop().time
        began, count = clock(), 0
        while not self.leaving and handle.ended is None:
            due = int((clock() - began) * self.per_s) - count
            if due > 0:
                count += due  # what this machine is too slow for is left out
                await self._some(handle, range(self.count, self.count + min(due, BURST)))
            await asyncio.sleep(TICK_S)

    async def _some(self, handle: broker.client.Handle, idents: Iterable[int]) -> None:
        """Event messages, and one by a call: its answer says that those in front of it have numbers, too."""
        *ahead, last = idents
        self.count = last + 1
        self.log.line("publish", upto=last)
        for ident in ahead:
            topic = topic_of(ident)
            handle.publish_nowait(topic, {"id": ident}, private=topic.startswith(PREFIXES[2]))
        topic = topic_of(last)
        sequence = await handle.publish(topic, {"id": last}, private=topic.startswith(PREFIXES[2]))
        self.log.line("published", first=last - len(ahead), upto=last, sequence=sequence)
