"""A peer that refuses our CURVE key: said once, tried again, let in as soon as it knows the key."""

import logging

import pytest
import zmq

from broker.oslo.node import KeyEntry, NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.reactor import link as links
from broker.oslo.reactor.binding import TcpPort, guard, resolved
from broker.oslo.reactor.link import Link
from broker.oslo.reactor.tuning import Tuning, tune_tcp
from broker.transport import curve
from tests.unit.oslo.reactor.turns import by_hand

NODE, OURS = curve.generate(), curve.generate()


@pytest.fixture
def hand(monkeypatch):
    monkeypatch.setattr(links, "REFUSED_S", 0.05)
    with by_hand() as it:
        yield it


def port_of(hand, kind=zmq.ROUTER):
    """A node that knows nobody yet: its rules, its endpoint."""
    acl = AccessControl(NodeConfig("/nowhere", curve_cert="x"))
    sock = hand.reactor.context.socket(kind)
    tune_tcp(sock, Tuning(curve=curve.CurveServer(NODE)))
    release = guard(hand.reactor, sock, acl)
    at = TcpPort(sock, resolved("127.0.0.1", 0)).endpoint.text

    def close():
        sock.close(0)
        release()

    hand.reactor.at_close.append(close)
    return acl, at


def dial(hand, at, kind=zmq.DEALER):
    tuning = Tuning(curve=curve.CurveClient(OURS, NODE.public_key))
    return Link(hand.reactor, kind, at, tuning=tuning)


def warnings(hand):
    return [text for level, text in hand.said if level == logging.WARNING and "does not let" in text]


@pytest.mark.parametrize(
    ("kind", "theirs"), [(zmq.DEALER, zmq.ROUTER), (zmq.PUSH, zmq.PULL), (zmq.XPUB, zmq.XSUB)]
)
def test_a_key_that_is_refused_is_told_once_and_tried_until_it_is_listed(hand, kind, theirs):
    acl, at = port_of(hand, theirs)
    link = dial(hand, at, kind)
    hand.until(lambda: acl.denied >= 3)
    assert link.unknown_key == OURS.public_key
    (said,) = warnings(hand)
    assert said.startswith(f"{at}: the node there does not let our CURVE key {OURS.public_key} in; ")
    assert "[[oslo.keys]]" in said
    assert "zmq_curve_cert" in said
    acl._keys[OURS.public_key] = AccessControl(
        NodeConfig("/nowhere", keys=(KeyEntry(OURS.public_key),))
    )._keys[OURS.public_key]
    hand.until(lambda: not link.unknown_key)
    link.close()


def test_a_key_that_is_taken_is_not_told(hand):
    acl, at = port_of(hand)
    acl.let_in(OURS.public_key)
    link = dial(hand, at)
    link.send([b"x"])
    hand.until(lambda: link.sent)
    assert not link.unknown_key
    assert not warnings(hand)
    link.close()


def test_a_socket_that_is_closed_before_its_handshake_takes_its_monitor_along(hand):
    _acl, at = port_of(hand)
    link = dial(hand, at)
    link.close()
    assert link._monitor.closed
    for _ in range(5):
        hand.turn()


def test_a_peer_that_is_lost_after_a_handshake_is_dialled_anew(hand):
    """It may have forgotten our key: libzmq would not connect to it again by itself."""
    acl, at = port_of(hand)
    acl.let_in(OURS.public_key)
    link = dial(hand, at)
    link.send([b"x"])
    hand.until(lambda: link.sent)
    del acl._keys[OURS.public_key]
    before = acl.denied
    link._due_s = 0.0
    link.check_peer(away=True)
    hand.until(lambda: acl.denied > before)
    hand.until(lambda: link.unknown_key)
    link.close()
