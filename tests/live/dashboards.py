"""Dashboards that come back wherever a gateway is, and what each of them must have seen.

``Dashboard`` notes what it gets and what it is told, with no code of the product; ``Publisher`` what was numbered;
``wrong`` says what does not fit: an event that is missing without a word, that came twice, out of order, or to somebody
who must not have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import aiohttp

import broker.client
from broker.errors import HeadgateError

PREFIXES = ("t.", "secret.", "alone.")
"""What is subscribed to: of ``secret.`` and what is private somebody sees nothing."""
TICK_S = 0.01
"""How often it is published."""
BURST = 100
"""Events in a tick at the most."""


class Seen(NamedTuple):
    """One event, as a dashboard got it."""

    ident: int
    topic: str


class Dashboard:
    """One person's page: connects, resumes, notes.

    Args:
        name: of whom. token: its credential. urls: WebSocket addresses of the gateways, asked in turn.
        sees: whether it may have an event of this topic. first: which of ``urls`` is asked first; those of even numbers
            subscribe to everything, and have what the rules leave of it.

    Attributes:
        log: in order: ``Seen``, and texts for what it is told of losses. resumes: what ``resumed`` said.
    """

    def __init__(
        self, name: str, token: str, urls: Sequence[str], sees: Callable[[str], bool], first: int
    ) -> None:
        self.name, self.token, self.urls, self.sees = name, token, urls, sees
        self.log: list[Seen | str] = []
        self.resumes: list[dict[str, Any]] = []
        self.live = asyncio.Event()
        self.leaving = False
        self._turn = first
        self._prefixes = list(PREFIXES) if first % 2 else [""]
        self._position: dict[str, Any] | None = None
        self._known = False

    async def run(self) -> None:
        """Until it is told to leave."""
        headers = {"Authorization": f"Bearer {self.token}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            while not self.leaving:
                url = self.urls[self._turn % len(self.urls)]
                with contextlib.suppress(aiohttp.ClientError, OSError, asyncio.TimeoutError):
                    async with (
                        asyncio.timeout(60),
                        http.ws_connect(url, protocols=("flux.v1.json",), max_msg_size=0) as ws,
                    ):
                        await self._talk(ws)
                self._turn += 1
                await asyncio.sleep(0.05)

    async def _talk(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        welcome = await ws.receive_json()
        if welcome.get("type") != "welcome":
            return
        if self._position is None:
            if not welcome["epoch"]:
                return
            self._position = {name: welcome[name] for name in ("epoch", "sequence")}
        await ws.send_json({"type": "resume", **self._position, "subscriptions": self._prefixes})
        async for frame in ws:
            if frame.type != aiohttp.WSMsgType.TEXT:
                return
            said = json.loads(frame.data)
            for one in said if isinstance(said, list) else [said]:
                self._heard(one)
            if self.leaving:
                return

    def _heard(self, said: dict[str, Any]) -> None:
        assert self._position is not None
        kind = said["type"]
        if kind == "event":
            self._position["sequence"] = said["sequence"]
            if said["topic"].startswith(PREFIXES):
                self.log.append(Seen(said["payload"]["id"], said["topic"]))
        elif kind == "resumed":
            self.resumes.append(said)
            self._position = {name: said[name] for name in ("epoch", "sequence")}
            self.live.set()
            if not said["recovered"]:
                self.log.append("not recovered")
        elif kind == "gap":
            self.log.append(f"gap of {said['lost']}")
        elif kind == "upstream" and said["joined"]:
            if said["epoch"] != self._position["epoch"]:
                self._position = {"epoch": said["epoch"], "sequence": 0}
            if said["lost"] != 0:
                self.log.append(f"lost {said['lost']}")

    @property
    def told(self) -> list[str]:
        """What it was told of losses."""
        return [one for one in self.log if isinstance(one, str)]

    @property
    def newest(self) -> int:
        """Of its events."""
        return max((one.ident for one in self.log if isinstance(one, Seen)), default=-1)


class Publisher:
    """Publishes numbered events at a rate, over whatever comes back; what was answered is certain to be numbered.

    Attributes:
        certain: ident -> topic of what was answered. tried: of all.
    """

    def __init__(self, uri: str, per_s: int) -> None:
        self.uri, self.per_s = uri, per_s
        self.certain: dict[int, str] = {}
        self.tried: dict[int, str] = {}
        self.leaving = False

    async def run(self) -> None:
        """Until it is told to leave."""
        while not self.leaving:
            with contextlib.suppress(HeadgateError, OSError):
                async with broker.client.connect(self.uri) as handle:
                    await self._publish(handle)
            await asyncio.sleep(0.05)

    async def _publish(self, handle: broker.client.Handle) -> None:
        clock = asyncio.get_running_loop().time
        began, count = clock(), 0
        while not self.leaving and handle.ended is None:
            due = int((clock() - began) * self.per_s) - count
            if due > 0:
                count += due
                await self._some(handle, min(due, BURST))
            await asyncio.sleep(TICK_S)

    async def _some(self, handle: broker.client.Handle, number: int) -> None:
        """Event messages, and one by a call: its answer says that those in front of it have numbers, too."""
        some = {}
        for ident in range(len(self.tried), len(self.tried) + number):
            kind = 2 if ident % 10 == 9 else 1 if ident % 10 == 4 else 0
            some[ident] = f"{PREFIXES[kind]}{ident % 7}"
        self.tried |= some
        *ahead, last = some.items()
        for ident, topic in ahead:
            handle.publish_nowait(topic, {"id": ident}, private=topic.startswith(PREFIXES[2]))
        ident, topic = last
        await handle.publish(topic, {"id": ident}, private=topic.startswith(PREFIXES[2]))
        self.certain |= some


def wrong(publisher: Publisher, dashboards: Iterable[Dashboard], *, until: int) -> list[str]:
    """What does not fit of the events up to ``until``; losses that were told fit."""
    found = []
    for one in dashboards:
        last, seen = -1, set[int]()
        for entry in one.log:
            if isinstance(entry, str):
                continue
            if entry.ident in seen:
                found.append(f"{one.name}: {entry.ident} came twice")
            elif entry.ident < last:
                found.append(f"{one.name}: {entry.ident} came behind {last}")
            if not one.sees(entry.topic):
                found.append(f"{one.name}: {entry.topic} is nothing for its eyes")
            if publisher.tried.get(entry.ident) != entry.topic:
                found.append(f"{one.name}: {entry} was never published")
            seen.add(entry.ident)
            last = max(last, entry.ident)
        found += _missing(publisher, one, seen, until)
    return found


def _missing(publisher: Publisher, one: Dashboard, seen: set[int], until: int) -> list[str]:
    """What it must have of the events from its first one up to ``until``, and has not, and nobody told why: a word
    excuses what is missing where it was said.
    """
    must = [
        ident
        for ident, topic in sorted(publisher.certain.items())
        if ident <= until and one.sees(topic) and ident > min(seen, default=until)
    ]
    excused = set[tuple[int, int]]()
    before = -1
    for at, entry in enumerate(one.log):
        if isinstance(entry, str):
            after = next((each.ident for each in one.log[at:] if isinstance(each, Seen)), until + 1)
            excused.add((before, after))
        else:
            before = entry.ident
    return [
        f"{one.name}: {ident} is missing without a word"
        for ident in must
        if ident not in seen and not any(low < ident < high for low, high in excused)
    ]
