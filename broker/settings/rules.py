"""What types cannot say about a configuration: relations between its fields.

Each rule yields a `Problem` per fault it sees, so that one run of `headgate config check` shows them all.
A rule never opens, resolves or reads anything: a file for another machine can be checked here.
"""

import re
from collections import Counter
from collections.abc import Iterator

from broker.settings.addresses import UNIX_PATH_BYTES, is_exposed, split_uri
from broker.settings.faults import Problem, check_key, check_uri, saw, split_or_none
from broker.settings.journal_rules import journal_problems
from broker.settings.lines import KeyPath
from broker.settings.nfp_rules import nfp_problems
from broker.settings.oslo_rules import oslo_problems
from broker.settings.schema import HostEntry, Settings

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
    yield from _limits(settings)
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
        yield saw(("broker", "rundir"), own.rundir, f"room for local-RANK within {UNIX_PATH_BYTES} bytes")
    if own.local_uri is not None:
        yield from check_uri(("broker", "local_uri"), own.local_uri, ("local",))
    if own.metrics_listen is not None:
        yield from _metrics(("broker", "metrics_listen"), own.metrics_listen, own.metrics_insecure)


def _metrics(path: KeyPath, uri: str, insecure: bool) -> Iterator[Problem]:
    faults = list(check_uri(path, uri, ("unix", "http")))
    if not faults and not insecure and is_exposed(split_uri(uri)):
        expected = "a loopback address, or broker.metrics_insecure = true: it is served without TLS"
        faults.append(saw(path, uri, expected))
    yield from faults


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
    plaintext = settings.tree.curve_cert is None
    for name in FIELD.findall(settings.tree.curve_cert or ""):
        if name not in ("{rank}", "{hostname}"):
            yield saw(("tree", "curve_cert"), name, "no field but {rank} and {hostname}")
    for index, host in enumerate(settings.hosts):
        path = ("hosts", index, "address")
        yield from check_uri(path, host.address, ("tcp", "ipc"))
        if host.address.startswith("tcp://*") or host.address.endswith(":*"):
            yield saw(
                path, host.address, "a host and port that children can dial (a wildcard belongs into bind)"
            )
        if host.bind is not None:
            yield from check_uri(("hosts", index, "bind"), host.bind, ("tcp", "ipc"))
        if plaintext and not settings.tree.insecure:
            yield from _plaintext(index, host)
        if not plaintext and host.public_key is None:
            yield Problem(
                ("hosts", index, "public_key"), "missing, expected a Z85 key since tree.curve_cert is set"
            )


def _plaintext(index: int, host: HostEntry) -> Iterator[Problem]:
    for name, uri in (("address", host.address), ("bind", host.bind)):
        address = split_or_none(uri)
        if address is not None and is_exposed(address):
            yield saw(
                ("hosts", index, name), uri, "a loopback address, or tree.curve_cert, or tree.insecure = true"
            )


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
        faults = list(check_uri(path, entry.uri, None))
        yield from faults
        if times[entry.uri] > 1:
            yield saw(path, entry.uri, "each URI once")
        exposed = not faults and is_exposed(split_uri(entry.uri))
        if exposed and settings.tree.curve_cert is None and not entry.insecure:
            yield saw(path, entry.uri, "a loopback address, or tree.curve_cert, or insecure = true here")
        if entry.strict_rfc3 and entry.dialect != "flux1":
            yield saw(("listen", index, "strict_rfc3"), entry.strict_rfc3, 'false unless dialect = "flux1"')


def _keys(settings: Settings) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for index, host in enumerate(settings.hosts):
        if host.public_key is not None:
            yield from check_key(("hosts", index, "public_key"), host.public_key)
            owners[host.public_key] = "the key of a host"
    for index, host in enumerate(settings.hosts):
        if host.next_key is not None:
            yield from _next_key(index, host, settings)
            owners[host.next_key] = "the next key of a host"
    for index, client in enumerate(settings.clients):
        path = ("clients", index, "public_key")
        yield from check_key(path, client.public_key)
        if client.public_key in owners:
            yield saw(path, client.public_key, f"a key of its own: this is {owners[client.public_key]}")
        owners[client.public_key] = "the key of another client"
    if settings.clients and settings.tree.curve_cert is None:
        yield Problem(
            ("clients",), "saw client keys without tree.curve_cert, expected it: only CURVE checks keys"
        )


def _next_key(index: int, host: HostEntry, settings: Settings) -> Iterator[Problem]:
    """A next key must not be what another host is known by: it would bind that host to two ranks."""
    path = ("hosts", index, "next_key")
    yield from check_key(path, host.next_key or "")
    if host.public_key is None:
        yield Problem(path, "saw it without public_key, expected both: a listener takes either")
    elif host.next_key == host.public_key:
        yield saw(path, host.next_key, "another key than public_key")
    shared = sum(other.public_key == host.public_key for other in settings.hosts) > 1
    others = [other for other in settings.hosts if other is not host]
    if not shared and any(host.next_key in (other.public_key, other.next_key) for other in others):
        yield saw(path, host.next_key, "a key that no other host has")


# ---------------------------------------------------------------- [limits]


def _limits(settings: Settings) -> Iterator[Problem]:
    limits = settings.limits
    for smaller, larger in (
        ("guest_message_bytes", "owner_message_bytes"),
        ("outbox_high_bytes", "response_cap_bytes"),
        ("response_cap_bytes", "broker_budget_bytes"),
        ("owner_message_bytes", "broker_budget_bytes"),
        ("guest_message_bytes", "user_budget_bytes"),
        ("user_budget_bytes", "broker_budget_bytes"),
        ("pending_per_link", "pending_total"),
    ):
        low, high = getattr(limits, smaller), getattr(limits, larger)
        if low > high:
            yield saw(("limits", smaller), low, f"at most {larger}, {high}")
