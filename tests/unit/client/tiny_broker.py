"""Just enough of a broker to test clients end to end over a UNIX socket: attributes, events, services, two odd topics.

`with running(uri):` runs one in a thread of its own, so that blocking clients can be tested against it.
"""

import asyncio
import base64
import contextlib
import itertools

from broker.loopthread import LoopThread
from broker.transport.link import Options
from broker.transport.registry import listen
from broker.wire import message as wire
from broker.wire.payload import decode_json, encode_json
from broker.wire.topic import service_of

ATTRS = {"rank": "0", "size": "4"}


class TinyBroker:
    def __init__(self):
        self.links = {}
        self.services = {}
        self.prefixes = {}
        self.sequence = itertools.count(1)
        self.names = (b"client-%d" % n for n in itertools.count(1))
        self.lines = []

    def accept(self, link):
        link.data = next(self.names)
        self.links[link.data] = link
        self.prefixes[link.data] = []
        link.start(self)

    def received(self, link, messages):
        for message in messages:
            if message.type == wire.EVENT:
                self.publish(message)
            elif message.type == wire.RESPONSE:
                self.back(message)
            else:
                message.push_route(link.data)
                message.set_credentials(7, 5)
                self.requested(link, message)

    def link_ended(self, link, error):
        del self.links[link.data]
        self.services = {name: other for name, other in self.services.items() if other is not link}

    def link_choked(self, link, choked):
        pass

    def requested(self, link, message):
        topic = message.topic
        provider = self.services.get(service_of(topic))
        method = getattr(self, topic.replace(".", "_"), None)
        if provider is not None:
            provider.send(message)
        elif method is not None:
            method(link, message)
        else:
            self.back(wire.response(message, b"nobody\0", errnum=38))

    def back(self, message):
        route = message.routes[0]
        message.front = message.front[1 + len(route) :]
        if route in self.links:
            self.links[route].send(message)

    def publish(self, message):
        message.set_aux1(next(self.sequence))
        for name, prefixes in self.prefixes.items():
            if name in self.links and message.topic.startswith(tuple(prefixes)):
                self.links[name].send(message.copy())

    def attr_get(self, link, message):
        name = decode_json(message.payload)["name"]
        self.back(wire.response(message, encode_json({"value": ATTRS[name], "flags": 1})))

    def event_subscribe(self, link, message):
        self.prefixes[link.data].append(decode_json(message.payload)["topic"])
        self.back(wire.response(message))

    def event_unsubscribe(self, link, message):
        self.prefixes[link.data].remove(decode_json(message.payload)["topic"])
        self.back(wire.response(message))

    def event_publish(self, link, message):
        content = decode_json(message.payload)
        data = base64.b64decode(content["payload"]) if "payload" in content else None
        event = wire.event(content["topic"], data, flags=content["flags"])
        self.publish(event)
        self.back(wire.response(message, encode_json({"seq": event.sequence})))

    def service_add(self, link, message):
        name = decode_json(message.payload)["service"]
        taken = name in self.services
        if not taken:
            self.services[name] = link
        self.back(wire.response(message, errnum=17 if taken else 0))

    def service_remove(self, link, message):
        self.services.pop(decode_json(message.payload)["service"], None)
        self.back(wire.response(message))

    def log_append(self, link, message):
        self.lines.append(message.payload)

    def odd_hang(self, link, message):
        """Never answered."""

    def odd_hangup(self, link, message):
        link.close("bye")


async def start(uri, admit=lambda peer: 0):
    broker = TinyBroker()
    listener = await listen(uri, broker.accept, Options(admit=admit))
    return broker, listener


@contextlib.contextmanager
def running(uri, admit=lambda peer: 0):
    thread = LoopThread()
    broker, listener = thread.run(start(uri, admit))

    async def stop():
        await listener.stop()
        for link in list(broker.links.values()):
            link.close("the tiny broker stops")
        await asyncio.sleep(0)

    try:
        yield broker
    finally:
        thread.run(stop())
        thread.stop()
