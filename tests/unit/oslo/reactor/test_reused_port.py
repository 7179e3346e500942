"""A port that is listened at again with another certificate: its newest keys get what comes."""

import pytest
import zmq

from broker.oslo.reactor.binding import TcpPort, resolved
from broker.oslo.reactor.tuning import Tuning, tune_tcp
from broker.transport import curve
from tests.unit.oslo.reactor.turns import by_hand


@pytest.fixture
def hand():
    with by_hand() as it:
        yield it


def test_each_further_certificate_gets_all_that_comes_and_connections_stay(hand):
    certificates = [curve.generate() for _ in range(3)]
    sock = hand.sock(zmq.ROUTER, RCVTIMEO=10_000)
    tune_tcp(sock, Tuning(curve=curve.CurveServer(certificates[0])))
    port = TcpPort(sock, resolved("127.0.0.1", 0))
    peers = []

    def arrives(certificate):
        peer = hand.peer(zmq.DEALER)
        tune_tcp(peer, Tuning(curve=curve.CurveClient(curve.generate(), certificate.public_key)))
        peer.connect(port.endpoint.text)
        peers.append(peer)
        peer.send(b"new")
        assert sock.recv_multipart()[1] == b"new"

    arrives(certificates[0])
    for certificate in certificates[1:]:
        port.renew(certificate)
        for _ in range(4):
            arrives(certificate)
    for number, peer in enumerate(peers):
        peer.send(b"%d" % number)
        assert sock.recv_multipart()[1] == b"%d" % number
