"""What a caller is told when no answer came: in words that say where to look (pure but for its arguments)."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from broker.oslo.client.node_link import NodeLink
from broker.oslo.client.pending_calls import PendingCall
from broker.oslo.client.routing import RoutingTable, Servers
from broker.oslo.names import REASONS, Reason

LEAST_S: Final = 0.05
"""A call that had less time was not kept by the network: a first connection alone may take as long."""


def timeout_text(
    call: PendingCall,
    link: NodeLink[PendingCall] | None,
    servers: Servers,
    routes: RoutingTable,
    down: Container[str],
    unknown_key: str = "",
) -> str:
    """The text of ``CallTimeout``: address, seconds, who listens there, whether the proxy of the node is reached.

    ``unknown_key``: our CURVE key, when a node of these servers does not let it in.
    """
    if call.monitored_out:
        begin = f"{call.address}: no heartbeat for {call.monitor_s:g} s"
    else:
        begin = f"{call.address}: no answer within {call.timeout_s or 0.0:g} s"
    if not servers:
        if not routes.synced:
            return f"{begin}: not known whether anybody listens there, no answer from {routes.whereabouts()}"
        return f"{begin}: nobody listens there"
    who = f"{len(servers)} server{'s' if len(servers) > 1 else ''} listen{'' if len(servers) > 1 else 's'} there"
    if link is not None and call.sent:
        where = f"the proxy of node {link.node} ({link.endpoint}) was sent the request"
        what = "and is out of reach now" if link.node in down else "and its server has not answered"
        return f"{begin}: {who}; {where} {what}"
    if unknown_key and not call.sent:
        return (
            f"{begin}: {who}; their node does not let our CURVE key {unknown_key} in, nothing was sent: it has to be in"
            " [[oslo.keys]] of that node's proxy, or zmq_curve_cert one that is"
        )
    if (call.timeout_s or 0.0) < LEAST_S and not call.refusal and (link is None or link.node not in down):
        return f"{begin}: {who}; the time was over before anything was sent"
    if link is not None:
        return f"{begin}: {who}; the proxy of node {link.node} ({link.endpoint}) is out of reach, nothing was sent"
    reason = Reason(call.refusal) if call.refusal else Reason.NONE
    if reason is not Reason.NONE:
        return f"{begin}: {who}; all have refused it, the last time because {REASONS[reason]}"
    nodes = ", ".join(sorted({one.node for one in servers})[:8])
    return f"{begin}: {who}; the proxies of their nodes ({nodes}) are out of reach, nothing was sent"
