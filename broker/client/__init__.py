"""The other end of a link: what a program needs to talk with a broker, ours or a real flux-core's.

::

    async with broker.client.connect("local:///run/headgate/local-0") as h:
        answer = await h.rpc("attr.get", {"name": "size"})       # one request, one response
        async with h.stream("log.dmesg", {"follow": True}) as lines:  # one request, many responses
            async for line in lines: ...
        async with h.subscribe("job.") as events:                # events by topic prefix
            async for event in events: ...
        await h.publish("job.done", {"id": 7})
        async with h.service("calc", {"add": add}):              # others call calc.add
            ...

``dialing``        addresses, retries                 -> Handle
``handle``         the Handle: calls, streams, events, services, attributes
``connection``     what is below: the link, what waits for answers, what becomes of both at its end; Limits
``reconnecting``   another link, after pauses; where events go on then
``calls``          matchtags, pending calls, streams  (RFC 6)
``nearby``         which ranks have a service, and which of them is next
``subscriptions``  events by prefix                   (RFC 3, "Event Message Type")
``past_events``    events of a while ago, as rank 0 keeps them
``service``        methods that others call           (RFC 6), by what ``broker.serving`` has in common
``bridge``         a wing as a service, over a link that is made again whenever it ends; events that nobody waits for
``blocking``       the same names for ordinary threads (imported on its own: it starts a thread);
                   the thread is ``broker.loopthread``'s

Nothing here blocks the link: what a consumer does not read in time is bounded, counted and told to that
consumer alone. When the link ends, every pending call, stream and subscription raises the LinkError that
says why; over ``ws://`` and ``wss://`` another link follows, over which subscriptions and services go on.
"""

from broker.client.calls import Response
from broker.client.connection import Limits
from broker.client.dialing import RETRIES, connect
from broker.client.handle import Handle
from broker.client.reconnecting import Reconnect
from broker.client.service import Service
from broker.client.subscriptions import Event
from broker.serving.request import LATER, Handler, Request

__all__ = [
    "LATER",
    "RETRIES",
    "Event",
    "Handle",
    "Handler",
    "Limits",
    "Reconnect",
    "Request",
    "Response",
    "Service",
    "connect",
]
