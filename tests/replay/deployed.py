"""A stand-in for rank 0 of a deployed flux-core of four, scripted from the captures.

What it says was captured: answers come out of the dialogues, route stacks have the captured hops, the connector answers
for itself without the hops it was asked with, events carry leftover hops, and a client's end is told once for each
service the *link* asked. Only what no capture can hold is made up here: numbers, uuids, who serves what.
"""

import asyncio
import base64
import contextlib
import itertools
import uuid
from functools import cache

from broker.errors import LinkEnded, ProtocolError
from broker.transport.link import Options
from broker.transport.registry import listen
from broker.wire import message as wire
from broker.wire.framing import Splitter
from broker.wire.parts import encode_part
from broker.wire.payload import decode_json, encode_json
from broker.wire.topic import service_of
from tests.replay.dialogues import dialogues, payload_of
from tests.vectors import local

OWNER = (0, 5)
NOBODY = 0xFFFFFFFF
SERVICES = ("attr", "broker", "groups", "overlay", "state-machine", "log", "event", "config")


@cache
def captured():
    """(topic, payload, nodeid, is the sender the owner) -> the captured answer."""
    found = {}
    for dialogue in dialogues().values():
        for turn in dialogue.turns:
            said = Splitter(1 << 24).feed(turn.say) if turn.say else []
            if len(said) == 1 and said[0].type == wire.REQUEST and len(turn.hear) == 1:
                asked = said[0]
                owner = not dialogue.guest and asked.rolemask in (0, 1, 5)
                key = (asked.topic, canonical(asked.payload), asked.nodeid, owner)
                found.setdefault(key, turn.hear[0])
    return found


@cache
def attributes():
    """The values of attributes that any capture shows, of rank 0."""
    values = {"rank": "0", "size": "4", "version": "0.88.0", "broker.starttime": ""}
    asked = {}
    for record in local():
        seen = record.decoded
        if seen.get("topic") == "attr.get" and isinstance(seen.get("payload_json"), dict):
            key = (record.case, seen["matchtag"])
            if seen["type"] == "request":
                asked[key] = seen["payload_json"].get("name")
            elif isinstance(asked.get(key), str) and seen["errnum"] == 0:
                values.setdefault(asked[key], seen["payload_json"]["value"])
    return values


@cache
def hops():
    """The two hops a provider finds on top of a request, as captured: its broker's and its connector's."""
    record = next(one for one in local() if one.decoded.get("topic") == "duo.echo" and one.decoded["routes"])
    return [route.encode() for route in record.decoded["routes"][:2]]


def canonical(payload):
    try:
        return encode_json(decode_json(payload)) if payload else payload
    except ProtocolError:
        return payload


class Deployed:
    """One broker at ``uri``."""

    def __init__(self, uri):
        self.uri = uri
        self.listener = None
        self.links = {}
        self.unknown = []
        self.reset()

    def reset(self):
        self.uuid = str(uuid.uuid4())
        self.numbers = itertools.count(1)
        self.services = {}
        self.streams = []

    async def start(self):
        self.reset()
        self.listener = await listen(self.uri, self.accept, Options())

    async def stop(self):
        listener, self.listener = self.listener, None
        if listener is not None:
            await listener.stop()
        for link in list(self.links.values()):
            link.abort(LinkEnded("the instance was killed"))
        await asyncio.sleep(0)

    # -- links ---------------------------------------------------------------------------------

    def accept(self, link):
        link.data = Client(str(uuid.uuid4()).encode())
        self.links[link.data.uuid] = link
        link.start(self)

    def link_ended(self, link, error):
        del self.links[link.data.uuid]
        self.services = {name: other for name, other in self.services.items() if other is not link}
        for (
            first
        ) in link.data.asked.values():  # of each service the first request of this link, whoever sent it
            topic = first.topic.rpartition(".")[0] + ".disconnect"
            notice = wire.request(
                topic, nodeid=first.nodeid, matchtag=first.matchtag, flags=wire.NORESPONSE,
                userid=first.userid, rolemask=first.rolemask,
            )  # fmt: skip
            notice.front = first.front
            self.dispatch(notice)

    def link_choked(self, link, choked):
        pass

    def received(self, link, messages):
        for message in messages:
            userid = OWNER[0] if message.userid == NOBODY else message.userid
            message.set_credentials(userid, message.rolemask or OWNER[1])
            if message.type == wire.EVENT:
                self.publish(message)
            elif message.type == wire.RESPONSE:
                self.back(message)
            elif service_of(message.topic) in ("event", "service") and message.topic != "event.publish":
                self.connector(link, message)
            else:
                self.requested(link, message)

    # -- the connector -------------------------------------------------------------------------

    def connector(self, link, message):
        """Answered by the connector itself: the stack of the request is gone."""
        content = decode_json(message.payload)
        kind, name = message.topic, content.get("topic", content.get("service"))
        errnum = 0
        if kind == "event.subscribe":
            link.data.prefixes.append(name)
        elif kind == "event.unsubscribe":
            link.data.prefixes.remove(name)
        elif kind == "service.add":
            owner = message.rolemask & 1
            if not owner and not name.startswith(f"{message.userid}-"):
                errnum = 1
            elif name in self.services or name in SERVICES:
                errnum = 17
            else:
                self.services[name] = link
        elif self.services.get(name) is not link:
            errnum = 2
        elif message.flags & wire.NORESPONSE:
            self.services[name] = None  # it serves no more, but the name is freed with the answer only
        else:
            del self.services[name]
        answer = wire.response(message, errnum=errnum, userid=NOBODY, rolemask=1)
        answer.front = wire.DELIMITER
        link.send(answer)

    def requested(self, link, message):
        message.push_route(link.data.uuid)
        if not message.flags & wire.NORESPONSE:
            link.data.asked.setdefault((service_of(message.topic), message.nodeid), message.copy())
        self.dispatch(message)

    def dispatch(self, message):
        provider = self.services.get(service_of(message.topic))
        if provider is not None:
            delivered = message.copy()
            for hop in reversed(hops()):
                delivered.push_route(hop)
            provider.send(delivered)
        elif message.topic.endswith(".disconnect"):
            sender = message.routes[-1]  # as deployed services compare: the first hop that was pushed
            self.streams = [one for one in self.streams if one.routes[-1] != sender]
        else:
            self.answer(message)

    def back(self, message):
        """A response on its way: off with the hops of the broker, then to the client on top."""
        routes = message.routes
        if routes[:2] == hops():
            routes = routes[2:]
        link = self.links.get(routes[0]) if routes else None
        if link is not None:
            message.front = b"".join(encode_part(route) for route in routes[1:]) + wire.DELIMITER
            link.send(message)

    # -- services ------------------------------------------------------------------------------

    def answer(self, message):
        own = getattr(self, message.topic.replace(".", "_"), None)
        seen = self.known(message)
        if own is not None and (seen is None or not seen["errnum"]):
            try:
                own(message)
            except ProtocolError:
                self.say(message, errnum=71)
        elif seen is not None:
            self.say(message, payload_of(seen), seen["errnum"], (seen["userid"], seen["rolemask"]))
        else:
            self.unknown.append(message.topic)
            text = f"No service matching {message.topic} is registered\0"
            self.say(message, text.encode(), 38)

    def known(self, message):
        owner = bool(message.rolemask & 1)
        for nodeid in (message.nodeid, wire.NODEID_ANY, 0):
            seen = captured().get((message.topic, canonical(message.payload), nodeid, owner))
            if seen is not None:
                return seen
        return None

    def say(self, message, payload=None, errnum=0, cred=OWNER):
        self.back(wire.response(message, payload, errnum=errnum, userid=cred[0], rolemask=cred[1]))

    def attr_get(self, message):
        name = decode_json(message.payload)["name"]
        value = self.uuid if name == "broker.uuid" else attributes().get(name)
        if value is None:
            self.say(message, errnum=2)
        else:
            self.say(message, encode_json({"value": value, "flags": 1}))

    def broker_ping(self, message):
        route = "!".join(hop.decode()[:8] for hop in reversed(message.routes))
        rank = 0 if message.nodeid == wire.NODEID_ANY or message.flags & wire.UPSTREAM else message.nodeid
        own = {"route": route, "userid": message.userid, "rolemask": message.rolemask, "rank": rank}
        self.say(message, encode_json({**decode_json(message.payload), **own}))

    def groups_get(self, message):
        if message.flags & wire.STREAMING:
            self.streams.append(message.copy())
        self.say(message, encode_json({"members": "0-3"}))

    def event_publish(self, message):
        content = decode_json(message.payload)
        data = base64.b64decode(content["payload"]) if "payload" in content else None
        event = wire.event(
            content["topic"], data, flags=content["flags"], userid=message.userid, rolemask=message.rolemask
        )
        self.publish(event)
        self.say(message, encode_json({"seq": event.sequence}))

    def publish(self, message):
        message.set_aux1(next(self.numbers))
        for link in list(self.links.values()):
            if message.topic.startswith(tuple(link.data.prefixes)):
                delivered = message.copy()
                for hop in (link.data.uuid, hops()[0]):  # leftovers, as captured
                    delivered.push_route(hop)
                link.send(delivered)

    # -- tests.interop.fronting.Other ----------------------------------------------------------

    async def publish_event(self, topic, payload):
        self.publish(wire.event(topic, encode_json(payload), userid=0, rolemask=5))

    async def change_group(self):
        for stream in list(self.streams):
            self.say(stream, encode_json({"members": "0-3"}))

    async def kill(self):
        await self.stop()

    async def restart(self):
        await self.start()


class Client:
    """What the connector knows of one link."""

    def __init__(self, name):
        self.uuid = name
        self.prefixes = []
        self.asked = {}


@contextlib.asynccontextmanager
async def deployed(uri):
    """A running one."""
    broker = Deployed(uri)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
