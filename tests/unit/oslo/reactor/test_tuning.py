"""Every option of the wing's sockets is set, on TCP and on IPC; a peer that is gone is noticed in time."""

import pytest
import zmq

from broker.oslo.frames import Kind, decode, encode
from broker.oslo.names import CHOSEN_MAX, NAME_BYTES_MAX
from broker.oslo.node import SEND_MSGS
from broker.oslo.reactor import tuning
from broker.oslo.reactor.bundle import pack
from broker.oslo.reactor.tuning import KeepAlive, Tuning, tune_local, tune_tcp
from broker.transport.curve import CurveClient, CurveServer, generate
from tests.tables import for_each


@pytest.fixture
def new():
    """Makes sockets, and closes them at the end."""
    context, made = zmq.Context(), []

    def make(kind: int) -> zmq.Socket[bytes]:
        made.append(context.socket(kind))
        return made[-1]

    yield make
    for sock in made:
        sock.close(0)
    context.term()


def told(sock: zmq.Socket[bytes], *names: str) -> list[int]:
    return [sock.get(getattr(zmq, name)) for name in names]


KEEPALIVE = ("TCP_KEEPALIVE", "TCP_KEEPALIVE_IDLE", "TCP_KEEPALIVE_CNT", "TCP_KEEPALIVE_INTVL")


@for_each("kind", [zmq.ROUTER, zmq.DEALER, zmq.XPUB, zmq.XSUB, zmq.SUB, zmq.PUSH, zmq.PULL])
def test_tcp_sockets_of_every_kind_notice_a_dead_connection(new, kind):
    sock = new(kind)
    tune_tcp(sock, Tuning(KeepAlive(True, 7, 4, 3), max_bytes=1 << 20))
    assert told(sock, *KEEPALIVE) == [1, 7, 4, 3]
    assert told(sock, "TCP_MAXRT", "HEARTBEAT_IVL") == [19_000, 0]  # see test_heartbeats_off
    waiting = 0 if kind in (zmq.SUB, zmq.XSUB) else SEND_MSGS  # subscriptions are not to be dropped
    beside = tuning.BUNDLE_BYTES if kind == zmq.DEALER else 0
    assert told(sock, "MAXMSGSIZE", "LINGER", "SNDHWM") == [(1 << 20) + beside, 0, waiting]
    assert told(sock, "HANDSHAKE_IVL", "CONNECT_TIMEOUT") == [tuning.HANDSHAKE_MS, tuning.CONNECT_MS]
    assert told(sock, "RECONNECT_IVL", "RECONNECT_IVL_MAX") == [tuning.RECONNECT_MS, tuning.RECONNECT_MAX_MS]


def test_keep_alive_can_be_switched_off(new):
    sock = new(zmq.DEALER)
    tune_tcp(sock, Tuning(KeepAlive(on=False)))
    assert told(sock, "TCP_KEEPALIVE", "HEARTBEAT_IVL", "TCP_MAXRT") == [0, 0, 0]


def test_what_is_left_to_the_system_does_not_make_us_impatient(new):
    sock = new(zmq.DEALER)
    tune_tcp(sock, Tuning(KeepAlive(True, -1, -1, -1)))
    assert told(sock, *KEEPALIVE) == [1, -1, -1, -1]
    assert told(sock, "TCP_MAXRT") == [11_000]


@for_each(
    ("alive", "dead_ms"),
    [
        (KeepAlive(), 11_000),
        (KeepAlive(True, 1, 1, 1), 2_000),
        (KeepAlive(True, -1, 10, 1), 15_000),
        (KeepAlive(True, 7200, 9, 75), 7_875_000),
        (KeepAlive(True, 32767, 127, 32767), 2**31 - 1),
    ],
)
def test_when_a_peer_is_given_up(new, alive, dead_ms):
    assert alive.dead_ms == dead_ms
    tune_tcp(new(zmq.DEALER), Tuning(alive))


@for_each(("kind", "immediate"), [(zmq.DEALER, 1), (zmq.PUSH, 1), (zmq.XPUB, 0), (zmq.ROUTER, 0)])
def test_what_waits_for_a_node_that_is_away_stays_in_our_hands(new, kind, immediate):
    sock = new(kind)
    tune_local(sock, send_msgs=5, receive_msgs=6)
    assert told(sock, "IMMEDIATE", "SNDHWM", "RCVHWM", "LINGER") == [immediate, 5, 6, 0]
    sock.bind("tcp://127.0.0.1:*")
    if kind == zmq.ROUTER:
        with pytest.raises(zmq.ZMQError, match="Host unreachable"):  # ROUTER_MANDATORY cannot be asked for
            sock.send_multipart([b"nobody", b"x"])
    elif immediate:
        with pytest.raises(zmq.Again):
            sock.send(b"x", zmq.NOBLOCK)


def test_curve_is_served_and_joined(new):
    server, client = generate(), generate()
    listening, dialing = new(zmq.ROUTER), new(zmq.DEALER)
    tune_tcp(listening, Tuning(curve=CurveServer(server)))
    tune_tcp(dialing, Tuning(curve=CurveClient(client, server.public_key)))
    assert told(listening, "MECHANISM", "CURVE_SERVER") == [zmq.CURVE, 1]
    assert told(dialing, "MECHANISM", "CURVE_SERVER") == [zmq.CURVE, 0]
    listening.bind("tcp://127.0.0.1:*")
    dialing.connect(listening.get_string(zmq.LAST_ENDPOINT))
    assert dialing.poll(10_000, zmq.POLLOUT)
    dialing.send(b"x")
    assert listening.poll(10_000)
    listening.recv_multipart()


@pytest.mark.parametrize("sealed", [False, True], ids=["plaintext", "CURVE"])
def test_the_largest_body_passes_to_a_dealer_with_the_longest_envelope_and_route(new, sealed):
    server, client = generate(), generate()
    listening, dialing = new(zmq.ROUTER), new(zmq.DEALER)
    limit = 200_000
    tune_tcp(listening, Tuning(max_bytes=limit, curve=CurveServer(server) if sealed else None))
    join = CurveClient(client, server.public_key) if sealed else None
    tune_tcp(dialing, Tuning(max_bytes=limit, curve=join))
    listening.bind("tcp://127.0.0.1:*")
    dialing.connect(listening.get_string(zmq.LAST_ENDPOINT))
    assert dialing.poll(10_000, zmq.POLLOUT)
    names = ["n" * NAME_BYTES_MAX] * (3 + CHOSEN_MAX)
    envelope = encode(Kind.CALL, *names[:3], names[3:])
    assert decode(envelope).listeners == tuple(names[3:])
    route = bytes(1 + 255)  # whose socket, and the longest id that ZeroMQ has
    dialing.send_multipart([b"hello", bytes(limit)])
    assert listening.poll(10_000)
    peer, *_ = listening.recv_multipart()
    bundle = pack([envelope, route, bytes(limit)])
    listening.send_multipart([peer, bundle])
    assert dialing.poll(10_000)
    assert dialing.recv() == bundle
    listening.send_multipart([peer, bytes(limit + tuning.BUNDLE_BYTES + tuning.CURVE_BYTES + 1)])
    assert not dialing.poll(50)  # refused before it is allocated
