"""Two hundred clients with CURVE come and go at one broker: in every way there is, again and again.

Half a minute here; ``HEADGATE_SOAK_S=3600`` makes it the hour that has to hold before an engine of ZeroMQ is trusted.
"""

import asyncio
import itertools
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable

import pytest

from broker.errors import LinkClosed, LinkError
from broker.testing.harness import Recorder
from broker.transport import curve, zeromq
from broker.transport.link import Options
from broker.transport.zeromq.frames import greeting
from broker.wire.message import RESPONSE, event, request
from broker.wire.payload import encode_json
from tests.live.brokers import eventually, one_broker
from tests.live.ports import free_port

pytestmark = [pytest.mark.story, pytest.mark.slow, pytest.mark.timeout(7200)]

SECONDS = float(os.environ.get("HEADGATE_SOAK_S", "30"))
PEERS = 200
LIFE_S = 6.0
"""Each stays for so long on average."""
CALLS = 6
GROWTH_KIB = 16 << 10
"""What the broker may hold more in the last quarter than in those before: no share of what passed."""
ANSWER_S = 20.0


class Crowd:
    """The peers.

    Attributes:
        answered: calls. ends: how peers left -> how often.
    """

    def __init__(self, address: str, options: dict[str, object], until: float) -> None:
        self.address = address
        self.options = options
        self.until = until
        self.answered = 0
        self.ends: Counter[str] = Counter()

    async def peer(self, number: int) -> None:
        """Come, call, listen, leave; then again."""
        chance = random.Random(number)
        while time.monotonic() < self.until:
            end = chance.choice(["close", "abort", "deaf", "half", "stranger"])
            if end == "stranger":
                await self.knock(chance)
            else:
                await self.stay(chance, end)
            self.ends[end] += 1

    async def stay(self, chance: random.Random, end: str) -> None:
        """One connection: each call is answered, whatever becomes of the peer afterwards."""
        made = Options(extra=dict(self.options), connect_timeout_s=ANSWER_S)
        link, heard = await zeromq.transport.dial(self.address, made), Recorder()
        link.start(heard)
        if chance.random() < 0.5:
            link.enable_batch()
        link.send(request("event.subscribe", encode_json({"topic": "soak"}), matchtag=1))
        tags = itertools.count(2)
        for _ in range(chance.randrange(1, CALLS)):
            size = chance.choice([0, 100, 5_000, 200_000])
            tag = next(tags)
            link.send(request("broker.ping", encode_json({"pad": "x" * size}), matchtag=tag))
            link.send(event(f"soak.{tag}", b"y" * chance.choice([1, 1000])))
            link.flush()
            await self.answer(heard, tag)
            await asyncio.sleep(chance.expovariate(CALLS / LIFE_S))
        if end == "deaf":
            link.pause()
            await asyncio.sleep(chance.random() * LIFE_S)
        if end == "half":
            link.send(request("broker.ping", encode_json({"pad": "x" * 3_000_000}), matchtag=next(tags)))
            link.flush()
        if end == "close":
            link.close()
        else:
            link.abort(LinkClosed("test"))

    async def answer(self, heard: Recorder, tag: int) -> None:
        async with asyncio.timeout(ANSWER_S):
            while not any(each.type == RESPONSE and each.matchtag == tag for each in heard.messages):
                assert not heard.ends, heard.ends
                await asyncio.sleep(0.005)
        heard.messages.clear()
        self.answered += 1

    async def knock(self, chance: random.Random) -> None:
        """Somebody who never gets in: another key, some bytes, or nothing."""
        if chance.random() < 0.5:
            server = self.options["curve"].server_key
            wrong = Options(
                extra={"curve": curve.CurveClient(curve.generate(), server)}, connect_timeout_s=ANSWER_S
            )
            with pytest.raises(LinkError):
                await zeromq.transport.dial(self.address, wrong)
            return
        host, port = self.address.removeprefix("tcp://").split(":")
        _reader, writer = await asyncio.open_connection(host, int(port))
        hello = greeting(b"CURVE", as_server=False) + chance.randbytes(chance.randrange(300))
        writer.write(hello[: chance.randrange(len(hello) + 1)])
        await asyncio.sleep(chance.random())
        if chance.random() < 0.5:
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
            )
        writer.close()


async def crowd_at(address: str, options: dict[str, object], look: Callable[[], None]) -> Crowd:
    """Let them come for ``SECONDS``, and ``look`` meanwhile."""
    crowd = Crowd(address, options, time.monotonic() + SECONDS)
    async with asyncio.TaskGroup() as group:
        for number in range(PEERS):
            group.create_task(crowd.peer(number), name=f"peer {number}")
        while time.monotonic() < crowd.until:
            look()
            await asyncio.sleep(SECONDS / 40)
    return crowd


def test_two_hundred_peers_that_come_and_go_leave_nothing(rundir):
    ours, client, port = curve.generate(), curve.generate(), free_port()
    curve.save(ours, rundir / "broker.cert")
    settings = (
        '[tree]\ncurve_cert = "broker.cert"\n'
        f'[[listen]]\nuri = "tcp://127.0.0.1:{port}"\n'
        f'[[clients]]\npublic_key = "{client.public_key}"\nuserid = 1000\nroles = ["owner"]\n'
    )
    with one_broker(rundir, settings) as broker:
        fds = broker.fds()
        options = {"curve": curve.CurveClient(client, ours.public_key), "batch": True}
        sizes: list[int] = []

        address = f"tcp://127.0.0.1:{port}"
        crowd = asyncio.run(crowd_at(address, options, lambda: sizes.append(broker.rss_kib())))
        print(f"{crowd.answered} calls answered; {dict(crowd.ends)}; RSS in KiB: {sizes}")
        assert crowd.answered > PEERS
        assert min(crowd.ends[end] for end in ("close", "abort", "deaf", "half", "stranger")) > PEERS // 10
        eventually(lambda: broker.fds() <= fds + 1, True)
        quarter = len(sizes) // 4
        assert max(sizes[-quarter:]) <= max(sizes[quarter:-quarter]) + GROWTH_KIB, sizes
        assert not [line for line in broker.lines() if "Traceback" in line]
