"""Both ends of a ZMTP connection in memory."""

from broker.transport.zeromq.boxes import KeyPair, new_pair
from broker.transport.zeromq.connection import Connection, State
from broker.transport.zeromq.frames import FrameReader
from broker.transport.zeromq.mechanisms import Boxes, CurveClient, CurveServer, Null

SERVER, CLIENT, STRANGER = new_pair(), new_pair(), new_pair()
CAP = 1 << 20
CHILD = {b"Socket-Type": b"DEALER", b"Identity": b"child"}
PARENT = {b"Socket-Type": b"ROUTER"}


def null_pair() -> tuple[Connection, Connection]:
    return Connection(Null(CHILD, as_server=False)), Connection(Null(PARENT, as_server=True))


def curve_pair(keys: KeyPair = CLIENT, server: bytes = SERVER.public) -> tuple[Connection, Connection]:
    return Connection(CurveClient(CHILD, keys, server)), Connection(CurveServer(PARENT, SERVER))


PAIRS = {"null": null_pair, "curve": curve_pair}


def shake_hands(
    client: Connection, server: Connection, *, let_in: bool = True
) -> tuple[Connection, Connection]:
    """Carry bytes between them until nobody has anything to say; the server is asked once."""
    while client.owed or server.owed or server.state is State.ASKED:
        server.feed(client.take_owed())
        if server.state is State.ASKED and server.failure is None:
            if let_in:
                server.grant()
            else:
                server.refuse()
        client.feed(server.take_owed())
        if client.failure is not None or server.failure is not None:
            break
    return client, server


def opened(kind: str) -> tuple[Connection, Connection]:
    """A client and a server that have shaken hands."""
    client, server = shake_hands(*PAIRS[kind]())
    assert client.state is server.state is State.OPEN
    client.limit(CAP)
    server.limit(CAP)
    return client, server


def frame(connection: Connection, flags: int, data: bytes) -> bytes:
    """A frame as it would be sent."""
    out: list[bytes] = []
    connection.frame(flags, (data,), out)
    return b"".join(out)


def encoded(connection: Connection, parts: list[bytes]) -> bytes:
    """A message as it would be sent."""
    out: list[bytes] = []
    connection.encode(parts, out)
    return b"".join(out)


def sealed(boxes: Boxes, flags: int, data: bytes) -> bytes:
    """The body of a frame."""
    out: list[bytes] = []
    boxes.seal(flags, (data,), out)
    return read_frames(b"".join(out))[0][1]


def read_frames(data: bytes) -> list[tuple[int, bytes]]:
    """Flags and bodies of all frames."""
    found: list[tuple[int, bytes]] = []
    FrameReader(CAP).feed(data, found)
    return found
