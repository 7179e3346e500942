"""The tree of an instance as its brokers tell it: shape, hosts, health; and how it is drawn.

Each broker answers for itself and its direct children only (``overlay.health``), so the tree is walked level by
level. What is below a lost child is known from the shape alone. A broker is silent that does not answer within
``SILENT_S``, though its parent has not lost it yet; of what is below it nothing can be heard.

Hosts come in one text: ``node[0-3,8],login`` (RFC 29, "Hostlist Format").
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from broker.cli.screen import duration
from broker.cli.session import at_each
from broker.client import Handle
from broker.errors import RpcError

GONE: Final = ("lost", "offline")
"""Status of a broker that cannot be asked."""
SILENT: Final = "silent"
SILENT_S: Final = 2.0
STYLES: Final = {
    "full": "green",
    "partial": "yellow",
    "degraded": "yellow",
    "lost": "bold red",
    "offline": "red",
    "silent": "bold red",
    "unknown": "dim",
}
"""Status -> colour on a terminal."""


@dataclass(slots=True)
class Member:
    """One broker of the tree; ``status`` is that of its whole subtree, ``since_s`` is how long it has had it."""

    rank: int
    children: list[Member] = field(default_factory=list)
    host: str = ""
    status: str = "unknown"
    since_s: float | None = None
    error: str = ""
    joins: int = 0
    places: list[str] = field(default_factory=list)

    def value(self) -> dict[str, Any]:
        """For ``--json``; the children in it, too."""
        value: dict[str, Any] = {"rank": self.rank, "host": self.host, "status": self.status}
        if self.since_s is not None:
            value["duration"] = self.since_s
        if self.error:
            value["error"] = self.error
        if self.joins:
            value |= {"joins": self.joins, "places": self.places}
        return {**value, "children": [child.value() for child in self.children]}

    def text(self) -> str:
        """One line about this broker."""
        since = f" for {duration(self.since_s)}" if self.since_s is not None else ""
        error = f": {self.error}" if self.error else ""
        again = f"; {self.rejoined()}" if self.joins else ""
        return f"{self.rank} {self.host}: {self.status}{since}{error}{again}"

    def rejoined(self) -> str:
        """How often it joined of late, and where from."""
        return f"joined {self.joins} times in the last minute, last from {' and '.join(self.places)}"


def from_shape(shape: Mapping[str, Any], hosts: list[str]) -> Member:
    """The tree of an ``overlay.topology`` answer."""
    rank = int(shape["rank"])
    children = [from_shape(child, hosts) for child in shape.get("children", ())]
    return Member(rank, children, hosts[rank] if rank < len(hosts) else "?")


async def fetch(handle: Handle) -> Member:
    """The root of the tree with every member's health.

    Raises:
        RpcError: rank 0 does not answer such questions. LinkError: the link ended.
    """
    names = expand_hosts(await handle.attr("hostlist"))
    shape = (await handle.rpc("overlay.topology", {"rank": 0}, nodeid=0)).json()
    root = from_shape(shape, names)
    level = [root]
    while level:
        await at_each(level, lambda member: _ask(handle, member))
        below = [child for member in level if member.status != SILENT for child in member.children]
        level = [member for member in below if member.status not in GONE]
    return root


async def _ask(handle: Handle, member: Member) -> None:
    """Take in what a broker says of itself and its children."""
    try:
        async with asyncio.timeout(SILENT_S):
            health = (await handle.rpc("overlay.health", nodeid=member.rank)).json()
    except TimeoutError:
        member.status, member.since_s = SILENT, None
        member.error = f"no answer within {SILENT_S:g} s"
        return
    except RpcError as error:
        if member.rank == 0:
            raise
        member.error = str(error)
        return
    by_rank = {child.rank: child for child in member.children}
    _take(member, health)
    for told in health.get("children", ()):
        child = by_rank.get(int(told["rank"]))
        if child is not None:
            _take(child, told)
            _inherit(child)


def _take(member: Member, told: Mapping[str, Any]) -> None:
    member.status = str(told.get("status", "unknown"))
    since = told.get("duration")
    member.since_s = float(since) if since is not None else None
    member.error = str(told.get("error", ""))
    if "joins" in told:
        member.joins, member.places = int(told["joins"]), [str(each) for each in told.get("places", ())]


def _inherit(member: Member) -> None:
    """What is below a lost broker is as lost as it is."""
    if member.status in GONE:
        for child in member.children:
            child.status = member.status
            _inherit(child)


async def providers(handle: Handle) -> dict[str, Any] | None:
    """What rank 0 knows of the services of clients (``service.providers``); None where it does not know, or is away.

    Raises:
        RpcError: it refuses.
    """
    try:
        return (await handle.rpc("service.providers", nodeid=0)).json()
    except RpcError as error:
        if error.errno not in (errno.ENOSYS, errno.EHOSTUNREACH):
            raise
        return None


def drawn(member: Member, first: str = "", rest: str = "") -> Iterator[tuple[str, Member]]:
    """(branches, member) for each line of the tree from ``member`` down.

    >>> [lines + str(m.rank) for lines, m in drawn(Member(0, [Member(1, [Member(3)]), Member(2)]))]
    ['0', '├─ 1', '│  └─ 3', '└─ 2']
    """
    yield first, member
    for child in member.children:
        last = child is member.children[-1]
        yield from drawn(child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def count(member: Member) -> dict[str, int]:
    """Status -> number of brokers with it, from ``member`` down."""
    counts: dict[str, int] = {}
    for _, each in drawn(member):
        counts[each.status] = counts.get(each.status, 0) + 1
    return counts


HOSTS_MAX = 1 << 22
"""Names that one text may stand for: a short text can name four thousand million."""

_WORD = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_RUN = re.compile(r"\[([^\]]*)\]")


def expand_hosts(text: str) -> list[str]:
    """The names by rank; words that are no hostlist stay as they are.

    >>> expand_hosts("node[08-10,12],login")
    ['node08', 'node09', 'node10', 'node12', 'login']
    """
    names: list[str] = []
    for word in _WORD.findall(text):
        for name in _word(word):
            names.append(name)
            if len(names) >= HOSTS_MAX:
                return names
    return names


def _word(word: str) -> Iterator[str]:
    found = _RUN.search(word)
    if found is None:
        yield word
        return
    head, tail = word[: found.start()], word[found.end() :]
    for number in _numbers(found[1]):
        for rest in _word(tail):
            yield f"{head}{number}{rest}"


def _numbers(runs: str) -> Iterator[str]:
    for run in runs.split(","):
        low, dash, high = run.partition("-")
        if not dash or not (low.isdecimal() and high.isdecimal()):
            yield run
            continue
        for number in range(int(low), min(int(high), int(low) + HOSTS_MAX) + 1):
            yield str(number).zfill(len(low))
