"""What a test cluster looks like: how many brokers, who is whose parent, what they are called, what runs beside them.

Pure: no input or output. Everything that is written or started is derived from one ``Shape``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from broker.errors import ConfigError

SIZE_MAX: Final = 4096
"""Brokers of one cluster; far more than one machine carries, few enough to write a certificate for each."""
RANK: Final = "{rank}"
"""The one field of a host pattern."""
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_IMAGE: Final = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._/:@\[\]-]*")
"""Registry, path, tag and digest; nothing that a compose file would have to escape."""
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Shape:
    """A cluster: a tree of ``size`` brokers, and what stands beside it.

    Attributes:
        name: of the cluster: 1 to 32 of a-z, 0-9 and dashes, a dash neither first nor last.
        size: number of brokers, 1 to ``SIZE_MAX``; their ranks are 0 to size - 1.
        fanout: children a broker may have: the parent of rank r is (r - 1) // fanout (topology ``kary:FANOUT``).
        port: TCP port on which a broker listens for its children.
        client_port: TCP port on which every broker listens for clients with CURVE keys; 0: none.
        gateway: whether a gateway stands in front of rank 0.
        nfp: whether there is a broker of NFP. oslo: whether there is a node proxy for oslo.messaging.
        image: container image of all members, in the compose file.
        host_pattern: host name of a rank, as the others dial it; ``{rank}`` is its only field.

    Raises:
        ConfigError: a value is out of range, or the pattern gives no host names.
    """

    name: str
    size: int
    fanout: int = 2
    port: int = 8050
    client_port: int = 8051
    gateway: bool = True
    nfp: bool = False
    oslo: bool = False
    image: str = "headgate"
    host_pattern: str = "broker-{rank}"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"name: saw {self.name[:64]!r}, expected 1 to 32 of a-z, 0-9 and dashes inside")
        _in_range("size", self.size, 1, SIZE_MAX)
        _in_range("fanout", self.fanout, 1, SIZE_MAX)
        _in_range("port", self.port, 1, 65535)
        _in_range("client_port", self.client_port, 0, 65535)
        if self.client_port == self.port:
            raise ConfigError(f"client_port: saw {self.client_port}, expected another one than port")
        if not _IMAGE.fullmatch(self.image):
            raise ConfigError(f"image: saw {self.image!r}, expected the name of a container image")
        self._check_pattern()

    def _check_pattern(self) -> None:
        pattern = self.host_pattern
        if "{" in pattern.replace(RANK, "") or "}" in pattern.replace(RANK, ""):
            raise ConfigError(f"host_pattern: saw {pattern!r}, expected no field but {RANK}")
        if RANK not in pattern.partition(".")[0] and self.size > 1:  # a host knows itself by its short name
            raise ConfigError(f"host_pattern: saw {pattern!r}, expected {RANK} in front of its first dot")
        name = pattern.replace(RANK, str(SIZE_MAX))
        if len(name) > 253 or ".." in name or not _HOST.fullmatch(name):
            raise ConfigError(f"host_pattern: saw {pattern[:80]!r}, expected what gives host names")

    def ranks(self) -> range:
        """All ranks, in order.

        >>> list(Shape("demo", 3).ranks())
        [0, 1, 2]
        """
        return range(self.size)

    def host(self, rank: int) -> str:
        """The host name of ``rank``.

        >>> Shape("demo", 3, host_pattern="hg-{rank}.tree").host(2)
        'hg-2.tree'

        Raises:
            ConfigError: no such rank.
        """
        return self.host_pattern.replace(RANK, str(self.check(rank)))

    def parent(self, rank: int) -> int | None:
        """The rank that ``rank`` dials; None for rank 0.

        >>> [Shape("demo", 7).parent(rank) for rank in range(7)]
        [None, 0, 0, 1, 1, 2, 2]
        """
        return None if self.check(rank) == 0 else (rank - 1) // self.fanout

    def children(self, rank: int) -> range:
        """The ranks that dial ``rank``.

        >>> list(Shape("demo", 7).children(2)), list(Shape("demo", 7).children(3))
        ([5, 6], [])
        """
        first = self.check(rank) * self.fanout + 1
        return range(min(first, self.size), min(first + self.fanout, self.size))

    def check(self, rank: int) -> int:
        """``rank`` itself.

        Raises:
            ConfigError: the cluster has no such rank.
        """
        if not 0 <= rank < self.size:
            raise ConfigError(f"rank: saw {rank}, expected 0 to {self.size - 1}: {self.name} has {self.size}")
        return rank

    @property
    def topology(self) -> str:
        """As ``tree.topology`` has it.

        >>> Shape("demo", 7).topology
        'kary:2'
        """
        return f"kary:{self.fanout}"


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name}: saw {value}, expected {low} to {high}")
