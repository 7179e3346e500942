"""What the kernel counts of TCP connections, asked by netlink (``sock_diag``), for which no rights are needed."""

from __future__ import annotations

import socket
import struct

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST_DUMP = 0x301
NLMSG_ERROR, NLMSG_DONE = 2, 3
INET_DIAG_INFO = 2
ESTABLISHED = 1 << 1
_HEAD = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBBI48s")
_ATTRIBUTE = struct.Struct("=HH")
_ANSWER_BYTES = 72
_PORT = struct.Struct("!H")
_PORT_AT = 4
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128
"""Of ``tcpi_bytes_received`` in ``struct tcp_info`` (Linux 4.1 and newer)."""


def bytes_into(port: int) -> int:
    """Bytes that came in so far over the established IPv4 connections whose local port is ``port``."""
    question = _QUESTION.pack(
        socket.AF_INET, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0, ESTABLISHED, b""
    )
    head = _HEAD.pack(_HEAD.size + len(question), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, 1, 0)
    total = 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as sock:
        sock.settimeout(5)
        sock.sendto(head + question, (0, 0))
        while True:
            data = sock.recv(1 << 20)
            while data:
                length, kind, _flags, _number, _pid = _HEAD.unpack_from(data)
                if kind == NLMSG_DONE:
                    return total
                if kind == NLMSG_ERROR:
                    raise OSError(-struct.unpack_from("=i", data, _HEAD.size)[0], "sock_diag refused")
                total += _received(data[_HEAD.size : length], port)
                data = data[(length + 3) & ~3 :]


def _received(answer: bytes, port: int) -> int:
    if _PORT.unpack_from(answer, _PORT_AT)[0] != port:
        return 0
    at = _ANSWER_BYTES
    while at + _ATTRIBUTE.size <= len(answer):
        size, kind = _ATTRIBUTE.unpack_from(answer, at)
        if kind == INET_DIAG_INFO:
            return int(_RECEIVED.unpack_from(answer, at + _ATTRIBUTE.size + _RECEIVED_AT)[0])
        at += (size + 3) & ~3
    return 0
