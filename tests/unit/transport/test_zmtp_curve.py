"""The handshake of CURVE and its boxes (ZeroMQ RFC 26): sizes, cookies, vouchers, numbers, refusals."""

import pytest

from broker.errors import DecodeError
from broker.transport.zeromq.boxes import new_pair, open_box, seal, shared
from broker.transport.zeromq.connection import Connection, State
from broker.transport.zeromq.frames import COMMAND, MORE, command, head_of, pack_metadata
from broker.transport.zeromq.mechanisms import (
    HELLO_BYTES,
    WELCOME_BYTES,
    Boxes,
    CurveClient,
    CurveServer,
    Refused,
)
from tests.tables import for_each
from tests.unit.transport.zmtp import (
    CHILD,
    CLIENT,
    PAIRS,
    PARENT,
    SERVER,
    STRANGER,
    curve_pair,
    encoded,
    frame,
    opened,
    read_frames,
    sealed,
    shake_hands,
)


@for_each("kind", list(PAIRS))
def test_handshake(kind):
    client, server = opened(kind)
    assert server.identity == b"child"
    assert server.mechanism.key == (CLIENT.public if kind == "curve" else b"")
    for near, far in ((client, server), (server, client)):
        for parts in ([b"a"], [b"", b"topic", b"x" * 70_000], [b""]):
            assert [[bytes(part) for part in each] for each in far.feed(encoded(near, parts))] == [parts]


def test_sizes_of_commands():
    """RFC 26: HELLO has 200 bytes, WELCOME 168: nobody is sent more than was said by a stranger."""
    client, server = curve_pair()
    server.feed(client.take_owed())
    client.feed(server.take_owed())
    hello = client.take_owed()
    assert hello[:2] == bytes((COMMAND, HELLO_BYTES))
    assert len(hello) == 2 + HELLO_BYTES
    server.feed(hello)
    welcome = server.take_owed()
    assert welcome[:2] == bytes((COMMAND, WELCOME_BYTES))
    assert len(welcome) < len(hello)


def test_a_client_that_is_not_let_in_hears_the_code():
    """ERROR with a status code of ZAP, as libzmq says it (RFC 27)."""
    for pair in PAIRS.values():
        client, server = shake_hands(*pair(), let_in=False)
        assert isinstance(client.failure, Refused)
        assert client.failure.reason == "400"
        assert client.feed(encoded(server, [b"a"])) == []


def test_a_server_with_another_key_is_found_out():
    """The server cannot open HELLO; it hangs up without a word (RFC 26), which is the caller's to do."""
    _client, server = shake_hands(*curve_pair(server=STRANGER.public))
    assert isinstance(server.failure, DecodeError)
    assert server.state is State.HANDSHAKE
    assert not server.owed


@for_each("at", [0, 1, 8, 100, 130, 199])
def test_a_changed_hello(at):
    client, server = curve_pair()
    server.feed(client.take_owed())
    client.feed(server.take_owed())
    hello = bytearray(client.take_owed())
    hello[2 + at] ^= 1
    server.feed(bytes(hello))
    padding = 8 <= at < 80
    assert (server.failure is None) is padding  # nobody protects the padding


def initiate(client=None, server=None):
    """A server that has answered HELLO, and its client's INITIATE."""
    client, server = client or curve_pair()[0], server or curve_pair()[1]
    server.feed(client.take_owed())
    client.feed(server.take_owed())
    server.feed(client.take_owed())
    client.feed(server.take_owed())
    return server, client.take_owed()


def test_the_cookie_of_another_connection():
    _server, other = initiate()
    server, own = initiate()
    server.feed(own[:11] + other[11:107] + own[107:])
    assert "cookie" in str(server.failure)


def test_a_whole_initiate_of_another_connection():
    _server, other = initiate()
    server, _own = initiate()
    server.feed(other)
    assert server.failure is not None
    assert server.state is State.HANDSHAKE


class Voucher:
    """A client (a ``Mechanism``) that vouches for something else."""

    name, as_server = b"CURVE", False

    def __init__(self, short=None, server=None):
        self.inner = CurveClient(CHILD, CLIENT, SERVER.public)
        self.vouched = short or self.inner._short.public, server or SERVER.public
        self.metadata, self.key, self.seals = None, SERVER.public, None
        self.begin, self.grant = self.inner.begin, self.inner.grant

    def take(self, body):
        made = self.inner.take(body)
        if self.inner.metadata is not None:
            self.metadata, self.seals = self.inner.metadata, self.inner.seals
            return made
        short, nonce = self.inner._short, bytes(16)
        theirs = open_box(body[24:], b"WELCOME-" + body[8:24], shared(SERVER.public, short.secret))[:32]
        vouch = seal(b"".join(self.vouched), b"VOUCH---" + nonce, shared(theirs, CLIENT.secret))
        number = self.inner._next()
        said = CLIENT.public + nonce + vouch + pack_metadata(CHILD)
        box = seal(said, b"CurveZMQINITIATE" + number, shared(theirs, short.secret))
        return made[:105] + number + box


@for_each(
    ("what", "voucher", "let_in"),
    [
        ("this connection and this server", {}, True),
        ("another connection", {"short": STRANGER.public}, False),
        ("another server, to which it was shown before", {"server": STRANGER.public}, False),
    ],
)
def test_vouchers(what, voucher, let_in):
    """RFC 26: the voucher says C' and S; libzmq looks at C' alone."""
    _client, server = shake_hands(Connection(Voucher(**voucher)), Connection(CurveServer(PARENT, SERVER)))
    assert (server.state is State.OPEN) is let_in
    assert ("voucher" in str(server.failure)) is not let_in


def test_a_key_that_is_none_is_refused():
    """A public key of small order would give a secret that everybody knows."""
    for bad in (bytes(32), b"\x01" + bytes(31)):
        with pytest.raises(DecodeError):
            shared(bad, CLIENT.secret)


def test_initiate_with_a_number_that_is_not_above_hello():
    client, server = curve_pair()
    server.mechanism._their_number = 0
    server.feed(client.take_owed())
    client.feed(server.take_owed())
    server.feed(client.take_owed())
    server.mechanism._their_number = 2  # as if HELLO had had the number of this INITIATE
    client.feed(server.take_owed())
    server.feed(client.take_owed())
    assert "box 2 after box 2" in str(server.failure)


# -- boxes ----------------------------------------------------------------------------------------


def boxes():
    key = shared(SERVER.public, CLIENT.secret)
    return key, Boxes(key, 5, 9, as_server=False), Boxes(key, 9, 5, as_server=True)


def test_each_box_counts_up():
    """A box that comes again, or in another order, ends the connection (RFC 26, "nonces")."""
    _key, client, server = boxes()
    first, second = sealed(client, 0, b"a"), sealed(client, 0, b"a")
    assert first != second
    assert server.open(0, second) == (0, b"a")
    for late in (second, first):
        with pytest.raises(DecodeError, match="after box 7"):
            server.open(0, late)
    assert server.open(0, sealed(client, 1, b"b")) == (MORE, b"b")


def test_numbers_end():
    key, _client, server = boxes()
    last = Boxes(key, (1 << 64) - 1 - 1, 0, as_server=False)
    assert server.open(0, sealed(last, 0, b"x")) == (0, b"x")
    with pytest.raises(OverflowError):
        sealed(last, 0, b"y")
    with pytest.raises(DecodeError, match="after box"):
        server.open(0, sealed(Boxes(key, 6, 0, as_server=False), 0, b"z"))


def test_a_box_cannot_be_thrown_back():
    """Both directions have nonces of their own."""
    _key, client, _server = boxes()
    with pytest.raises(DecodeError, match="open"):
        Boxes(_key, 0, 0, as_server=False).open(0, sealed(client, 0, b"a"))


@for_each("at", [0, 7, 8, 15, 16, 31, 32, 40])
def test_a_changed_box(at):
    _key, client, server = boxes()
    box = bytearray(sealed(client, 0, b"some data"))
    box[at] ^= 0x10
    with pytest.raises(DecodeError):
        server.open(0, bytes(box))


@for_each("size", [0, 7, 8, 16, 32])
def test_a_short_box(size):
    _key, client, server = boxes()
    with pytest.raises(DecodeError):
        server.open(0, sealed(client, 0, b"")[:size])


def test_flags_in_the_box():
    key, _client, server = boxes()
    for number, inner in enumerate(range(256), 6):
        nonce = number.to_bytes(8, "big")
        box = b"\x07MESSAGE" + nonce + seal(bytes((inner,)) + b"x", b"CurveZMQMESSAGEC" + nonce, key)
        if inner in (0, 1, 2):
            assert server.open(0, box) == ({0: 0, 1: MORE, 2: COMMAND}[inner], b"x")
        else:
            with pytest.raises(DecodeError, match="flags"):
                server.open(0, box)


def test_plaintext_behind_a_handshake_of_curve():
    _client, server = opened("curve")
    assert server.feed(head_of(1) + b"a") == []
    assert "no box" in str(server.failure)


# -- messages and commands -------------------------------------------------------------------------


@for_each("kind", list(PAIRS))
def test_pings(kind):
    """RFC 37, "PING and PONG": the context comes back; between parts, or too long, it ends the connection."""
    for context in (b"", b"c", b"c" * 16):
        client, server = opened(kind)
        server.feed(frame(client, COMMAND, b"\x04PING\x00\x0a" + context))
        assert server.failure is None
        ((flags, body),) = read_frames(server.take_owed())
        if client.mechanism.seals is not None:
            flags, body = client.mechanism.seals.open(flags, body)
        assert (flags, bytes(body)) == (COMMAND, b"\x04PONG" + context)
    for bad in (b"\x04PING", b"\x04PING\x00", b"\x04PING\x00\x00" + b"c" * 17):
        client, server = opened(kind)
        server.feed(frame(client, COMMAND, bad))
        assert "PING" in str(server.failure)


@for_each("kind", list(PAIRS))
def test_pings_whose_answers_nobody_reads(kind):
    """Or that came while we were stopped: the newest are answered, and none of it is held."""
    client, server = opened(kind)
    for number in range(2000):
        server.feed(frame(client, COMMAND, b"\x04PING\x00\x00" + b"%016d" % number))
    assert server.failure is None
    answers = server.take_owed()
    assert len(answers) < 8192
    if kind == "null":
        assert answers.endswith(b"%016d" % 1999)
    assert client.feed(answers) == []
    assert client.failure is None


@for_each("kind", list(PAIRS))
def test_a_ping_between_parts(kind):
    """As libzmq sends it; RFC 37 has commands between messages alone. Found with its heartbeats beside 5 MiB."""
    client, server = opened(kind)
    assert server.feed(frame(client, MORE, b"a")) == []
    assert server.feed(frame(client, COMMAND, b"\x04PING\x00\x0ahere")) == []
    assert server.feed(frame(client, 0, b"b")) == [[b"a", b"b"]]
    assert client.feed(server.take_owed()) == []
    assert server.failure is client.failure is None


@for_each("kind", list(PAIRS))
def test_commands_of_others_are_passed_over(kind):
    client, server = opened(kind)
    out = server.feed(frame(client, COMMAND, b"\x09SUBSCRIBEx") + encoded(client, [b"a"]))
    assert out == [[b"a"]]
    assert not server.owed


@for_each("kind", list(PAIRS))
def test_messages_are_bounded(kind):
    client, server = opened(kind)
    server.limit(1000)
    assert server.feed(encoded(client, [b"x" * 500, b"y" * 500])) == [[b"x" * 500, b"y" * 500]]
    assert server.feed(encoded(client, [b"ok"]) + encoded(client, [b"x" * 500, b"y" * 501])) == [[b"ok"]]
    assert "message of 1001 bytes" in str(server.failure)
    assert server.feed(encoded(client, [b"a"])) == []
    client, server = opened(kind)
    for _ in range(5000):
        server.feed(frame(client, MORE, b""))
    assert "parts" in str(server.failure)
    assert server.pending_bytes == 0


def test_what_comes_with_the_last_of_the_handshake():
    """A server's first message may come with its READY, and a NULL client's with its own (RFC 37)."""
    for kind, pair in PAIRS.items():
        client, server = pair()
        while server.state is not State.ASKED:
            server.feed(client.take_owed())
            client.feed(server.take_owed())
        server.grant()
        client.feed(server.take_owed() + encoded(server, [b"first"]))
        assert client.state is State.OPEN, kind
        client.limit(1000)
        server.limit(1000)
        assert client.feed(b"") == [[b"first"]]
        assert server.feed(encoded(client, [b"second"])) == [[b"second"]]
    client, server = PAIRS["null"]()
    client.feed(server.take_owed())
    server.feed(client.take_owed() + encoded(client, [b"early"]))
    assert server.state is State.ASKED
    server.grant()
    server.limit(1000)
    assert server.feed(encoded(client, [b"later"])) == [[b"early"], [b"later"]]


def test_every_connection_has_keys_of_its_own():
    one, other = opened("curve")[0], opened("curve")[0]
    assert encoded(one, [b"a"]) != encoded(other, [b"a"])
    assert new_pair() != new_pair()


def test_commands_of_the_handshake_in_another_order():
    for name in (b"INITIATE", b"MESSAGE", b"READY", b"WELCOME", b"ERROR"):
        _client, server = curve_pair()
        server.feed(curve_pair()[0].take_owed() + command(bytes((len(name),)) + name + bytes(200)))
        assert "expected HELLO" in str(server.failure)
    for name in (b"READY", b"HELLO", b"MESSAGE"):
        client, server = curve_pair()
        client.feed(server.take_owed() + command(bytes((len(name),)) + name + bytes(200)))
        assert "expected WELCOME" in str(client.failure)
