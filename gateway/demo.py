"""A living tree to look at, and to break: services and clients of a small shop, beside ``headgate up --demo``.

::

    python -m gateway.demo GATEWAY BROKER...

``GATEWAY`` is its WebSocket address, or "" for none, with the token in ``$HEADGATE_TOKEN``; then the address of each
rank. The last rank has the services, every rank a thermometer and a caller. Of a hundred orders two fail, and all while
``shop.break`` says so; a report is slow; one customer watches the price for a while, again and again; a dashboard
comes, listens, calls and goes. Who loses its broker comes back when that does.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import math
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final

import broker.client
from broker.client import Handle
from broker.errors import HeadgateError, RpcError
from broker.identity import Role

Party = Callable[[Handle], Awaitable[None]]

AGAIN_S: Final = 1.0
"""Until a party whose broker is away tries again."""
CALL_S: Final = 0.2
"""Between two calls of one caller."""
READ_S: Final = 1.0
"""Between two readings of a thermometer."""
REPORT_S: Final = (0.3, 0.9)
"""How long a report takes: enough to stand out among the methods."""
FAILING: Final = 0.02
"""The part of the orders for which something is sold out."""
STAY_S: Final = 12.0
"""How long the dashboard and the customer stay, and half as long they are away."""


class Shop:
    """The service ``shop``.

    Args:
        h: its broker, where it publishes.
    """

    def __init__(self, h: Handle) -> None:
        self._h = h
        self._broken_until = 0.0

    @property
    def methods(self) -> dict[str, Any]:
        """What it answers, and who may call it."""
        everybody = {"price": self.price, "order": self.order, "report": self.report, "watch": self.watch}
        return {name: (method, Role.USER) for name, method in everybody.items()} | {"break": self.fail}

    def price(self, _request: object) -> dict[str, float]:
        """Of apples, now."""
        return {"euros": round(2 + math.sin(_now() / 20) / 2, 2)}

    async def order(self, request: Any) -> dict[str, object]:
        """Sell some apples, and tell everybody."""
        if _now() < self._broken_until or random.random() < FAILING:
            raise RpcError(errno.ENOENT, "apples are sold out")
        sold = {"apples": request.json().get("apples", 1), **self.price(request)}
        await self._h.publish("shop.sold", sold)
        return sold

    async def report(self, _request: object) -> dict[str, str]:
        """Slow on purpose."""
        await asyncio.sleep(random.uniform(*REPORT_S))
        return {"report": "business as usual"}

    async def watch(self, request: object) -> AsyncIterator[dict[str, float]]:
        """The price, again and again, until the caller has enough."""
        while True:
            yield self.price(request)
            await asyncio.sleep(READ_S)

    def fail(self, request: Any) -> dict[str, float]:
        """All orders fail for ``seconds``."""
        seconds = request.json().get("seconds", 30)
        if not isinstance(seconds, int | float) or seconds < 0:
            raise RpcError(errno.EINVAL, "seconds must be a number, 0 or more")
        self._broken_until = _now() + seconds
        return {"seconds": seconds}


def _now() -> float:
    return asyncio.get_running_loop().time()


async def sell(h: Handle) -> None:
    """The services, on one rank."""
    async with h.service("shop", Shop(h).methods):
        await h.wait_ended()


async def measure(rank: int, h: Handle) -> None:
    """A thermometer: one event a second."""
    for number in itertools.count(rank):
        celsius = round(20 + rank + math.sin(number / 10), 1)
        await h.publish(f"sensor.rank{rank}", {"celsius": celsius})
        await asyncio.sleep(READ_S)


async def buy(h: Handle) -> None:
    """A caller: prices, now and then an order, seldom a report. An order that fails is no reason to leave."""
    for number in itertools.count(random.randrange(100)):
        method = "report" if number % 40 == 0 else "order" if number % 4 == 0 else "price"
        try:
            await h.rpc(f"shop.{method}", {"apples": number % 5 + 1}, timeout_s=10, anywhere=True)
        except RpcError:
            pass  # the dashboard shows it
        await asyncio.sleep(CALL_S * random.uniform(0.5, 1.5))


async def watch(h: Handle) -> None:
    """A customer who watches the price for a while."""
    async with h.stream("shop.watch", anywhere=True) as prices:
        try:
            async with asyncio.timeout(STAY_S):
                async for _price in prices:
                    pass
        except TimeoutError:
            pass  # it has seen enough


async def look(h: Handle) -> None:
    """A dashboard on the web: it listens to the thermometers, and asks for the price when one tells something."""
    async with h.subscribe("sensor.") as events:
        try:
            async with asyncio.timeout(STAY_S):
                async for _event in events:
                    await h.rpc("shop.price", anywhere=True)
        except TimeoutError:
            pass  # it is closed


async def stay(uri: str, party: Party, away_s: float = AGAIN_S) -> None:
    """Play ``party`` at the broker or gateway ``uri``, again and again: ``away_s`` after it is over, soon where it was
    lost.
    """
    said = ""
    while True:
        pause_s = AGAIN_S
        try:
            async with broker.client.connect(uri) as h:
                await party(h)
            pause_s, said = away_s, ""
        except (HeadgateError, OSError, TimeoutError) as error:
            if said != (said := f"{uri}: {error}\n"):  # a broker that stays away is told of once
                sys.stderr.write(said)
        await asyncio.sleep(pause_s)


async def main(gateway: str, *ranks: str) -> None:
    """Everybody, until this is told to leave."""
    async with asyncio.TaskGroup() as parties:
        parties.create_task(stay(ranks[-1], sell))
        parties.create_task(stay(ranks[0], watch, STAY_S / 2))
        for rank, uri in enumerate(ranks):
            parties.create_task(stay(uri, partial(measure, rank)))
            parties.create_task(stay(uri, buy))
        if gateway:
            parties.create_task(stay(gateway, look, STAY_S / 2))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
