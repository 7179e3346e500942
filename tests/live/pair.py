"""Two gateways in front of one instance and behind a plain TCP balancer; they share what a test gives them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.live.balancer import balancer
from tests.live.gateways import USERS, GatewayProcess, gateway_process
from tests.unit.gateway.identity.authority import public_pem
from tests.unit.gateway.identity.issuer import AUDIENCE, ISSUER, KEYS, signed

TOKEN_S = 600


class Pair(NamedTuple):
    """The gateways, and the port where both are reached."""

    first: GatewayProcess
    second: GatewayProcess
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/ws"


def token(user: str) -> str:
    """A JWT of ``user`` that both gateways take."""
    return signed(sub=user, exp=time.time() + TOKEN_S)


def place(gateway: GatewayProcess) -> tuple[str, int]:
    """Host and port of its first listener."""
    found = urlsplit(gateway.urls[0])
    assert found.hostname
    assert found.port
    return found.hostname, found.port


@contextlib.contextmanager
def pair(folder: Path, upstream: str, *, users: str = USERS, extra: str = "") -> Iterator[Pair]:
    """Both of them, running. ``extra`` begins with further keys of ``[gateway]``."""
    (folder / "key.pem").write_bytes(public_pem(KEYS["EdDSA"]))
    trusted = f'{extra}[jwt]\nkeys = ["{folder}/key.pem"]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'
    folders = [folder / name for name in "ab"]
    for each in folders:
        each.mkdir()
    with (
        gateway_process(folders[0], upstream, trusted, users=users) as first,
        gateway_process(folders[1], upstream, trusted, users=users) as second,
        balancer([place(first), place(second)]) as port,
    ):
        yield Pair(first, second, port)
