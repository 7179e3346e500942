"""Who is not let in is counted and told, once in a while, with what it needs."""

import logging

import pytest
import zmq

from broker import rates
from broker.errors import ConfigError
from broker.oslo.names import Pipeline
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.reactor.binding import TcpPort, guard, resolved
from broker.oslo.reactor.tuning import Tuning, tune_tcp
from broker.transport import curve
from tests.tables import for_each
from tests.unit.oslo.reactor.turns import by_hand

OURS, OTHER = curve.generate(), curve.generate()


@pytest.fixture
def hand():
    with by_hand() as it:
        yield it


def port_of(hand, certificate, **config):
    """A guarded port; its doorman, its endpoint."""
    doorman = AccessControl(NodeConfig("/nowhere", curve_cert="x" if certificate else "", **config))
    sock = hand.reactor.context.socket(zmq.ROUTER)
    served = None if certificate is None else curve.CurveServer(certificate)
    tune_tcp(sock, Tuning(curve=served))
    release = guard(hand.reactor, sock, doorman)
    at = TcpPort(sock, resolved("127.0.0.1", 0)).endpoint.text

    def close():
        sock.close(0)
        release()
        release()

    hand.reactor.at_close.append(close)
    return doorman, at


def knock(hand, at, certificate=None, server_key=""):
    sock = hand.peers.socket(zmq.DEALER)
    hand.socks.append(sock)
    joined = curve.CurveClient(certificate, server_key) if certificate else None
    tune_tcp(sock, Tuning(curve=joined))
    sock.set(zmq.RECONNECT_IVL, -1)
    sock.connect(at)


def warnings(hand):
    return [text for level, text in hand.said if level == logging.WARNING]


def test_a_key_that_may_not_enter_is_named(hand):
    doorman, at = port_of(hand, OURS, unlisted=0)
    for _ in range(3):
        knock(hand, at, OTHER, OURS.public_key)
    hand.until(lambda: doorman.denied == 3)
    assert len(warnings(hand)) == 1
    said = warnings(hand)[0]
    assert said.startswith(f"{at}: turned away the CURVE key {OTHER.public_key} (from 127.0.0.1): ")
    assert (
        "it needs a [[oslo.keys]] entry with a role, or a certificate that has one (denied: 1 so far)" in said
    )
    knock(hand, at, curve.generate(), OURS.public_key)
    hand.until(lambda: doorman.denied == 4)
    assert len(warnings(hand)) == 2


@pytest.mark.parametrize(
    ("ours", "theirs", "server_key", "said"),
    [
        (OURS, OTHER, OTHER.public_key, "a peer that expects another CURVE key here than ours; "),
        (OURS, None, "", "a peer in plaintext; to be let in it needs curve_cert"),
        (None, OTHER, OURS.public_key, "a peer with CURVE, while this port has none; "),
    ],
    ids=[
        "another key",
        "plaintext to CURVE",
        "CURVE to plaintext",
    ],  # keys are drawn anew in each worker of a run
)
def test_those_who_fail_before_they_are_judged_are_counted(hand, ours, theirs, server_key, said):
    doorman, at = port_of(hand, ours)

    def counted():
        knock(
            hand, at, theirs, server_key
        )  # one who sees it, too, and hangs up first cannot be told from any other
        for _ in range(5):
            hand.turn()
        return doorman.denied >= 2

    hand.until(counted)
    assert len(warnings(hand)) == 1
    assert f"{at}: turned away {said}" in warnings(hand)[0]


def test_strangers_without_end_are_forgotten(hand, monkeypatch):
    monkeypatch.setattr(rates, "KEYS_MAX", 2)
    doorman, at = port_of(hand, OURS, unlisted=0)
    for number in range(5):
        knock(hand, at, curve.generate(), OURS.public_key)
        hand.until(lambda: doorman.denied == number + 1)  # noqa: B023 - called at once
    assert len(warnings(hand)) == 5


@for_each("port", [-1, 65536, 99999])
def test_a_port_that_cannot_be_is_not_taken_for_another_one(port):
    with pytest.raises(ConfigError, match=f":{port}': expected a port up to 65535"):
        resolved("127.0.0.1", port)
    assert NodeConfig("/nowhere").ports[Pipeline.CALL] == 9501
