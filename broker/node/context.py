"""Fills ``broker.services.context.Context``, the broker as its services see it, with what the rooms of this node do."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from broker.node import figures
from broker.node.tracing import Tracing
from broker.routing.port import CLIENT, Port
from broker.routing.recording import record_refused
from broker.services.context import Context, JournalControl, Sender
from broker.wire.message import NORESPONSE, Message, response
from broker.wire.parts import part_data

if TYPE_CHECKING:
    from broker.node.broker import Broker
    from broker.node.lifecycle import Lifecycle
    from broker.node.overlay.overlay import Overlay


def context_of(
    broker: Broker,
    overlay: Overlay,
    lifecycle: Lifecycle,
    *,
    owner: int,
    config: Mapping[str, Any],
    attributes: Mapping[str, tuple[str | Callable[[], str], int]],
    apply_attribute: Callable[[str, str], int],
    journal: JournalControl | None,
    metrics: Callable[[], str],
) -> Context:
    """One broker as its services see it; the rest of the arguments are fields of the same name."""
    router, tracing = broker.router, Tracing(broker)
    context = Context(
        rank=router.rank,
        size=router.topology.size,
        owner=owner,
        cred=broker.own.cred,
        uuid=lambda: router.uuid,
        config=config,
        attributes=attributes,
        apply_attribute=apply_attribute,
        journal=journal,
        respond=partial(_respond, broker),
        refused=partial(record_refused, router),
        publish=partial(_publish, broker),
        call=broker.calls.call,
        sender_of=router.port_of,
        subscribe=partial(_subscribe, broker),
        unsubscribe=lambda sender, prefix: router.events.unsubscribe(_port(sender), prefix),
        add_service=partial(_add_service, broker),
        remove_service=partial(_remove_service, broker),
        on_provided=partial(setattr, router.services, "on_client"),
        on_unregistered=partial(setattr, router, "elsewhere"),
        watch_links=tracing.watch_links,
        watch_services=tracing.watch_services,
        disconnect_client=partial(_disconnect_client, broker),
        links=lambda: [figures.describe(port) for port in router.ports if port.link is not None],
        tree_children=router.topology.children,
        tree_parent=router.topology.parent,
        subtree_status=overlay.subtree_status,
        status_since=overlay.status_since,
        child_health=overlay.child_health,
        disconnect_child=overlay.disconnect_child,
        state=lambda: (lifecycle.state, lifecycle.in_state_s()),
        on_state=lifecycle.watchers.append,
        traffic=partial(figures.traffic, broker),
        users=partial(figures.users, broker),
        call_stats=partial(figures.calls, broker),
        metrics=metrics,
        clear_traffic=partial(_clear_traffic, broker),
        subscribe_own=partial(router.events.subscribe, broker.own),
    )
    broker.observe = context.published
    return context


def _respond(broker: Broker, request: Message, payload: bytes | None, errnum: int, always: bool) -> None:
    unwanted = request.flags & NORESPONSE
    if always or not unwanted:
        cred = broker.own.cred
        answer = response(request, payload, errnum=errnum, userid=cred.userid, rolemask=cred.rolemask)
        if unwanted:
            answer.set_flags(answer.flags & ~NORESPONSE)
        broker.respond(answer)


def _publish(broker: Broker, message: Message) -> int:
    if broker.router.rank != 0:
        raise ProtocolError("events are published by rank 0 only")
    topic_max, events = broker.router.topic_max_bytes, broker.router.events
    topic, payload = bytes(part_data(message.topic_part) or b""), message.payload
    error = None
    if len(topic) > topic_max:
        error = RpcError(errno.EPROTO, f"topic above {topic_max} bytes")
    elif payload is not None and not message.rolemask & Role.OWNER and len(payload) > events.guest_max:
        text = f"an event of {len(payload)} bytes: limits.guest_event_bytes are {events.guest_max}"
        error = RpcError(errno.EMSGSIZE, text)
    if error is not None:
        events.stats.refused(topic, error.errno, str(error), message.userid)
        raise error
    return broker.publish(message)


def _subscribe(broker: Broker, sender: Sender, prefix: bytes) -> int:
    port, router = _port(sender), broker.router
    if prefix not in port.subscriptions:
        router.users.refuse_more(port.user, "subscriptions")
    return router.events.subscribe(port, prefix)


def _add_service(broker: Broker, sender: Sender, name: bytes) -> int:
    """A paused caller that becomes a provider is read again."""
    port = _port(sender)
    broker.router.users.refuse_more(port.user, "services")
    errnum = broker.router.services.add(name, port)
    if not errnum:
        broker.router.invalidate()
        broker.pressure.became_provider(port)
    return errnum


def _remove_service(broker: Broker, sender: Sender, name: bytes) -> int:
    """Calls that it still owes stay open."""
    errnum = broker.router.services.remove(name, _port(sender))
    if not errnum:
        broker.router.invalidate()
    return errnum


def _disconnect_client(broker: Broker, uuid: str, reason: str) -> int:
    for port in broker.router.ports:
        if port.uuid == uuid and port.kind == CLIENT and port.link is not None:
            port.link.close(reason)
            return 0
    return errno.ENOENT


def _clear_traffic(broker: Broker) -> None:
    router = broker.router
    router.tally.clear()
    router.call_stats.clear()
    router.events.stats.clear()
    router.invalidate()


def _port(sender: Sender) -> Port:
    if not isinstance(sender, Port):
        raise TypeError(f"{sender!r} did not come from sender_of()")
    return sender
