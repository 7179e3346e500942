"""Partitions by the kernel: every rank has a network namespace of its own, on a bridge in yet another one. Root only.

::

    rank 0: eth0 10.78.0.1  --veth--  v0 |
    rank 1: eth0 10.78.0.2  --veth--  v1 | bridge "near"      all namespaces are held by descriptors of the supervisor:
    rank 2: eth0 10.78.0.3  --veth--  v2 |                    with it they vanish, however it ends, and nothing of them
                                         | bridge "far"       is ever seen in the machine's own namespace

A partition moves the ports of one side to the other bridge. Nothing is refused then and nothing arrives: no carrier is
lost, and neighbours are entered for good, so that not even an address has to be asked for.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Final

from broker.errors import HeadgateError
from gateway.cluster.children import ended
from gateway.cluster.links import Enter
from gateway.cluster.shape import Shape

NEAR: Final = "near"
FAR: Final = "far"
_CLONE_NEWNET: Final = 0x40000000
_OWN: Final = "/proc/self/ns/net"
_PREFIX: Final = 16


def ip(rank: int) -> str:
    """The address of a rank within the cluster.

    >>> ip(0), ip(254), ip(255)
    ('10.78.0.1', '10.78.0.255', '10.78.1.0')
    """
    return f"10.78.{(rank + 1) >> 8}.{(rank + 1) & 255}"


def mac(rank: int) -> str:
    """The Ethernet address of a rank: locally administered.

    >>> mac(255)
    '02:4e:00:00:01:00'
    """
    return f"02:4e:00:00:{(rank + 1) >> 8:02x}:{(rank + 1) & 255:02x}"


def addresses(shape: Shape) -> dict[int, str]:
    """Rank -> where its children dial it; it listens on that port of its own namespace."""
    return {rank: f"tcp://{ip(rank)}:{shape.port}" for rank in shape.ranks()}


class Network:
    """The namespaces of one cluster (``links.Links``)."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._ranks: list[int] = []
        self._hub = -1
        self._cutting = asyncio.Lock()

    async def open(self) -> None:
        """Make the namespaces and join them."""
        self._make()
        await _run_ip(self._hub, self._hub_lines())
        for rank in self._shape.ranks():
            await _run_ip(self._ranks[rank], self._rank_lines(rank))

    async def close(self) -> None:
        """Let them go: they end with the last process in them."""
        for descriptor in (*self._ranks, self._hub):
            if descriptor >= 0:
                os.close(descriptor)
        self._ranks, self._hub = [], -1

    def enter(self, rank: int) -> Enter:
        """Go into the namespace of ``rank``."""
        return entering(self._ranks[rank])

    async def cut(self, apart: frozenset[int]) -> None:
        """Put every port on its side, wherever a cut that failed has left it; one that is there already stays."""
        sides = {rank: FAR if rank in apart else NEAR for rank in sorted({*self._shape.ranks(), *apart})}
        async with self._cutting:
            await _run_ip(self._hub, [f"link set v{rank} master {side}" for rank, side in sides.items()])

    def _make(self) -> None:
        """New namespaces, each entered to take hold of it, and left again: this process has one thread."""
        home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._hub = _new_namespace()
            for _ in self._shape.ranks():
                self._ranks.append(_new_namespace())
        finally:
            _libc_call("setns", home, _CLONE_NEWNET)
            os.close(home)

    def _hub_lines(self) -> list[str]:
        lines = [f"link add {bridge} type bridge stp_state 0 forward_delay 0" for bridge in (NEAR, FAR)]
        lines += [f"link set {bridge} up" for bridge in (NEAR, FAR)]
        for rank, descriptor in enumerate(self._ranks):
            own = f"/proc/{os.getpid()}/fd/{descriptor}"
            lines.append(f"link add v{rank} type veth peer name eth0 address {mac(rank)} netns {own}")
            lines.append(f"link set v{rank} master {NEAR} up")
        return lines

    def _rank_lines(self, rank: int) -> list[str]:
        parent = self._shape.parent(rank)
        others = [*self._shape.children(rank), *(() if parent is None else (parent,))]
        return [
            "link set lo up",
            f"addr add {ip(rank)}/{_PREFIX} dev eth0",
            "link set eth0 up",
            *(f"neigh replace {ip(each)} lladdr {mac(each)} nud permanent dev eth0" for each in others),
        ]


# ---------------------------------------------------------------- the system


def entering(descriptor: int) -> Enter:
    """What takes the calling process into the namespace behind ``descriptor``."""

    def enter() -> None:
        _libc_call("setns", descriptor, _CLONE_NEWNET)

    return enter


def _new_namespace() -> int:
    _libc_call("unshare", _CLONE_NEWNET)
    return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _libc_call(name: str, *arguments: int) -> None:
    """Call a function of libc that returns -1 on failure.

    Raises:
        HeadgateError: it failed.
    """
    if getattr(_LIBC, name)(*arguments) != 0:
        raise HeadgateError(f"network namespace: {name}: {os.strerror(ctypes.get_errno())}")


async def _run_ip(namespace: int, lines: Sequence[str]) -> None:
    """Have ip(8) do ``lines`` in a namespace.

    Raises:
        HeadgateError: it failed; the text is its own.
    """
    with tempfile.TemporaryFile("w+") as script, tempfile.TemporaryFile("w+") as said:
        script.write("\n".join(lines) + "\n")
        script.seek(0)
        process = subprocess.Popen(  # noqa: ASYNC220 - waited for without blocking
            ["ip", "-batch", "-"],
            stdin=script,
            stdout=said,
            stderr=said,
            preexec_fn=entering(namespace),  # noqa: PLW1509 - one thread
        )
        code = await ended(process, asyncio.get_running_loop())
        if code:
            said.seek(0)
            raise HeadgateError(f"ip: {' '.join(said.read().split())[:300] or f'exit code {code}'}")
