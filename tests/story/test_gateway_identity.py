"""Who is who, over real sockets: a broker, a gateway and web clients as processes and connections of their own."""

import base64
import contextlib
import errno
import functools
import itertools
import json
import time

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from broker.errors import ConfigError
from broker.wire import message as wire
from broker.wire.framing import Splitter
from broker.wire.payload import decode_json, encode_json
from gateway.identity.tokens import TokenFile
from gateway.settings import loads
from tests.live.brokers import eventually, one_broker
from tests.live.gateways import USERS, gateway_process
from tests.live.speaker import Speaker
from tests.live.verbs import headgate

pytestmark = pytest.mark.story

PATIENCE_S = 40
MORE = """
[[users]]
name = "twin"
userid = 1002
[[users]]
name = "guest"
userid = 1006
roles = ["admin", "user"]
"""


class Web:
    """A client of subprotocol `flux.v1.json` on a real WebSocket."""

    def __init__(self, stack, gateway, user):
        headers = gateway.bearer(user)
        self.socket = stack.enter_context(
            connect(gateway.ws, subprotocols=["flux.v1.json"], additional_headers=headers, proxy=None)
        )
        self.seen = []
        self.tags = itertools.count(1)
        self.welcome = self.take(lambda one: one["type"] == "welcome")

    def send(self, *objects):
        self.socket.send(json.dumps(list(objects)))

    def receive(self):
        found = json.loads(self.socket.recv(timeout=PATIENCE_S))
        self.seen += found if isinstance(found, list) else [found]

    def take(self, wanted):
        looked = 0
        while True:
            for index in range(looked, len(self.seen)):
                if wanted(self.seen[index]):
                    return self.seen.pop(index)
            looked = len(self.seen)
            self.receive()

    def ask(self, topic, payload=None, **more):
        tag = next(self.tags)
        self.send({"type": "request", "topic": topic, "matchtag": tag, "payload": payload or {}, **more})
        return self.take(lambda one: one["type"] == "response" and one["matchtag"] == tag)

    def rpc(self, topic, payload=None, **more):
        answer = self.ask(topic, payload, **more)
        assert not answer.get("errnum"), answer
        return answer.get("payload")

    def refused(self, topic, payload=None):
        answer = self.ask(topic, payload)
        return answer["errnum"], answer.get("error", "")

    def request(self, topic):
        return self.take(lambda one: one["type"] == "request" and one["topic"] == topic)

    def events(self):
        """Topics so far, up to a mark that is published now by the own session."""
        self.rpc("event.publish", {"topic": f"mark.{self.welcome['session']}", "flags": 0}, nodeid=0)
        self.take(
            lambda one: one.get("topic") == f"mark.{self.welcome['session']}" and one["type"] == "event"
        )
        return [
            one["topic"]
            for one in self.seen
            if one["type"] == "event" and not one["topic"].startswith("mark.")
        ]

    def closed(self):
        """(code, the error object before it) with which the gateway ends the connection."""
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                self.receive()
        errors = [one for one in self.seen if one["type"] == "error"]
        return caught.value.rcvd.code, errors[-1] if errors else None


@pytest.fixture(scope="module")
def broker(module_rundir):
    with one_broker(module_rundir) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(module_rundir, broker):
    with gateway_process(module_rundir, broker.uri, users=USERS + MORE) as running:
        yield running
        assert running.stop() == 0, running.lines()[-5:]


@pytest.fixture
def web(gateway):
    """Makes clients of users."""
    with contextlib.ExitStack() as stack:
        yield functools.partial(Web, stack, gateway)


def published(broker, topic, *, flags=0):
    content = {"topic": topic, "flags": flags, "payload": base64.b64encode(b"{}\0").decode()}
    with Speaker(broker.uri) as speaker:
        return decode_json(
            speaker.ask(wire.request("event.publish", encode_json(content), matchtag=1)).payload
        )["seq"]


def test_stamps_and_routes_of_clients_are_worth_nothing(gateway):
    with connect(
        gateway.ws, subprotocols=["flux.v1"], additional_headers=gateway.bearer("bob"), proxy=None
    ) as socket:
        splitter, seen = Splitter(), []
        socket.recv(timeout=PATIENCE_S)
        forged = []
        for tag, (userid, rolemask) in enumerate([(0, 1), (0xFFFFFFFF, 0), (0, 0xFFFFFFFF), (1002, 6)], 1):
            one = wire.request("broker.ping", b'{"seq":1}\0', matchtag=tag, userid=userid, rolemask=rolemask)
            one.push_route(b"a" * 36)
            one.push_route(b"b" * 36)
            forged.append(one.framed())
        socket.send(b"".join(forged))
        while len(seen) < 4:
            seen += splitter.feed(socket.recv(timeout=PATIENCE_S))
        for one in seen:
            answer = decode_json(one.payload)
            assert (answer["userid"], answer["rolemask"]) == (1002, 2)
            assert one.routes == []


def token_of(rundir, *words):
    done = headgate("token", *words, "--statedir", rundir / "state")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_user_without_a_role_gets_no_session(module_rundir, gateway, web):
    """A good token of a user whom the settings give no role; and settings cannot give an empty one."""
    tokens = TokenFile(str(module_rundir / "state" / "tokens.json"))
    gateway.tokens["stranger"] = tokens.add("stranger", now=time.time())[1]
    with pytest.raises(InvalidStatus) as caught:
        web("stranger")
    assert caught.value.response.status_code == 403
    rows = web("eve").rpc("gateway.sessions")["sessions"]
    assert "stranger" not in {row["user"] for row in rows}
    for roles in ("[]", '["local"]', '["none"]'):
        with pytest.raises(ConfigError):
            loads(f'[[users]]\nname = "x"\nuserid = 1\nroles = {roles}\n')
    with pytest.raises(ConfigError):
        loads('[[users]]\nname = "x"\nuserid = 4294967295\n')


def test_nobody_answers_for_another(web):
    eve = web("eve")

    def forged():
        return eve.rpc("gateway.stats")["counters"]["forged"]

    before = forged()
    good, thief, caller = web("bob"), web("bob"), web("bob")
    good.rpc("service.add", {"service": "1002-good"})
    thief.rpc("service.add", {"service": "1002-thief"})
    caller.send({"type": "request", "topic": "1002-good.run", "matchtag": 77, "payload": {}})
    asked = good.request("1002-good.run")
    answer = {
        "type": "response",
        "topic": asked["topic"],
        "matchtag": asked["matchtag"],
        "routes": asked["routes"],
    }
    thief.send({**answer, "payload": {"forged": True}})
    thief.send({**answer, "routes": [], "matchtag": 1, "payload": {"forged": True}})
    thief.rpc("broker.ping", {"seq": 1})
    good.send({**answer, "payload": {"forged": False}}, {**answer, "payload": {"again": True}})
    found = caller.take(lambda one: one["type"] == "response" and one["matchtag"] == 77)
    assert found["payload"] == {"forged": False}
    caller.rpc("broker.ping", {"seq": 1})
    assert not [one for one in caller.seen if one["type"] == "response"]
    assert forged() == before + 3


def test_names_of_guests(broker, web):
    bob, ada = web("bob"), web("ada")
    for name in ("calc", "1003-calc", "secret.x", "gateway", ""):
        assert bob.refused("service.add", {"service": name})[0] in (
            errno.EPERM,
            errno.EINVAL,
            errno.EEXIST,
        )
    bob.rpc("service.add", {"service": "1002-calc"})
    ada.rpc("service.add", {"service": "calc"})
    assert ada.refused("service.add", {"service": "1002-calc"})[0] == errno.EEXIST
    assert bob.refused("service.remove", {"service": "calc"})[0] == errno.ENOENT
    bob.socket.close()
    eventually(lambda: ada.ask("service.add", {"service": "1002-calc"}).get("errnum", 0), 0)
    with Speaker(broker.uri) as speaker:
        speaker.tell(wire.request("calc.run", b"{}\0", matchtag=5))
        asked = ada.request("calc.run")
        ada.send(
            {
                "type": "response",
                "topic": "calc.run",
                "matchtag": 5,
                "routes": asked["routes"],
                "payload": {},
            }
        )
        assert speaker.take(lambda one: one.matchtag == 5).errnum == 0


def test_a_wide_prefix_and_a_deny_below_it(broker, web):
    bob, ada, eve = web("bob"), web("ada"), web("eve")
    for client in (bob, ada, eve):
        client.rpc("event.subscribe", {"topic": ""})
    assert bob.refused("event.subscribe", {"topic": "secret."})[0] == errno.EPERM
    assert bob.refused("secret.service")[0] == errno.EPERM
    bob.send({"type": "event", "topic": "secret.by-bob"})
    assert bob.take(lambda one: one["type"] == "denied")["errno"] == errno.EPERM
    for topic in ("open.a", "secret.b", "open.c"):
        published(broker, topic)
    assert [topic for topic in bob.events() if topic[:4] in ("open", "secr")] == ["open.a", "open.c"]
    assert [topic for topic in ada.events() if topic[:4] in ("open", "secr")] == [
        "open.a",
        "secret.b",
        "open.c",
    ]
    denied = eve.rpc("gateway.denied")["denied"]
    assert {(one["user"], one["kind"], one["topic"]) for one in denied} >= {
        ("bob", "subscribe", "secret."),
        ("bob", "call", "secret.service"),
        ("bob", "publish", "secret.by-bob"),
    }
    errnum, text = bob.refused("gateway.denied")
    assert (errnum, text) == (errno.EPERM, "gateway.denied needs the role owner or admin")


def test_private_events_live_and_at_replay(broker, web):
    users = ("ada", "guest", "bob")
    former = {user: web(user) for user in users}
    for client in former.values():
        client.rpc("event.subscribe", {"topic": ""})

    def publish(tag):
        guest.send({"type": "event", "topic": f"priv.{tag}", "flags": ["private"], "payload": {}})
        published(broker, f"open.{tag}")
        published(broker, f"owner.{tag}", flags=wire.PRIVATE)
        guest.rpc("event.publish", {"topic": f"last.{tag}", "flags": 0}, nodeid=0)

    def mine(client, tag):
        return {one for one in client.events() if one.endswith(f".{tag}")}

    guest = web("guest")
    publish("live")
    everything = {
        "ada": {"priv", "open", "owner", "last"},
        "guest": {"priv", "open", "last"},
        "bob": {"open", "last"},
    }
    for user, client in former.items():
        assert mine(client, "live") == {f"{one}.live" for one in everything[user]}, user
    position = published(broker, "position")
    for client in former.values():
        client.socket.close()
    publish("away")
    for user in users:
        client = web(user)
        token = former[user].welcome["resume"]
        where = {"epoch": client.welcome["epoch"], "sequence": position, "subscriptions": [""]}
        client.send({"type": "resume", "token": token, **where})
        said = client.take(lambda one: one["type"] == "resumed")
        assert said["recovered"] is True
        assert mine(client, "away") == {f"{one}.away" for one in everything[user]}, user
        assert not mine(client, "live")
    thief = web("bob")
    thief.send({"type": "resume", "token": former["ada"].welcome["resume"], **where})
    assert thief.take(lambda one: one["type"] == "resumed")["recovered"] is True
    assert mine(thief, "away") == {f"{one}.away" for one in everything["bob"]}, "its own rights count"


@pytest.mark.patient
def test_a_removed_token_ends_its_sessions(module_rundir, gateway, web):
    bob, twin = web("bob"), web("twin")
    token_of(module_rundir, "remove", "twin")
    code, said = twin.closed()
    assert (code, said["reconnect"]) == (4506, False)
    assert bob.rpc("broker.ping", {"seq": 1})["userid"] == 1002
    with pytest.raises(InvalidStatus):
        web("twin")
    assert not [line for line in gateway.lines() if gateway.tokens["twin"] in line]


def test_an_admin_ends_a_session_which_may_begin_anew(web):
    bob, eve = web("bob"), web("eve")
    assert bob.refused("gateway.end", {"session": eve.welcome["session"]})[0] == errno.EPERM
    eve.rpc("gateway.end", {"session": bob.welcome["session"]})
    code, said = bob.closed()
    assert (code, said["text"], said["reconnect"]) == (4006, "ended by eve", True)
    assert web("bob").rpc("broker.ping", {"seq": 1})["userid"] == 1002
