"""The PROXY protocol, versions 1 and 2: what a TCP load balancer writes before the client's first byte (pure).

Source: the PROXY protocol specification of HAProxy (proxy-protocol.txt), sections 2.1 and 2.2.

Rules of this file:

- Never read too far: `Header.need` is how many bytes surely belong to the header. Who reads no more than that leaves
  the client's own bytes, a TLS hello perhaps, where they are.
- Strict and bounded: what is not exactly a header is refused at the first byte that says so.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Final

from broker.errors import ProtocolError

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
"""How version 2 begins."""
V1_BYTES: Final = 107
"""Longest line of version 1, its end included."""
V2_BYTES: Final = 4096
"""Longest header of version 2 that is read; addresses take 36 bytes, the rest is for TLVs."""

_V1: Final = b"PROXY "
_V1_SHORTEST: Final = len(b"PROXY UNKNOWN\r\n")
_V2_HEAD: Final = 16
_PROXY, _LOCAL = 0x21, 0x20
_TCP4, _TCP6, _UNIX, _UNSPEC = 0x11, 0x21, 0x31, 0x00
_ADDRESS_BYTES: Final = {_TCP4: 12, _TCP6: 36, _UNIX: 216, _UNSPEC: 0}

Source = tuple[str, int]


class Header:
    """Reads one header, piece by piece.

    Attributes:
        need: bytes to feed next, at most; 0 when the header is complete.
        source: address and port of the client; None when the header says none (a health check of the load balancer,
            an address family without one): then the socket's peer is meant.
    """

    __slots__ = ("_taken", "need", "source")

    def __init__(self) -> None:
        self._taken = bytearray()
        self.need = _V1_SHORTEST
        self.source: Source | None = None

    @property
    def done(self) -> bool:
        """True when the header is complete."""
        return self.need == 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes, not more than ``need``.

        Raises:
            ProtocolError: they do not belong to a header.
            ValueError: more than ``need``.
        """
        if len(data) > self.need:
            raise ValueError(f"{len(data)} bytes, expected at most {self.need}")
        taken = self._taken
        taken += data
        if SIGNATURE.startswith(taken[: len(SIGNATURE)]):
            self._version_2(taken)
        elif _V1.startswith(taken[: len(_V1)]):
            self._version_1(taken)
        else:
            raise ProtocolError(f"saw {bytes(taken[:16])!r}, expected a PROXY header")

    # ------------------------------------------------------------ version 1

    def _version_1(self, taken: bytearray) -> None:
        end = taken.find(b"\r\n")
        if end >= 0:
            self.need = 0
            self.source = _read_line(bytes(taken[:end]))
        elif len(taken) > V1_BYTES - 2:
            raise ProtocolError(f"a PROXY line without an end in {V1_BYTES} bytes")
        elif len(taken) < _V1_SHORTEST:
            self.need = _V1_SHORTEST - len(taken)
        else:
            self.need = 1 if taken.endswith(b"\r") else 2

    # ------------------------------------------------------------ version 2

    def _version_2(self, taken: bytearray) -> None:
        if len(taken) < _V2_HEAD:
            self.need = _V2_HEAD - len(taken)
            return
        command, family, length = struct.unpack_from(">BBH", taken, len(SIGNATURE))
        if command not in (_PROXY, _LOCAL) or (command == _PROXY and family not in _ADDRESS_BYTES):
            raise ProtocolError(f"PROXY command {command:#04x}, family {family:#04x}; expected a stream")
        if _V2_HEAD + length > V2_BYTES:
            raise ProtocolError(f"a PROXY header of {_V2_HEAD + length} bytes, expected at most {V2_BYTES}")
        self.need = _V2_HEAD + length - len(taken)
        if self.need == 0 and command == _PROXY:
            self.source = _read_addresses(family, bytes(taken[_V2_HEAD:]))


def _read_line(line: bytes) -> Source | None:
    """The source of a version 1 line (section 2.1); UNKNOWN has none, whatever follows it."""
    words = line.split(b" ")
    if words[:2] == [b"PROXY", b"UNKNOWN"]:
        return None
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise ProtocolError(
            f"saw {line[:64]!r}, expected PROXY TCP4|TCP6|UNKNOWN and two addresses and ports"
        )
    version = 4 if words[1] == b"TCP4" else 6
    source, _destination = _address(words[2], version), _address(words[3], version)
    port, _port = _port_number(words[4]), _port_number(words[5])
    return source, port


def _address(word: bytes, version: int) -> str:
    try:
        address = ipaddress.ip_address(word.decode("ascii"))
    except ValueError:
        raise ProtocolError(f"saw {word[:48]!r}, expected an IPv{version} address") from None
    if address.version != version or b"%" in word:
        raise ProtocolError(f"saw {word[:48]!r}, expected an IPv{version} address")
    return str(address)


def _port_number(word: bytes) -> int:
    if not word.isdigit() or len(word) > 5 or int(word) > 65535 or (word[:1] == b"0" and word != b"0"):
        raise ProtocolError(f"saw {word[:16]!r}, expected a port")
    return int(word)


def _read_addresses(family: int, block: bytes) -> Source | None:
    """The source of a version 2 header (section 2.2); what stands behind the addresses must be whole TLVs."""
    size = _ADDRESS_BYTES[family]
    if len(block) < size:
        raise ProtocolError(f"{len(block)} bytes of PROXY addresses, expected {size}")
    if family != _UNSPEC:
        _walk_tlvs(block, size)
    if family == _TCP4:
        return str(ipaddress.IPv4Address(block[:4])), struct.unpack_from(">H", block, 8)[0]
    if family == _TCP6:
        return str(ipaddress.IPv6Address(block[:16])), struct.unpack_from(">H", block, 32)[0]
    return None


def _walk_tlvs(block: bytes, at: int) -> None:
    while at < len(block):
        end = at + 3 + (int.from_bytes(block[at + 1 : at + 3], "big") if at + 3 <= len(block) else 0)
        if end > len(block):
            raise ProtocolError("a TLV of the PROXY header that is cut off")
        at = end
