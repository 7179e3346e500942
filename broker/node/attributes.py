"""The attributes a broker starts with, by the names deployed clients look for (``flux getattr``, ``flux uptime``)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from itertools import groupby

from broker import __version__
from broker.node.drain import children_s
from broker.routing.topology import NO_PARENT, Topology
from broker.secret import masked
from broker.services.attr import IMMUTABLE, SETTABLE
from broker.services.log import FORWARD_LEVEL
from broker.settings import Settings, shown
from broker.transport.dialing import PROBING

STDERR_SEVERITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""``broker.log_level`` as the RFC 5424 severity that ``log-stderr-level`` shows."""


Attributes = dict[str, tuple[str | Callable[[], str], int]]


def initial(
    settings: Settings,
    topology: Topology,
    uuid: Callable[[], str],
    owner: int,
    endpoint: Callable[[], str | None],
) -> Attributes:
    """Name -> (value or function, flags) for one rank; ``settings`` as of ``Settings.at_rank``, ``endpoint`` gives what
    children dial.
    """
    section = settings.broker
    rank = section.rank or 0
    depth = topology.depth(rank)
    fixed = {
        "rank": str(rank),
        "size": str(topology.size),
        "version": section.version_announced,
        "headgate.version": __version__,
        "hostlist": hostlist(settings),
        "hostname": hostname(settings, rank),
        "local-uri": section.local_uri or "",
        "rundir": section.rundir,
        "security.owner": str(owner),
        "instance-level": "0",
        "broker.starttime": f"{time.time():.2f}",
        "broker.pid": str(os.getpid()),
        "broker.boot-method": "config" if settings.hosts else "single",
        "broker.mapping": mapping([hostname(settings, each) for each in range(topology.size)]),
        "broker.cleanup-timeout": f"{section.drain_s:g}s",
        "broker.shutdown-timeout": f"{children_s(section.drain_s):g}s",
        "statedir": settings.journal.directory if settings.journal.enabled else section.rundir,
        "log-ring-size": str(section.log_ring_entries),
        "log-forward-level": str(FORWARD_LEVEL),
        "log-stderr-mode": "local",
        "tbon.topo": settings.tree.topology,
        "tbon.connect_timeout": f"{settings.tree.connect_timeout_s:g}s",
        "tbon.tcp_user_timeout": f"{PROBING.unconfirmed_ms / 1000:g}s",
        "tbon.level": str(depth),
        "tbon.maxlevel": str(topology.max_depth()),
        "tbon.descendants": str(topology.descendants(rank)),
    }
    attributes: Attributes = {name: (value, IMMUTABLE) for name, value in fixed.items()}
    attributes["broker.uuid"] = (uuid, 0)
    parent = settings.host(topology.parent(rank)) if topology.parent(rank) != NO_PARENT else None
    if parent is not None:
        attributes["parent-uri"] = attributes["tbon.parent-endpoint"] = (masked(parent.address), IMMUTABLE)
    own = settings.host(rank)
    if own is not None and topology.children(rank):
        attributes["tbon.endpoint"] = (lambda: masked(endpoint() or own.address), 0)
    attributes["broker.quorum"] = (str(topology.size), 0)
    for name in ("log-stderr-level", "log-level"):
        attributes[name] = (str(STDERR_SEVERITY[section.log_level]), SETTABLE)
    attributes["tbon.torpid_min"] = (f"{settings.tree.torpid_min_s:g}s", SETTABLE)
    attributes["tbon.torpid_max"] = (f"{settings.tree.torpid_max_s:g}s", SETTABLE)
    attributes.update({name: (value, SETTABLE) for name, value in section.attrs.items()})
    return attributes


def hostname(settings: Settings, rank: int) -> str:
    """The name of the machine ``rank`` runs on; this machine's where the hosts table does not say."""
    host = settings.host(rank)
    return (host.hostname if host is not None else None) or os.uname().nodename


def hostlist(settings: Settings) -> str:
    """All hosts by rank in hostlist form, runs of a numbered name folded: ``node[0-3],login``."""
    return fold([hostname(settings, rank) for rank in range(settings.size)])


def fold(names: list[str]) -> str:
    """Hostlist form of ``names``, in order.

    >>> fold(["node0", "node1", "node2", "login", "node7"])
    'node[0-2],login,node7'
    """
    runs: list[tuple[str, str, str]] = []
    for name in names:
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        if runs and digits and runs[-1][0] == stem and _next(runs[-1][2]) == digits:
            runs[-1] = (stem, runs[-1][1], digits)
        else:
            runs.append((stem, digits, digits))
    return ",".join(
        f"{stem}[{first}-{last}]" if first != last else stem + first for stem, first, last in runs
    )


def mapping(names: list[str]) -> str:
    """Which ranks share a host, in the form of PMI: blocks of (first node, nodes, ranks on each).

    >>> mapping(["n0", "n1", "n2"]), mapping(["n0", "n0", "n1", "n1", "n2"])
    ('(vector,(0,3,1))', '(vector,(0,2,2),(2,1,1))')
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    blocks: list[tuple[int, int, int]] = []
    for name, run in groupby(names):
        node, ranks = numbers[name], len(list(run))
        first, nodes, each = blocks[-1] if blocks else (0, 0, 0)
        if blocks and node == first + nodes and ranks == each:
            blocks[-1] = (first, nodes + 1, each)
        else:
            blocks.append((node, 1, ranks))
    return f"(vector,{','.join(f'({first},{nodes},{each})' for first, nodes, each in blocks)})"


def _next(digits: str) -> str:
    return str(int(digits) + 1).zfill(len(digits)) if digits else ""


def configuration(settings: Settings) -> Mapping[str, object]:
    """The configuration as ``config.get`` shows it: our sections, and flux-core's ``access`` and ``tbon``.

    Every guest may read it: without what opens a store or Redis.
    """
    access = settings.access
    return {
        "access": {
            "allow-guest-user": access.allow_guest_user,
            "allow-root-owner": access.allow_root_owner,
            "private-mode": access.private_mode,
        },
        "tbon": {"topo": settings.tree.topology, "torpid_min": f"{settings.tree.torpid_min_s:g}s"},
        "headgate": shown(settings),
    }
