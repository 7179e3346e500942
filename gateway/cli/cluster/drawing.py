"""How a cluster is shown: its members as a table, its tree, how one gets in."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Final

from broker.cli import tree
from broker.cli.screen import Row, Screen, duration
from broker.client import connect
from broker.errors import HeadgateError
from broker.transport.link import Options
from gateway.cluster.client import Access
from gateway.cluster.members import Member
from gateway.cluster.shape import Shape

CONNECT_S: Final = 3.0
"""How long rank 0 may take to let us in."""
TREE_S: Final = 30.0
"""How long the tree may take to tell of its health; each broker has ``tree.SILENT_S``."""
HEADS: Final = ("member", "state", "tree", "for", "id", "where")
STYLES: Final = {
    "running": "green",
    "starting": "yellow",
    "paused": "yellow",
    "partitioned": "yellow",
    "exited": "bold red",
}
"""State -> colour on a terminal."""


def table(screen: Screen, members: Sequence[Member], health: Mapping[int | None, str]) -> None:
    """One row a member."""
    rows = [
        _row(member, health.get(member.rank, "-" if member.rank is not None else "")) for member in members
    ]
    screen.table(HEADS, rows, lambda row: STYLES.get(row[1].partition(" ")[0], ""))


def _row(member: Member, health: str) -> Row:
    again = f", restarted {member.restarts}x" if member.restarts else ""
    reason = member.why or (member.said if member.state == "starting" else "")
    why = f" ({reason}{again})" if reason else f" ({again[2:]})" if again else ""
    since = duration(max(0.0, time.time() - member.since))
    return (member.name, f"{member.state}{why}", health, since, member.id or "-", member.uri)


def health(uri: str) -> dict[int | None, str]:
    """Rank -> what the tree says of it and all below it, see ``headgate status``; empty when rank 0 cannot be asked."""

    async def ask() -> tree.Member:
        async with connect(uri, options=Options(connect_timeout_s=CONNECT_S), retries=0) as handle:
            async with asyncio.timeout(TREE_S):
                return await tree.fetch(handle)

    try:
        return {each.rank: each.status for _, each in tree.drawn(asyncio.run(ask()))}
    except (HeadgateError, TimeoutError, OSError, ValueError):
        return {}


def branches(shape: Shape, members: Sequence[Member]) -> list[str]:
    """The tree of a cluster, a line for each rank.

    >>> branches(Shape("demo", 3), [])
    ['0 broker-0', '├─ 1 broker-1', '└─ 2 broker-2']
    """
    where = {member.rank: f"  {member.uri}" for member in members}

    def node(rank: int) -> tree.Member:
        return tree.Member(rank, [node(child) for child in shape.children(rank)], shape.host(rank))

    return [
        f"{lines}{each.rank} {each.host}{where.get(each.rank, '')}" for lines, each in tree.drawn(node(0))
    ]


def ways_in(access: Access) -> list[str]:
    """What a person needs to get in, line by line."""
    lines = [f"export FLUX_URI={shlex.quote(access.uri)}"]
    if access.login:
        lines += ["the dashboard (the link works once, on this machine):", f"  {access.login}"]
    elif access.url:
        lines.append(f"the dashboard: {access.url}")
    if access.token:
        lines.append(f"token of the operator: {access.token}")
    return [*lines, *access.more]
