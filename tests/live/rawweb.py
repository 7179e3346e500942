"""A gateway as somebody sees it who writes HTTP byte for byte."""

import contextlib
import itertools
import json
import re
import socket
from pathlib import Path
from typing import NamedTuple

from tests.live.gateways import GatewayProcess
from tests.live.verbs import headgate

HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "x3JJHMbDL1EzLkh9GBhXDw==",
    "Sec-WebSocket-Protocol": "flux.v1.json",
}


_numbers = itertools.count(1)


class Said(NamedTuple):
    """An answer over HTTP."""

    status: int
    head: str
    """Status line and headers."""
    body: bytes

    @property
    def cookie(self) -> str:
        """What a browser would send back; "" for none."""
        found = [line for line in self.head.splitlines() if line.lower().startswith("set-cookie:")]
        return found[0].partition(":")[2].partition(";")[0].strip() if found else ""


def whole(came: bytes) -> bool:
    """Whether an answer of a stated length, to a handshake that became no WebSocket, is complete."""
    head, end, body = came.partition(b"\r\n\r\n")
    length = re.search(rb"\r\n[Cc]ontent-[Ll]ength: (\d+)", head)
    return (
        bool(end) and came.startswith(b"HTTP/1.1 403") and length is not None and len(body) >= int(length[1])
    )


class Web(NamedTuple):
    """A gateway, and the folder that holds its state."""

    gateway: GatewayProcess
    folder: Path

    @property
    def authority(self) -> str:
        return self.gateway.urls[0].removeprefix("http://")

    @property
    def origin(self) -> str:
        return self.gateway.urls[0]

    def raw(self, data: bytes, *, more: bytes = b"") -> bytes:
        """Everything that comes back to these bytes; each time from another address of this machine, because of those
        that were refused too often the gateway hears no more for a while.
        """
        host, _, port = self.authority.rpartition(":")
        came, number = b"", next(_numbers)
        source = (f"127.9.{number >> 8 & 255}.{number & 255}", 0)
        with socket.create_connection((host, int(port)), 10, source) as sock, contextlib.suppress(OSError):
            sock.sendall(data)
            if more:
                came += sock.recv(1 << 16)
                sock.settimeout(2)
                sock.sendall(more)
            while (more or not whole(came)) and (said := sock.recv(1 << 16)):
                came += said
        return came

    def ask(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"", **more: bytes
    ) -> Said:
        """One request, byte for byte; Host and Content-Length unless they are given."""
        lines = {"Host": self.authority, "Connection": "close", **(headers or {})}
        if body and "Content-Length" not in lines:
            lines["Content-Length"] = str(len(body))
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in lines.items() if value
        )
        came = self.raw(head.encode("latin-1") + b"\r\n" + body, **more)
        begin, _, rest = came.partition(b"\r\n\r\n")
        return Said(int(begin.split(b" ", 2)[1]) if begin else 0, begin.decode("latin-1"), rest)

    def post(self, path: str, body: object, **headers: str) -> Said:
        said = {
            "Content-Type": "application/json",
            **{name.replace("_", "-"): each for name, each in headers.items()},
        }
        return self.ask("POST", path, said, json.dumps(body).encode())

    def link(self) -> str:
        """The secret of a fresh login link, as a person on this machine makes it."""
        done = headgate("login", "link", "--statedir", self.folder / "state", "--json")
        return str(json.loads(done.stdout)["url"]).partition("#once=")[2]

    def login(self) -> str:
        """A cookie, got as the page gets it."""
        said = self.post("/v1/login", {"once": self.link()}, Origin=self.origin)
        assert said.status == 200, said
        assert said.cookie
        return said.cookie
