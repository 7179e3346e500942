"""What type of ZeroMQ socket is behind an address: its own word, in the handshake of ZMTP 3.1 (RFC 37), not ours."""

import socket
from pathlib import Path

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
SECONDS = 5.0
PROPERTY = b"\x0bSocket-Type"


def _ready(kind: str) -> bytes:
    value = kind.encode()
    command = b"\x05READY" + PROPERTY + len(value).to_bytes(4, "big") + value
    return b"\x04" + len(command).to_bytes(1, "big") + command


def _exactly(sock: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        more = sock.recv(count - len(got))
        if not more:
            raise ConnectionError(f"closed after {len(got)} of {count} bytes")
        got += more
    return got


def socket_type(place: tuple[str, int] | Path, peer: str) -> str:
    """The type that the socket listening at ``place`` tells a peer, which says of itself that it is a ``peer``.

    Raises:
        OSError: nobody listens there, it closed, or it did not answer within ``SECONDS``.
        ValueError: it told no type.
    """
    family = socket.AF_UNIX if isinstance(place, Path) else socket.AF_INET
    with socket.socket(family) as sock:
        sock.settimeout(SECONDS)
        sock.connect(str(place) if isinstance(place, Path) else place)
        sock.sendall(GREETING)
        _exactly(sock, len(GREETING))
        sock.sendall(_ready(peer))
        _flags, size = _exactly(sock, 2)
        _name, found, rest = _exactly(sock, size).partition(PROPERTY)
        if not found:
            raise ValueError(f"{place} tells no type of its socket")
        return rest[4 : 4 + int.from_bytes(rest[:4], "big")].decode()
