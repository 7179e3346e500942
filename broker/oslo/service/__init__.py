"""The bridge of oslo.messaging to a Flux broker: its topics as a service, its notifications as events, for every
transport and rank.

::

    flux_bridge FluxBridge: the service ``oslo`` on a Flux broker: calls and casts through a session
    policy      who may call what (no input or output)
    topics      what a request asks for, what the server is sent, what its reply says (no input or output)
    notifications  from a session, through a bounded queue, to events on the Flux broker, private to owners
    asking      what the rooms of a node count, and what its directory knows, asked once each
    metrics     the same for Prometheus (no input or output)

Topics, payloads JSON objects; who calls is what the broker stamped::

    oslo.EXCHANGE.TOPIC.METHOD   call METHOD of a server of TOPIC; METHOD is the last word, EXCHANGE the first behind
                                 ``oslo``, TOPIC what is between them and may have dots
                                 {"args": {}, "ctxt": {}, "server": "", "mode": "call", "timeout": seconds,
                                  "namespace": "...", "version": "1.0", "mandatory": true}
    oslo.send                    the same with {"exchange", "topic", "method"} in the payload: for exchanges with dots,
                                 and methods called cancel or disconnect
    oslo.status                  {}: what the rooms of this node count; owners and admins
    oslo.calls                   {}: messages by pipeline, exchange and topic, and how many were refused, as
                                 ``broker.calls`` has them; owners and admins
    oslo.topics.list             {"exchange": ""}: where somebody listens, of what the caller may call

``mode`` is ``call`` (answered {"result": ...}), ``cast`` (one server of the topic, not answered by it) or ``fanout``
(every server that there is); both are answered {"sent": true}. ``mandatory`` false waits for a server until the time is
over instead of failing at once, and lets a cast go without a confirmation.

Errors: EHOSTUNREACH nobody listens there, ETIMEDOUT no reply in time, EPERM not allowed, EAGAIN too much at a time,
EINVAL the payload is wrong, EIO the server raised something: the text is its class and message.

The server sees the caller in its context under ``headgate``: {"userid", "rolemask"}, which a payload cannot set.

Events: ``oslo.notify.EXCHANGE.TOPIC.PRIORITY``, its words percent-encoded, see ``notifications``.
"""

from broker.oslo.service.flux_bridge import FluxBridge, FluxBridgeConfig
from broker.oslo.service.policy import CallRule

__all__ = ["CallRule", "FluxBridge", "FluxBridgeConfig"]
