"""Casts, in the thread of the sockets: choose a server, send. Nobody answers."""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.oslo.client.chooser import Chooser
from broker.oslo.client.links import Sender
from broker.oslo.client.resend import Parcel
from broker.oslo.contract import Address
from broker.oslo.directory.state import Server
from broker.oslo.frames import NO_ID, Flag, Kind, encode
from broker.oslo.names import Pipeline
from broker.oslo.reactor.socket import Frames

if TYPE_CHECKING:
    from broker.oslo.client.client import Client

_REPEATED: Final = int(Flag.REPEATED)


class Cast(Parcel):
    """A request for one server that wants no answer.

    Attributes:
        listener: who was chosen.
        id: of the message, from the first time that it is sent.
    """

    __slots__ = ("address", "body", "id", "listener")

    def __init__(self, address: Address, body: bytes) -> None:
        super().__init__(len(body))
        self.address = address
        self.body = body
        self.listener = ""
        self.id = NO_ID


class CastSender(Sender[Cast]):
    """The casts of one client.

    Args:
        chooser: whose turn it is, over calls and casts.
        confirm: sends one over the pipeline of calls, for a server that is not reached by that of casts.
    """

    def __init__(
        self,
        client: Client,
        chooser: Chooser[Server],
        confirm: Callable[[Cast], None],
    ) -> None:
        super().__init__(client, Pipeline.CAST)
        self._chooser = chooser
        self._confirm = confirm

    def busy(self, address: Address) -> bool:
        """Whether as much as may waits for each node of the address, any thread."""
        return bool(self.full) and self.full.issuperset(self._routes.nodes(address) or ("",))

    def start(self, cast: Cast) -> None:
        """A cast that was handed over."""
        if self._takes(cast.size, "casts"):
            self.place(cast)

    def place(self, parcel: Cast) -> None:
        """Choose a server and hand the cast to its node's link."""
        servers = self._routes.find(parcel.address).casts
        if not servers:
            self.note_nobody("cast", parcel.address)
            return
        choose = self._chooser.choose
        one = choose(parcel.address, servers, self.bad) or choose(parcel.address, servers)
        assert one is not None  # without nodes to pass over there is always one
        if Pipeline.CAST in one.pipelines:
            link = self.get(one.node)
            if link is not None:
                parcel.listener = one.listener
                link.submit(parcel)
                return
        self._confirm(parcel)

    def pack(self, parcel: Cast) -> Frames:
        """See ``Sender``."""
        if parcel.id == NO_ID:
            parcel.id = self.ids.next()
        address = parcel.address
        head = encode(
            Kind.CAST,
            address.exchange,
            address.topic,
            address.server,
            (parcel.listener,),
            flags=_REPEATED if parcel.repeated else 0,
            id=parcel.id,
        )
        return (head, parcel.body)

    def has_others(self, parcel: Cast) -> bool:
        """See ``Sender``."""
        return any(one.node not in self.down for one in self._routes.find(parcel.address).casts)
