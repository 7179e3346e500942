"""What types cannot say about a configuration: relations between its fields.

Each rule yields a `Problem` per fault it sees, so that one run of `headgate config check` shows them all.
A rule never opens, resolves or reads anything: a file for another machine can be checked here. ``closed_doors`` yields
what is no fault and hardly meant: listeners at which nobody is ever let in.
"""

import re
from collections import Counter
from collections.abc import Iterator

from broker import z85
from broker.endpoints import SHORTER_HELPS, UNIX_PATH_BYTES
from broker.schemes import Capabilities, capabilities_of
from broker.settings.journal import journal_problems
from broker.settings.lines import KeyPath
from broker.settings.nfp import nfp_problems
from broker.settings.oslo import oslo_problems
from broker.settings.schema import HostEntry, ListenEntry, Settings
from broker.settings.transport_options import option_problems
from broker.settings.values import (
    UNKNOWN,
    Problem,
    can,
    check_address,
    check_metrics,
    check_order,
    check_uri,
    saw,
)

__all__ = ["Problem", "problems"]

FIELD = re.compile(r"\{[^{}/]*\}")
"""A field of a file name that is filled in at each rank."""


def problems(settings: Settings) -> Iterator[Problem]:
    """Yield every fault of settings whose types are right."""
    yield from _broker(settings)
    yield from _ranks(settings)
    yield from _host_addresses(settings)
    yield from _parents(settings)
    yield from _tree_times(settings)
    yield from _listeners(settings)
    yield from _keys(settings)
    yield from check_order(
        ("limits",),
        settings.limits,
        ("guest_message_bytes", "owner_message_bytes"),
        ("outbox_high_bytes", "response_cap_bytes"),
        ("response_cap_bytes", "broker_budget_bytes"),
        ("owner_message_bytes", "broker_budget_bytes"),
        ("guest_message_bytes", "user_budget_bytes"),
        ("user_budget_bytes", "broker_budget_bytes"),
        ("pending_per_link", "pending_total"),
    )
    yield from journal_problems(settings.journal)
    if settings.nfp is not None:
        yield from nfp_problems(settings.nfp)
    if settings.oslo is not None:
        yield from oslo_problems(settings.oslo)


# ---------------------------------------------------------------- [broker]


def _broker(settings: Settings) -> Iterator[Problem]:
    own = settings.broker
    if own.rank is not None and own.rank >= settings.size:
        yield saw(("broker", "rank"), own.rank, f"a rank below the size of the tree, {settings.size}")
    if not own.rundir.startswith("/"):
        yield saw(("broker", "rundir"), own.rundir, "an absolute path")
    socket_path = f"{own.rundir}/local-{settings.size - 1}"
    if own.local_uri is None and len(socket_path.encode()) > UNIX_PATH_BYTES:
        yield saw(
            ("broker", "rundir"),
            own.rundir,
            f"room for local-RANK within {UNIX_PATH_BYTES} bytes; {SHORTER_HELPS}",
        )
    if own.local_uri is not None:
        yield from check_uri(("broker", "local_uri"), own.local_uri, "local")
    if own.metrics_listen is not None:
        yield from check_metrics(("broker", "metrics_listen"), own.metrics_listen, own.metrics_insecure)


# ---------------------------------------------------------------- [tree] and [[hosts]]


def _ranks(settings: Settings) -> Iterator[Problem]:
    seen: set[int] = set()
    for index, host in enumerate(settings.hosts):
        path = ("hosts", index, "rank")
        if host.rank in seen:
            yield saw(path, host.rank, "each rank once")
        elif host.rank >= settings.size:
            yield saw(path, host.rank, f"ranks 0 to {settings.size - 1}")
        seen.add(host.rank)
    if len(seen) < settings.size and (settings.hosts or settings.size > 1):
        missing = next(rank for rank in range(settings.size) if rank not in seen)
        place: KeyPath = ("tree", "size") if settings.tree.size else ("hosts",)
        yield Problem(
            place, f"saw no host with rank {missing}, expected one for each of 0 to {settings.size - 1}"
        )


def _host_addresses(settings: Settings) -> Iterator[Problem]:
    for name in FIELD.findall(settings.tree.curve_cert or ""):
        if name not in ("{rank}", "{hostname}"):
            yield saw(("tree", "curve_cert"), name, "no field but {rank} and {hostname}")
    for index, host in enumerate(settings.hosts):
        for name, uri in (("address", host.address), ("bind", host.bind)):
            if uri is not None:
                yield from _tree_address(("hosts", index, name), uri, settings)
        if host.address.partition("://")[2].startswith("*") or host.address.endswith(":*"):
            expected = "a host and port that children can dial (a wildcard belongs into bind)"
            yield saw(("hosts", index, "address"), host.address, expected)
        if host.bind is not None and host.bind.partition("://")[0] != host.address.partition("://")[0]:
            yield saw(("hosts", index, "bind"), host.bind, "the scheme of address")
        if host.public_key is None and can(host.address).proves_keys(_curve(settings)):
            why = (
                "a Z85 key since tree.curve_cert is set"
                if _curve(settings)
                else "the key that its handshake proves"
            )
            yield Problem(("hosts", index, "public_key"), f"missing, expected {why}")
    yield from _tree_options(settings)


def _tree_address(path: KeyPath, uri: str, settings: Settings) -> Iterator[Problem]:
    yield from check_address(path, uri)
    found = can(uri)
    if not found.tree and found is not UNKNOWN:
        yield saw(path, uri, "an address of a transport that can join brokers")
    if found.is_plaintext(uri, _curve(settings)) and not settings.tree.insecure:
        yield saw(path, uri, f"{_protected(found)}, or tree.insecure = true")
    elif found.tree and not found.proves and found.is_exposed(uri) and not settings.tree.insecure:
        yield saw(path, uri, "a transport that proves who its peers are, or tree.insecure = true")


def _tree_options(settings: Settings) -> Iterator[Problem]:
    """The hosts' transports share one table: each kind of them checks it, once."""
    uris = settings.tree_uris()
    kinds = {id(found): found for found in map(can, uris) if found is not UNKNOWN}
    for found in kinds.values() if uris else [UNKNOWN]:  # an unknown scheme is told of where it stands
        yield from option_problems(("tree", "options"), settings.tree.options, found)


def _curve(settings: Settings) -> bool:
    return settings.tree.curve_cert is not None


def _protected(found: Capabilities) -> str:
    """What is expected of an address whose traffic others could read."""
    return "a loopback address" + (", or tree.curve_cert" if found.protection == "curve" else "")


def _parents(settings: Settings) -> Iterator[Problem]:
    if settings.tree.topology != "custom":
        for index, host in enumerate(settings.hosts):
            if host.parent is not None:
                yield saw(
                    ("hosts", index, "parent"), host.parent, 'no parent unless tree.topology = "custom"'
                )
        return
    parent_of = {host.rank: host.parent for host in settings.hosts}
    for index, host in enumerate(settings.hosts):
        path = ("hosts", index, "parent")
        if host.rank == 0 and host.parent is not None:
            yield saw(path, host.parent, "no parent for rank 0, the root")
        elif host.rank != 0 and host.parent is None:
            yield Problem(path, f'missing, expected the parent of rank {host.rank} with topology "custom"')
        elif host.parent is not None and host.parent not in parent_of:
            yield saw(path, host.parent, "the rank of another host")
        elif host.rank != 0 and _is_in_circle(host.rank, parent_of):
            yield saw(path, host.parent, f"a parent outside the subtree of rank {host.rank}")


def _is_in_circle(rank: int, parent_of: dict[int, int | None]) -> bool:
    above: int | None = parent_of[rank]
    for _ in parent_of:
        if above is None or above == rank:
            break
        above = parent_of.get(above)
    return above == rank


def _tree_times(settings: Settings) -> Iterator[Problem]:
    tree = settings.tree
    if not tree.torpid_max_s:
        return
    if tree.torpid_min_s >= tree.torpid_max_s:
        yield saw(("tree", "torpid_min_s"), tree.torpid_min_s, f"less than torpid_max_s, {tree.torpid_max_s}")
    if settings.broker.heartbeat_period_s >= tree.torpid_max_s:
        period = settings.broker.heartbeat_period_s
        yield saw(
            ("broker", "heartbeat_period_s"), period, f"less than tree.torpid_max_s, {tree.torpid_max_s}"
        )


# ---------------------------------------------------------------- [[listen]] and [[clients]]


def _listeners(settings: Settings) -> Iterator[Problem]:
    times = Counter(entry.uri for entry in settings.listen)
    for index, entry in enumerate(settings.listen):
        path = ("listen", index, "uri")
        yield from check_address(path, entry.uri)
        found = can(entry.uri)
        if times[entry.uri] > 1:
            yield saw(path, entry.uri, "each URI once")
        if not found.listens:
            yield saw(path, entry.uri, "a transport that listens (the gateway is what takes WebSockets)")
        if found.is_plaintext(entry.uri, _curve(settings)) and not entry.insecure:
            yield saw(path, entry.uri, f"{_protected(found)}, or insecure = true here")
        if found is not UNKNOWN:
            yield from _forms(index, entry, found)
            yield from option_problems(("listen", index, "options"), entry.options, found)


def _forms(index: int, entry: ListenEntry, found: Capabilities) -> Iterator[Problem]:
    """What the transport does not carry."""
    if entry.dialect not in found.dialects:
        carried = ", ".join(f'"{name}"' for name in found.dialects)
        yield saw(("listen", index, "dialect"), entry.dialect, f"what this transport carries, {carried}")
    if entry.strict_rfc3 and entry.dialect != "flux1":
        yield saw(("listen", index, "strict_rfc3"), entry.strict_rfc3, 'false unless dialect = "flux1"')
    elif entry.strict_rfc3 and not found.strict_rfc3:
        yield saw(
            ("listen", index, "strict_rfc3"), entry.strict_rfc3, "false: this transport has one form only"
        )


def _keys(settings: Settings) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for index, host in enumerate(settings.hosts):
        if host.public_key is not None:
            yield from _key_form(("hosts", index, "public_key"), host.public_key, [can(host.address)])
            owners[host.public_key] = "the key of a host"
    for index, host in enumerate(settings.hosts):
        if host.next_key is not None:
            yield from _next_key(index, host, settings)
            owners[host.next_key] = "the next key of a host"
    doors = [found for found in (can(entry.uri) for entry in settings.listen) if "key" in found.proves]
    for index, client in enumerate(settings.clients):
        path = ("clients", index, "public_key")
        yield from _key_form(path, client.public_key, doors)
        if client.public_key in owners:
            yield saw(path, client.public_key, f"a key of its own: this is {owners[client.public_key]}")
        owners[client.public_key] = "the key of another client"
    if settings.clients and not _curve(settings) and not any(door.protection != "curve" for door in doors):
        yield Problem(
            ("clients",),
            "saw client keys without tree.curve_cert, expected it, or a [[listen]] whose transport checks keys",
        )


def _key_form(path: KeyPath, key: str, doors: list[Capabilities]) -> Iterator[Problem]:
    """A key is one that a transport can have that it may be for; one of CURVE where there is none."""
    expected = [door.check_key(key) for door in doors] or [z85.check(key)]
    if all(expected):
        yield saw(path, key, expected[0])


def _next_key(index: int, host: HostEntry, settings: Settings) -> Iterator[Problem]:
    """A next key must not be what another host is known by: it would bind that host to two ranks."""
    path = ("hosts", index, "next_key")
    yield from _key_form(path, host.next_key or "", [can(host.address)])
    if host.public_key is None:
        yield Problem(path, "saw it without public_key, expected both: a listener takes either")
    elif host.next_key == host.public_key:
        yield saw(path, host.next_key, "another key than public_key")
    shared = sum(other.public_key == host.public_key for other in settings.hosts) > 1
    others = [other for other in settings.hosts if other is not host]
    if not shared and any(host.next_key in (other.public_key, other.next_key) for other in others):
        yield saw(path, host.next_key, "a key that no other host has")


# ---------------------------------------------------------------- no fault, and hardly meant


def closed_doors(settings: Settings) -> Iterator[str]:
    """A line for each of ``[[listen]]`` that nobody can come in by."""
    for number, entry in enumerate(settings.listen):
        found, where = capabilities_of(entry.uri), f"listen[{number}] {entry.uri}: nobody is ever let in"
        if found.proves_keys(settings.tree.curve_cert is not None):
            if not settings.clients:
                yield f"{where}: it wants keys, and there are no [[clients]]"
        elif not {"uid", "user"} & {*found.proves}:
            yield f"{where}: plaintext does not say who a peer is; set tree.curve_cert and list keys in [[clients]]"
