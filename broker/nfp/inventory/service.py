"""``sid.service.broker``: inventory data for workers (NFP, "Broker Simple Inventory Datastore").

One task, get_inventory, keyword ``name``: the merged mapping, null when there is nothing. A deployed worker asks
through a client of its own, ``<worker>-NFPClient``, before its first READY.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.nfp.access import OTHERS, Access
from broker.nfp.contract import Call, Peer
from broker.nfp.inventory.datastore import Datastore
from broker.nfp.inventory.mappings import redacted
from broker.nfp.management.internal_service import Deferred, InternalService, Refused, text
from broker.nfp.names import CLIENT_OF_WORKER, NAME_BYTES_MAX, SID
from broker.nfp.principal import Principal, Standing


def _at_once(then: Callable[[Any], None]) -> None:
    """Nobody reads in a thread: the data is as fresh as it is."""
    then(None)


class InventoryService(InternalService):
    """The service.

    A worker's data is for the worker: for its ``<worker>-NFPClient``, whose name is pinned to a key as every name is,
    and for the key that the worker's own name is pinned to, of those who may offer a service or whom the list of keys
    names so: a free name makes nobody a worker. Owners read all. Others need a rule for
    ``get_inventory_of_others``, and then see it without what looks like a secret. Guests, whoever they are, see the
    names of keys and no value.

    Args:
        datastore: the data. access: the rules. pinned: the key that a name belongs to, "" for none.
        look: calls a function once the data is as fresh as it gets in a moment (see ``Reader.look``).
        unlisted: whether workers whose key is not listed get any.
    """

    def __init__(
        self,
        datastore: Datastore,
        access: Access,
        pinned: Callable[[str], str],
        look: Callable[[Callable[[Any], None]], None] = _at_once,
        *,
        unlisted: bool = True,
    ) -> None:
        super().__init__(SID, {"get_inventory": (Standing.GUEST, self._get_inventory)})
        self._datastore = datastore
        self._access = access
        self._pinned = pinned
        self._look = look
        self._unlisted = unlisted

    def _get_inventory(self, call: Call) -> Any:
        name = _name(call)
        who = call.peer.principal
        own = self._is_own(call.peer, name)
        if not own and not self._access.may_call(who, SID, OTHERS):
            raise Refused(f"not allowed: the inventory of {name!r} is for that worker and for owners")
        return Deferred(self._look, lambda _: self._shown(name, who, own))

    def _shown(self, name: str, who: Principal, own: bool) -> Any:
        data = self._datastore.get_inventory(name)
        if data is None or who.owner or (own and who.standing is Standing.USER):
            return data
        return redacted(data, everything=who.standing is Standing.GUEST)

    def _is_own(self, peer: Peer, name: str) -> bool:
        """Whether ``peer`` has the worker's key, or its client's name and could be that worker."""
        key = peer.principal.key
        if key and self._pinned(name) == key:
            return self._could_be(peer.principal, name)
        return peer.name == name + CLIENT_OF_WORKER and self._could_be(peer.principal, name)

    def _could_be(self, who: Principal, name: str) -> bool:
        """Where the worker's key is listed, its client's has to be, too."""
        if not self._access.is_listed(who.key) and (
            not self._unlisted or self._access.is_listed(self._pinned(name))
        ):
            return False
        return who.name in (name, name + CLIENT_OF_WORKER) or self._access.may_work(who)


def _name(call: Call) -> str:
    """Whose data: ``name``, or who asks when there is none."""
    name = text(call, "name") or (
        call.args[0] if call.args else call.peer.name.removesuffix(CLIENT_OF_WORKER)
    )
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= NAME_BYTES_MAX:
        raise Refused(f"no worker's name, expected a text of 1 to {NAME_BYTES_MAX} characters")
    return name
