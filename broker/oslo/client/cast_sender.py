"""Casts on their way out, in the thread of the sockets: each to one server, by turns; nobody answers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.oslo.client.chooser import Chooser
from broker.oslo.client.node_link import Cast, LinkHandlers, NodeLink
from broker.oslo.client.node_links import ClientContext, NodeLinks
from broker.oslo.client.repeats import MessageIds, ResendBuffer
from broker.oslo.contract import Address
from broker.oslo.frames import NO_ID, Flag, Kind, encode
from broker.oslo.names import Pipeline
from broker.oslo.reactor.socket import Frames

_REPEATED: Final = int(Flag.REPEATED)


class CastSender:
    """The casts of one client.

    Args:
        chooser: whose turn it is, over calls and casts.
        by_call: sends one over the pipeline of calls, for a server that is not reached by that of casts.
        moved: called when a link is up, down, full or has room.

    Attributes:
        links: sockets to nodes.
        closed: nothing more is taken.
    """

    def __init__(
        self,
        context: ClientContext,
        chooser: Chooser,
        by_call: Callable[[Cast], None],
        moved: Callable[[], None],
    ) -> None:
        self.closed = False
        self._reactor = context.reactor
        self._ids = MessageIds()
        self._sent: ResendBuffer[Cast] = ResendBuffer()
        self._routes = context.routes
        self._submit_queue = context.submit_queue
        self._counters = context.counters
        self._chooser = chooser
        self._by_call = by_call
        self.links: NodeLinks[Cast] = NodeLinks(
            context,
            LinkHandlers(
                Pipeline.CAST, self._pack, self._note_sent, None, self._reroute, self._take_unconfirmed
            ),
            moved,
        )

    def cast(self, cast: Cast) -> None:
        """A cast that was handed over."""
        self._submit_queue.take(cast.size)
        if self.closed:
            self._counters.count("unflushed")
            return
        self._counters.counts["casts"] += 1
        self._place(cast)

    def _place(self, cast: Cast) -> None:
        servers = self._routes.for_casts(cast.address)
        if not servers:
            self.nobody(cast.address)
            return
        links = self.links
        choose = self._chooser.choose
        one = choose(cast.address, servers, links.bad) or choose(cast.address, servers)
        assert one is not None  # without nodes to pass over there is always one
        if Pipeline.CAST in one.pipelines:
            link = links.get(one.node)
            if link is not None:
                cast.listener = one.listener
                link.submit(cast)
                return
        self._by_call(cast)

    def _reroute(self, link: NodeLink[Cast]) -> None:
        gone = self.links.known(link.node) is not link
        for cast in link.take_parcels():
            if cast.repeated:
                self._repeat(cast, link)
                continue
            servers = self._routes.for_casts(cast.address)
            if gone or any(one.node not in self.links.down for one in servers):
                self._counters.counts["chosen_again"] += 1
                self._place(cast)
            else:
                link.submit(cast)

    # ------------------------------------------------------------ the links

    def _pack(self, cast: Cast, _link: NodeLink[Cast]) -> Frames:
        if cast.id == NO_ID:
            cast.id = self._ids.next()
        address = cast.address
        head = encode(
            Kind.CAST,
            address.exchange,
            address.topic,
            address.server,
            (cast.listener,),
            flags=_REPEATED if cast.repeated else 0,
            id=cast.id,
        )
        return (head, cast.body)

    def _note_sent(self, cast: Cast, link: NodeLink[Cast]) -> None:
        self._sent.add(link, cast, self._reactor.now())

    def _take_unconfirmed(self, link: NodeLink[Cast]) -> list[Cast]:
        again = self._sent.take(link, self._reactor.now())
        for cast in again:
            cast.repeated = True
        self._counters.count("repeated", len(again))
        if self.links.known(link.node) is link:
            return again
        for cast in again:
            self._repeat(cast, link)
        return []

    def _repeat(self, cast: Cast, link: NodeLink[Cast]) -> None:
        """The node of ``link`` may have it, so nobody else may: there, wherever it is reached now."""
        there = self.links.get(link.node)
        if there is None:
            self._counters.count("lost")
        else:
            there.submit(cast)

    def nobody(self, address: Address) -> None:
        """A cast has nobody to hear it."""
        self._counters.count("nobody")
        self._counters.say("cast to %s dropped: nobody listens there", str(address))
