"""A gateway without its doors before a live broker in this process, and web clients on in-process links.

`run(script)` gives `script(desk)` a broker, an upstream that has joined it, and what sessions need; `desk.client(...)`
opens one. What the session sends its client, messages and control objects, stands in `client.log` in order.
"""

import asyncio
import itertools
import logging
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import msgspec

from broker import client as flux
from broker import settings as broker_settings
from broker.errors import LinkClosed
from broker.identity import PeerInfo, Role
from broker.node.assembly import Node
from broker.transport.inproc import InprocLink
from broker.transport.link import Options
from broker.wire import message as wire
from broker.wire.payload import any_text, decode_json, encode_json
from gateway.administration.service import Administration
from gateway.closes import INTERNAL
from gateway.fleet.peers import Peers
from gateway.principal import ROLE_NAMES, Denied, Principal
from gateway.sessions.delivery import Delivery
from gateway.sessions.sessions import Sessions
from gateway.settings.schema import GatewaySettings
from gateway.trends.trends import Trends
from gateway.upstream.upstream import Upstream
from gateway.websocket.outbox import WebOutbox

KEY = b"k" * 32
_tags = itertools.count(1 << 16)  # smaller ones are for tests that choose theirs


def rule(roles, prefixes, kinds=("call", "publish", "subscribe", "register"), allow=True):
    return {"roles": roles, "kinds": kinds, "prefixes": prefixes, "allow": allow}


def settings_of(rules=(), limits=None, gateway=None):
    return msgspec.convert(
        {"rules": list(rules), "limits": limits or {}, "gateway": gateway or {}}, GatewaySettings
    )


def principal(name="ada", userid=1001, roles=("user",), *, expires=None, credential="token:1", shared=False):
    bits = Role.NONE
    for role in roles:
        bits |= ROLE_NAMES[role]
    return Principal(name, userid, bits, "token", credential, expires, shared)


class WebLink(InprocLink):
    """The session's end of a connection: an in-process link with a control channel; it logs what it is given."""

    def __init__(self, peer, options, client):
        super().__init__(peer, options, shares_events=False)
        self.outbox = WebOutbox(self, options.limits, options.budget)
        self.data = client

    def send(self, message):
        self.data.log.append(message.copy())
        super().send(message)

    def tell(self, obj):
        assert msgspec.json.encode(obj), "a control object is JSON"
        self.data.log.append(obj)

    def pause(self):
        self.data.paused = True
        super().pause()

    def resume(self):
        self.data.paused = False
        super().resume()

    def close_with(self, code, reason):
        self.data.code = self.data.code or code
        self.data.reason = reason
        self.close(reason)


class Client:
    """A web client: `ask` and `say` as a browser would; `log` is what it is sent."""

    def __init__(self, desk, who, kind):
        self.desk = desk
        self.log = []
        self.code = None
        self.reason = None
        self.ended = None
        self.paused = None
        near = WebLink(PeerInfo("inproc://web"), desk.link_options, self)
        self.far = InprocLink(PeerInfo("inproc://gateway"), Options(), shares_events=False)
        near._other, self.far._other = self.far, near
        self.near = near
        self.session = desk.open(who, near, kind)
        near.start(self.session.receiver)
        self.far.start(self)

    # Receiver of the far end
    def received(self, link, messages):
        """Everything is in `log` already."""

    def link_ended(self, link, error):
        self.ended = error

    def link_choked(self, link, choked):
        """A client that does not care."""

    # -- out
    def say(self, *messages):
        for message in messages:
            self.far.send(message)

    def send(self, topic, payload=None, **options):
        """A request; returns its matchtag."""
        message = wire.request(topic, _payload(payload), **{"matchtag": next(_tags), **options})
        self.say(message)
        return message.matchtag

    def leave(self):
        self.far.abort(LinkClosed("gone"))

    # -- in
    def of(self, kind):
        return [one for one in self.log if isinstance(one, wire.Message) and one.type == kind]

    def answers(self, tag):
        return [one for one in self.of(wire.RESPONSE) if one.matchtag == tag]

    def told(self, kind):
        return [one for one in self.log if isinstance(one, dict) and one["type"] == kind]

    @property
    def topics(self):
        return [one.topic for one in self.of(wire.EVENT)]

    async def answer(self, tag, count=1):
        await until(lambda: len(self.answers(tag)) >= count)
        return self.answers(tag)[count - 1]

    async def ask(self, topic, payload=None, **options):
        """The first response, whatever its errnum."""
        return await self.answer(self.send(topic, payload, **options))

    async def rpc(self, topic, payload=None, **options):
        """The JSON of a response without error; {} when it has no payload."""
        answer = await self.ask(topic, payload, **options)
        assert answer.errnum == 0, (answer.errnum, any_text(answer.payload))
        return decode_json(answer.payload) if answer.payload else {}

    async def refused(self, topic, payload=None, **options):
        """(errnum, text) of the response."""
        answer = await self.ask(topic, payload, **options)
        return answer.errnum, any_text(answer.payload)

    async def request(self, topic):
        """The first request delivered to it with this topic."""
        await until(lambda: [one for one in self.of(wire.REQUEST) if one.topic == topic])
        return next(one for one in self.of(wire.REQUEST) if one.topic == topic)

    async def settled(self):
        """Everything said before has been handled, here and at the broker."""
        await self.desk.settled()


def _payload(payload):
    return encode_json(payload) if isinstance(payload, dict) else payload


async def until(condition, timeout_s=10.0):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)


class Spy:
    """The upstream as sessions see it, with a record of what they sent it."""

    def __init__(self, upstream):
        self._upstream = upstream
        self.sent = []

    def __getattr__(self, name):
        return getattr(self._upstream, name)

    def send(self, message):
        self.sent.append(message.copy())
        return self._upstream.send(message)

    @property
    def way(self):
        return self._upstream.way and self.send

    def requests(self, topic):
        return [one for one in self.sent if one.type == wire.REQUEST and one.topic == topic]


class Trusting:
    """An identity to whom everybody stays who it was."""

    def __init__(self):
        self.logins = SimpleNamespace(of=lambda _who: [], end_all=len)

    def again(self, mine):
        return mine

    def revoked(self, _mine):
        return False

    def set_owner(self, _userid):
        return False

    async def authenticate_token(self, _text, *, address):
        raise Denied("no identity", public="no token can be checked", status=503, close=INTERNAL)


class Others(Peers):
    """Other processes, which answer what ``answers`` returns for a question; label -> how many there are."""

    shared = True

    def __init__(self, answers, processes=(), label="a/1"):
        super().__init__()
        self._answers, self.label = answers, label
        self._there = Counter(processes)

    def __len__(self):
        return self._there.total()

    @property
    def processes(self):
        return Counter([self.label]) + self._there

    async def ask(self, question, by=None):
        return dict(enumerate(await self._answers(question)))


class Desk:
    def __init__(self, rundir, settings, *, wall=time.time, uri=None, rejoin_max_s=0.1, upstream=Upstream):
        self.uri = uri or f"local://{rundir}/s"
        self.rundir = rundir
        self.link_options = Options()
        self.sessions = Sessions(settings, Trusting(), key=KEY, options=self.link_options, wall=wall)
        self.upstream = upstream(
            self.uri, Options(flusher=self.link_options.flusher), rejoin_max_s=rejoin_max_s
        )
        self.spy = Spy(self.upstream)
        self.delivery = Delivery(self.sessions, self.spy)
        fanout, clock = self.delivery.fanout, self.sessions.clock
        trends = Trends(self.spy, settings, self.sessions, fanout, clock, wall, keeps=False)
        self.administration = Administration(self.sessions, self.delivery, trends, reload=dict)
        self.node = None

    def open(self, who, link, kind="flux.v1"):
        return self.sessions.open(
            self.delivery, self.administration, who, link, kind=kind, address="192.0.2.7"
        )

    async def start_upstream(self):
        """Begin to join: `delivery` is told what comes."""
        await self.upstream.start(self.delivery, self.administration.handlers())

    async def start_broker(self):
        text = f'[broker]\nrundir = "{self.rundir}/r"\nlocal_uri = "{self.uri}"\n'
        self.node = Node(broker_settings.loads(text).at_rank(0))
        await self.node.start()

    async def join(self):
        await self.start_broker()
        await self.start_upstream()
        assert await self.upstream.wait_joined(10), self.upstream.reason

    async def close(self):
        self.delivery.stop()
        await self.sessions.stop()
        await self.upstream.stop()
        if self.node is not None:
            await self.node.stop()
        await asyncio.sleep(0)

    def client(self, who=None, kind="flux.v1"):
        return Client(self, who or principal(), kind)

    def owner(self, **options):
        return self.client(principal("root", 0, ("owner",), credential="token:owner"), **options)

    def direct(self):
        """A client of the broker itself, the instance's owner."""
        return flux.connect(self.uri)

    async def settled(self):
        """What was sent before has been handled by the broker, and what that made come has come."""
        for _ in range(5):
            await asyncio.sleep(0)
        if self.upstream.handle is not None:
            await self.upstream.handle.rpc("broker.ping", {"seq": 1})
        for _ in range(5):
            await asyncio.sleep(0)


def run(script, *, rules=(), limits=None, gateway=None, wall=time.time, join=True, faults=0):
    """Run `script(desk)`; complains about errors nobody saw, and about other than so many faults."""

    async def main():
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        rundir = Path(tempfile.mkdtemp(prefix="hg-"))
        desk = Desk(rundir, settings_of(rules, limits, gateway), wall=wall)
        try:
            async with asyncio.timeout(40):
                if join:
                    await desk.join()
                try:
                    await script(desk)
                finally:
                    await desk.close()
        finally:
            shutil.rmtree(rundir)
        assert not complaints, complaints
        assert desk.sessions.counters.faults == faults

    log = logging.getLogger("headgate")
    was = (list(log.handlers), log.level, log.propagate)
    try:
        asyncio.run(main())
    finally:
        log.handlers, log.level, log.propagate = was
