"""The ZAP handler: its answers to libzmq."""

import pytest
import zmq

from broker.oslo.reactor.binding import guard
from broker.transport import curve
from tests.unit.oslo.reactor.turns import by_hand

KNOWN = curve.generate().public_key


class Door:
    """Lets one key in."""

    denied = 0

    def judge(self, _address: str, key: str) -> str | None:
        return f"1 {key}" if key == KNOWN else None


@pytest.fixture
def hand():
    with by_hand() as it:
        yield it


def test_who_is_asked_about_a_connection_answers_for_its_socket_alone(hand):
    guarded = hand.sock(zmq.ROUTER)
    release = guard(hand.reactor, guarded, Door())
    asker = hand.sock(zmq.REQ, REQ_RELAXED=1)
    asker.connect("inproc://zeromq.zap.01")

    def asked(domain, key):
        asker.send_multipart([b"1.0", b"7", domain, b"127.0.0.1", b"", b"CURVE", key])
        for _ in range(5):
            hand.turn()
        return asker.recv_multipart() if asker.poll(0) else None

    domain = guarded.get(zmq.ZAP_DOMAIN)
    version, number, code, _text, user_id, metadata = asked(domain, curve.raw_key(KNOWN))
    assert (version, number, code, metadata) == (b"1.0", b"7", b"200", b"")
    assert user_id == b"1 " + KNOWN.encode()
    assert asked(domain, bytes(32))[2] == b"400"
    assert asked(b"elsewhere", curve.raw_key(KNOWN)) is None
    other = guard(hand.reactor, hand.sock(zmq.ROUTER), Door())
    release()
    assert asked(domain, curve.raw_key(KNOWN)) is None
    other()


def test_a_handler_may_follow_another_at_once(hand):
    for _ in range(50):
        release = guard(hand.reactor, hand.sock(zmq.ROUTER), Door())
        release()
        release()
