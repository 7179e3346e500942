"""Settings read again while the broker runs (SIGHUP): what may change does, all of it or nothing.

The clients and their keys, our own certificate, the rules for UNIX clients, the level of the log and those
limits that are looked at late can change; what the tree is built of cannot. Links whose peer may not be here any more,
or has other roles now, are ended; all others stay.

::

    SIGHUP -> request -> read and judge, in a thread (files, user database) -> apply, on the loop, in one go
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.errors import ConfigError, LinkClosed
from broker.identity import PeerInfo
from broker.ingress.admission import Access, admit
from broker.node.attributes import STDERR_SEVERITY, configuration
from broker.node.client_admission import access_of
from broker.node.link_options import parent_entry
from broker.node.rundir import open_rundir
from broker.rereading import Rereading
from broker.routing.port import CLIENT, Port
from broker.secret import revealed
from broker.settings import OsloSection, Settings
from broker.wire.payload import encode_json

if TYPE_CHECKING:
    from broker.node.assembly import Node
    from broker.transport.curve import Certificate

log = logging.getLogger("headgate")

Reread = Callable[[], Settings]
"""The settings as they are now, as of ``Settings.at_rank``; may block. Raises ConfigError."""

LATE_LIMITS: Final = (
    "guest_message_bytes",
    "user_budget_bytes",
    "stall_s",
    "pending_per_link",
    "pending_total",
    "batch_msgs",
    "batch_deliveries",
)
"""Of ``[limits]``: what is not built into links that exist. ``guest_message_bytes`` is for new ones."""
_MAY_CHANGE: Final = {
    ("broker", "log_level"),
    ("tree", "curve_cert"),
    *(("limits", name) for name in LATE_LIMITS),
}
_KEYS: Final = ("public_key", "next_key")
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings that were found to be good, and what they need that had to be looked up."""

    settings: Settings
    changed: list[Path]
    certificate: Certificate | None
    access: Access


class Reload:
    """Reads the settings of a running broker again, one time after the other.

    Args:
        node: the one whose settings are read. reread: reads them.

    Attributes:
        request: reads again soon; for a signal handler.
        done, refused: how often it went well, and how often nothing was changed because of an error.
    """

    def __init__(self, node: Node, reread: Reread) -> None:
        self._node = node
        self._reread = reread
        self.request = Rereading(self.now).request
        self.done = 0
        self.refused = 0

    async def now(self) -> None:
        """Read and apply.

        Raises:
            ConfigError: the settings cannot be read, are wrong, or change what cannot change; everything is as before.
        """
        try:
            await self._node.overlay.listening.wait()
            plan = await asyncio.to_thread(self._judge)
            # a listener that is renewed on its way out would never be stopped
            if self._node.lifecycle.leaving:
                raise ConfigError("this broker is leaving")
        except ConfigError:
            self.refused += 1
            raise
        self._apply(plan)
        self.done += 1

    def _judge(self) -> Plan:
        before, after = self._node.settings, self._reread()
        changed = list(differences(before, after))
        if stuck := [dotted(path) for path in changed if not may_change(path)]:
            raise ConfigError(f"{', '.join(stuck)}: cannot change while the broker runs: restart it")
        # only a listener that began with a certificate can be given another one (``Listeners.renew``)
        if (before.tree.curve_cert is None) != (after.tree.curve_cert is None):
            raise ConfigError(
                "tree.curve_cert: CURVE is not switched on or off while the broker runs: restart it"
            )
        return Plan(
            after, changed, self._node.curve_keys.read_certificate(after), access_of(after, self._node.owner)
        )

    # -- apply ---------------------------------------------------------------------------------

    def _apply(self, plan: Plan) -> None:
        node = self._node
        said = summary(plan.changed)
        former = node.curve_keys.certificate
        node.curve_keys.change(plan.settings, plan.certificate)
        node.settings, node.access = plan.settings, plan.access
        # first of all: whatever fails below, no link stays that may not
        ended = self._end_clients() + node.overlay.revoke(self._objection)
        node.renew_own()
        if plan.certificate is not None and former is not None:
            new = plan.certificate.public_key != former.public_key
            self._keys(new=new)
            said += [f"our certificate (public key {plan.certificate.public_key})"] * new
        self._limits(plan)
        if ("broker", "log_level") in plan.changed:
            severity = str(STDERR_SEVERITY[plan.settings.broker.log_level])
            payload = encode_json({"name": "log-stderr-level", "value": severity})
            node.context.call("attr.set", payload, None, nodeid=node.rank)
            if plan.settings.journal.enabled or plan.settings.oslo is not None:
                log.warning("broker.log_level: processes beside the broker keep theirs until it is restarted")
        if ("access", "allow_guest_user") in plan.changed:
            open_rundir(
                plan.settings.broker.rundir,
                made=node.made_rundir,
                guests=plan.settings.access.allow_guest_user,
            )
        node.context.config = configuration(plan.settings)
        for tell in node.reloaded:
            tell(plan.settings)
        left = f"; {ended} link{'s' * (ended != 1)} ended" if ended else ""
        log.info("reloaded: %s%s", ", ".join(said) or "nothing has changed", left)

    def _keys(self, *, new: bool) -> None:
        """Links to come are made with the keys of now; ``new``: our own has changed, too."""
        node = self._node
        for text in node.listeners.renew(node.curve_keys.listen_curve()) if new else ():
            log.error("%s; its former certificate is shown there until the broker is restarted", text)
        parent = parent_entry(node.settings, node.topology, node.rank)
        try:
            node.overlay.renew(
                node.curve_keys.listen_curve() if new else None,
                node.curve_keys.dial_curve(parent) if parent is not None else {},
            )
        except ConfigError as error:
            log.error("%s; children find its former certificate until the broker is restarted", error)

    def _limits(self, plan: Plan) -> None:
        broker, limits = self._node.broker, plan.settings.limits
        broker.router.pending_max, broker.router.pending_total = limits.pending_per_link, limits.pending_total
        broker.backlog.batch_msgs = limits.batch_msgs
        broker.backlog.batch_deliveries = limits.batch_deliveries
        for client_admission in self._node.client_admissions:
            client_admission.change(plan.access, limits.guest_message_bytes, limits.user_budget_bytes)

    # -- who may not stay ----------------------------------------------------------------------

    def _end_clients(self) -> int:
        ended = 0
        for port in list(self._node.broker.router.ports):
            if port.kind != CLIENT or port.link is None or port.link.ended is not None:
                continue
            reason = self._client_objection(port)
            if reason:
                log.warning("ended %s: %s", port.name, reason)
                port.link.abort(LinkClosed(reason))
                ended += 1
        return ended

    def _client_objection(self, port: Port) -> str:
        peer = port.link.peer
        # a client known by its key is judged by [[clients]]; [access] is about uids
        if peer.key is not None:
            return self._node.curve_keys.refusal(peer)
        now = admit(peer, self._node.access)
        if now.errnum:
            return now.reason
        # against what it was let in with: its groups may have changed, not only [access]
        return "" if vars_of(port.policy) == vars_of(now.policy) else "its roles have changed"

    def _objection(self, peer: PeerInfo, rank: int | None) -> str:
        return self._node.curve_keys.refusal(peer, rank) if peer.key is not None else ""


def vars_of(policy: Any) -> tuple[Any, ...]:
    """The rules of a stamp policy, comparable."""
    return policy.cred, policy.pass_through, policy.local, policy.tree_hop


# ---------------------------------------------------------------- what is different


def differences(before: Settings, after: Settings) -> Iterator[Path]:
    """Where two configurations differ: ``("tree", "size")``, ``("hosts", "3", "public_key")`` with the rank,
    ``("clients", KEY)``.
    """
    yield from _compare((), _tables(before), _tables(after))


def _tables(settings: Settings) -> dict[str, Any]:
    tables: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=revealed)
    tables["hosts"] = {str(host["rank"]): host for host in tables["hosts"]}
    tables["clients"] = {client["public_key"]: client for client in tables["clients"]}
    return tables


def _compare(path: Path, old: Any, new: Any) -> Iterator[Path]:
    whole = len(path) == 2 and path[0] == "clients"
    if isinstance(old, Mapping) and isinstance(new, Mapping) and not whole:
        for name in {**old, **new}:
            yield from _compare((*path, name), old.get(name), new.get(name))
    elif old != new:
        yield path


def may_change(path: Path) -> bool:
    """Whether that can change in a running broker."""
    if path[0] in ("clients", "access"):
        return True
    if path[0] == "oslo":
        return path[1:2] != () and path[1] in OsloSection.LATE
    return path in _MAY_CHANGE or (path[0] == "hosts" and len(path) == 3 and path[2] in _KEYS)


def dotted(path: Path) -> str:
    """A path as people write it: ``hosts[rank 3].address``."""
    if path[0] == "hosts" and len(path) > 1:
        return ".".join((f"hosts[rank {path[1]}]", *path[2:]))
    return ".".join(path)


def summary(changed: list[Path]) -> list[str]:
    """The changes in words, a phrase for each kind."""
    said = []
    if clients := sum(path[0] == "clients" for path in changed):
        said.append(f"{clients} of [[clients]]")
    if ranks := sorted({int(path[1]) for path in changed if path[0] == "hosts"}):
        said.append(f"keys of rank {', '.join(map(str, ranks))}")
    if any(path[0] == "access" for path in changed):
        said.append("[access]")
    return said + [dotted(path) for path in changed if path[0] in ("broker", "limits", "oslo")]
