"""How a cluster is told: its members as a table, its tree, how one gets in."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from broker.cli import tree
from broker.cli.screen import Row, Screen, duration
from broker.client import Handle, connect
from broker.errors import HeadgateError, RpcError
from broker.transport.link import Options
from gateway.cluster.engine import Access, Engine, Member
from gateway.cluster.shape import Shape

ASK_S: Final = 3.0
"""How long the tree may take to tell of its health."""
HEADS: Final = ("member", "state", "tree", "for", "id", "where")
SILENT: Final = "silent"
"""Status of a broker that nobody holds to be lost, and that does not answer."""
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
    return (member.name, f"{member.state}{why}", health, since, member.id[:12] or "-", member.uri or "-")


# ---------------------------------------------------------------- what the tree tells


def health(engine: Engine, shape: Shape) -> dict[int | None, str]:
    """Rank -> what the tree thinks of it and all below it, see ``headgate status``; empty when it cannot be asked.

    A broker that its parent does not hold to be lost, and that says nothing, is ``silent``.
    """
    access = engine.access()
    try:
        if access.run:
            return _flat(_asked_there(access.run)["tree"])
        return asyncio.run(_asked_here(access.uri, shape))
    except (HeadgateError, TimeoutError, OSError, ValueError):
        return {}


async def _asked_here(uri: str, shape: Shape) -> dict[int | None, str]:
    async with connect(uri, options=Options(connect_timeout_s=ASK_S), retries=0) as handle:
        told = await asyncio.gather(*(_ask(handle, rank) for rank in shape.ranks()))
    return judged(shape, told)


async def _ask(handle: Handle, rank: int) -> dict[str, Any] | None:
    try:
        return (await handle.rpc("overlay.health", nodeid=rank, timeout_s=ASK_S)).json()
    except (RpcError, TimeoutError):
        return None


def judged(shape: Shape, told: Sequence[Mapping[str, Any] | None]) -> dict[int | None, str]:
    """Rank -> status, from what each broker says of itself and its children (None: nothing).

    What is below a lost broker is as lost as it is; who is not held to be lost speaks for itself.

    >>> judged(Shape("demo", 2), [{"status": "degraded", "children": [{"rank": 1, "status": "lost"}]}, None])
    {0: 'degraded', 1: 'lost'}
    """
    found: dict[int | None, str] = {}
    for rank, own in zip(shape.ranks(), told, strict=True):  # parents come before their children
        held = found.get(rank, SILENT)
        if held in tree.GONE:
            found |= dict.fromkeys(shape.children(rank), held)
            continue
        found[rank] = SILENT if own is None else str(own["status"])
        for child in () if own is None else own.get("children", ()):
            found[int(child["rank"])] = str(child["status"])
    return {rank: found.get(rank, SILENT) for rank in shape.ranks()}


def _flat(node: Mapping[str, Any]) -> dict[int | None, str]:
    found: dict[int | None, str] = {int(node["rank"]): str(node["status"])}
    for child in node.get("children", ()):
        found |= _flat(child)
    return found


def _asked_there(run: Sequence[str]) -> dict[str, Any]:
    """What ``headgate status --json`` says where the brokers are.

    Raises:
        HeadgateError, TimeoutError: rank 0 cannot be asked.
    """
    words = [*run, "headgate", "status", "--json"]
    try:
        seen = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=10 * ASK_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{words[0]}: no answer") from None
    if seen.returncode:
        raise HeadgateError(
            seen.stderr.decode(errors="replace").strip()[:300] or f"exit code {seen.returncode}"
        )
    return msgspec.json.decode(seen.stdout, type=dict[str, Any])


# ---------------------------------------------------------------- how one gets in


def drawn(shape: Shape, members: Sequence[Member]) -> list[str]:
    """The tree of a cluster, a line for each rank.

    >>> drawn(Shape("demo", 3), [])
    ['0 broker-0', '├─ 1 broker-1', '└─ 2 broker-2']
    """
    where = {member.rank: member for member in members}

    def node(rank: int) -> tree.Member:
        return tree.Member(rank, [node(child) for child in shape.children(rank)], shape.host(rank))

    def text(rank: int, host: str) -> str:
        member = where.get(rank)
        return f"{rank} {host}" + (f"  {member.uri or member.id[:12]}" if member is not None else "")

    return [branches + text(each.rank, each.host) for branches, each in tree.drawn(node(0))]


def lines_of(access: Access) -> list[str]:
    """What a person needs to get in."""
    lines = []
    if access.uri:
        lines.append(f"export FLUX_URI={shlex.quote(access.uri)}")
    if access.run:
        lines.append(f"{' '.join(access.run)} headgate status")
    if access.login:
        lines += ["the dashboard (the link works once, on this machine):", f"  {access.login}"]
    elif access.url:
        lines.append(f"the dashboard: {access.url}")
    if access.token:
        lines.append(f"token of the operator: {access.token}")
    return [*lines, *access.more]
