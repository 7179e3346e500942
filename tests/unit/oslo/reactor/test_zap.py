"""The ZAP handler: its answers to libzmq."""

import asyncio

import zmq

from broker.oslo.reactor.binding import Zap, tag
from broker.transport import curve

KNOWN = curve.generate().public_key


class Door:
    """Lets one key in."""

    shut = False

    def judge(self, _address: str, key: str) -> str | None:
        return tag(key) if key == KNOWN else None


def test_no_two_connections_are_tagged_alike():
    assert tag(KNOWN) != tag(KNOWN)


def test_replies():
    async def check():
        with zmq.Context() as context:
            handler = Zap(context.socket(zmq.ROUTER), asyncio.get_running_loop())
            door = Door()
            domain = handler.add(door)
            key = curve.raw_key(KNOWN)
            asked = [b"1.0", b"7", domain, b"127.0.0.1", b"", b"CURVE", key]
            version, number, code, _text, tagged, metadata = handler.reply(asked)
            assert (version, number, code, metadata) == (b"1.0", b"7", b"200", b"")
            assert tagged.decode().endswith(f" {KNOWN}")
            assert handler.reply([*asked[:6], bytes(32)])[2] == b"400"
            assert handler.reply([*asked[:2], b"elsewhere", *asked[3:]]) == []
            door.shut = True
            assert handler.reply(asked) == []
            door.shut = False
            handler.remove(domain)
            assert handler.reply(asked) == []
            handler.close()

    asyncio.run(check())


def test_a_handler_may_follow_another_at_once():
    async def check():
        with zmq.Context() as context:
            for _ in range(50):
                handler = Zap(context.socket(zmq.ROUTER), asyncio.get_running_loop())
                handler.close()
                handler.close()

    asyncio.run(check())
