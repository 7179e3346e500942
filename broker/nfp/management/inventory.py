"""``sid.service.broker``: inventory data for workers (NFP, "Broker Simple Inventory Datastore").

One task, get_inventory, keyword ``name``: the merged mapping, null when there is nothing. A deployed worker asks
through a client of its own, ``<worker>-NFPClient``, before its first READY.

A worker's data is for the worker: for its ``<worker>-NFPClient``, whose name is pinned to a key as every name is, and
for the key that the worker's own name is pinned to, of those who may offer a service or whom the list of keys names so:
a free name makes nobody a worker. Owners read all. Others need a rule for ``get_inventory_of_others``, and then see it
without what looks like a secret. Guests, whoever they are, see the names of keys and no value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.nfp.access import OTHERS
from broker.nfp.contract import Call, Peer
from broker.nfp.inventory.mappings import redacted
from broker.nfp.management.questions import Refused, Table
from broker.nfp.names import CLIENT_OF_WORKER, NAME_BYTES_MAX, SID
from broker.nfp.principal import Principal, Standing

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker


async def _get_inventory(broker: NfpBroker, call: Call) -> Any:
    name, who = _name(call), call.peer.principal
    own = _is_own(broker, call.peer, name)
    if not own and not broker.access.may_call(who, SID, OTHERS):
        raise Refused(f"not allowed: the inventory of {name!r} is for that worker and for owners")
    await broker.reader.look()
    data = broker.datastore.get_inventory(name)
    if data is None or who.owner or (own and who.standing is Standing.USER):
        return data
    return redacted(data, everything=who.standing is Standing.GUEST)


def _is_own(broker: NfpBroker, peer: Peer, name: str) -> bool:
    """Whether ``peer`` has the worker's key, or its client's name, and could be that worker."""
    key, owner = peer.principal.key, broker.name_owners.key_of(name)
    if not (key and owner == key) and peer.name != name + CLIENT_OF_WORKER:
        return False
    return _could_be(broker, peer.principal, name, owner)


def _could_be(broker: NfpBroker, who: Principal, name: str, owner: str) -> bool:
    """Where the worker's key is listed, its client's has to be, too."""
    access = broker.access
    if not access.is_listed(who.key) and (not broker.settings.inventory_unlisted or access.is_listed(owner)):
        return False
    return who.name in (name, name + CLIENT_OF_WORKER) or access.may_work(who)


def _name(call: Call) -> str:
    """Whose data: ``name``, or who asks when there is none."""
    name = call.kwargs.get("name") or (
        call.args[0] if call.args else call.peer.name.removesuffix(CLIENT_OF_WORKER)
    )
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= NAME_BYTES_MAX:
        raise Refused(f"no worker's name, expected a text of 1 to {NAME_BYTES_MAX} characters")
    return name


TASKS: Final[Table] = {"get_inventory": (Standing.GUEST, _get_inventory)}
